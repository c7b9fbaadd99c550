//! A rank of several, in step or overlapped: the gradients of its shard, snapshots, the end of a pass, and its records.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::collective::shares::Work;
use crate::run::alive::Pulse;
use crate::run::value_run::{Prepared, ValueSegments};
use crate::run::value_snapshot::ValueState;
use crate::run::{CannotSave, Metrics, failpoint};
use crate::settings::ValueSettings;
use crate::shm::control::ProcessSlot;
use crate::shm::{Exchange, Halves, RowReader, Seat};
use crate::sparse::{Counters, TableView};
use crate::values::Block;
use crate::values::net::Losses;

use super::blocks::Blocks;
use super::busy::Busy;
use super::gradients::Gradients;
use super::merged::{MergedCopies, MergedRows};
use super::passes::Passes;
use super::progress::{report, report_updates};
use super::record::Training;
use super::said::{Said, Verdict};
use super::saver::{Room, Saver, Wish};
use super::shard::Shard;
use super::store::BatchRows;

/// Copies that are compared with the table at the end of a pass, which takes some milliseconds.
const CHECKED: usize = 1 << 16;

/// What the first rank of a machine does for all others there.
pub struct First<'a> {
    /// Of rank 0.
    pub(super) passes: Option<Passes<'a>>,
    pub(super) metrics: Metrics,
    pub(super) saver: Saver<'a>,
    pub(super) halves: Option<&'a Arc<Halves>>,
    /// All tables of the machine.
    pub(super) tables: Vec<RowReader>,
}

/// Locks the rows of the table that this rank writes.
pub fn lock(rows: &Mutex<MergedRows>) -> MutexGuard<'_, MergedRows> {
    rows.lock().expect("whoever has rows works")
}

/// A rank at work.
pub struct Member<'a> {
    pub settings: &'a ValueSettings,
    pub prepared: &'a Prepared,
    pub segments: &'a ValueSegments,
    pub slot: &'a ProcessSlot,
    pub exchange: Arc<Exchange>,
    pub seat: Seat,
    pub blocks: Blocks<'a>,
    pub network: Gradients,
    pub(super) view: TableView,
    pub(super) shard: Shard,
    /// Memory for a record of the table.
    pub(super) record: Vec<u32>,
    /// Of the first rank of a table: what it writes.
    pub rows: Option<Arc<Mutex<MergedRows>>>,
    /// Of the other ranks: their copies of rows, if they keep any.
    pub copies: Option<MergedCopies>,
    pub(super) first: Option<First<'a>>,
    pub state: ValueState,
    /// Number of the rows that are published: updates since this process began.
    pub written: u64,
    /// Losses of the pass so far, of all ranks.
    pub sums: Losses,
    pub sums_samples: u64,
    /// When the last record was written, and the samples then.
    pub(super) shown: (Instant, u64),
    /// What the copies of all ranks have done so far.
    pub copied: Counters,
    /// The CPU time of updates; `None` on a GPU.
    pub(super) busy: Option<Busy<'a>>,
    /// Time in exchanges, and waiting for rows.
    pub exchanging: Duration,
}

impl Member<'_> {
    /// Saves at the end of training: on all machines, or on none.
    ///
    /// # Errors
    /// [`CannotSave`], where the snapshot before cannot be written on one of them. A machine that took another one meanwhile would
    /// have removed what the others need.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let room = self.agree_on_room(true)?;
        // All ranks have written their last rows.
        self.record();
        if !room {
            return Err(
                CannotSave(anyhow::anyhow!("the snapshot before the last cannot be written on every machine")).into()
            );
        }
        match self.first.as_ref().and_then(|first| first.saver.last()) {
            Some(number) => self.save(number),
            None => Ok(()),
        }
    }

    /// Puts snapshot `number` into its half.
    fn save(&mut self, number: u64) -> anyhow::Result<()> {
        let (Some(first), Some(rows)) = (&mut self.first, &self.rows) else { return Ok(()) };
        // The snapshot says what was learned; samples of regions that are kept do not count as consumed yet.
        self.blocks.release_kept();
        if let Some(halves) = first.halves {
            lock(rows).store.snapshot(halves, number, self.state.updates)?;
            first.saver.write(number, &self.state)?;
        }
        Ok(())
    }

    /// The name of a failpoint: in the first rank of the machine, in that of a further table, and in all others.
    pub fn named(&self, [first, writer, other]: [&'static str; 3]) -> &'static str {
        match (&self.first, &self.rows) {
            (Some(_), _) => first,
            (None, Some(_)) => writer,
            (None, None) => other,
        }
    }

    pub fn is_first(&self) -> bool {
        self.first.is_some()
    }

    /// What this rank says of snapshots, before an update.
    pub fn wish(&self) -> Wish {
        match (&self.first, &self.rows) {
            (Some(first), Some(rows)) => first.saver.wish(lock(rows).store.changed()),
            _ => Wish { room: true, ..Wish::default() },
        }
    }

    /// Tells main how far rank 0 is, which began an update at `begun`.
    pub fn tell_updates(&self, begun: Instant) {
        if self.is_first() {
            let control = &self.segments.control;
            report_updates(control, &self.state);
            control.learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        }
    }

    /// Computes what a shard needs no rows for.
    pub fn before_rows(&mut self, block: &Block) {
        self.slot.beat();
        self.network.begin(&self.state, block);
        self.shard.begin(&block.ids);
        // Ranks remove no rows, so what is found now stays where it is. New ids are looked for again once the rows are published.
        match &mut self.copies {
            Some(MergedCopies { copies, .. }) => copies.begin(&self.view, &self.shard.rows.lookup.unique),
            None => self.view.find_all(&self.shard.rows.lookup.unique, &mut self.shard.rows.records),
        }
    }

    /// Reads a shard's rows, which nobody writes meanwhile.
    pub fn read_rows(&mut self) {
        let BatchRows { lookup, records, values, .. } = &mut self.shard.rows;
        match &mut self.copies {
            Some(MergedCopies { copies, .. }) => copies.read_all(&self.view, &lookup.unique, &mut self.record, values),
            None => self.view.read_all(&lookup.unique, records, &mut self.record, values),
        }
    }

    /// Reads the rows of a shard for `iteration`, while the first rank does not write any; returns their generation.
    ///
    /// # Errors
    /// A rank that is gone.
    pub fn read_shared_rows(&mut self, iteration: u64) -> anyhow::Result<u64> {
        let reading = self.named(["rank.reading", "table.reading", "other.reading"]);
        let BatchRows { lookup, records, values, .. } = &mut self.shard.rows;
        let read = || {
            failpoint::reached(reading);
            self.view.read_all(&lookup.unique, records, &mut self.record, values);
        };
        Ok(self.seat.read_shared(iteration, read)?)
    }

    /// Computes the gradients of a shard whose rows were read.
    ///
    /// # Errors
    /// A loss or gradient that is not finite.
    pub fn compute(&mut self, block: &Block) -> anyhow::Result<Losses> {
        let Shard { rows, gradients, .. } = &mut self.shard;
        Ok(self.network.compute(&self.state, block, rows, gradients)?)
    }

    /// What the first rank of each machine does between two updates, or two periods, before which `all` said this.
    ///
    /// All machines take a snapshot behind the same update: when rank 0 finds that one is due and all have room for it, or where the table
    /// of one must not change any more without it.
    ///
    /// # Errors
    /// A snapshot that does not fit into shared memory.
    pub fn after_update(&mut self, all: &[Said]) -> anyhow::Result<()> {
        self.busy.iter_mut().for_each(Busy::count);
        if self.shown.0.elapsed() > Duration::from_secs(1) {
            self.record();
        }
        let full = all.iter().any(|said| said.wish.full);
        let due = all[0].wish.due && all.iter().all(|said| said.wish.room);
        if !full && !due {
            return Ok(());
        }
        if !full || self.agree_on_room(false)? {
            let begun = self.first.as_mut().and_then(|first| first.saver.begin_now(all[0].wish));
            begun.map_or(Ok(()), |number| self.save(number))?;
        }
        // Copying rows for a snapshot is no part of an update.
        self.busy.iter_mut().for_each(Busy::skip);
        Ok(())
    }

    /// Waits until every machine has room for a snapshot, the `last` one of the run or one that must not wait; false where one will not
    /// have any. The ranks exchange again and again meanwhile, so that a slow disk makes nobody late.
    fn agree_on_room(&mut self, last: bool) -> anyhow::Result<bool> {
        let wait = self.first.as_ref().map(|first| first.saver.begin_wait(last));
        loop {
            self.slot.beat();
            let mut room = match (&mut self.first, &wait) {
                (Some(first), Some(wait)) => first.saver.room(wait),
                _ => Room::Free,
            };
            self.seat.exchange(&mut [], &room.encode(), &mut |_, theirs| room = Room::of_all(room, theirs))?;
            match room {
                Room::Free => return Ok(true),
                Room::Never => return Ok(false),
                Room::NotYet => {}
            }
        }
    }

    /// Ends a pass: rank 0 evaluates, and says whether training is over.
    pub fn end_pass(&mut self) -> anyhow::Result<()> {
        self.record();
        self.slot.beat();
        let rows = self.rows.as_deref().map(lock);
        let table = rows.as_ref().map(|rows| rows.store.table());
        match (&mut self.first, table) {
            (Some(First { passes: Some(passes), metrics, .. }), Some(table)) => {
                if let Some(evaluation) = passes.end(&mut self.state, self.network.net(), table)? {
                    metrics.append("evaluation", &evaluation);
                }
            }
            _ => self.state.cursor.next_pass(),
        }
        let several = self.settings.ranks.tables > 1 || !self.prepared.node.is_alone();
        let pulse = Pulse::new(&self.segments.control, self.slot);
        let verdict = |table| Verdict::of(&self.state, several.then_some(table), || pulse.beat());
        let mine = table.map(|table| verdict(table).encode()).unwrap_or_default();
        drop(rows);
        let mut given = Vec::new();
        self.seat.exchange(&mut [], &mine, &mut |rank, bytes| {
            if !bytes.is_empty() {
                given.push((rank, Verdict::decode(bytes)));
            }
        })?;
        let mut verdicts = given.into_iter();
        let first = verdicts.next().filter(|(rank, _)| *rank == 0);
        let verdict = first.context("rank 0 did not say whether training is over")?.1?;
        for (rank, other) in verdicts {
            ensure!(
                verdict.same_rows(&other?),
                "the rows of the table of rank {rank} are not those of rank 0 any more: a write was lost. Snapshots of this pass may hold what \
                 followed: begin anew in another --run-dir"
            );
        }
        verdict.apply(&mut self.state);
        self.check_copies()?;
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        // The first rank has evaluated, which is no part of an update.
        self.busy.iter_mut().for_each(Busy::skip);
        Ok(())
    }

    /// Compares some of this rank's copies with the rows of the table, which nobody writes before the next exchange. Whoever misses an update
    /// misses that of thousands of rows.
    fn check_copies(&mut self) -> anyhow::Result<()> {
        let stale = self.copies.as_mut().and_then(|of| of.copies.stale(&self.view, CHECKED));
        if let Some(id) = stale {
            bail!(
                "the copy of row {id:#x} of rank {} is not the row of the table any more: an update was lost. Snapshots of this pass may hold what \
                 followed: begin anew in another --run-dir",
                self.seat.rank()
            );
        }
        Ok(())
    }

    pub fn report(&self) {
        if self.is_first() {
            report(&self.segments.control, &self.state);
        }
    }

    fn record(&mut self) {
        let (Some(First { metrics, saver, tables, .. }), Some(rows)) = (&mut self.first, &self.rows) else { return };
        let (snapshot_wait, early_snapshots) = saver.cost();
        let (then, before) = self.shown;
        let mean = |sum: f64| (self.sums_samples > 0).then(|| sum / self.sums_samples as f64);
        let record = Training {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / then.elapsed().as_secs_f64().max(1e-9),
            rows: lock(rows).store.table().len(),
            row_writes: Some(tables.iter().map(RowReader::batches).sum()),
            click: mean(self.sums.click),
            charge: mean(self.sums.charge),
            wait_s: self.blocks.waited().as_secs_f64(),
            rows_wait_s: self.exchanging.as_secs_f64(),
            snapshot_wait_s: snapshot_wait.as_secs_f64(),
            early_snapshots,
            cache: (self.settings.table.cache_rows > 0).then_some(self.copied),
            work: Work::of(self.settings, &self.segments.control),
        };
        metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }
}
