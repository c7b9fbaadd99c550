//! A rank's part of an update: gradients of summed losses, and the sums that they are divided by.
//!
//! Ranks learn together what one learner learns from the batches of all of them. A mean over a rank's own batch would weigh ranks
//! alike however many pairs, requests and lessons their batches hold. So nothing is divided before the ranks are averaged: each
//! computes the gradients of sums, and everybody divides by the sums of all.

use serde::{Deserialize, Serialize};

use super::calibration::Calibration;

/// A rank's part of an update; the mean of all parts once the gradients are averaged and the tallies added.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GradientShare {
    /// Gradients of the summed losses, flat: the critic's; the actor's by returns, unless the target is hindsight prices; the actor's by
    /// lessons, unless the target is the return. Zero where a batch has nothing to learn from, and for an actor that does not learn yet.
    pub gradients: Vec<f32>,
    pub tally: Tally,
}

/// Returns the gradient of a mean over everything that so many ranks have summed, given the mean of their gradients of sums.
pub fn over(gradient: &[f32], ranks: usize, divisor: f64) -> Vec<f32> {
    let factor = (ranks as f64 / divisor) as f32;
    gradient.iter().map(|g| g * factor).collect()
}

/// Sums over batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Pairs of a state and a contract with something at stake, and requests.
    pub pairs: u64,
    pub requests: u64,
    pub critic_loss: f64,
    pub actor_loss: f64,
    /// Clipped importance ratios.
    pub ratios: f64,
    pub calibration: Calibration,
    /// Rows of lessons, and their weights.
    pub lessons: u64,
    pub lesson_weight: f64,
    /// Weighted losses of the lessons.
    pub lesson_critic_loss: f64,
    pub lesson_actor_loss: f64,
}

impl Tally {
    /// Adds tallies in their order, so that every rank gets the same bits.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        all.into_iter().fold(Self::default(), |sum, one| Self {
            pairs: sum.pairs + one.pairs,
            requests: sum.requests + one.requests,
            critic_loss: sum.critic_loss + one.critic_loss,
            actor_loss: sum.actor_loss + one.actor_loss,
            ratios: sum.ratios + one.ratios,
            calibration: Calibration::sum([&sum.calibration, &one.calibration].into_iter()),
            lessons: sum.lessons + one.lessons,
            lesson_weight: sum.lesson_weight + one.lesson_weight,
            lesson_critic_loss: sum.lesson_critic_loss + one.lesson_critic_loss,
            lesson_actor_loss: sum.lesson_actor_loss + one.lesson_actor_loss,
        })
    }
}
