//! Finds the row of a request by its id.
//!
//! A day has too many requests for a map from ids to rows in memory. A slot here is 8 bytes, the row and a part of the id's hash, and the id itself is
//! compared in the log. An index that may not take so much memory holds one part of the ids; whoever looks for all of them goes through
//! the parts one after the other.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

use super::CompiledLog;

/// Low bits of a slot: the row, counted from 1. The bits above are those of the hash.
const ROW_BITS: u32 = 40;
const ROW: u64 = (1 << ROW_BITS) - 1;

/// Part of the request ids of a log, each with its row.
pub struct RowIndex<'a> {
    log: &'a CompiledLog,
    slots: Vec<u64>,
    hasher: RandomState,
    part: u64,
    parts: u64,
}

/// Number of parts in which the ids of a log are indexed with at most `memory` bytes at a time.
pub fn parts(log: &CompiledLog, memory: usize) -> u64 {
    let bytes = slots(log.requests().len() as u64) * size_of::<u64>();
    bytes.div_ceil(memory.max(1)) as u64
}

/// Number of slots for so many ids: at most three quarters of them are taken.
fn slots(ids: u64) -> usize {
    (ids + ids / 3 + 2) as usize
}

impl<'a> RowIndex<'a> {
    /// Indexes all ids.
    pub fn whole(log: &'a CompiledLog) -> Self {
        Self::part(log, &RandomState::default(), 0, 1)
    }

    /// Indexes the ids of part `part` of `parts`. All parts need the same `hasher`.
    pub fn part(log: &'a CompiledLog, hasher: &RandomState, part: u64, parts: u64) -> Self {
        let mut index = Self { log, slots: Vec::new(), hasher: hasher.clone(), part, parts };
        let ids = || log.requests().iter().map(|request| request.request_id);
        let held = if parts == 1 { log.requests().len() } else { ids().filter(|id| index.covers(*id)).count() };
        index.slots = vec![0; slots(held as u64)];
        for (row, id) in (0..).zip(ids()) {
            let hash = index.hasher.hash_one(id);
            if index.holds(hash) {
                let free = index.probe(hash).find(|at| index.slots[*at] == 0).expect("a quarter of the slots is free");
                index.slots[free] = hash & !ROW | (row + 1);
            }
        }
        index
    }

    /// Returns whether an id, known or not, is of this index's part.
    pub fn covers(&self, id: u64) -> bool {
        self.holds(self.hasher.hash_one(id))
    }

    /// Returns the row of the request with this id, if it is in the log and of this part.
    pub fn find(&self, id: u64) -> Option<usize> {
        let hash = self.hasher.hash_one(id);
        let taken = self.probe(hash).map(|at| self.slots[at]).take_while(|slot| *slot != 0);
        let mut rows = taken.filter(|slot| (slot ^ hash) & !ROW == 0).map(|slot| (slot & ROW) as usize - 1);
        rows.find(|row| self.log.requests().row(*row).request_id == id)
    }

    fn holds(&self, hash: u64) -> bool {
        (u128::from(hash) * u128::from(self.parts)) >> 64 == u128::from(self.part)
    }

    /// Slots in which an id may be, nearest first.
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let all = self.slots.len();
        // The low bits of the hash lead here, because the high ones say which part it is.
        let first = ((u128::from(hash.rotate_left(ROW_BITS)) * all as u128) >> 64) as usize;
        (first..all).chain(0..first)
    }
}
