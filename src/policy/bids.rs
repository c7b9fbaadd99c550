//! Conversion of network outputs to bids.

use crate::env::{KnownDay, Replay};
use crate::formulas::host::{auction_factor, auction_slope, bid, bid_slope, sigmoid};
use crate::settings;

fn logit(share: f64) -> f64 {
    (share / (1.0 - share)).ln()
}

/// Returns the terms added to the logit of contract `j`'s bid before the network on the current request: the newest plan, the
/// controller's term `pacing` if the settings want one, and the episode's error of the start.
pub fn lift(policy: &settings::Policy, replay: &Replay, j: usize, pacing: f64) -> f64 {
    let start = f64::from(replay.episode.start_error[j] + replay.state.replanned(j));
    if policy.pacing { start + pacing } else { start }
}

/// Converts network outputs to scores, for one day. Money in minor units per impression.
///
/// A contract's bid is `low + (penalty - low) * sigmoid(base + lift + f)` for an impression that is still owed in full, plus
/// the worth of the predicted click. `base` is the start, [`lift`] is added before the network's output `f`, and `low` is 0
/// unless negative bids are allowed. A fractional last unit counts with its fraction. An auction ad's score is its worth times
/// `2 sigmoid(f)`.
#[derive(Debug, Clone)]
pub struct Bids {
    base: Vec<f64>,
    low: Vec<f64>,
    penalty: Vec<f64>,
}

impl Bids {
    pub fn new(day: &KnownDay, settings: &settings::Policy) -> Self {
        let mut bids = Self { base: vec![], low: vec![], penalty: vec![] };
        for c in &day.contracts {
            let low = if settings.negative_bids { -c.penalty.max(day.unit) } else { 0.0 };
            let start = if settings.warm_start { c.price } else { settings.initial_bid * c.penalty };
            let span = c.penalty - low;
            let share = if span > 0.0 { ((start - low) / span).clamp(0.02, 0.98) } else { 0.5 };
            bids.base.push(logit(share));
            bids.low.push(low);
            bids.penalty.push(c.penalty);
        }
        bids
    }

    /// Returns the base logit of contract `j`, the lowest bid and the highest.
    pub fn terms(&self, j: usize) -> (f64, f64, f64) {
        (self.base[j], self.low[j], self.penalty[j])
    }

    /// Returns the offset from the base logit of contract `j` to the logit of a price, minor units per impression.
    pub fn offset_of_price(&self, j: usize, price: f64) -> f64 {
        let span = self.penalty[j] - self.low[j];
        if span > 0.0 { logit(((price - self.low[j]) / span).clamp(0.02, 0.98)) - self.base[j] } else { 0.0 }
    }

    /// Returns the derivative of the logit of contract `j`'s bid by its price.
    pub fn slope_of_price(&self, j: usize, price: f64) -> f64 {
        let span = self.penalty[j] - self.low[j];
        if span <= 0.0 {
            return 0.0;
        }
        let share = ((price - self.low[j]) / span).clamp(0.02, 0.98);
        1.0 / (span * share * (1.0 - share))
    }

    /// Returns the bid of contract `j` without its click worth when `unit` of the next impression is still owed, and its
    /// derivative by `output`, the network's output plus the lift.
    pub fn contract(&self, j: usize, output: f64, unit: f64) -> (f64, f64) {
        self.at_share(j, self.share(j, output), unit)
    }

    /// Returns how far contract `j`'s bid is on the way from the lowest to the highest, 0 to 1; `output` as in [`Bids::contract`].
    pub fn share(&self, j: usize, output: f64) -> f64 {
        sigmoid(self.base[j] + output)
    }

    /// Returns what [`Bids::contract`] does, at a [`Bids::share`].
    pub fn at_share(&self, j: usize, share: f64, unit: f64) -> (f64, f64) {
        let (low, high) = (self.low[j], self.penalty[j]);
        (bid(share, low, high, unit), bid_slope(share, low, high, unit))
    }

    /// Returns the factor on an auction ad's worth and its derivative by the network's output.
    pub fn auction(output: f64) -> (f64, f64) {
        let share = sigmoid(output);
        (auction_factor(share), auction_slope(share))
    }
}
