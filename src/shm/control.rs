//! The run's control block: what every process of a run may look at, and the few bells that serve several.
//!
//! Plain counters and gauges; nothing here takes part in a protocol but the stop level, which only rises, and
//! the doorbells. Each statistic has one writer, named at its struct.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::time::{ClockId, clock_gettime};

use super::error::ShmError;
use super::histogram::Histogram;
use super::lock;
use super::names::SHM_DIR;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::wait::Doorbell;

const KIND: Kind = Kind(3);
/// Most actors that a run may have.
pub const MAX_ACTORS: usize = 64;
/// Slots for processes: the actors' come first, the others' follow.
pub const MAX_PROCESSES: usize = MAX_ACTORS + 16;
/// Stop level: actors and the learner finish what they are at and end.
pub const STOP_LEARNING: u32 = 1;
/// Stop level: nothing will be published any more; the evaluator looks at the newest parameters and ends.
pub const STOP_ALL: u32 = 2;
/// Stop level: everybody ends at once.
pub const STOP_NOW: u32 = 3;

/// A count that grows. Relaxed: a statistic orders nothing.
#[repr(transparent)]
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Raises the value to `n` if it is below.
    pub fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    /// For a process that starts again from a checkpoint.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that moves both ways: the bits of an `f64`. Relaxed: a statistic orders nothing.
#[repr(transparent)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ProcessKind {
    Actor = 1,
    Learner = 2,
    Checkpointer = 3,
    Evaluator = 4,
}

/// One process; stored by itself (and `clear`ed by main).
#[repr(C, align(128))]
pub struct ProcessSlot {
    kind: AtomicU32,
    pid: AtomicU32,
    heartbeat_ms: AtomicU64,
    incarnation: AtomicU64,
}

impl ProcessSlot {
    /// Signs the calling process in; returns how often this slot was signed into, from 1.
    pub fn sign_in(&self, kind: ProcessKind) -> u64 {
        // Relaxed: pairs with the Release of the pid below.
        let incarnation = self.incarnation.fetch_add(1, Ordering::Relaxed) + 1;
        self.kind.store(kind as u32, Ordering::Relaxed);
        self.beat();
        // Release: pairs with the Acquire in `pid`.
        self.pid.store(std::process::id(), Ordering::Release);
        incarnation
    }

    /// Empties the slot of a dead process.
    pub fn clear(&self) {
        // Release: whoever sees 0 sees the rest of that process's stores that main saw.
        self.pid.store(0, Ordering::Release);
    }

    /// Says that the process is alive and gets on.
    pub fn beat(&self) {
        self.heartbeat_ms.store(monotonic_ms(), Ordering::Relaxed);
    }

    /// When the last beat was, by a clock of the machine's; a number that changes with every beat some milliseconds later.
    pub fn last_beat_ms(&self) -> u64 {
        self.heartbeat_ms.load(Ordering::Relaxed)
    }

    /// Milliseconds since the last beat.
    pub fn silent_ms(&self) -> u64 {
        monotonic_ms().saturating_sub(self.heartbeat_ms.load(Ordering::Relaxed))
    }

    /// The process in this slot, if any.
    pub fn pid(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `sign_in`; the other fields are this process's.
        Some(self.pid.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    pub fn kind(&self) -> Option<ProcessKind> {
        use ProcessKind::{Actor, Checkpointer, Evaluator, Learner};
        let kind = self.kind.load(Ordering::Relaxed);
        [Actor, Learner, Checkpointer, Evaluator].into_iter().find(|k| *k as u32 == kind)
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Relaxed)
    }
}

/// Stored by one actor.
#[repr(C, align(128))]
pub struct ActorStats {
    /// Requests replayed.
    pub steps: Counter,
    /// Waiting for a region or for parameters.
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Taking in parameters, handing over blocks.
    pub copy_ns: Counter,
    /// Version of the parameters that it plays with.
    pub param_version: Counter,
}

/// Stored by the learner.
#[repr(C, align(128))]
pub struct LearnerStats {
    pub samples_consumed: Counter,
    pub updates: Counter,
    /// Version last published.
    pub param_version: Counter,
    /// Policy lag of the blocks consumed: updates between the parameters that played a block and the learner's own when
    /// it took the block in.
    pub lag: Histogram,
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Samples that were consumed and are in no learner any more.
    pub rolled_back: Counter,
    /// Times that training went back because a loss was not finite.
    pub rollbacks: Counter,
    /// Taking in blocks, publishing parameters.
    pub copy_ns: Counter,
    /// Putting snapshots into shared memory: what they hold training up.
    pub snapshot_ns: Counter,
}

/// Stored by the checkpointer.
#[repr(C, align(128))]
pub struct CheckpointStats {
    /// Snapshots on disk, and what was written for them.
    pub snapshots: Counter,
    pub bytes: Counter,
    pub write_ns: Counter,
    /// Attempts that the file system refused.
    pub failures: Counter,
}

/// Stored by the evaluator. The gauges mean something once `evaluations` is not 0.
#[repr(C, align(128))]
pub struct EvaluatorStats {
    pub evaluations: Counter,
    /// Evaluations in a row that did not improve on the best.
    pub without_improvement: Counter,
    /// Total benefit of the last evaluation and its share of the bound.
    pub last_benefit: Gauge,
    pub last_share: Gauge,
    pub best_benefit: Gauge,
    pub best_share: Gauge,
    pub best_version: Counter,
    /// Multiple of `evaluate.every` that the last evaluation was for.
    pub due: Counter,
    pub wait_ns: Counter,
    pub compute_ns: Counter,
    /// Taking in parameters, saving the best.
    pub copy_ns: Counter,
    /// Version up to which everything is evaluated; in lock-step the learner waits for it.
    progress: AtomicU64,
}

impl EvaluatorStats {
    /// Declares everything up to `version` evaluated and rings `bell`.
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

/// What lies in the segment.
#[repr(C, align(128))]
pub struct ControlBlock {
    /// 0 while the run goes on; requests only rise, so that none can take back another.
    stop: AtomicU32,
    /// Rung at every commit of a block: the learner waits here for all its rings.
    pub data: DoorbellLine,
    /// Rung at every publication of parameters.
    pub params: DoorbellLine,
    /// Rung when the evaluator gets on.
    pub progress: DoorbellLine,
    pub learner: LearnerStats,
    pub evaluator: EvaluatorStats,
    pub checkpoint: CheckpointStats,
    /// Number of the snapshot that this run goes on from, 0 for none. Stored by main before it starts anybody.
    pub resumed_from: Counter,
    pub actors: [ActorStats; MAX_ACTORS],
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
    /// Raises the stop level (one of the `STOP_` constants) and wakes everybody that waits on a bell in here.
    /// Who waits for space in a ring has a timeout, or main rings those too.
    pub fn request_stop(&self, level: u32) {
        // Release: pairs with the Acquire in `stop_level`; the reason is stored before.
        self.stop.fetch_max(level, Ordering::Release);
        for bell in [&self.data, &self.params, &self.progress] {
            bell.ring();
        }
    }

    /// The highest level requested so far.
    pub fn stop_level(&self) -> u32 {
        // Acquire: pairs with the Release in `request_stop`.
        self.stop.load(Ordering::Acquire)
    }
}

/// A handle to the control block.
///
/// Main's holds the lock that tells everybody that the run lives.
pub struct Control {
    segment: Segment,
    /// Of main alone. Closed after the segment is removed.
    _lock: Option<File>,
}

impl Control {
    /// Creates the segment `name` and locks it: from now on the run lives. Only main does this.
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
        // Whoever sweeps may have found it before it was locked, and has removed it or is about to.
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

    /// Opens the block to look at; nothing that is done to it reaches the run.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Ok(Self { segment: Segment::observe(name, KIND, layout(), size_of::<ControlBlock>())?, _lock: None })
    }

    /// How much of `/dev/shm` it takes.
    pub fn footprint() -> u64 {
        Segment::footprint(size_of::<ControlBlock>())
    }

    /// Process id and start time of the run's main process.
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
        offset_of!(ControlBlock, processes),
        size_of::<LearnerStats>(),
        size_of::<EvaluatorStats>(),
        size_of::<CheckpointStats>(),
        size_of::<ActorStats>(),
        size_of::<ProcessSlot>(),
    ])
}

/// Milliseconds of the clock that all processes of a machine share and nobody sets.
pub(super) fn monotonic_ms() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock");
    time.tv_sec() as u64 * 1_000 + time.tv_nsec() as u64 / 1_000_000
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
