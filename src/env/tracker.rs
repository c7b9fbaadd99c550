//! Traffic and prices of a replay so far against the forecast, with several time constants: traffic of each contract and of all
//! requests, prices of all requests. The state of a replay contains it, so it is serialised with the state.

use serde::{Deserialize, Serialize};

use crate::plan::Time;

use super::episode::Episode;
use super::known::KnownDay;

/// Time constants of the decaying sums, milliseconds; the sums after them run since midnight.
const MEMORIES_MS: [f64; 2] = [600_000.0, 3_600_000.0];
/// Weight of the forecast in a level, requests.
pub(super) const VOLUME_PRIOR: f64 = 10.0;

/// Seen and expected amounts: one decaying sum per time constant, and the sum since midnight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    seen: [f32; 3],
    expected: [f32; 3],
}

impl Level {
    fn add(&mut self, decays: [f32; 2], seen: f64, expected: f64) {
        for i in 0..3 {
            let decay = decays.get(i).copied().unwrap_or(1.0);
            self.seen[i] = self.seen[i] * decay + seen as f32;
            self.expected[i] = self.expected[i] * decay + expected as f32;
        }
    }

    /// Returns seen over expected for sum `i`, shrunk to 1 with weight `prior`.
    pub(super) fn ratio(&self, i: usize, prior: f64) -> f64 {
        (f64::from(self.seen[i]) + prior) / (f64::from(self.expected[i]) + prior)
    }

    fn is_finite(&self) -> bool {
        self.seen.iter().chain(&self.expected).all(|v| v.is_finite())
    }
}

/// Traffic and prices seen so far against the forecast, with several time constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tracker {
    /// Requests of each contract, then of all, since the last update.
    met: Vec<f32>,
    pub(super) volumes: Vec<Level>,
    /// Best auction worth, and its expectation on the requests that arrived, since the last update.
    worth: (f64, f64),
    pub(super) prices: Level,
    /// Sum over the updates of the squared log-deviation of the hour's volume, and the number of updates.
    pub(super) wander: (f32, f32),
}

impl Tracker {
    pub(super) fn new(contracts: usize) -> Self {
        Self {
            met: vec![0.0; contracts + 1],
            volumes: vec![Level::default(); contracts + 1],
            worth: (0.0, 0.0),
            prices: Level::default(),
            wander: (0.0, 0.0),
        }
    }

    /// Returns the tracker for other contracts: `from` has the place here of each of them, `None` for a new one.
    pub(super) fn of_contracts(&self, from: &[Option<usize>]) -> Self {
        // All requests come after the contracts.
        let places = || from.iter().copied().chain([Some(self.met.len() - 1)]);
        Self {
            met: places().map(|from| from.map_or(0.0, |from| self.met[from])).collect(),
            volumes: places().map(|from| from.map_or_else(Level::default, |from| self.volumes[from])).collect(),
            ..*self
        }
    }

    pub(super) fn fits(&self, contracts: usize) -> bool {
        self.met.len() == contracts + 1
            && self.volumes.len() == contracts + 1
            && self.met.iter().all(|v| v.is_finite())
            && self.volumes.iter().chain([&self.prices]).all(Level::is_finite)
            && [self.worth.0, self.worth.1].iter().all(|v| v.is_finite())
            && [self.wander.0, self.wander.1].iter().all(|v| v.is_finite())
    }

    /// Returns the requests of all kinds, one pair per decaying sum and one since midnight: `[seen, expected]`.
    pub(super) fn volumes(&self) -> [[f64; 2]; 3] {
        let all = self.volumes.last().copied().unwrap_or_default();
        [0, 1, 2].map(|i| [f64::from(all.seen[i]), f64::from(all.expected[i])])
    }

    pub(super) fn arrive(&mut self, best: f64, expected: f64) {
        if let Some(all) = self.met.last_mut() {
            *all += 1.0;
        }
        self.worth.0 += best;
        self.worth.1 += expected;
    }

    pub(super) fn meet(&mut self, j: usize) {
        self.met[j] += 1.0;
    }

    /// Adds the requests that arrived from `since` to `until`, milliseconds from midnight.
    pub(super) fn update(&mut self, day: &KnownDay, episode: &Episode, since: u64, until: u64) {
        let decays = MEMORIES_MS.map(|memory| (-((until - since) as f64) / memory).exp() as f32);
        let n = day.contracts.len();
        let (from, to) = (Time::at(since), Time::at(until));
        for (j, c) in day.contracts.iter().enumerate() {
            let came = c.supply.until(to) - c.supply.until(from);
            let expected = came * episode.thinning * f64::from(episode.supply_error[j]);
            self.volumes[j].add(decays, self.met[j].into(), expected);
        }
        let expected = (day.traffic.until(to) - day.traffic.until(from)) * episode.thinning;
        self.volumes[n].add(decays, self.met[n].into(), expected);
        self.met.fill(0.0);
        self.prices.add(decays, self.worth.0, self.worth.1);
        self.worth = (0.0, 0.0);
        let deviation = self.volumes[n].ratio(1, VOLUME_PRIOR).ln() as f32;
        self.wander.0 += deviation * deviation;
        self.wander.1 += 1.0;
    }
}
