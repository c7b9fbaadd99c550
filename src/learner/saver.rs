//! The learner's side of snapshots: writing them to shared memory, and restoring a new learner.
//!
//! A snapshot costs the learner one pass over the networks and a copy of the blocks since the last one. Until the
//! last one is on disk, the next one is postponed, but no update.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::awake::Deadline;
use crate::env::Block;
use crate::policy::TrainerState;
use crate::run::alive::while_alive;
use crate::run::snapshot::{self, EvaluatorState, PoolBlock, PoolBlocks, Publications, RankState, RunState, Snapshot};
use crate::run::{RunDirectory, Segments};
use crate::settings::Settings;
use crate::shm::control::{LearnerStats, ProcessSlot, STOP_NOW};
use crate::shm::{ControlBlock, Halves, Ledger, Part, Role, SampleRing, ShmError};

use super::core::{Learner, LearnerState};

const NAP: Duration = Duration::from_millis(20);
/// Maximum time for the checkpointer to write a snapshot that is waited for: long, because it may be starved on a busy machine;
/// a user who stops a run waits no longer than `watchdog.grace_s`.
const COMMIT: Duration = Duration::from_secs(60);

/// Takes snapshots of a learner.
pub struct Saver<'a> {
    segments: &'a Segments,
    halves: &'a Halves,
    every: Duration,
    last: Instant,
    /// Blocks since the last snapshot.
    journal: PoolBlocks,
    /// Number of blocks that the learner took in.
    blocks: u64,
    ledger_before: Ledger,
    incomplete: bool,
    slot: &'a ProcessSlot,
    stats: &'a LearnerStats,
}

/// Parts of a snapshot besides the learner.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub publications: &'a Publications,
    /// In lock-step, each actor's state after its last block.
    pub explorers: &'a [Vec<u8>],
    pub rollbacks: u32,
}

impl<'a> Saver<'a> {
    /// Creates the saver of a rank that continues after `from`, if the learner does.
    pub fn new(
        segments: &'a Segments,
        halves: &'a Halves,
        settings: &Settings,
        from: Option<&Snapshot>,
        rank: usize,
    ) -> Self {
        Self {
            segments,
            halves,
            every: Duration::from_secs_f64(settings.checkpoint.every_s),
            last: Instant::now(),
            journal: PoolBlocks::new(settings.learner.pool),
            blocks: from.map_or(0, |s| s.blocks_of(rank)),
            ledger_before: from.map_or(Ledger::default(), |s| {
                let resumed = segments.control.resumed_from.get() == s.number;
                if resumed { s.state.ledger_so_far() } else { s.state.ledger_before }
            }),
            incomplete: false,
            slot: &segments.control.processes[Role::learner(rank).slot()],
            stats: segments.control.learner_stats(rank),
        }
    }

    /// Whether `checkpoint.every_s` is over.
    pub fn is_due(&self) -> bool {
        self.last.elapsed() >= self.every
    }

    /// Returns the number of the snapshot that may be begun now.
    pub fn next(&self) -> Option<u64> {
        self.halves.next()
    }

    /// Returns the ledger of the earlier processes of this run.
    pub fn ledger_before(&self) -> Ledger {
        self.ledger_before
    }

    /// Records a block that the learner took in.
    pub fn note(&mut self, samples: u32, bytes: Vec<u8>) -> anyhow::Result<()> {
        self.journal.extend(vec![PoolBlock { index: self.blocks, samples, bytes }])?;
        self.blocks += 1;
        Ok(())
    }

    /// Takes a snapshot if one is due and may begin.
    ///
    /// # Errors
    /// [`super::NotFinite`], because such networks must not be kept.
    pub fn save_if_due(&mut self, learner: &Learner, around: Surroundings<'_>) -> anyhow::Result<()> {
        if !self.is_due() {
            return Ok(());
        }
        match self.halves.next() {
            Some(number) => self.save(number, learner, around),
            None => Ok(()),
        }
    }

    /// Takes a snapshot now and waits until it is on disk; returns whether it is.
    pub fn save_finally(&mut self, learner: &Learner, around: Surroundings<'_>) -> anyhow::Result<bool> {
        let Some(number) = self.wait_for(|halves| halves.next()) else { return Ok(false) };
        self.save(number, learner, around)?;
        Ok(self.wait_until_on_disk(number))
    }

    /// Waits until a snapshot may be begun; returns whether it may.
    pub fn wait_for_room(&self) -> bool {
        self.wait_for(|halves| halves.next()).is_some()
    }

    /// Waits until snapshot `number` is on disk; returns whether it is.
    pub fn wait_until_on_disk(&self, number: u64) -> bool {
        self.wait_for(|halves| (halves.committed() >= number).then_some(())).is_some()
    }

    fn save(&mut self, number: u64, learner: &Learner, around: Surroundings<'_>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let state = self.state(learner, around)?;
        self.write(number, &state)?;
        self.stats.snapshot_ns.add(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// Returns the state of the run, for the part of the only or first rank.
    ///
    /// # Errors
    /// [`super::NotFinite`].
    pub fn state(&self, learner: &Learner, around: Surroundings<'_>) -> anyhow::Result<RunState> {
        let LearnerState { updates, elapsed_s, trainer, rng, .. } = learner.state();
        check_finite(&trainer)?;
        let control = &self.segments.control;
        Ok(RunState {
            format: RunState::FORMAT,
            updates,
            samples: learner.samples_of_node(),
            blocks: self.blocks,
            elapsed_s,
            rollbacks: around.rollbacks,
            rolled_back: control.learner.rolled_back.get(),
            trainer,
            rng,
            publications: around.publications.clone(),
            evaluator: evaluator_state(control),
            ledger: Ledger::sum(self.segments.rings.iter().map(SampleRing::ledger)),
            ledger_before: self.ledger_before,
            explorers: around.explorers.to_vec(),
        })
    }

    /// Puts the part of the only or first rank into its half.
    pub fn write(&mut self, number: u64, state: &RunState) -> anyhow::Result<()> {
        self.write_parts(number, state.updates, &state.encode()?)
    }

    /// Puts the part of another rank into its half.
    ///
    /// # Errors
    /// [`super::NotFinite`].
    pub fn save_part(&mut self, number: u64, learner: &Learner, explorers: &[Vec<u8>]) -> anyhow::Result<()> {
        let begun = Instant::now();
        let LearnerState { updates, samples, trainer, rng, .. } = learner.state();
        check_finite(&trainer)?;
        let explorers = explorers.to_vec();
        let state = RankState { format: RankState::FORMAT, updates, samples, blocks: self.blocks, rng, explorers };
        self.write_parts(number, updates, &state.encode()?)?;
        self.stats.snapshot_ns.add(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn write_parts(&mut self, number: u64, updates: u64, state: &[u8]) -> anyhow::Result<()> {
        self.halves.write(Part::Dense, number, updates, [state])?;
        loop {
            let heads: Vec<[u8; 16]> = self.journal.iter().map(PoolBlock::head).collect();
            let pieces = heads.iter().zip(self.journal.iter()).flat_map(|(head, block)| [&head[..], &block.bytes]);
            match self.halves.write(Part::Sparse, number, updates, pieces) {
                Err(ShmError::SnapshotTooLarge { .. }) if self.journal.forget_oldest() => {
                    if !std::mem::replace(&mut self.incomplete, true) {
                        tracing::warn!(
                            "the replay pool does not fit into a snapshot: a run that goes on from one starts with \
                             the newest part of it"
                        );
                    }
                }
                written => break written?,
            }
        }
        self.journal.clear();
        self.last = Instant::now();
        Ok(())
    }

    fn wait_for<T>(&self, done: impl Fn(&Halves) -> Option<T>) -> Option<T> {
        let mut deadline = Deadline::after(COMMIT);
        loop {
            let seen = self.halves.news().value();
            if let Some(value) = done(self.halves) {
                return Some(value);
            }
            if deadline.is_over() || self.segments.control.stop_level() >= STOP_NOW {
                return None;
            }
            self.halves.news().wait(seen, NAP);
            self.slot.beat();
        }
    }
}

/// Returns the newest snapshot on disk, after the checkpointer has written the complete ones.
pub fn newest(
    directory: &RunDirectory,
    halves: &Halves,
    control: &ControlBlock,
    slot: &ProcessSlot,
) -> anyhow::Result<Option<Snapshot>> {
    let mut deadline = Deadline::after(COMMIT);
    loop {
        let seen = halves.news().value();
        if halves.complete() <= halves.committed() || deadline.is_over() || control.stop_level() >= STOP_NOW {
            break;
        }
        halves.news().wait(seen, NAP);
        slot.beat();
    }
    while_alive(|| slot.beat(), || snapshot::newest(&directory.checkpoints())).context("cannot read the snapshots")
}

/// Restores a learner, or a rank of several, from a snapshot. Refilling a large pool takes long: `slot` gets signs of life.
///
/// # Errors
/// If the snapshot is of other days, networks or ranks.
pub fn restore(learner: &mut Learner, snapshot: &Snapshot, rank: usize, slot: &ProcessSlot) -> anyhow::Result<()> {
    let s = &snapshot.state;
    let (rng, samples, pool) = snapshot.part_of(rank).context("a snapshot of fewer ranks")?;
    learner.restore(&LearnerState {
        updates: s.updates,
        samples,
        elapsed_s: s.elapsed_s,
        trainer: s.trainer.clone(),
        rng: rng.clone(),
    })?;
    for block in pool {
        learner.refill(Block::decode(&block.bytes)?.segments)?;
        slot.beat();
    }
    Ok(())
}

fn check_finite(trainer: &TrainerState) -> Result<(), super::NotFinite> {
    let actor = [&trainer.actor, &trainer.averaged, &trainer.actor_adam.first, &trainer.actor_adam.second];
    let critic = [&trainer.critic, &trainer.target, &trainer.critic_adam.first, &trainer.critic_adam.second];
    super::NotFinite::unless_weights(critic.into_iter().flatten(), actor.into_iter().flatten())
}

fn evaluator_state(control: &ControlBlock) -> EvaluatorState {
    let e = &control.evaluator;
    EvaluatorState {
        // First, so that all fields read after it are at least as new.
        progress: e.progress(),
        due: e.due.get(),
        evaluations: e.evaluations.get(),
        without_improvement: e.without_improvement.get(),
        last_benefit: e.last_benefit.get(),
        last_share: e.last_share.get(),
        best_benefit: e.best_benefit.get(),
        highest_benefit: e.highest_benefit.get(),
        best_share: e.best_share.get(),
        best_version: e.best_version.get(),
    }
}
