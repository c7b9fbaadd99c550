//! From the id of a resident row to its place: open addressing with buckets of a cache line each.
//!
//! A slot holds half of the id's hash beside the place. So a search looks at one cache line, nearly always, and at the place that it finds,
//! which whoever searches needs next; and entries move without a look at their ids.

use crate::shm::prefetch;
use crate::sparse::index::mix;

use super::memory::ABSENT;

/// Slots of a bucket, which are searched together.
const SLOTS: usize = 8;
/// Slots for each place: few buckets are full.
const SPARE: usize = 2;

/// A cache line of slots. Ids stand in the first bucket with an empty slot, from the one on where their search begins.
#[derive(Clone)]
#[repr(align(64))]
struct Bucket {
    hashes: [u32; SLOTS],
    /// [`ABSENT`] in an empty slot.
    places: [u32; SLOTS],
}

const EMPTY: Bucket = Bucket { hashes: [0; SLOTS], places: [ABSENT; SLOTS] };

impl Bucket {
    /// A bit for each empty slot.
    fn empty(&self) -> u32 {
        equal(&self.places, ABSENT)
    }

    /// A bit for each entry with a hash.
    fn with(&self, hash: u32) -> u32 {
        equal(&self.hashes, hash) & !self.empty()
    }

    fn is_full(&self) -> bool {
        self.empty() == 0
    }
}

/// A bit for each of the words that is `word`. It becomes a few instructions on vectors.
fn equal(words: &[u32; SLOTS], word: u32) -> u32 {
    words.iter().enumerate().fold(0, |bits, (i, other)| bits | u32::from(*other == word) << i)
}

fn first(bits: u32) -> Option<usize> {
    (bits != 0).then(|| bits.trailing_zeros() as usize)
}

/// The place of each resident id.
pub(super) struct Resident {
    buckets: Vec<Bucket>,
}

/// The part of an id's mixed bits by which it is found.
pub(super) fn hash(mixed: u64) -> u32 {
    (mixed >> 32) as u32
}

impl Resident {
    /// Room for `capacity` ids.
    pub(super) fn of(capacity: usize) -> Self {
        // There are more slots than places: a search ends.
        Self { buckets: vec![EMPTY; (SPARE * capacity).div_ceil(SLOTS) + 1] }
    }

    /// The bucket where the search for a hash begins.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// Starts to load what a search for a hash looks at first.
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch(&self.buckets[self.home(hash)]);
    }

    /// The place of an id with a hash, most likely: that of the first one with the same hash. `None` is certain.
    pub(super) fn likely(&self, hash: u32) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// The place of an id with a hash, given whether a place holds the id.
    pub(super) fn find(&self, hash: u32, holds: impl Fn(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            let mut likely = bucket.with(hash);
            while let Some(slot) = first(likely) {
                let place = bucket.places[slot];
                if holds(place) {
                    return Some(place);
                }
                likely &= likely - 1;
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.next(at);
        }
    }

    /// Adds an id that is not resident.
    pub(super) fn insert(&mut self, id: u64, place: u32) {
        let hash = hash(mix(id));
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = first(bucket.empty()) {
                (bucket.hashes[slot], bucket.places[slot]) = (hash, place);
                return;
            }
            at = self.next(at);
        }
    }

    /// Removes an id, whose place is given. Where that makes room in a full bucket, an entry of the buckets behind it moves up, so that no
    /// search ends too early.
    ///
    /// # Panics
    /// When it is not there.
    pub(super) fn remove(&mut self, id: u64, place: u32) {
        let mut at = self.home(hash(mix(id)));
        let mut slot = loop {
            let bucket = &self.buckets[at];
            match first(equal(&bucket.places, place)) {
                Some(slot) => break slot,
                None => assert!(bucket.is_full(), "a resident id"),
            }
            at = self.next(at);
        };
        loop {
            let was_full = self.buckets[at].is_full();
            self.buckets[at].places[slot] = ABSENT;
            if !was_full {
                return;
            }
            let Some((from, its)) = self.beyond(at) else { return };
            let Bucket { hashes, places } = &self.buckets[from];
            let (hash, place) = (hashes[its], places[its]);
            let bucket = &mut self.buckets[at];
            (bucket.hashes[slot], bucket.places[slot]) = (hash, place);
            (at, slot) = (from, its);
        }
    }

    /// The first entry behind a bucket whose search begins in that bucket or before it.
    fn beyond(&self, hole: usize) -> Option<(usize, usize)> {
        let mut at = self.next(hole);
        loop {
            let bucket = &self.buckets[at];
            let may_move = |slot: &usize| {
                let home = self.home(bucket.hashes[*slot]);
                let behind = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
                bucket.places[*slot] != ABSENT && !behind
            };
            if let Some(slot) = (0..SLOTS).find(may_move) {
                return Some((at, slot));
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.next(at);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(|bucket| SLOTS - bucket.empty().count_ones() as usize).sum()
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few buckets and many ids: buckets are full, and searches wrap around.
        #[test]
        fn it_does_what_a_map_does(steps in prop::collection::vec((0u64..60, prop::bool::weighted(0.4)), 0..300), capacity in 1usize..60) {
            let mut places = vec![None; capacity];
            let mut free: Vec<u32> = (0..capacity as u32).collect();
            let (mut resident, mut map) = (Resident::of(capacity), HashMap::new());
            for (id, removes) in steps {
                if removes {
                    if let Some(place) = map.remove(&id) {
                        resident.remove(id, place);
                        places[place as usize] = None;
                        free.push(place);
                    }
                } else if !map.contains_key(&id) && let Some(place) = free.pop() {
                    places[place as usize] = Some(id);
                    resident.insert(id, place);
                    map.insert(id, place);
                }
                prop_assert_eq!(resident.len(), map.len());
                for id in 0..60 {
                    prop_assert_eq!(resident.find(hash(mix(id)), |place| places[place as usize] == Some(id)), map.get(&id).copied());
                    // None of these ids share a hash.
                    prop_assert_eq!(resident.likely(hash(mix(id))), map.get(&id).copied());
                }
            }
        }
    }

    #[test]
    fn ids_of_one_hash_are_told_apart_by_their_places() {
        let [first, second] = two_of_one_hash();
        let mut places = [None; 2];
        let mut resident = Resident::of(2);
        for (place, id) in [(0, first), (1, second)] {
            places[place as usize] = Some(id);
            resident.insert(id, place);
        }
        assert_eq!(
            [first, second].map(|id| resident.find(hash(mix(id)), |place| places[place as usize] == Some(id))),
            [Some(0), Some(1)]
        );
        assert_eq!(resident.likely(hash(mix(second))), Some(0));
        resident.remove(first, 0);
        assert_eq!(
            [first, second].map(|id| resident.find(hash(mix(id)), |place| places[place as usize] == Some(id))),
            [None, Some(1)]
        );
    }

    /// Two ids with the same hash, found by trying.
    pub fn two_of_one_hash() -> [u64; 2] {
        let mut seen = HashMap::new();
        (0..).find_map(|id| seen.insert(hash(mix(id)), id).map(|before| [before, id])).expect("32 bits repeat soon")
    }
}
