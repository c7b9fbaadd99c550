//! Tables that hold the same rows: of one machine, or one on each of several machines.
//!
//! Their writers apply the same gradients in the same order, so they stay equal by themselves. Here is how another table of a machine
//! becomes equal to the first one, and how it is checked that they still are.

use twox_hash::XxHash3_64;

use crate::shm::{RowReader, ShmError, ahead};

use super::beats::now_and_then;
use super::table::HostTable;

impl HostTable {
    /// Takes over all rows of the table `name`, which nobody changes meanwhile, whatever was here before. Calls `look` now and then.
    ///
    /// It copies memory: a snapshot would have to be read from disk and merged, and all tables of a machine begin with what the first
    /// one holds.
    ///
    /// # Errors
    /// A table that is missing or damaged.
    ///
    /// # Panics
    /// When its rows have another shape.
    pub fn copy_from(&mut self, name: &str, look: impl Fn()) -> Result<(), ShmError> {
        self.rows.copy_from(&RowReader::open(name)?, look);
        self.find_uses();
        Ok(())
    }

    /// Counts the gradients of a batch's rows that were written.
    pub fn count_batch(&mut self) {
        self.rows.count_batch();
    }

    /// A digest of all rows and their state, whatever their places in the table.
    pub fn digest(&self) -> u64 {
        self.digest_with_beats(|| {})
    }

    /// As [`digest`](Self::digest); calls `beat` now and then.
    pub fn digest_with_beats(&self, beat: impl FnMut()) -> u64 {
        let (index, mut step) = (self.index(), now_and_then(beat));
        let slots = self.rows.keys().len();
        let rows = (0..slots).filter_map(|slot| {
            step();
            self.rows.load_ahead(ahead(slot, slots).filter_map(|later| Some(index.at(later)?.1)));
            index.at(slot)
        });
        let of_row =
            |(id, record): (u64, u32)| XxHash3_64::oneshot_with_seed(id, bytemuck::cast_slice(self.record(record)));
        rows.map(of_row).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RowOptimizer;
    use crate::shm::RunNames;
    use crate::sparse::TableShape;

    const SHAPE: TableShape =
        TableShape { dim: 4, optimizer: RowOptimizer::Adagrad, max_rows: 200, seed: 5, marks: false };

    fn table(name: &str) -> HostTable {
        HostTable::create(name, SHAPE).unwrap()
    }

    fn learn(table: &mut HostTable, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            let record = table.find_or_insert(id).unwrap();
            table.update(id, record, &[1.0, (id % 7) as f32, -2.0, 0.5], 0.1);
        }
    }

    fn rows(table: &HostTable) -> Vec<(u64, Vec<u32>)> {
        table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect()
    }

    #[test]
    fn a_table_becomes_equal_to_another_and_stays_so_while_both_are_given_the_same() {
        let names = RunNames::for_this_process("twins").unwrap();
        let (mut first, mut second) = (table(&names.part("table")), table(&names.part("table1")));
        learn(&mut first, 0..120);
        learn(&mut second, 100..300);
        second.copy_from(&names.part("table"), || {}).unwrap();
        assert_eq!(rows(&first), rows(&second));
        for table in [&mut first, &mut second] {
            learn(table, 60..180);
        }
        assert_eq!((rows(&first), first.digest()), (rows(&second), second.digest()));
        assert!(matches!(second.copy_from(&names.part("table2"), || {}), Err(ShmError::Missing { .. })));
    }

    /// The digest tells tables apart by their rows, not by the places of these.
    #[test]
    fn a_write_that_one_table_has_missed_shows() {
        let names = RunNames::for_this_process("missed").unwrap();
        let (mut first, mut second) = (table(&names.part("table")), table(&names.part("table1")));
        learn(&mut first, 0..100);
        learn(&mut second, (0..100).rev());
        assert_eq!(first.digest(), second.digest());
        learn(&mut first, [40]);
        assert_ne!(first.digest(), second.digest(), "an update");
        learn(&mut second, [40]);
        assert_eq!(first.digest(), second.digest());
        first.find_or_insert(1000).unwrap();
        assert_ne!(first.digest(), second.digest(), "a row at its first value");
    }
}
