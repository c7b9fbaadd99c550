//! The processes of a run in one table: name, slot, and when each is started.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::counter::Counter;
use super::sync::{AtomicU32, AtomicU64, Ordering};

/// Maximum number of actors of a run.
pub const MAX_ACTORS: usize = 64;
/// Number of process slots: the actors' come first, the others' follow.
pub const MAX_PROCESSES: usize = MAX_ACTORS + 32;

/// A process of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Actor(usize),
    Learner,
    /// A further rank of the learner, numbered from 1.
    LearnerRank(usize),
    Evaluator,
    Checkpointer,
    /// A reader of a run of `admix values train`.
    Reader(usize),
    Trainer,
    /// A further trainer rank, numbered from 1.
    Rank(usize),
    ValueCheckpointer,
}

impl Role {
    /// Returns the row of the table of roles: the name, which is also the hidden subcommand; the slot in
    /// [`super::ControlBlock::processes`]; the kind that it registers as.
    const fn row(self) -> (&'static str, usize, ProcessKind) {
        match self {
            Self::Actor(id) => ("actor", id, ProcessKind::Actor),
            Self::Learner => ("learner", MAX_PROCESSES - 1, ProcessKind::Learner),
            Self::LearnerRank(id) => ("learner", MAX_PROCESSES - 3 - id, ProcessKind::Learner),
            Self::Evaluator => ("evaluator", MAX_PROCESSES - 2, ProcessKind::Evaluator),
            Self::Checkpointer => ("checkpointer", MAX_PROCESSES - 3, ProcessKind::Checkpointer),
            Self::Reader(id) => ("reader", id, ProcessKind::Actor),
            Self::Trainer => ("trainer", MAX_PROCESSES - 1, ProcessKind::Learner),
            Self::Rank(id) => ("rank", MAX_PROCESSES - 3 - id, ProcessKind::Learner),
            Self::ValueCheckpointer => ("value-checkpointer", Self::Checkpointer.slot(), ProcessKind::Checkpointer),
        }
    }

    /// Returns the roles of a training run besides its actors and its learner: `evaluates` says whether it is on the first node, `saves`
    /// whether it takes snapshots.
    pub fn helpers(evaluates: bool, saves: bool) -> Vec<Self> {
        evaluates.then_some(Self::Evaluator).into_iter().chain(saves.then_some(Self::Checkpointer)).collect()
    }

    /// Returns the role of a rank of the learner.
    pub const fn learner(rank: usize) -> Self {
        if rank == 0 { Self::Learner } else { Self::LearnerRank(rank) }
    }

    /// Returns the role of a rank of a value training.
    pub const fn rank(rank: usize) -> Self {
        if rank == 0 { Self::Trainer } else { Self::Rank(rank) }
    }

    /// Returns the role, in a training run, of the process that registered in a slot.
    pub fn of(kind: ProcessKind, slot: usize) -> Self {
        match kind {
            ProcessKind::Actor => Self::Actor(slot),
            ProcessKind::Learner => Self::learner((MAX_PROCESSES - 3).saturating_sub(slot)),
            ProcessKind::Checkpointer => Self::Checkpointer,
            ProcessKind::Evaluator => Self::Evaluator,
        }
    }

    /// Returns the role, in a value training, of the process that registered in a slot.
    pub fn of_values(kind: ProcessKind, slot: usize) -> Self {
        match kind {
            ProcessKind::Actor => Self::Reader(slot),
            ProcessKind::Learner => Self::rank((MAX_PROCESSES - 3).saturating_sub(slot)),
            ProcessKind::Checkpointer | ProcessKind::Evaluator => Self::ValueCheckpointer,
        }
    }

    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the slot in which it registers.
    pub const fn slot(self) -> usize {
        self.row().1
    }

    /// Returns the kind that it registers as.
    pub const fn kind(self) -> ProcessKind {
        self.row().2
    }

    /// Returns its number, where there may be several processes of the role.
    pub fn id(self) -> Option<usize> {
        match self {
            Self::Actor(id) | Self::Reader(id) | Self::Rank(id) | Self::LearnerRank(id) => Some(id),
            _ => None,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        self.id().map_or(Ok(()), |id| write!(f, "{id}"))
    }
}

/// Kind of a process as registered in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ProcessKind {
    Actor = 1,
    Learner = 2,
    Checkpointer = 3,
    Evaluator = 4,
}

impl ProcessKind {
    const ALL: [Self; 4] = [Self::Actor, Self::Learner, Self::Checkpointer, Self::Evaluator];
}

/// Slot of one process; stored by the process itself (and `clear`ed by main).
#[repr(C, align(128))]
pub struct ProcessSlot {
    kind: AtomicU32,
    pid: AtomicU32,
    heartbeat_ms: AtomicU64,
    incarnation: AtomicU64,
    /// Of a rank of a value model that computes on the CPU: the CPU time of its updates.
    pub busy_ns: Counter,
}

impl ProcessSlot {
    /// Registers the calling process; returns how often this slot was registered in, from 1.
    pub fn sign_in(&self, kind: ProcessKind) -> u64 {
        // Relaxed: made visible by the Release of the pid below.
        let incarnation = self.incarnation.fetch_add(1, Ordering::Relaxed) + 1;
        self.kind.store(kind as u32, Ordering::Relaxed);
        self.beat();
        // Release: pairs with the Acquire in `pid`.
        self.pid.store(std::process::id(), Ordering::Release);
        incarnation
    }

    /// Empties the slot of a dead process.
    pub fn clear(&self) {
        // Release: a process that sees 0 sees the rest of that process's stores that main saw.
        self.pid.store(0, Ordering::Release);
    }

    /// Updates the heartbeat: the process is alive and makes progress.
    pub fn beat(&self) {
        self.heartbeat_ms.store(monotonic_ms(), Ordering::Relaxed);
    }

    /// Returns the time of the last heartbeat by the machine's monotonic clock; a value that changes with every heartbeat some
    /// milliseconds later.
    pub fn last_beat_ms(&self) -> u64 {
        self.heartbeat_ms.load(Ordering::Relaxed)
    }

    /// Returns the milliseconds since the last heartbeat.
    pub fn silent_ms(&self) -> u64 {
        monotonic_ms().saturating_sub(self.heartbeat_ms.load(Ordering::Relaxed))
    }

    /// Returns the pid of the process in this slot, if any.
    pub fn pid(&self) -> Option<u32> {
        // Acquire: pairs with the Release in `sign_in`; the other fields belong to this process.
        Some(self.pid.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    pub fn kind(&self) -> Option<ProcessKind> {
        let kind = self.kind.load(Ordering::Relaxed);
        ProcessKind::ALL.into_iter().find(|k| *k as u32 == kind)
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Relaxed)
    }
}

/// Returns the time of the monotonic clock, which all processes of a machine share and nobody sets.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock").into()
}

/// Returns the CPU time of all threads of this process so far.
pub fn process_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("Linux has this clock").into()
}

/// Returns the milliseconds of the monotonic clock.
pub(super) fn monotonic_ms() -> u64 {
    monotonic().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_roles_of_a_training_run_share_a_slot() {
        let mut roles: Vec<Role> = (0..MAX_ACTORS).map(Role::Actor).collect();
        roles.push(Role::Learner);
        // As many as allowed (`settings::MOST_RANKS`), and some more.
        roles.extend((1..=12).map(Role::learner));
        roles.extend(Role::helpers(true, true));
        for (i, role) in roles.iter().enumerate() {
            assert!(role.slot() < MAX_PROCESSES);
            assert_eq!(Role::of(role.kind(), role.slot()), *role);
            assert!(roles[..i].iter().all(|other| other.slot() != role.slot()), "{role}");
        }
        assert!(ProcessKind::ALL.into_iter().all(|kind| Role::of(kind, 0).kind() == kind));
    }

    #[test]
    fn no_two_roles_of_a_value_training_share_a_slot() {
        let mut roles: Vec<Role> = (0..MAX_ACTORS).map(Role::Reader).collect();
        // As many ranks as allowed (`settings::MOST_RANKS_HERE`), and some more.
        roles.extend((1..=28).map(Role::Rank));
        roles.extend([Role::Trainer, Role::ValueCheckpointer]);
        assert!(roles.iter().all(|role| Role::of_values(role.kind(), role.slot()) == *role));
        let mut slots: Vec<usize> = roles.iter().map(|role| role.slot()).collect();
        slots.sort_unstable();
        slots.dedup();
        assert!(slots.len() == roles.len() && slots.iter().all(|slot| *slot < MAX_PROCESSES));
    }
}
