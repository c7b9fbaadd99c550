//! Losses of samples, given their corrections, and the gradients of these losses.

use crate::formulas::host::{logistic, poisson};
use crate::formulas::values::{clamped_slope, click_probability};
use crate::values::sample::Block;

use super::shape::HEADS;

/// Corrections beyond this say that something is wrong, not what an impression is worth.
pub const MOST_CORRECTION: f32 = 3.0;

/// Samples of a batch with what was observed of them.
#[derive(Debug, Clone, Copy)]
pub struct Lesson<'a> {
    pub batch: &'a Block,
    /// Number of the first of these samples in the batch.
    pub first: usize,
    /// The charges' variance over their mean.
    pub dispersion: f32,
}

/// Losses of a batch, each summed over its samples by weight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Losses {
    /// Poisson deviance over the dispersion, auction rows.
    pub charge: f64,
    pub click: f64,
    /// Sum of the weights.
    pub weight: f64,
}

impl Losses {
    pub fn total(&self) -> f64 {
        self.charge + self.click
    }

    pub fn add(&mut self, other: Self) {
        self.charge += other.charge;
        self.click += other.click;
        self.weight += other.weight;
    }
}

/// Computes the losses of samples from their corrections, and replaces `d_out` by the gradients of those.
pub fn losses(out: &[f32], lesson: Lesson, d_out: &mut Vec<f32>) -> Losses {
    let Lesson { batch, first, dispersion } = lesson;
    let mut losses = Losses::default();
    let scale = batch.scale();
    d_out.clear();
    for (i, out) in (first..).zip(out.chunks_exact(HEADS)) {
        let weight = batch.weight[i];
        let (c, q) = (clamped(out[0]), clamped(out[1]));
        let mut slope = [0.0; HEADS];
        if batch.auction[i] && batch.predicted[i] > 0.0 {
            let expected = batch.predicted[i] * c.exp();
            losses.charge +=
                f64::from(weight) * poisson(batch.charged[i].into(), expected.into()) / f64::from(dispersion);
            slope[0] = weight * scale * (expected - batch.charged[i]) / dispersion;
        }
        let logit = batch.logit[i] + q;
        let clicked = f32::from(batch.clicked[i]);
        losses.click += f64::from(weight) * logistic(clicked.into(), logit.into());
        slope[1] = weight * scale * (click_probability(logit) - clicked);
        losses.weight += f64::from(weight);
        let slopes = slope.iter().zip(out).zip([c, q]);
        d_out.extend(slopes.map(|((slope, raw), bounded)| clamped_slope(*slope, *raw, bounded)));
    }
    losses
}

/// A correction within its bounds.
pub fn clamped(correction: f32) -> f32 {
    crate::formulas::values::clamped(correction, MOST_CORRECTION)
}
