//! A fixed price per contract: the training days' mean.

use crate::env::Replay;
use crate::policy::Policy;

/// Bids the training days' price per owed impression plus the worth of the predicted click.
#[derive(Default)]
pub struct FixedPrices {
    prices: Vec<f64>,
}

impl Policy for FixedPrices {
    fn begin(&mut self, replay: &Replay) {
        self.prices = replay.day.contracts.iter().map(|c| c.price).collect();
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = self.prices[c.contract as usize] + c.click;
        }
    }
}
