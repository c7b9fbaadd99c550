//! Snapshots of a run: when one is begun, and its dense part.
//!
//! A snapshot is begun between two updates. The row thread copies the rows that have changed since the one before into a half of
//! shared memory, the trainer the dense state; the checkpointer brings both to disk. Nobody waits for it, unless the rows that
//! may change between two snapshots (`table.snapshot_rows`) come to their end while the one before is not on disk.

use std::time::{Duration, Instant};

use crate::run::value_run::ValueSegments;
use crate::run::value_snapshot::ValueState;
use crate::run::{CannotSave, failpoint};
use crate::settings::ValueSettings;
use crate::shm::control::{STOP_ALL, STOP_LEARNING};
use crate::shm::{Halves, Ledger, Part};

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

/// Begins the snapshots of a run.
pub struct Saver<'a> {
    segments: &'a ValueSegments,
    halves: Option<&'a Halves>,
    every: Duration,
    /// Changed rows from which on a snapshot begins early.
    most_rows: usize,
    taken: Instant,
    early: u64,
    waited: Duration,
}

impl<'a> Saver<'a> {
    /// `halves` is `None` in a run that takes no snapshots; `ranks` are those of all machines.
    pub fn new(
        segments: &'a ValueSegments,
        halves: Option<&'a Halves>,
        settings: &ValueSettings,
        ranks: usize,
    ) -> Self {
        let every = Duration::try_from_secs_f64(settings.checkpoint.every_s).unwrap_or(Duration::MAX);
        // Beside what may change before the next update at which a snapshot can begin.
        let most_rows = match settings.table.snapshot_rows {
            most if most >= settings.table.max_rows => usize::MAX,
            most => most.saturating_sub(settings.rows_in_flight(ranks)),
        };
        Self { segments, halves, every, most_rows, taken: Instant::now(), early: 0, waited: Duration::ZERO }
    }

    /// Says whether a snapshot is to be taken, `changed` rows having changed since the last one.
    pub fn wish(&self, changed: usize) -> Wish {
        let Some(halves) = self.halves else { return Wish { room: true, ..Wish::default() } };
        let (due, full) = (self.taken.elapsed() >= self.every, changed >= self.most_rows);
        Wish { due, full, room: halves.next().is_some() }
    }

    /// Whether a snapshot begins behind the update in hand: its number. `changed` rows have changed since the last one. Calls `look` now
    /// and then while it waits for the checkpointer.
    pub fn begin(&mut self, changed: usize, look: impl FnMut()) -> Option<u64> {
        let wish = self.wish(changed);
        if wish.full {
            self.wait_for_room(look);
        }
        if wish.full || wish.due { self.begin_now(wish) } else { None }
    }

    /// Begins the snapshot that was wished for: its number. `None` where there is no room.
    pub fn begin_now(&mut self, wish: Wish) -> Option<u64> {
        let number = self.halves?.next()?;
        self.early += u64::from(wish.full && !wish.due);
        self.taken = Instant::now();
        Some(number)
    }

    /// Waits until the snapshot before is on disk; false in a run that ends and cannot write it. Calls `look` now and then.
    pub fn wait_for_room(&mut self, mut look: impl FnMut()) -> bool {
        let Some(halves) = self.halves else { return true };
        let control = &self.segments.control;
        let (begun, before) = (Instant::now(), control.checkpoint.failures.get());
        let room = loop {
            let seen = halves.news().value();
            if halves.next().is_some() {
                break true;
            }
            let fails = control.checkpoint.failures.get() - before >= LAST_FAILURES;
            let stops = control.stop_level();
            if stops >= STOP_ALL || stops >= STOP_LEARNING && fails {
                break false;
            }
            halves.news().wait(seen, NAP);
            look();
        };
        self.waited += begun.elapsed();
        room
    }

    /// Waits until the last snapshot of the run may begin; `None` in a run that takes none.
    ///
    /// # Errors
    /// The checkpointer cannot write the one before.
    pub fn begin_last(&mut self, mut look: impl FnMut()) -> Result<Option<u64>, CannotSave> {
        let Some(halves) = self.halves else { return Ok(None) };
        let failures = &self.segments.control.checkpoint.failures;
        let before = failures.get();
        loop {
            let seen = halves.news().value();
            if let Some(number) = halves.next() {
                return Ok(Some(number));
            }
            if failures.get() - before >= LAST_FAILURES {
                return Err(CannotSave(anyhow::anyhow!("the snapshot before the last cannot be written")));
            }
            halves.news().wait(seen, NAP);
            look();
        }
    }

    /// Puts the dense part of snapshot `number` into its half.
    ///
    /// # Errors
    /// A state that does not fit.
    pub fn write(&mut self, number: u64, state: &ValueState) -> anyhow::Result<()> {
        let Some(halves) = self.halves else { return Ok(()) };
        let begun = Instant::now();
        let mut state = state.clone();
        let now = self.segments.rings.iter().map(|ring| ring.ledger().closed());
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
