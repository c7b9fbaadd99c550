//! The merged gradients of all ranks, applied to the rows of a table by its first rank, and to the copies of rows by each of the others.

use crate::collective::rows::{Damaged, Merger, Message, RowSums};
use crate::settings::{RankSync, ValueSettings, WhenFull};
use crate::sparse::TableError;
use crate::sparse::cache::copies::Copies;
use crate::sparse::table::TableShape;

use super::prior::{BatchPrior, RowPrior};
use super::rows::RowStep;
use super::said::Copied;
use super::store::Store;

/// The table, and what its updates need.
pub struct MergedRows {
    pub store: Store,
    merging: Merging,
    /// Of the merged rows: their record numbers, where they had one before this batch.
    records: Vec<Option<u32>>,
    /// Memory for a record.
    record: Vec<u32>,
}

/// Copies of rows, and what their updates need.
pub struct MergedCopies {
    pub copies: Copies,
    merging: Merging,
    /// Of the merged rows: the places of their copies.
    places: Vec<u32>,
}

/// What merging needs.
struct Merging {
    prior: RowPrior,
    merger: Merger,
    /// Memory for a gradient.
    gradient: Vec<f32>,
}

/// Why the rows of a batch were not written.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Merging {
    fn new(prior: RowPrior) -> Self {
        Self { prior, merger: Merger::default(), gradient: vec![] }
    }

    /// Finds the unique rows of the gradients of all ranks.
    fn begin<'m>(
        &mut self,
        given: impl Iterator<Item = &'m [u8]>,
        settings: &ValueSettings,
    ) -> Result<Vec<Message<'m>>, Damaged> {
        let (dim, fields) = (settings.values.dim, settings.values.fields.len());
        let messages = given.enumerate().map(|(rank, message)| Message::decode(rank, message, dim, fields));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        self.merger.begin(&messages);
        self.gradient.resize(dim, 0.0);
        Ok(messages)
    }
}

/// Moves a record along the merged gradient of its row, to which the prior's part is added.
fn step_row(shape: TableShape, prior: &BatchPrior, row: RowSums, gradient: &mut [f32], rate: f32, record: &mut [u32]) {
    let version = *record.last().expect("a version");
    let floats = bytemuck::cast_slice(&record[..shape.dim]);
    prior.add(row.field as usize, row.mean_weight(), version, floats, gradient);
    shape.update(record, gradient, rate);
}

impl MergedRows {
    pub fn new(store: Store, prior: RowPrior) -> Self {
        Self { store, merging: Merging::new(prior), records: vec![], record: vec![] }
    }

    /// Moves the rows of all ranks along their merged gradients, of a batch of `whole` samples. In step nobody reads meanwhile; ranks that
    /// overlap may, so that rows are written by atomic words. `given` are the row gradients of each rank, in the order of the ranks.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub fn write<'m>(
        &mut self,
        given: impl Iterator<Item = &'m [u8]>,
        settings: &ValueSettings,
        step: RowStep,
        whole: u64,
    ) -> Result<(), NotWritten> {
        let Self { store, merging, records, record } = self;
        let messages = merging.begin(given, settings)?;
        let Merging { prior, merger, gradient } = merging;
        let prior = prior.of_batch(whole, step.passes);
        let table = store.table_mut();
        let shape = table.shape();
        records.clear();
        table.find_all(merger.ids(), records);
        for (place, &id) in merger.ids().iter().enumerate() {
            table.load_ahead(records, place);
            let row = merger.merge(&messages, place, settings.ranks.sparse_average, gradient);
            let Some(at) = records[place].or_else(|| table.find_or_insert(id)) else {
                if settings.table.when_full == WhenFull::Error {
                    return Err(TableError::Full { rows: table.len() }.into());
                }
                continue;
            };
            let change = |words: &mut [u32]| step_row(shape, &prior, row, gradient, step.rate, words);
            match settings.ranks.sync {
                RankSync::Step => table.change(id, at, change),
                RankSync::Overlap => table.change_shared(id, at, record, change),
            }
        }
        table.count_batch();
        Ok(())
    }
}

impl MergedCopies {
    pub fn new(copies: Copies, prior: RowPrior) -> Self {
        Self { copies, merging: Merging::new(prior), places: vec![] }
    }

    /// What the copies have done so far.
    pub fn copied(&self) -> Copied {
        Copied::of(self.copies.counters())
    }

    /// Moves the copies as [`MergedRows::write`] moves their rows: to the same bytes.
    ///
    /// # Errors
    /// Damaged gradients of a rank.
    pub fn write<'m>(
        &mut self,
        given: impl Iterator<Item = &'m [u8]>,
        settings: &ValueSettings,
        step: RowStep,
        whole: u64,
    ) -> Result<(), Damaged> {
        let Self { copies, merging, places } = self;
        let messages = merging.begin(given, settings)?;
        let Merging { prior, merger, gradient } = merging;
        let (prior, shape) = (prior.of_batch(whole, step.passes), copies.shape());
        copies.find_all(merger.ids(), places);
        for (number, &place) in places.iter().enumerate() {
            copies.load_ahead(places, number);
            if let Some(record) = copies.record_mut(place) {
                let row = merger.merge(&messages, number, settings.ranks.sparse_average, gradient);
                step_row(shape, &prior, row, gradient, step.rate, record);
            }
        }
        copies.end();
        Ok(())
    }
}

#[cfg(test)]
#[path = "merged/tests.rs"]
mod tests;
