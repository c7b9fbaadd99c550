//! The learner process: drains the rings, updates, publishes, takes snapshots.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::env::{BLOCK_FORMAT, Block, Segment};
use crate::policy::file::PolicyFile;
use crate::run::snapshot::{Publications, Snapshot};
use crate::run::{CannotSave, Context, Metrics, RunDirectory, Segments, flight, pack};
use crate::settings::Settings;
use crate::shm::control::STOP_NOW;
use crate::shm::{Distribution, RingReader, Role, ShmError};

use super::core::Learner;
use super::device::{self, Device};
use super::saver::{self, Saver, Surroundings};
use super::trainer::NotFinite;

const NAP: Duration = Duration::from_millis(50);
/// Updates between two records in the metrics.
const RECORD_EVERY: u64 = 32;

/// One record of the learner in `metrics.jsonl`.
#[derive(Serialize)]
pub struct Record {
    pub updates: u64,
    pub samples: u64,
    pub progress: f64,
    /// Policy lag of all blocks taken in so far, updates.
    pub policy_lag: Distribution,
    #[serde(flatten)]
    pub stats: super::UpdateStats,
}

/// A record of a learner that starts from a snapshot.
#[derive(Serialize)]
struct Restored {
    snapshot: u64,
    updates: u64,
    samples: u64,
}

/// Runs the learner until the budget is spent, the policy converged, or the run is stopped.
///
/// # Errors
/// [`NotFinite`] if losses are repeatedly not finite; any other failure of learning, after which main starts another learner.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let context = Context::load(directory)?;
    let settings = &context.settings;
    device::set_threads(settings.learner.threads);
    let segments = Segments::open(prefix, 0..settings.actors.count, settings.checkpoint.every_s > 0.0)?;
    segments.control.processes[Role::Learner.slot()].sign_in(Role::Learner.kind());
    let days = context.training_days()?;
    let device = Device::of(settings)?;
    let trainer = device.trainer(&days, &context.spec, settings)?;
    let mut learner = Learner::new(&days, context.spec.clone(), settings, trainer);
    learner.start_from(&context.start)?;
    let readers = segments.rings.iter().map(crate::shm::SampleRing::reader).collect::<Result<_, _>>()?;
    let mut process = LearnerProcess {
        settings,
        directory,
        segments: &segments,
        // On the host this costs nothing.
        always_read: device == Device::Cpu,
        metrics: Metrics::open(&directory.metrics())?,
        exchange: Exchange {
            segments: &segments,
            readers,
            next: 0,
            publications: Publications::default(),
            saver: None,
            explorers: vec![],
        },
        rollbacks: 0,
    };
    let snapshot = match &segments.halves {
        Some(halves) => saver::newest(directory, halves, &segments.control)?,
        None => None,
    };
    process.start(&mut learner, snapshot)?;
    loop {
        process.learn(&mut learner)?;
        match process.end(&mut learner) {
            Ok(()) => break,
            // Detected only now, because updates are not always read at once.
            Err(e) => process.roll_back(&mut learner, &e.downcast::<NotFinite>()?)?,
        }
    }
    if segments.control.stop_level() >= STOP_NOW {
        // No snapshot was taken of these parameters: the run goes on from an earlier one, or from its beginning.
        return Ok(());
    }
    let publication = learner.publication()?;
    PolicyFile {
        spec: context.spec.clone(),
        plan: context.plan.clone(),
        actor: publication.averaged,
        updates: publication.updates,
    }
    .write(&directory.last())
    .map_err(|e| CannotSave(e).into())
}

struct LearnerProcess<'a> {
    settings: &'a Settings,
    directory: &'a RunDirectory,
    segments: &'a Segments,
    always_read: bool,
    metrics: Metrics,
    exchange: Exchange<'a>,
    /// Number of rollbacks because a loss was not finite.
    rollbacks: u32,
}

impl LearnerProcess<'_> {
    /// Starts a new training, or resumes from a snapshot.
    fn start(&mut self, learner: &mut Learner, snapshot: Option<Snapshot>) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let stats = &control.learner;
        if let Some(snapshot) = &snapshot {
            saver::restore(learner, snapshot).context("the run cannot go on from its snapshot")?;
            self.exchange.publications = snapshot.state.publications.clone();
            self.exchange.explorers = snapshot.state.explorers.clone();
            self.rollbacks = self.rollbacks.max(snapshot.state.rollbacks);
            if self.rollbacks > snapshot.state.rollbacks {
                learner.draw_differently(self.rollbacks);
            }
            let (snapshot, updates, samples) = (snapshot.number, learner.updates(), learner.samples());
            self.metrics.append("restored", &Restored { snapshot, updates, samples });
            tracing::info!("goes on from snapshot {snapshot}: {updates} updates, {samples} samples");
        }
        stats.samples_consumed.set(learner.samples());
        stats.updates.set(learner.updates());
        self.exchange.saver = self
            .segments
            .halves
            .as_ref()
            .map(|halves| Saver::new(self.segments, halves, self.settings, snapshot.as_ref()));
        // The rings' ledgers count what was consumed, also by an earlier learner, whenever it was killed.
        let before = self.exchange.saver.as_ref().map_or(0, |saver| saver.ledger_before().consumed);
        let consumed = before + self.segments.rings.iter().map(|ring| ring.ledger().consumed).sum::<u64>();
        stats.rolled_back.set(consumed.saturating_sub(learner.samples()));
        let lock_step = self.settings.run.deterministic;
        if lock_step && snapshot.is_some() {
            self.exchange.publish_again(learner)?;
        } else {
            self.exchange.publications.skip_to(self.segments.params.version());
            self.exchange.publish(learner)?;
        }
        // Also waits for the version that a stopped run did not wait for.
        let evaluator = &control.evaluator;
        let awaited =
            evaluator.progress() == 0 || learner.updates() / self.settings.evaluate.every > evaluator.due.get();
        if lock_step && awaited {
            self.exchange.await_evaluation();
        }
        Ok(())
    }

    /// Learns until the run ends.
    fn learn(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let lock_step = self.settings.run.deterministic;
        let converged = || {
            let patience = self.settings.stop.patience;
            patience > 0 && control.evaluator.without_improvement.get() >= patience
        };
        let mut evaluated = control.evaluator.due.get();
        while control.stop_level() == 0 && learner.progress() < 1.0 && !converged() {
            if lock_step {
                if !self.exchange.take_round(learner)? {
                    break;
                }
            } else if learner.updates_due() == 0 {
                self.exchange.take_one(learner)?;
            }
            // A round in lock-step is always completed: a run cannot resume within one.
            while learner.updates_due() > 0 && learner.progress() < 1.0 && (lock_step || control.stop_level() == 0) {
                if let Err(e) = self.update(learner) {
                    self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
                }
            }
            if lock_step {
                self.exchange.publish(learner)?;
                let due = learner.updates() / self.settings.evaluate.every;
                if due > evaluated {
                    evaluated = due;
                    self.exchange.await_evaluation();
                }
            }
            if let Err(e) = self.exchange.save_if_due(learner, self.rollbacks) {
                self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
            }
        }
        Ok(())
    }

    fn update(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let stats = &self.segments.control.learner;
        let working = Instant::now();
        let record = (learner.updates() + 1).is_multiple_of(RECORD_EVERY);
        let done = learner.update(record || self.always_read)?;
        stats.compute_ns.add(working.elapsed().as_nanos() as u64);
        stats.updates.set(learner.updates());
        self.segments.control.processes[Role::Learner.slot()].beat();
        if let Some(did) = done.filter(|_| record) {
            let record = Record {
                updates: learner.updates(),
                samples: learner.samples(),
                progress: learner.progress(),
                policy_lag: stats.lag.read(),
                stats: did,
            };
            self.metrics.append("learner", &record);
        }
        if !self.settings.run.deterministic && learner.updates().is_multiple_of(self.settings.learner.publish_every) {
            self.exchange.publish(learner)?;
        }
        Ok(())
    }

    /// Stores the last batch before a figure was found not to be finite and restores the newest snapshot, up to a maximum
    /// number of times. On the CPU that batch is the cause; on a GPU, where not every update is read, it may be an earlier one.
    fn roll_back(&mut self, learner: &mut Learner, error: &NotFinite) -> anyhow::Result<()> {
        // In lock-step the same would happen again.
        let may = !self.settings.run.deterministic && self.rollbacks < self.settings.watchdog.max_rollbacks;
        let Some(halves) = self.segments.halves.as_ref().filter(|_| may) else {
            return Err((*error).into());
        };
        self.rollbacks += 1;
        self.segments.control.learner.rollbacks.add(1);
        let kept = self.keep_batch(learner.updates(), learner.last_batch());
        let kept = kept.unwrap_or_else(|e| format!("nowhere: {e:#}"));
        tracing::warn!(
            "update {}: {error}; the batch is kept in {kept}; going back to the last snapshot",
            learner.updates()
        );
        match saver::newest(self.directory, halves, &self.segments.control)? {
            Some(snapshot) => self.start(learner, Some(snapshot)),
            // It failed before the first snapshot: there is nothing to keep, and another learner starts from scratch.
            None => Err(anyhow::anyhow!("{error}, and there is no snapshot to go back to")),
        }
    }

    fn keep_batch(&self, updates: u64, segments: Vec<Segment>) -> anyhow::Result<String> {
        let folder = self.directory.incidents();
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("rollback-{}-update-{updates}.block", self.rollbacks));
        std::fs::write(&path, Block { format: BLOCK_FORMAT, segments, explorer: vec![] }.to_bytes()?)?;
        Ok(path.display().to_string())
    }

    /// Saves and publishes the final state.
    fn end(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        if control.stop_level() < STOP_NOW {
            if !self.settings.run.deterministic {
                self.exchange.drain(learner, self.settings.actors.regions)?;
            }
            if !self.exchange.save_finally(learner, self.rollbacks)? {
                tracing::warn!("the last snapshot is not on disk; a resumed run goes on from the one before");
            }
        }
        self.exchange.publish(learner)
    }
}

/// The shared-memory side of the learner.
struct Exchange<'a> {
    segments: &'a Segments,
    readers: Vec<RingReader>,
    next: usize,
    publications: Publications,
    /// `None` if no snapshots are taken.
    saver: Option<Saver<'a>>,
    /// In lock-step, each actor's state after its last block.
    explorers: Vec<Vec<u8>>,
}

/// Reason why a block could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Damaged in shared memory; its region is free again.
    #[error(transparent)]
    Torn(ShmError),
    /// Whole, but not a block of this program.
    #[error("{0:#}")]
    Malformed(anyhow::Error),
}

/// A block taken from a ring.
pub struct Taken {
    pub block: Block,
    /// Serialised form; empty unless requested.
    pub bytes: Vec<u8>,
    /// Version of the parameters that played it.
    pub version: u64,
}

/// Takes the oldest block from a ring; `None` if there is none.
pub fn take_block(reader: &mut RingReader, with_bytes: bool) -> Result<Option<Taken>, TakeError> {
    let Some(guard) = reader.take().map_err(TakeError::Torn)? else { return Ok(None) };
    let block = Block::decode(guard.payload()).context("a block of samples cannot be read");
    let bytes = if with_bytes { guard.payload().to_vec() } else { vec![] };
    let version = guard.info().param_version;
    guard.release();
    Ok(Some(Taken { block: block.map_err(TakeError::Malformed)?, bytes, version }))
}

impl Exchange<'_> {
    /// Publishes both actors.
    fn publish(&mut self, learner: &Learner) -> anyhow::Result<()> {
        self.publications.push(learner.updates());
        self.publish_again(learner)
    }

    /// Publishes both actors again as the newest version, which readers of this shared memory have not seen.
    fn publish_again(&mut self, learner: &Learner) -> anyhow::Result<()> {
        let stats = &self.segments.control.learner;
        let working = Instant::now();
        learner.wait();
        stats.compute_ns.add(working.elapsed().as_nanos() as u64);
        let copying = Instant::now();
        let publication = learner.publication()?;
        let version = self.publications.version();
        let words = pack(publication.updates, &publication.raw, &publication.averaged);
        self.segments.params.publish(version, &words, &self.segments.control.params)?;
        stats.param_version.set(version);
        flight::published(version, publication.updates);
        stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn save_if_due(&mut self, learner: &Learner, rollbacks: u32) -> anyhow::Result<()> {
        let around = Surroundings { publications: &self.publications, explorers: &self.explorers, rollbacks };
        self.saver.as_mut().map_or(Ok(()), |saver| saver.save_if_due(learner, around))
    }

    /// Takes the last snapshot; returns false if it is not on disk although snapshots are taken.
    fn save_finally(&mut self, learner: &Learner, rollbacks: u32) -> anyhow::Result<bool> {
        let around = Surroundings { publications: &self.publications, explorers: &self.explorers, rollbacks };
        self.saver.as_mut().map_or(Ok(true), |saver| saver.save_finally(learner, around))
    }

    /// Takes the blocks that are readable now.
    fn drain(&mut self, learner: &mut Learner, regions: usize) -> anyhow::Result<()> {
        for ring in 0..self.readers.len() {
            for _ in 0..regions {
                self.take_from(ring, learner)?;
            }
        }
        Ok(())
    }

    /// Takes one readable block, from the rings in rotation, or waits a little.
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
        flight::waiting("samples");
        control.learner.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        control.processes[Role::Learner.slot()].beat();
        Ok(())
    }

    /// Takes exactly one block of every actor, in order; returns false if the run was stopped before all were there.
    fn take_round(&mut self, learner: &mut Learner) -> anyhow::Result<bool> {
        let control = &self.segments.control;
        // All or none: a run cannot resume within a round.
        let waiting = Instant::now();
        loop {
            let seen = control.data.value();
            if self.segments.rings.iter().all(|ring| ring.ledger().unread > 0) {
                break;
            }
            if control.stop_level() > 0 {
                return Ok(false);
            }
            control.data.wait(seen, NAP);
            control.processes[Role::Learner.slot()].beat();
        }
        control.learner.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        for ring in 0..self.readers.len() {
            anyhow::ensure!(self.take_from(ring, learner)?, "the block of actor {ring} was damaged");
        }
        Ok(true)
    }

    fn take_from(&mut self, ring: usize, learner: &mut Learner) -> anyhow::Result<bool> {
        let copying = Instant::now();
        let Taken { block, bytes, version } = match take_block(&mut self.readers[ring], self.saver.is_some()) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Ok(false),
            Err(TakeError::Torn(e)) => {
                // The ring counts it in the ledger; the samples are lost, and the run continues.
                tracing::error!("actor {ring}: {e}");
                return Ok(false);
            }
            Err(e @ TakeError::Malformed(_)) => return Err(e.into()),
        };
        let stats = &self.segments.control.learner;
        let behind = self.publications.updates_at(version);
        stats.lag.record(learner.updates() - behind.min(learner.updates()));
        let samples = block.samples() as u32;
        if !block.explorer.is_empty() {
            self.explorers.resize(self.readers.len(), vec![]);
            self.explorers[ring] = block.explorer;
        }
        learner.ingest(block.segments)?;
        if let Some(saver) = &mut self.saver {
            saver.note(samples, bytes)?;
        }
        stats.samples_consumed.set(learner.samples());
        stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
        Ok(true)
    }

    /// Waits until the evaluator has evaluated everything published.
    fn await_evaluation(&self) {
        let control = &self.segments.control;
        let version = self.publications.version();
        while control.evaluator.progress() < version && control.stop_level() == 0 {
            let seen = control.progress.value();
            if control.evaluator.progress() >= version {
                break;
            }
            control.progress.wait(seen, NAP);
            flight::waiting("the evaluator");
            control.processes[Role::Learner.slot()].beat();
        }
    }
}
