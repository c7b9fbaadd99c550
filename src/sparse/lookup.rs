//! The unique ids of a batch, in the order in which they first appear, and where each of the batch's ids stands among them.

use super::index::mix;

/// What a batch needs of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lookup {
    pub unique: Vec<u64>,
    /// Of each of the batch's ids: its place in `unique`.
    pub inverse: Vec<u32>,
}

/// Finds unique ids; keeps its memory from batch to batch.
#[derive(Debug, Default)]
pub struct Finder {
    /// Places in `unique` counted from 1, by hash; 0 = empty.
    slots: Vec<u32>,
}

impl Finder {
    /// Fills `lookup` for a batch's ids.
    pub fn find(&mut self, ids: &[u64], lookup: &mut Lookup) {
        let slots = (2 * ids.len()).next_power_of_two().max(16);
        self.slots.clear();
        self.slots.resize(slots, 0);
        lookup.unique.clear();
        lookup.inverse.clear();
        lookup.inverse.reserve(ids.len());
        for &id in ids {
            let mut slot = mix(id) as usize & (slots - 1);
            let place = loop {
                match self.slots[slot] {
                    0 => {
                        lookup.unique.push(id);
                        self.slots[slot] = lookup.unique.len() as u32;
                        break lookup.unique.len() as u32;
                    }
                    place if lookup.unique[place as usize - 1] == id => break place,
                    _ => slot = (slot + 1) & (slots - 1),
                }
            };
            lookup.inverse.push(place - 1);
        }
    }
}

impl Lookup {
    /// The look-up of one batch.
    pub fn of(ids: &[u64]) -> Self {
        let mut lookup = Self::default();
        Finder::default().find(ids, &mut lookup);
        lookup
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn expanding_the_unique_ids_by_the_inverse_gives_the_batch(ids in prop::collection::vec(0u64..50, 0..300)) {
            let lookup = Lookup::of(&ids);
            let expanded: Vec<u64> = lookup.inverse.iter().map(|&place| lookup.unique[place as usize]).collect();
            prop_assert_eq!(&expanded, &ids);
            let distinct: std::collections::HashSet<u64> = ids.iter().copied().collect();
            prop_assert_eq!(lookup.unique.len(), distinct.len());
        }
    }
}
