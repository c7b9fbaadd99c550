//! One update of the actor-critic on a burn backend.

use std::sync::Arc;

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::env::{DayModel, FEATURES};
use crate::policy::net::{Shape, Table};
use crate::policy::tensor_net::{self, Rows};
use crate::policy::{Bids, PolicySpec};
use crate::run::snapshot::TrainerState;
use crate::settings::{Critic, Settings};

use super::batch::SegmentRows;
use super::dims::{Dims, outputs};
use super::loss::{Gradients, Losses, Outputs, support};
use super::optimiser::Adam;

/// What an update did; read from the device only where asked for.
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
}

/// An update that cannot be used: what it left of the networks is to be thrown away.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{what} is not finite (critic {critic}, actor {actor}); lower learner.critic_rate and learner.actor_rate")]
pub struct NotFinite {
    pub what: &'static str,
    pub critic: f64,
    pub actor: f64,
}

/// How an update is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UpdatePlan {
    /// Factor on both learning rates.
    pub rate: f64,
    /// Whether the actor learns too.
    pub train_actor: bool,
    /// Whether to read the gradient norms, which waits for the device.
    pub read_norms: bool,
}

/// The networks and their optimisers on some device.
pub trait Train {
    /// One update on a batch of segments.
    ///
    /// # Errors
    /// [`NotFinite`]: a loss, or a gradient where its norm was read.
    fn update(&mut self, batch: &[SegmentRows], plan: UpdatePlan) -> anyhow::Result<UpdateStats>;
    /// The actor that explores, flat.
    fn actor(&self) -> Vec<f32>;
    /// The averaged actor that is evaluated and served, flat.
    fn averaged(&self) -> Vec<f32>;
    /// All that an update changes, on the host.
    fn state(&self) -> TrainerState;
    /// Goes on from a state.
    ///
    /// # Errors
    /// A state of other networks.
    fn restore(&mut self, state: &TrainerState) -> anyhow::Result<()>;
    /// Name of the device.
    fn device(&self) -> String;
}

/// What a part of a batch gives: gradients and sums.
struct Shard<B: Backend> {
    critic_gradient: Tensor<B, 1>,
    actor_gradient: Option<Tensor<B, 1>>,
    critic_loss: f64,
    actor_loss: f64,
    ratios: f64,
}

/// [`Train`] on backend `B`.
pub struct Trainer<B: AutodiffBackend> {
    device: B::Device,
    /// Parts that a batch is worked through in; in parallel where there are threads. A constant of the backend, so that
    /// results do not depend on the number of cores.
    shards: usize,
    settings: Settings,
    dims: Dims,
    bids: Vec<(Bids, f64)>,
    actor_shape: Shape,
    critic_shape: Shape,
    actor: Tensor<B::InnerBackend, 1>,
    averaged: Tensor<B::InnerBackend, 1>,
    critic: Tensor<B::InnerBackend, 1>,
    target: Tensor<B::InnerBackend, 1>,
    actor_adam: Adam<B::InnerBackend>,
    critic_adam: Adam<B::InnerBackend>,
}

impl<B: AutodiffBackend> Trainer<B> {
    pub fn new(
        days: &[DayModel],
        spec: &Arc<PolicySpec>,
        settings: &Settings,
        device: B::Device,
        shards: usize,
    ) -> Self {
        let dims = Dims::of(days, spec, settings);
        let bids = days.iter().map(|d| (Bids::new(d, &spec.policy), d.unit)).collect();
        let critic_shape = critic_shape(spec, settings);
        let actor = spec.initial_actor(settings.run.seed);
        let actor_shape = spec.actor_shape();
        let l = &settings.learner;
        let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
        rng.set_stream(0xC717);
        // A fraction of one half leaves the advantage at the worth of half a penalty. Logits start level.
        let bias = if l.critic == Critic::Categorical { 0.0 } else { 0.5 };
        let critic = critic_shape.initial(&mut rng, 0.1, bias);
        let upload = |params: &[f32]| -> Tensor<B::InnerBackend, 1> {
            Tensor::from_data(TensorData::new(params.to_vec(), [params.len()]), &device)
        };
        Self {
            actor: upload(&actor),
            averaged: upload(&actor),
            critic: upload(&critic),
            target: upload(&critic),
            actor_adam: Adam::new(actor.len(), l.adam_epsilon, l.actor_clip, &device),
            critic_adam: Adam::new(critic.len(), l.adam_epsilon, l.critic_clip, &device),
            shards,
            settings: settings.clone(),
            dims,
            bids,
            actor_shape,
            critic_shape,
            device,
        }
    }

    /// Infers, works out the losses and goes back through the networks for a part of the batch.
    fn shard(
        &self,
        batch: &[SegmentRows],
        losses: &Losses,
        (critic_weight, actor_weight): (f32, f32),
        train_actor: bool,
    ) -> Shard<B::InnerBackend> {
        let d = self.dims;
        let q = d.outputs;
        let ids = |ads: Vec<u32>| if self.critic_shape.tables.is_empty() { vec![] } else { ads };
        let upload =
            |shape: &Shape, features: Vec<f32>, ids: Vec<u32>| Rows::<B>::upload(shape, features, &ids, &self.device);

        let critic = tensor_net::leaves::<B>(&self.critic_shape, &self.critic);
        let state_ids = ids(join(batch, |r| &r.state_ads));
        let state_out = critic.forward(&upload(&self.critic_shape, join(batch, |r| &r.states), state_ids));
        let actor = tensor_net::leaves::<B>(&self.actor_shape, &self.actor);
        let actor_rows = upload(&self.actor_shape, join(batch, |r| &r.actor), join(batch, |r| &r.actor_ids));
        let actor_out = actor.forward(&actor_rows);
        let after_ids = ids(join(batch, |r| &r.after_ads));
        let after = self.infer(&self.critic_shape, &self.critic, join(batch, |r| &r.after), after_ids);
        let last_ids = ids(join(batch, |r| &r.last_ads));
        let last = self.infer(&self.critic_shape, &self.target, join(batch, |r| &r.last), last_ids);
        let states_host = to_host(state_out.clone().inner());
        let actor_host = to_host(actor_out.clone().inner());

        let part = |all: &'_ [f32], i: usize, len: usize| -> std::ops::Range<usize> {
            debug_assert_eq!(all.len(), len * batch.len());
            i * len..(i + 1) * len
        };
        let gradients: Vec<Gradients> = batch
            .par_iter()
            .enumerate()
            .map(|(i, rows)| {
                let outputs = Outputs {
                    states: &states_host[part(&states_host, i, d.steps * d.contracts * q)],
                    last: &last[part(&last, i, d.contracts * q)],
                    after: &after[part(&after, i, d.steps * d.eligible * q)],
                    actor: &actor_host[part(&actor_host, i, d.steps * d.actor_rows())],
                };
                losses.segment(rows, &outputs, critic_weight, actor_weight)
            })
            .collect();
        let joined = |f: fn(&Gradients) -> &Vec<f32>, columns: usize| -> Tensor<B, 2> {
            let mut all = Vec::with_capacity(gradients.len() * f(&gradients[0]).len());
            for g in &gradients {
                all.extend_from_slice(f(g));
            }
            let rows = all.len() / columns;
            Tensor::from_inner(Tensor::from_data(TensorData::new(all, [rows, columns]), &self.device))
        };
        // The gradient by the outputs is known: the sum of the product with it has just that gradient.
        let mut surrogate = (state_out * joined(|g| &g.states, q)).sum();
        if train_actor {
            surrogate = surrogate + (actor_out * joined(|g| &g.actor, 1)).sum();
        }
        let backward = surrogate.backward();
        let sum = |f: fn(&Gradients) -> f64| gradients.iter().map(f).sum::<f64>();
        Shard {
            critic_gradient: critic.gradient(&backward),
            actor_gradient: train_actor.then(|| actor.gradient(&backward)),
            critic_loss: sum(|g| g.critic_loss),
            actor_loss: sum(|g| g.actor_loss),
            ratios: sum(|g| g.ratios),
        }
    }

    fn infer(&self, shape: &Shape, params: &Tensor<B::InnerBackend, 1>, features: Vec<f32>, ids: Vec<u32>) -> Vec<f32> {
        let rows = Rows::upload(shape, features, &ids, &self.device);
        to_host(tensor_net::plain(shape, params).forward(&rows))
    }
}

/// Shape of the critic's network.
pub fn critic_shape(spec: &PolicySpec, settings: &Settings) -> Shape {
    let tables = match spec.policy.ad_embedding {
        0 => vec![],
        width => vec![Table { rows: spec.vocabulary.ads.len() + 1, width }],
    };
    Shape { features: FEATURES, tables, hidden: settings.learner.critic_hidden, outputs: outputs(&settings.learner) }
}

fn to_host<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().into_vec().expect("networks compute in f32")
}

fn join<T: Copy + Send + Sync>(batch: &[SegmentRows], part: impl Fn(&SegmentRows) -> &[T]) -> Vec<T> {
    let mut joined = Vec::with_capacity(batch.len() * part(&batch[0]).len());
    for rows in batch {
        joined.extend_from_slice(part(rows));
    }
    joined
}

impl<B: AutodiffBackend> Train for Trainer<B> {
    fn update(&mut self, batch: &[SegmentRows], plan: UpdatePlan) -> anyhow::Result<UpdateStats> {
        let pairs = batch.iter().flat_map(|r| &r.scale).filter(|s| **s > 0.0).count().max(1);
        let requests: usize = batch.iter().map(|r| r.contests.len()).sum::<usize>().max(1);
        let losses = Losses {
            settings: &self.settings.learner,
            dims: self.dims,
            temperature: self.settings.policy.temperature as f32,
            bids: &self.bids,
            support: support(&self.settings.learner),
            score_auctions: self.dims.score_auctions,
        };
        let weights = (1.0 / pairs as f32, 1.0 / requests as f32);
        let size = batch.len().div_ceil(self.shards);
        let shards: Vec<Shard<B::InnerBackend>> =
            batch.par_chunks(size).map(|part| self.shard(part, &losses, weights, plan.train_actor)).collect();
        let sum = |f: fn(&Shard<B::InnerBackend>) -> f64| shards.iter().map(f).sum::<f64>();
        let mut stats = UpdateStats {
            critic_loss: sum(|s| s.critic_loss) / pairs as f64,
            actor_loss: sum(|s| s.actor_loss) / requests as f64,
            ratio: sum(|s| s.ratios) / requests as f64,
            ..UpdateStats::default()
        };
        if crate::run::failpoint::reached("learner.loss") {
            stats.critic_loss = f64::NAN;
        }
        if !(stats.critic_loss.is_finite() && stats.actor_loss.is_finite()) {
            return Err(NotFinite { what: "a loss", critic: stats.critic_loss, actor: stats.actor_loss }.into());
        }
        let (critic_gradients, actor_gradients): (Vec<_>, Vec<_>) =
            shards.into_iter().map(|s| (s.critic_gradient, s.actor_gradient)).unzip();

        let l = &self.settings.learner;
        let (params, critic_norm) =
            self.critic_adam.step(self.critic.clone(), total(critic_gradients), plan.rate * l.critic_rate);
        self.critic = params;
        self.target = move_towards(&self.target, &self.critic, l.target_rate);
        let mut actor_norm = None;
        if plan.train_actor {
            let gradient = total(actor_gradients.into_iter().flatten().collect());
            let (params, norm) = self.actor_adam.step(self.actor.clone(), gradient, plan.rate * l.actor_rate);
            self.actor = params;
            self.averaged = move_towards(&self.averaged, &self.actor, l.average_rate);
            actor_norm = Some(norm);
        }
        if plan.read_norms {
            stats.critic_norm = f64::from(to_host(critic_norm)[0]);
            stats.actor_norm = actor_norm.map_or(0.0, |norm| f64::from(to_host(norm)[0]));
            if !(stats.critic_norm.is_finite() && stats.actor_norm.is_finite()) {
                return Err(NotFinite { what: "a gradient", critic: stats.critic_norm, actor: stats.actor_norm }.into());
            }
        }
        Ok(stats)
    }

    fn actor(&self) -> Vec<f32> {
        to_host(self.actor.clone())
    }

    fn averaged(&self) -> Vec<f32> {
        to_host(self.averaged.clone())
    }

    fn state(&self) -> TrainerState {
        TrainerState {
            actor: to_host(self.actor.clone()),
            averaged: to_host(self.averaged.clone()),
            critic: to_host(self.critic.clone()),
            target: to_host(self.target.clone()),
            actor_adam: self.actor_adam.state(),
            critic_adam: self.critic_adam.state(),
        }
    }

    fn restore(&mut self, s: &TrainerState) -> anyhow::Result<()> {
        let (actor, critic) = (self.actor_shape.len(), self.critic_shape.len());
        let fits = [&s.actor, &s.averaged, &s.actor_adam.first, &s.actor_adam.second].iter().all(|p| p.len() == actor)
            && [&s.critic, &s.target, &s.critic_adam.first, &s.critic_adam.second].iter().all(|p| p.len() == critic);
        anyhow::ensure!(fits, "a snapshot of networks of another size");
        let upload = |params: &[f32]| -> Tensor<B::InnerBackend, 1> {
            Tensor::from_data(TensorData::new(params.to_vec(), [params.len()]), &self.device)
        };
        self.actor = upload(&s.actor);
        self.averaged = upload(&s.averaged);
        self.critic = upload(&s.critic);
        self.target = upload(&s.target);
        self.actor_adam.restore(&s.actor_adam);
        self.critic_adam.restore(&s.critic_adam);
        Ok(())
    }

    fn device(&self) -> String {
        format!("{:?}", self.device)
    }
}

/// Sum of the shards' gradients, in their order.
fn total<B: Backend>(gradients: Vec<Tensor<B, 1>>) -> Tensor<B, 1> {
    gradients.into_iter().reduce(|a, b| a + b).expect("a batch has a shard")
}

fn move_towards<B: Backend>(from: &Tensor<B, 1>, to: &Tensor<B, 1>, rate: f64) -> Tensor<B, 1> {
    from.clone() + (to.clone() - from.clone()).mul_scalar(rate)
}
