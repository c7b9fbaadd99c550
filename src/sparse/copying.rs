//! The rows of a snapshot on their way into a half of shared memory, while the table goes on changing.
//!
//! Copying all of them at once would hold the trainer up by tens of nanoseconds a row. So the snapshot's rows are marked, and copied bit by
//! bit; a row that is about to change before its turn is copied then, when it is in the processor's cache anyway. A row's copy is
//! what it held at the snapshot either way.

use std::sync::Arc;

use crate::shm::{Halves, PartWriter};

/// Where the rows of a snapshot are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the log of what had changed since the snapshot before.
    Log,
    /// In the index: all rows of a table without marks.
    Index,
    /// In the records, which name their ids: all rows of a table with marks.
    Records,
}

/// A snapshot's rows that are being copied.
pub struct Copying {
    out: PartWriter<Arc<Halves>>,
    source: Source,
    /// The place of the source that comes next.
    pub next: usize,
    /// A bit for each record whose row is still to be copied, and their number.
    pending: Vec<u64>,
    left: usize,
    /// Words of a row in files.
    words: usize,
}

impl Copying {
    /// `pending` has a bit for each of the `left` records to be copied; `out` holds what stands before the rows.
    pub fn new(out: PartWriter<Arc<Halves>>, source: Source, (pending, left): (Vec<u64>, usize), words: usize) -> Self {
        Self { out, source, next: 0, pending, left, words }
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// Number of the snapshot.
    pub fn snapshot(&self) -> u64 {
        self.out.snapshot()
    }

    /// Rows that are still to be copied.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether a record's row is still to be copied.
    pub fn is_pending(&self, record: u32) -> bool {
        self.pending[record as usize / 64] & (1 << (record % 64)) != 0
    }

    /// Copies the row of an id, which its record's words hold, unless it was copied before or is no part of the snapshot.
    ///
    /// # Panics
    /// When the half has no room: whoever began the snapshot has looked.
    pub fn copy(&mut self, id: u64, record: u32, words: &[u32]) {
        if self.is_pending(record) {
            self.pending[record as usize / 64] &= !(1 << (record % 64));
            self.left -= 1;
            let pushed = self.out.push(&id.to_le_bytes());
            pushed.and_then(|()| self.out.push(bytemuck::cast_slice(&words[..self.words]))).expect("the half has room");
        }
    }

    /// Declares the snapshot's rows ready; returns the memory of the bits, none of which is set.
    ///
    /// # Panics
    /// When rows are missing.
    pub fn finish(self) -> Vec<u64> {
        assert_eq!(self.left, 0, "rows of snapshot {} are missing", self.snapshot());
        self.out.finish();
        self.pending
    }
}
