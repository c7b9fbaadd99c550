//! A table's part in the snapshots of a run: which rows have changed, and their copies.

use std::sync::Arc;

use crate::shm::{Halves, PartWriter, UndoLog, ahead};

use super::changes::Changes;
use super::copying::Source;
use super::marks;
use super::table::HostTable;

/// Places of the source that are looked at for each row that may be copied: rows that have changed meanwhile are copied already, and the index
/// has empty slots.
const LOOKED_AT: usize = 4;

impl HostTable {
    /// Notes from here on what changes since the snapshot that `log` begins with.
    pub fn track(&mut self, log: UndoLog) {
        self.changes = Some(Changes::new(log, self.shape.max_rows));
    }

    /// Whether changes are noted.
    pub fn is_tracked(&self) -> bool {
        self.changes.is_some()
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

    /// Says that what has changed, or `all` rows, as they are now, are part of the snapshot that `out` is of. They are yet to be copied there
    /// ([`copy_rows`](Self::copy_rows)).
    ///
    /// # Panics
    /// While rows of the snapshot before are being copied.
    pub fn begin_snapshot(&mut self, out: PartWriter<Arc<Halves>>, all: bool) {
        let source = if self.shape.marks { Source::Records } else { Source::Index };
        let (all, words) = (all.then(|| (source, self.len())), self.shape.file_words());
        if let Some(changes) = &mut self.changes {
            changes.begin(out, all, words);
        }
    }

    /// Notes what rows hold that are about to change, while there is time for it: their updates need not do so any more. `records` are those
    /// of `ids`; a row that does not change after all is part of the next snapshot as it is.
    pub fn note_ahead(&mut self, ids: &[u64], records: &[Option<u32>]) {
        let Some(changes) = &mut self.changes else { return };
        let (shape, words) = (self.shape, |record: u32| self.rows.record(record));
        for (i, (&id, record)) in ids.iter().zip(records).enumerate() {
            let later = records[ahead(i, records.len())].iter().copied().flatten();
            self.rows.load_ahead(later.filter(|later| !changes.is_noted(*later)));
            if let Some(record) = *record {
                // A row with a mark may have gone since it was found.
                let id = if shape.marks { marks::id(&words(record)[shape.words()..]) } else { id };
                changes.note(id, record, false, words(record));
            }
        }
    }

    /// Whether rows of the newest snapshot are still to be copied, or it is to be declared ready.
    pub fn is_copying(&self) -> bool {
        self.changes.as_ref().is_some_and(Changes::is_copying)
    }

    /// Copies up to `most` rows of the newest snapshot to their half, and declares it ready once nothing is left. Returns whether something
    /// is.
    pub fn copy_rows(&mut self, most: usize) -> bool {
        let Some(mut copying) = self.changes.as_mut().and_then(Changes::take_copying) else { return false };
        let (source, number, index) = (copying.source(), copying.snapshot(), self.index());
        // Id and record at a place of the source, `None` where there is none. The id is the row's unless rows carry marks.
        let at = |place: usize| match source {
            Source::Log => self.changes.as_ref()?.changed_before(number, place),
            // Entries stay in their slots where no row is ever dropped.
            Source::Index => index.at(place),
            Source::Records => (place < self.len()).then_some((0, place as u32)),
        };
        let least = copying.left().saturating_sub(most);
        let last = copying.next.saturating_add(most.saturating_mul(LOOKED_AT));
        while copying.left() > least && copying.next < last {
            let later = ahead(copying.next, usize::MAX).filter_map(|place| Some(at(place)?.1));
            self.rows.load_ahead(later.filter(|later| copying.is_pending(*later)));
            if let Some((id, record)) = at(copying.next)
                && copying.is_pending(record)
            {
                // A row with a mark that was changed and never used would stand in the file as one that was dropped.
                assert!(!self.shape.marks || self.last_use(record).number > 0, "every changed row was used");
                let id = if self.shape.marks { self.owner(record) } else { id };
                copying.copy(id, record, self.rows.record(record));
            }
            copying.next += 1;
        }
        self.changes.as_mut().is_some_and(|changes| changes.give_back(copying))
    }
}
