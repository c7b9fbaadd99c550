//! The rows of a table in the hands of its first rank: moved along the merged gradients of all ranks.

use crate::collective::rows::{Damaged, Merger, RowGradients};
use crate::settings::{ValueSettings, WhenFull};
use crate::sparse::TableError;

use super::prior::RowPrior;
use super::rows::RowStep;
use super::store::Store;

/// The table, and what its updates need.
pub struct MergedRows {
    pub store: Store,
    prior: RowPrior,
    merger: Merger,
    merged: RowGradients,
    /// Of the merged rows: their record numbers, where they had one before this batch.
    records: Vec<Option<u32>>,
    /// Memory for a record.
    record: Vec<u32>,
}

impl MergedRows {
    pub fn new(store: Store, prior: RowPrior) -> Self {
        Self {
            store,
            prior,
            merger: Merger::default(),
            merged: RowGradients::default(),
            records: vec![],
            record: vec![],
        }
    }

    /// Begins a batch.
    pub fn begin(&mut self) {
        self.merger.begin();
    }

    /// Takes in the gradients of the next rank.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn add(&mut self, message: &[u8], dim: usize) -> Result<(), Damaged> {
        self.merger.add(message, dim)
    }

    /// Moves the rows of all ranks along their merged gradients, of a batch of `whole` samples, by atomic words: other ranks may read.
    ///
    /// # Errors
    /// A table without room.
    pub fn write(&mut self, settings: &ValueSettings, step: RowStep, whole: u64) -> Result<(), TableError> {
        let dim = settings.values.dim;
        self.merger.finish(settings.ranks.sparse_average, dim, &mut self.merged);
        let prior = self.prior.of_batch(whole, step.passes);
        let table = self.store.table_mut();
        self.records.clear();
        table.find_all(&self.merged.ids, &mut self.records);
        for row in 0..self.merged.ids.len() {
            table.load_ahead(&self.records, row);
            let weight = self.merged.mean_weight(row);
            let Some(record) = self.records[row].or_else(|| table.find_or_insert(self.merged.ids[row])) else {
                if settings.table.when_full == WhenFull::Error {
                    return Err(TableError::Full { rows: table.len() });
                }
                continue;
            };
            let version = *table.record(record).last().expect("a version");
            let gradient = &mut self.merged.gradients[row * dim..(row + 1) * dim];
            prior.add(self.merged.fields[row] as usize, weight, version, table.row(record), gradient);
            table.update_shared(self.merged.ids[row], record, gradient, step.rate, &mut self.record);
        }
        table.count_batch();
        Ok(())
    }
}
