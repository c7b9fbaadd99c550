//! Starting bids that are solved repeatedly on the rest of the day, by the receding horizon.
//!
//! The prices become part of the state ([`crate::env::State::replan`]), so that the learner, which rebuilds states from
//! recorded segments, need not solve anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::env::{ADVICE_COLUMNS, Replay, State};
use crate::plan::{Horizon, Sample};
use crate::settings;

use super::baselines::{Receding, RecedingState};
use super::bids::Bids;
use super::{Done, Policy as _, Work};

/// Memory of an advising planner's price level, seconds. Tuning does not change it, because the network was trained on these prices.
const ADVICE_MEMORY_S: f64 = 3600.0;

/// State of a replanner in the middle of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplannerState {
    receding: RecedingState,
    offsets: Vec<f32>,
}

impl ReplannerState {
    /// Whether this can be a replanner's state on a day with `contracts` contracts.
    pub fn fits(&self, contracts: usize) -> bool {
        self.receding.fits(contracts) && State::fits_replanned(&self.offsets, contracts)
    }
}

/// Solves prices and converts them to additions to the logits of bids.
pub struct Replanner {
    receding: Receding,
    offsets: Vec<f32>,
    advises: bool,
}

impl Replanner {
    /// Creates a replanner at the start of a replay; `sample` holds the expected requests, `horizon` the interval and memory.
    /// With `settings.outlook` it also advises on the prices if the forecast were right, predicts deliveries, and has its own
    /// memory.
    pub fn begin(replay: &Replay, sample: Arc<Sample>, horizon: Horizon, settings: &settings::Policy) -> Self {
        let advises = settings.outlook;
        let horizon = if advises { Horizon { memory_s: ADVICE_MEMORY_S, ..horizon } } else { horizon };
        let mut receding = Receding::new(sample, horizon);
        if settings.foresees_volume() {
            receding = receding.foreseeing();
        }
        if advises {
            receding = receding.predicting();
        }
        receding.begin(replay);
        let columns = if advises { ADVICE_COLUMNS } else { 1 };
        Self { receding, offsets: vec![0.0; columns * replay.day.contracts.len()], advises }
    }

    /// Returns the state from which [`Replanner::resume`] continues.
    pub fn state(&self) -> ReplannerState {
        ReplannerState { receding: self.receding.state(), offsets: self.offsets.clone() }
    }

    /// Resumes a replay that it had begun.
    pub fn resume(
        replay: &Replay,
        sample: Arc<Sample>,
        horizon: Horizon,
        settings: &settings::Policy,
        state: ReplannerState,
    ) -> Self {
        let mut replanner = Self::begin(replay, sample, horizon, settings);
        replanner.load(state);
        replanner
    }

    /// Loads a state of the replay that it has begun.
    pub fn load(&mut self, state: ReplannerState) {
        self.receding.resume(state.receding);
        self.offsets = state.offsets;
    }

    /// Sets whether prices are handed out as [`Work`] instead of being solved in line.
    pub fn hand_out(&mut self, on: bool) {
        self.receding.hand_out(on);
    }

    /// Returns prices to be solved elsewhere.
    pub fn take_work(&mut self) -> Option<Work> {
        self.receding.take_work()
    }

    /// Takes prices that were solved elsewhere.
    pub fn finish_work(&mut self, done: Done) {
        self.receding.finish_work(done);
    }

    /// Takes in the current request; if prices were solved, returns the new columns of [`crate::env::State::replan`].
    pub fn advance(&mut self, replay: &Replay, bids: &Bids) -> Option<&[f32]> {
        if !self.receding.advance(replay) {
            return None;
        }
        let n = replay.day.contracts.len();
        for (j, (offset, &price)) in self.offsets.iter_mut().zip(self.receding.prices()).enumerate() {
            *offset = bids.offset_of_price(j, price) as f32;
        }
        // While a solution is computed elsewhere, the last advice beyond the price stays.
        if self.advises
            && let Some(opinion) = self.receding.second_opinion(replay)
        {
            for j in 0..n {
                let price = opinion.prices[j];
                let by_volume = -opinion.by_demand[j] * bids.slope_of_price(j, price);
                let columns = [
                    bids.offset_of_price(j, price) as f32,
                    by_volume as f32,
                    (0.1 + opinion.supply[j].max(0.0)).ln() as f32,
                ];
                for (column, value) in (1..).zip(columns) {
                    self.offsets[column * n + j] = value;
                }
            }
        }
        Some(&self.offsets)
    }
}
