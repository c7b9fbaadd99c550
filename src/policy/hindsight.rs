//! The teacher: finds the price that each contract should have had, once the rest of the episode is known.
//!
//! Requests do not depend on the ads shown, so an actor can know the future of its own episode. At a visited state the dual of
//! the *rest of that very episode* gives each contract's price. Its mean over episodes, given the observations, is the marginal
//! value of one more owed impression under the perfect-information relaxation: a label without noise from bootstrapping
//! ("hindsight learning", Sinclair et al., ICML 2023).

use crate::env::{DayModel, Lesson, Replay};
use crate::log::draw;
use crate::plan::Transport;

use super::LearnedPolicy;

/// Maximum number of requests that a solution uses; more are thinned evenly, with higher weights.
const MOST_ROWS: usize = 12_000;
/// Smoothing of the dual at each stage, in units of its scale. Known prices start at stage `KNOWN_FROM`.
const SMOOTHINGS: [f64; 5] = [0.16, 0.06, 0.025, 0.01, 0.004];
const KNOWN_FROM: usize = 2;
const STEPS: usize = 3;
/// Solves hindsight prices along one episode.
#[derive(Debug, Clone, Default)]
pub struct Teacher {
    /// The last prices, minor units per impression; empty before the first.
    prices: Vec<f64>,
}

impl Teacher {
    /// Creates a teacher that starts from earlier prices; empty for none.
    pub fn from_prices(prices: Vec<f64>) -> Self {
        Self { prices }
    }

    /// Returns the last prices, minor units per impression; empty before the first.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// Returns the prices that minimise the dual of the rest of the episode: `rows` of its day, from the current request on.
    pub fn solve(&mut self, replay: &Replay, day: &DayModel, rows: impl Iterator<Item = usize> + Clone) -> &[f64] {
        let (episode, state) = (&replay.episode, &replay.state);
        let remaining = |demand: &[f64]| -> Vec<f64> {
            demand.iter().zip(&state.delivered).map(|(d, o)| (d - o).max(0.0)).collect()
        };
        let (owed, left) = (remaining(&episode.owed), remaining(&episode.left));
        let penalty: Vec<f64> = day.contracts.iter().map(|c| c.penalty).collect();
        let count = rows.clone().count();
        let every = count.div_ceil(MOST_ROWS).max(1);
        let mut transport = Transport::new(owed, left.clone(), penalty.clone());
        let mut requests = day.log.requests().iter();
        for row in rows.skip(count / 7 % every).step_by(every) {
            let request = &requests.row(row);
            let best = request.best * episode.price_factor(request.region, day.offset(row));
            let entries = day.log.entries(request).iter().filter_map(|e| {
                let c = &day.contracts[e.contract as usize];
                let may = left[e.contract as usize] > 0.0
                    && draw::passes(episode.rate_seed, request.request_id, c.ad_id, c.rate);
                may.then_some((e.contract, c.click_value * e.pctr))
            });
            transport.push(best, every as f64, entries);
        }
        let known = self.prices.len() == penalty.len();
        if !known {
            self.prices = day.contracts.iter().map(|c| c.price.min(c.penalty)).collect();
        }
        let scale = transport.scale(&self.prices).max(1e-9);
        for smoothing in &SMOOTHINGS[if known { KNOWN_FROM } else { 0 }..] {
            transport.descend(&mut self.prices, smoothing * scale, STEPS);
        }
        &self.prices
    }

    /// Returns the lesson of the current request: the features that `policy` sees of every contract that can still use
    /// impressions, with its hindsight price. `None` if there is no such contract.
    pub fn lesson(
        &mut self,
        policy: &mut LearnedPolicy,
        replay: &Replay,
        day: &DayModel,
        rows: impl Iterator<Item = usize> + Clone,
    ) -> Option<Lesson> {
        let live: Vec<usize> = (0..replay.day.contracts.len()).filter(|&j| wants(replay, j)).collect();
        if live.is_empty() {
            return None;
        }
        let mut lesson = policy.look(replay, &live);
        let prices = self.solve(replay, day, rows);
        for &j in &live {
            let c = &replay.day.contracts[j];
            lesson.labels.push(((prices[j] / c.penalty) as f32).clamp(0.0, 1.0));
            let remaining = replay.episode.owed[j] - replay.state.delivered[j];
            // The cost of a wrong price grows with the value of the remaining demand.
            let stake =
                c.penalty / replay.day.unit * remaining / (replay.episode.thinning * replay.day.traffic.total());
            lesson.weights.push((100.0 * stake).sqrt().clamp(0.05, 2.0) as f32);
        }
        Some(lesson)
    }
}

/// Whether contract `j` still owes impressions that it can deliver, so that its price matters and is known.
fn wants(replay: &Replay, j: usize) -> bool {
    let c = &replay.day.contracts[j];
    c.penalty > 0.0 && replay.offset() < c.end && replay.state.delivered[j] < replay.episode.owed[j]
}
