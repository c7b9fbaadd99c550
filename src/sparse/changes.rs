//! Which rows have changed since the newest snapshot, and what they held then.

use crate::shm::UndoLog;

/// The changes of a table since its newest snapshot.
pub struct Changes {
    log: UndoLog,
    /// A bit for each record that is in the log.
    noted: Vec<u64>,
}

impl Changes {
    /// `log` is empty and begins with the newest snapshot of a table of so many records.
    pub fn new(log: UndoLog, records: usize) -> Self {
        Self { log, noted: vec![0; records.div_ceil(64)] }
    }

    /// Notes what a record holds, unless it has changed before.
    ///
    /// # Panics
    /// When the log is full.
    pub fn note(&mut self, id: u64, record: u32, inserted: bool, words: &[u32]) {
        let (word, bit) = (record as usize / 64, 1 << (record % 64));
        if self.noted[word] & bit == 0 {
            self.log.push(id, record, inserted, words);
            self.noted[word] |= bit;
        }
    }

    /// Id and record number of each row that has changed.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u32)> {
        self.log.entries(self.log.since()).map(|undo| (undo.id, undo.record))
    }

    /// Ids that had a row before it changed.
    pub fn before(&self) -> impl Iterator<Item = u64> {
        self.log.entries(self.log.since()).filter(|undo| !undo.inserted).map(|undo| undo.id)
    }

    /// Rows that have changed.
    pub fn count(&self) -> usize {
        self.log.len()
    }

    /// Begins anew: what has changed is in snapshot `number`.
    pub fn begin(&mut self, number: u64) {
        for undo in self.log.entries(self.log.since()) {
            self.noted[undo.record as usize / 64] = 0;
        }
        self.log.begin(number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use proptest::test_runner::TestCaseError;

    use crate::settings::RowOptimizer;
    use crate::shm::{RunNames, UndoLog, UndoShape};
    use crate::sparse::{HostTable, TableShape};

    const SHAPE: TableShape =
        TableShape { dim: 2, optimizer: RowOptimizer::Adagrad, max_rows: 12, seed: 4, marks: false };
    type Rows = BTreeMap<u64, Vec<u32>>;

    #[derive(Debug, Clone)]
    enum Act {
        Insert(u64),
        Update(u64, i8),
        Write(u64, u8),
        /// The rows are in the half, and the log begins anew.
        Snapshot,
        /// The other part of the newest snapshot is there, too, and it is on disk.
        Complete,
        /// The writer dies, and its successor goes on from the newest complete snapshot.
        Die,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let id = 0u64..12;
        let act = prop_oneof![
            3 => id.clone().prop_map(Act::Insert),
            6 => (id.clone(), any::<i8>()).prop_map(|(id, g)| Act::Update(id, g)),
            2 => (id, any::<u8>()).prop_map(|(id, v)| Act::Write(id, v)),
            1 => Just(Act::Snapshot),
            2 => Just(Act::Complete),
            1 => Just(Act::Die),
        ];
        prop::collection::vec(act, 0..80)
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

    fn log(name: &str, since: u64) -> UndoLog {
        UndoLog::create(name, UndoShape { words: SHAPE.words(), entries: SHAPE.max_rows }, since).unwrap()
    }

    fn check(acts: Vec<Act>) -> Result<(), TestCaseError> {
        let mut name = unique_name();
        let mut main = log(&name, 0);
        let mut table = HostTable::private(SHAPE).unwrap();
        table.track(UndoLog::open(&name).unwrap());
        // Snapshots whose rows were copied, by number; the newest complete one; what deltas on disk come to.
        let (mut copied, mut complete) = (vec![Rows::new()], 0);
        let mut merged = Rows::new();
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
                Act::Snapshot if complete + 1 == copied.len() => {
                    let delta = table.changed().map(|(id, record)| (id, table.record(record).to_vec()));
                    merged.extend(delta.collect::<Rows>());
                    copied.push(all(&table));
                    prop_assert_eq!(&merged, &all(&table), "the deltas are the table");
                    table.begin_changes(copied.len() as u64 - 1);
                }
                Act::Snapshot => {}
                Act::Complete => complete = copied.len() - 1,
                Act::Die => {
                    prop_assert!(table.roll_back(&main, complete as u64).is_some());
                    prop_assert_eq!(all(&table), copied[complete].clone());
                    copied.truncate(complete + 1);
                    merged = copied[complete].clone();
                    name = unique_name();
                    main = log(&name, complete as u64);
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
            [false, true, true, true, false]
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
