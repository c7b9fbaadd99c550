//! Finds the row that was used the longest ago.
//!
//! One walk over the table finds the oldest sixteenth of its rows. They are handed out oldest first until they are used up; one that
//! was used since is passed over. So the answer is that of an exact list of all rows, it follows from the table alone (a trainer that
//! takes the place of a dead one gives the same answers), and it takes a byte of memory for each row.

use std::collections::BinaryHeap;

use super::table::HostTable;

/// The share of rows that one walk finds.
const SHARE: usize = 16;

/// The rows that were used the longest ago.
#[derive(Debug, Default)]
pub struct Oldest {
    /// Number of the last use, and record; the oldest is the last.
    candidates: Vec<(u64, u32)>,
}

impl Oldest {
    /// The record of the row that was used the longest ago; `None` where all were used after number `before`.
    pub fn find(&mut self, table: &HostTable, before: u64) -> Option<u32> {
        loop {
            let Some(&(number, record)) = self.candidates.last() else {
                self.walk(table);
                if self.candidates.is_empty() {
                    return None;
                }
                continue;
            };
            if table.last_use(record).number == number {
                return (number <= before).then(|| {
                    self.candidates.pop();
                    record
                });
            }
            self.candidates.pop();
        }
    }

    fn walk(&mut self, table: &HostTable) {
        let most = (table.len() / SHARE).max(1);
        let mut found = BinaryHeap::with_capacity(most + 1);
        for record in 0..table.len() as u32 {
            let entry = (table.last_use(record).number, record);
            if found.len() < most {
                found.push(entry);
            } else if found.peek().is_some_and(|newest| entry < *newest) {
                found.pop();
                found.push(entry);
            }
        }
        self.candidates = found.into_sorted_vec();
        self.candidates.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RowOptimizer;
    use crate::sparse::TableShape;

    #[test]
    fn rows_come_in_the_order_of_their_last_use() {
        let shape = TableShape { dim: 2, optimizer: RowOptimizer::Sgd, max_rows: 100, seed: 1, marks: true };
        let mut table = HostTable::private(shape).unwrap();
        for id in (0..100).chain((0..100).rev().step_by(2)) {
            let record = table.find_or_insert(id).unwrap();
            table.touch(record, 0);
        }
        let mut oldest = Oldest::default();
        for expected in (0..100).step_by(2).take(20) {
            let record = oldest.find(&table, u64::MAX).unwrap();
            assert_eq!(table.owner(record), expected);
            table.replace(record, 1000 + expected);
            table.touch(record, 0);
        }
        // A row that is used again is not old any more.
        table.touch(table.find(40).unwrap(), 0);
        assert_eq!(oldest.find(&table, u64::MAX).map(|record| table.owner(record)), Some(42));
        assert_eq!(oldest.find(&table, 0), None, "all were used later");
    }
}
