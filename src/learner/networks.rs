//! Both networks, their averages and their optimisers, as flat tensors on some device.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::env::FEATURES;
use crate::policy::PolicySpec;
use crate::policy::net::{Shape, Table};
use crate::policy::tensor_net::Flat;
use crate::run::snapshot::{AdamState, TrainerState};
use crate::settings::{Critic, Settings};

use super::dims::outputs;
use super::optimiser::Adam;

/// Everything that updates change.
pub struct Networks<B: Backend> {
    pub actor_flat: Flat,
    pub critic_flat: Flat,
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
    /// The networks before training, with arrays at multiples of `aligned` numbers.
    pub fn new(spec: &PolicySpec, settings: &Settings, aligned: usize, device: &B::Device) -> Self {
        let l = &settings.learner;
        let critic_shape = critic_shape(spec, settings);
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(0xC717);
        // A fraction of one half leaves the advantage at the worth of half a penalty. Logits start level.
        let bias = if l.critic == Critic::Categorical { 0.0 } else { 0.5 };
        let critic = critic_shape.initial(&mut rng, 0.1, bias);
        let (actor_flat, critic_flat) = (Flat::new(spec.actor_shape(), aligned), Flat::new(critic_shape, aligned));
        let critic = upload(critic_flat.place(&critic), device);
        let actor = upload(actor_flat.place(&spec.initial_actor(settings.run.seed)), device);
        Self {
            actor_adam: Adam::new(actor.dims()[0], l.adam_epsilon, l.actor_clip, device),
            critic_adam: Adam::new(critic.dims()[0], l.adam_epsilon, l.critic_clip, device),
            averaged: actor.clone(),
            actor,
            target: critic.clone(),
            critic,
            actor_flat,
            critic_flat,
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
        let both = to_host(Tensor::cat(vec![self.actor.clone(), self.averaged.clone()], 0));
        let (raw, averaged) = both.split_at(self.actor_flat.len);
        (self.actor_flat.pack(raw), self.actor_flat.pack(averaged))
    }

    pub fn state(&self) -> TrainerState {
        let (actor, critic) = (&self.actor_flat, &self.critic_flat);
        let read = |flat: &Flat, params: &Tensor<B, 1>| flat.pack(&to_host(params.clone()));
        let moments = |flat: &Flat, adam: &Adam<B>| {
            let AdamState { first, second, steps } = adam.state();
            AdamState { first: flat.pack(&first), second: flat.pack(&second), steps }
        };
        TrainerState {
            actor: read(actor, &self.actor),
            averaged: read(actor, &self.averaged),
            critic: read(critic, &self.critic),
            target: read(critic, &self.target),
            actor_adam: moments(actor, &self.actor_adam),
            critic_adam: moments(critic, &self.critic_adam),
        }
    }

    /// # Errors
    /// A state of other networks.
    pub fn restore(&mut self, s: &TrainerState) -> anyhow::Result<()> {
        let (actor, critic) = (&self.actor_flat, &self.critic_flat);
        let fit = |flat: &Flat, params: [&Vec<f32>; 4]| params.iter().all(|p| p.len() == flat.shape.len());
        let fits = fit(actor, [&s.actor, &s.averaged, &s.actor_adam.first, &s.actor_adam.second])
            && fit(critic, [&s.critic, &s.target, &s.critic_adam.first, &s.critic_adam.second]);
        anyhow::ensure!(fits, "a snapshot of networks of another size");
        let device = self.actor.device();
        let write = |flat: &Flat, params: &[f32]| upload(flat.place(params), &device);
        let moments = |flat: &Flat, adam: &AdamState| {
            let AdamState { first, second, steps } = adam;
            AdamState { first: flat.place(first), second: flat.place(second), steps: *steps }
        };
        self.actor_adam.restore(&moments(actor, &s.actor_adam));
        self.critic_adam.restore(&moments(critic, &s.critic_adam));
        self.actor = write(actor, &s.actor);
        self.averaged = write(actor, &s.averaged);
        self.critic = write(critic, &s.critic);
        self.target = write(critic, &s.target);
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
