//! Starting bids that are solved again and again: what is left of the day, as the receding horizon sees it.
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

/// A replanner in the middle of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplannerState {
    receding: RecedingState,
    offsets: Vec<f32>,
}

impl ReplannerState {
    /// Whether this can be a replanner's state on a day of so many contracts.
    pub fn fits(&self, contracts: usize) -> bool {
        self.receding.fits(contracts) && State::fits_replanned(&self.offsets, contracts)
    }
}

/// Solves prices and turns them into what is added to the logits of bids.
pub struct Replanner {
    receding: Receding,
    offsets: Vec<f32>,
    advises: bool,
}

impl Replanner {
    /// For a replay that begins; `sample` says what is to come, `horizon` how often to look.
    /// With `settings.outlook` it also says what it would do if the forecast were right, and predicts deliveries.
    pub fn begin(replay: &Replay, sample: Arc<Sample>, horizon: Horizon, settings: &settings::Policy) -> Self {
        let advises = settings.outlook;
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

    /// What it goes on from.
    pub fn state(&self) -> ReplannerState {
        ReplannerState { receding: self.receding.state(), offsets: self.offsets.clone() }
    }

    /// Goes on with a replay that it had begun.
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

    /// Goes on from a state of the replay that it has begun.
    pub fn load(&mut self, state: ReplannerState) {
        self.receding.resume(state.receding);
        self.offsets = state.offsets;
    }

    /// Whether prices are handed out as [`Work`] instead of being solved in line.
    pub fn hand_out(&mut self, on: bool) {
        self.receding.hand_out(on);
    }

    /// Prices that are to be solved elsewhere.
    pub fn take_work(&mut self) -> Option<Work> {
        self.receding.take_work()
    }

    /// Takes prices that were solved elsewhere.
    pub fn finish_work(&mut self, done: Done) {
        self.receding.finish_work(done);
    }

    /// Takes in the current request; where prices were solved, the new columns of [`crate::env::State::replan`].
    pub fn advance(&mut self, replay: &Replay, bids: &Bids) -> Option<&[f32]> {
        if !self.receding.advance(replay) {
            return None;
        }
        let n = replay.day.contracts.len();
        for (j, (offset, &price)) in self.offsets.iter_mut().zip(self.receding.prices()).enumerate() {
            *offset = bids.offset_of_price(j, price) as f32;
        }
        // While a solution is under way elsewhere, the last advice beyond the price stands.
        if self.advises
            && let Some(opinion) = self.receding.second_opinion(replay)
        {
            for j in 0..n {
                let seen = self.offsets[j];
                let price = opinion.prices[j];
                let forecast = bids.offset_of_price(j, price) as f32;
                let by_volume = -opinion.by_demand[j] * bids.slope_of_price(j, price);
                let columns = [
                    (1.0 - FORECAST_SHARE) * seen + FORECAST_SHARE * forecast,
                    seen,
                    forecast,
                    by_volume as f32,
                    (0.1 + opinion.supply[j].max(0.0)).ln() as f32,
                ];
                for (column, value) in columns.into_iter().enumerate() {
                    self.offsets[column * n + j] = value;
                }
            }
        }
        Some(&self.offsets)
    }
}

/// Share of the price at the forecast's levels in where an advised bid starts; the rest is the price at the levels seen.
const FORECAST_SHARE: f32 = 0.5;
