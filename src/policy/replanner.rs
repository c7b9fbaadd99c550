//! Starting bids that are solved again and again: what is left of the day, as the receding horizon sees it.
//!
//! The prices become part of the state ([`crate::env::State::replanned`]), so that the learner, which rebuilds states from
//! recorded segments, need not solve anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::env::Replay;
use crate::plan::{Horizon, Sample};

use super::Policy as _;
use super::baselines::{Receding, RecedingState};
use super::learned::Bids;

/// A replanner in the middle of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplannerState {
    receding: RecedingState,
    offsets: Vec<f32>,
}

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

    /// What it goes on from.
    pub fn state(&self) -> ReplannerState {
        ReplannerState { receding: self.receding.state(), offsets: self.offsets.clone() }
    }

    /// Goes on with a replay that it had begun.
    pub fn resume(replay: &Replay, sample: Arc<Sample>, horizon: Horizon, state: ReplannerState) -> Self {
        let mut replanner = Self::begin(replay, sample, horizon);
        replanner.receding.resume(state.receding);
        replanner.offsets = state.offsets;
        replanner
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
