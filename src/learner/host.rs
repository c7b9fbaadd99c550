//! The trainer of the CPU: batches are rebuilt for every update, networks are burn's, losses closed forms of our own.
//!
//! The losses cost one pass over the outputs here, where tensor operations take a dozen over `[.., quantiles, quantiles]`; and a
//! batch is worked through in shards that each fit a core's cache.

use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexDevice;
use rayon::prelude::*;

use crate::env::DayModel;
use crate::policy::net::Shape;
use crate::policy::tensor_net::{Net, Rows};
use crate::policy::{Bids, PolicySpec};
use crate::run::snapshot::TrainerState;
use crate::settings::Settings;

use super::batch::{Rebuild, SegmentRows};
use super::dims::Dims;
use super::loss::{Gradients, Losses, Outputs, support};
use super::networks::{Networks, Norms, to_host};
use super::trainer::{Batch, Placed, Train, UpdatePlan, UpdateStats};

/// Parts that a batch is worked through in, in parallel where there are threads: small enough for a core's cache, enough for a
/// few cores. A constant, so that results do not depend on the number of cores.
const SHARDS: usize = 4;

/// What a part of a batch gives: gradients and sums.
struct Shard {
    critic_gradient: Tensor<Flex, 1>,
    actor_gradient: Option<Tensor<Flex, 1>>,
    critic_loss: f64,
    actor_loss: f64,
    ratios: f64,
}

/// [`Train`] with batches and losses on the host.
pub struct HostTrainer {
    device: FlexDevice,
    settings: Settings,
    dims: Dims,
    bids: Vec<(Bids, f64)>,
    networks: Networks<Flex>,
}

impl HostTrainer {
    pub fn new(days: &[DayModel], spec: &Arc<PolicySpec>, settings: &Settings) -> Self {
        let device = FlexDevice;
        Self {
            networks: Networks::new(spec, settings, &device),
            dims: Dims::of(days, spec, settings),
            bids: days.iter().map(|d| (Bids::new(d, &spec.policy), d.unit)).collect(),
            settings: settings.clone(),
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
    ) -> Shard {
        let d = self.dims;
        let q = d.outputs;
        let Networks { actor_flat, critic_flat, actor, critic } = &self.networks;
        let (actor_shape, critic_shape) = (&actor_flat.shape, &critic_flat.shape);
        let ids = |ads: Vec<u32>| if critic_shape.tables.is_empty() { vec![] } else { ads };
        let upload = |shape: &Shape, features: Vec<f32>, ids: Vec<u32>| {
            Rows::<Flex>::upload(shape, features, &ids, &self.device)
        };

        let critic_net = critic_flat.cut(&critic.at.params);
        let state_ids = ids(join(batch, |r| &r.state_ads));
        let state_pass = critic_net.pass(&upload(critic_shape, join(batch, |r| &r.states), state_ids));
        let actor_net = actor_flat.cut(&actor.at.params);
        let actor_rows = upload(actor_shape, join(batch, |r| &r.actor), join(batch, |r| &r.actor_ids));
        let actor_pass = actor_net.pass(&actor_rows);
        let after_ids = ids(join(batch, |r| &r.after_ads));
        let infer = |net: &Net<Flex>, features: Vec<f32>, ids: Vec<u32>| {
            to_host(net.forward(&upload(critic_shape, features, ids)))
        };
        let after = infer(&critic_net, join(batch, |r| &r.after), after_ids);
        let last_ids = ids(join(batch, |r| &r.last_ads));
        let last = infer(&critic_flat.cut(&critic.at.follower), join(batch, |r| &r.last), last_ids);
        let states_host = to_host(state_pass.outputs.clone());
        let actor_host = to_host(actor_pass.outputs.clone());

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
        let joined = |f: fn(&Gradients) -> &Vec<f32>, columns: usize| -> Tensor<Flex, 2> {
            let mut all = Vec::with_capacity(gradients.len() * f(&gradients[0]).len());
            for g in &gradients {
                all.extend_from_slice(f(g));
            }
            let rows = all.len() / columns;
            Tensor::from_data(TensorData::new(all, [rows, columns]), &self.device)
        };
        let sum = |f: fn(&Gradients) -> f64| gradients.iter().map(f).sum::<f64>();
        Shard {
            critic_gradient: critic_flat.join(critic_net.gradients(state_pass, joined(|g| &g.states, q))),
            actor_gradient: train_actor
                .then(|| actor_flat.join(actor_net.gradients(actor_pass, joined(|g| &g.actor, 1)))),
            critic_loss: sum(|g| g.critic_loss),
            actor_loss: sum(|g| g.actor_loss),
            ratios: sum(|g| g.ratios),
        }
    }
}

fn join<T: Copy + Send + Sync>(batch: &[SegmentRows], part: impl Fn(&SegmentRows) -> &[T]) -> Vec<T> {
    let mut joined = Vec::with_capacity(batch.len() * part(&batch[0]).len());
    for rows in batch {
        joined.extend_from_slice(part(rows));
    }
    joined
}

impl Train for HostTrainer {
    /// Nothing: segments stay compact until they are drawn.
    fn store(&mut self, _: &[Placed], _: Rebuild) {}

    fn batch(&self, drawn: &[Placed], with: Rebuild) -> Batch {
        Batch::Rows(drawn.par_iter().map(|(_, segment)| SegmentRows::build(segment, with)).collect())
    }

    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let Batch::Rows(batch) = batch else { anyhow::bail!("a batch of another trainer") };
        let pairs = batch.iter().map(SegmentRows::pairs).sum::<usize>().max(1);
        let requests = batch.iter().map(|r| r.contests.len()).sum::<usize>().max(1);
        let losses = Losses {
            settings: &self.settings.learner,
            dims: self.dims,
            temperature: self.settings.policy.temperature as f32,
            bids: &self.bids,
            support: support(&self.settings.learner),
            score_auctions: self.dims.score_auctions,
        };
        let weights = (1.0 / pairs as f32, 1.0 / requests as f32);
        let size = batch.len().div_ceil(SHARDS);
        let shards: Vec<Shard> =
            batch.par_chunks(size).map(|part| self.shard(part, &losses, weights, plan.train_actor)).collect();
        let sum = |f: fn(&Shard) -> f64| shards.iter().map(f).sum::<f64>();
        let stats = UpdateStats {
            critic_loss: sum(|s| s.critic_loss) / pairs as f64,
            actor_loss: sum(|s| s.actor_loss) / requests as f64,
            ratio: sum(|s| s.ratios) / requests as f64,
            ..UpdateStats::default()
        }
        .check_losses()?;
        let (critic, actor): (Vec<_>, Vec<_>) =
            shards.into_iter().map(|s| (s.critic_gradient, s.actor_gradient)).unzip();
        // Of the shards, in their order.
        let total = |gradients: Vec<Tensor<Flex, 1>>| gradients.into_iter().reduce(|a, b| a + b);
        let critic = total(critic).expect("a batch has a shard");
        let norms = self.networks.step(critic, total(actor.into_iter().flatten().collect()), plan.rate);
        if !plan.read {
            return Ok(None);
        }
        let Norms { critic, actor } = norms;
        let (critic_norm, actor_norm) = (f64::from(to_host(critic)[0]), f64::from(to_host(actor)[0]));
        Ok(Some(UpdateStats { critic_norm, actor_norm, ..stats }.check_norms()?))
    }

    /// Nothing: what returns is done.
    fn wait(&self) {}

    fn actors(&self) -> (Vec<f32>, Vec<f32>) {
        self.networks.actors()
    }

    fn state(&self) -> TrainerState {
        self.networks.state()
    }

    fn restore(&mut self, state: &TrainerState) -> anyhow::Result<()> {
        self.networks.restore(state)
    }
}
