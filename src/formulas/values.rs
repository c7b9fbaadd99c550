//! Formulas of the value model that both sides compute in single precision: gradients by the corrections, steps of rows.

use cubecl::prelude::*;

const ADAGRAD_EPSILON: f32 = 1e-10;
const ADAM_EPSILON: f32 = 1e-8;

/// Limits a correction to `-limit..=limit`; NaN stays NaN, to be noticed.
#[cube]
#[inline(always)]
pub fn clamped(correction: f32, limit: f32) -> f32 {
    let mut bounded = correction;
    if bounded > limit {
        bounded = limit;
    }
    if bounded < -limit {
        bounded = -limit;
    }
    bounded
}

/// Returns a loss's derivative by a correction that was limited: beyond the limit it may only come back.
#[cube]
#[inline(always)]
pub fn clamped_slope(slope: f32, raw: f32, bounded: f32) -> f32 {
    let mut left = slope;
    if (raw - bounded) * slope < 0.0 {
        left = f32::new(0.0);
    }
    left
}

/// Returns the probability of a click at a logit.
#[cube]
#[inline(always)]
pub fn click_probability(logit: f32) -> f32 {
    1.0f32 / (1.0f32 + (-logit).exp())
}

/// Returns an element of a row after a step of stochastic gradient descent.
#[cube]
#[inline(always)]
pub fn sgd(w: f32, gradient: f32, rate: f32) -> f32 {
    w - rate * gradient
}

/// Returns an element after a step of Adagrad (Duchi et al. 2011); `sum` are its squared gradients, this one included.
#[cube]
#[inline(always)]
pub fn adagrad(w: f32, gradient: f32, sum: f32, rate: f32) -> f32 {
    w - rate * gradient / (sum.sqrt() + ADAGRAD_EPSILON)
}

/// Returns the rate of all elements of a row in row-wise Adagrad; `sum` are the row's mean squared gradients.
#[cube]
#[inline(always)]
pub fn rowwise_rate(sum: f32, rate: f32) -> f32 {
    rate / (sum.sqrt() + ADAGRAD_EPSILON)
}

/// Returns an element after a step of lazy Adam, whose moments and their corrections are those of the row's own updates.
#[cube]
#[inline(always)]
pub fn lazy_adam(w: f32, first: f32, second: f32, rate: f32, correction1: f32, correction2: f32) -> f32 {
    w - rate * (first / correction1) / ((second / correction2).sqrt() + ADAM_EPSILON)
}
