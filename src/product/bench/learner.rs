//! Updates per second of the learner, with the trainer that `train` runs.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::actor::Explorer;
use crate::learner::trainer::UpdatePlan;
use crate::learner::{Device, Dims, Learner};
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

/// Fills a pool with an untrained actor and updates on it; each of three measurements takes `seconds`.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<LearnerReport> {
    let (day, _) = world::day(size)?;
    let spec = Arc::new(PolicySpec {
        score_mode: settings.score_mode,
        policy: settings.policy.clone(),
        vocabulary: (*day.vocabulary).clone(),
    });
    let days = [day];
    let device = Device::resolve(&settings.run.device)?;
    let dims = Dims::of(&days, &spec, settings);
    let mut explorer = Explorer::new(&days, settings, spec.clone(), spec.initial_actor(1), 0, 0);
    let mut learner = Learner::new(&days, spec.clone(), settings, device.trainer(&days, &spec, settings));
    while learner.samples() < settings.learner.pool as u64 {
        learner.ingest(explorer.block().segments)?;
    }
    let batches: Vec<_> = (0..8).map(|_| learner.batch()).collect();
    let mut trainer = device.trainer(&days, &spec, settings);
    let plan = UpdatePlan { rate: 1.0, train_actor: true, read_norms: false };
    let mut i = 0;
    let updates_per_second = rate(seconds, || {
        i += 1;
        trainer.update(&batches[i % batches.len()], plan).map(|_| ())
    })?;
    let batches_per_second = rate(seconds, || {
        std::hint::black_box(learner.batch());
        Ok(())
    })?;
    let whole_updates_per_second = rate(seconds, || {
        let batch = learner.batch();
        trainer.update(&batch, plan).map(|_| ())
    })?;
    Ok(LearnerReport {
        device: device.to_string(),
        threads: rayon::current_num_threads(),
        batch: settings.learner.batch,
        contracts: dims.contracts,
        eligible: dims.eligible,
        inputs: spec.actor_shape().inputs(),
        hidden: settings.policy.hidden,
        quantiles: dims.outputs,
        updates_per_second,
        batches_per_second,
        whole_updates_per_second,
    })
}
