//! Every contract bids the same share of its penalty all day.

use crate::env::Replay;
use crate::policy::Policy;

/// Bids a share of the penalty for an impression that is owed.
pub struct PenaltyShare {
    share: f64,
}

impl PenaltyShare {
    /// `share`: of the penalty.
    pub fn new(share: f64) -> Self {
        Self { share }
    }
}

impl Policy for PenaltyShare {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.observed[j] < replay.episode.owed[j];
            *score = c.click + if owes { self.share * replay.day.contracts[j].penalty } else { 0.0 };
        }
    }
}
