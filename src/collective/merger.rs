//! Sums what the ranks gave of their rows, and divides the sums.
//!
//! The sum of a row is taken in the order of the ranks, so every rank computes the same bytes. The divisor is a choice ([`SparseAverage`]): the
//! number of ranks in which the row occurs, or the number of all ranks, which is what one rank with the whole batch would have computed.

use std::ops::Range;

use crate::settings::SparseAverage;
use crate::sparse::Lookup;
use crate::sparse::lookup::Finder;

use super::rows::{Message, RowSums};

/// A row that one or more ranks hold.
#[derive(Debug, Clone, Copy)]
struct Merged {
    sums: RowSums,
    /// Number of ranks that hold it.
    holders: u32,
}

/// The merged rows of a batch; keeps its memory from batch to batch.
#[derive(Debug, Default)]
pub struct Merger {
    finder: Finder,
    /// The ids of all rows of all messages, one message after another.
    ids: Vec<u64>,
    /// The unique ids, and where each of `ids` stands among them.
    lookup: Lookup,
    /// One for each unique id.
    rows: Vec<Merged>,
    /// `dim` floats for each unique id.
    gradients: Vec<f32>,
    dim: usize,
    average: SparseAverage,
    ranks: usize,
}

impl Merger {
    /// Merges the rows of the messages of all ranks, in the order of the ranks. A gradient has `dim` floats. The field of a row is the one that
    /// the first of its ranks says.
    ///
    /// # Panics
    /// If `dim` is 0.
    pub fn merge(&mut self, messages: &[Message<'_>], dim: usize, average: SparseAverage) {
        let Self { finder, ids, lookup, rows, .. } = self;
        ids.clear();
        messages.iter().for_each(|message| ids.extend(message.ids()));
        finder.find(ids, lookup);
        rows.clear();
        (self.dim, self.average, self.ranks) = (dim, average, messages.len());
        // What is left of the last batch is written over.
        self.gradients.resize(self.lookup.unique.len() * dim, 0.0);
        let mut begin = 0;
        for message in messages {
            self.take(message, begin..begin + message.rows());
            begin += message.rows();
        }
        self.divide();
    }

    /// Takes the rows of a message, which are those at `given` among all.
    fn take(&mut self, message: &Message<'_>, given: Range<usize>) {
        let Self { lookup, rows, gradients, dim, .. } = self;
        let (places, dim) = (&lookup.inverse[given], *dim);
        let mut row = 0;
        while row < places.len() {
            // Rows whose ids no earlier message had come next among the unique ids, too: a run of them is copied as a whole.
            let first = rows.len();
            let new = places[row..].iter().zip(first..).take_while(|(place, next)| **place as usize == *next).count();
            let from = &message.gradients()[row * dim..(row + new.max(1)) * dim];
            let from = from.iter().map(|float| f32::from_le_bytes(*float));
            if new > 0 {
                // Not added to zeros: 0 + -0 is 0.
                gradients[first * dim..(first + new) * dim].iter_mut().zip(from).for_each(|(sum, g)| *sum = g);
                rows.extend((row..row + new).map(|row| Merged { sums: message.sums(row), holders: 1 }));
                row += new;
                continue;
            }
            let place = places[row] as usize;
            gradients[place * dim..(place + 1) * dim].iter_mut().zip(from).for_each(|(sum, g)| *sum += g);
            let (RowSums { weights, squares, .. }, to) = (message.sums(row), &mut rows[place]);
            to.sums.weights += weights;
            to.sums.squares += squares;
            to.holders += 1;
            row += 1;
        }
    }

    fn divide(&mut self) {
        let ranks = self.ranks;
        match self.average {
            SparseAverage::World if ranks > 1 => self.gradients.iter_mut().for_each(|sum| *sum /= ranks as f32),
            SparseAverage::World => {}
            SparseAverage::Occurrence => {
                for (row, gradient) in self.rows.iter().zip(self.gradients.chunks_exact_mut(self.dim)) {
                    if row.holders > 1 {
                        gradient.iter_mut().for_each(|sum| *sum /= row.holders as f32);
                    }
                }
            }
        }
    }

    /// The ids of the rows, in the order in which they first appear.
    pub fn ids(&self) -> &[u64] {
        &self.lookup.unique
    }

    /// Of all rows of all messages, one message after another: the place of its id among [`ids`](Self::ids).
    pub fn places(&self) -> &[u32] {
        &self.lookup.inverse
    }

    /// How many times the mean over all ranks the gradient of the row at `place` is: it was divided by the ranks that hold the row, or by all.
    pub fn excess(&self, place: usize) -> f32 {
        match self.average {
            SparseAverage::World => 1.0,
            SparseAverage::Occurrence => self.ranks as f32 / self.rows[place].holders as f32,
        }
    }

    /// The row at `place` among [`ids`](Self::ids), and its gradient, which may be changed.
    pub fn row(&mut self, place: usize) -> (RowSums, &mut [f32]) {
        (self.rows[place].sums, &mut self.gradients[place * self.dim..(place + 1) * self.dim])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::collective::rows::encode;

    const DIM: usize = 3;
    const FIELDS: usize = 4;

    /// Samples of one shard: id, weight, gradient.
    type Shard = Vec<(u64, f32, [f32; DIM])>;

    fn field_of(id: u64) -> usize {
        (id % FIELDS as u64) as usize
    }

    /// What a rank sends: its samples merged to unique rows.
    fn message(shard: &Shard) -> Vec<u8> {
        let ids: Vec<u64> = shard.iter().map(|sample| sample.0).collect();
        let lookup = Lookup::of(&ids);
        // -0 is what adds nothing to any float.
        let mut gradients = vec![-0.0; lookup.unique.len() * DIM];
        let mut weights = vec![(0.0f32, 0.0f32); lookup.unique.len()];
        for ((_, weight, gradient), &place) in shard.iter().zip(&lookup.inverse) {
            let place = place as usize;
            weights[place].0 += weight;
            weights[place].1 += weight * weight;
            gradients[place * DIM..][..DIM].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
        let of_row = |row: usize| (field_of(lookup.unique[row]), weights[row].0, weights[row].1);
        let encode = |out: &mut [u8]| encode(&lookup, of_row, &gradients, FIELDS, out);
        let mut bytes = vec![0; encode(&mut [])];
        assert_eq!(encode(&mut bytes), bytes.len());
        bytes
    }

    /// Merged rows by id.
    type Found = BTreeMap<u64, ([f32; DIM], RowSums)>;

    fn merged(shards: &[Shard], average: SparseAverage) -> Found {
        let bytes: Vec<Vec<u8>> = shards.iter().map(message).collect();
        let messages: Vec<Message<'_>> =
            bytes.iter().enumerate().map(|(rank, bytes)| Message::decode(rank, bytes, DIM, FIELDS).unwrap()).collect();
        let mut merger = Merger::default();
        // What it held before is forgotten: a larger batch.
        let larger = message(&(0..100).map(|id| (id, 2.0, [f32::NAN; DIM])).collect());
        merger.merge(&[Message::decode(0, &larger, DIM, FIELDS).unwrap()], DIM, average);
        merger.merge(&messages, DIM, average);
        let ids = merger.ids().to_vec();
        let row = |(place, id): (usize, u64)| {
            let (sums, gradient) = merger.row(place);
            (id, (gradient.try_into().unwrap(), sums))
        };
        let found: Found = ids.iter().copied().enumerate().map(row).collect();
        assert_eq!(found.len(), ids.len(), "an id stands there twice");
        found
    }

    /// Of one process that sees all samples: gradient sums and the ranks that hold each id, in plain double precision.
    fn reference(shards: &[Shard], average: SparseAverage) -> BTreeMap<u64, ([f64; DIM], f64, f64)> {
        let mut sums: BTreeMap<u64, ([f64; DIM], f64, f64)> = BTreeMap::new();
        for (id, weight, gradient) in shards.iter().flatten() {
            let (sum, weights, squares) = sums.entry(*id).or_default();
            *weights += f64::from(*weight);
            *squares += f64::from(*weight).powi(2);
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += f64::from(*g));
        }
        for (id, (sum, ..)) in &mut sums {
            let holders = shards.iter().filter(|shard| shard.iter().any(|sample| sample.0 == *id)).count();
            let divisor = if average == SparseAverage::World { shards.len() } else { holders };
            sum.iter_mut().for_each(|sum| *sum /= divisor as f64);
        }
        sums
    }

    /// The first row that differs from the reference.
    fn difference(shards: &[Shard], average: SparseAverage, found: &Found) -> Option<String> {
        let expected = reference(shards, average);
        if expected.keys().ne(found.keys()) {
            return Some(format!("{} rows, not {}", found.len(), expected.len()));
        }
        found.iter().find_map(|(id, (gradient, row))| {
            let (sum, weights, squares) = &expected[id];
            let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 1e-5 * b.abs().max(1.0);
            let same = gradient.iter().zip(sum).all(|(a, b)| close(*a, *b))
                && close(row.weights, *weights)
                && close(row.squares, *squares)
                && row.field as usize == field_of(*id);
            (!same).then(|| format!("row {id}: {gradient:?}, not {sum:?}"))
        })
    }

    /// Shards with the ids {e, g, i}, {f, h, i} and {e, g, i}, and e twice in the first.
    fn lettered() -> Vec<Shard> {
        let of = |letters: &str, rank: u32| -> Shard {
            letters
                .bytes()
                .map(|letter| (u64::from(letter), 1.0, [(1 << rank) as f32, f32::from(letter), -1.0]))
                .collect()
        };
        vec![of("egie", 0), of("fhi", 1), of("egi", 2)]
    }

    #[test]
    fn rows_are_divided_by_the_ranks_that_hold_them_or_by_all() {
        let row = |found: &Found, letter: u8| -> (f32, f32) {
            let (gradient, row) = &found[&u64::from(letter)];
            (gradient[0], row.weights)
        };
        let found = merged(&lettered(), SparseAverage::Occurrence);
        // e: (1 + 1) + 4 in two ranks; i: 1 + 2 + 4 in three; f: 2 in one.
        assert_eq!(
            [b'e', b'g', b'i', b'f', b'h'].map(|letter| row(&found, letter)),
            [(3.0, 3.0), (2.5, 2.0), (7.0 / 3.0, 3.0), (2.0, 1.0), (2.0, 1.0)]
        );
        let found = merged(&lettered(), SparseAverage::World);
        assert_eq!((row(&found, b'e').0, row(&found, b'f').0), (2.0, 2.0 / 3.0));
    }

    /// A row that one of several ranks holds had the prior of the mean over all: it was drawn towards 0 too little.
    #[test]
    fn it_is_known_how_many_times_the_mean_over_all_a_gradient_is() {
        let bytes: Vec<Vec<u8>> = lettered().iter().map(message).collect();
        let messages: Vec<Message<'_>> =
            bytes.iter().enumerate().map(|(rank, bytes)| Message::decode(rank, bytes, DIM, FIELDS).unwrap()).collect();
        let mut merger = Merger::default();
        let of = |merger: &Merger, letter: u8| {
            merger.excess(merger.ids().iter().position(|id| *id == u64::from(letter)).unwrap())
        };
        merger.merge(&messages, DIM, SparseAverage::Occurrence);
        assert_eq!([b'e', b'i', b'f'].map(|letter| of(&merger, letter)), [1.5, 1.0, 3.0]);
        merger.merge(&messages, DIM, SparseAverage::World);
        assert_eq!([b'e', b'i', b'f'].map(|letter| of(&merger, letter)), [1.0; 3]);
    }

    #[test]
    fn wrong_divisors_and_lost_rows_are_found() {
        let shards = lettered();
        for (average, other) in
            [(SparseAverage::World, SparseAverage::Occurrence), (SparseAverage::Occurrence, SparseAverage::World)]
        {
            assert_eq!(difference(&shards, average, &merged(&shards, average)), None);
            assert!(difference(&shards, average, &merged(&shards, other)).is_some(), "the other divisor");
            assert!(difference(&shards, average, &merged(&shards[..2], average)).is_some(), "a rank left out");
        }
        // A shard that is not merged: its duplicates count as ranks.
        let mut apart = shards.clone();
        let twice = apart[0].pop().unwrap();
        apart.push(vec![twice]);
        let found = merged(&apart, SparseAverage::Occurrence);
        assert!(difference(&shards, SparseAverage::Occurrence, &found).is_some(), "duplicates counted as ranks");
    }

    /// Sums of floats depend on the order of their terms, and so would the bytes of a run.
    #[test]
    fn sums_are_taken_in_the_order_of_the_ranks() {
        let shards: Vec<Shard> = [(10, [1e8, 1.0, -0.0]), (11, [-1e8, 1e8, -0.0]), (12, [1.0, -1e8, -0.0])]
            .map(|(alone, gradient)| vec![(9, 1.0, gradient), (alone, 1.0, [-0.0; DIM])])
            .into();
        let found = merged(&shards, SparseAverage::World);
        let sum = |i: usize| {
            let given: Vec<f32> = shards.iter().map(|shard| shard[0].2[i]).collect();
            ((given[0] + given[1] + given[2]) / 3.0).to_bits()
        };
        let bits = |gradient: [f32; DIM]| gradient.map(f32::to_bits);
        assert_eq!(bits(found[&9].0), [sum(0), sum(1), sum(2)]);
        // Alone, -0 stays what it is.
        assert_eq!(bits(found[&10].0), [(-0.0f32).to_bits(); DIM]);
        // In the other order the sum differs: the comparison tells the orders apart.
        let reversed: Vec<Shard> = shards.into_iter().rev().collect();
        assert_ne!(bits(merged(&reversed, SparseAverage::World)[&9].0), bits(found[&9].0));
    }

    proptest! {
        #[test]
        fn it_is_what_one_process_computes(
            shards in prop::collection::vec(
                prop::collection::vec((0u64..12, 1u8..20, any::<[i8; DIM]>()), 0..20), 1..6),
        ) {
            let shards: Vec<Shard> = shards.into_iter().map(|shard| {
                shard.into_iter().map(|(id, w, g)| (id, f32::from(w), g.map(|g| f32::from(g) / 8.0))).collect()
            }).collect();
            for average in [SparseAverage::World, SparseAverage::Occurrence] {
                prop_assert_eq!(difference(&shards, average, &merged(&shards, average)), None);
            }
        }
    }
}
