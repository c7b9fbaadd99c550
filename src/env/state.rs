//! Counters that replay changes, and the part of them that a policy has observed.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::formulas::host::pacing;
use crate::plan::{Deviation, PacingGains, Time};

use super::advice::{ADVICE_COLUMNS, Advice};
use super::episode::Episode;
use super::known::KnownDay;
use super::tracker::Tracker;

/// Time constant of the decaying sums: price level and delivery speed.
const MEMORY_MS: f64 = 3_600_000.0;
/// Weight of the expected price in the price level, requests.
const PRICE_PRIOR: f64 = 5.0;
/// Interval at which the sums over all contracts are recomputed.
const REFRESH_MS: u64 = 60_000;

/// Returns the factor by which decaying sums are stored at a moment.
pub(super) fn growth(offset: u64) -> f64 {
    (offset as f64 / MEMORY_MS).exp()
}

/// Returns the inverse of [`growth`].
pub(super) fn decay(offset: u64) -> f64 {
    (-(offset as f64) / MEMORY_MS).exp()
}

/// Returns the gain of the pacing controller's market term for contract `j`; 0 if nothing is paced.
#[inline]
pub(super) fn market_gain(day: &KnownDay, gains: &PacingGains, episode: &Episode, j: usize) -> f64 {
    if episode.owed[j] > 0.0 && day.contracts[j].pace.total() > 0.0 { gains.market } else { 0.0 }
}

/// A display whose delivery has not been observed yet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Pending {
    due: u64,
    /// `None` for an auction ad.
    contract: Option<u32>,
    pctr: f32,
    worth: f32,
}

/// Counters of one replay. Money in minor units per impression, times in milliseconds from midnight.
///
/// Decaying sums are stored times `exp(t / hour)`, so that a step adds to one entry without decaying the others. Counts and sums are `f64`: an `f32`
/// that counts impressions stands still at 2^24.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// True deliveries; caps and rewards use them.
    pub delivered: Vec<f64>,
    /// Deliveries that policies have observed.
    pub observed: Vec<f64>,
    speed: Vec<f64>,
    /// Sum of the pace error over the planned share: the controller's integral term.
    integral: Vec<f64>,
    /// Sums of the best auction worth on each contract's requests, seen and expected: decaying, and since the start.
    market_seen: Vec<f64>,
    market_expected: Vec<f64>,
    day_market_seen: Vec<f64>,
    day_market_expected: Vec<f64>,
    /// Additions of the replanner to the logit of each contract's bid; with a replanner that advises, [`ADVICE_COLUMNS`] columns.
    pub replanned: Vec<f32>,
    /// Traffic and prices with several time constants.
    pub(super) tracker: Tracker,
    pending: VecDeque<Pending>,
    price_seen: f64,
    price_expected: f64,
    /// Requests so far.
    pub requests: u32,
    contract_shows: f64,
    contract_pctr: f64,
    auction_shows: f64,
    auction_pctr: f64,
    auction_worth: f64,
    refreshed: Option<u64>,
    shortage: f32,
    pressure: f32,
}

impl State {
    /// Creates the state before the first request of an episode, from the counts delivered before its start.
    pub fn new(delivered: Vec<f64>) -> Self {
        let contracts = delivered.len();
        Self {
            observed: delivered.clone(),
            delivered,
            speed: vec![0.0; contracts],
            integral: vec![0.0; contracts],
            market_seen: vec![0.0; contracts],
            market_expected: vec![0.0; contracts],
            day_market_seen: vec![0.0; contracts],
            day_market_expected: vec![0.0; contracts],
            replanned: vec![0.0; contracts],
            tracker: Tracker::new(contracts),
            pending: VecDeque::new(),
            price_seen: 0.0,
            price_expected: 0.0,
            requests: 0,
            contract_shows: 0.0,
            contract_pctr: 0.0,
            auction_shows: 0.0,
            auction_pctr: 0.0,
            auction_worth: 0.0,
            refreshed: None,
            shortage: 0.0,
            pressure: 0.0,
        }
    }

    /// Whether this can be a state of a day with `contracts` contracts: columns have that length, indices are in range and all
    /// numbers are finite.
    pub fn fits(&self, contracts: usize) -> bool {
        [
            &self.delivered,
            &self.observed,
            &self.speed,
            &self.integral,
            &self.market_seen,
            &self.market_expected,
            &self.day_market_seen,
            &self.day_market_expected,
        ]
        .into_iter()
        .all(|column| column.len() == contracts && column.iter().all(|v| v.is_finite()))
            && Self::fits_replanned(&self.replanned, contracts)
            && self.tracker.fits(contracts)
            && [self.price_seen, self.price_expected].iter().all(|v| v.is_finite())
            && [self.contract_shows, self.contract_pctr, self.auction_shows, self.auction_pctr, self.auction_worth]
                .iter()
                .all(|v| v.is_finite())
            && self.pending.iter().all(|p| {
                p.contract.is_none_or(|j| (j as usize) < contracts) && p.pctr.is_finite() && p.worth.is_finite()
            })
    }

    /// Returns the state for other contracts: `from` has the place here of each of them, `None` for a new one, and `to` the new place of each one here,
    /// `None` for one that is gone. What a replanner said is forgotten.
    pub fn of_contracts(&self, from: &[Option<usize>], to: &[Option<u32>]) -> Self {
        let column = |of: &[f64]| from.iter().map(|from| from.map_or(0.0, |from| of[from])).collect();
        let moved = |p: &Pending| match p.contract {
            Some(j) => to[j as usize].map(|j| Pending { contract: Some(j), ..*p }),
            None => Some(*p),
        };
        Self {
            delivered: column(&self.delivered),
            observed: column(&self.observed),
            speed: column(&self.speed),
            integral: column(&self.integral),
            market_seen: column(&self.market_seen),
            market_expected: column(&self.market_expected),
            day_market_seen: column(&self.day_market_seen),
            day_market_expected: column(&self.day_market_expected),
            replanned: vec![0.0; from.len()],
            tracker: self.tracker.of_contracts(from),
            pending: self.pending.iter().filter_map(moved).collect(),
            ..*self
        }
    }

    /// Whether this can be the output of a replanner for `contracts` contracts.
    pub fn fits_replanned(replanned: &[f32], contracts: usize) -> bool {
        [contracts, ADVICE_COLUMNS * contracts].contains(&replanned.len()) && replanned.iter().all(|v| v.is_finite())
    }

    /// Stores the output of a replanner: the additions to the logit of each contract's bid, then the columns of [`Advice`].
    pub fn replan(&mut self, columns: &[f32]) {
        self.replanned.clear();
        self.replanned.extend_from_slice(columns);
    }

    /// Clears the output of the replanner.
    pub fn forget_plan(&mut self) {
        self.replanned = vec![0.0; self.delivered.len()];
    }

    /// Takes the replanner's output from another state of the same day.
    pub fn adopt_plan(&mut self, other: &mut Self) {
        self.replanned = std::mem::take(&mut other.replanned);
    }

    /// Swaps the replanner's output with another state of the same day.
    pub fn swap_plan(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.replanned, &mut other.replanned);
    }

    /// Returns the replanner's addition to the logit of contract `j`'s bid.
    pub fn replanned(&self, j: usize) -> f32 {
        self.replanned[j]
    }

    /// Returns the replanner's advice on contract `j`; zeros if it does not advise.
    pub fn advice(&self, j: usize) -> Advice {
        let n = self.delivered.len();
        if self.replanned.len() == n {
            return Advice::default();
        }
        let [forecast, by_volume, supply] = [1, 2, 3].map(|column| self.replanned[column * n + j]);
        Advice { forecast, by_volume, supply }
    }

    /// Takes in a request: deliveries that are due become observed, and traffic and prices are counted. Returns the
    /// [`growth`] of the moment, for [`State::meet`].
    pub(super) fn arrive(&mut self, day: &KnownDay, episode: &Episode, offset: u64, delay: u64, best: f64) -> f64 {
        while self.pending.front().is_some_and(|p| p.due <= offset) {
            if let Some(p) = self.pending.pop_front() {
                self.observe(p, p.due);
            }
        }
        let weight = growth(offset);
        let hour = (offset / 3_600_000).min(23) as usize;
        self.price_seen += weight * best;
        self.price_expected += weight * day.price_by_hour[hour];
        self.tracker.arrive(best, day.price_by_hour[hour]);
        self.requests += 1;
        if self.refreshed.is_none_or(|at| offset >= at + REFRESH_MS) {
            self.refresh(day, episode, offset, delay);
        }
        weight
    }

    /// Counts the current request for contract `j`; `weight` is the value that [`State::arrive`] returned.
    pub(super) fn meet(&mut self, day: &KnownDay, j: usize, offset: u64, weight: f64, best: f64) {
        let hour = (offset / 3_600_000).min(23) as usize;
        let expected = day.price_by_hour[hour] * day.contracts[j].market_ratio;
        self.tracker.meet(j);
        self.market_seen[j] += weight * best;
        self.market_expected[j] += weight * expected;
        self.day_market_seen[j] += best;
        self.day_market_expected[j] += expected;
    }

    fn refresh(&mut self, day: &KnownDay, episode: &Episode, offset: u64, delay: u64) {
        let (mut planned, mut short, mut owed, mut covered) = (0.0, 0.0, 0.0, 0.0);
        // Deliveries observed by now were made before this time.
        let until = Time::at(offset.saturating_sub(delay));
        let since = Time::at(self.refreshed.unwrap_or(offset).saturating_sub(delay));
        for (j, c) in day.contracts.iter().enumerate() {
            let total = c.pace.total();
            let demand = episode.owed[j];
            let before = c.pace.until(until);
            let due = if total > 0.0 { demand * before / total } else { 0.0 };
            if total > 0.0 && demand > 0.0 {
                let error = (due - self.observed[j]) / demand;
                self.integral[j] += error * (before - c.pace.until(since)) / total;
            }
            planned += due;
            short += (due - self.observed[j]).max(0.0);
            owed += (demand - self.observed[j]).max(0.0);
            covered += demand;
        }
        self.tracker.update(day, episode, self.refreshed.unwrap_or(0), offset);
        let left = (day.traffic.total() - day.traffic.before(offset)) * episode.thinning;
        self.shortage = if covered > 0.0 { (short / (planned + 0.02 * covered)) as f32 } else { 0.0 };
        self.pressure = (owed / (left + 0.01 * day.traffic.total() * episode.thinning + 1e-9)) as f32;
        self.refreshed = Some(offset);
    }

    /// Counts a display whose delivery is observed `delay` milliseconds later.
    pub(super) fn show(&mut self, contract: Option<usize>, offset: u64, delay: u64, pctr: f64, worth: f64) {
        if let Some(j) = contract {
            self.delivered[j] += 1.0;
        }
        let shown = Pending {
            due: offset.saturating_add(delay),
            contract: contract.map(|j| j as u32),
            pctr: pctr as f32,
            worth: worth as f32,
        };
        if delay == 0 {
            self.observe(shown, offset);
        } else {
            self.pending.push_back(shown);
        }
    }

    /// Confirms a display at a time of the day: policies observe it. The true count does not change.
    pub fn confirm(&mut self, contract: Option<usize>, offset: u64, pctr: f64, worth: f64) {
        let contract = contract.map(|j| j as u32);
        self.observe(Pending { due: offset, contract, pctr: pctr as f32, worth: worth as f32 }, offset);
    }

    /// Takes back a display of contract `j`, observed or not.
    pub fn take_back(&mut self, j: usize, pctr: f32) {
        self.delivered[j] -= 1.0;
        let same = |p: &Pending| p.contract == Some(j as u32) && p.pctr == pctr;
        match self.pending.iter().position(same) {
            Some(place) => drop(self.pending.remove(place)),
            None => self.observed[j] -= 1.0,
        }
    }

    /// Marks every display as observed.
    pub fn observe_all(&mut self) {
        while let Some(p) = self.pending.pop_front() {
            self.observe(p, p.due);
        }
    }

    /// Assumes that traffic before a time of the day was as forecast, for a state that begins there.
    pub fn expect_traffic(&mut self, day: &KnownDay, episode: &Episode, offset: u64) {
        self.requests = (day.traffic.before(offset) * episode.thinning).round() as u32;
    }

    fn observe(&mut self, shown: Pending, at: u64) {
        match shown.contract {
            Some(j) => {
                self.observed[j as usize] += 1.0;
                self.speed[j as usize] += growth(at);
                self.contract_shows += 1.0;
                self.contract_pctr += f64::from(shown.pctr);
            }
            None => {
                self.auction_shows += 1.0;
                self.auction_pctr += f64::from(shown.pctr);
                self.auction_worth += f64::from(shown.worth);
            }
        }
    }

    /// Returns the decaying observed price level over the expected one; 1 before any request.
    pub fn price_level(&self, unit: f64, offset: u64) -> f64 {
        let prior = PRICE_PRIOR * unit * growth(offset);
        (self.price_seen + prior) / (self.price_expected + prior)
    }

    /// Returns the decaying observed price level on contract `j`'s requests over the expected one; `growth` is that of the moment.
    pub fn market_level(&self, unit: f64, j: usize, growth: f64) -> f64 {
        let prior = PRICE_PRIOR * unit * growth;
        (self.market_seen[j] + prior) / (self.market_expected[j] + prior)
    }

    /// Returns the same ratio since the start of the day.
    pub fn day_market_level(&self, unit: f64, j: usize) -> f64 {
        let prior = PRICE_PRIOR * unit;
        (self.day_market_seen[j] + prior) / (self.day_market_expected[j] + prior)
    }

    /// Returns the requests so far over those forecast, shrunk to 1 by a prior.
    pub fn volume_level(&self, day: &KnownDay, episode: &Episode, offset: u64) -> f64 {
        let prior = 0.02 * day.traffic.total().max(1e-9) * episode.thinning;
        (f64::from(self.requests) + prior) / (day.traffic.before(offset) * episode.thinning + prior)
    }

    /// Returns the deviation of the day's volume from its forecast with several time constants, as of the last refresh.
    pub fn deviation(&self, episode: &Episode) -> Deviation {
        Deviation::of(self.tracker.volumes(), episode.thinning)
    }

    /// Returns the observed deliveries of contract `j` in the decaying sum, about an hour's worth; `decay` is that of the moment.
    pub fn speed(&self, j: usize, decay: f64) -> f64 {
        self.speed[j] * decay
    }

    /// Returns the pacing controller's term for contract `j`, which is added to the logit of its bid: gains times the pace
    /// error (planned minus observed share) and its sum. Gains scale with the square root of the thinning, because the noise of
    /// the error grows as the thinning falls.
    ///
    /// The market term is not scaled, because prices are seen on every request. `until` is
    /// [`Replay::observed_until`](super::Replay).
    pub fn pacing(&self, day: &KnownDay, gains: &PacingGains, episode: &Episode, j: usize, until: u64) -> f64 {
        let controller = self.controller(day, gains, episode, j, Time::at(until));
        pacing(controller, market_gain(day, gains, episode, j), self.day_market_level(day.unit, j))
    }

    /// Returns [`State::pacing`] without the market term.
    #[inline]
    pub(super) fn controller(
        &self,
        day: &KnownDay,
        gains: &PacingGains,
        episode: &Episode,
        j: usize,
        until: Time,
    ) -> f64 {
        let c = &day.contracts[j];
        let (owed, total) = (episode.owed[j], c.pace.total());
        if owed <= 0.0 || total <= 0.0 {
            return 0.0;
        }
        let error = c.pace.until(until) / total - self.observed[j] / owed;
        let term = gains.proportional * error + gains.integral * self.integral[j];
        (episode.thinning.sqrt() * term).clamp(-6.0, 6.0)
    }

    /// Returns the shortage against the plan so far, as a share of the planned deliveries.
    pub fn shortage(&self) -> f32 {
        self.shortage
    }

    /// Returns the demand that all contracts still owe over the traffic still expected.
    pub fn pressure(&self) -> f32 {
        self.pressure
    }

    /// Returns the mean predicted click probability of the contract ads shown, shrunk to `expected`.
    pub fn contract_ctr(&self, expected: f64) -> f64 {
        (self.contract_pctr + 10.0 * expected) / (self.contract_shows + 10.0)
    }

    /// Returns the mean predicted click probability of the auction ads shown, shrunk to `expected`.
    pub fn auction_ctr(&self, expected: f64) -> f64 {
        (self.auction_pctr + 10.0 * expected) / (self.auction_shows + 10.0)
    }

    /// Returns the mean worth of the auction ads shown, shrunk to `expected`.
    pub fn auction_worth(&self, expected: f64) -> f64 {
        (self.auction_worth + 10.0 * expected) / (self.auction_shows + 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contract that owes 20 million was shown for ever: its count stood still at 2^24, below its cap.
    #[test]
    fn impressions_are_counted_beyond_two_to_the_24th() {
        let most = f64::from(1u32 << 24);
        let mut state = State::new(vec![most, 0.0]);
        (state.auction_shows, state.auction_worth) = (most, most);
        for contract in [Some(0), Some(0), None] {
            state.show(contract, 5, 0, 0.5, 1.0);
        }
        assert_eq!((&state.delivered, &state.observed), (&vec![most + 2.0, 0.0], &vec![most + 2.0, 0.0]));
        assert_eq!((state.auction_shows, state.auction_worth), (most + 1.0, most + 1.0));
    }

    #[test]
    fn counts_follow_their_contracts() {
        let mut state = State::new(vec![1.0, 2.0, 3.0]);
        state.show(Some(0), 5, 100, 0.5, 0.0);
        state.show(Some(2), 5, 100, 0.5, 0.0);
        state.show(None, 5, 100, 0.5, 2.0);
        // The second is gone, a new one comes first, the others change places.
        let mut moved = state.of_contracts(&[None, Some(2), Some(0)], &[Some(2), None, Some(1)]);
        assert!(moved.fits(3));
        assert_eq!((&moved.delivered, &moved.observed), (&vec![0.0, 4.0, 2.0], &vec![0.0, 3.0, 1.0]));
        moved.observe_all();
        assert_eq!((&moved.observed, moved.auction_shows), (&vec![0.0, 4.0, 2.0], 1.0));
        let fewer = state.of_contracts(&[Some(1)], &[None, Some(0), None]);
        assert_eq!((&fewer.delivered, fewer.pending.len()), (&vec![2.0], 1));
    }
}
