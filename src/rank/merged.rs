//! The merged gradients of all ranks, applied to the rows of a table by its first rank, and to the copies of rows by each of the others.

use std::ops::Range;

use crate::collective::hints::Hints;
use crate::collective::merger::Merger;
use crate::collective::rows::{Damaged, Message};
use crate::settings::{ValueSettings, WhenFull};
use crate::shm::Broken;
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
    /// The ranks of the table.
    ranks: Range<usize>,
    merging: Merging,
    /// Of the merged rows: their record numbers, `None` where the table has no room for them.
    records: Vec<Option<u32>>,
    /// Ids whose record no rank knew, and what the table says of them.
    missing: Vec<u64>,
    found: Vec<Option<u32>>,
    order: Order,
}

/// The order in which rows are written: those that are wanted first.
#[derive(Default)]
struct Order {
    /// Places among the merged rows, and their records.
    places: Vec<u32>,
    records: Vec<Option<u32>>,
    /// Places of rows that nobody wants.
    rest: Vec<u32>,
    #[cfg(test)]
    planted: Option<tests::Bug>,
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
}

/// What begins while the rows of a batch are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// From here on the table changes.
    Changes,
    /// The rows that are wanted are written, and others follow.
    Rest,
}

impl Merging {
    fn new(prior: RowPrior) -> Self {
        Self { prior, merger: Merger::default() }
    }

    /// Merges the gradients of all ranks.
    fn merge<'m>(
        &mut self,
        given: impl Iterator<Item = &'m [u8]>,
        settings: &ValueSettings,
    ) -> Result<Vec<Message<'m>>, Damaged> {
        let (dim, fields) = (settings.values.dim, settings.values.fields.len());
        let messages = given.enumerate().map(|(rank, message)| Message::decode(rank, message, dim, fields));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        self.merger.merge(&messages, dim, settings.ranks.sparse_average);
        Ok(messages)
    }
}

/// Moves a record along the merged gradient of the row at `place`, to which the prior's part is added, as many times as the gradient is the mean
/// over all ranks.
fn step_row(shape: TableShape, prior: &BatchPrior, merger: &mut Merger, place: usize, rate: f32, record: &mut [u32]) {
    let excess = merger.excess(place);
    let (row, gradient) = merger.row(place);
    let version = *record.last().expect("a version");
    let floats = bytemuck::cast_slice(&record[..shape.dim]);
    prior.add(row.field as usize, excess * row.mean_weight(), version, floats, gradient);
    shape.update(record, gradient, rate);
}

impl MergedRows {
    /// The rows of a table of these `ranks`, whose hints are about its records.
    pub fn new(store: Store, prior: RowPrior, ranks: Range<usize>) -> Self {
        Self {
            store,
            ranks,
            merging: Merging::new(prior),
            records: vec![],
            missing: vec![],
            found: vec![],
            order: Order::default(),
        }
    }

    /// Moves the rows of all ranks along their merged gradients, of a batch of `whole` samples. `given` are the row gradients of each rank,
    /// in the order of the ranks, each followed by its hints.
    ///
    /// The rows that ranks of this table want next are written first. `at` is called where something [begins](Moment). From
    /// [`Changes`](Moment::Changes) on nobody may read a row before `at`, or whoever called this, has published it.
    ///
    /// # Errors
    /// Damaged gradients of a rank, a table without room, and those of `at`.
    pub fn write<'m>(
        &mut self,
        given: impl Iterator<Item = &'m [u8]>,
        settings: &ValueSettings,
        step: RowStep,
        whole: u64,
        mut at: impl FnMut(Moment) -> Result<(), Broken>,
    ) -> anyhow::Result<()> {
        let messages = self.merging.merge(given, settings)?;
        let hints = self.hints(&messages)?;
        self.find(&messages, &hints);
        at(Moment::Changes)?;
        self.insert(settings.table.when_full)?;
        let Self { store, merging: Merging { prior, merger }, records, order, .. } = self;
        let prior = prior.of_batch(whole, step.passes);
        let table = store.table_mut();
        let shape = table.shape();
        let first = order.begin(merger.ids(), records, &hints);
        for (number, (&place, &found)) in order.places.iter().zip(&order.records).enumerate() {
            if number == first {
                at(Moment::Rest)?;
            }
            table.load_ahead_to_write(&order.records, number);
            let Some(found) = found else { continue };
            let id = merger.ids()[place as usize];
            let change = |words: &mut [u32]| step_row(shape, &prior, merger, place as usize, step.rate, words);
            table.change(id, found, change);
        }
        table.count_batch();
        Ok(())
    }

    /// The hints of each rank; none of ranks of other tables.
    fn hints<'m>(&self, messages: &[Message<'m>]) -> Result<Vec<Hints<'m>>, Damaged> {
        let of_rank = |(rank, message): (usize, &Message<'m>)| {
            let bytes = if self.ranks.contains(&rank) { message.behind() } else { &[] };
            Hints::decode(bytes, message.rows()).ok_or(Damaged { rank, bytes: bytes.len() })
        };
        messages.iter().enumerate().map(of_rank).collect()
    }

    /// Finds the records of the merged rows that have one.
    fn find(&mut self, messages: &[Message<'_>], hints: &[Hints<'_>]) {
        let Self { store, merging: Merging { merger, .. }, records, missing, found, .. } = self;
        records.clear();
        records.resize(merger.ids().len(), None);
        let mut places = merger.places().iter();
        for (message, hints) in messages.iter().zip(hints) {
            for (row, &place) in places.by_ref().take(message.rows()).enumerate() {
                let record = &mut records[place as usize];
                *record = record.or_else(|| hints.record(row));
            }
        }
        missing.clear();
        missing.extend(merger.ids().iter().zip(&*records).filter(|(_, record)| record.is_none()).map(|(id, _)| *id));
        found.clear();
        store.table().find_all(missing, found);
    }

    /// Completes the records: ids that have none get one, in an order that follows from the gradients alone. It decides which ids find room.
    fn insert(&mut self, when_full: WhenFull) -> Result<(), TableError> {
        let Self { store, records, missing, found, .. } = self;
        let table = store.table_mut();
        let without = records.iter_mut().filter(|record| record.is_none());
        for (record, (known, &id)) in without.zip(found.iter().zip(&*missing)) {
            *record = known.or_else(|| table.find_or_insert(id));
            if record.is_none() && when_full == WhenFull::Error {
                return Err(TableError::Full { rows: table.len() });
            }
        }
        Ok(())
    }
}

impl Order {
    /// Orders rows of these ids; returns how many are wanted.
    fn begin(&mut self, ids: &[u64], records: &[Option<u32>], hints: &[Hints<'_>]) -> usize {
        self.places.clear();
        self.rest.clear();
        self.records.clear();
        if !hints.iter().any(Hints::tells_wanted) {
            self.places.extend(0..ids.len() as u32);
            self.records.extend_from_slice(records);
            return 0;
        }
        for (place, &id) in (0..).zip(ids) {
            let wanted = hints.iter().any(|hints| hints.wants(id));
            #[cfg(test)]
            let wanted = wanted && self.planted != Some(tests::Bug::ForgetsWhatIsWanted);
            if wanted { self.places.push(place) } else { self.rest.push(place) }
        }
        let first = self.places.len();
        self.places.append(&mut self.rest);
        self.records.extend(self.places.iter().map(|&place| records[place as usize]));
        first
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
        merging.merge(given, settings)?;
        let Merging { prior, merger } = merging;
        let (prior, shape) = (prior.of_batch(whole, step.passes), copies.shape());
        copies.find_all(merger.ids(), places);
        for (number, &place) in places.iter().enumerate() {
            copies.load_ahead(places, number);
            if let Some(record) = copies.record_mut(place) {
                step_row(shape, &prior, merger, number, step.rate, record);
            }
        }
        copies.end();
        Ok(())
    }
}

#[cfg(test)]
#[path = "merged/tests.rs"]
mod tests;
