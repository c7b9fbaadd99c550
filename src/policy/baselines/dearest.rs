//! The contract that loses most by a missing impression comes first.

use crate::env::Replay;
use crate::policy::Policy;

/// Shows the contract that still owes and whose penalty is the highest, where that is above the best auction ad's worth.
pub struct Dearest;

impl Policy for Dearest {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.observed[j] < replay.episode.owed[j];
            *score = c.click + if owes { replay.day.contracts[j].penalty } else { 0.0 };
        }
    }
}
