//! A rank's shard of a batch: its rows and their gradients, and what it gives of both to the writer of its table.

use crate::collective::{hints, rows};
use crate::shm::Written;
use crate::sparse::Lookup;
use crate::sparse::lookup::Finder;

use super::occurrences::Occurrences;
use super::store::BatchRows;

/// The shard at work; keeps its memory from batch to batch.
pub struct Shard {
    pub rows: BatchRows,
    /// `dim` floats for each unique id.
    pub gradients: Vec<f32>,
    /// Ids of a sample.
    fields: usize,
    occurrences: Occurrences,
    finder: Finder,
    /// The unique ids of the next batch, if they were found ahead; and memory for those of the one behind it.
    next: Option<Lookup>,
    spare: Lookup,
}

impl Shard {
    /// Without a batch, of samples with so many ids each.
    pub fn new(fields: usize) -> Self {
        Self {
            rows: BatchRows::default(),
            gradients: vec![],
            fields,
            occurrences: Occurrences::default(),
            finder: Finder::default(),
            next: None,
            spare: Lookup::default(),
        }
    }

    /// Begins with a batch: finds its unique ids, unless they were found ahead.
    pub fn begin(&mut self, ids: &[u64]) {
        let lookup = &mut self.rows.lookup;
        match self.next.take() {
            Some(found) => self.spare = std::mem::replace(lookup, found),
            None => self.finder.find(ids, lookup),
        }
    }

    /// Finds the unique ids of the next batch.
    pub fn look_ahead(&mut self, ids: &[u64]) {
        let mut next = std::mem::take(&mut self.spare);
        self.finder.find(ids, &mut next);
        self.next = Some(next);
    }

    /// Whether the unique ids of the next batch were found ahead: then the writer of the table is told.
    pub fn knows_next(&self) -> bool {
        self.next.is_some()
    }

    /// Writes the gradients of the rows to the beginning of `out`, and behind them hints for the writer of the table, which stay on this machine.
    /// `weights` are those of the samples; whoever `knows_records` has looked for the records of all rows.
    pub fn write(&mut self, weights: &[f32], knows_records: bool, out: &mut [u8]) -> Written {
        let Self { rows: BatchRows { lookup, records, .. }, gradients, fields, occurrences, next, .. } = self;
        occurrences.count(lookup, weights, *fields);
        let given = rows::encode(lookup, |row| occurrences.of(row), gradients, *fields, out);
        let records = if knows_records { &records[..] } else { &[] };
        let next = next.as_ref().map_or(&[][..], |next| &next.unique);
        let here = hints::encode(records, next, out.get_mut(given..).unwrap_or_default());
        Written { bytes: given + here, here }
    }
}
