//! The rows of a table in the hands of its first rank: moved along the merged gradients of all ranks.

use crate::collective::rows::{Damaged, Merger, Message};
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
    /// Of the merged rows: their record numbers, where they had one before this batch.
    records: Vec<Option<u32>>,
    /// Memory for a gradient and for a record.
    gradient: Vec<f32>,
    record: Vec<u32>,
}

/// Why the rows of a batch were not written.
#[derive(Debug, thiserror::Error)]
pub enum NotWritten {
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error(transparent)]
    Table(#[from] TableError),
}

impl MergedRows {
    pub fn new(store: Store, prior: RowPrior) -> Self {
        Self { store, prior, merger: Merger::default(), records: vec![], gradient: vec![], record: vec![] }
    }

    /// Moves the rows of all ranks along their merged gradients, of a batch of `whole` samples, by atomic words: other ranks may read.
    /// `given` are the row gradients of each rank, in the order of the ranks.
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
        let Self { store, prior, merger, records, gradient, record } = self;
        let (dim, average) = (settings.values.dim, settings.ranks.sparse_average);
        let fields = settings.values.fields.len();
        let messages = given.enumerate().map(|(rank, message)| Message::decode(rank, message, dim, fields));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        merger.begin(&messages);
        let prior = prior.of_batch(whole, step.passes);
        let table = store.table_mut();
        records.clear();
        table.find_all(merger.ids(), records);
        gradient.resize(dim, 0.0);
        for (place, &id) in merger.ids().iter().enumerate() {
            table.load_ahead(records, place);
            let row = merger.merge(&messages, place, average, gradient);
            let Some(at) = records[place].or_else(|| table.find_or_insert(id)) else {
                if settings.table.when_full == WhenFull::Error {
                    return Err(TableError::Full { rows: table.len() }.into());
                }
                continue;
            };
            let version = *table.record(at).last().expect("a version");
            prior.add(row.field as usize, row.mean_weight(), version, table.row(at), gradient);
            table.update_shared(id, at, gradient, step.rate, record);
        }
        table.count_batch();
        Ok(())
    }
}
