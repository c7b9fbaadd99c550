//! Online dual descent on the contracts' prices.
//!
//! Balseiro, Lu, Mirrokni: "The best of many worlds: dual mirror descent for online allocation problems", Operations Research
//! 71(1), 2023, with the Euclidean mirror map: the price moves against a subgradient of the dual, which is an interval's
//! delivery minus its target, and is projected on the interval that contains the optimal price. In the paper a budget is to be
//! used up; here a demand is to be met, so the price rises if delivery is short. The paper's constant target per request
//! becomes the planned share of the forecast supply.

use anyhow::ensure;

use crate::env::Replay;
use crate::policy::{Policy, finite, pack, unpack};

use super::clock::Clock;

/// Initial prices.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Start {
    /// Half the penalty: without knowledge of any day.
    Cold,
    /// The training days' prices times a factor, with which tuning introduces an error.
    Warm(f64),
}

pub struct DualDescent {
    start: Start,
    step: f64,
    clock: Clock,
    /// Minor units per impression.
    prices: Vec<f64>,
    /// Planned and observed shares of each demand at the last step.
    last: Vec<(f64, f64)>,
}

impl DualDescent {
    /// Starts at half the penalty. `step` is the price change, as a share of a contract's stake, if its whole demand is
    /// missing; `interval_s` is the log time between two steps, seconds.
    pub fn cold(step: f64, interval_s: f64) -> Self {
        Self { start: Start::Cold, step, clock: Clock::new(interval_s), prices: vec![], last: vec![] }
    }

    /// Starts at the training days' prices.
    pub fn warm(step: f64, interval_s: f64) -> Self {
        Self { start: Start::Warm(1.0), ..Self::cold(step, interval_s) }
    }

    /// Returns the warm start with its prices multiplied by a factor.
    pub fn starting_off_by(self, factor: f64) -> Self {
        Self { start: Start::Warm(factor), ..self }
    }

    /// Returns the current prices, minor units per impression.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn descend(&mut self, replay: &Replay) {
        for (j, c) in replay.day.contracts.iter().enumerate() {
            let owed = replay.episode.owed[j];
            let Some(planned) = c.planned_share(replay.observed_until()).filter(|_| owed > 0.0) else { continue };
            let delivered = replay.state.observed[j] / owed;
            let (planned_before, delivered_before) = std::mem::replace(&mut self.last[j], (planned, delivered));
            let short = (planned - planned_before) - (delivered - delivered_before);
            // Minus the click's worth keeps a contract out as well as any lower price.
            self.prices[j] = (self.prices[j] + self.step * c.stake * short).clamp(-c.mean_click, c.penalty);
        }
    }
}

impl Policy for DualDescent {
    fn begin(&mut self, replay: &Replay) {
        let start = |c: &crate::env::ContractModel| match self.start {
            Start::Cold => 0.5 * c.penalty,
            Start::Warm(factor) => (factor * c.price).min(c.penalty),
        };
        self.prices = replay.day.contracts.iter().map(start).collect();
        self.last = vec![(0.0, 0.0); self.prices.len()];
        self.clock.restart();
    }

    fn save(&self) -> Vec<u8> {
        pack(&(&self.prices, &self.last, self.clock.next()))
    }

    fn load(&mut self, replay: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        let (prices, last, next): (Vec<f64>, Vec<(f64, f64)>, u64) = unpack(saved)?;
        let contracts = replay.day.contracts.len();
        let shares = last.iter().all(|(planned, delivered)| planned.is_finite() && delivered.is_finite());
        ensure!(finite(&prices, contracts) && last.len() == contracts && shares, "saved prices of another day");
        (self.prices, self.last) = (prices, last);
        self.clock.resume(next);
        Ok(())
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        if self.clock.due(replay.offset()) {
            self.descend(replay);
        }
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.observed[j] < replay.episode.owed[j];
            *score = c.click + if owes { self.prices[j] } else { self.prices[j].min(0.0) };
        }
    }
}
