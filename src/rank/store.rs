//! The rows of batches, from the table itself or from the cache over it: the same numbers either way.
//!
//! A batch goes through five steps: its unique ids are found, their rows are fetched, settled, gathered, and moved along their gradients.
//! The first two may be done while earlier batches are under way. It is settled in its turn, after the update of the batch before: ids
//! that are new get a row then, by the rules of [`Admission`], and rows that went since they were fetched are fetched again.

use std::sync::Arc;

use crate::run::failpoint;
use crate::run::sparse_part::{SparseHead, SparsePart};
use crate::settings::ValueSettings;
use crate::shm::{Halves, Part, PartWriter, ShmError};
use crate::sparse::admission::Asked;
use crate::sparse::cache::Counters;
use crate::sparse::cache::memory::{DeviceMemory, DeviceStep};
use crate::sparse::lookup::Finder;
use crate::sparse::{Admission, Cache, CacheError, HostTable, Lookup, Ticket};
use crate::values::Block;

/// Rows that the cache fetches from the table at a time: an update that becomes due waits for some tens of microseconds. Batches of unit tests
/// are small.
const FETCHED: usize = if cfg!(test) { 2 } else { 512 };

/// Where rows are read and written during training.
pub struct Store {
    table: HostTable,
    cache: Option<Cache>,
    admission: Admission,
    /// Days since 1970-01-01 of the training days, where rows are to be told by their age; else empty.
    days: Vec<u32>,
    /// Of the batch in hand, for each unique id: exposures that are counted, and the newest day.
    seen: Vec<u32>,
    newest: Vec<u32>,
    /// Memory for the first value of an id that the table has no room for.
    first: Vec<u32>,
}

/// The rows of a batch; its memory serves one batch after another.
#[derive(Debug, Default)]
pub struct BatchRows {
    /// Number of the batch among those under way, by which a device knows it.
    pub slot: usize,
    pub lookup: Lookup,
    /// The rows of the unique ids, `dim` floats each, once they are gathered; empty where they are on a device.
    pub values: Vec<f32>,
    /// How often each of them was updated by then, `None` for an id without a row; empty where rows are on a device.
    pub versions: Vec<Option<u32>>,
    fetched: bool,
    /// So many of the records, from the first, were noted before their update.
    noted: usize,
    /// Where they lie in the cache, and in the table; `None` for an id without a row.
    ticket: Option<Ticket>,
    pub records: Vec<Option<u32>>,
}

impl BatchRows {
    pub fn in_slot(slot: usize) -> Self {
        Self { slot, ..Self::default() }
    }

    /// Begins with a batch of these ids: finds the unique ones.
    pub fn begin(&mut self, finder: &mut Finder, ids: &[u64]) {
        finder.find(ids, &mut self.lookup);
        (self.fetched, self.noted) = (false, 0);
    }

    pub fn is_fetched(&self) -> bool {
        self.fetched
    }

    fn end(&mut self) {
        self.records.clear();
        self.fetched = false;
    }
}

impl Store {
    pub fn new(table: HostTable, settings: &ValueSettings) -> Self {
        let t = &settings.table;
        let cache = (t.cache_rows > 0).then(|| Cache::new(table.shape(), t.cache_rows, t.devices));
        Self::over(table, settings, cache)
    }

    /// Rows are read and written in the table itself.
    pub fn direct(table: HostTable, settings: &ValueSettings) -> Self {
        Self::over(table, settings, None)
    }

    /// Rows are read and written in the memory of GPUs.
    pub fn on_device(table: HostTable, settings: &ValueSettings, memory: Box<dyn DeviceMemory>) -> Self {
        let cache = Cache::on_device(table.shape(), memory);
        Self::over(table, settings, Some(cache))
    }

    fn over(table: HostTable, settings: &ValueSettings, cache: Option<Cache>) -> Self {
        let t = &settings.table;
        Self {
            cache,
            first: vec![0; table.shape().words()],
            admission: Admission::new(t),
            table,
            days: vec![],
            seen: vec![],
            newest: vec![],
        }
    }

    /// Goes on from what a snapshot holds beside rows: how often ids without one were seen. `days` are those of the training days.
    ///
    /// # Errors
    /// Counts of other settings.
    pub fn begin(&mut self, settings: &ValueSettings, days: &[u32], sightings: &[u8]) -> anyhow::Result<()> {
        if settings.table.keep_days > 0 {
            self.days = days.to_vec();
        }
        self.admission.restore(&settings.table, sightings)
    }

    /// Fetches and pins the rows that a batch's ids have by now, one piece of the work with each call. False, and nothing has changed, while
    /// pinned rows of earlier batches leave no room in the cache.
    ///
    /// # Errors
    /// A batch larger than the cache.
    pub fn fetch(&mut self, batch: &mut BatchRows) -> anyhow::Result<bool> {
        let Some(cache) = &mut self.cache else {
            batch.records.clear();
            self.table.find_all(&batch.lookup.unique, &mut batch.records);
            batch.fetched = true;
            return Ok(true);
        };
        let unique = &batch.lookup.unique;
        match &mut batch.ticket {
            None => match cache.prefetch(&mut self.table, unique) {
                Ok(ticket) => batch.ticket = Some(ticket),
                Err(CacheError::Stall) => return Ok(false),
                Err(e) => return Err(e.into()),
            },
            Some(ticket) => {
                let most = if cache.is_on_device() { usize::MAX } else { FETCHED };
                batch.fetched = cache.fetch(&mut self.table, unique, ticket, most);
            }
        }
        Ok(true)
    }

    /// Notes what up to `most` rows of a fetched batch hold, for the next snapshot and for a way back to the newest one; the update of
    /// the batch has less to do then. False where there is nothing to note: a cache writes rows back long after their update.
    pub fn note_ahead(&mut self, batch: &mut BatchRows, most: usize) -> bool {
        let end = batch.records.len().min(batch.noted.saturating_add(most));
        if self.cache.is_some() || batch.noted == end || !self.table.is_tracked() {
            return false;
        }
        let next = batch.noted..end;
        self.table.note_ahead(&batch.lookup.unique[next.clone()], &batch.records[next]);
        batch.noted = end;
        true
    }

    /// Gives rows to those ids of a fetched batch that are to have one. All batches before it are updated, none after it is settled.
    ///
    /// # Errors
    /// A table without room.
    pub fn settle(&mut self, batch: &mut BatchRows, block: &Block) -> anyhow::Result<()> {
        let Self { table, cache, admission, days, seen, newest, .. } = self;
        let (unique, inverse) = (&batch.lookup.unique, &batch.lookup.inverse);
        let fields = inverse.len().checked_div(block.len()).unwrap_or(0).max(1);
        seen.clear();
        let counts = admission.counts() && block.epoch == 0;
        #[cfg(test)]
        let counts = counts || admission.planted == Some(Bug::CountsEveryPass);
        if counts {
            seen.resize(unique.len(), 0);
            inverse.iter().for_each(|&place| seen[place as usize] += 1);
        }
        newest.clear();
        if !days.is_empty() {
            newest.resize(unique.len(), 0);
            for (places, day) in inverse.chunks_exact(fields).zip(&block.day) {
                for &place in places {
                    let newest = &mut newest[place as usize];
                    *newest = (*newest).max(days[usize::from(*day)]);
                }
            }
        }
        if let (Some(cache), Some(ticket)) = (cache.as_mut(), &batch.ticket) {
            // Where records change hands, a row that is on its way to the host must not meet the next owner of its record.
            if table.shape().marks {
                cache.land(table);
            }
            cache.records(ticket, &mut batch.records);
        } else if table.shape().marks {
            // What was found ahead may have been freed since, and given to another id.
            for (record, &id) in batch.records.iter_mut().zip(unique) {
                #[cfg(test)]
                if admission.planted == Some(Bug::BelievesWhatItFoundAhead) {
                    continue;
                }
                *record = record.filter(|record| table.owner(*record) == id);
            }
        }
        #[cfg(test)]
        let leaves = admission.planted == Some(Bug::LeavesFreedRowsInTheCache);
        let asked = Asked { ids: unique, seen, days: newest };
        admission.admit(table, &asked, &mut batch.records, |id| {
            #[cfg(test)]
            if leaves {
                return;
            }
            if let Some(cache) = cache {
                cache.forget(id);
            }
        })?;
        if let (Some(cache), Some(ticket)) = (cache, &mut batch.ticket) {
            cache.settle(table, unique, &batch.records, ticket);
        }
        Ok(())
    }

    /// Copies the rows of a settled batch, one after another, into `batch.values`, and their versions.
    pub fn gather(&mut self, batch: &mut BatchRows) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, &batch.ticket) {
            if cache.is_on_device() {
                cache.gather_on_device(ticket, &batch.lookup.unique, batch.slot);
            } else {
                cache.gather(ticket, &batch.lookup.unique, &mut batch.values, &mut batch.versions);
            }
            return;
        }
        let shape = self.table.shape();
        batch.values.clear();
        batch.versions.clear();
        for (i, (&id, record)) in batch.lookup.unique.iter().zip(&batch.records).enumerate() {
            self.table.load_ahead(&batch.records, i);
            let words = match record {
                Some(record) => self.table.record(*record),
                None => {
                    self.table.read(id, &mut self.first);
                    &self.first[..]
                }
            };
            batch.versions.push(record.map(|_| words[shape.words() - 1]));
            batch.values.extend_from_slice(bytemuck::cast_slice(&words[..shape.dim]));
        }
    }

    /// Moves the rows of a batch along their gradients, `dim` floats for each, and ends the batch.
    pub fn update(&mut self, batch: &mut BatchRows, gradients: &[f32], rate: f32) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, batch.ticket.take()) {
            cache.update(ticket, gradients, rate);
        } else {
            let dim = self.table.shape().dim;
            let rows = batch.lookup.unique.iter().zip(&batch.records);
            for (i, ((&id, record), gradient)) in rows.zip(gradients.chunks_exact(dim)).enumerate() {
                self.table.load_ahead(&batch.records, i);
                if let Some(record) = record {
                    self.table.update(id, *record, gradient, rate);
                }
            }
        }
        batch.end();
    }

    /// Whether rows are on a GPU, where batches are gathered and updated.
    pub fn is_on_device(&self) -> bool {
        self.cache.as_ref().is_some_and(Cache::is_on_device)
    }

    /// Moves the rows of a batch along the gradients that the GPU has for its slot, and ends the batch.
    pub fn update_on_device(&mut self, batch: &mut BatchRows, step: &DeviceStep) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, batch.ticket.take()) {
            cache.update_on_device(ticket, batch.slot, step);
        }
        batch.end();
    }

    /// Ends a batch without an update: its rows may be evicted.
    pub fn release(&mut self, batch: &mut BatchRows) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, batch.ticket.take()) {
            cache.release(ticket);
        }
        batch.end();
    }

    /// Rows that have changed since the newest snapshot, at most.
    pub fn changed(&self) -> usize {
        // Rows with a mark change in the table when they are used, so that those that the cache has changed are among them.
        let in_cache = self.cache.as_ref().filter(|_| !self.table.shape().marks);
        self.table.changed_len() + in_cache.map_or(0, Cache::dirty)
    }

    /// Begins snapshot `number`, the state after `update`: its rows are those that have changed since the one before, as they are now. They
    /// are yet to be copied ([`copy_rows`](Self::copy_rows)).
    ///
    /// Where most rows have changed, the snapshot takes all of them, if the half has room: it is a base then, and nothing needs to be merged. Not
    /// where rows were dropped: it may have to serve as what has changed since an older base, and says that they are gone.
    ///
    /// # Errors
    /// More rows than the half holds.
    ///
    /// # Panics
    /// While rows of the snapshot before are being copied.
    pub fn begin_snapshot(&mut self, halves: &Arc<Halves>, number: u64, update: u64) -> Result<(), ShmError> {
        failpoint::reached("rank.snapshot");
        self.flush();
        let (table, sightings) = (&self.table, self.admission.sightings());
        let (layout, changed) = (table.shape().into(), table.changed_len());
        let mut out = PartWriter::begin(halves.clone(), Part::Sparse, number, update);
        let capacity = |rows| SparsePart::capacity(layout, rows, sightings.len());
        let dropped: Vec<u8> = table.dropped().flat_map(u64::to_le_bytes).collect();
        let all = dropped.is_empty() && 2 * changed > table.len() && out.check_room(capacity(table.len())).is_ok();
        let rows = if all { table.len() } else { changed };
        let head = SparseHead { rows, dropped: dropped.len() / size_of::<u64>(), sightings: sightings.len(), all };
        out.check_room(head.bytes(layout))?;
        [&head.encode()[..], &dropped, sightings].into_iter().try_for_each(|piece| out.push(piece))?;
        self.table.begin_snapshot(out, all);
        Ok(())
    }

    /// Copies up to `most` rows of the newest snapshot into its half. The snapshot's rows are ready once all are copied. Returns false
    /// where there was nothing to do.
    pub fn copy_rows(&mut self, most: usize) -> bool {
        if !self.table.is_copying() {
            return false;
        }
        let left = self.table.copy_rows(most);
        failpoint::reached(if left { "rank.snapshot.copying" } else { "rank.snapshot.rows" });
        true
    }

    /// Puts all of snapshot `number` into its half.
    ///
    /// # Errors
    /// As [`begin_snapshot`](Self::begin_snapshot).
    pub fn snapshot(&mut self, halves: &Arc<Halves>, number: u64, update: u64) -> Result<(), ShmError> {
        self.begin_snapshot(halves, number, update)?;
        while self.copy_rows(usize::MAX) {}
        Ok(())
    }

    /// Takes everything that was changed to the table.
    pub fn flush(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.flush(&mut self.table);
        }
    }

    /// The table; as of the last [`flush`](Self::flush) where there is a cache.
    pub fn table(&self) -> &HostTable {
        &self.table
    }

    /// The table, to be worked on directly.
    ///
    /// # Panics
    /// Where there is a cache, which would not know.
    pub fn table_mut(&mut self) -> &mut HostTable {
        assert!(self.cache.is_none());
        &mut self.table
    }

    /// Gives the table back, without what the cache holds.
    pub fn into_table(self) -> HostTable {
        self.table
    }

    pub fn counters(&self) -> Option<Counters> {
        self.cache.as_ref().map(Cache::counters)
    }
}

#[cfg(test)]
use crate::sparse::admission::Bug;

#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
