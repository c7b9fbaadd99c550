//! What the rest of the learner asks of a trainer, wherever it computes.

use crate::env::Segment;
use crate::policy::TrainerState;
use crate::run::failpoint;

use super::batch::{Rebuild, SegmentRows};
use super::calibration::DECILES;
use super::hindsight::LessonRows;

/// What an update did.
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
    /// Shares of the returns that came below each decile of the critic's distributions; not where a GPU works out the losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<[f64; DECILES]>,
}

impl UpdateStats {
    /// # Errors
    /// A loss that is not finite.
    pub fn check_losses(mut self) -> Result<Self, NotFinite> {
        if failpoint::reached("learner.loss") {
            self.critic_loss = f64::NAN;
        }
        NotFinite::unless("a loss", self.critic_loss, self.actor_loss).map(|()| self)
    }

    /// # Errors
    /// The norm of a gradient that is not finite.
    pub fn check_norms(self) -> Result<Self, NotFinite> {
        NotFinite::unless("a gradient", self.critic_norm, self.actor_norm).map(|()| self)
    }
}

/// An update that cannot be used: what it left of the networks is to be thrown away.
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
    /// Weights that are not finite.
    pub fn unless_weights<'a>(
        mut critic: impl Iterator<Item = &'a f32>,
        mut actor: impl Iterator<Item = &'a f32>,
    ) -> Result<(), Self> {
        let figure = |finite| if finite { 0.0 } else { f64::NAN };
        Self::unless("a weight", figure(critic.all(|w| w.is_finite())), figure(actor.all(|w| w.is_finite())))
    }
}

/// How an update is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdatePlan {
    /// Factor on both learning rates.
    pub rate: f64,
    /// Whether the actor learns too.
    pub train_actor: bool,
    /// Whether to read what the update did, which waits for the device.
    pub read: bool,
}

/// A segment in its place in the pool.
pub type Placed<'a> = (usize, &'a Segment);

/// What an update is made on, as the trainer that made it wants it.
#[derive(Debug, Clone, PartialEq)]
pub enum Batch {
    /// Rebuilt from compact segments for this update, where the target is the return; and their lessons.
    Rows(Vec<SegmentRows>, LessonRows),
    /// Places of a pool that the trainer holds.
    Places(Vec<usize>),
}

/// The networks and their optimisers on some device.
pub trait Train {
    /// Takes in segments that came into the pool, in the place of what was there before.
    fn store(&mut self, placed: &[Placed], with: Rebuild);
    /// Makes a batch of segments that are in the pool.
    fn batch(&self, drawn: &[Placed], with: Rebuild) -> Batch;
    /// One update; what it did, where the plan asks for it.
    ///
    /// # Errors
    /// [`NotFinite`]: a loss, or the norm of a gradient, where it was read. What computes on the host reads its losses always.
    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>>;
    /// Waits until the device has done all that it was told.
    fn wait(&self);
    /// The actor that explores and the averaged one that is evaluated and served, flat.
    fn actors(&self) -> (Vec<f32>, Vec<f32>);
    /// All that an update changes, on the host.
    fn state(&self) -> TrainerState;
    /// Goes on from a state.
    ///
    /// # Errors
    /// A state of other networks.
    fn restore(&mut self, state: &TrainerState) -> anyhow::Result<()>;
}
