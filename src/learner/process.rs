//! The learner process: drains the rings, updates, publishes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::env::Block;
use crate::policy::file::PolicyFile;
use crate::run::{Context, Metrics, RunDirectory, Segments, pack};
use crate::shm::control::MAX_PROCESSES;
use crate::shm::{Distribution, ProcessKind, RingReader};

use super::core::Learner;
use super::device::{self, Device};

const NAP: Duration = Duration::from_millis(50);
/// Updates between two records in the metrics.
const RECORD_EVERY: u64 = 32;
/// Where the learner signs in.
pub const SLOT: usize = MAX_PROCESSES - 1;

/// One record of the learner in `metrics.jsonl`.
#[derive(Serialize)]
pub struct Record {
    pub updates: u64,
    pub samples: u64,
    pub progress: f64,
    /// Of all blocks taken in so far, in updates.
    pub policy_lag: Distribution,
    #[serde(flatten)]
    pub stats: super::UpdateStats,
}

/// The shared-memory side of the learner.
struct Exchange<'a> {
    segments: &'a Segments,
    readers: Vec<RingReader>,
    next: usize,
    /// Updates at each publication, by version; version 0 is none.
    published: Vec<u64>,
}

/// Runs the learner until the budget is spent, the policy converged, or the run is stopped.
///
/// # Errors
/// Anything that keeps it from learning; the run ends then.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let context = Context::load(directory)?;
    let settings = &context.settings;
    device::set_threads(settings.learner.threads);
    let days = context.training_days()?;
    let segments = Segments::open(prefix, 0..settings.actors.count)?;
    let control = &segments.control;
    let slot = &control.processes[SLOT];
    slot.sign_in(ProcessKind::Learner);
    let trainer = Device::resolve(&settings.run.device)?.trainer(&days, &context.spec, settings);
    let mut learner = Learner::new(&days, context.spec.clone(), settings, trainer);
    let readers = segments.rings.iter().map(crate::shm::SampleRing::reader).collect::<Result<_, _>>()?;
    let mut exchange = Exchange { segments: &segments, readers, next: 0, published: vec![0] };
    let mut metrics = Metrics::open(&directory.metrics())?;
    exchange.publish(&learner)?;
    if settings.run.deterministic {
        exchange.await_evaluation();
    }
    let mut evaluated = 0;
    while control.stop_level() == 0 && learner.progress() < 1.0 && !converged(&segments, settings.stop.patience) {
        if settings.run.deterministic {
            exchange.take_round(&mut learner)?;
        } else if learner.updates_due() == 0 {
            exchange.take_one(&mut learner)?;
        }
        while learner.updates_due() > 0 && learner.progress() < 1.0 && control.stop_level() == 0 {
            let working = Instant::now();
            let record = (learner.updates() + 1).is_multiple_of(RECORD_EVERY);
            let stats = learner.update(record)?;
            control.learner.compute_ns.add(working.elapsed().as_nanos() as u64);
            control.learner.updates.set(learner.updates());
            slot.beat();
            if record {
                let record = Record {
                    updates: learner.updates(),
                    samples: learner.samples(),
                    progress: learner.progress(),
                    policy_lag: control.learner.lag.read(),
                    stats,
                };
                metrics.append("learner", &record);
            }
            if !settings.run.deterministic && learner.updates().is_multiple_of(settings.learner.publish_every) {
                exchange.publish(&learner)?;
            }
        }
        if settings.run.deterministic && control.stop_level() == 0 {
            exchange.publish(&learner)?;
            let due = learner.updates() / settings.evaluate.every;
            if due > evaluated {
                evaluated = due;
                exchange.await_evaluation();
            }
        }
    }
    exchange.publish(&learner)?;
    let publication = learner.publication();
    PolicyFile {
        spec: context.spec.clone(),
        plan: context.plan.clone(),
        actor: publication.averaged,
        updates: publication.updates,
    }
    .write(&directory.last())
}

fn converged(segments: &Segments, patience: u64) -> bool {
    patience > 0 && segments.control.evaluator.without_improvement.get() >= patience
}

impl Exchange<'_> {
    /// Publishes both actors.
    fn publish(&mut self, learner: &Learner) -> anyhow::Result<()> {
        let publication = learner.publication();
        let version = self.published.len() as u64;
        let words = pack(publication.updates, &publication.raw, &publication.averaged);
        self.segments.params.publish(version, &words, &self.segments.control.params)?;
        self.segments.control.learner.param_version.set(version);
        self.published.push(publication.updates);
        Ok(())
    }

    /// Takes one readable block from the rings in turn, or waits a little.
    fn take_one(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let waiting = Instant::now();
        let seen = control.data.value();
        for _ in 0..self.readers.len() {
            let ring = self.next;
            self.next = (ring + 1) % self.readers.len();
            if self.take_from(ring, learner)? {
                return Ok(());
            }
        }
        control.data.wait(seen, NAP);
        control.learner.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        control.processes[SLOT].beat();
        Ok(())
    }

    /// Takes exactly one block of every actor, in order.
    fn take_round(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        for ring in 0..self.readers.len() {
            let waiting = Instant::now();
            loop {
                let seen = control.data.value();
                if self.take_from(ring, learner)? || control.stop_level() > 0 {
                    break;
                }
                control.data.wait(seen, NAP);
                control.processes[SLOT].beat();
            }
            control.learner.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    fn take_from(&mut self, ring: usize, learner: &mut Learner) -> anyhow::Result<bool> {
        let block = match self.readers[ring].take() {
            Ok(Some(guard)) => {
                let block = Block::decode(guard.payload()).context("a block of samples cannot be read");
                let version = guard.info().param_version;
                guard.release();
                block.map(|block| (block, version))?
            }
            Ok(None) => return Ok(false),
            Err(e) => {
                // Counted in the ledger by the ring; the samples are lost, the run is not.
                tracing::error!("actor {ring}: {e}");
                return Ok(false);
            }
        };
        let (block, version) = block;
        let stats = &self.segments.control.learner;
        let behind = self.published.get(version as usize).copied().unwrap_or(0);
        let lag = learner.updates() - behind.min(learner.updates());
        stats.lag.record(lag);
        learner.ingest(block.segments)?;
        stats.samples_consumed.set(learner.samples());
        Ok(true)
    }

    /// Waits until the evaluator is done with everything published.
    fn await_evaluation(&self) {
        let control = &self.segments.control;
        let version = self.published.len() as u64 - 1;
        while control.evaluator.progress() < version && control.stop_level() == 0 {
            let seen = control.progress.value();
            if control.evaluator.progress() >= version {
                break;
            }
            control.progress.wait(seen, NAP);
            control.processes[SLOT].beat();
        }
    }
}
