//! How often ids have been seen that have no row yet: a count sketch.
//!
//! An id has four counters in one cache line; the least of them is its count. Adding to it raises only counters that are lower than the
//! new count, so that ids that share some of them disturb each other little. Counts are never too low.

use super::index::mix;

/// Counters of a cache line.
const LINE: usize = 64;
const COUNTERS: usize = 4;
/// What tells counters of an id from its place in the index.
const SALT: u64 = 0x6a09_e667_f3bc_c908;

/// Counts of ids, up to 255.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sightings {
    counters: Vec<u8>,
}

impl Sightings {
    /// So many counters, rounded up to cache lines.
    pub fn new(counters: usize) -> Self {
        Self { counters: vec![0; Self::bytes(counters)] }
    }

    /// Bytes that so many counters take.
    pub fn bytes(counters: usize) -> usize {
        counters.next_multiple_of(LINE).max(LINE)
    }

    /// Takes counts back that [`as_bytes`](Self::as_bytes) gave; `None` for another number of counters.
    pub fn restore(counters: usize, bytes: &[u8]) -> Option<Self> {
        (bytes.len() == Self::bytes(counters)).then(|| Self { counters: bytes.to_vec() })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.counters
    }

    fn places(&self, id: u64) -> [usize; COUNTERS] {
        let hash = mix(id ^ SALT);
        let line = ((u128::from(hash) * (self.counters.len() / LINE) as u128) >> 64) as usize;
        let within = mix(hash);
        std::array::from_fn(|i| line * LINE + (within >> (6 * i)) as usize % LINE)
    }

    /// How often an id has been seen.
    pub fn count(&self, id: u64) -> u32 {
        self.places(id).map(|place| self.counters[place]).into_iter().min().unwrap_or(0).into()
    }

    /// Adds `n` to an id's count and returns it.
    pub fn add(&mut self, id: u64, n: u32) -> u32 {
        let count = self.count(id).saturating_add(n).min(u8::MAX.into());
        for place in self.places(id) {
            self.counters[place] = self.counters[place].max(count as u8);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_count_is_too_low(adds in prop::collection::vec((0u64..60, 1u32..4), 0..200), counters in 1usize..2000) {
            let (mut sightings, mut exact) = (Sightings::new(counters), HashMap::new());
            for (id, n) in adds {
                let count = sightings.add(id, n);
                let exact = exact.entry(id).or_insert(0);
                *exact += n;
                prop_assert!(count >= *exact && count == sightings.count(id));
            }
            prop_assert_eq!(Sightings::restore(counters, sightings.as_bytes()), Some(sightings));
        }
    }

    /// What the documentation promises of four and eight counters for each id.
    #[test]
    fn few_counts_are_too_high() {
        for (per_id, most) in [(4, 0.06), (8, 0.01)] {
            let ids = 20_000;
            let mut sightings = Sightings::new(per_id * ids as usize);
            let high = (0..ids).filter(|id| sightings.add(*id, 1) > 1).count();
            assert!((high as f64) < most * ids as f64, "{high} of {ids} with {per_id} counters each");
        }
    }

    #[test]
    fn counts_of_another_size_are_not_taken() {
        assert_eq!(Sightings::restore(128, &[0; 64]), None);
        let mut full = Sightings::new(64);
        (0..10).for_each(|_| assert!(full.add(1, 100) <= 255));
        assert_eq!(full.count(1), 255);
    }
}
