//! A table's return to a snapshot after the death of its writer.

use crate::shm::UndoLog;

use super::table::HostTable;

impl HostTable {
    /// Returns the table to snapshot `number`, from what a writer that died has noted; returns how many rows were put back. `None`, and
    /// nothing has changed, where the log goes back to another snapshot.
    pub fn roll_back(&mut self, log: &UndoLog, number: u64) -> Option<usize> {
        let since = log.since();
        let logs = match since {
            _ if since == number => vec![number],
            _ if since == number + 1 => vec![since, number],
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
}
