//! Network inputs of a contract at a moment, and of an auction ad.
//!
//! All features are of order 1 and independent of the day's size, so that a policy trained on thinned days serves whole ones.
//! They use only what a policy may know: observed deliveries, the forecast, prices seen so far.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use cubecl::prelude::*;

use crate::formulas::host::{
    at_least_0, delivered_share, demand_met, demand_over_supply, done, inverse_root, log_level, log_ratio,
    needed_speed, pace_error, pacing, pacing_feature, speed_against_plan, worth,
};
use crate::plan::Time;

use super::episode::Episode;
use super::known::KnownDay;
use super::replay::Replay;
use super::state::{State, decay, growth, market_gain};

/// Version of the feature rows, incremented with every change. A policy is refused if the names of its features are others, and the
/// version tells why: a feature that changes its meaning needs another name.
pub const FEATURE_VERSION: u32 = 4;

/// Width of a feature row.
pub const FEATURES: usize = 31;

/// Names of the features, in order; stored in the policy file.
pub const FEATURE_NAMES: [&str; FEATURES] = [
    "delivered_share",
    "planned_share",
    "pace_error",
    "log_remaining_demand_over_supply",
    "log_remaining_demand_over_supply_at_seen_volume",
    "inverse_root_remaining",
    "log_needed_speed",
    "log_speed_against_plan",
    "cap_slack",
    "demand_met",
    "flight_state",
    "traffic_elapsed",
    "pacing",
    "flight_left",
    "log_price_level",
    "log_volume_level",
    "shortage",
    "log_pressure",
    "log_remaining_price",
    "mean_auction_worth",
    "mean_contract_ctr",
    "mean_auction_ctr",
    "log_penalty",
    "worth",
    "theta",
    "rate",
    "training_price_share",
    "replanned",
    "log_market_level",
    "log_market_level_of_day",
    "is_auction",
];

/// Defines features that are computed before a row is requested: a struct of `f32` fields, which is uploaded as it is, and two
/// functions that write it to a row, one on the host and one from array to array in a kernel. A feature added to one of the
/// lists below is known to actors, learner, kernels and policy files.
macro_rules! features {
    ($(#[$doc:meta])* $struct:ident, $copy:ident { $($field:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $struct {
            $(pub $field: f32,)*
        }

        impl $struct {
            /// Writes the features to a row.
            #[inline]
            pub fn write(&self, row: &mut [f32; FEATURES]) {
                $(row[const { column($name) }] = self.$field;)*
            }
        }

        /// Writes the features, which begin at `first` in an array, to the row that begins at `row`.
        #[cube]
        pub fn $copy(from: &Array<f32>, first: usize, to: &mut Array<f32>, row: usize) {
            $(to[row + comptime!(const { column($name) })] =
                from[first + comptime!(const { offset_of!($struct, $field) / size_of::<f32>() })];)*
        }
    };
}

features! {
    /// System-wide features of a moment, the same for all contracts.
    GeneralFeatures, copy_general {
        traffic = "traffic_elapsed",
        price = "log_price_level",
        volume = "log_volume_level",
        shortage = "shortage",
        pressure = "log_pressure",
        remaining_price = "log_remaining_price",
        auction_worth = "mean_auction_worth",
        contract_ctr = "mean_contract_ctr",
        auction_ctr = "mean_auction_ctr",
    }
}

features! {
    /// A contract's features that are constant over an episode.
    TermsFeatures, copy_terms {
        cap_slack = "cap_slack",
        penalty = "log_penalty",
        worth = "worth",
        theta = "theta",
        rate = "rate",
        price = "training_price_share",
    }
}

features! {
    /// A contract's features that change with the moment and need no logarithm.
    CourseFeatures, copy_course {
        flight_state = "flight_state",
        flight_left = "flight_left",
        replanned = "replanned",
    }
}

/// System-wide features of a moment, and the ratio of the observed to the forecast volume.
#[derive(Debug, Clone, Copy)]
pub struct General {
    pub volume_ratio: f64,
    pub features: GeneralFeatures,
}

/// Values of a contract that are constant over an episode, computed once.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub owed: f64,
    /// Gain of the controller's market term.
    pub market_gain: f64,
    pub features: TermsFeatures,
}

/// Values of a contract that change with the moment, computed from curves and counters without a logarithm.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    pub planned: f64,
    pub supply_left: f64,
    /// Observed delivery speed over the plan's.
    pub speed: f64,
    /// The pacing controller's term without the market term.
    pub controller: f64,
    /// Prices on its requests over the expected ones: decaying, and since the start of the day.
    pub market: f64,
    pub day_market: f64,
    /// The replanner's addition to the logit of its bid.
    pub replanned: f32,
    pub features: CourseFeatures,
}

/// The state at one request, computed once for all contracts.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    day: &'a KnownDay,
    episode: &'a Episode,
    state: &'a State,
    offset: u64,
    /// Now, an hour ago, and the time before which deliveries are observed by now.
    now: Time,
    hour_ago: Time,
    observed_until: Time,
    /// Factors of the decaying sums.
    growth: f64,
    decay: f64,
    general: General,
}

/// A contract at one request, before its delivered count is applied.
#[derive(Debug, Clone, Copy)]
pub struct ContractMoment {
    /// Features, except for those that depend on the count.
    row: [f32; FEATURES],
    owed: f64,
    planned: f64,
    supply_left: f64,
    volume_ratio: f64,
    /// The pacing controller's term.
    pub pacing: f64,
}

impl ContractMoment {
    #[inline]
    pub fn new(general: &General, terms: &Terms, course: &Course) -> Self {
        let pacing = course.pacing(terms);
        let mut row = [0.0; FEATURES];
        row[const { column("planned_share") }] = course.planned as f32;
        row[const { column("log_speed_against_plan") }] = speed_against_plan(course.speed);
        row[const { column("pacing") }] = pacing_feature(pacing);
        row[const { column("log_market_level") }] = log_level(course.market, 1.0);
        row[const { column("log_market_level_of_day") }] = log_level(course.day_market, 1.0);
        general.features.write(&mut row);
        terms.features.write(&mut row);
        course.features.write(&mut row);
        Self {
            row,
            owed: terms.owed,
            planned: course.planned,
            supply_left: course.supply_left,
            volume_ratio: general.volume_ratio,
            pacing,
        }
    }

    /// Writes the features for a count of `delivered` impressions.
    ///
    /// The actor passes observed counts. The critic passes true ones, and higher ones for the state after a display.
    pub fn write(&self, delivered: f32, out: &mut [f32]) {
        let Self { row, owed, planned, supply_left, volume_ratio, .. } = *self;
        let out: &mut [f32; FEATURES] = out.try_into().expect("a row of FEATURES");
        let delivered = f64::from(delivered);
        let remaining = at_least_0(owed - delivered);
        let done = done(delivered, owed);
        *out = row;
        out[const { column("delivered_share") }] = delivered_share(done) as f32;
        out[const { column("pace_error") }] = pace_error(done, planned) as f32;
        out[const { column("log_remaining_demand_over_supply") }] = demand_over_supply(remaining, supply_left);
        out[const { column("log_remaining_demand_over_supply_at_seen_volume") }] =
            demand_over_supply(remaining, supply_left * volume_ratio);
        out[const { column("inverse_root_remaining") }] = inverse_root(remaining) as f32;
        out[const { column("log_needed_speed") }] = needed_speed(done, planned);
        out[const { column("demand_met") }] = demand_met(delivered, owed);
    }
}

impl Terms {
    /// Returns the terms of every contract of a day; `warm` shows the training days' prices to the networks.
    pub fn all(day: &KnownDay, episode: &Episode, warm: bool) -> Vec<Self> {
        (0..day.contracts.len()).map(|j| Self::of(day, episode, warm, j)).collect()
    }

    fn of(day: &KnownDay, episode: &Episode, warm: bool, j: usize) -> Self {
        let c = &day.contracts[j];
        let owed = episode.owed[j];
        let features = TermsFeatures {
            cap_slack: if owed > 0.0 { ((episode.left[j] - owed) / owed).min(2.0) as f32 } else { 2.0 },
            penalty: 0.5 * log_ratio(c.penalty.max(1e-2 * day.unit), day.unit, 4.0),
            worth: worth(c.mean_click / day.unit),
            theta: (c.theta / f64::from(episode.supply_error[j])).min(1.0) as f32,
            rate: c.rate as f32,
            price: if warm && c.penalty > 0.0 { off_by(c.price / c.penalty, episode.start_error[j]) } else { 0.0 },
        };
        Self { owed, market_gain: market_gain(day, &day.pacing, episode, j), features }
    }
}

impl General {
    /// Writes the features of an auction ad, whose worth is in units of the mean best auction worth.
    pub fn auction(&self, units: f32, out: &mut [f32]) {
        let out: &mut [f32; FEATURES] = out.try_into().expect("a row of FEATURES");
        out.fill(0.0);
        self.features.write(out);
        out[const { column("worth") }] = worth(units.into());
        out[const { column("is_auction") }] = 1.0;
    }
}

impl Course {
    /// Returns the pacing controller's term, as [`State::pacing`] does.
    #[inline]
    pub fn pacing(&self, terms: &Terms) -> f64 {
        pacing(self.controller, terms.market_gain, self.day_market)
    }
}

/// Shifts the logit of a share by `error`.
fn off_by(share: f64, error: f32) -> f32 {
    let odds = share / (1.0 - share).max(1e-9) * f64::from(error).exp();
    if error == 0.0 { share as f32 } else { (odds / (1.0 + odds)) as f32 }
}

impl<'a> Moment<'a> {
    /// Computes the moment of a replay's current request.
    pub fn new(replay: &'a Replay) -> Self {
        let (day, episode, state, offset) = (&*replay.day, &replay.episode, &replay.state, replay.offset());
        let whole = day.traffic.total().max(1e-9);
        let before = day.traffic.before(offset);
        let volume_ratio = state.volume_level(day, episode, offset);
        let level = state.price_level(day.unit, offset);
        let ratio = |seen: f64, expected: f64| {
            if expected > 0.0 { (seen / expected - 1.0).clamp(-2.0, 2.0) as f32 } else { 0.0 }
        };
        let features = GeneralFeatures {
            traffic: (before / whole) as f32,
            price: log_level(level, 1.0),
            volume: log_level(volume_ratio, 1.0),
            shortage: state.shortage().min(1.0),
            pressure: state.pressure().max(1e-3).ln().clamp(-3.0, 1.0),
            remaining_price: log_level(day.remaining_price(offset), day.unit),
            auction_worth: ratio(state.auction_worth(day.unit), day.unit),
            contract_ctr: ratio(state.contract_ctr(day.contract_pctr), day.contract_pctr),
            auction_ctr: ratio(state.auction_ctr(day.auction_pctr), day.auction_pctr),
        };
        let general = General { volume_ratio, features };
        let hour = 3_600_000;
        Self {
            day,
            episode,
            state,
            offset,
            now: Time::at(offset),
            hour_ago: Time::at(offset.saturating_sub(hour)),
            observed_until: Time::at(replay.observed_until()),
            growth: growth(offset),
            decay: decay(offset),
            general,
        }
    }

    /// Returns the part that all contracts have in common.
    pub fn general(&self) -> &General {
        &self.general
    }

    /// Returns the part of contract `j` that does not depend on its delivered count, for callers that try several counts.
    pub fn of(&self, j: usize, terms: &Terms) -> ContractMoment {
        ContractMoment::new(&self.general, terms, &self.course(j))
    }

    /// Returns -1 before the flight of contract `j`, 0 within it and 1 after it.
    #[inline]
    pub fn flight_state(&self, j: usize) -> f32 {
        let c = &self.day.contracts[j];
        if self.offset >= c.end {
            1.0
        } else if self.offset >= c.start {
            0.0
        } else {
            -1.0
        }
    }

    /// Computes the current course of contract `j`.
    #[inline]
    pub fn course(&self, j: usize) -> Course {
        let Self { day, episode, state, .. } = *self;
        let c = &day.contracts[j];
        let owed = episode.owed[j];
        let pace = c.pace.total().max(1e-9);
        let planned = c.pace.until(self.now) / pace;
        let supply_error = f64::from(episode.supply_error[j]);
        let supply_left = (c.supply.total() - c.supply.until(self.now)) * episode.thinning * supply_error;
        // An hour of the plan's speed, to match the time constant of the observed speed.
        let planned_speed = owed * (planned - c.pace.until(self.hour_ago) / pace);
        let prior = 0.02 * owed + 0.5;
        let replanned = state.replanned[j];
        Course {
            planned,
            supply_left,
            speed: (state.speed(j, self.decay) + prior) / (planned_speed + prior),
            controller: state.controller(day, &day.pacing, episode, j, self.observed_until),
            market: state.market_level(day.unit, j, self.growth),
            day_market: state.day_market_level(day.unit, j),
            replanned,
            features: CourseFeatures {
                flight_state: self.flight_state(j),
                flight_left: ((c.end.saturating_sub(self.offset)) as f64 / (c.end - c.start).max(1) as f64).min(2.0)
                    as f32,
                replanned: replanned.clamp(-3.0, 3.0),
            },
        }
    }

    /// Writes the features of an auction ad worth `worth` minor units per impression.
    pub fn auction(&self, worth: f64, out: &mut [f32]) {
        self.general.auction((worth / self.day.unit) as f32, out);
    }
}

/// Returns the column of a feature, as a constant: an unknown name does not compile.
///
/// # Panics
/// If there is no such feature.
pub const fn column(name: &str) -> usize {
    let mut column = 0;
    while column < FEATURES {
        if equal(FEATURE_NAMES[column].as_bytes(), name.as_bytes()) {
            return column;
        }
        column += 1;
    }
    panic!("no feature has this name")
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}
