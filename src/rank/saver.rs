//! Snapshots of a run: when one is begun, and its dense part.
//!
//! A snapshot is begun between two updates. The row thread copies the rows that have changed since the one before into a half of
//! shared memory, beside the updates that follow, and the trainer the dense state; the checkpointer brings both to disk. Nobody waits for it, unless the rows that
//! may change between two snapshots (`table.snapshot_rows`) come to their end while the one before is not on disk.

use std::time::{Duration, Instant};

use crate::run::value_run::ValueSegments;
use crate::run::value_snapshot::ValueState;
use crate::run::{CannotSave, failpoint};
use crate::settings::ValueSettings;
use crate::shm::control::{STOP_ALL, STOP_LEARNING};
use crate::shm::{Halves, Ledger, Part, SampleRing};

const NAP: Duration = Duration::from_millis(100);
/// Failures of the checkpointer after which the last snapshot is given up.
const LAST_FAILURES: u64 = 3;

/// Whether a snapshot is to be taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// `checkpoint.every_s` is over.
    pub due: bool,
    /// `table.snapshot_rows` come to their end: it must not wait.
    pub full: bool,
    /// The one before is on disk.
    pub room: bool,
}

/// Whether a snapshot can begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Free,
    /// The one before is on its way to disk.
    NotYet,
    /// The one before cannot be written, and the run ends.
    Never,
}

impl Room {
    pub fn encode(self) -> [u8; 1] {
        [self as u8]
    }

    /// What all machines have together: a snapshot begins where every one of them has room, and is given up where one never will.
    pub fn of_all(mine: Self, theirs: &[u8]) -> Self {
        let theirs = match theirs {
            [0] => Self::Free,
            [1] => Self::NotYet,
            _ => Self::Never,
        };
        if mine as u8 > theirs as u8 { mine } else { theirs }
    }
}

/// A wait for room.
pub struct Wait {
    /// Failures of the checkpointer before it.
    failures: u64,
    /// It is for the last snapshot of the run.
    last: bool,
}

/// Begins the snapshots of a run.
pub struct Saver<'a> {
    segments: &'a ValueSegments,
    /// The rings of all ranks of the machine.
    rings: Vec<SampleRing>,
    halves: Option<&'a Halves>,
    every: Duration,
    /// Changed rows from which on a snapshot begins early.
    most_rows: usize,
    taken: Instant,
    early: u64,
    waited: Duration,
    /// Number of the snapshot that was begun last. Its rows may still be on their way into the half.
    begun: u64,
}

impl<'a> Saver<'a> {
    /// `rings` are those of all ranks of the machine; `halves` is `None` in a run that takes no snapshots; `ranks` are those of all machines.
    pub fn new(
        (segments, rings): (&'a ValueSegments, Vec<SampleRing>),
        halves: Option<&'a Halves>,
        settings: &ValueSettings,
        ranks: usize,
    ) -> Self {
        let every = Duration::try_from_secs_f64(settings.checkpoint.every_s).unwrap_or(Duration::MAX);
        // Beside what may change before the next update at which a snapshot can begin.
        let most_rows = match settings.snapshot_rows(ranks) {
            most if most == settings.table.max_rows => usize::MAX,
            most => most.saturating_sub(settings.rows_in_flight(ranks)),
        };
        let (taken, waited) = (Instant::now(), Duration::ZERO);
        Self { segments, rings, halves, every, most_rows, taken, early: 0, waited, begun: 0 }
    }

    /// The snapshot that may be begun now.
    fn next(&self) -> Option<u64> {
        self.halves?.next().filter(|number| *number > self.begun)
    }

    /// Says whether a snapshot is to be taken, `changed` rows having changed since the last one.
    pub fn wish(&self, changed: usize) -> Wish {
        if self.halves.is_none() {
            return Wish { room: true, ..Wish::default() };
        }
        let (due, full) = (self.taken.elapsed() >= self.every, changed >= self.most_rows);
        Wish { due, full, room: self.next().is_some() }
    }

    /// Whether a snapshot begins behind the update in hand: its number. `changed` rows have changed since the last one. Calls `look` now
    /// and then while it waits for the checkpointer.
    pub fn begin(&mut self, changed: usize, look: impl FnMut()) -> Option<u64> {
        let wish = self.wish(changed);
        if wish.full {
            self.wait_for_room(false, look);
        }
        if wish.full || wish.due { self.begin_now(wish) } else { None }
    }

    /// Begins the snapshot that was wished for: its number. `None` where there is no room.
    pub fn begin_now(&mut self, wish: Wish) -> Option<u64> {
        let number = self.next()?;
        self.begun = number;
        self.early += u64::from(wish.full && !wish.due);
        self.taken = Instant::now();
        Some(number)
    }

    /// Begins to wait for room: for the `last` snapshot of the run, or one that must not wait.
    pub fn begin_wait(&self, last: bool) -> Wait {
        Wait { failures: self.segments.control.checkpoint.failures.get(), last }
    }

    /// Looks whether the snapshot before is on disk, and waits for it a moment.
    pub fn room(&mut self, wait: &Wait) -> Room {
        let Some(halves) = self.halves else { return Room::Free };
        let control = &self.segments.control;
        let seen = halves.news().value();
        if self.next().is_some() {
            return Room::Free;
        }
        let fails = control.checkpoint.failures.get() - wait.failures >= LAST_FAILURES;
        let stops = control.stop_level();
        if stops >= STOP_ALL || fails && (wait.last || stops >= STOP_LEARNING) {
            return Room::Never;
        }
        let begun = Instant::now();
        halves.news().wait(seen, NAP);
        self.waited += begun.elapsed();
        Room::NotYet
    }

    /// Waits until the snapshot before is on disk; false in a run that ends and cannot write it. Calls `look` now and then.
    fn wait_for_room(&mut self, last: bool, mut look: impl FnMut()) -> bool {
        let wait = self.begin_wait(last);
        loop {
            match self.room(&wait) {
                Room::Free => return true,
                Room::Never => return false,
                Room::NotYet => look(),
            }
        }
    }

    /// Number of the last snapshot of the run, for which there is room; `None` in a run that takes none.
    pub fn last(&self) -> Option<u64> {
        self.next()
    }

    /// Waits until the last snapshot of the run may begin; `None` in a run that takes none.
    ///
    /// # Errors
    /// The checkpointer cannot write the one before.
    pub fn begin_last(&mut self, look: impl FnMut()) -> Result<Option<u64>, CannotSave> {
        if self.wait_for_room(true, look) {
            return Ok(self.last());
        }
        Err(CannotSave(anyhow::anyhow!("the snapshot before the last cannot be written")))
    }

    /// Puts the dense part of snapshot `number` into its half.
    ///
    /// # Errors
    /// A state that does not fit.
    pub fn write(&mut self, number: u64, state: &ValueState) -> anyhow::Result<()> {
        let Some(halves) = self.halves else { return Ok(()) };
        let begun = Instant::now();
        let mut state = state.clone();
        let now = self.rings.iter().map(|ring| ring.ledger().closed());
        state.ledger = Ledger::sum(now.chain([state.ledger]));
        failpoint::reached("rank.snapshot.dense");
        halves.write(Part::Dense, number, state.updates, [&state.encode()?[..]])?;
        self.waited += begun.elapsed();
        self.segments.control.learner.snapshot_ns.set(self.waited.as_nanos() as u64);
        Ok(())
    }

    /// How long the trainer has been held up by snapshots, and how many began early.
    pub fn cost(&self) -> (Duration, u64) {
        (self.waited, self.early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_take_a_snapshot_together_or_not_at_all() {
        let all = [Room::Free, Room::NotYet, Room::Never];
        for (i, mine) in all.into_iter().enumerate() {
            for (j, theirs) in all.into_iter().enumerate() {
                assert_eq!(Room::of_all(mine, &theirs.encode()), all[i.max(j)]);
            }
            assert_eq!(Room::of_all(mine, &[]), Room::Never);
        }
    }
}
