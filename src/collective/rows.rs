//! Gradients of embedding rows between ranks: merged within a shard, encoded, summed over the ranks in their order, divided.
//!
//! A row that occurs in several samples of a shard has one gradient there, the sum. Of the gradients of all ranks the sum is taken in
//! the order of the ranks, so every rank computes the same bytes. The divisor is a choice ([`SparseAverage`]): the number of ranks in
//! which the row occurs, or the number of all ranks, which is what one rank with the whole batch would have computed.

use crate::settings::SparseAverage;
use crate::sparse::Lookup;
use crate::sparse::lookup::Finder;

/// Bytes of a message before its groups' counts: rows, floats of a row, groups.
const HEADER: usize = 12;

/// A message that is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("row gradients of rank {rank} are damaged: {bytes} bytes")]
pub struct Damaged {
    rank: usize,
    bytes: usize,
}

/// Gradients of unique rows, and what the samples that hold a row weigh.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowGradients {
    pub ids: Vec<u64>,
    /// Of each row: the field that it belongs to.
    pub fields: Vec<u32>,
    /// Of each row: the sum of the weights of its samples, and of their squares. With weights of 1 the first is the number of
    /// occurrences.
    pub weights: Vec<f32>,
    pub squares: Vec<f32>,
    /// `dim` floats of each row.
    pub gradients: Vec<f32>,
}

impl RowGradients {
    fn clear(&mut self) {
        self.ids.clear();
        self.fields.clear();
        self.weights.clear();
        self.squares.clear();
        self.gradients.clear();
    }

    /// The mean weight of a row's samples, each counted by its weight.
    pub fn mean_weight(&self, row: usize) -> f32 {
        mean_weight(self.weights[row], self.squares[row])
    }
}

/// The mean weight of samples, each counted by its weight, from the sum of their weights and of the squares.
pub fn mean_weight(sum: f32, squares: f32) -> f32 {
    if sum > 0.0 { squares / sum } else { 1.0 }
}

/// Bytes of the longest message of `rows` rows.
pub fn capacity(rows: usize, dim: usize, fields: usize) -> usize {
    HEADER + 4 * fields + rows * (8 + 4 + 4 + 4 * dim)
}

/// Encodes a shard's gradients: of each of the `lookup`'s unique ids the field, the weights' sum and sum of squares, and `dim` floats
/// of gradient. Rows stand in the order of their fields. The message is appended to `out`.
pub fn encode(
    lookup: &Lookup,
    of_row: impl Fn(usize) -> (usize, f32, f32),
    gradients: &[f32],
    fields: usize,
    out: &mut Vec<u8>,
) {
    let rows = lookup.unique.len();
    let dim = gradients.len().checked_div(rows).unwrap_or(0);
    // A counting sort by field, which keeps the order within one.
    let mut counts = vec![0u32; fields];
    (0..rows).for_each(|row| counts[of_row(row).0] += 1);
    let mut next: Vec<u32> = counts
        .iter()
        .scan(0, |sum, count| {
            *sum += count;
            Some(*sum - count)
        })
        .collect();
    let mut order = vec![0u32; rows];
    for row in 0..rows {
        let place = &mut next[of_row(row).0];
        order[*place as usize] = row as u32;
        *place += 1;
    }
    for number in [rows as u32, dim as u32, fields as u32].iter().chain(&counts) {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let at = out.len();
    out.resize(at + rows * (16 + 4 * dim), 0);
    let (ids, rest) = out[at..].split_at_mut(8 * rows);
    let (weights, rest) = rest.split_at_mut(4 * rows);
    let (squares, floats) = rest.split_at_mut(4 * rows);
    let (ids, weights, squares) = (ids.as_chunks_mut().0, weights.as_chunks_mut().0, squares.as_chunks_mut().0);
    let floats = floats.as_chunks_mut().0;
    for (place, &row) in order.iter().enumerate() {
        let row = row as usize;
        let (_, weight, square) = of_row(row);
        ids[place] = lookup.unique[row].to_le_bytes();
        weights[place] = weight.to_le_bytes();
        squares[place] = square.to_le_bytes();
        let gradient = &gradients[row * dim..(row + 1) * dim];
        floats[place * dim..(place + 1) * dim].iter_mut().zip(gradient).for_each(|(to, g)| *to = g.to_le_bytes());
    }
}

/// Decodes a message of `rank` and appends its rows to `out`.
///
/// # Errors
/// [`Damaged`].
pub fn decode(rank: usize, message: &[u8], dim: usize, out: &mut RowGradients) -> Result<(), Damaged> {
    let damaged = Damaged { rank, bytes: message.len() };
    let word = |i: usize| -> Result<usize, Damaged> {
        let bytes = message.get(4 * i..4 * i + 4).ok_or(damaged)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("4 bytes")) as usize)
    };
    let (rows, floats, fields) = (word(0)?, word(1)?, word(2)?);
    let fits = fields <= message.len() && rows <= message.len() && (rows == 0 || floats == dim);
    if !fits || message.len() != HEADER + 4 * fields + rows * (16 + 4 * floats) {
        return Err(damaged);
    }
    let mut counted = 0;
    for field in 0..fields {
        let count = word(3 + field)?;
        counted += count;
        if counted > rows {
            return Err(damaged);
        }
        out.fields.extend(std::iter::repeat_n(field as u32, count));
    }
    if counted != rows {
        return Err(damaged);
    }
    let (ids, rest) = message[HEADER + 4 * fields..].split_at(8 * rows);
    let (weights, rest) = rest.split_at(4 * rows);
    let (squares, gradients) = rest.split_at(4 * rows);
    out.ids.extend(ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)));
    for (bytes, floats) in [(weights, &mut out.weights), (squares, &mut out.squares), (gradients, &mut out.gradients)] {
        floats.extend(bytes.as_chunks().0.iter().map(|float| f32::from_le_bytes(*float)));
    }
    Ok(())
}

/// Sums what the ranks gave; keeps its memory from batch to batch.
#[derive(Debug, Default)]
pub struct Merger {
    finder: Finder,
    lookup: Lookup,
    /// All rows of all ranks, in the order of the ranks, and how many are of each.
    all: RowGradients,
    ends: Vec<usize>,
    /// Of each merged row: the ranks that hold it.
    ranks: Vec<u32>,
}

impl Merger {
    /// Forgets the last batch.
    pub fn begin(&mut self) {
        self.all.clear();
        self.ends.clear();
    }

    /// Takes in the message of the next rank.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn add(&mut self, message: &[u8], dim: usize) -> Result<(), Damaged> {
        decode(self.ends.len(), message, dim, &mut self.all)?;
        self.ends.push(self.all.ids.len());
        Ok(())
    }

    /// Sums and divides the gradients of all ranks' rows, into `out`: rows in the order in which they first appear.
    pub fn finish(&mut self, average: SparseAverage, dim: usize, out: &mut RowGradients) {
        self.finder.find(&self.all.ids, &mut self.lookup);
        let rows = self.lookup.unique.len();
        // What the gradients held is replaced below.
        let gradients = std::mem::take(&mut out.gradients);
        out.clear();
        out.gradients = gradients;
        out.ids.extend_from_slice(&self.lookup.unique);
        out.fields.resize(rows, 0);
        out.weights.resize(rows, 0.0);
        out.squares.resize(rows, 0.0);
        out.gradients.resize(rows * dim, 0.0);
        self.ranks.clear();
        self.ranks.resize(rows, 0);
        for (given, &place) in self.lookup.inverse.iter().enumerate() {
            let place = place as usize;
            let sums = &mut out.gradients[place * dim..(place + 1) * dim];
            let gradient = &self.all.gradients[given * dim..(given + 1) * dim];
            // The first one is copied: 0 + -0 would be another bit.
            if self.ranks[place] == 0 {
                sums.copy_from_slice(gradient);
            } else {
                sums.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            }
            self.ranks[place] += 1;
            out.fields[place] = self.all.fields[given];
            out.weights[place] += self.all.weights[given];
            out.squares[place] += self.all.squares[given];
        }
        let world = self.ends.len() as f32;
        for (sums, &holders) in out.gradients.chunks_exact_mut(dim.max(1)).zip(&self.ranks) {
            let divisor = match average {
                SparseAverage::Occurrence => holders as f32,
                SparseAverage::World => world,
            };
            if divisor != 1.0 {
                sums.iter_mut().for_each(|sum| *sum /= divisor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

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
        let mut gradients = vec![0.0; lookup.unique.len() * DIM];
        let mut weights = vec![(0.0f32, 0.0f32); lookup.unique.len()];
        for ((_, weight, gradient), &place) in shard.iter().zip(&lookup.inverse) {
            let place = place as usize;
            weights[place].0 += weight;
            weights[place].1 += weight * weight;
            gradients[place * DIM..][..DIM].iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
        }
        let mut out = Vec::new();
        let of_row = |row: usize| (field_of(lookup.unique[row]), weights[row].0, weights[row].1);
        encode(&lookup, of_row, &gradients, FIELDS, &mut out);
        out
    }

    fn merged(shards: &[Shard], average: SparseAverage) -> RowGradients {
        let (mut merger, mut out) = (Merger::default(), RowGradients::default());
        merger.begin();
        shards.iter().for_each(|shard| merger.add(&message(shard), DIM).unwrap());
        merger.finish(average, DIM, &mut out);
        out
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
    fn difference(shards: &[Shard], average: SparseAverage, found: &RowGradients) -> Option<String> {
        let expected = reference(shards, average);
        if expected.len() != found.ids.len() {
            return Some(format!("{} rows, not {}", found.ids.len(), expected.len()));
        }
        found.ids.iter().enumerate().find_map(|(row, id)| {
            let (sum, weights, squares) = expected.get(id)?;
            let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 1e-5 * b.abs().max(1.0);
            let gradient = &found.gradients[row * DIM..(row + 1) * DIM];
            let same = gradient.iter().zip(sum).all(|(a, b)| close(*a, *b))
                && close(found.weights[row], *weights)
                && close(found.squares[row], *squares)
                && found.fields[row] as usize == field_of(*id);
            (!same).then(|| format!("row {id}: {gradient:?}, not {sum:?}"))
        })
    }

    /// The shards of the text: {e, g, i}, {f, h, i}, {e, g, i}, with e twice in the first.
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
        let row = |found: &RowGradients, letter: u8| -> (f32, f32) {
            let at = found.ids.iter().position(|id| *id == u64::from(letter)).unwrap();
            (found.gradients[at * DIM], found.weights[at])
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

    #[test]
    fn damaged_messages_are_refused() {
        let good = message(&lettered()[0]);
        let refused = |bytes: &[u8]| decode(3, bytes, DIM, &mut RowGradients::default()).is_err();
        assert!(!refused(&good) && refused(&good[..good.len() - 1]) && refused(&[]) && refused(&good[..9]));
        for at in 0..HEADER + 4 * FIELDS {
            let mut bytes = good.clone();
            bytes[at] ^= 0x40;
            assert!(refused(&bytes), "byte {at}");
        }
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

        /// What the issue allows to be exchanged: 1.1 times rows x (8 + 4 + 4 d).
        #[test]
        fn messages_are_as_short_as_promised(rows in 100usize..500, dim in 8usize..64) {
            let allowed = 1.1 * (rows * (12 + 4 * dim)) as f64;
            prop_assert!(capacity(rows, dim, 8) as f64 <= allowed + (HEADER + 32) as f64);
        }
    }
}
