//! Interface of a trainer, on any device.

use crate::env::Segment;
use crate::policy::TrainerState;
use crate::run::failpoint;

use super::batch::{Rebuild, SegmentRows};
use super::calibration::DECILES;
use super::hindsight::LessonRows;
use super::share::{GradientShare, Tally};

/// Statistics of an update.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct UpdateStats {
    /// Mean critic loss over states and contracts with something at stake.
    pub critic_loss: f64,
    /// Minus the mean expected advantage, in units of the mean best auction worth.
    pub actor_loss: f64,
    /// Mean clipped importance ratio.
    pub ratio: f64,
    pub critic_norm: f64,
    pub actor_norm: f64,
    /// Shares of the returns below each decile of the critic's distributions; `None` if a GPU computes the losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<[f64; DECILES]>,
}

impl UpdateStats {
    /// Returns the means of what ranks have learned from returns.
    pub fn of_returns(tally: &Tally) -> Self {
        let (pairs, requests) = (tally.pairs.max(1) as f64, tally.requests.max(1) as f64);
        Self {
            critic_loss: tally.critic_loss / pairs,
            actor_loss: tally.actor_loss / requests,
            ratio: tally.ratios / requests,
            calibration: tally.calibration.shares(),
            ..Self::default()
        }
    }

    /// # Errors
    /// If a loss is not finite.
    pub fn check_losses(mut self) -> Result<Self, NotFinite> {
        if failpoint::reached("learner.loss") {
            self.critic_loss = f64::NAN;
        }
        NotFinite::unless("a loss", self.critic_loss, self.actor_loss).map(|()| self)
    }

    /// # Errors
    /// If the norm of a gradient is not finite.
    pub fn check_norms(self) -> Result<Self, NotFinite> {
        NotFinite::unless("a gradient", self.critic_norm, self.actor_norm).map(|()| self)
    }
}

/// An update that cannot be used: the networks after it must be discarded.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{what} is not finite (critic {critic}, actor {actor}); lower learner.critic_rate and learner.actor_rate")]
pub struct NotFinite {
    pub what: &'static str,
    pub critic: f64,
    pub actor: f64,
}

impl NotFinite {
    fn unless(what: &'static str, critic: f64, actor: f64) -> Result<(), Self> {
        if critic.is_finite() && actor.is_finite() { Ok(()) } else { Err(Self { what, critic, actor }) }
    }

    /// # Errors
    /// If a weight is not finite.
    pub fn unless_weights<'a>(
        mut critic: impl Iterator<Item = &'a f32>,
        mut actor: impl Iterator<Item = &'a f32>,
    ) -> Result<(), Self> {
        let figure = |finite| if finite { 0.0 } else { f64::NAN };
        Self::unless("a weight", figure(critic.all(|w| w.is_finite())), figure(actor.all(|w| w.is_finite())))
    }
}

/// Options of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdatePlan {
    /// Factor on both learning rates.
    pub rate: f64,
    /// Whether the actor learns too.
    pub train_actor: bool,
    /// Whether to read the statistics, which waits for the device.
    pub read: bool,
}

/// A segment with its place in the pool.
pub type Placed<'a> = (usize, &'a Segment);

/// Data of an update, in the form of the trainer that made it.
#[derive(Debug, Clone, PartialEq)]
pub enum Batch {
    /// Rows rebuilt from compact segments for this update, if the target is the return; and their lessons.
    Rows(Vec<SegmentRows>, LessonRows),
    /// Places in a pool that the trainer holds.
    Places(Vec<usize>),
}

/// The networks and their optimisers on some device.
pub trait Train {
    /// Stores segments that entered the pool, replacing the former content of their places.
    fn store(&mut self, placed: &[Placed], with: Rebuild);
    /// Makes a batch of segments that are in the pool.
    fn batch(&self, drawn: &[Placed], with: Rebuild) -> Batch;
    /// Does one update; returns its statistics if the plan asks for them.
    ///
    /// # Errors
    /// [`NotFinite`] if a loss or the norm of a gradient is not finite and was read. A trainer on the host always reads its
    /// losses.
    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>>;
    /// Computes this rank's part of an update of several ranks; a device is waited for.
    ///
    /// # Errors
    /// A batch of another trainer.
    fn share(&self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<GradientShare>;
    /// Does the update of several ranks. `share` holds the mean of their gradients and the sum of their tallies, the same bits on
    /// every rank, so the networks stay equal.
    ///
    /// # Errors
    /// As [`Train::update`], on every rank.
    fn apply(&mut self, share: &GradientShare, ranks: usize, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>>;
    /// Waits until the device has finished all work.
    fn wait(&self);
    /// Returns the actor that explores and the averaged one that is evaluated and served, flat.
    fn actors(&self) -> (Vec<f32>, Vec<f32>);
    /// Returns everything that an update changes, on the host.
    fn state(&self) -> TrainerState;
    /// Restores a state.
    ///
    /// # Errors
    /// If the state is of other networks.
    fn restore(&mut self, state: &TrainerState) -> anyhow::Result<()>;
}
