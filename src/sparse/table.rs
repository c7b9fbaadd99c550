//! The rows of a machine: fixed-size records {row, optimiser state, version} in shared memory, found by id.
//!
//! One process at a time has the table: it inserts ids and updates rows. A record's last word is its version, the number of updates
//! that the row has seen; where rows may go again, a mark stands behind it ([`super::marks`]). The first value of a row follows from
//! seed and id, so an absent id reads as what would be inserted.

use crate::settings::RowOptimizer;
use crate::shm::rows::PARAMETERS;
use crate::shm::{RowReader, RowShape, RowWriter, ShmError, UndoLog, prefetch};

use super::changes::Changes;
use super::index::{AHEAD, Index, NO_ID, mix};
use super::marks::{self, LastUse};

/// Half the width of the interval that first values are drawn from.
const FIRST_SPREAD: f32 = 0.05;
/// Elements at the front of a row whose first value is 0: the weights that reach the heads directly.
pub const DIRECT: usize = 2;
/// Slots of the index per row of the table, in fifths: searches stay short up to the last row.
const SLOTS_IN_FIFTHS: usize = 6;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Floats of a row.
    pub dim: usize,
    pub optimizer: RowOptimizer,
    /// Rows that there is room for.
    pub max_rows: usize,
    /// Seed of the first values.
    pub seed: u64,
    /// Whether each row carries a mark of its last use.
    pub marks: bool,
}

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

impl TableShape {
    /// Words of a record: row, state, version.
    pub fn words(&self) -> usize {
        self.floats() + 1
    }

    /// Floats of a record: row and state.
    pub fn floats(&self) -> usize {
        self.dim + self.optimizer.state_floats(self.dim)
    }

    /// Words of a record in memory: with its mark, where rows carry one.
    pub fn stored_words(&self) -> usize {
        self.words() + if self.marks { marks::WORDS } else { 0 }
    }

    /// Words of a record in files: without the id of its mark.
    pub fn file_words(&self) -> usize {
        self.words() + if self.marks { marks::FILE_WORDS } else { 0 }
    }

    fn memory(&self) -> RowShape {
        let slots = (self.max_rows * SLOTS_IN_FIFTHS).div_ceil(5) + 1;
        RowShape { words: self.stored_words(), records: self.max_rows, slots }
    }

    /// How much of `/dev/shm` such a table takes.
    pub fn footprint(&self) -> u64 {
        RowWriter::footprint(self.memory())
    }

    fn parameters(&self) -> [u64; PARAMETERS] {
        let mut parameters = [0; PARAMETERS];
        parameters[..5].copy_from_slice(&[
            self.dim as u64,
            self.optimizer.code().into(),
            self.max_rows as u64,
            self.seed,
            self.marks.into(),
        ]);
        parameters
    }

    fn of_parameters(parameters: [u64; PARAMETERS]) -> Option<Self> {
        let [dim, optimizer, max_rows, seed, marks, ..] = parameters;
        let optimizer = RowOptimizer::of_code(u32::try_from(optimizer).ok()?)?;
        Some(Self { dim: dim as usize, optimizer, max_rows: max_rows as usize, seed, marks: marks != 0 })
    }

    /// Writes the first value of an id's row into a record: it follows from seed and id alone.
    pub fn first_value(&self, id: u64, record: &mut [u32]) {
        record.fill(0);
        let mut state = mix(self.seed ^ mix(id));
        for word in &mut record[DIRECT.min(self.dim)..self.dim] {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let unit = (mix(state) >> 40) as f32 / (1u64 << 24) as f32;
            *word = ((2.0 * unit - 1.0) * FIRST_SPREAD).to_bits();
        }
    }

    /// Applies a gradient to a record and counts it.
    pub fn update(&self, record: &mut [u32], gradient: &[f32], rate: f32) {
        let (version, floats) = record.split_last_mut().expect("a version");
        let (row, state) = bytemuck::cast_slice_mut::<u32, f32>(floats).split_at_mut(self.dim);
        *version = version.saturating_add(1);
        self.optimizer.apply(rate, row, state, gradient, *version);
    }
}

fn contradiction(name: &str) -> ShmError {
    ShmError::WrongLayout { name: name.into(), what: "table of", expected: 0, found: 0 }
}

/// The table with its writing role.
pub struct HostTable {
    rows: RowWriter,
    shape: TableShape,
    /// Where changes since the newest snapshot are noted, if anywhere.
    changes: Option<Changes>,
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

    fn find_uses(&mut self) {
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

    fn index(&self) -> Index<'_> {
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

    /// The rows of records, `None` for none. Later rows are loaded while earlier ones are used.
    pub fn rows<'a>(&'a self, records: &'a [Option<u32>]) -> impl Iterator<Item = Option<&'a [f32]>> {
        records.iter().enumerate().map(|(i, record)| {
            self.load_ahead(records, i);
            record.map(|record| self.row(record))
        })
    }

    /// Starts to load the record that is used some places after place `i`.
    pub fn load_ahead(&self, records: &[Option<u32>], i: usize) {
        if let Some(Some(later)) = records.get(i + AHEAD)
            && let [first, .., last] = self.record(*later)
        {
            prefetch(first);
            prefetch(last);
        }
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
        self.uses += 1;
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
        self.note(id, record, false);
        let shape = self.shape;
        shape.update(&mut self.rows.record_mut(record)[..shape.words()], gradient, rate);
    }

    /// Applies a gradient to an id's record that other processes may be reading; `scratch` is memory for its words.
    pub fn update_shared(&mut self, id: u64, record: u32, gradient: &[f32], rate: f32, scratch: &mut Vec<u32>) {
        self.note(id, record, false);
        scratch.clear();
        scratch.extend_from_slice(self.record(record));
        self.shape.update(scratch, gradient, rate);
        self.rows.store(record, scratch);
    }

    /// Notes what a record holds before it changes.
    fn note(&mut self, id: u64, record: u32, inserted: bool) {
        if let Some(changes) = &mut self.changes {
            changes.note(id, record, inserted, self.rows.record(record));
        }
    }

    /// Notes from here on what changes since the snapshot that `log` begins with.
    pub fn track(&mut self, log: UndoLog) {
        self.changes = Some(Changes::new(log, self.shape.max_rows));
    }

    /// Rows that were inserted or changed since the newest snapshot: id and record number.
    pub fn changed(&self) -> impl Iterator<Item = (u64, u32)> {
        let owner = |(id, record)| (if self.shape.marks { self.owner(record) } else { id }, record);
        self.changes.iter().flat_map(Changes::rows).map(owner)
    }

    /// Ids that had a row at the newest snapshot and have none any more.
    pub fn dropped(&self) -> impl Iterator<Item = u64> {
        let before = self.changes.iter().filter(|_| self.shape.marks).flat_map(Changes::before);
        before.filter(|id| self.find(*id).is_none())
    }

    /// Number of the rows that [`changed`](Self::changed) gives.
    pub fn changed_len(&self) -> usize {
        self.changes.as_ref().map_or(0, Changes::count)
    }

    /// Says that what has changed is in snapshot `number`.
    pub fn begin_changes(&mut self, number: u64) {
        if let Some(changes) = &mut self.changes {
            changes.begin(number);
        }
    }

    /// Returns the table to snapshot `number`, from what a writer that died has noted; returns how many rows were put back. `None`, and
    /// nothing has changed, where the log goes back to another snapshot.
    pub fn roll_back(&mut self, log: &UndoLog, number: u64) -> Option<usize> {
        let since = log.since();
        let logs = match since {
            _ if since == number => vec![number],
            _ if since == number + 1 => vec![since, number],
            // It was about to begin the log, and has changed nothing since the snapshot.
            _ if since + 1 == number => vec![],
            _ => return None,
        };
        if self.rows.is_moving() {
            self.make_index();
        }
        let restored = logs.into_iter().map(|since| self.undo(log, since)).sum();
        self.rows.set_len(self.rows.used());
        self.find_uses();
        Some(restored)
    }

    /// Makes the index anew from the marks of all records.
    fn make_index(&mut self) {
        self.index().clear();
        for record in 0..self.rows.used() as u32 {
            let id = self.owner(record);
            // The writer died in the midst of a replacement; nobody has two records otherwise.
            if self.find(id).is_none() {
                assert!(self.index().insert(id, record), "the index has more slots than the table rows");
            }
        }
        self.rows.set_moving(false);
    }

    /// Undoes what one log holds; returns the number of its entries.
    fn undo(&mut self, log: &UndoLog, since: u64) -> usize {
        // A row may have moved from one record to another: all of them leave the index before any comes back.
        for undo in log.entries(since).filter(|undo| undo.inserted || self.shape.marks) {
            let owner = if self.shape.marks && (undo.record as usize) < self.rows.used() {
                self.owner(undo.record)
            } else {
                undo.id
            };
            if self.find(owner) == Some(undo.record) {
                self.index().remove(owner);
            }
        }
        let (mut count, mut used) = (0, self.rows.used());
        for undo in log.entries(since) {
            count += 1;
            if undo.inserted {
                used = used.min(undo.record as usize);
                continue;
            }
            self.rows.record_mut(undo.record).copy_from_slice(undo.words);
            if self.shape.marks {
                assert!(self.index().insert(undo.id, undo.record), "the index has more slots than the table rows");
            }
        }
        self.rows.take_back(used);
        count
    }

    /// Every id with its record number, ids ascending: the order of files.
    pub fn sorted(&self) -> Vec<(u64, u32)> {
        let mut entries: Vec<(u64, u32)> = self.index().entries().collect();
        entries.sort_unstable();
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

    /// Copies an id's record, or its first value where it has none.
    pub fn read(&self, id: u64, out: &mut [u32]) {
        match Index::new(self.rows.keys(), self.rows.offsets()).find(id) {
            Some(record) => self.rows.read(record, out),
            None => self.shape.first_value(id, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
