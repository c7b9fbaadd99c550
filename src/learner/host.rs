//! The trainer of the CPU: batches are rebuilt for every update, losses are closed forms.
//!
//! Here the losses take one pass over the outputs, where tensor operations take a dozen over `[.., quantiles, quantiles]`. A
//! batch is processed in shards that each fit a core's cache, in memory that serves every update.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Flex;
use burn_flex::FlexDevice;
use rayon::prelude::*;

use crate::env::DayModel;
use crate::learner::factors::loss_factors;
use crate::policy::TrainerState;
use crate::policy::net::Shape;
use crate::policy::{Bids, PolicySpec};
use crate::settings::{Settings, Target};

use super::batch::{Rebuild, SegmentRows};
use super::calibration::Calibration;
use super::dims::Dims;
use super::hindsight::{self, LessonRows};
use super::loss::{Gradients, Losses, Outputs, support};
use super::networks::{Flat, Networks, Norms};
use super::passes::{Net, Pass};
use super::present::PresentRows;
use super::share::{GradientShare, Tally, over};
use super::trainer::{Batch, Placed, Train, UpdatePlan, UpdateStats};
use super::transfer::{to_host, upload};

/// Number of shards of a batch, processed in parallel if there are threads: small enough for a core's cache, enough for a
/// few cores. A constant, so that results do not depend on the number of cores.
const SHARDS: usize = 4;

/// Memory of a shard, for one update after another.
#[derive(Debug, Default)]
struct ShardMemory {
    states: PresentRows,
    after: PresentRows,
    last: PresentRows,
    actor: PresentRows,
    /// Gradients by all outputs of the shard.
    by_states: Vec<f32>,
    by_actor: Vec<f32>,
    /// Gradients by the parameters.
    critic_gradient: Vec<f32>,
    actor_gradient: Vec<f32>,
}

/// Flat parameters during an update.
struct Parameters {
    critic: Vec<f32>,
    target_critic: Vec<f32>,
    actor: Vec<f32>,
    /// [`Net::mean_of_outputs`] of the critic, if its outputs' mean is the mean of what they represent.
    critic_mean: Option<Vec<f32>>,
    /// [`Net::turned`] of the critic and of the actor.
    critic_turned: Vec<f32>,
    actor_turned: Vec<f32>,
}

/// Sums over the samples of a batch, or of a shard of it.
#[derive(Debug, Default)]
struct Sums {
    critic_loss: f64,
    actor_loss: f64,
    ratios: f64,
    calibration: Calibration,
}

impl From<Sums> for Tally {
    fn from(Sums { critic_loss, actor_loss, ratios, calibration }: Sums) -> Self {
        Self { critic_loss, actor_loss, ratios, calibration, ..Self::default() }
    }
}

/// Gradients by the parameters, and sums.
struct Learned {
    critic: Vec<f32>,
    actor: Option<Vec<f32>>,
    sums: Sums,
}

/// [`Train`] with batches and losses on the host.
pub struct HostTrainer {
    device: FlexDevice,
    settings: Settings,
    dims: Dims,
    bids: Vec<(Bids, f64)>,
    networks: Networks<Flex>,
    /// Shape of a critic with one output, the mean.
    critic_mean_flat: Flat,
    memory: Mutex<[ShardMemory; SHARDS]>,
}

impl HostTrainer {
    pub fn new(days: &[DayModel], spec: &Arc<PolicySpec>, settings: &Settings) -> Self {
        let device = FlexDevice;
        let networks = Networks::new(spec, settings, &device);
        let critic_mean_flat = Flat::new(Shape { outputs: 1, ..networks.critic_flat.shape.clone() });
        Self {
            networks,
            critic_mean_flat,
            dims: Dims::of(days, spec, settings),
            bids: days.iter().map(|d| (Bids::new(d, &spec.policy), d.unit)).collect(),
            settings: settings.clone(),
            device,
            memory: Mutex::default(),
        }
    }

    fn parameters(&self) -> Parameters {
        let Networks { actor, critic, actor_flat, critic_flat } = &self.networks;
        let target_critic = to_host(critic.at.follower.clone());
        let [critic, actor] = [critic, actor].map(|network| to_host(network.at.params.clone()));
        let net = Net::new(critic_flat, &critic);
        let critic_mean = self.settings.learner.critic.averages_outputs().then(|| net.mean_of_outputs());
        let critic_turned = net.turned();
        let actor_turned = Net::new(actor_flat, &actor).turned();
        Parameters { critic, target_critic, actor, critic_mean, critic_turned, actor_turned }
    }

    /// Infers a part of the batch, computes its losses and back-propagates them; leaves the gradients in `memory`.
    fn shard(
        &self,
        memory: &mut ShardMemory,
        parameters: &Parameters,
        batch: &[SegmentRows],
        losses: &Losses,
        (critic_weight, actor_weight): (f32, f32),
        train_actor: bool,
    ) -> Sums {
        let d = self.dims;
        let Networks { actor_flat, critic_flat, .. } = &self.networks;
        let critic = Net::new(critic_flat, &parameters.critic);
        let target_critic = Net::new(critic_flat, &parameters.target_critic);
        let actor = Net::new(actor_flat, &parameters.actor);
        let ShardMemory { states, after, last, actor: bids, .. } = memory;
        for rows in [&mut *states, after, last, bids] {
            rows.clear();
        }
        let tables = critic_flat.shape.tables.len();
        for (i, rows) in batch.iter().enumerate() {
            let first = i * d.steps * d.contracts;
            for at in rows.potential.iter().enumerate().filter(|(_, potential)| **potential != 0.0).map(|(at, _)| at) {
                states.push(&critic, first + at, rows.state(at), &rows.state_ads[at..at + tables]);
            }
            let first = i * d.steps * d.eligible;
            for (at, bidder) in rows.bidders.iter().enumerate() {
                let Some(bidder) = bidder else { continue };
                if bidder.after_potential != 0.0 {
                    after.push(&critic, first + at, rows.after(at), &rows.after_ads[at..at + tables]);
                }
            }
            for at in 0..d.contracts {
                last.push(&target_critic, i * d.contracts + at, rows.last(at), &rows.last_ads[at..at + tables]);
            }
            let actor_tables = actor_flat.shape.tables.len();
            for at in rows.actor_rows_present(&d) {
                let ids = &rows.actor_ids[at * actor_tables..(at + 1) * actor_tables];
                bids.push(&actor, i * d.steps * d.actor_rows() + at, rows.actor(at, actor_flat.shape.features), ids);
            }
        }
        let places = batch.len() * d.steps * d.eligible;
        let means: Vec<f32>;
        let after = match &parameters.critic_mean {
            Some(mean) => after.infer(&Net::new(&self.critic_mean_flat, mean), places),
            None => {
                let after = after.infer(&critic, places).chunks_exact(d.outputs);
                means = after.map(|row| losses.mean(row)).collect();
                &means
            }
        };
        let outputs = BatchOutputs {
            states: states.infer(&critic, batch.len() * d.steps * d.contracts),
            after,
            last: last.infer(&target_critic, batch.len() * d.contracts),
            actor: bids.infer(&actor, batch.len() * d.steps * d.actor_rows()),
        };
        let gradients: Vec<Gradients> = batch
            .par_iter()
            .enumerate()
            .map(|(i, rows)| losses.segment(rows, &outputs.of_segment(i, batch.len()), critic_weight, actor_weight))
            .collect();

        let ShardMemory { states, actor: bids, by_states, by_actor, critic_gradient, actor_gradient, .. } = memory;
        by_states.clear();
        gradients.iter().for_each(|g| by_states.extend_from_slice(&g.states));
        states.gradients(&critic, &parameters.critic_turned, by_states, critic_gradient);
        if train_actor {
            by_actor.clear();
            gradients.iter().for_each(|g| by_actor.extend_from_slice(&g.actor));
            bids.gradients(&actor, &parameters.actor_turned, by_actor, actor_gradient);
        }
        let sum = |f: fn(&Gradients) -> f64| gradients.iter().map(f).sum::<f64>();
        Sums {
            critic_loss: sum(|g| g.critic_loss),
            actor_loss: sum(|g| g.actor_loss),
            ratios: sum(|g| g.ratios),
            calibration: Calibration::sum(gradients.iter().map(|g| &g.calibration)),
        }
    }
}

/// Outputs of the networks for the segments of a shard, one after another.
struct BatchOutputs<'a> {
    states: &'a [f32],
    after: &'a [f32],
    last: &'a [f32],
    actor: &'a [f32],
}

impl BatchOutputs<'_> {
    /// Returns those of segment `i` of `segments`.
    fn of_segment(&self, i: usize, segments: usize) -> Outputs<'_> {
        let part = |all: &'_ [f32]| {
            let len = all.len() / segments;
            i * len..(i + 1) * len
        };
        Outputs {
            states: &self.states[part(self.states)],
            last: &self.last[part(self.last)],
            after: &self.after[part(self.after)],
            actor: &self.actor[part(self.actor)],
        }
    }
}

/// Divisor of `learner.anchor` for squared shares of the penalty, which are that much smaller than advantages.
const ANCHOR_UNITS: f64 = 30.0;

/// Results of the lessons of a batch.
struct Taught {
    critic_gradient: Option<Vec<f32>>,
    actor_gradient: Vec<f32>,
    critic_loss: f64,
    actor_loss: f64,
}

impl HostTrainer {
    /// Computes the gradients of the losses of hindsight prices, summed over the rows by their weights times `per_weight`; those of the
    /// critic only if it learns their distribution.
    fn learn_from(&self, rows: &LessonRows, per_weight: f32) -> Taught {
        let Networks { actor_flat, critic_flat, .. } = &self.networks;
        let parameters = self.parameters();
        let l = &self.settings.learner;
        let features = actor_flat.shape.features;
        let actor_tables = actor_flat.shape.tables.len();
        let through = |net: &Net, tables: usize| {
            let mut pass = Pass::default();
            for (i, features) in rows.features.chunks_exact(features).enumerate() {
                // The first of the actor's tables is that of the ads, which the critic has alone.
                net.push(&mut pass, features, &rows.ids[i * actor_tables..][..tables]);
            }
            net.forward(&mut pass);
            pass
        };
        let mut aims = rows.labels.clone();
        let (mut critic_gradient, mut critic_loss) = (None, 0.0);
        if l.target == Target::Hindsight {
            let net = Net::new(critic_flat, &parameters.critic);
            let mut pass = through(&net, critic_flat.shape.tables.len());
            let mut by = vec![0.0; pass.outputs.len()];
            let factors = loss_factors(&self.settings);
            critic_loss = hindsight::distribution(rows, &pass.outputs, &support(l), &factors, per_weight, &mut by);
            aims = hindsight::aims(rows, &pass.outputs, l.hedge as f32);
            net.gradients(&parameters.critic_turned, &mut pass, &by, critic_gradient.insert(vec![]));
        }
        let net = Net::new(actor_flat, &parameters.actor);
        let mut pass = through(&net, actor_tables);
        let mut by = vec![0.0; rows.len()];
        let anchor = (self.settings.anchor() / ANCHOR_UNITS) as f32;
        let actor_loss = hindsight::bids(rows, &pass.outputs, &aims, anchor, per_weight, &mut by);
        let mut actor_gradient = vec![];
        net.gradients(&parameters.actor_turned, &mut pass, &by, &mut actor_gradient);
        Taught { critic_gradient, actor_gradient, critic_loss, actor_loss }
    }

    /// Computes the gradients and losses of returns, each loss weighed with one of `weights`, by shards.
    fn learn_from_returns(&self, batch: &[SegmentRows], weights: (f32, f32), train_actor: bool) -> Learned {
        let losses = Losses {
            settings: &self.settings.learner,
            dims: self.dims,
            factors: loss_factors(&self.settings),
            bids: &self.bids,
            support: support(&self.settings.learner),
            score_auctions: self.dims.score_auctions,
            anchor: self.settings.anchor() as f32,
        };
        let parameters = self.parameters();
        let size = batch.len().div_ceil(SHARDS);
        // A panic in a shard ends the process: what it leaves in the memory is never read.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let shards = batch.par_chunks(size).zip(memory.par_iter_mut());
        let shards: Vec<(Sums, &mut ShardMemory)> = shards
            .map(|(part, memory)| (self.shard(memory, &parameters, part, &losses, weights, train_actor), memory))
            .collect();
        let sum = |f: fn(&Sums) -> f64| shards.iter().map(|(sums, _)| f(sums)).sum::<f64>();
        Learned {
            sums: Sums {
                critic_loss: sum(|s| s.critic_loss),
                actor_loss: sum(|s| s.actor_loss),
                ratios: sum(|s| s.ratios),
                calibration: Calibration::sum(shards.iter().map(|(sums, _)| &sums.calibration)),
            },
            critic: total(shards.iter().map(|(_, memory)| &memory.critic_gradient)).expect("a batch has a shard"),
            actor: total(shards.iter().map(|(_, memory)| &memory.actor_gradient)).filter(|_| train_actor),
        }
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
        critic: Vec<f32>,
        actor: Option<Vec<f32>>,
        stats: UpdateStats,
        plan: UpdatePlan,
    ) -> anyhow::Result<Option<UpdateStats>> {
        let [critic, actor] = [Some(critic), actor].map(|gradient| Some(upload(gradient?, &self.device)));
        let norms = self.networks.step(critic.expect("the critic always learns"), actor, plan.rate);
        if !plan.read {
            return Ok(None);
        }
        let Norms { critic, actor } = norms;
        let (critic_norm, actor_norm) = (f64::from(to_host(critic)[0]), f64::from(to_host(actor)[0]));
        Ok(Some(UpdateStats { critic_norm, actor_norm, ..stats }.check_norms()?))
    }
}

/// Sums gradients in their order.
fn total<'a>(mut gradients: impl Iterator<Item = &'a Vec<f32>>) -> Option<Vec<f32>> {
    let mut total = gradients.next()?.clone();
    for gradient in gradients {
        total.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }
    Some(total)
}

/// Returns the numbers of pairs of a state and a contract with something at stake, and of requests.
fn counted(batch: &[SegmentRows]) -> (u64, u64) {
    (batch.iter().map(|rows| rows.pairs() as u64).sum(), batch.iter().map(|rows| rows.contests.len() as u64).sum())
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
        let (pairs, requests) = counted(batch);
        let weights = (1.0 / pairs.max(1) as f32, 1.0 / requests.max(1) as f32);
        let Learned { critic, actor, sums } = self.learn_from_returns(batch, weights, plan.train_actor);
        let stats = UpdateStats::of_returns(&Tally { pairs, requests, ..sums.into() }).check_losses()?;
        let taught = taught.filter(|_| plan.train_actor).map(|taught| taught.actor_gradient);
        self.step(critic, total(actor.iter().chain(&taught)), stats, plan)
    }

    fn share(&self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<GradientShare> {
        let Batch::Rows(batch, lessons) = batch else { anyhow::bail!("a batch of another trainer") };
        let taught = (!lessons.is_empty()).then(|| self.learn_from(lessons, 1.0));
        let (critic, actor, sums) = match self.settings.learner.target {
            Target::Hindsight => (None, None, Sums::default()),
            _ => {
                let Learned { critic, actor, sums } = self.learn_from_returns(batch, (1.0, 1.0), plan.train_actor);
                (Some(critic), actor, sums)
            }
        };
        let of_lessons = |f: fn(&Taught) -> f64| taught.as_ref().map_or(0.0, f);
        let (pairs, requests) = counted(batch);
        let tally = Tally {
            pairs,
            requests,
            lessons: lessons.len() as u64,
            lesson_weight: lessons.weight().into(),
            lesson_critic_loss: of_lessons(|t| t.critic_loss),
            lesson_actor_loss: of_lessons(|t| t.actor_loss),
            ..sums.into()
        };
        let (taught_critic, taught_actor) = taught.map(|t| (t.critic_gradient, t.actor_gradient)).unzip();
        let parts = [critic.or(taught_critic.flatten()), actor, taught_actor.filter(|_| plan.train_actor)];
        let mut gradients = Vec::with_capacity(self.parts().iter().sum());
        for (part, len) in parts.into_iter().zip(self.parts()) {
            let end = gradients.len() + len;
            if let Some(part) = part.filter(|_| len > 0) {
                gradients.extend(part);
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
            UpdateStats::of_returns(tally)
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
        let critic = over(critic, ranks, if by_returns { pairs } else { weight });
        let actor = [over(actor, ranks, requests), over(taught, ranks, weight)];
        let actor = total(actor.iter().filter(|gradient| !gradient.is_empty()));
        self.step(critic, actor.filter(|_| plan.train_actor), stats, plan)
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
