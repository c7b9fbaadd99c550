//! From id to record: open addressing with linear probing over two arrays in shared memory.
//!
//! A key is the id plus 1, so that 0 means empty; the id `u64::MAX` cannot be stored. One writer changes the index. It stores the
//! offset before the key: if it dies in between, the slot is still empty. A removal moves other entries and is not safe against a
//! death in that way: the table says beforehand that entries move, and makes the index anew from its records after a death.

use crate::shm::sync::{AtomicU32, AtomicU64, Ordering};
use crate::shm::{ahead, prefetch};

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

/// Hashes ids for maps: they are mixed, and nobody chooses them to collide.
#[derive(Debug, Clone, Copy, Default)]
pub struct IdHasher(u64);

impl std::hash::Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = mix(id);
    }
}

/// A map by id.
pub type IdMap<V> = std::collections::HashMap<u64, V, std::hash::BuildHasherDefault<IdHasher>>;

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
            // Acquire: pairs with the Release in `insert` of an earlier writer; the offset was stored before the key.
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

    /// The entry in a slot; `None` for an empty one and behind the last.
    pub fn at(&self, slot: usize) -> Option<(u64, u32)> {
        let key = self.keys.get(slot)?.load(Ordering::Acquire);
        // Relaxed: ordered by the key's Acquire.
        (key != 0).then(|| (key - 1, self.offsets[slot].load(Ordering::Relaxed)))
    }

    /// Appends the record of each id to `records`; `None` for an id that is not there.
    ///
    /// The slots of later ids are loaded while earlier ids are compared: one by one, each search would wait for memory.
    pub fn find_all(&self, ids: &[u64], records: &mut Vec<Option<u32>>) {
        records.extend(ids.iter().enumerate().map(|(i, &id)| {
            ids[ahead(i, ids.len())].iter().for_each(|later| self.prefetch(*later));
            self.find(id)
        }));
    }

    /// Starts to load what a search for an id looks at first.
    pub fn prefetch(&self, id: u64) {
        let home = self.home(id);
        prefetch(&self.keys[home]);
        prefetch(&self.offsets[home]);
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

    /// Removes an id; false where it is not there. Entries behind it move up, so that no search ends too early. Of the writer alone:
    /// whoever reads meanwhile may miss an id, and a writer that dies meanwhile leaves an id twice.
    pub fn remove(&self, id: u64) -> bool {
        let Some((mut hole, true)) = self.slot(id.wrapping_add(1), self.home(id)) else { return false };
        let mut slot = self.next(hole);
        let first = hole;
        while slot != first {
            let key = self.keys[slot].load(Ordering::Relaxed);
            if key == 0 {
                break;
            }
            // It may stand in the hole unless its search begins behind it.
            let home = self.home(key - 1);
            let behind = if hole <= slot { hole < home && home <= slot } else { hole < home || home <= slot };
            if !behind {
                self.offsets[hole].store(self.offsets[slot].load(Ordering::Relaxed), Ordering::Relaxed);
                // Release: as in `insert`.
                self.keys[hole].store(key, Ordering::Release);
                hole = slot;
            }
            slot = self.next(slot);
        }
        self.keys[hole].store(0, Ordering::Release);
        true
    }

    /// Removes all ids.
    pub fn clear(&self) {
        self.keys.iter().for_each(|key| key.store(0, Ordering::Release));
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

    proptest! {
        /// Few slots and few ids: searches collide and wrap around.
        #[test]
        fn it_does_what_a_map_does(steps in prop::collection::vec((0u64..24, any::<bool>()), 0..200), slots in 1usize..20) {
            let keys: Vec<AtomicU64> = (0..slots).map(|_| AtomicU64::default()).collect();
            let offsets: Vec<AtomicU32> = (0..slots).map(|_| AtomicU32::default()).collect();
            let index = Index::new(&keys, &offsets);
            let mut map = HashMap::new();
            for (step, (id, removes)) in steps.into_iter().enumerate() {
                if removes {
                    prop_assert_eq!(index.remove(id), map.remove(&id).is_some());
                } else if !map.contains_key(&id) {
                    let room = map.len() < slots;
                    prop_assert_eq!(index.insert(id, step as u32), room);
                    if room {
                        map.insert(id, step as u32);
                    }
                }
                let mut found = vec![];
                index.find_all(&(0..24).collect::<Vec<u64>>(), &mut found);
                for (id, found) in (0..24).zip(found) {
                    prop_assert_eq!(index.find(id), map.get(&id).copied());
                    prop_assert_eq!(found, map.get(&id).copied());
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
