//! The learner process: drains the rings, updates, publishes, takes snapshots.
//!
//! With `learner.ranks`, or on several nodes, there are several of them, each with a part of the actors, of the pool and of every batch.
//! What they do together is in [`super::together`].

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::env::{BLOCK_FORMAT, Block, Segment};
use crate::nodes::World;
use crate::policy::file::PolicyFile;
use crate::run::segments::{exchange_name, rank_halves_name};
use crate::run::snapshot::Snapshot;
use crate::run::{CannotSave, Context, Metrics, RunDirectory, Segments};
use crate::settings::{Collective, Settings};
use crate::shm::control::STOP_NOW;
use crate::shm::{Distribution, Exchange, Halves, Role};

use super::core::Learner;
use super::device::{self, Device};
use super::peers::Peers;
use super::rings::Rings;
use super::saver::{self, Saver};
use super::trainer::NotFinite;
/// Updates between two records in the metrics.
const RECORD_EVERY: u64 = 32;

pub(super) const NOT_SAVED: &str = "the last snapshot is not on disk; a resumed run goes on from the one before";

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

/// Runs the learner, or rank `rank` of several on its node, until the budget is spent, the policy converged, or the run is stopped.
///
/// # Errors
/// [`NotFinite`] if losses are repeatedly not finite; a rank that is gone ([`crate::shm::Broken`]); any other failure of learning,
/// after which main starts another learner.
pub fn run(directory: &RunDirectory, prefix: &str, rank: usize) -> anyhow::Result<()> {
    let mut context = Context::load(directory)?;
    let world = context.world();
    context.settings = context.settings.of_rank(world.ranks);
    let settings = &context.settings;
    device::set_threads(settings.learner.threads);
    let segments = Segments::open(prefix, 0..settings.actors.count, settings.checkpoint.every_s > 0.0)?;
    let role = Role::learner(rank);
    let slot = &segments.control.processes[role.slot()];
    slot.sign_in(role.kind());
    let days = context.training_days()?;
    let device = Device::of_rank(settings, rank)?;
    let trainer = device.trainer(&days, &context.spec, settings)?;
    let mut learner = Learner::new(&days, context.spec.clone(), settings, trainer).of_rank(world.first + rank);
    learner.start_from(&context.start)?;
    let own = match &segments.halves {
        Some(first) if rank > 0 => {
            let own = Halves::open(&rank_halves_name(prefix, rank))?;
            // The first rank's part makes a snapshot whole: without it, this rank's belongs to one that never came about.
            own.give_up_after(first.complete());
            Some(own)
        }
        _ => None,
    };
    let mut peers = match world.ranks {
        1 => None,
        _ => Some(Peers::join(Exchange::open(&exchange_name(prefix))?, world.first + rank)?),
    };
    if let (Some(peers), Collective::Nccl, Device::Cuda(gpu)) = (&mut peers, settings.learner.collective, device) {
        peers.use_nccl(gpu)?;
    }
    let mut process = LearnerProcess {
        settings,
        directory,
        segments: &segments,
        halves: own.as_ref().or(segments.halves.as_ref()),
        // On the host this costs nothing.
        always_read: device == Device::Cpu,
        metrics: Metrics::open(&directory.metrics())?,
        rings: Rings::open(
            &segments,
            (slot, segments.control.learner_stats(rank)),
            rank == 0,
            settings.actors_of(rank),
        )?,
        peers,
        world,
        rank,
        rollbacks: 0,
    };
    let snapshot = process.newest(&mut learner)?;
    process.start(&mut learner, snapshot)?;
    loop {
        process.learn(&mut learner)?;
        match process.end(&mut learner) {
            Ok(()) => break,
            // Detected only now, because updates are not always read at once.
            Err(e) => process.roll_back(&mut learner, &e.downcast::<NotFinite>()?)?,
        }
    }
    if !process.leads() || segments.control.stop_level() >= STOP_NOW {
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

pub(super) struct LearnerProcess<'a> {
    /// Those of this rank: its part of the batch and of the pool.
    pub settings: &'a Settings,
    pub directory: &'a RunDirectory,
    pub segments: &'a Segments,
    /// Buffer for this rank's part of snapshots.
    pub halves: Option<&'a Halves>,
    always_read: bool,
    metrics: Metrics,
    pub rings: Rings<'a>,
    /// `None` for a learner that learns alone.
    pub peers: Option<Peers>,
    pub world: World,
    /// Number of this rank on its node.
    rank: usize,
    /// Number of rollbacks because a loss was not finite.
    pub rollbacks: u32,
}

impl LearnerProcess<'_> {
    /// Returns the newest snapshot on disk, dealt to as many ranks as there are: for all of them, the one that the first rank finds.
    fn newest(&mut self, learner: &mut Learner) -> anyhow::Result<Option<Snapshot>> {
        let find = |process: &Self| match &process.segments.halves {
            Some(halves) => saver::newest(process.directory, halves, &process.segments.control, process.rings.slot),
            None => Ok(None),
        };
        let found = if self.peers.is_some() { self.newest_of_all(learner, find)? } else { find(self)? };
        Ok(found.map(|snapshot| snapshot.dealt_to(self.world)))
    }

    /// Starts a new training, or resumes from a snapshot.
    fn start(&mut self, learner: &mut Learner, snapshot: Option<Snapshot>) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let stats = self.rings.stats;
        if let Some(snapshot) = &snapshot {
            saver::restore(learner, snapshot, self.rank).context("the run cannot go on from its snapshot")?;
            self.rings.publications = snapshot.state.publications.clone();
            self.rings.explorers = snapshot.explorers_of(self.rank).to_vec();
            self.rollbacks = self.rollbacks.max(snapshot.state.rollbacks);
            if self.rollbacks > snapshot.state.rollbacks {
                learner.draw_differently(self.rollbacks);
            }
            let (snapshot, updates, samples) = (snapshot.number, learner.updates(), snapshot.state.samples);
            if self.rings.is_first {
                self.metrics.append("restored", &Restored { snapshot, updates, samples });
            }
            tracing::info!("goes on from snapshot {snapshot}: {updates} updates, {samples} samples");
        }
        let samples = snapshot.as_ref().map_or(0, |s| s.state.samples);
        stats.samples_consumed.set(if self.rings.is_first { samples } else { learner.samples() });
        stats.updates.set(learner.updates());
        self.rings.saver =
            self.halves.map(|halves| Saver::new(self.segments, halves, self.settings, snapshot.as_ref(), self.rank));
        if self.rings.is_first {
            // The rings' ledgers count what was consumed, also by an earlier learner, whenever it was killed.
            let before = self.rings.saver.as_ref().map_or(0, |saver| saver.ledger_before().consumed);
            let consumed = before + self.segments.rings.iter().map(|ring| ring.ledger().consumed).sum::<u64>();
            stats.rolled_back.set(consumed.saturating_sub(samples));
        }
        let lock_step = self.settings.run.deterministic;
        if !self.rings.is_first {
            learner.publication()?;
        } else if lock_step && snapshot.is_some() {
            self.rings.publish_again(learner)?;
        } else {
            self.rings.publications.skip_to(self.segments.params.version());
            self.rings.publish(learner)?;
        }
        if self.peers.is_some() {
            self.begin_together(learner)?;
        }
        // Also waits for the version that a stopped run did not wait for.
        let evaluator = &control.evaluator;
        let awaited =
            evaluator.progress() == 0 || learner.updates() / self.settings.evaluate.every > evaluator.due.get();
        if lock_step && awaited && self.leads() {
            self.rings.await_evaluation();
        }
        Ok(())
    }

    /// Whether it is the only rank or the first one of all nodes, beside the evaluator.
    pub fn leads(&self) -> bool {
        self.world.first + self.rank == 0
    }

    /// Whether the evaluator sees no improvement any more.
    pub fn converged(&self) -> bool {
        let patience = self.settings.stop.patience;
        patience > 0 && self.segments.control.evaluator.without_improvement.get() >= patience
    }

    /// Learns until the run ends.
    fn learn(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        if self.peers.is_some() {
            return self.learn_together(learner);
        }
        let control = &self.segments.control;
        let lock_step = self.settings.run.deterministic;
        let mut evaluated = control.evaluator.due.get();
        while control.stop_level() == 0 && learner.progress() < 1.0 && !self.converged() {
            if lock_step {
                if !self.rings.take_round(learner)? {
                    break;
                }
            } else if learner.updates_due() == 0 {
                self.rings.take_one(learner)?;
            }
            // A round in lock-step is always completed: a run cannot resume within one.
            while learner.updates_due() > 0 && learner.progress() < 1.0 && (lock_step || control.stop_level() == 0) {
                if let Err(e) = self.update(learner) {
                    self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
                }
            }
            if lock_step {
                self.rings.publish(learner)?;
                let due = learner.updates() / self.settings.evaluate.every;
                if due > evaluated {
                    evaluated = due;
                    self.rings.await_evaluation();
                }
            }
            if let Err(e) = self.rings.save_if_due(learner, self.rollbacks) {
                self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
            }
        }
        Ok(())
    }

    pub fn update(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let stats = self.rings.stats;
        let working = Instant::now();
        let record = (learner.updates() + 1).is_multiple_of(RECORD_EVERY);
        let read = record || self.always_read;
        let (done, waited) = if self.peers.is_some() {
            self.update_together(learner, read)?
        } else {
            (learner.update(read)?, Duration::ZERO)
        };
        stats.compute_ns.add((working.elapsed() - waited).as_nanos() as u64);
        stats.wait_ns.add(waited.as_nanos() as u64);
        stats.updates.set(learner.updates());
        self.rings.slot.beat();
        if let Some(did) = done.filter(|_| record && self.rings.is_first) {
            let record = Record {
                updates: learner.updates(),
                samples: learner.samples_of_all(),
                progress: learner.progress(),
                policy_lag: stats.lag.read(),
                stats: did,
            };
            self.metrics.append("learner", &record);
        }
        if !self.settings.run.deterministic && learner.updates().is_multiple_of(self.settings.learner.publish_every) {
            self.rings.publish(learner)?;
        }
        Ok(())
    }

    /// Stores the last batch before a figure was found not to be finite and restores the newest snapshot, up to a maximum
    /// number of times. On the CPU that batch is the cause; on a GPU, where not every update is read, it may be an earlier one.
    pub fn roll_back(&mut self, learner: &mut Learner, error: &NotFinite) -> anyhow::Result<()> {
        // In lock-step the same would happen again; nodes do not go back by themselves.
        let may = !self.settings.run.deterministic
            && self.world.is_one_node()
            && self.rollbacks < self.settings.watchdog.max_rollbacks;
        if !may || self.halves.is_none() {
            return Err((*error).into());
        }
        self.rollbacks += 1;
        self.rings.stats.rollbacks.add(1);
        let kept = self.keep_batch(learner.updates(), learner.last_batch());
        let kept = kept.unwrap_or_else(|e| format!("nowhere: {e:#}"));
        tracing::warn!(
            "update {}: {error}; the batch is kept in {kept}; going back to the last snapshot",
            learner.updates()
        );
        match self.newest(learner)? {
            Some(snapshot) => self.start(learner, Some(snapshot)),
            // It failed before the first snapshot: there is nothing to keep, and another learner starts from scratch.
            None => Err(anyhow::anyhow!("{error}, and there is no snapshot to go back to")),
        }
    }

    fn keep_batch(&self, updates: u64, segments: Vec<Segment>) -> anyhow::Result<String> {
        let folder = self.directory.incidents();
        std::fs::create_dir_all(&folder)?;
        let rank = if self.rank > 0 { format!("-rank-{}", self.rank) } else { String::new() };
        let path = folder.join(format!("rollback-{}-update-{updates}{rank}.block", self.rollbacks));
        std::fs::write(&path, Block { format: BLOCK_FORMAT, segments, explorer: vec![] }.to_bytes()?)?;
        Ok(path.display().to_string())
    }

    /// Saves and publishes the final state.
    fn end(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        if self.peers.is_some() {
            return self.end_together(learner);
        }
        let control = &self.segments.control;
        if control.stop_level() < STOP_NOW {
            if !self.settings.run.deterministic {
                self.rings.drain(learner, self.settings.actors.regions)?;
            }
            if !self.rings.save_finally(learner, self.rollbacks)? {
                tracing::warn!("{NOT_SAVED}");
            }
        }
        self.rings.publish(learner)
    }
}
