//! Both networks, their averages and their optimisers, as flat tensors on some device.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::env::FEATURES;
use crate::policy::PolicySpec;
use crate::policy::net::{Shape, Table};
use crate::run::snapshot::TrainerState;
use crate::settings::{Critic, Settings};

use super::dims::outputs;
use super::optimiser::Adam;

/// Everything that updates change.
pub struct Networks<B: Backend> {
    pub actor_shape: Shape,
    pub critic_shape: Shape,
    /// Flat; so are the others.
    pub actor: Tensor<B, 1>,
    averaged: Tensor<B, 1>,
    pub critic: Tensor<B, 1>,
    pub target: Tensor<B, 1>,
    actor_adam: Adam<B>,
    critic_adam: Adam<B>,
    rates: Rates,
}

#[derive(Debug, Clone, Copy)]
struct Rates {
    actor: f64,
    critic: f64,
    target: f64,
    average: f64,
}

/// Norms of the gradients before clipping, `[1]` each, left on the device; the actor's is zero where it did not learn.
pub struct Norms<B: Backend> {
    pub critic: Tensor<B, 1>,
    pub actor: Tensor<B, 1>,
}

/// Shape of the critic's network.
pub fn critic_shape(spec: &PolicySpec, settings: &Settings) -> Shape {
    let tables = match spec.policy.ad_embedding {
        0 => vec![],
        width => vec![Table { rows: spec.vocabulary.ads.len() + 1, width }],
    };
    Shape { features: FEATURES, tables, hidden: settings.learner.critic_hidden, outputs: outputs(&settings.learner) }
}

impl<B: Backend> Networks<B> {
    /// The networks before training.
    pub fn new(spec: &PolicySpec, settings: &Settings, device: &B::Device) -> Self {
        let l = &settings.learner;
        let critic_shape = critic_shape(spec, settings);
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(0xC717);
        // A fraction of one half leaves the advantage at the worth of half a penalty. Logits start level.
        let bias = if l.critic == Critic::Categorical { 0.0 } else { 0.5 };
        let critic = upload(critic_shape.initial(&mut rng, 0.1, bias), device);
        let actor = upload(spec.initial_actor(settings.run.seed), device);
        Self {
            actor_adam: Adam::new(actor.dims()[0], l.adam_epsilon, l.actor_clip, device),
            critic_adam: Adam::new(critic.dims()[0], l.adam_epsilon, l.critic_clip, device),
            averaged: actor.clone(),
            actor,
            target: critic.clone(),
            critic,
            actor_shape: spec.actor_shape(),
            critic_shape,
            rates: Rates { actor: l.actor_rate, critic: l.critic_rate, target: l.target_rate, average: l.average_rate },
        }
    }

    /// One step of the optimisers and the averages; `rate` is a factor on both learning rates.
    pub fn step(&mut self, critic_gradient: Tensor<B, 1>, actor_gradient: Option<Tensor<B, 1>>, rate: f64) -> Norms<B> {
        let (params, critic) = self.critic_adam.step(self.critic.clone(), critic_gradient, rate * self.rates.critic);
        self.critic = params;
        self.target = move_towards(&self.target, &self.critic, self.rates.target);
        let actor = match actor_gradient {
            None => Tensor::zeros([1], &self.actor.device()),
            Some(gradient) => {
                let (params, norm) = self.actor_adam.step(self.actor.clone(), gradient, rate * self.rates.actor);
                self.actor = params;
                self.averaged = move_towards(&self.averaged, &self.actor, self.rates.average);
                norm
            }
        };
        Norms { critic, actor }
    }

    /// The actor and the averaged one, in one read.
    pub fn actors(&self) -> (Vec<f32>, Vec<f32>) {
        let mut raw = to_host(Tensor::cat(vec![self.actor.clone(), self.averaged.clone()], 0));
        let averaged = raw.split_off(raw.len() / 2);
        (raw, averaged)
    }

    pub fn state(&self) -> TrainerState {
        TrainerState {
            actor: to_host(self.actor.clone()),
            averaged: to_host(self.averaged.clone()),
            critic: to_host(self.critic.clone()),
            target: to_host(self.target.clone()),
            actor_adam: self.actor_adam.state(),
            critic_adam: self.critic_adam.state(),
        }
    }

    /// # Errors
    /// A state of other networks.
    pub fn restore(&mut self, s: &TrainerState) -> anyhow::Result<()> {
        let (actor, critic) = (self.actor_shape.len(), self.critic_shape.len());
        let fits = [&s.actor, &s.averaged, &s.actor_adam.first, &s.actor_adam.second].iter().all(|p| p.len() == actor)
            && [&s.critic, &s.target, &s.critic_adam.first, &s.critic_adam.second].iter().all(|p| p.len() == critic);
        anyhow::ensure!(fits, "a snapshot of networks of another size");
        let device = self.actor.device();
        self.actor = upload(s.actor.clone(), &device);
        self.averaged = upload(s.averaged.clone(), &device);
        self.critic = upload(s.critic.clone(), &device);
        self.target = upload(s.target.clone(), &device);
        self.actor_adam.restore(&s.actor_adam);
        self.critic_adam.restore(&s.critic_adam);
        Ok(())
    }
}

/// A flat tensor of numbers on the host.
pub fn upload<B: Backend>(values: Vec<f32>, device: &B::Device) -> Tensor<B, 1> {
    let len = values.len();
    Tensor::from_data(TensorData::new(values, [len]), device)
}

/// Reads a tensor; waits for the device.
pub fn to_host<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().into_vec().expect("networks compute in f32")
}

fn move_towards<B: Backend>(from: &Tensor<B, 1>, to: &Tensor<B, 1>, rate: f64) -> Tensor<B, 1> {
    from.clone() + (to.clone() - from.clone()).mul_scalar(rate)
}
