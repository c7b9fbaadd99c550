//! What the networks see of a contract at a moment, and of an auction ad.
//!
//! All are of order 1 and free of the day's size, so that a policy that learned on thinned days serves whole ones.
//! Only what a policy may know enters: observed deliveries, the forecast, prices seen so far.

use crate::plan::Time;

use super::episode::Episode;
use super::known::KnownDay;
use super::replay::Replay;
use super::state::{State, decay, growth, market_gain, market_term};

/// Version of what networks see, counted up with every change; a policy of another one cannot be read.
pub const FEATURE_VERSION: u32 = 2;

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

/// The system-wide features of a moment, the same for all contracts; and what the forecast volume is off by, as a factor.
#[derive(Debug, Clone, Copy)]
pub struct General {
    pub volume_ratio: f64,
    pub traffic: f32,
    pub price: f32,
    pub volume: f32,
    pub shortage: f32,
    pub pressure: f32,
    pub remaining_price: f32,
    pub auction_worth: f32,
    pub contract_ctr: f32,
    pub auction_ctr: f32,
}

/// What of a contract's features stays the same over an episode, to be worked out once.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub owed: f64,
    /// Gain of the controller's market term.
    pub market_gain: f64,
    pub cap_slack: f32,
    pub penalty: f32,
    pub worth: f32,
    pub theta: f32,
    pub rate: f32,
    pub price: f32,
}

/// What of a contract's features changes with the moment, from curves and counters and without a logarithm.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    pub planned: f64,
    pub supply_left: f64,
    /// Speed seen over the plan's.
    pub speed: f64,
    /// -1 before the flight, 0 within it, 1 after it.
    pub flight_state: f32,
    pub flight: f64,
    /// The controller's term without the market's.
    pub controller: f64,
    /// Prices on its requests over the expected ones: within the memory, and since the start of the day.
    pub market: f64,
    pub day_market: f64,
    pub replanned: f32,
}

/// The state at one request, computed once for all contracts.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    day: &'a KnownDay,
    episode: &'a Episode,
    state: &'a State,
    offset: u64,
    /// Now, an hour ago, and when what is observed by now was delivered.
    now: Time,
    hour_ago: Time,
    observed_until: Time,
    /// Of sums over the memory.
    growth: f64,
    decay: f64,
    general: General,
}

/// A contract at one request, whatever it has delivered.
#[derive(Debug, Clone, Copy)]
pub struct ContractMoment {
    /// Features, but for those that go by the count.
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
        let by_count = 0.0;
        let pacing = course.pacing(terms);
        let row = [
            by_count,
            course.planned as f32,
            by_count,
            by_count,
            by_count,
            by_count,
            by_count,
            log_ratio(course.speed, 1.0, 3.0),
            terms.cap_slack,
            by_count,
            course.flight_state,
            general.traffic,
            0.5 * pacing as f32,
            course.flight.min(2.0) as f32,
            general.price,
            general.volume,
            general.shortage,
            general.pressure,
            general.remaining_price,
            general.auction_worth,
            general.contract_ctr,
            general.auction_ctr,
            terms.penalty,
            terms.worth,
            terms.theta,
            terms.rate,
            terms.price,
            course.replanned.clamp(-3.0, 3.0),
            2.0 * log_ratio(course.market, 1.0, 1.0),
            2.0 * log_ratio(course.day_market, 1.0, 1.0),
            0.0,
        ];
        Self {
            row,
            owed: terms.owed,
            planned: course.planned,
            supply_left: course.supply_left,
            volume_ratio: general.volume_ratio,
            pacing,
        }
    }

    /// Writes the features when `delivered` impressions are counted.
    ///
    /// The actor passes observed counts, the critic true ones, and more of them for "after display".
    pub fn write(&self, delivered: f32, out: &mut [f32]) {
        let Self { row, owed, planned, supply_left, volume_ratio, .. } = *self;
        let out: &mut [f32; FEATURES] = out.try_into().expect("a row of FEATURES");
        let delivered = f64::from(delivered);
        let remaining = (owed - delivered).max(0.0);
        let done = if owed > 0.0 { delivered / owed } else { 1.0 };
        *out = row;
        out[0] = done.min(2.0) as f32;
        out[2] = (4.0 * (done - planned)).clamp(-2.0, 2.0) as f32;
        out[3] = log_ratio(remaining + 0.1, supply_left + 0.1, 4.0);
        out[4] = log_ratio(remaining + 0.1, supply_left * volume_ratio + 0.1, 4.0);
        out[5] = (1.0 / (remaining + 1.0).sqrt()) as f32;
        out[6] = log_ratio((1.0 - done).max(0.0) + 0.01, (1.0 - planned) + 0.01, 3.0);
        out[9] = f32::from(delivered >= owed);
    }
}

impl Terms {
    /// Of every contract of a day; `warm` shows the training days' prices to the networks.
    pub fn all(day: &KnownDay, episode: &Episode, warm: bool) -> Vec<Self> {
        (0..day.contracts.len()).map(|j| Self::of(day, episode, warm, j)).collect()
    }

    fn of(day: &KnownDay, episode: &Episode, warm: bool, j: usize) -> Self {
        let c = &day.contracts[j];
        let owed = f64::from(episode.owed[j]);
        Self {
            owed,
            market_gain: market_gain(day, &day.pacing, episode, j),
            cap_slack: if owed > 0.0 { ((f64::from(episode.left[j]) - owed) / owed).min(2.0) as f32 } else { 2.0 },
            penalty: 0.5 * log_ratio(c.penalty.max(1e-2 * day.unit), day.unit, 4.0),
            worth: (c.mean_click / day.unit).min(4.0) as f32,
            theta: (c.theta / f64::from(episode.supply_error[j])).min(1.0) as f32,
            rate: c.rate as f32,
            price: if warm && c.penalty > 0.0 { off_by(c.price / c.penalty, episode.start_error[j]) } else { 0.0 },
        }
    }
}

impl General {
    /// Writes the features of an auction ad; `worth` is in units of the mean best auction worth.
    pub fn auction(&self, worth: f32, out: &mut [f32]) {
        out.fill(0.0);
        for (name, value) in [
            ("traffic_elapsed", self.traffic),
            ("log_price_level", self.price),
            ("log_volume_level", self.volume),
            ("shortage", self.shortage),
            ("log_pressure", self.pressure),
            ("log_remaining_price", self.remaining_price),
            ("mean_auction_worth", self.auction_worth),
            ("mean_contract_ctr", self.contract_ctr),
            ("mean_auction_ctr", self.auction_ctr),
            ("worth", worth.min(4.0)),
            ("is_auction", 1.0),
        ] {
            out[position(name)] = value;
        }
    }
}

impl Course {
    /// The pacing controller's term, as [`State::pacing`].
    #[inline]
    pub fn pacing(&self, terms: &Terms) -> f64 {
        self.controller + market_term(terms.market_gain, self.day_market)
    }
}

fn log_ratio(a: f64, b: f64, limit: f32) -> f32 {
    ((a / b) as f32).ln().clamp(-limit, limit)
}

/// A share whose logit is off by `error`.
fn off_by(share: f64, error: f32) -> f32 {
    let odds = share / (1.0 - share).max(1e-9) * f64::from(error).exp();
    if error == 0.0 { share as f32 } else { (odds / (1.0 + odds)) as f32 }
}

impl<'a> Moment<'a> {
    /// The state at the current request of a replay.
    pub fn new(replay: &'a Replay) -> Self {
        let (day, episode, state, offset) = (&*replay.day, &replay.episode, &replay.state, replay.offset());
        let whole = day.traffic.total().max(1e-9);
        let before = day.traffic.before(offset);
        let volume_ratio = state.volume_level(day, episode, offset);
        let level = state.price_level(day.unit, offset);
        let ratio = |seen: f64, expected: f64| {
            if expected > 0.0 { (seen / expected - 1.0).clamp(-2.0, 2.0) as f32 } else { 0.0 }
        };
        let general = General {
            volume_ratio,
            traffic: (before / whole) as f32,
            price: 2.0 * log_ratio(level, 1.0, 1.0),
            volume: 2.0 * log_ratio(volume_ratio, 1.0, 1.0),
            shortage: state.shortage().min(1.0),
            pressure: state.pressure().max(1e-3).ln().clamp(-3.0, 1.0),
            remaining_price: 2.0 * log_ratio(day.remaining_price(offset), day.unit, 1.0),
            auction_worth: ratio(state.auction_worth(day.unit), day.unit),
            contract_ctr: ratio(state.contract_ctr(day.contract_pctr), day.contract_pctr),
            auction_ctr: ratio(state.auction_ctr(day.auction_pctr), day.auction_pctr),
        };
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

    /// The part that all contracts have in common.
    pub fn general(&self) -> &General {
        &self.general
    }

    /// What does not depend on how much contract `j` has delivered, for those who look at several counts.
    pub fn of(&self, j: usize, terms: &Terms) -> ContractMoment {
        ContractMoment::new(&self.general, terms, &self.course(j))
    }

    /// Where contract `j` is on its way.
    #[inline]
    pub fn course(&self, j: usize) -> Course {
        let Self { day, episode, state, .. } = *self;
        let c = &day.contracts[j];
        let owed = f64::from(episode.owed[j]);
        let pace = c.pace.total().max(1e-9);
        let planned = c.pace.until(self.now) / pace;
        let supply_error = f64::from(episode.supply_error[j]);
        let supply_left = (c.supply.total() - c.supply.until(self.now)) * episode.thinning * supply_error;
        // An hour of the plan's speed, for the same memory as the speed seen.
        let planned_speed = owed * (planned - c.pace.until(self.hour_ago) / pace);
        let prior = 0.02 * owed + 0.5;
        Course {
            planned,
            supply_left,
            speed: (state.speed(j, self.decay) + prior) / (planned_speed + prior),
            flight_state: if self.offset >= c.end {
                1.0
            } else if self.offset >= c.start {
                0.0
            } else {
                -1.0
            },
            flight: (c.end.saturating_sub(self.offset)) as f64 / (c.end - c.start).max(1) as f64,
            controller: state.controller(day, &day.pacing, episode, j, self.observed_until),
            market: state.market_level(day.unit, j, self.growth),
            day_market: state.day_market_level(day.unit, j),
            replanned: state.replanned(j),
        }
    }

    /// Writes the features of an auction ad worth `worth` minor units per impression.
    pub fn auction(&self, worth: f64, out: &mut [f32]) {
        self.general.auction((worth / self.day.unit) as f32, out);
    }
}

/// Where a feature stands.
///
/// # Panics
/// If there is no such feature.
fn position(name: &str) -> usize {
    FEATURE_NAMES.iter().position(|n| *n == name).expect("a feature's name")
}
