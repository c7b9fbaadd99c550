//! The trainer of a GPU: the replay pool lives where the networks are.
//!
//! A segment is rebuilt once, when it comes into the pool, and goes to the device with its block in one upload. An update sends the
//! places that it drew and nothing else: it gathers the batch, infers, works out the losses and steps the optimisers on the
//! device, and waits for it only where somebody wants to know what it did, for publications and for snapshots. A batch always
//! has the same shapes, so that what is compiled and tuned at the first update serves all.
//!
//! It runs on any backend: `cpu-resident` is this on the CPU, which is slow, and how it is tested where there is no GPU.

mod layout;
mod loss;

use std::sync::Arc;

use burn::tensor::{Int, Tensor, TensorData};
use rayon::prelude::*;

use crate::env::DayModel;
use crate::policy::products::Products;
use crate::policy::{Bids, PolicySpec};
use crate::run::snapshot::TrainerState;
use crate::settings::Settings;

use self::layout::{ALIGNED, Layout};
use self::loss::{Gradients, Outputs, TensorLosses, Weights};
use super::batch::{Rebuild, SegmentRows};
use super::dims::Dims;
use super::networks::{Networks, Norms, to_host, upload};
use super::trainer::{Batch, Placed, Train, UpdatePlan, UpdateStats};

/// Segments that are uploaded at a time: always so many, that the shape stays the same; those beyond a block's are zeros and
/// written nowhere.
const UPLOAD: usize = 8;

/// The longest segment: the weights of its returns are a square of its steps.
const LONGEST: usize = 4096;

/// [`Train`] with pool, batches and losses on the device.
pub struct ResidentTrainer<B: Products> {
    device: B::Device,
    anchor: f32,
    bids: Vec<(Bids, f64)>,
    layout: Layout,
    losses: TensorLosses<B>,
    networks: Networks<B>,
    /// `[room width]`; taken out only while it is written to.
    pool: Option<Tensor<B, 1>>,
    /// `[S width]` each: of every number of a batch, which of its segments it is of, and where in that segment's row it is.
    segment_of: Tensor<B, 1, Int>,
    column_of: Tensor<B, 1, Int>,
    /// By place.
    counts: Vec<Counts>,
}

/// What a segment adds to the denominators of the losses.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    pairs: usize,
    requests: usize,
}

impl<B: Products> ResidentTrainer<B> {
    /// # Errors
    /// A pool with more numbers than a device can point at (a GPU may have less memory than that), or a segment longer than [`LONGEST`].
    pub fn new(
        days: &[DayModel],
        spec: &Arc<PolicySpec>,
        settings: &Settings,
        device: B::Device,
    ) -> anyhow::Result<Self> {
        let dims = Dims::of(days, spec, settings);
        let l = &settings.learner;
        let networks = Networks::new(spec, settings, ALIGNED, &device);
        let tables = (networks.actor_flat.shape.tables.len(), networks.critic_flat.shape.tables.len());
        let layout = Layout::new(dims, settings.requests_per_step(), tables.0, tables.1, l.credit);
        anyhow::ensure!(
            l.segment <= LONGEST,
            "learner.segment = {} is more than the {LONGEST} steps that a GPU's returns are made for",
            l.segment
        );
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
        let (segment_of, column_of) = layout.sources(dims.segments);
        let upload = |index: Vec<i32>| {
            let len = index.len();
            Tensor::from_data(TensorData::new(index, [len]), &device)
        };
        Ok(Self {
            pool: Some(Tensor::zeros([numbers], &device)),
            segment_of: upload(segment_of),
            column_of: upload(column_of),
            counts: vec![Counts::default(); dims.room],
            losses: TensorLosses::new(dims, settings, &device),
            bids: days.iter().map(|d| (Bids::new(d, &spec.policy), d.unit)).collect(),
            anchor: l.anchor as f32,
            networks,
            layout,
            device,
        })
    }

    fn pool(&self) -> Tensor<B, 1> {
        self.pool.clone().expect("a pool is put back after it was written to")
    }

    /// Rebuilds segments and writes them to their places.
    fn upload(&mut self, placed: &[Placed], with: Rebuild) {
        let width = self.layout.width;
        let mut block = vec![0.0; UPLOAD * width];
        let counts: Vec<Counts> = block
            .par_chunks_exact_mut(width)
            .zip(placed)
            .map(|(out, (_, segment))| {
                let rows = SegmentRows::build(segment, with);
                let (bids, money) = &self.bids[rows.day];
                self.layout.pack(&rows, (bids, *money), self.anchor, out);
                Counts { pairs: rows.pairs(), requests: rows.contests.len() }
            })
            .collect();
        let block = upload::<B>(block, &self.device);
        let mut pool = self.pool.take().expect("a pool is put back after it was written to");
        for (i, ((place, _), counts)) in placed.iter().zip(counts).enumerate() {
            self.counts[*place] = counts;
            let row = block.clone().slice(i * width..(i + 1) * width);
            pool = pool.slice_assign(place * width..(place + 1) * width, row);
        }
        self.pool = Some(pool);
    }
}

impl<B: Products> Train for ResidentTrainer<B> {
    fn store(&mut self, placed: &[Placed], with: Rebuild) {
        for part in placed.chunks(UPLOAD) {
            self.upload(part, with);
        }
    }

    fn batch(&self, drawn: &[Placed], _: Rebuild) -> Batch {
        Batch::Places(drawn.iter().map(|(place, _)| *place).collect())
    }

    fn update(&mut self, batch: &Batch, plan: UpdatePlan) -> anyhow::Result<Option<UpdateStats>> {
        let Batch::Places(places) = batch else { anyhow::bail!("a batch of another trainer") };
        let sum = |count: fn(&Counts) -> usize| places.iter().map(|p| count(&self.counts[*p])).sum::<usize>().max(1);
        let (pairs, requests) = (sum(|c| c.pairs), sum(|c| c.requests));
        let indices: Vec<i32> = places.iter().map(|place| *place as i32).collect();
        let indices: Tensor<B, 1, Int> = Tensor::from_data(TensorData::new(indices, [places.len()]), &self.device);
        let at =
            indices.select(0, self.segment_of.clone()).mul_scalar(self.layout.width as i32) + self.column_of.clone();
        let fields = self.layout.cut(&self.pool().select(0, at));

        let n = &self.networks;
        let (critic, actor) = (n.critic_flat.cut(&n.critic), n.actor_flat.cut(&n.actor));
        let (states, scores) = (critic.pass(&fields.states), actor.pass(&fields.actor));
        let outputs = Outputs {
            states: states.outputs.clone(),
            actor: scores.outputs.clone(),
            after: critic.forward(&fields.after),
            last: n.critic_flat.cut(&n.target).forward(&fields.last),
        };
        let weights = Weights { critic: 1.0 / pairs as f32, actor: 1.0 / requests as f32 };
        let Gradients { states: by_states, actor: by_scores, sums } =
            self.losses.batch(&fields, &outputs, weights, plan.read);
        let critic_gradient = n.critic_flat.join(critic.gradients(states, by_states));
        let actor_gradient = plan.train_actor.then(|| n.actor_flat.join(actor.gradients(scores, by_scores)));
        let norms = self.networks.step(critic_gradient, actor_gradient, plan.rate);
        let Some([critic_loss, actor_loss, ratios]) = sums else { return Ok(None) };
        let Norms { critic, actor } = norms;
        let read = to_host(Tensor::cat(vec![critic_loss, actor_loss, ratios, critic, actor], 0));
        let read = |i: usize| f64::from(read[i]);
        let stats = UpdateStats {
            critic_loss: read(0) / pairs as f64,
            actor_loss: read(1) / requests as f64,
            ratio: read(2) / requests as f64,
            critic_norm: read(3),
            actor_norm: read(4),
        };
        Ok(Some(stats.check_losses()?.check_norms()?))
    }

    fn wait(&self) {
        let ends = vec![self.pool().slice(0..1), self.networks.critic.clone().slice(0..1)];
        to_host(Tensor::cat(ends, 0));
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
