//! Probabilistic throttling: a contract takes part in a share of its requests, and the share is adjusted so that delivery follows
//! the planned curve.
//!
//! Agarwal, Ghosh, Wei, You: "Budget pacing for targeted online advertisements at LinkedIn", KDD 2014: if delivery is ahead of
//! the curve, the pass-through rate is multiplied by `1 - step`, else by `1 + step`. A contract that passes ranks before the
//! auction; of several, the one with the highest stake ranks first. It does not use auction prices.

use anyhow::ensure;

use crate::env::Replay;
use crate::log::draw;
use crate::policy::{Policy, finite, pack, unpack};

use super::clock::Clock;

/// Differs from any seed in use for rate draws, which use the same hash.
const SEED: u64 = 0x9A55_4A7E_0000_0001;
const LEAST: f64 = 1e-3;
/// Score far above any auction ad's, or far below when negated.
const FAR: f64 = 1e12;

pub struct PassRate {
    step: f64,
    clock: Clock,
    rates: Vec<f64>,
}

impl PassRate {
    /// `step`: relative change of a rate each `interval_s` seconds of log time.
    pub fn new(step: f64, interval_s: f64) -> Self {
        Self { step, clock: Clock::new(interval_s), rates: vec![] }
    }

    fn adjust(&mut self, replay: &Replay) {
        for (j, c) in replay.day.contracts.iter().enumerate() {
            let owed = replay.episode.owed[j];
            let Some(planned) = c.planned_share(replay.observed_until()) else { continue };
            let ahead = replay.state.observed[j] > planned * owed;
            self.rates[j] *= if ahead { 1.0 - self.step } else { 1.0 + self.step };
            self.rates[j] = self.rates[j].clamp(LEAST, 1.0);
        }
    }
}

impl Policy for PassRate {
    fn begin(&mut self, replay: &Replay) {
        self.rates = replay.day.contracts.iter().map(|c| c.theta.clamp(LEAST, 1.0)).collect();
        self.clock.restart();
    }

    fn save(&self) -> Vec<u8> {
        pack(&(&self.rates, self.clock.next()))
    }

    fn load(&mut self, replay: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        let (rates, next): (Vec<f64>, u64) = unpack(saved)?;
        ensure!(finite(&rates, replay.day.contracts.len()), "saved rates of another day");
        self.rates = rates;
        self.clock.resume(next);
        Ok(())
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        if self.clock.due(replay.offset()) {
            self.adjust(replay);
        }
        let request_id = replay.visit().request_id;
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let contract = &replay.day.contracts[j];
            *score = if replay.state.observed[j] >= replay.episode.owed[j] {
                c.click
            } else if draw::passes(SEED, request_id, contract.ad_id, self.rates[j]) {
                FAR + contract.penalty + c.click
            } else {
                c.click - FAR
            };
        }
    }
}
