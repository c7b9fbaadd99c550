//! The rows of a batch, from the table itself or from the cache over it: the same numbers either way.

use crate::settings::{ValueSettings, WhenFull};
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
    /// The batch in hand: its rows, and where they lie. `None` for an id that the table has no room for.
    rows: Vec<f32>,
    records: Vec<Option<u32>>,
    ticket: Option<Ticket>,
}

impl Store {
    pub fn new(table: HostTable, settings: &ValueSettings) -> Self {
        let t = &settings.table;
        let cache = (t.cache_rows > 0).then(|| Cache::new(table.shape(), t.cache_rows, t.devices));
        Self {
            table,
            cache,
            when_full: t.when_full,
            finder: Finder::default(),
            rows: vec![],
            records: vec![],
            ticket: None,
        }
    }

    /// Finds the unique ids of a batch.
    pub fn find(&mut self, ids: &[u64], lookup: &mut Lookup) {
        self.finder.find(ids, lookup);
    }

    /// Fetches the rows of a batch ahead into the cache and pins them; `None` while pinned rows leave no room, and where there is
    /// no cache.
    ///
    /// # Errors
    /// A table without room, a batch larger than the cache.
    pub fn prefetch(&mut self, lookup: &Lookup) -> Result<Option<Ticket>, CacheError> {
        let Some(cache) = &mut self.cache else { return Ok(None) };
        match cache.prefetch(&mut self.table, &lookup.unique) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(CacheError::Stall) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The rows of a batch, one after another; they stay at hand until [`update`](Self::update). `ticket` is what
    /// [`prefetch`](Self::prefetch) gave.
    ///
    /// # Errors
    /// As [`prefetch`](Self::prefetch).
    pub fn gather(&mut self, lookup: &Lookup, ticket: Option<Ticket>) -> anyhow::Result<&[f32]> {
        if let Some(cache) = &mut self.cache {
            let ticket = match ticket {
                Some(ticket) => ticket,
                None => cache.prefetch(&mut self.table, &lookup.unique)?,
            };
            cache.gather(&ticket, &mut self.rows);
            self.ticket = Some(ticket);
            return Ok(&self.rows);
        }
        let dim = self.table.shape().dim;
        self.rows.clear();
        self.records.clear();
        let mut first = vec![0; self.table.shape().words()];
        for &id in &lookup.unique {
            let record = self.table.find_or_insert(id);
            self.records.push(record);
            match record {
                Some(record) => self.rows.extend_from_slice(self.table.row(record)),
                None if self.when_full == WhenFull::Error => {
                    return Err(TableError::Full { rows: self.table.len() }.into());
                }
                None => {
                    self.table.read(id, &mut first);
                    self.rows.extend_from_slice(bytemuck::cast_slice(&first[..dim]));
                }
            }
        }
        Ok(&self.rows)
    }

    /// Adds to each row's gradient the row times `weight` of its place and version: the two direct elements' and the others'.
    pub fn add_prior(&self, lookup: &Lookup, gradients: &mut [f32], weight: impl Fn(usize, u32) -> [f32; DIRECT + 1]) {
        let dim = self.table.shape().dim;
        let mut add = |i: usize, version: u32| {
            let weights = weight(i, version);
            let rows = &self.rows[i * dim..(i + 1) * dim];
            let elements = gradients[i * dim..(i + 1) * dim].iter_mut().zip(rows);
            elements.enumerate().for_each(|(element, (g, w))| *g += weights[element.min(DIRECT)] * w);
        };
        match (&self.cache, &self.ticket) {
            (Some(cache), Some(ticket)) => cache.versions(ticket).enumerate().for_each(|(i, v)| add(i, v)),
            _ => {
                for (i, record) in self.records.iter().enumerate().take(lookup.unique.len()) {
                    if let Some(record) = record {
                        add(i, *self.table.record(*record).last().expect("a version"));
                    }
                }
            }
        }
    }

    /// Moves the rows of the batch in hand along their gradients.
    pub fn update(&mut self, gradients: &[f32], rate: f32) {
        if let (Some(cache), Some(ticket)) = (&mut self.cache, self.ticket.take()) {
            cache.update(&ticket, gradients, rate);
            cache.release(ticket);
            return;
        }
        let dim = self.table.shape().dim;
        for (record, gradient) in self.records.iter().zip(gradients.chunks_exact(dim)) {
            if let Some(record) = record {
                self.table.update(*record, gradient, rate);
            }
        }
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

    pub fn counters(&self) -> Option<Counters> {
        self.cache.as_ref().map(Cache::counters)
    }
}
