//! The trainer of the CPU: batches are rebuilt for every update, networks run in burn, losses are closed forms.
//!
//! Here the losses take one pass over the outputs, where tensor operations take a dozen over `[.., quantiles, quantiles]`. A
//! batch is processed in shards that each fit a core's cache.

use std::sync::Arc;

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexDevice;
use rayon::prelude::*;

use crate::env::DayModel;
use crate::learner::factors::loss_factors;
use crate::learner::tensor_net::{Net, Rows};
use crate::policy::TrainerState;
use crate::policy::net::Shape;
use crate::policy::{Bids, PolicySpec};
use crate::settings::{Settings, Target};

use super::batch::{Rebuild, SegmentRows};
use super::calibration::Calibration;
use super::dims::Dims;
use super::hindsight::{self, LessonRows};
use super::loss::{Gradients, Losses, Outputs, support};
use super::networks::{Networks, Norms};
use super::share::{GradientShare, Tally};
use super::trainer::{Batch, Placed, Train, UpdatePlan, UpdateStats};
use super::transfer::{to_host, upload};

/// Number of shards of a batch, processed in parallel if there are threads: small enough for a core's cache, enough for a
/// few cores. A constant, so that results do not depend on the number of cores.
const SHARDS: usize = 4;

/// Results of one shard of a batch: gradients and sums.
struct Shard {
    critic_gradient: Tensor<Flex, 1>,
    actor_gradient: Option<Tensor<Flex, 1>>,
    critic_loss: f64,
    actor_loss: f64,
    ratios: f64,
    calibration: Calibration,
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

    /// Infers a part of the batch, computes its losses and back-propagates them.
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
        let upload =
            |shape: &Shape, features: Vec<f32>, ids: Vec<u32>| Rows::upload(shape, features, &ids, &self.device);

        let critic_net = critic_flat.cut(&critic.at.params);
        let state_ids = ids(join(batch, |r| &r.state_ads));
        let state_pass = critic_net.pass(&upload(critic_shape, join(batch, |r| &r.states), state_ids));
        let actor_net = actor_flat.cut(&actor.at.params);
        let actor_rows = upload(actor_shape, join(batch, |r| &r.actor), join(batch, |r| &r.actor_ids));
        let actor_pass = actor_net.pass(&actor_rows);
        let after_ids = ids(join(batch, |r| &r.after_ads));
        let infer =
            |net: &Net, features: Vec<f32>, ids: Vec<u32>| to_host(net.forward(&upload(critic_shape, features, ids)));
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
            calibration: Calibration::sum(gradients.iter().map(|g| &g.calibration)),
        }
    }
}

/// Divisor of `learner.anchor` for squared shares of the penalty, which are that much smaller than advantages.
const ANCHOR_UNITS: f64 = 30.0;

/// Results of the lessons of a batch.
struct Taught {
    critic_gradient: Option<Tensor<Flex, 1>>,
    actor_gradient: Tensor<Flex, 1>,
    critic_loss: f64,
    actor_loss: f64,
}

impl HostTrainer {
    /// Computes the gradients of the losses of hindsight prices, summed over the rows by their weights times `per_weight`; those of the
    /// critic only if it learns their distribution.
    fn learn_from(&self, rows: &LessonRows, per_weight: f32) -> Taught {
        let Networks { actor_flat, critic_flat, actor, critic } = &self.networks;
        let l = &self.settings.learner;
        let column = |values: Vec<f32>, columns: usize| -> Tensor<Flex, 2> {
            Tensor::from_data(TensorData::new(values, [rows.len(), columns]), &self.device)
        };
        let mut aims = rows.labels.clone();
        let (mut critic_gradient, mut critic_loss) = (None, 0.0);
        if l.target == Target::Hindsight {
            let shape = &critic_flat.shape;
            // The first of the actor's tables is that of the ads.
            let ids: Vec<u32> = match (shape.tables.len(), actor_flat.shape.tables.len()) {
                (0, _) | (_, 0) => vec![],
                (_, tables) => rows.ids.iter().step_by(tables).copied().collect(),
            };
            let net = critic_flat.cut(&critic.at.params);
            let pass = net.pass(&Rows::upload(shape, rows.features.clone(), &ids, &self.device));
            let outputs = to_host(pass.outputs.clone());
            let mut gradient = vec![0.0; outputs.len()];
            let factors = loss_factors(&self.settings);
            critic_loss = hindsight::distribution(rows, &outputs, &support(l), &factors, per_weight, &mut gradient);
            aims = hindsight::aims(rows, &outputs, l.hedge as f32);
            let by = column(gradient, shape.outputs);
            critic_gradient = Some(critic_flat.join(net.gradients(pass, by)));
        }
        let net = actor_flat.cut(&actor.at.params);
        let shape = &actor_flat.shape;
        let pass = net.pass(&Rows::upload(shape, rows.features.clone(), &rows.ids, &self.device));
        let outputs = to_host(pass.outputs.clone());
        let mut gradient = vec![0.0; rows.len()];
        let anchor = (l.anchor / ANCHOR_UNITS) as f32;
        let actor_loss = hindsight::bids(rows, &outputs, &aims, anchor, per_weight, &mut gradient);
        let actor_gradient = actor_flat.join(net.gradients(pass, column(gradient, 1)));
        Taught { critic_gradient, actor_gradient, critic_loss, actor_loss }
    }

    /// Computes the gradients and losses of returns, each loss weighed with one of `weights`, by shards.
    fn learn_from_returns(&self, batch: &[SegmentRows], weights: (f32, f32), train_actor: bool) -> Vec<Shard> {
        let losses = Losses {
            settings: &self.settings.learner,
            dims: self.dims,
            factors: loss_factors(&self.settings),
            bids: &self.bids,
            support: support(&self.settings.learner),
            score_auctions: self.dims.score_auctions,
        };
        let size = batch.len().div_ceil(SHARDS);
        batch.par_chunks(size).map(|part| self.shard(part, &losses, weights, train_actor)).collect()
    }

    /// Does a step from lessons alone; no step if the batch's segments have no lesson.
    fn step_from(&mut self, taught: Option<Taught>, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let Some(Taught { critic_gradient: Some(critic), actor_gradient, critic_loss, actor_loss }) = taught else {
            return Ok(plan.read.then(UpdateStats::default));
        };
        let stats = UpdateStats { critic_loss, actor_loss, ratio: 1.0, ..UpdateStats::default() }.check_losses()?;
        self.step(critic, plan.train_actor.then_some(actor_gradient), stats, plan)
    }

    /// Returns the lengths of the parts of [`GradientShare::gradients`].
    fn parts(&self) -> [usize; 3] {
        let (critic, actor) = (self.networks.critic_flat.shape.len(), self.networks.actor_flat.shape.len());
        match self.settings.learner.target {
            Target::Return => [critic, actor, 0],
            Target::Hindsight => [critic, 0, actor],
            Target::Both => [critic, actor, actor],
        }
    }

    fn step(
        &mut self,
        critic: Tensor<Flex, 1>,
        actor: Option<Tensor<Flex, 1>>,
        stats: UpdateStats,
        plan: UpdatePlan,
    ) -> anyhow::Result<Option<UpdateStats>> {
        let norms = self.networks.step(critic, actor, plan.rate);
        if !plan.read {
            return Ok(None);
        }
        let Norms { critic, actor } = norms;
        let (critic_norm, actor_norm) = (f64::from(to_host(critic)[0]), f64::from(to_host(actor)[0]));
        Ok(Some(UpdateStats { critic_norm, actor_norm, ..stats }.check_norms()?))
    }
}

/// Sums gradients in their order.
fn total(gradients: Vec<Tensor<Flex, 1>>) -> Option<Tensor<Flex, 1>> {
    gradients.into_iter().reduce(|a, b| a + b)
}

fn join<T: Copy + Send + Sync>(batch: &[SegmentRows], part: impl Fn(&SegmentRows) -> &[T]) -> Vec<T> {
    let mut joined = Vec::with_capacity(batch.len() * part(&batch[0]).len());
    for rows in batch {
        joined.extend_from_slice(part(rows));
    }
    joined
}

impl Train for HostTrainer {
    /// Does nothing: segments stay compact until they are drawn.
    fn store(&mut self, _: &[Placed], _: Rebuild) {}

    fn batch(&self, drawn: &[Placed], with: Rebuild) -> Batch {
        let target = with.settings.learner.target;
        let rows = match target {
            Target::Hindsight => vec![],
            _ => drawn.par_iter().map(|(_, segment)| SegmentRows::build(segment, with)).collect(),
        };
        let lessons = match target {
            Target::Return => LessonRows::default(),
            _ => LessonRows::gather(drawn.iter().map(|(_, segment)| *segment)),
        };
        Batch::Rows(rows, lessons)
    }

    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let Batch::Rows(batch, lessons) = batch else { anyhow::bail!("a batch of another trainer") };
        let target = self.settings.learner.target;
        let taught = (!lessons.is_empty()).then(|| self.learn_from(lessons, lessons.per_weight()));
        if target == Target::Hindsight {
            return self.step_from(taught, plan);
        }
        let pairs = batch.iter().map(SegmentRows::pairs).sum::<usize>().max(1);
        let requests = batch.iter().map(|r| r.contests.len()).sum::<usize>().max(1);
        let weights = (1.0 / pairs as f32, 1.0 / requests as f32);
        let shards = self.learn_from_returns(batch, weights, plan.train_actor);
        let sum = |f: fn(&Shard) -> f64| shards.iter().map(f).sum::<f64>();
        let stats = UpdateStats {
            critic_loss: sum(|s| s.critic_loss) / pairs as f64,
            actor_loss: sum(|s| s.actor_loss) / requests as f64,
            ratio: sum(|s| s.ratios) / requests as f64,
            calibration: Calibration::sum(shards.iter().map(|s| &s.calibration)).shares(),
            ..UpdateStats::default()
        }
        .check_losses()?;
        let (critic, actor): (Vec<_>, Vec<_>) =
            shards.into_iter().map(|s| (s.critic_gradient, s.actor_gradient)).unzip();
        let critic = total(critic).expect("a batch has a shard");
        let mut actor: Vec<Tensor<Flex, 1>> = actor.into_iter().flatten().collect();
        actor.extend(taught.filter(|_| plan.train_actor).map(|taught| taught.actor_gradient));
        self.step(critic, total(actor), stats, plan)
    }

    fn share(&self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<GradientShare> {
        let Batch::Rows(batch, lessons) = batch else { anyhow::bail!("a batch of another trainer") };
        let taught = (!lessons.is_empty()).then(|| self.learn_from(lessons, 1.0));
        let shards = match self.settings.learner.target {
            Target::Hindsight => vec![],
            _ => self.learn_from_returns(batch, (1.0, 1.0), plan.train_actor),
        };
        let sum = |f: fn(&Shard) -> f64| shards.iter().map(f).sum::<f64>();
        let of_lessons = |f: fn(&Taught) -> f64| taught.as_ref().map_or(0.0, f);
        let tally = Tally {
            pairs: batch.iter().map(|rows| rows.pairs() as u64).sum(),
            requests: batch.iter().map(|rows| rows.contests.len() as u64).sum(),
            critic_loss: sum(|s| s.critic_loss),
            actor_loss: sum(|s| s.actor_loss),
            ratios: sum(|s| s.ratios),
            calibration: Calibration::sum(shards.iter().map(|s| &s.calibration)),
            lessons: lessons.len() as u64,
            lesson_weight: lessons.weight().into(),
            lesson_critic_loss: of_lessons(|t| t.critic_loss),
            lesson_actor_loss: of_lessons(|t| t.actor_loss),
        };
        let (critic, actor): (Vec<_>, Vec<_>) =
            shards.into_iter().map(|s| (s.critic_gradient, s.actor_gradient)).unzip();
        let (taught_critic, taught_actor) = taught.map(|t| (t.critic_gradient, t.actor_gradient)).unzip();
        let of = [
            total(critic).or(taught_critic.flatten()),
            total(actor.into_iter().flatten().collect()),
            taught_actor.filter(|_| plan.train_actor),
        ];
        let mut gradients = Vec::with_capacity(self.parts().iter().sum());
        for (part, len) in of.into_iter().zip(self.parts()) {
            let end = gradients.len() + len;
            if let Some(part) = part.filter(|_| len > 0) {
                gradients.extend(to_host(part));
            }
            gradients.resize(end, 0.0);
        }
        Ok(GradientShare { gradients, tally })
    }

    fn apply(&mut self, share: &GradientShare, ranks: usize, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let GradientShare { gradients, tally } = share;
        let by_returns = self.settings.learner.target != Target::Hindsight;
        if !by_returns && tally.lessons == 0 {
            return Ok(plan.read.then(UpdateStats::default));
        }
        let (pairs, requests) = (tally.pairs.max(1) as f64, tally.requests.max(1) as f64);
        let weight = tally.lesson_weight.max(1e-12);
        let stats = if by_returns {
            UpdateStats {
                critic_loss: tally.critic_loss / pairs,
                actor_loss: tally.actor_loss / requests,
                ratio: tally.ratios / requests,
                calibration: tally.calibration.shares(),
                ..UpdateStats::default()
            }
        } else {
            UpdateStats {
                critic_loss: tally.lesson_critic_loss / weight,
                actor_loss: tally.lesson_actor_loss / weight,
                ratio: 1.0,
                ..UpdateStats::default()
            }
        }
        .check_losses()?;
        let [critic, actor, taught] = self.parts();
        anyhow::ensure!(gradients.len() == critic + actor + taught, "gradients of networks of another size");
        let (critic, rest) = gradients.split_at(critic);
        let (actor, taught) = rest.split_at(actor);
        // The mean over the ranks of what each summed.
        let over = |gradient: &[f32], divisor: f64| -> Option<Tensor<Flex, 1>> {
            let factor = (ranks as f64 / divisor) as f32;
            (!gradient.is_empty()).then(|| upload(gradient.iter().map(|g| g * factor).collect(), &self.device))
        };
        let critic = over(critic, if by_returns { pairs } else { weight }).expect("a critic has parameters");
        let actor = [over(actor, requests), over(taught, weight)].into_iter().flatten().collect();
        self.step(critic, total(actor).filter(|_| plan.train_actor), stats, plan)
    }

    /// Does nothing: an update is complete when it returns.
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
