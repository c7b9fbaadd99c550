//! Updates per second of the learner, with the trainer that `train` runs.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::actor::Explorer;
use crate::env::DayModel;
use crate::learner::trainer::UpdatePlan;
use crate::learner::{Device, Dims, Learner, Train};
use crate::policy::PolicySpec;
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
    /// Updates on prepared batches, what a library's training step is to be compared with.
    pub updates_per_second: f64,
    /// Batches rebuilt from compact segments per second.
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

fn rate(seconds: f64, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    for _ in 0..5 {
        work()?;
    }
    let started = Instant::now();
    let mut n = 0;
    while started.elapsed().as_secs_f64() < seconds {
        work()?;
        n += 1;
    }
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

const PLAN: UpdatePlan = UpdatePlan { rate: 1.0, train_actor: true, read_norms: false };

impl Scene {
    fn new(size: WorldSize, settings: &Settings) -> anyhow::Result<Self> {
        let (day, _) = world::day(size)?;
        let spec = world::spec(&day, settings);
        let days = [day];
        let dims = Dims::of(&days, &spec, settings);
        Ok(Self { days, spec, device: Device::resolve(&settings.run.device)?, dims })
    }

    fn trainer(&self, settings: &Settings) -> Box<dyn Train> {
        self.device.trainer(&self.days, &self.spec, settings)
    }

    fn learner(&self, settings: &Settings) -> anyhow::Result<Learner<'_>> {
        let mut explorer = Explorer::new(&self.days, settings, self.spec.clone(), self.spec.initial_actor(1), 0, 0);
        let mut learner = Learner::new(&self.days, self.spec.clone(), settings, self.trainer(settings));
        while learner.samples() < settings.learner.pool as u64 {
            learner.ingest(explorer.block().segments)?;
        }
        Ok(learner)
    }
}

/// Makes `updates` updates on batches that depend on the settings alone.
pub fn losses(size: WorldSize, settings: &Settings, updates: usize) -> anyhow::Result<LossesReport> {
    let scene = Scene::new(size, settings)?;
    let (mut learner, mut trainer) = (scene.learner(settings)?, scene.trainer(settings));
    let losses = (0..updates)
        .map(|_| trainer.update(&learner.batch(), PLAN).map(|stats| [stats.critic_loss, stats.actor_loss]))
        .collect::<anyhow::Result<_>>()?;
    Ok(LossesReport { device: scene.device.to_string(), threads: rayon::current_num_threads(), losses })
}

/// Fills a pool with an untrained actor and updates on it; each of three measurements takes `seconds`.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<LearnerReport> {
    let scene = Scene::new(size, settings)?;
    let (mut learner, mut trainer) = (scene.learner(settings)?, scene.trainer(settings));
    let batches: Vec<_> = (0..8).map(|_| learner.batch()).collect();
    let mut i = 0;
    let updates_per_second = rate(seconds, || {
        i += 1;
        trainer.update(&batches[i % batches.len()], PLAN).map(|_| ())
    })?;
    let batches_per_second = rate(seconds, || {
        std::hint::black_box(learner.batch());
        Ok(())
    })?;
    let whole_updates_per_second = rate(seconds, || {
        let batch = learner.batch();
        trainer.update(&batch, PLAN).map(|_| ())
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
