//! The row thread: look-ups, insertions, fetches, evictions and updates of rows, beside the dense products.
//!
//! The trainer finds the unique ids of batches ahead and asks for their rows. The row thread fetches what is missing while an earlier batch
//! is computed. It gives rows to new ids and gathers the rows of a batch once the batch before is updated, which is while the dense products below the
//! interaction go forward. It updates the table while the rest of the backward products is computed. [`Turns`] orders the two; a
//! slot is never contended, so its lock is only ever tried. What is computed does not depend on the timing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shm::Halves;
use crate::shm::turns::{Party, Turn, Turns};
use crate::sparse::cache::memory::DeviceStep;
use crate::sparse::lookup::Finder;
use crate::values::Block;

use super::prior::RowPrior;
use super::store::{BatchRows, Store};

const NAP: Duration = Duration::from_millis(100);
/// Rows of a snapshot that are copied at a time while there is nothing else to do.
const COPIED: usize = 64;
/// Behind each look-up, while the batch is computed, at least one row of the snapshot is copied for so many of the batch: a row thread that
/// always has something to do copies a snapshot, too, in so many times the updates that have changed its rows at the most.
const COPIED_SHARE: usize = 8;
/// Rows of the next batch that are noted at a time: some tens of microseconds.
const NOTED: usize = 256;

/// What the row thread does with a batch's gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowStep {
    /// Rate of the rows' optimiser.
    pub rate: f32,
    /// Passes over the exposures so far.
    pub passes: f64,
    /// Number of the snapshot that is taken behind this update, and the update's.
    pub snapshot: Option<(u64, u64)>,
}

/// A batch on its way through the row thread and back.
#[derive(Default)]
pub struct Slot {
    pub block: Arc<Block>,
    pub rows: BatchRows,
    /// `dim` floats for each unique id.
    pub gradients: Vec<f32>,
    step: Option<RowStep>,
    failed: Option<anyhow::Error>,
}

/// The trainer's side of the row thread.
pub struct Rows {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    finder: Finder,
    waited: Duration,
}

struct Shared {
    turns: Turns,
    slots: Vec<Mutex<Slot>>,
    store: Mutex<Store>,
    /// Batches whose rows are fetched before their turn.
    ahead: u64,
    /// Rows that had changed since the newest snapshot after the last update, at most.
    changed: AtomicUsize,
}

impl Shared {
    /// The slot of batch `n`, which is the caller's by the counters.
    fn slot(&self, n: u64) -> MutexGuard<'_, Slot> {
        let slot = &self.slots[(n % self.slots.len() as u64) as usize];
        slot.try_lock().expect("a slot has one user at a time")
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("the row thread works")
    }
}

/// The rows of a batch that were looked up, in the hands of the trainer.
pub struct LookedUp<'a> {
    turns: &'a Turns,
    slot: MutexGuard<'a, Slot>,
    changed: usize,
}

impl LookedUp<'_> {
    /// Rows that had changed since the newest snapshot after the update before this batch, at most.
    pub fn changed(&self) -> usize {
        self.changed
    }

    /// The batch, its rows, and where the gradients of its rows go.
    pub fn parts(&mut self) -> (&Block, &BatchRows, &mut Vec<f32>) {
        let slot = &mut *self.slot;
        (&slot.block, &slot.rows, &mut slot.gradients)
    }

    /// Hands the gradients over: the row thread applies them.
    pub fn ready(mut self, step: RowStep) {
        self.slot.step = Some(step);
        drop(self.slot);
        self.turns.pass(Turn::Ready);
    }

    /// Ends a batch without a backward pass: its rows stay as they are.
    pub fn release(self) {
        drop(self.slot);
        self.turns.pass(Turn::Ready);
    }
}

/// Batches under way when rows are fetched for `ahead` of them: one that is updated, one that is computed, and those ahead.
pub fn slots(ahead: usize) -> usize {
    2 + ahead.max(1)
}

impl Rows {
    /// Starts the row thread, which fetches the rows of up to `ahead` batches before their turn, and puts the rows of snapshots into
    /// `halves`.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(
        store: Store,
        prior: Option<RowPrior>,
        halves: Option<Arc<Halves>>,
        ahead: usize,
    ) -> std::io::Result<Self> {
        Self::start_with(
            store,
            (prior, halves),
            ahead,
            #[cfg(test)]
            None,
        )
    }

    fn start_with(
        store: Store,
        (prior, halves): (Option<RowPrior>, Option<Arc<Halves>>),
        ahead: usize,
        #[cfg(test)] planted: Option<tests::Bug>,
    ) -> std::io::Result<Self> {
        let slot = |slot| Mutex::new(Slot { rows: BatchRows::in_slot(slot), ..Slot::default() });
        let slots = (0..slots(ahead)).map(slot).collect();
        let shared = Arc::new(Shared {
            turns: Turns::default(),
            slots,
            changed: AtomicUsize::new(store.changed()),
            store: Mutex::new(store),
            ahead: ahead as u64,
        });
        let worker = Worker {
            shared: shared.clone(),
            prior,
            halves,
            stalled: false,
            #[cfg(test)]
            planted,
        };
        let thread = std::thread::Builder::new().name("rows".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread), finder: Finder::default(), waited: Duration::ZERO })
    }

    /// Whether another batch can be asked for now.
    pub fn has_room(&self) -> bool {
        let turns = &self.shared.turns;
        turns.value(Turn::Asked) - turns.value(Turn::Updated) < self.shared.slots.len() as u64
    }

    /// Finds the unique ids of a batch, and asks for their rows, behind those that were asked for before.
    ///
    /// # Panics
    /// When there is no room.
    pub fn ask(&mut self, block: Arc<Block>) {
        assert!(self.has_room());
        let mut slot = self.shared.slot(self.shared.turns.value(Turn::Asked) + 1);
        slot.rows.begin(&mut self.finder, &block.ids);
        (slot.block, slot.step) = (block, None);
        drop(slot);
        self.shared.turns.pass(Turn::Asked);
    }

    /// Waits for the rows of the next batch that was asked for. Calls `look` now and then meanwhile.
    ///
    /// # Errors
    /// A table without room, a batch larger than the cache.
    pub fn looked_up(&mut self, look: impl FnMut()) -> anyhow::Result<LookedUp<'_>> {
        let next = self.shared.turns.value(Turn::Ready) + 1;
        self.wait(Turn::LookedUp, next, look);
        let mut slot = self.shared.slot(next);
        match slot.failed.take() {
            Some(error) => Err(error),
            // Relaxed: published by the turn. It is of the update before: the next one waits for this batch.
            None => {
                Ok(LookedUp { turns: &self.shared.turns, slot, changed: self.shared.changed.load(Ordering::Relaxed) })
            }
        }
    }

    /// Waits until the gradients that were handed over are in the table, and gives access to it.
    pub fn settle(&mut self, look: impl FnMut()) -> MutexGuard<'_, Store> {
        self.wait(Turn::Updated, self.shared.turns.value(Turn::Ready), look);
        self.shared.store()
    }

    /// How long the trainer has waited for the row thread.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Ends the row thread and gives the store back.
    ///
    /// # Panics
    /// When the row thread did.
    pub fn end(self) -> Store {
        let shared = self.shared.clone();
        drop(self);
        let shared = Arc::try_unwrap(shared).ok().expect("the row thread has ended");
        shared.store.into_inner().expect("the row thread has ended well")
    }

    /// Waits for a turn. A panic of the row thread goes on here.
    fn wait(&mut self, turn: Turn, n: u64, look: impl FnMut()) {
        let begun = Instant::now();
        let came = self.shared.turns.wait(turn, n, NAP, look);
        self.waited += begun.elapsed();
        if !came {
            let thread = self.thread.take().expect("it ends once");
            resume_unwind(thread.join().err().unwrap_or_else(|| Box::new("the row thread has ended")));
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.shared.turns.end(Party::Learner);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The row thread.
struct Worker {
    shared: Arc<Shared>,
    prior: Option<RowPrior>,
    halves: Option<Arc<Halves>>,
    /// The batch that comes next found no room in the cache; it is tried again after an update.
    stalled: bool,
    #[cfg(test)]
    planted: Option<tests::Bug>,
}

impl Worker {
    fn run(mut self) {
        let shared = self.shared.clone();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let bell = shared.turns.bell(Party::Rows);
            loop {
                let seen = bell.value();
                if shared.turns.ended(Party::Learner) {
                    break;
                }
                if !self.work() {
                    bell.wait(seen, NAP);
                }
            }
        }));
        shared.turns.end(Party::Rows);
        if let Err(cause) = ended {
            resume_unwind(cause);
        }
    }

    /// Does what is most urgent; false when there is nothing to do.
    fn work(&mut self) -> bool {
        let turns = &self.shared.turns;
        let [asked, looked_up, ready, updated] =
            [Turn::Asked, Turn::LookedUp, Turn::Ready, Turn::Updated].map(|turn| turns.value(turn));
        #[cfg(test)]
        let (ready, updated_first) = match self.planted {
            Some(tests::Bug::UpdatesBeforeReady) => (looked_up, looked_up == updated),
            Some(tests::Bug::GathersBeforeTheUpdate) => (ready, true),
            None => (ready, looked_up == updated),
        };
        #[cfg(not(test))]
        let updated_first = looked_up == updated;
        if ready > updated {
            self.update(updated + 1);
        } else if asked > looked_up && updated_first {
            self.look_up(looked_up + 1);
        } else {
            return self.prepare(looked_up + 1..=asked) || self.shared.store().copy_rows(COPIED);
        }
        true
    }

    /// Applies the gradients of batch `n`.
    fn update(&mut self, n: u64) {
        let mut slot = self.shared.slot(n);
        let Slot { block, rows, gradients, step, .. } = &mut *slot;
        let mut store = self.shared.store();
        match step.take() {
            Some(step) => {
                if store.is_on_device() {
                    let precisions = self.prior.as_mut().map(|prior| prior.precisions(rows, &block.weight));
                    let (rate, passes) = (step.rate, step.passes as f32);
                    let step = DeviceStep { rate, passes, precisions: precisions.unwrap_or_default() };
                    store.update_on_device(rows, &step);
                } else {
                    if let Some(prior) = &mut self.prior {
                        prior.add(rows, &block.weight, step.passes, gradients);
                    }
                    store.update(rows, gradients, step.rate);
                }
                if let (Some(halves), Some((number, update))) = (&self.halves, step.snapshot) {
                    store.begin_snapshot(halves, number, update).expect("a half holds all rows that may change");
                }
            }
            None => store.release(rows),
        }
        // Relaxed: published by the turn.
        self.shared.changed.store(store.changed(), Ordering::Relaxed);
        drop((store, slot));
        self.stalled = false;
        self.shared.turns.pass(Turn::Updated);
    }

    /// Settles and gathers the rows of batch `n`; all before it are updated.
    fn look_up(&mut self, n: u64) {
        let mut slot = self.shared.slot(n);
        let mut store = self.shared.store();
        let Slot { block, rows, failed, .. } = &mut *slot;
        if failed.is_none() {
            *failed = gather(&mut store, block, rows).err();
        }
        let copied = (rows.lookup.unique.len() / COPIED_SHARE).max(COPIED);
        drop((store, slot));
        self.shared.turns.pass(Turn::LookedUp);
        self.shared.store().copy_rows(copied);
    }

    /// Fetches or notes rows of one batch ahead; false when there is nothing to do.
    fn prepare(&mut self, batches: std::ops::RangeInclusive<u64>) -> bool {
        let first = *batches.start();
        for n in batches {
            let mut slot = self.shared.slot(n);
            let mut store = self.shared.store();
            if slot.rows.is_fetched() && store.note_ahead(&mut slot.rows, NOTED) {
                return true;
            }
            // Rows are fetched in the order of the batches.
            if self.stalled || n >= first + self.shared.ahead || slot.rows.is_fetched() || slot.failed.is_some() {
                continue;
            }
            match store.fetch(&mut slot.rows) {
                Ok(fetched) => self.stalled = !fetched,
                Err(e) => slot.failed = Some(e),
            }
            return true;
        }
        false
    }
}

/// Gathers the rows of the batch whose turn it is.
fn gather(store: &mut Store, block: &Block, rows: &mut BatchRows) -> anyhow::Result<()> {
    while !rows.is_fetched() {
        anyhow::ensure!(store.fetch(rows)?, "rows are pinned by no batch");
    }
    store.settle(rows, block)?;
    store.gather(rows);
    Ok(())
}

#[cfg(test)]
#[path = "rows/tests.rs"]
mod tests;
