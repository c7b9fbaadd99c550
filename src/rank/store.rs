//! The rows of batches, from the table itself or from the cache over it: the same numbers either way.
//!
//! A batch goes through four steps: its unique ids are found, their rows are fetched, gathered, and moved along their gradients. The
//! first two may be done while earlier batches are under way; a gather comes after the update of the batch before.

use crate::run::failpoint;
use crate::settings::{ValueSettings, WhenFull};
use crate::shm::{Halves, Part, ShmError};
use crate::sparse::cache::Counters;
use crate::sparse::lookup::Finder;
use crate::sparse::table::DIRECT;
use crate::sparse::{Cache, CacheError, HostTable, Lookup, TableError, Ticket};

/// Where rows are read and written during training.
pub struct Store {
    table: HostTable,
    cache: Option<Cache>,
    when_full: WhenFull,
    finder: Finder,
    /// Memory for the first value of an id that the table has no room for.
    first: Vec<u32>,
}

/// The rows of a batch; its memory serves one batch after another.
#[derive(Debug, Default)]
pub struct BatchRows {
    pub lookup: Lookup,
    /// The rows of the unique ids, `dim` floats each, once they are gathered.
    pub values: Vec<f32>,
    fetched: bool,
    /// Where they lie in the cache, or in the table; `None` for an id that the table has no room for.
    ticket: Option<Ticket>,
    records: Vec<Option<u32>>,
}

impl BatchRows {
    pub fn is_fetched(&self) -> bool {
        self.fetched
    }
}

impl Store {
    pub fn new(table: HostTable, settings: &ValueSettings) -> Self {
        let t = &settings.table;
        let cache = (t.cache_rows > 0).then(|| Cache::new(table.shape(), t.cache_rows, t.devices));
        let first = vec![0; table.shape().words()];
        Self { table, cache, when_full: t.when_full, finder: Finder::default(), first }
    }

    /// Finds the unique ids of a batch.
    pub fn find(&mut self, ids: &[u64], batch: &mut BatchRows) {
        self.finder.find(ids, &mut batch.lookup);
        batch.fetched = false;
    }

    /// Inserts the ids that are new, and fetches and pins the batch's rows where there is a cache. False, and nothing has changed,
    /// while pinned rows of earlier batches leave no room.
    ///
    /// # Errors
    /// A table without room, a batch larger than the cache.
    pub fn fetch(&mut self, batch: &mut BatchRows) -> anyhow::Result<bool> {
        if batch.fetched {
            return Ok(true);
        }
        if let Some(cache) = &mut self.cache {
            match cache.prefetch(&mut self.table, &batch.lookup.unique) {
                Ok(ticket) => batch.ticket = Some(ticket),
                Err(CacheError::Stall) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        } else {
            batch.records.clear();
            for &id in &batch.lookup.unique {
                let record = self.table.find_or_insert(id);
                if record.is_none() && self.when_full == WhenFull::Error {
                    return Err(TableError::Full { rows: self.table.len() }.into());
                }
                batch.records.push(record);
            }
        }
        batch.fetched = true;
        Ok(true)
    }

    /// Copies the rows of a fetched batch, one after another, into `batch.values`.
    pub fn gather(&mut self, batch: &mut BatchRows) {
        if let (Some(cache), Some(ticket)) = (&self.cache, &batch.ticket) {
            cache.gather(ticket, &mut batch.values);
            return;
        }
        let dim = self.table.shape().dim;
        batch.values.clear();
        for (&id, record) in batch.lookup.unique.iter().zip(&batch.records) {
            match record {
                Some(record) => batch.values.extend_from_slice(self.table.row(*record)),
                None => {
                    self.table.read(id, &mut self.first);
                    batch.values.extend_from_slice(bytemuck::cast_slice(&self.first[..dim]));
                }
            }
        }
    }

    /// Adds to each row's gradient the row times `weight` of its place and version: the two direct elements' and the others'.
    pub fn add_prior(
        &self,
        batch: &BatchRows,
        gradients: &mut [f32],
        weight: impl Fn(usize, u32) -> [f32; DIRECT + 1],
    ) {
        let dim = self.table.shape().dim;
        let mut add = |i: usize, version: u32| {
            let weights = weight(i, version);
            let rows = &batch.values[i * dim..(i + 1) * dim];
            let elements = gradients[i * dim..(i + 1) * dim].iter_mut().zip(rows);
            elements.enumerate().for_each(|(element, (g, w))| *g += weights[element.min(DIRECT)] * w);
        };
        match (&self.cache, &batch.ticket) {
            (Some(cache), Some(ticket)) => cache.versions(ticket).enumerate().for_each(|(i, v)| add(i, v)),
            _ => {
                for (i, record) in batch.records.iter().enumerate() {
                    if let Some(record) = record {
                        add(i, *self.table.record(*record).last().expect("a version"));
                    }
                }
            }
        }
    }

    /// Moves the rows of a batch along their gradients, `dim` floats for each, and ends the batch.
    pub fn update(&mut self, batch: &mut BatchRows, gradients: &[f32], rate: f32) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, &batch.ticket) {
            cache.update(ticket, gradients, rate);
        } else {
            let dim = self.table.shape().dim;
            let rows = batch.lookup.unique.iter().zip(&batch.records);
            for ((&id, record), gradient) in rows.zip(gradients.chunks_exact(dim)) {
                if let Some(record) = record {
                    self.table.update(id, *record, gradient, rate);
                }
            }
        }
        self.release(batch);
    }

    /// Ends a batch: its rows may be evicted.
    pub fn release(&mut self, batch: &mut BatchRows) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, batch.ticket.take()) {
            cache.release(ticket);
        }
        batch.records.clear();
        batch.fetched = false;
    }

    /// Rows that have changed since the newest snapshot, at most.
    pub fn changed(&self) -> usize {
        self.table.changed_len() + self.cache.as_ref().map_or(0, Cache::dirty)
    }

    /// Puts the rows that have changed since the newest snapshot, as they are after `update`, into the half of snapshot `number`.
    ///
    /// # Errors
    /// More rows than the half holds.
    pub fn snapshot(&mut self, halves: &Halves, number: u64, update: u64) -> Result<(), ShmError> {
        failpoint::reached("rank.snapshot");
        self.flush();
        let changed: Vec<([u8; 8], u32)> =
            self.table.changed().map(|(id, record)| (id.to_le_bytes(), record)).collect();
        let pieces = changed
            .iter()
            .flat_map(|(id, record)| [&id[..], bytemuck::cast_slice::<u32, u8>(self.table.record(*record))]);
        halves.write(Part::Sparse, number, update, pieces)?;
        failpoint::reached("rank.snapshot.rows");
        self.table.begin_changes(number);
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
