//! From id to record: open addressing with linear probing over two arrays in shared memory.
//!
//! A key is the id plus 1, so that 0 means empty; the id `u64::MAX` cannot be stored. One writer changes the index. While it
//! inserts, a reader finds either the old state or the new one: the offset is stored before the key. Removing moves entries
//! back over the gap, so readers in other processes check the table's generation around a look-up.

use crate::shm::sync::{AtomicU32, AtomicU64, Ordering};

/// The id that no row can have.
pub const NO_ID: u64 = u64::MAX;

/// Keys and the records that they stand for.
pub struct Index<'a> {
    keys: &'a [AtomicU64],
    offsets: &'a [AtomicU32],
}

/// Mixes an id, so that neighbouring ids do not stand side by side (the finaliser of SplitMix64).
pub fn mix(id: u64) -> u64 {
    let x = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl<'a> Index<'a> {
    /// # Panics
    /// When the arrays differ in length or are empty.
    pub fn new(keys: &'a [AtomicU64], offsets: &'a [AtomicU32]) -> Self {
        assert!(keys.len() == offsets.len() && !keys.is_empty());
        Self { keys, offsets }
    }

    /// Where the search for an id begins.
    pub fn home(&self, id: u64) -> usize {
        ((u128::from(mix(id)) * self.keys.len() as u128) >> 64) as usize
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.keys.len() { 0 } else { slot + 1 }
    }

    /// The slot of a key, or the empty one where it would stand; `None` where the index is full.
    fn slot(&self, key: u64, home: usize) -> Option<(usize, bool)> {
        let mut slot = home;
        loop {
            // Acquire: pairs with the Release in `insert`; the offset was stored before the key.
            match self.keys[slot].load(Ordering::Acquire) {
                found if found == key => return Some((slot, true)),
                0 => return Some((slot, false)),
                _ => slot = self.next(slot),
            }
            if slot == home {
                return None;
            }
        }
    }

    /// The record of an id.
    pub fn find(&self, id: u64) -> Option<u32> {
        let key = id.wrapping_add(1);
        let (slot, found) = self.slot(key, self.home(id))?;
        // Relaxed: ordered by the key's Acquire.
        found.then(|| self.offsets[slot].load(Ordering::Relaxed))
    }

    /// Adds an id that is not there; false where there is no room. Of the writer alone.
    pub fn insert(&self, id: u64, record: u32) -> bool {
        let key = id.wrapping_add(1);
        let Some((slot, found)) = self.slot(key, self.home(id)) else { return false };
        assert!(!found && key != 0, "id {id:#x}");
        self.offsets[slot].store(record, Ordering::Relaxed);
        // Release: pairs with the Acquire in `slot`.
        self.keys[slot].store(key, Ordering::Release);
        true
    }

    /// Removes an id and returns its record. Entries behind it move back, so that no search meets a gap. Of the writer alone.
    pub fn remove(&self, id: u64) -> Option<u32> {
        let (mut gap, found) = self.slot(id.wrapping_add(1), self.home(id))?;
        if !found {
            return None;
        }
        let record = self.offsets[gap].load(Ordering::Relaxed);
        let removed = gap;
        let mut slot = self.next(gap);
        // Once around where no slot is empty.
        while slot != removed {
            let key = self.keys[slot].load(Ordering::Relaxed);
            if key == 0 {
                break;
            }
            // An entry may fill the gap if its search begins at the gap or before, cyclically.
            let home = self.home(key.wrapping_sub(1));
            let stays = if gap <= slot { gap < home && home <= slot } else { gap < home || home <= slot };
            if !stays {
                self.offsets[gap].store(self.offsets[slot].load(Ordering::Relaxed), Ordering::Relaxed);
                // Release: as in `insert`.
                self.keys[gap].store(key, Ordering::Release);
                gap = slot;
            }
            slot = self.next(slot);
        }
        self.keys[gap].store(0, Ordering::Release);
        Some(record)
    }

    /// Every id with its record, in no order.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u32)> + 'a {
        self.keys.iter().zip(self.offsets).filter_map(|(key, offset)| match key.load(Ordering::Acquire) {
            0 => None,
            key => Some((key - 1, offset.load(Ordering::Relaxed))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The search for the end of a run of entries went around a full index for ever.
    #[test]
    fn an_entry_of_a_full_index_can_be_removed() {
        for slots in 1..5 {
            let keys: Vec<AtomicU64> = (0..slots).map(|_| AtomicU64::default()).collect();
            let offsets: Vec<AtomicU32> = (0..slots).map(|_| AtomicU32::default()).collect();
            let index = Index::new(&keys, &offsets);
            assert!((0..slots).all(|id| index.insert(id, id as u32)));
            for id in 0..slots {
                assert_eq!(index.remove(id), Some(id as u32));
                assert!((id + 1..slots).all(|left| index.find(left) == Some(left as u32)));
            }
        }
    }

    proptest! {
        /// Few slots and few ids: searches collide, wrap around and meet moved entries.
        #[test]
        fn it_does_what_a_map_does(steps in prop::collection::vec((0u64..24, any::<bool>()), 0..200), slots in 1usize..20) {
            let keys: Vec<AtomicU64> = (0..slots).map(|_| AtomicU64::default()).collect();
            let offsets: Vec<AtomicU32> = (0..slots).map(|_| AtomicU32::default()).collect();
            let index = Index::new(&keys, &offsets);
            let mut map = HashMap::new();
            for (step, (id, remove)) in steps.into_iter().enumerate() {
                if remove {
                    prop_assert_eq!(index.remove(id), map.remove(&id));
                } else if !map.contains_key(&id) {
                    let room = map.len() < slots;
                    prop_assert_eq!(index.insert(id, step as u32), room);
                    if room {
                        map.insert(id, step as u32);
                    }
                }
                for id in 0..24 {
                    prop_assert_eq!(index.find(id), map.get(&id).copied());
                }
            }
            let mut entries: Vec<(u64, u32)> = index.entries().collect();
            entries.sort_unstable();
            let mut expected: Vec<(u64, u32)> = map.into_iter().collect();
            expected.sort_unstable();
            prop_assert_eq!(entries, expected);
        }
    }
}
