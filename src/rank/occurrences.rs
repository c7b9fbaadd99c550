//! How the samples of a batch weigh on its rows.
//!
//! A sample's weight stands for the impressions that exploration shows too rarely. A row that was seen ten times at weight ten is
//! still known from ten exposures, not from a hundred: its prior is multiplied by the mean weight of its samples, each counted by its
//! weight.

use crate::collective::rows::mean_weight;
use crate::sparse::Lookup;

/// What the samples of a batch say of each of its unique ids.
#[derive(Debug, Default)]
pub struct Occurrences {
    /// Field, sum of weights, sum of squared weights.
    places: Vec<(usize, f32, f32)>,
}

impl Occurrences {
    /// Counts a batch: `weights` of its samples, which have `fields` ids each.
    pub fn count(&mut self, lookup: &Lookup, weights: &[f32], fields: usize) {
        self.places.clear();
        self.places.resize(lookup.unique.len(), (0, 0.0, 0.0));
        for (places, &weight) in lookup.inverse.chunks_exact(fields).zip(weights) {
            for (field, &place) in places.iter().enumerate() {
                let (of, sum, squares) = &mut self.places[place as usize];
                *of = field;
                *sum += weight;
                *squares += weight * weight;
            }
        }
    }

    pub fn field(&self, place: usize) -> usize {
        self.places[place].0
    }

    /// Field, sum of the weights and sum of their squares.
    pub fn of(&self, place: usize) -> (usize, f32, f32) {
        self.places[place]
    }

    /// The mean weight of the place's samples, each counted by its weight.
    pub fn weight(&self, place: usize) -> f32 {
        let (_, sum, squares) = self.places[place];
        mean_weight(sum, squares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_a_row_are_averaged_by_themselves() {
        let lookup = Lookup::of(&[7, 100, 7, 101, 8, 100]);
        let mut occurrences = Occurrences::default();
        occurrences.count(&lookup, &[1.0, 3.0, 10.0], 2);
        let of = |id: u64| {
            let place = lookup.unique.iter().position(|&unique| unique == id).unwrap();
            (occurrences.field(place), occurrences.weight(place))
        };
        assert_eq!((of(7), of(8), of(100), of(101)), ((0, 2.5), (0, 10.0), (1, 101.0 / 11.0), (1, 3.0)));
    }
}
