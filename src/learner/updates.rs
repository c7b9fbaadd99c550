//! Starts or resumes a learner, makes its updates, and goes back to a snapshot if a loss, the norm of a gradient or
//! a weight is not finite ([`NotFinite`]): alone, or with other ranks.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::env::{BLOCK_FORMAT, Block, Segment};
use crate::run::snapshot::Snapshot;
use crate::shm::Distribution;

use super::core::Learner;
use super::member::LearnerProcess;
use super::saver::{self, Saver};
use super::trainer::{NotFinite, UpdateStats};

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
    pub stats: UpdateStats,
}

/// A record of a learner that starts from a snapshot.
#[derive(Serialize)]
struct Restored {
    snapshot: u64,
    updates: u64,
    samples: u64,
}

impl LearnerProcess<'_> {
    /// Returns the newest snapshot on disk, dealt to as many ranks as there are: for all of them, the one that the first rank finds.
    pub fn newest(&mut self, learner: &mut Learner) -> anyhow::Result<Option<Snapshot>> {
        let find = |process: &Self| match &process.segments.halves {
            Some(halves) => saver::newest(process.directory, halves, &process.segments.control, process.rings.slot),
            None => Ok(None),
        };
        let found = if self.peers.is_some() { self.newest_of_all(learner, find)? } else { find(self)? };
        Ok(found.map(|snapshot| snapshot.dealt_to(self.world)))
    }

    /// Starts a new training, or resumes from a snapshot.
    pub fn start(&mut self, learner: &mut Learner, snapshot: Option<Snapshot>) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let stats = self.rings.stats;
        if let Some(snapshot) = &snapshot {
            let restored = saver::restore(learner, snapshot, self.rank, self.rings.slot);
            restored.context("the run cannot go on from its snapshot")?;
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
}
