//! The trainer of a GPU: the replay pool is on the same device as the networks.
//!
//! A segment is replayed once, when it enters the pool, and is uploaded together with its block. An update sends only the drawn
//! places: it gathers the batch, infers, computes the losses and steps the optimisers on the device, and waits for it only if
//! its statistics are read, for publications and for snapshots. A batch always has the same shapes, so that an update reuses
//! the memory freed by the last one.
//!
//! - [`record`]: a segment as it is uploaded. [`layout`]: the row of numbers that the device expands it to.
//! - `cube`: the kernels. At batches of a few hundred steps a GPU waits for launches, not for arithmetic; these are a sixth of
//!   the launches of tensor operations. `scripts/wgpu` compares them with the CPU's trainer.

mod cube;
mod layout;
mod record;

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;
use rayon::prelude::*;

use crate::env::DayModel;
use crate::gpu::numbers::{Cube, Numbers};
use crate::policy::TrainerState;
use crate::policy::{Bids, PolicySpec};
use crate::settings::Settings;

use self::cube::{Constants, Gradients, Update, Weights, gather, gradients, write};
use self::layout::Layout;
use self::record::{Counts, Record};
use super::batch::Rebuild;
use super::dims::Dims;
use super::networks::{Networks, Norms};
use super::share::{GradientShare, Tally, over};
use super::trainer::{Batch, Placed, Train, UpdatePlan, UpdateStats};
use super::transfer::{to_host, upload};

/// Maximum number of segments in one upload: more than a block has, and tens of megabytes.
const UPLOAD: usize = 64;

/// [`Train`] with pool, batches and losses on the device.
pub struct ResidentTrainer<R: CubeRuntime> {
    bids: Vec<Bids>,
    record: Record,
    layout: Layout,
    losses: Constants<R>,
    networks: Networks<Cube<R>>,
    /// `[room width]`.
    pool: Numbers<R>,
    /// `[S width]`: source index of each number of a batch.
    sources: Numbers<R>,
    /// By place.
    counts: Vec<Counts>,
}

impl<R: CubeRuntime> ResidentTrainer<R> {
    /// Creates a trainer with an empty pool.
    ///
    /// # Errors
    /// If the pool has more numbers than a device can index; a GPU may have less memory than that.
    pub fn new(
        days: &[DayModel],
        spec: &Arc<PolicySpec>,
        settings: &Settings,
        device: R::Device,
    ) -> anyhow::Result<Self> {
        let dims = Dims::of(days, spec, settings);
        let l = &settings.learner;
        let networks = Networks::new(spec, settings, &device);
        let tables = (networks.actor_flat.shape.tables.len(), networks.critic_flat.shape.tables.len());
        let layout = Layout::new(dims, settings.requests_per_step(), tables.0, tables.1, l.credit);
        let numbers = dims.room * layout.width;
        let gigabytes = (numbers * size_of::<f32>()) as f64 * 1e-9;
        anyhow::ensure!(
            i32::try_from(numbers).is_ok(),
            "a replay pool of {} steps takes {gigabytes:.1} GB on the device, which points at 8.6 GB at most; lower learner.pool (of a \
             segment all {} steps take room, also where an episode ends before)",
            l.pool,
            l.segment
        );
        tracing::info!("the replay pool takes {gigabytes:.2} GB on the device, for up to {} segments", dims.room);
        let pool = Numbers::zeros(&device, numbers);
        Ok(Self {
            sources: pool.upload(&layout.sources(dims.segments)),
            losses: Constants::new(settings, &pool),
            pool,
            counts: vec![Counts::default(); dims.room],
            bids: days.iter().map(|d| Bids::new(d, &spec.policy)).collect(),
            record: Record::new(dims, spec, settings),
            networks,
            layout,
        })
    }

    /// Replays segments and writes them to their places.
    fn upload(&mut self, placed: &[Placed], with: Rebuild) {
        let width = self.record.width;
        let mut records = vec![0.0; placed.len() * width];
        let counts: Vec<Counts> = records
            .par_chunks_exact_mut(width)
            .zip(placed)
            .map(|(out, (_, segment))| self.record.write(segment, with, &self.bids[usize::from(segment.day)], out))
            .collect();
        let places: Vec<usize> = placed.iter().map(|(place, _)| *place).collect();
        for (place, counts) in places.iter().zip(counts) {
            self.counts[*place] = counts;
        }
        write(&self.pool, records, &places, (&self.record, &self.layout));
    }

    /// Returns the numbers of pairs of a state and a contract with something at stake, and of requests, in segments at places.
    fn counted(&self, places: &[usize]) -> (u64, u64) {
        let sum = |count: fn(&Counts) -> usize| places.iter().map(|p| count(&self.counts[*p]) as u64).sum();
        (sum(|c| c.pairs), sum(|c| c.requests))
    }

    /// Computes the gradients by a batch, with factors on them.
    fn learn(&self, places: &[usize], weights: Weights, plan: UpdatePlan, with_sums: bool) -> Gradients<R> {
        let batch = gather(&self.pool, places, &self.sources, self.layout.width);
        gradients(Update {
            layout: &self.layout,
            losses: &self.losses,
            networks: &self.networks,
            batch: &batch,
            weights,
            train_actor: plan.train_actor,
            with_sums,
        })
    }

    /// Returns the numbers of parameters of critic and actor.
    fn parts(&self) -> [usize; 2] {
        [self.networks.critic_flat.shape.len(), self.networks.actor_flat.shape.len()]
    }
}

/// Returns the tally of counts and of the sums of [`Gradients`], as they were read.
fn tally((pairs, requests): (u64, u64), sums: &[f32]) -> Tally {
    let [critic_loss, actor_loss, ratios] = [0, 1, 2].map(|i| f64::from(sums[i]));
    Tally { pairs, requests, critic_loss, actor_loss, ratios, ..Tally::default() }
}

fn places(batch: &Batch) -> anyhow::Result<&[usize]> {
    let Batch::Places(places) = batch else { anyhow::bail!("a batch of another trainer") };
    Ok(places)
}

impl<R: CubeRuntime> Train for ResidentTrainer<R> {
    fn store(&mut self, placed: &[Placed], with: Rebuild) {
        for part in placed.chunks(UPLOAD) {
            self.upload(part, with);
        }
    }

    fn batch(&self, drawn: &[Placed], _: Rebuild) -> Batch {
        Batch::Places(drawn.iter().map(|(place, _)| *place).collect())
    }

    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let places = places(batch)?;
        let counted @ (pairs, requests) = self.counted(places);
        let weights = Weights { critic: 1.0 / pairs.max(1) as f32, actor: 1.0 / requests.max(1) as f32 };
        let Gradients { critic, actor, sums } = self.learn(places, weights, plan, plan.read);
        let norms = self.networks.step(critic, actor, plan.rate);
        let Some([critic_loss, actor_loss, ratios]) = sums else { return Ok(None) };
        let Norms { critic, actor } = norms;
        let read = to_host(Tensor::cat(vec![critic_loss, actor_loss, ratios, critic, actor], 0));
        let stats = UpdateStats::of_returns(&tally(counted, &read)).check_losses()?;
        let (critic_norm, actor_norm) = (f64::from(read[3]), f64::from(read[4]));
        Ok(Some(UpdateStats { critic_norm, actor_norm, ..stats }.check_norms()?))
    }

    fn share(&self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<GradientShare> {
        let places = places(batch)?;
        let Gradients { critic, actor, sums } = self.learn(places, Weights { critic: 1.0, actor: 1.0 }, plan, true);
        let [_, actor_len] = self.parts();
        let actor = actor.unwrap_or_else(|| Tensor::zeros([actor_len], &critic.device()));
        let sums = sums.expect("they were asked for");
        let mut gradients = to_host(Tensor::cat([critic, actor].into_iter().chain(sums).collect(), 0));
        let sums = gradients.split_off(gradients.len() - 3);
        Ok(GradientShare { gradients, tally: tally(self.counted(places), &sums) })
    }

    fn apply(&mut self, share: &GradientShare, ranks: usize, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let GradientShare { gradients, tally } = share;
        let stats = UpdateStats::of_returns(tally).check_losses()?;
        let [critic_len, actor_len] = self.parts();
        anyhow::ensure!(gradients.len() == critic_len + actor_len, "gradients of networks of another size");
        let (critic, actor) = gradients.split_at(critic_len);
        let device = self.networks.critic.at.params.device();
        let scaled = |gradient, divisor: u64| upload(over(gradient, ranks, divisor.max(1) as f64), &device);
        let actor = plan.train_actor.then(|| scaled(actor, tally.requests));
        let Norms { critic, actor } = self.networks.step(scaled(critic, tally.pairs), actor, plan.rate);
        if !plan.read {
            return Ok(None);
        }
        let norms = to_host(Tensor::cat(vec![critic, actor], 0));
        let (critic_norm, actor_norm) = (f64::from(norms[0]), f64::from(norms[1]));
        Ok(Some(UpdateStats { critic_norm, actor_norm, ..stats }.check_norms()?))
    }

    fn wait(&self) {
        // Both are read through one queue, so everything launched before them is done.
        self.pool.wait();
        to_host(self.networks.critic.at.params.clone().slice(0..1));
    }

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
