//! The two extremes: never a contract, and contracts before everything else.

use crate::env::Replay;
use crate::policy::Policy;

/// Shows a contract only if no auction ad may be shown.
pub struct AuctionOnly;

impl Policy for AuctionOnly {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, _: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        contracts.fill(f64::NEG_INFINITY);
    }
}

/// Shows a contract that still owes before any auction ad: the one with the highest remaining demand over its remaining supply.
pub struct ContractFirst;

impl Policy for ContractFirst {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        const ABOVE_ALL: f64 = 1e12;
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let remaining = replay.episode.owed[j] - replay.state.observed[j];
            let supply = &replay.day.contracts[j].supply;
            let left = (supply.total() - supply.before(replay.offset())) * replay.episode.thinning;
            *score = if remaining > 0.0 { ABOVE_ALL * (1.0 + remaining / (left + 1.0)) } else { c.click };
        }
    }
}
