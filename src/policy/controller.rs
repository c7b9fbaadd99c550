//! The learned policy without its network: its starting bids and the pacing controller alone.

use std::sync::Arc;

use crate::env::Replay;
use crate::plan::{Horizon, PacingGains, Sample};
use crate::settings;

use super::bids::{Bids, lift};
use super::learned::unit_owed;
use super::{Policy, Replanner};

/// Bids of the learned policy with a network whose output is 0; for tuning the gains.
pub struct Controller {
    settings: settings::Policy,
    gains: PacingGains,
    horizon: Horizon,
    /// Error of every starting bid, added to its logit.
    start_error: f64,
    /// Sample to plan from instead of the day's own.
    sample: Option<Arc<Sample>>,
    bids: Option<Bids>,
    replanner: Option<Replanner>,
}

impl Controller {
    pub fn new(settings: &settings::Policy, gains: PacingGains, horizon: Horizon) -> Self {
        Self { settings: settings.clone(), gains, horizon, start_error: 0.0, sample: None, bids: None, replanner: None }
    }

    /// Returns the controller with another sample of the expected requests.
    pub fn expecting(mut self, sample: Arc<Sample>) -> Self {
        self.sample = Some(sample);
        self
    }

    /// Returns the controller with the odds of its starting bids multiplied by a factor.
    pub fn starting_off_by(mut self, factor: f64) -> Self {
        self.start_error = factor.ln();
        self
    }
}

impl Policy for Controller {
    fn begin(&mut self, replay: &Replay) {
        self.bids = Some(Bids::new(&replay.day, &self.settings));
        self.replanner = self.settings.replans().then(|| {
            let sample = self.sample.as_ref().unwrap_or(&replay.day.sample);
            Replanner::begin(replay, sample.clone(), self.horizon, &self.settings)
        });
    }

    fn replan(&mut self, replay: &Replay) -> Option<&[f32]> {
        self.replanner.as_mut()?.advance(replay, self.bids.as_ref()?)
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        let bids = self.bids.as_ref().expect("begin() came first");
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let Replay { day, episode, state, .. } = replay;
            let pacing = state.pacing(day, &self.gains, episode, j, replay.observed_until());
            let output = self.start_error + lift(&self.settings, replay, j, pacing);
            *score = c.click + bids.contract(j, output, unit_owed(&self.settings, replay, j)).0;
        }
    }
}
