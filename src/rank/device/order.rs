//! The order in which a device sums the gradients of a batch's rows.
//!
//! An id of a small field occurs in thousands of samples, most ids in one or two. One unit for each row would sum thousands of
//! terms one after another while the others have long ended, and additions by many units at once have no fixed order. So the
//! occurrences of a row are cut into chunks: chunks are summed first, then the chunks of each row, always in the same order.

use crate::sparse::Lookup;

/// Occurrences that one unit sums.
const CHUNK: u32 = 32;

/// Occurrences of a batch's unique ids: place `sample x fields + field` in the batch.
#[derive(Debug, Default)]
pub struct Order {
    /// Places in the batch, by unique id.
    pub places: Vec<u32>,
    /// First of each chunk's places in `places`, and their number at the end.
    pub chunks: Vec<u32>,
    /// First of each unique id's chunks, and their number at the end.
    pub rows: Vec<u32>,
    next: Vec<u32>,
}

impl Order {
    /// Orders the occurrences of a batch; keeps its memory from batch to batch.
    pub fn find(&mut self, lookup: &Lookup) {
        let unique = lookup.unique.len();
        self.next.clear();
        self.next.resize(unique, 0);
        lookup.inverse.iter().for_each(|&row| self.next[row as usize] += 1);
        self.chunks.clear();
        self.rows.clear();
        let mut first = 0;
        for next in &mut self.next {
            let occurrences = std::mem::replace(next, first);
            self.rows.push(self.chunks.len() as u32);
            self.chunks.extend((0..occurrences).step_by(CHUNK as usize).map(|skipped| first + skipped));
            first += occurrences;
        }
        self.rows.push(self.chunks.len() as u32);
        self.chunks.push(first);
        self.places.clear();
        self.places.resize(lookup.inverse.len(), 0);
        for (place, &row) in lookup.inverse.iter().enumerate() {
            let next = &mut self.next[row as usize];
            self.places[*next as usize] = place as u32;
            *next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_of_a_row_hold_its_occurrences_in_order(ids in prop::collection::vec(0u64..9, 0..500)) {
            let lookup = Lookup::of(&ids);
            let mut order = Order::default();
            // Memory of a batch before changes nothing.
            order.find(&Lookup::of(&[5; 100]));
            order.find(&lookup);
            prop_assert_eq!(order.rows.len(), lookup.unique.len() + 1);
            for (row, id) in lookup.unique.iter().enumerate() {
                let chunks = &order.chunks[order.rows[row] as usize..=order.rows[row + 1] as usize];
                prop_assert!(chunks.windows(2).all(|chunk| chunk[0] < chunk[1] && chunk[1] - chunk[0] <= CHUNK));
                let places = &order.places[chunks[0] as usize..chunks[chunks.len() - 1] as usize];
                let expected = ids.iter().enumerate().filter(|(_, other)| *other == id).map(|(place, _)| place as u32);
                prop_assert!(places.iter().copied().eq(expected));
            }
            prop_assert_eq!(*order.chunks.last().unwrap() as usize, ids.len());
        }
    }
}
