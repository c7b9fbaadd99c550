//! Updates per second of the learner, with the trainer that `train` runs.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::actor::Explorer;
use crate::env::DayModel;
use crate::env::Segment;
use crate::learner::trainer::UpdatePlan;
use crate::learner::{Device, Dims, Learner};
use crate::policy::PolicySpec;
use crate::policy::start::initial_actor;
use crate::settings::Settings;

use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct LearnerReport {
    pub device: String,
    pub threads: usize,
    pub batch: usize,
    pub contracts: usize,
    pub eligible: usize,
    pub inputs: usize,
    pub hidden: usize,
    pub quantiles: usize,
    /// Updates on prepared batches, what a library's training step is to be compared with. On a GPU that is a full pool, of which
    /// each update gathers its batch.
    pub updates_per_second: f64,
    /// Batches' worth of compact segments that come into the pool and are rebuilt (on a GPU: and uploaded) per second.
    pub batches_per_second: f64,
    /// Both together, as in training.
    pub whole_updates_per_second: f64,
}

impl fmt::Display for LearnerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "learner: {:.1} updates/s on {} with {} threads (batch {}, {} contracts, {} eligible, {} inputs, hidden {}, {} \
             outputs); {:.1} batches rebuilt/s; {:.1} updates/s with both",
            self.updates_per_second,
            self.device,
            self.threads,
            self.batch,
            self.contracts,
            self.eligible,
            self.inputs,
            self.hidden,
            self.quantiles,
            self.batches_per_second,
            self.whole_updates_per_second
        )
    }
}

/// Times that `work` is done in a second, the device's part of it included.
/// How often a second a learner does some work.
pub fn rate(
    seconds: f64,
    learner: &mut Learner,
    mut work: impl FnMut(&mut Learner) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    for _ in 0..5 {
        work(learner)?;
    }
    learner.wait();
    let started = Instant::now();
    let mut n = 0;
    while started.elapsed().as_secs_f64() < seconds {
        work(learner)?;
        n += 1;
        // No further ahead than a training is, which publishes.
        if n % 8 == 0 {
            learner.wait();
        }
    }
    learner.wait();
    Ok(f64::from(n) / started.elapsed().as_secs_f64())
}

/// Losses of updates on fixed generated data; on two devices they should be alike.
#[derive(Debug, Clone, Serialize)]
pub struct LossesReport {
    pub device: String,
    pub threads: usize,
    /// Of each update: loss of the critic, loss of the actor.
    pub losses: Vec<[f64; 2]>,
}

impl fmt::Display for LossesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "update  critic         actor")?;
        for (i, [critic, actor]) in self.losses.iter().enumerate() {
            writeln!(f, "{:>6}  {critic:<13.8}  {actor:.8}", i + 1)?;
        }
        write!(f, "learner: {} updates on {} with {} threads", self.losses.len(), self.device, self.threads)
    }
}

/// A full pool of an untrained actor's segments, and the trainer on the device that the settings name.
struct Scene {
    days: [DayModel; 1],
    spec: Arc<PolicySpec>,
    device: Device,
    dims: Dims,
}

const PLAN: UpdatePlan = UpdatePlan { rate: 1.0, train_actor: true, read: false };

impl Scene {
    fn new(size: WorldSize, settings: &Settings) -> anyhow::Result<Self> {
        let (day, _) = world::day(size)?;
        let spec = world::spec(&day, settings);
        let days = [day];
        let dims = Dims::of(&days, &spec, settings);
        Ok(Self { days, spec, device: Device::untried(&settings.run.device, 1)?, dims })
    }

    /// A learner with a full pool, and the explorer that filled it.
    fn learner(&self, settings: &Settings) -> anyhow::Result<(Learner<'_>, Explorer<'_>)> {
        let mut explorer = Explorer::new(&self.days, settings, self.spec.clone(), initial_actor(&self.spec, 1), 0, 0);
        let trainer = self.device.trainer(&self.days, &self.spec, settings)?;
        let mut learner = Learner::new(&self.days, self.spec.clone(), settings, trainer);
        while learner.samples() < settings.learner.pool as u64 {
            learner.ingest(explorer.block().segments)?;
        }
        Ok((learner, explorer))
    }
}

/// Makes `updates` updates on batches that depend on the settings alone.
pub fn losses(size: WorldSize, settings: &Settings, updates: usize) -> anyhow::Result<LossesReport> {
    let scene = Scene::new(size, settings)?;
    let (mut learner, _) = scene.learner(settings)?;
    let mut losses = Vec::with_capacity(updates);
    for _ in 0..updates {
        let batch = learner.batch();
        let stats = learner.update_on(&batch, UpdatePlan { read: true, ..PLAN })?;
        losses.extend(stats.map(|stats| [stats.critic_loss, stats.actor_loss]));
    }
    Ok(LossesReport { device: scene.device.to_string(), threads: rayon::current_num_threads(), losses })
}

/// Fills a pool with an untrained actor and updates on it; each of three measurements takes `seconds`.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<LearnerReport> {
    let scene = Scene::new(size, settings)?;
    let (mut learner, mut explorer) = scene.learner(settings)?;
    // As many segments as make a batch, again and again.
    let mut segments: Vec<Segment> = vec![];
    while segments.len() < 8 * scene.dims.segments {
        segments.extend(explorer.block().segments);
    }
    let mut fresh = segments.chunks_exact(scene.dims.segments).map(<[Segment]>::to_vec).cycle();
    let mut fresh = || fresh.next().unwrap_or_default();
    let batches: Vec<_> = (0..8).map(|_| learner.batch()).collect();
    let mut i = 0;
    let updates_per_second = rate(seconds, &mut learner, |learner| {
        i += 1;
        learner.update_on(&batches[i % batches.len()], PLAN).map(|_| ())
    })?;
    let batches_per_second = rate(seconds, &mut learner, |learner| {
        learner.ingest(fresh())?;
        std::hint::black_box(learner.batch());
        Ok(())
    })?;
    let whole_updates_per_second = rate(seconds, &mut learner, |learner| {
        learner.ingest(fresh())?;
        let batch = learner.batch();
        learner.update_on(&batch, PLAN).map(|_| ())
    })?;
    Ok(LearnerReport {
        device: scene.device.to_string(),
        threads: rayon::current_num_threads(),
        batch: settings.learner.batch,
        contracts: scene.dims.contracts,
        eligible: scene.dims.eligible,
        inputs: scene.spec.actor_shape().inputs(),
        hidden: settings.policy.hidden,
        quantiles: scene.dims.outputs,
        updates_per_second,
        batches_per_second,
        whole_updates_per_second,
    })
}
