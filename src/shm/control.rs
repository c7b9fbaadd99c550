//! The run's control block: state that every process of a run may read, and the doorbells that serve several of them.
//!
//! It consists of plain counters and gauges. Only the stop level, which only rises, and the doorbells take part in a protocol.
//! Each statistic has one writer, named at its struct.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::counter::{Counter, Gauge};
use super::error::ShmError;
use super::histogram::Histogram;
use super::lock;
use super::names::SHM_DIR;
use super::pod::Shareable;
pub use super::process::{MAX_ACTORS, MAX_PROCESSES, ProcessKind, ProcessSlot};
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::wait::Doorbell;

const KIND: Kind = Kind(3);
/// Maximum number of ranks of a learner.
pub const MAX_LEARNER_RANKS: usize = 8;
/// Stop level: actors and the learner finish their current work and end.
pub const STOP_LEARNING: u32 = 1;
/// Stop level: nothing will be published any more; the evaluator evaluates the newest parameters and ends.
pub const STOP_ALL: u32 = 2;
/// Stop level: all processes end at once.
pub const STOP_NOW: u32 = 3;

/// Statistics of an actor, stored by it alone.
#[repr(C, align(128))]
pub struct ActorStats {
    /// Steps of `episodes.requests_per_step` requests that were replayed.
    pub steps: Counter,
    /// Time spent waiting for a region or for parameters.
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Time spent taking in parameters and handing over blocks.
    pub copy_ns: Counter,
    /// Version of the parameters in use.
    pub param_version: Counter,
    /// Rows of exposure tables read by a reader of values.
    pub rows_read: Counter,
}

/// Statistics stored by the learner, each rank its own. Those of the first rank count samples of all.
#[repr(C, align(128))]
pub struct LearnerStats {
    pub samples_consumed: Counter,
    pub updates: Counter,
    /// Last published version.
    pub param_version: Counter,
    /// Staleness of the blocks consumed: updates between the parameters that generated a block and the learner's own when it
    /// ingested the block.
    pub lag: Histogram,
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Samples that were consumed and are in no learner any more.
    pub rolled_back: Counter,
    /// Number of rollbacks because of a non-finite loss.
    pub rollbacks: Counter,
    /// Time spent taking in blocks and publishing parameters.
    pub copy_ns: Counter,
    /// Time spent putting snapshots into shared memory, during which training pauses.
    pub snapshot_ns: Counter,
}

/// Statistics stored by the checkpointer.
#[repr(C, align(128))]
pub struct CheckpointStats {
    /// Number of snapshots on disk, and bytes written for them.
    pub snapshots: Counter,
    pub bytes: Counter,
    pub write_ns: Counter,
    /// Failed attempts to write a snapshot.
    pub failures: Counter,
}

/// Statistics stored by the evaluator. The gauges are meaningful once `evaluations` is not 0.
#[repr(C, align(128))]
pub struct EvaluatorStats {
    pub evaluations: Counter,
    /// Consecutive evaluations without improvement.
    pub without_improvement: Counter,
    /// Total benefit of the last evaluation, and its share of the bound.
    pub last_benefit: Gauge,
    pub last_share: Gauge,
    pub best_benefit: Gauge,
    /// The highest total benefit so far: not that of the best where that has to beat the start by an interval.
    pub highest_benefit: Gauge,
    pub best_share: Gauge,
    pub best_version: Counter,
    /// Multiple of `evaluate.every` for which the last evaluation was made.
    pub due: Counter,
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Time spent taking in parameters and saving the best ones.
    pub copy_ns: Counter,
    /// Version up to which everything is evaluated; in lock-step the learner waits for it.
    progress: AtomicU64,
}

impl EvaluatorStats {
    /// Marks everything up to `version` as evaluated and rings `bell`.
    pub fn set_progress(&self, version: u64, bell: &Doorbell) {
        // Release: pairs with the Acquire in `progress`; the results are stored before.
        self.progress.fetch_max(version, Ordering::Release);
        bell.ring();
    }

    pub fn progress(&self) -> u64 {
        // Acquire: pairs with the Release in `set_progress`.
        self.progress.load(Ordering::Acquire)
    }
}

/// Contents of the segment.
#[repr(C, align(128))]
pub struct ControlBlock {
    /// Stop level, 0 while the run goes on; it only rises, so that no request can undo another.
    stop: AtomicU32,
    /// Rung at every commit of a block: the learner waits here for all its rings.
    pub data: DoorbellLine,
    /// Rung at every publication of parameters.
    pub params: DoorbellLine,
    /// Rung when the evaluator makes progress.
    pub progress: DoorbellLine,
    pub learner: LearnerStats,
    pub evaluator: EvaluatorStats,
    pub checkpoint: CheckpointStats,
    /// Number of the snapshot from which this run resumes, 0 for none. Stored by main before it starts any child.
    pub resumed_from: Counter,
    pub actors: [ActorStats; MAX_ACTORS],
    /// Statistics of the learner's further ranks, from rank 1.
    pub learner_ranks: [LearnerStats; MAX_LEARNER_RANKS - 1],
    pub processes: [ProcessSlot; MAX_PROCESSES],
}

/// A doorbell on a cache line of its own.
#[repr(C, align(128))]
pub struct DoorbellLine(Doorbell);

impl Deref for DoorbellLine {
    type Target = Doorbell;

    fn deref(&self) -> &Doorbell {
        &self.0
    }
}

// SAFETY: repr(C) or transparent throughout, atomics only.
unsafe impl Shareable for ControlBlock {}

impl ControlBlock {
    /// Raises the stop level (one of the `STOP_` constants) and wakes all processes that wait on a bell of this block. A
    /// process that waits for space in a ring has a timeout, or main rings that bell too.
    pub fn request_stop(&self, level: u32) {
        // Release: pairs with the Acquire in `stop_level`; the reason is stored before.
        self.stop.fetch_max(level, Ordering::Release);
        for bell in [&self.data, &self.params, &self.progress] {
            bell.ring();
        }
    }

    /// Returns the statistics of a rank of the learner.
    pub fn learner_stats(&self, rank: usize) -> &LearnerStats {
        rank.checked_sub(1).map_or(&self.learner, |other| &self.learner_ranks[other])
    }

    /// Returns the highest level requested so far.
    pub fn stop_level(&self) -> u32 {
        // Acquire: pairs with the Release in `request_stop`.
        self.stop.load(Ordering::Acquire)
    }
}

/// A handle to the control block.
///
/// Main's handle holds the lock that shows that the run is alive.
pub struct Control {
    segment: Segment,
    /// Only main has it. Closed after the segment is removed.
    _lock: Option<File>,
}

impl Control {
    /// Creates the segment `name` and locks it, which marks the run as alive. Only main does this.
    ///
    /// # Errors
    /// When the name is taken ([`ShmError::Exists`]: draw another) or `/dev/shm` is too small.
    pub fn create(name: &str) -> Result<Self, ShmError> {
        let segment = Segment::create(name, KIND, layout(), size_of::<ControlBlock>())?;
        let failed = |source| ShmError::Os { name: name.into(), what: "lock it", source };
        let path = Path::new(SHM_DIR).join(name);
        let taken = || ShmError::Exists { name: name.into() };
        let file = match lock::open(&path, OpenOptions::new().read(true).write(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(taken()),
            file => file.map_err(failed)?,
        };
        // A sweep may have found it before it was locked, and has removed it or is about to.
        if !lock::try_take(&file).map_err(failed)? || file.metadata().map_err(failed)?.nlink() == 0 {
            return Err(taken());
        }
        Ok(Self { segment, _lock: Some(file) })
    }

    /// Opens the block that main created.
    ///
    /// # Errors
    /// When the segment is missing or does not hold a control block of this build.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        Ok(Self { segment: Segment::open(name, KIND, layout(), size_of::<ControlBlock>())?, _lock: None })
    }

    /// Opens the block for observation: a private map through which the run cannot be changed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Ok(Self { segment: Segment::observe(name, KIND, layout(), size_of::<ControlBlock>())?, _lock: None })
    }

    /// Makes the block as it was at creation, for new processes of the same run. The segment and its lock stay, so that the run is alive all
    /// the while. Only main does this, when the processes before are gone.
    pub fn reset(&mut self) {
        let words = size_of::<ControlBlock>() / size_of::<AtomicU64>();
        // Relaxed: nobody else uses the block, and whoever does next is spawned later. A new segment is all zeroes, too.
        self.segment.array::<AtomicU64>(0, words).iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Returns the bytes of `/dev/shm` that it takes.
    pub fn footprint() -> u64 {
        Segment::footprint(size_of::<ControlBlock>())
    }

    /// Returns the process id and start time of the run's main process.
    pub fn owner(&self) -> (u32, u64) {
        self.segment.owner()
    }
}

impl Deref for Control {
    type Target = ControlBlock;

    fn deref(&self) -> &ControlBlock {
        self.segment.at::<ControlBlock>(0)
    }
}

fn layout() -> u64 {
    layout_hash(&[
        size_of::<ControlBlock>(),
        offset_of!(ControlBlock, learner),
        offset_of!(ControlBlock, actors),
        offset_of!(ControlBlock, learner_ranks),
        offset_of!(ControlBlock, processes),
        size_of::<LearnerStats>(),
        size_of::<EvaluatorStats>(),
        size_of::<CheckpointStats>(),
        size_of::<ActorStats>(),
        size_of::<ProcessSlot>(),
    ])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::segment::tests::unique_name;
    use super::super::wait::Woken;
    use super::*;

    #[test]
    fn stop_only_rises_and_wakes_everybody() {
        let name = unique_name("control");
        let main = Control::create(&name).unwrap();
        let child = Control::open(&name).unwrap();
        assert_eq!(child.stop_level(), 0);
        std::thread::scope(|s| {
            let sleepers = [&child.data, &child.params, &child.progress]
                .map(|bell| s.spawn(|| bell.wait(0, Duration::from_secs(60))));
            std::thread::sleep(Duration::from_millis(10));
            main.request_stop(2);
            for sleeper in sleepers {
                assert_eq!(sleeper.join().unwrap(), Woken::Rung);
            }
        });
        main.request_stop(1);
        assert_eq!(child.stop_level(), 2);
    }

    /// Another block was created in the place of the old one, and between the two the run had none.
    #[test]
    fn a_block_that_is_reset_is_like_a_new_one_and_stays_locked() {
        let name = unique_name("control");
        let mut control = Control::create(&name).unwrap();
        let other = Control::open(&name).unwrap();
        control.request_stop(STOP_ALL);
        control.learner.updates.set(7);
        control.evaluator.best_benefit.set(0.5);
        control.learner_ranks[MAX_LEARNER_RANKS - 2].lag.record(9);
        control.processes[MAX_PROCESSES - 1].sign_in(ProcessKind::Learner);
        control.reset();
        let words = size_of::<ControlBlock>() / size_of::<AtomicU64>();
        let left = other.segment.array::<AtomicU64>(0, words).iter().filter(|word| word.load(Ordering::Relaxed) != 0);
        assert_eq!((left.count(), other.stop_level(), other.learner.updates.get()), (0, 0, 0));
        let file = lock::open(&Path::new(SHM_DIR).join(&name), OpenOptions::new().read(true)).unwrap();
        assert!(lock::is_held(&file).unwrap());
    }

    #[test]
    fn a_slot_tells_who_is_in_it_and_how_often() {
        let control = Control::create(&unique_name("control")).unwrap();
        let slot = &control.processes[MAX_PROCESSES - 1];
        assert_eq!((slot.pid(), slot.kind(), slot.incarnation()), (None, None, 0));
        assert_eq!(slot.sign_in(ProcessKind::Evaluator), 1);
        assert_eq!(slot.pid(), Some(std::process::id()));
        assert!(slot.silent_ms() < 10_000);
        slot.clear();
        assert_eq!(slot.pid(), None);
        assert_eq!(slot.sign_in(ProcessKind::Evaluator), 2);
        assert_eq!(slot.kind(), Some(ProcessKind::Evaluator));
    }

    #[test]
    fn gauges_and_counters_keep_what_they_are_given() {
        let name = unique_name("control");
        let control = Control::create(&name).unwrap();
        let other = Control::open(&name).unwrap();
        control.evaluator.best_benefit.set(-1.5e9);
        control.learner.lag.record(7);
        control.learner.lag.record(3);
        control.actors[MAX_ACTORS - 1].steps.add(2);
        control.actors[MAX_ACTORS - 1].steps.add(3);
        assert_eq!(other.evaluator.best_benefit.get(), -1.5e9);
        let lag = other.learner.lag.read();
        assert_eq!((lag.count, lag.mean, lag.max), (2, 5.0, 7));
        assert_eq!(other.actors[MAX_ACTORS - 1].steps.get(), 5);
        let before = other.progress.value();
        control.evaluator.set_progress(4, &control.progress);
        assert_eq!(other.evaluator.progress(), 4);
        assert_ne!(other.progress.value(), before);
    }
}
