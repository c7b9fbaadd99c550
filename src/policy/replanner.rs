//! Starting bids that are solved again and again: what is left of the day, as the receding horizon sees it.
//!
//! The prices become part of the state ([`crate::env::State::replanned`]), so that the learner, which rebuilds states from
//! recorded segments, need not solve anything.

use std::sync::Arc;

use crate::env::Replay;
use crate::plan::{Horizon, Sample};

use super::Policy as _;
use super::baselines::Receding;
use super::learned::Bids;

/// Solves prices and turns them into what is added to the logits of bids.
pub struct Replanner {
    receding: Receding,
    offsets: Vec<f32>,
}

impl Replanner {
    /// For a replay that begins; `sample` says what is to come, `horizon` how often to look.
    pub fn begin(replay: &Replay, sample: Arc<Sample>, horizon: Horizon) -> Self {
        let mut receding = Receding::new(sample, horizon);
        receding.begin(replay);
        Self { receding, offsets: vec![0.0; replay.day.contracts.len()] }
    }

    /// Takes in the current request; the new offsets where prices were solved.
    pub fn advance(&mut self, replay: &Replay, bids: &Bids) -> Option<&[f32]> {
        if !self.receding.advance(replay) {
            return None;
        }
        for (j, (offset, &price)) in self.offsets.iter_mut().zip(self.receding.prices()).enumerate() {
            *offset = bids.offset_of_price(j, price) as f32;
        }
        Some(&self.offsets)
    }
}
