//! The rows of a machine: fixed-size records {row, optimiser state, version} in shared memory, found by id.
//!
//! One process at a time has the table: it inserts ids and updates rows. A record's last word is its version, the number of updates
//! that the row has seen; where rows may go again, a mark stands behind it ([`super::marks`]). The first value of a row follows from
//! seed and id, so an absent id reads as what would be inserted.

use rayon::prelude::*;

use crate::shm::{RowReader, RowWriter, ShmError, ahead};

use super::beats::now_and_then;
use super::changes::Changes;
use super::index::{Index, NO_ID};
use super::marks::{self, LastUse};

pub use super::shape::{DIRECT, TableShape};

/// Ids that a thread searches for at a time, where there are several threads.
const TOGETHER: usize = 512;

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(
        "the table is full: it holds {rows} rows and more ids come; raise table.max_rows, or set table.when_full = \"oldest\" or \"ignore\""
    )]
    Full { rows: usize },
    #[error(
        "a batch has {ids} ids that need a row at the same time, and the table holds {rows} rows: raise table.max_rows or lower values.batch"
    )]
    BatchTooLarge { ids: usize, rows: usize },
    #[error(transparent)]
    Memory(#[from] ShmError),
}

fn contradiction(name: &str) -> ShmError {
    ShmError::WrongLayout { name: name.into(), what: "table of", expected: 0, found: 0 }
}

/// The table with its writing role.
pub struct HostTable {
    pub(super) rows: RowWriter,
    pub(super) shape: TableShape,
    /// Where changes since the newest snapshot are noted, if anywhere.
    pub(super) changes: Option<Changes>,
    /// Number of the newest use of a row.
    uses: u64,
}

impl HostTable {
    /// Creates the segment `name` with an empty table. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    pub fn create(name: &str, shape: TableShape) -> Result<Self, ShmError> {
        Ok(Self { rows: RowWriter::create(name, shape.memory(), shape.parameters())?, shape, changes: None, uses: 0 })
    }

    /// An empty table of this process alone.
    ///
    /// # Errors
    /// When there is no memory left.
    pub fn private(shape: TableShape) -> Result<Self, ShmError> {
        Ok(Self { rows: RowWriter::private(shape.memory(), shape.parameters())?, shape, changes: None, uses: 0 })
    }

    /// Takes the writing role of the table that main created.
    ///
    /// # Errors
    /// When it is missing or damaged, or another process has the role.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let rows = RowWriter::open(name)?;
        let shape = TableShape::of_parameters(rows.parameters()).filter(|shape| shape.memory() == rows.shape());
        let mut table = Self { shape: shape.ok_or_else(|| contradiction(name))?, rows, changes: None, uses: 0 };
        table.find_uses();
        Ok(table)
    }

    pub(super) fn find_uses(&mut self) {
        if self.shape.marks {
            self.uses = (0..self.len() as u32).map(|record| self.last_use(record).number).max().unwrap_or(0);
        }
    }

    /// Takes the role back from a process that died.
    pub fn recover(&self) {
        self.rows.recover();
    }

    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Rows in the table.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn index(&self) -> Index<'_> {
        Index::new(self.rows.keys(), self.rows.offsets())
    }

    /// The record number of an id that is there.
    pub fn find(&self, id: u64) -> Option<u32> {
        self.index().find(id)
    }

    /// Appends the record number of each id to `records`; `None` for an id that is not there.
    pub fn find_all(&self, ids: &[u64], records: &mut Vec<Option<u32>>) {
        self.index().find_all(ids, records);
    }

    /// The record number of each id, as [`find_all`](Self::find_all); many are searched for on several threads.
    pub fn find_many(&self, ids: &[u64]) -> Vec<Option<u32>> {
        let find = |ids: &[u64]| {
            let mut found = Vec::with_capacity(ids.len());
            self.find_all(ids, &mut found);
            found
        };
        if ids.len() < 2 * TOGETHER {
            return find(ids);
        }
        ids.par_chunks(TOGETHER).map(find).collect::<Vec<_>>().concat()
    }

    /// Starts to load records that are used after the one at place `i`, where that is due.
    pub fn load_ahead(&self, records: &[Option<u32>], i: usize) {
        self.prefetch(records[ahead(i, records.len())].iter().copied().flatten());
    }

    /// As [`load_ahead`](Self::load_ahead), for records that are about to be written, and that other processes have read.
    pub fn load_ahead_to_write(&self, records: &[Option<u32>], i: usize) {
        self.rows.load_ahead_to_write(records[ahead(i, records.len())].iter().copied().flatten());
    }

    /// Starts to load what a search for an id looks at first.
    pub fn prefetch_slot(&self, id: u64) {
        self.index().prefetch(id);
    }

    /// Starts to load records.
    pub fn prefetch(&self, records: impl Iterator<Item = u32>) {
        self.rows.load_ahead(records);
    }

    /// The record number of an id; a row at its first value is inserted where there is none. `None` where there is no room.
    pub fn find_or_insert(&mut self, id: u64) -> Option<u32> {
        if let Some(record) = self.find(id) {
            return Some(record);
        }
        assert!(id != NO_ID, "the id {NO_ID:#x} means none");
        let next = self.rows.used() as u32;
        if self.rows.used() < self.shape.max_rows {
            self.note(id, next, true);
        }
        let record = self.rows.allocate()?;
        self.begin_row(id, record);
        let inserted = self.index().insert(id, record);
        self.rows.set_len(self.rows.len() + 1);
        assert!(inserted, "the index has more slots than the table rows");
        Some(record)
    }

    fn begin_row(&mut self, id: u64, record: u32) {
        let shape = self.shape;
        let words = self.rows.record_mut(record);
        shape.first_value(id, &mut words[..shape.words()]);
        if shape.marks {
            marks::write(&mut words[shape.words()..], id, LastUse::default());
        }
    }

    /// Drops the row of a record and gives the record to another id, whose row begins at its first value.
    ///
    /// # Panics
    /// When rows carry no marks, or the id has a row.
    pub fn replace(&mut self, record: u32, id: u64) {
        let owner = self.owner(record);
        self.note(owner, record, false);
        self.rows.set_moving(true);
        assert!(self.index().remove(owner), "the id {owner:#x} has its row");
        self.begin_row(id, record);
        assert!(self.index().insert(id, record), "an entry was removed");
        self.rows.set_moving(false);
    }

    fn mark(&self, record: u32) -> &[u32] {
        &self.rows.record(record)[self.shape.words()..]
    }

    /// The id whose row a record holds.
    ///
    /// # Panics
    /// When rows carry no marks, as below.
    pub fn owner(&self, record: u32) -> u64 {
        marks::id(self.mark(record))
    }

    /// When the row of a record was used last.
    pub fn last_use(&self, record: u32) -> LastUse {
        LastUse::of(self.mark(record))
    }

    /// Number of the newest use of a row.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// Notes that the row of a record is used, by exposures of `day` at the latest.
    pub fn touch(&mut self, record: u32, day: u32) {
        let id = self.owner(record);
        self.note(id, record, false);
        self.uses = self.uses.saturating_add(1);
        let last = LastUse { number: self.uses, day: day.max(self.last_use(record).day) };
        let words = self.shape.words();
        marks::write(&mut self.rows.record_mut(record)[words..], id, last);
    }

    /// A record's words: row, state, version.
    pub fn record(&self, record: u32) -> &[u32] {
        &self.rows.record(record)[..self.shape.words()]
    }

    /// A record's words as they stand in files.
    pub fn file_record(&self, record: u32) -> &[u32] {
        &self.rows.record(record)[..self.shape.file_words()]
    }

    /// The floats of a record's row.
    pub fn row(&self, record: u32) -> &[f32] {
        bytemuck::cast_slice(&self.record(record)[..self.shape.dim])
    }

    /// Copies an id's record, or its first value where it has none.
    pub fn read(&self, id: u64, out: &mut [u32]) {
        match self.find(id) {
            Some(record) => out.copy_from_slice(self.record(record)),
            None => self.shape.first_value(id, out),
        }
    }

    /// Replaces an id's record; false where there is no room for it.
    pub fn write(&mut self, id: u64, words: &[u32]) -> bool {
        let Some(record) = self.find_or_insert(id) else { return false };
        self.write_record(id, record, words);
        true
    }

    /// Replaces the record of an id that is there.
    pub fn write_record(&mut self, id: u64, record: u32, words: &[u32]) {
        self.note(id, record, false);
        let len = self.shape.words();
        self.rows.record_mut(record)[..len].copy_from_slice(words);
    }

    /// Copies records, one after another, into `words`.
    pub fn read_records(&self, records: &[u32], words: &mut [u32]) {
        self.rows.load_all(records, self.shape.words(), words);
    }

    /// Replaces the records of ids, as [`write_record`](Self::write_record) does; `words` holds them one after another.
    pub fn write_records(&mut self, ids: impl Iterator<Item = u64>, records: &[u32], words: &[u32]) {
        self.note_all(ids, records);
        self.rows.store_all(records, self.shape.words(), words);
    }

    /// Replaces an id's record by what stands in a file of such a table; false where there is no room for it.
    pub fn load(&mut self, id: u64, words: &[u32]) -> bool {
        let (row, mark) = words.split_at(self.shape.words());
        let Some(record) = self.find_or_insert(id) else { return false };
        self.write_record(id, record, row);
        if self.shape.marks {
            let last = LastUse::of(mark);
            self.uses = self.uses.max(last.number);
            let len = self.shape.words();
            marks::write(&mut self.rows.record_mut(record)[len..], id, last);
        }
        true
    }

    /// Applies a gradient to an id's record.
    pub fn update(&mut self, id: u64, record: u32, gradient: &[f32], rate: f32) {
        let shape = self.shape;
        self.change(id, record, |words| shape.update(words, gradient, rate));
    }

    /// Changes an id's record in place: no other process reads it meanwhile.
    // Called and not inlined, it reads its closure from memory right after that was written, which takes longer than the change.
    #[inline(always)]
    pub fn change(&mut self, id: u64, record: u32, change: impl FnOnce(&mut [u32])) {
        self.note(id, record, false);
        let len = self.shape.words();
        change(&mut self.rows.record_mut(record)[..len]);
    }

    /// Notes what a record holds before it changes.
    #[inline]
    fn note(&mut self, id: u64, record: u32, inserted: bool) {
        if let Some(changes) = &mut self.changes {
            changes.note(id, record, inserted, self.rows.record(record));
        }
    }

    /// Notes what rows hold that are about to change.
    fn note_all(&mut self, ids: impl Iterator<Item = u64>, records: &[u32]) {
        let Some(changes) = &mut self.changes else { return };
        for (i, (id, &record)) in ids.zip(records).enumerate() {
            let later = records[ahead(i, records.len())].iter().copied();
            self.rows.load_ahead(later.filter(|later| !changes.is_noted(*later)));
            changes.note(id, record, false, self.rows.record(record));
        }
    }

    /// Every id with its record number, ids ascending: the order of files.
    pub fn sorted(&self) -> Vec<(u64, u32)> {
        self.sorted_with_beats(|| {})
    }

    /// As [`sorted`](Self::sorted); calls `beat` now and then.
    pub fn sorted_with_beats(&self, beat: impl FnMut()) -> Vec<(u64, u32)> {
        let mut step = now_and_then(beat);
        let mut entries: Vec<(u64, u32)> = self.index().entries().inspect(|_| step()).collect();
        entries.sort_unstable_by(|a, b| {
            step();
            a.cmp(b)
        });
        entries
    }
}

/// The table as other ranks of the machine read it, between two publications of its writer.
pub struct TableView {
    rows: RowReader,
    shape: TableShape,
}

impl TableView {
    /// Opens the table that main created.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let rows = RowReader::open(name)?;
        let shape = TableShape::of_parameters(rows.parameters()).filter(|shape| shape.memory() == rows.shape());
        Ok(Self { shape: shape.ok_or_else(|| contradiction(name))?, rows })
    }

    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Finds the record numbers of ids; `None` for an id that is not there yet.
    pub fn find_all(&self, ids: &[u64], records: &mut Vec<Option<u32>>) {
        records.clear();
        self.index().find_all(ids, records);
    }

    /// Replaces `values` by the rows of `ids`, `dim` floats each, or by their first values where they have none. `records` are their
    /// record numbers as they were found earlier; an id that had none is looked for again. `scratch` is memory for a record.
    pub fn read_all(&self, ids: &[u64], records: &mut [Option<u32>], scratch: &mut Vec<u32>, values: &mut Vec<f32>) {
        let dim = self.shape.dim;
        scratch.resize(self.shape.words(), 0);
        values.resize(ids.len() * dim, 0.0);
        for (i, (&id, values)) in ids.iter().zip(values.chunks_exact_mut(dim)).enumerate() {
            self.rows.load_ahead(records[ahead(i, records.len())].iter().copied().flatten(), dim);
            if records[i].is_none() {
                records[i] = self.find(id);
            }
            match records[i] {
                Some(record) => self.rows.read(record, bytemuck::cast_slice_mut(values)),
                None => {
                    self.shape.first_value(id, scratch);
                    values.copy_from_slice(bytemuck::cast_slice(&scratch[..dim]));
                }
            }
        }
    }

    /// The record number of an id that is there.
    pub fn find(&self, id: u64) -> Option<u32> {
        self.index().find(id)
    }

    /// Copies a record: row, state, version.
    pub fn read(&self, record: u32, out: &mut [u32]) {
        self.rows.read(record, out);
    }

    /// Starts to load records that are used after the one at place `i`, where that is due.
    pub fn load_ahead(&self, records: &[Option<u32>], i: usize) {
        self.rows.load_ahead(records[ahead(i, records.len())].iter().copied().flatten(), self.shape.words());
    }

    fn index(&self) -> Index<'_> {
        Index::new(self.rows.keys(), self.rows.offsets())
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::FIRST_SPREAD;
    use super::*;
    use crate::settings::RowOptimizer;

    const SHAPE: TableShape =
        TableShape { dim: 4, optimizer: RowOptimizer::RowwiseAdagrad, max_rows: 3, seed: 5, marks: false };

    #[test]
    fn whoever_reads_an_absent_id_sees_what_the_writer_would_insert() {
        let mut table = HostTable::private(SHAPE).unwrap();
        let mut absent = vec![0; SHAPE.words()];
        table.read(77, &mut absent);
        let record = table.find_or_insert(77).unwrap();
        assert_eq!(table.record(record), absent);
        assert_eq!(&table.row(record)[..DIRECT], [0.0; DIRECT]);
        assert!(table.row(record)[DIRECT..].iter().all(|w| *w != 0.0 && w.abs() <= FIRST_SPREAD));
    }

    #[test]
    fn many_ids_are_found_as_one_by_one() {
        let mut table = HostTable::private(TableShape { max_rows: 4 * TOGETHER, ..SHAPE }).unwrap();
        (0..4 * TOGETHER as u64).for_each(|id| assert!(table.find_or_insert(3 * id).is_some()));
        for count in [0, 1, 2 * TOGETHER - 1, 2 * TOGETHER, 5 * TOGETHER + 3] {
            let ids: Vec<u64> = (0..count as u64).map(|i| i * 7 % 9_000).collect();
            let one_by_one: Vec<Option<u32>> = ids.iter().map(|id| table.find(*id)).collect();
            assert_eq!(table.find_many(&ids), one_by_one);
            assert!(count < TOGETHER || one_by_one.contains(&None) && one_by_one.iter().any(Option::is_some));
        }
    }

    #[test]
    fn a_full_table_takes_no_more() {
        let mut table = HostTable::private(SHAPE).unwrap();
        for id in [5, 1, 2] {
            let record = table.find_or_insert(id).unwrap();
            table.update(id, record, &[1.0; 4], 0.1);
        }
        assert_eq!((table.find_or_insert(9), table.len()), (None, 3));
        assert_eq!(table.sorted().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 5]);
    }

    #[test]
    fn a_table_of_one_row_works() {
        let mut table = HostTable::private(TableShape { max_rows: 1, ..SHAPE }).unwrap();
        let record = table.find_or_insert(3).unwrap();
        table.update(3, record, &[1.0; 4], 0.1);
        assert_eq!((table.find_or_insert(13), table.find(3)), (None, Some(record)));
    }
}
