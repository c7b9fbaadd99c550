//! Which rows have changed since the newest snapshot, and what they held then.

use std::sync::Arc;

use crate::shm::{Halves, PartWriter, UndoLog};

use super::copying::{Copying, Source};

/// The changes of a table since its newest snapshot, and the rows of that snapshot that are still to be copied.
pub struct Changes {
    log: UndoLog,
    /// A bit for each record that is in the log: it has changed, or may do so soon.
    noted: Vec<u64>,
    /// As many bits, none of which is set; not there while rows are being copied.
    spare: Vec<u64>,
    copying: Option<Copying>,
}

impl Changes {
    /// `log` is empty and begins with the newest snapshot of a table of so many records.
    pub fn new(log: UndoLog, records: usize) -> Self {
        let bits = vec![0; records.div_ceil(64)];
        Self { log, noted: bits.clone(), spare: bits, copying: None }
    }

    /// Notes what a record holds, unless it was noted before.
    ///
    /// # Panics
    /// When the log is full.
    pub fn note(&mut self, id: u64, record: u32, inserted: bool, words: &[u32]) {
        if !self.is_noted(record) {
            self.note_first(id, record, inserted, words);
        }
    }

    /// Whether a record was noted since the newest snapshot.
    pub fn is_noted(&self, record: u32) -> bool {
        self.noted[record as usize / 64] & (1 << (record % 64)) != 0
    }

    /// Most updates are of rows that were noted before, and are not to carry this code.
    #[inline(never)]
    fn note_first(&mut self, id: u64, record: u32, inserted: bool, words: &[u32]) {
        if let Some(copying) = &mut self.copying {
            copying.copy(id, record, words);
        }
        self.log.push(id, record, inserted, words);
        self.noted[record as usize / 64] |= 1 << (record % 64);
    }

    /// Id and record number of each row that was noted.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u32)> {
        self.log.entries(self.log.since()).map(|undo| (undo.id, undo.record))
    }

    /// Ids that had a row before it changed.
    pub fn before(&self) -> impl Iterator<Item = u64> {
        self.log.entries(self.log.since()).filter(|undo| !undo.inserted).map(|undo| undo.id)
    }

    /// Rows that were noted.
    pub fn count(&self) -> usize {
        self.log.len()
    }

    /// Begins anew: what has changed is part of the snapshot that `out` is of, and is to be copied there, or the rows of all of
    /// the first `all` records. A row has `words` words there.
    ///
    /// # Panics
    /// While rows of the snapshot before are being copied.
    pub fn begin(&mut self, out: PartWriter<Arc<Halves>>, all: Option<(Source, usize)>, words: usize) {
        assert!(self.copying.is_none(), "a snapshot is begun when the one before is on disk");
        let (number, changed) = (out.snapshot(), self.log.len());
        let mut pending = std::mem::replace(&mut self.noted, std::mem::take(&mut self.spare));
        let (source, left) = match all {
            Some((source, records)) => {
                pending[..records / 64].fill(u64::MAX);
                if records % 64 > 0 {
                    pending[records / 64] = (1 << (records % 64)) - 1;
                }
                (source, records)
            }
            None => (Source::Log, changed),
        };
        // From here on the snapshot's rows are what the log says, where they have changed again.
        self.log.begin(number);
        self.copying = Some(Copying::new(out, source, (pending, left), words));
    }

    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// The snapshot whose rows are being copied, for a moment: it is given back.
    pub fn take_copying(&mut self) -> Option<Copying> {
        self.copying.take()
    }

    /// Takes the snapshot back, which is finished where nothing is left to be copied. Returns whether something is.
    pub fn give_back(&mut self, copying: Copying) -> bool {
        let left = copying.left() > 0;
        if left {
            self.copying = Some(copying);
        } else {
            self.spare = copying.finish();
        }
        left
    }

    /// Id and record number of a row that had changed when snapshot `number` began, by its place in the log of then; `None` behind the last.
    pub fn changed_before(&self, number: u64, place: usize) -> Option<(u64, u32)> {
        let since = number - 1;
        (place < self.log.len_of(since)).then(|| self.log.entry(since, place)).map(|undo| (undo.id, undo.record))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;

    use super::*;
    use crate::settings::RowOptimizer;
    use crate::shm::{HalfShape, Part, RunNames, UndoShape};
    use crate::sparse::{HostTable, TableShape};

    const SHAPE: TableShape =
        TableShape { dim: 2, optimizer: RowOptimizer::Adagrad, max_rows: 12, seed: 4, marks: false };
    type Rows = BTreeMap<u64, Vec<u32>>;

    #[derive(Debug, Clone)]
    enum Act {
        Insert(u64),
        Update(u64, i8),
        Write(u64, u8),
        /// Those of these ids that have rows.
        WriteMany(BTreeSet<u64>, u8),
        /// The log begins anew; the rows that have changed, or all, are to be copied.
        Snapshot {
            all: bool,
        },
        /// So many rows are copied.
        Copy(usize),
        /// All rows are copied, the other part of the newest snapshot is there, too, and it is on disk.
        Complete,
        /// The writer dies, and its successor goes on from the newest complete snapshot.
        Die,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let id = 0u64..12;
        let act = prop_oneof![
            3 => id.clone().prop_map(Act::Insert),
            6 => (id.clone(), any::<i8>()).prop_map(|(id, g)| Act::Update(id, g)),
            2 => (id.clone(), any::<u8>()).prop_map(|(id, v)| Act::Write(id, v)),
            2 => (prop::collection::btree_set(id, 0..8), any::<u8>()).prop_map(|(ids, v)| Act::WriteMany(ids, v)),
            2 => any::<bool>().prop_map(|all| Act::Snapshot { all }),
            2 => (0usize..4).prop_map(Act::Copy),
            2 => Just(Act::Complete),
            1 => Just(Act::Die),
        ];
        prop::collection::vec(act, 0..100)
    }

    fn all(table: &HostTable) -> Rows {
        table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect()
    }

    /// A segment name that no other test uses.
    fn unique_name() -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        RunNames::for_this_process(&format!("changes{n}")).unwrap().part("undo")
    }

    const ROW: usize = 64;

    /// Halves whose newest snapshot on disk is that of a number.
    fn halves(number: u64) -> Arc<Halves> {
        let halves = Halves::create(&unique_name(), HalfShape { dense: 1, sparse: ROW * SHAPE.max_rows }).unwrap();
        halves.commit(number);
        Arc::new(halves)
    }

    fn begin(table: &mut HostTable, halves: &Arc<Halves>, number: u64, all: bool) {
        table.begin_snapshot(PartWriter::begin(halves.clone(), Part::Sparse, number, 0), all);
    }

    /// Brings the newest snapshot to disk: its rows.
    fn complete(table: &mut HostTable, halves: &Halves, number: u64) -> Rows {
        while table.copy_rows(3) {}
        halves.write(Part::Dense, number, 0, []).unwrap();
        let sparse = halves.pending().unwrap().expect("both parts").sparse.to_vec();
        halves.commit(number);
        let rows = sparse.chunks_exact(8 + 4 * SHAPE.words());
        rows.map(|row| (u64::from_le_bytes(row[..8].try_into().unwrap()), bytemuck::pod_collect_to_vec(&row[8..])))
            .collect()
    }

    fn log(name: &str, since: u64) -> UndoLog {
        UndoLog::create(name, UndoShape { words: SHAPE.words(), entries: SHAPE.max_rows }, since).unwrap()
    }

    fn check(acts: Vec<Act>) -> Result<(), TestCaseError> {
        let mut name = unique_name();
        let (mut main, mut halves) = (log(&name, 0), halves(0));
        let mut table = HostTable::private(SHAPE).unwrap();
        table.track(UndoLog::open(&name).unwrap());
        // What the table held at each snapshot; the newest complete one, and what deltas on disk come to; whether that under way is of all rows.
        let (mut held, mut newest) = (vec![Rows::new()], 0);
        let (mut merged, mut of_all) = (Rows::new(), false);
        for act in acts {
            match act {
                Act::Insert(id) => drop(table.find_or_insert(id)),
                Act::Update(id, gradient) => {
                    if let Some(record) = table.find_or_insert(id) {
                        table.update(id, record, &[f32::from(gradient); 2], 0.5);
                    }
                }
                Act::Write(id, value) => {
                    table.write(id, &vec![f32::from(value).to_bits(); SHAPE.words()]);
                }
                Act::WriteMany(ids, value) => {
                    let there = ids.iter().filter_map(|id| Some((*id, table.find(*id)?)));
                    let (ids, records): (Vec<u64>, Vec<u32>) = there.unzip();
                    let words: Vec<u32> =
                        (0..(ids.len() * SHAPE.words()) as u32).map(|word| word + 1_000 * u32::from(value)).collect();
                    table.write_records(ids.iter().copied(), &records, &words);
                    for (id, words) in ids.iter().zip(words.chunks_exact(SHAPE.words())) {
                        prop_assert_eq!(table.record(table.find(*id).unwrap()), words);
                    }
                }
                Act::Snapshot { all } if newest + 1 == held.len() => {
                    held.push(self::all(&table));
                    of_all = all;
                    begin(&mut table, &halves, newest as u64 + 1, all);
                }
                Act::Snapshot { .. } => {}
                Act::Copy(most) => _ = table.copy_rows(most),
                Act::Complete if newest + 1 < held.len() => {
                    newest += 1;
                    let rows = complete(&mut table, &halves, newest as u64);
                    if of_all {
                        merged.clear();
                    }
                    merged.extend(rows);
                    prop_assert_eq!(&merged, &held[newest], "the deltas are the table");
                }
                Act::Complete => {}
                Act::Die => {
                    prop_assert!(table.roll_back(&main, newest as u64).is_some());
                    prop_assert_eq!(self::all(&table), held[newest].clone());
                    held.truncate(newest + 1);
                    name = unique_name();
                    (main, halves) = (log(&name, newest as u64), self::halves(newest as u64));
                    table.track(UndoLog::open(&name).unwrap());
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_table_returns_to_its_newest_complete_snapshot() {
        let mut runner = proptest::test_runner::TestRunner::default();
        runner.run(&acts(), check).unwrap();
    }

    #[test]
    fn a_log_of_another_snapshot_is_not_undone() {
        let mut table = HostTable::private(SHAPE).unwrap();
        let undo = log(&unique_name(), 5);
        assert_eq!(
            [3, 4, 5, 6, 7].map(|number| table.roll_back(&undo, number).is_some()),
            [false, true, true, false, false]
        );
    }

    /// A writer that dies between handing a record out and putting it into the index.
    #[test]
    fn a_row_that_was_half_inserted_is_taken_back() {
        let name = unique_name();
        let (mut undo, mut table) = (log(&name, 0), HostTable::private(SHAPE).unwrap());
        table.find_or_insert(3).unwrap();
        undo.push(8, 1, true, &vec![0; SHAPE.words()]);
        assert_eq!(table.roll_back(&undo, 0), Some(1));
        assert_eq!((table.find(8), table.len()), (None, 1));
        assert_eq!(table.find_or_insert(9), Some(1), "the record is handed out again");
    }
}
