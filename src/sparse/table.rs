//! The rows of a machine: fixed-size records {row, optimiser state, version} in shared memory, found by id.
//!
//! One process at a time has the table: it inserts ids and updates rows. A record's last word is its version, the number of updates
//! that the row has seen. The first value of a row follows from seed and id, so an absent id reads as what would be inserted.

use crate::settings::RowOptimizer;
use crate::shm::rows::PARAMETERS;
use crate::shm::{RowReader, RowShape, RowWriter, ShmError, UndoLog};

use super::changes::Changes;
use super::index::{Index, NO_ID, mix};

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
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error(
        "the table is full: it holds {rows} rows and more ids come; raise table.max_rows, or set table.when_full = \"ignore\""
    )]
    Full { rows: usize },
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

    fn memory(&self) -> RowShape {
        let slots = (self.max_rows * SLOTS_IN_FIFTHS).div_ceil(5) + 1;
        RowShape { words: self.words(), records: self.max_rows, slots }
    }

    /// How much of `/dev/shm` such a table takes.
    pub fn footprint(&self) -> u64 {
        RowWriter::footprint(self.memory())
    }

    fn parameters(&self) -> [u64; PARAMETERS] {
        let mut parameters = [0; PARAMETERS];
        parameters[..4].copy_from_slice(&[
            self.dim as u64,
            self.optimizer.code().into(),
            self.max_rows as u64,
            self.seed,
        ]);
        parameters
    }

    fn of_parameters(parameters: [u64; PARAMETERS]) -> Option<Self> {
        let [dim, optimizer, max_rows, seed, ..] = parameters;
        let optimizer = RowOptimizer::of_code(u32::try_from(optimizer).ok()?)?;
        Some(Self { dim: dim as usize, optimizer, max_rows: max_rows as usize, seed })
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
}

impl HostTable {
    /// Creates the segment `name` with an empty table. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    pub fn create(name: &str, shape: TableShape) -> Result<Self, ShmError> {
        Ok(Self { rows: RowWriter::create(name, shape.memory(), shape.parameters())?, shape, changes: None })
    }

    /// An empty table of this process alone.
    ///
    /// # Errors
    /// When there is no memory left.
    pub fn private(shape: TableShape) -> Result<Self, ShmError> {
        Ok(Self { rows: RowWriter::private(shape.memory(), shape.parameters())?, shape, changes: None })
    }

    /// Takes the writing role of the table that main created.
    ///
    /// # Errors
    /// When it is missing or damaged, or another process has the role.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let rows = RowWriter::open(name)?;
        let shape = TableShape::of_parameters(rows.parameters()).filter(|shape| shape.memory() == rows.shape());
        Ok(Self { shape: shape.ok_or_else(|| contradiction(name))?, rows, changes: None })
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
        let shape = self.shape;
        shape.first_value(id, self.rows.record_mut(record));
        let inserted = self.index().insert(id, record);
        self.rows.set_len(self.rows.len() + 1);
        assert!(inserted, "the index has more slots than the table rows");
        Some(record)
    }

    /// A record's words: row, state, version.
    pub fn record(&self, record: u32) -> &[u32] {
        self.rows.record(record)
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
        self.rows.record_mut(record).copy_from_slice(words);
    }

    /// Applies a gradient to an id's record.
    pub fn update(&mut self, id: u64, record: u32, gradient: &[f32], rate: f32) {
        self.note(id, record, false);
        let shape = self.shape;
        shape.update(self.rows.record_mut(record), gradient, rate);
    }

    /// Applies a gradient to an id's record that other processes may be reading; `scratch` is memory for its words.
    pub fn update_shared(&mut self, id: u64, record: u32, gradient: &[f32], rate: f32, scratch: &mut Vec<u32>) {
        self.note(id, record, false);
        scratch.clear();
        scratch.extend_from_slice(self.rows.record(record));
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
        self.changes.iter().flat_map(Changes::rows)
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

    /// Returns the rows to snapshot `number`, from what a writer that died has noted; returns how many rows were put back. Ids that
    /// were inserted since then stay, with a row at its first value. `None`, and nothing has changed, where the log goes back to
    /// another snapshot.
    pub fn roll_back(&mut self, log: &UndoLog, number: u64) -> Option<usize> {
        let since = log.since();
        let logs = match since {
            _ if since == number => vec![number],
            _ if since == number + 1 => vec![since, number],
            // It was about to begin the log, and has changed nothing since the snapshot.
            _ if since + 1 == number => vec![],
            _ => return None,
        };
        let mut restored = 0;
        for undo in logs.into_iter().flat_map(|since| log.entries(since)) {
            restored += 1;
            if !undo.inserted {
                self.rows.record_mut(undo.record).copy_from_slice(undo.words);
                continue;
            }
            self.rows.claim(undo.record);
            self.shape.first_value(undo.id, self.rows.record_mut(undo.record));
            if self.find(undo.id).is_none() {
                assert!(self.index().insert(undo.id, undo.record), "the index has more slots than the table rows");
            }
        }
        self.rows.set_len(self.rows.used());
        Some(restored)
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

    const SHAPE: TableShape = TableShape { dim: 4, optimizer: RowOptimizer::RowwiseAdagrad, max_rows: 3, seed: 5 };

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
