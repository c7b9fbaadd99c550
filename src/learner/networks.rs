//! Both networks, their moving averages and their optimisers, as flat tensors on a device.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::env::FEATURES;
use crate::policy::PolicySpec;
use crate::policy::net::{Part, Shape, Table};
use crate::policy::start::initial_actor;
use crate::policy::{AdamState, TrainerState};
use crate::settings::{Settings, Target};

use super::optimiser::{Adam, Arrays, Optimise, Rates};
use super::transfer::to_host;

/// Positions of a shape's arrays in its flat parameters.
#[derive(Debug, Clone)]
pub struct Flat {
    pub shape: Shape,
    pub parts: Vec<Part>,
}

impl Flat {
    pub fn new(shape: Shape) -> Self {
        Self { parts: shape.parts(), shape }
    }
}

/// All state that updates change.
pub struct Networks<B: Backend> {
    pub actor_flat: Flat,
    pub critic_flat: Flat,
    /// Its follower is the averaged actor.
    pub actor: Adam<B>,
    /// Its follower is the target critic.
    pub critic: Adam<B>,
}

/// Norms of the gradients before clipping, `[1]` each, left on the device; the actor's is zero if it did not learn.
pub struct Norms<B: Backend> {
    pub critic: Tensor<B, 1>,
    pub actor: Tensor<B, 1>,
}

/// Returns the shape of the critic's network.
pub fn critic_shape(spec: &PolicySpec, settings: &Settings) -> Shape {
    let tables = match spec.policy.ad_embedding {
        0 => vec![],
        width => vec![Table { rows: spec.vocabulary.ads.len() + 1, width }],
    };
    // With returns it learns from its own rows; with hindsight prices, from the actor's rows.
    let features = if settings.learner.target == Target::Hindsight { spec.features() } else { FEATURES };
    Shape { features, tables, hidden: settings.learner.critic_hidden, outputs: settings.learner.critic_outputs() }
}

impl<B: Optimise> Networks<B> {
    /// Creates the networks before training.
    pub fn new(spec: &PolicySpec, settings: &Settings, device: &B::Device) -> Self {
        let l = &settings.learner;
        let critic_shape = critic_shape(spec, settings);
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(0xC717);
        // A fraction of one half makes the initial advantage half a penalty. Logits start at 0, prices at the start of the bids.
        let level = !l.critic.averages_outputs() || l.target == Target::Hindsight;
        let bias = if level { 0.0 } else { 0.5 };
        let critic = critic_shape.initial(&mut rng, 0.1, bias);
        let actor = initial_actor(spec, settings.run.seed);
        let epsilon = l.adam_epsilon;
        let critic_rates = Rates { learning: l.critic_rate, clip: l.critic_clip, epsilon, follow: l.target_rate };
        let actor_rates =
            Rates { learning: settings.actor_rate(), clip: l.actor_clip, epsilon, follow: l.average_rate };
        Self {
            actor_flat: Flat::new(spec.actor_shape()),
            critic_flat: Flat::new(critic_shape),
            actor: Adam::new(&actor, actor_rates, device),
            critic: Adam::new(&critic, critic_rates, device),
        }
    }

    /// Does one step of the optimisers and the averages; `rate` is a factor on both learning rates.
    pub fn step(&mut self, critic_gradient: Tensor<B, 1>, actor_gradient: Option<Tensor<B, 1>>, rate: f64) -> Norms<B> {
        let critic = self.critic.step(critic_gradient, rate);
        let actor = match actor_gradient {
            None => Tensor::zeros([1], &critic.device()),
            Some(gradient) => self.actor.step(gradient, rate),
        };
        Norms { critic, actor }
    }

    /// Returns the actor and the averaged one, in one read.
    pub fn actors(&self) -> (Vec<f32>, Vec<f32>) {
        let Arrays { params, follower, .. } = &self.actor.at;
        let mut raw = to_host(Tensor::cat(vec![params.clone(), follower.clone()], 0));
        let averaged = raw.split_off(raw.len() / 2);
        (raw, averaged)
    }

    /// Returns everything, in one read.
    pub fn state(&self) -> TrainerState {
        let arrays = |adam: &Adam<B>| {
            let Arrays { params, follower, first, second } = adam.at.clone();
            [params, follower, first, second]
        };
        let all = to_host(Tensor::cat(arrays(&self.actor).into_iter().chain(arrays(&self.critic)).collect(), 0));
        let (actor, critic) = all.split_at(4 * self.actor_flat.shape.len());
        let of = |arrays: &[f32], i: usize| arrays.chunks_exact(arrays.len() / 4).nth(i).expect("four arrays").to_vec();
        let moments =
            |arrays, adam: &Adam<B>| AdamState { first: of(arrays, 2), second: of(arrays, 3), steps: adam.steps() };
        TrainerState {
            actor: of(actor, 0),
            averaged: of(actor, 1),
            critic: of(critic, 0),
            target: of(critic, 1),
            actor_adam: moments(actor, &self.actor),
            critic_adam: moments(critic, &self.critic),
        }
    }

    /// # Errors
    /// If the state is of other networks.
    pub fn restore(&mut self, s: &TrainerState) -> anyhow::Result<()> {
        let fit = |flat: &Flat, params: [&Vec<f32>; 4]| params.iter().all(|p| p.len() == flat.shape.len());
        let fits = fit(&self.actor_flat, [&s.actor, &s.averaged, &s.actor_adam.first, &s.actor_adam.second])
            && fit(&self.critic_flat, [&s.critic, &s.target, &s.critic_adam.first, &s.critic_adam.second]);
        anyhow::ensure!(fits, "a snapshot of networks of another size");
        self.actor.restore(&s.actor, &s.averaged, &s.actor_adam);
        self.critic.restore(&s.critic, &s.target, &s.critic_adam);
        Ok(())
    }
}
