//! A fixed price per contract: the training days' mean, or the day's own optimum (the oracle).

use crate::env::Replay;
use crate::plan::Bound;
use crate::policy::Policy;

/// Bids a fixed price per owed impression plus the worth of the predicted click.
pub struct FixedPrices {
    /// `None` for the training days' prices of the day's contracts.
    given: Option<Vec<f64>>,
    prices: Vec<f64>,
}

impl FixedPrices {
    pub fn training_days() -> Self {
        Self { given: None, prices: vec![] }
    }

    /// Serves with the prices that minimise the day's own bound, and so knows the future.
    pub fn oracle(bound: &Bound) -> Self {
        Self { given: Some(bound.prices.clone()), prices: vec![] }
    }
}

impl Policy for FixedPrices {
    fn begin(&mut self, replay: &Replay) {
        self.prices = self.given.clone().unwrap_or_else(|| replay.day.contracts.iter().map(|c| c.price).collect());
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = self.prices[c.contract as usize] + c.click;
        }
    }

    fn boosted(&self) -> bool {
        self.given.is_none()
    }
}
