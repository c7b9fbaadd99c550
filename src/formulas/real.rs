// Included twice by mod.rs, with `Real` as `f64` and as `f32`. Kernels require that a mutable variable starts with `Real::new`.
// Literals that single precision cannot represent are used in expressions only, so that the host keeps their full precision.

use cubecl::prelude::*;

/// Limits a number to `-limit..=limit`.
#[cube]
#[inline]
pub fn clamp(x: Real, limit: Real) -> Real {
    let mut clamped = x;
    if clamped > limit {
        clamped = limit;
    }
    if clamped < -limit {
        clamped = -limit;
    }
    clamped
}

/// Returns the logarithm of a ratio, limited to `-limit..=limit`.
#[cube]
#[inline]
pub fn log_ratio(a: Real, b: Real, limit: f32) -> f32 {
    let mut log = ((a / b) as f32).ln();
    if log > limit {
        log = limit;
    }
    if log < -limit {
        log = -limit;
    }
    log
}

/// Returns a number, or 0 if it is negative.
#[cube]
#[inline]
pub fn at_least_0(x: Real) -> Real {
    let mut least = x;
    if least < Real::new(0.0) {
        least = Real::new(0.0);
    }
    least
}

/// Returns the smaller of a number and its limit.
#[cube]
#[inline]
pub fn at_most(x: Real, limit: Real) -> Real {
    let mut most = x;
    if most > limit {
        most = limit;
    }
    most
}

/// Returns the delivered share of the demand; 1 if nothing is owed.
#[cube]
#[inline]
pub fn done(delivered: Real, owed: Real) -> Real {
    let mut done = Real::new(1.0);
    if owed > Real::new(0.0) {
        done = delivered / owed;
    }
    done
}

/// Returns the feature `delivered_share`.
#[cube]
#[inline]
pub fn delivered_share(done: Real) -> Real {
    at_most(done, Real::new(2.0))
}

/// Returns the feature `demand_met`: 1 once everything owed is delivered.
#[cube]
#[inline]
pub fn demand_met(delivered: Real, owed: Real) -> f32 {
    let mut met = f32::new(0.0);
    if delivered >= owed {
        met = f32::new(1.0);
    }
    met
}

/// Returns the feature `pace_error`: the delivered minus the planned share, scaled.
#[cube]
#[inline]
pub fn pace_error(done: Real, planned: Real) -> Real {
    clamp(Real::new(4.0) * (done - planned), Real::new(2.0))
}

/// Returns the feature `log_remaining_demand_over_supply`, or the same at the volume seen.
#[cube]
#[inline]
pub fn demand_over_supply(remaining: Real, supply: Real) -> f32 {
    log_ratio(remaining + 0.1, supply + 0.1, f32::new(4.0))
}

/// Returns the feature `inverse_root_remaining`.
#[cube]
#[inline]
pub fn inverse_root(remaining: Real) -> Real {
    Real::new(1.0) / (remaining + 1.0).sqrt()
}

/// Returns the feature `log_needed_speed`: the speed needed from now on over the plan's.
#[cube]
#[inline]
pub fn needed_speed(done: Real, planned: Real) -> f32 {
    log_ratio(at_least_0(Real::new(1.0) - done) + 0.01, Real::new(1.0) - planned + 0.01, f32::new(3.0))
}

/// Returns the feature `log_speed_against_plan` of an observed speed over the plan's.
#[cube]
#[inline]
pub fn speed_against_plan(speed: Real) -> f32 {
    log_ratio(speed, Real::new(1.0), f32::new(3.0))
}

/// Returns a feature of a price or volume level, for example `log_market_level`: what was seen over what was expected.
#[cube]
#[inline]
pub fn log_level(seen: Real, expected: Real) -> f32 {
    f32::new(2.0) * log_ratio(seen, expected, f32::new(1.0))
}

/// Returns the term of the pacing controller: its `base`, and a market term at a price level of the day.
#[cube]
#[inline]
pub fn pacing(base: Real, market_gain: Real, level: Real) -> Real {
    base + market_gain * clamp(level.ln(), Real::new(2.0))
}

/// Returns the feature `pacing` of the controller's term.
#[cube]
#[inline]
pub fn pacing_feature(pacing: Real) -> f32 {
    f32::new(0.5) * (pacing as f32)
}

/// Returns the feature `worth` of a worth in units of the mean best auction worth.
#[cube]
#[inline]
pub fn worth(units: Real) -> f32 {
    at_most(units, Real::new(4.0)) as f32
}

/// Returns the maximum earnings of a contract's remaining impressions: penalty averted while owed, and clicks.
#[cube]
#[inline]
pub fn potential(averted: Real, click: Real, owed: Real, left: Real) -> Real {
    averted * owed + click * left
}

/// Returns the unit of the critic's loss. It grows with the root of the remaining impressions, as the noise of the return does
/// if a step is one request; with longer steps, impressions count in units of a step's requests.
#[cube]
#[inline]
pub fn loss_scale(averted: Real, click: Real, owed: Real, left: Real, per_step: Real) -> Real {
    let mut stake = click;
    if owed > Real::new(0.0) {
        stake = averted + click;
    }
    stake * per_step * (0.5 + (left / per_step).sqrt())
}

/// Returns the logistic function.
#[cube]
#[inline]
pub fn sigmoid(x: Real) -> Real {
    Real::new(1.0) / (Real::new(1.0) + (-x).exp())
}

/// Returns a contract's bid without its click worth, at a `share` of the way from the lowest bid to the highest; `unit` of the
/// next impression is still owed.
#[cube]
#[inline]
pub fn bid(share: Real, low: Real, high: Real, unit: Real) -> Real {
    low + (high * unit - low) * share
}

/// Returns the derivative of [`bid`] by the logit of the share.
#[cube]
#[inline]
pub fn bid_slope(share: Real, low: Real, high: Real, unit: Real) -> Real {
    (high * unit - low) * share * (Real::new(1.0) - share)
}

/// Returns the factor on an auction ad's worth if auction ads are scored.
#[cube]
#[inline]
pub fn auction_factor(share: Real) -> Real {
    Real::new(2.0) * share
}

/// Returns the derivative of [`auction_factor`] by the logit of the share.
#[cube]
#[inline]
pub fn auction_slope(share: Real) -> Real {
    Real::new(2.0) * share * (Real::new(1.0) - share)
}

/// Returns half the Poisson deviance of an outcome against an expectation; 0 where both are 0.
#[cube]
#[inline]
pub fn poisson(outcome: Real, expected: Real) -> Real {
    let mut mean = expected;
    if mean < Real::new(1e-9) {
        mean = Real::new(1e-9);
    }
    let mut log = Real::new(0.0);
    if outcome > Real::new(0.0) {
        log = outcome * (outcome / mean).ln();
    }
    log - (outcome - mean)
}

/// Returns the logistic loss of a click, 1 or 0, against a logit.
#[cube]
#[inline]
pub fn logistic(clicked: Real, logit: Real) -> Real {
    let mut size = logit;
    if size < Real::new(0.0) {
        size = -logit;
    }
    at_least_0(logit) - clicked * logit + (Real::new(1.0) + (-size).exp()).ln()
}

/// Returns the share of the prior's gradient that belongs to one of a row's batches: a row of this version has been in so many
/// batches in so many passes over the samples.
#[cube]
#[inline]
pub fn prior_share(passes: Real, version: Real) -> Real {
    at_most(passes / (version + Real::new(1.0)), Real::new(1.0))
}
