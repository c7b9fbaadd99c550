//! Gradients of embedding rows between ranks: merged within a shard, encoded, summed over the ranks in their order, divided.
//!
//! A row that occurs in several samples of a shard has one gradient there, the sum. Of the gradients of all ranks the sum is taken in
//! the order of the ranks, so every rank computes the same bytes. The divisor is a choice ([`SparseAverage`]): the number of ranks in
//! which the row occurs, or the number of all ranks, which is what one rank with the whole batch would have computed.

use crate::settings::SparseAverage;
use crate::shm::prefetch_lines_to_write;
use crate::sparse::Lookup;
use crate::sparse::lookup::Finder;

/// Bytes of a message before its rows: how many there are, and floats of a row.
const HEADER: usize = 8;
/// Bytes of a row beside its gradient and its field: id, sum of weights, sum of their squares.
const OF_ROW: usize = 8 + 4 + 4;
/// Floats that are copied at a time.
const COPIED: usize = 256;

/// A message that is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("row gradients of rank {rank} are damaged: {bytes} bytes")]
pub struct Damaged {
    pub rank: usize,
    pub bytes: usize,
}

/// The mean weight of samples, each counted by its weight, from the sum of their weights and of the squares.
pub fn mean_weight(sum: f32, squares: f32) -> f32 {
    if sum > 0.0 { squares / sum } else { 1.0 }
}

/// Bytes of a message of `rows` rows.
pub fn length(rows: usize, dim: usize, fields: usize) -> usize {
    HEADER + rows * (OF_ROW + 4 * dim) + Numbers::bytes(rows, fields)
}

/// Small numbers, packed bit by bit: of each row its field.
#[derive(Debug, Clone, Copy)]
struct Numbers<B> {
    bytes: B,
    /// Bits of a number, 16 at most.
    width: u32,
}

impl Numbers<()> {
    /// Bits of the numbers below `most`.
    ///
    /// # Panics
    /// For numbers of more than 16 bits.
    fn width(most: usize) -> u32 {
        let width = usize::BITS - most.saturating_sub(1).leading_zeros();
        assert!(width <= 16, "{most} fields");
        width
    }

    /// Bytes of so many numbers below `most`. A word begins at every byte that a number begins in.
    fn bytes(numbers: usize, most: usize) -> usize {
        (numbers * Self::width(most) as usize).div_ceil(8).max(1) + 3
    }
}

impl<B> Numbers<B> {
    /// The byte in which a number begins, and at which bit.
    fn place(&self, i: usize) -> (usize, usize) {
        let at = i * self.width as usize;
        (at / 8, at % 8)
    }
}

impl Numbers<&[u8]> {
    fn get(&self, i: usize) -> u32 {
        let (byte, shift) = self.place(i);
        let word = self.bytes[byte..].first_chunk().expect("a word");
        u32::from_le_bytes(*word) >> shift & ((1 << self.width) - 1)
    }
}

impl Numbers<&mut [u8]> {
    /// Sets a number that was 0.
    fn set(&mut self, i: usize, number: u32) {
        let (byte, shift) = self.place(i);
        let word = self.bytes[byte..].first_chunk_mut().expect("a word");
        *word = (u32::from_le_bytes(*word) | number << shift).to_le_bytes();
    }
}

/// Encodes a shard's gradients: of each of the `lookup`'s unique ids the field, one of `fields`, the weights' sum and sum of squares, and
/// `dim` floats of gradient. The message is written to the beginning of `out`, if it has room for it; its [`length`] is returned.
pub fn encode(
    lookup: &Lookup,
    of_row: impl Fn(usize) -> (usize, f32, f32),
    gradients: &[f32],
    fields: usize,
    out: &mut [u8],
) -> usize {
    let rows = lookup.unique.len();
    let dim = gradients.len().checked_div(rows).unwrap_or(0);
    let length = length(rows, dim, fields);
    let Some(out) = out.get_mut(..length) else { return length };
    let (head, rest) = out.split_at_mut(HEADER);
    head.copy_from_slice(bytemuck::bytes_of(&[rows, dim].map(|number| (number as u32).to_le())));
    let (ids, rest) = rest.split_at_mut(8 * rows);
    let (weights, rest) = rest.split_at_mut(4 * rows);
    let (squares, rest) = rest.split_at_mut(4 * rows);
    let (bytes, floats) = rest.split_at_mut(Numbers::bytes(rows, fields));
    bytes.fill(0);
    let (ids, weights, squares) = (ids.as_chunks_mut().0, weights.as_chunks_mut().0, squares.as_chunks_mut().0);
    let mut numbers = Numbers { bytes, width: Numbers::width(fields) };
    for (row, id) in lookup.unique.iter().enumerate() {
        let (field, weight, square) = of_row(row);
        ids[row] = id.to_le_bytes();
        weights[row] = weight.to_le_bytes();
        squares[row] = square.to_le_bytes();
        numbers.set(row, field as u32);
    }
    copy(gradients, floats.as_chunks_mut().0);
    length
}

/// Copies floats to memory that another core may have, because it has read the last message there: while some are copied, the lines of
/// the next ones are loaded.
fn copy(from: &[f32], to: &mut [[u8; 4]]) {
    let mut rest = to;
    for from in from.chunks(COPIED) {
        let (to, behind) = rest.split_at_mut(from.len());
        prefetch_lines_to_write(&behind[..COPIED.min(behind.len())]);
        to.iter_mut().zip(from).for_each(|(to, g)| *to = g.to_le_bytes());
        rest = behind;
    }
}

/// The gradients of a shard's rows where they were received: nothing is copied.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    ids: &'a [[u8; 8]],
    weights: &'a [[u8; 4]],
    squares: &'a [[u8; 4]],
    fields: Numbers<&'a [u8]>,
    /// `dim` floats of each row.
    gradients: &'a [[u8; 4]],
    behind: &'a [u8],
}

impl<'a> Message<'a> {
    /// Decodes a message of `rank`, whose rows are of `fields` fields and have `dim` floats. Other bytes may follow it.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn decode(rank: usize, message: &'a [u8], dim: usize, fields: usize) -> Result<Self, Damaged> {
        let damaged = Damaged { rank, bytes: message.len() };
        let (head, rest) = message.split_first_chunk::<HEADER>().ok_or(damaged)?;
        let [rows, floats] = *head.as_chunks::<4>().0 else { return Err(damaged) };
        let [rows, floats] = [rows, floats].map(|word| u32::from_le_bytes(word) as usize);
        if rows > message.len() || rows > 0 && floats != dim {
            return Err(damaged);
        }
        let numbers = Numbers::bytes(rows, fields);
        let (rest, behind) = rest.split_at_checked(rows * (OF_ROW + 4 * floats) + numbers).ok_or(damaged)?;
        let (ids, rest) = rest.split_at(8 * rows);
        let (weights, rest) = rest.split_at(4 * rows);
        let (squares, rest) = rest.split_at(4 * rows);
        let (bytes, gradients) = rest.split_at(numbers);
        let numbers = Numbers { bytes, width: Numbers::width(fields) };
        if (0..rows).any(|row| numbers.get(row) as usize >= fields) {
            return Err(damaged);
        }
        Ok(Self {
            ids: ids.as_chunks().0,
            weights: weights.as_chunks().0,
            squares: squares.as_chunks().0,
            fields: numbers,
            gradients: gradients.as_chunks().0,
            behind,
        })
    }

    /// Returns the bytes that follow the message.
    pub fn behind(&self) -> &'a [u8] {
        self.behind
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }
}

/// What a batch says of a row, beside its merged gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSums {
    /// The field that it belongs to.
    pub field: u32,
    /// The sum of the weights of its samples, and of their squares. With weights of 1 the first is the number of occurrences.
    pub weights: f32,
    pub squares: f32,
}

impl RowSums {
    /// The mean weight of the row's samples, each counted by its weight.
    pub fn mean_weight(&self) -> f32 {
        mean_weight(self.weights, self.squares)
    }
}

/// Marks the end of a chain.
const NONE: u32 = u32::MAX;

/// Sums what the ranks gave, row by row; keeps its memory from batch to batch.
#[derive(Debug, Default)]
pub struct Merger {
    finder: Finder,
    lookup: Lookup,
    /// Of all rows of all messages, one message after another: ids, and the place of the next row with the same id, or [`NONE`].
    ids: Vec<u64>,
    next: Vec<u32>,
    /// Of each unique id: its first row.
    first: Vec<u32>,
    /// Of each message: the place behind its last row.
    ends: Vec<usize>,
}

impl Merger {
    /// Finds the unique rows of the messages of all ranks, in the order of the ranks.
    pub fn begin(&mut self, messages: &[Message<'_>]) {
        let Self { finder, lookup, ids, next, first, ends } = self;
        ids.clear();
        ends.clear();
        for message in messages {
            ids.extend(message.ids.iter().map(|id| u64::from_le_bytes(*id)));
            ends.push(ids.len());
        }
        finder.find(ids, lookup);
        first.clear();
        first.resize(lookup.unique.len(), NONE);
        next.resize(ids.len(), NONE);
        // From the last one, so that chains are in the order of the ranks.
        for (given, &place) in lookup.inverse.iter().enumerate().rev() {
            next[given] = std::mem::replace(&mut first[place as usize], given as u32);
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

    /// Sums and divides the gradients of the row at `place` among [`ids`](Self::ids), into `gradient`. `messages` are those that the merger
    /// began with.
    pub fn merge(
        &self,
        messages: &[Message<'_>],
        place: usize,
        average: SparseAverage,
        gradient: &mut [f32],
    ) -> RowSums {
        let dim = gradient.len();
        let mut merged = RowSums { field: 0, weights: 0.0, squares: 0.0 };
        let (mut holders, mut rank) = (0u32, 0);
        let mut given = self.first[place];
        while given != NONE {
            let at = given as usize;
            while at >= self.ends[rank] {
                rank += 1;
            }
            let begin = if rank == 0 { 0 } else { self.ends[rank - 1] };
            let (message, row) = (&messages[rank], at - begin);
            let floats = message.gradients[row * dim..(row + 1) * dim].iter().map(|float| f32::from_le_bytes(*float));
            // The first one is copied: 0 + -0 would be another bit.
            if holders == 0 {
                gradient.iter_mut().zip(floats).for_each(|(sum, g)| *sum = g);
            } else {
                gradient.iter_mut().zip(floats).for_each(|(sum, g)| *sum += g);
            }
            merged.field = message.fields.get(row);
            merged.weights += f32::from_le_bytes(message.weights[row]);
            merged.squares += f32::from_le_bytes(message.squares[row]);
            holders += 1;
            given = self.next[at];
        }
        let divisor = match average {
            SparseAverage::Occurrence => holders as f32,
            SparseAverage::World => messages.len() as f32,
        };
        if divisor != 1.0 {
            gradient.iter_mut().for_each(|sum| *sum /= divisor);
        }
        merged
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
        encoded(|out| encode(&lookup, of_row, &gradients, FIELDS, out))
    }

    /// Encodes into memory that held other bytes.
    fn encoded(encode: impl Fn(&mut [u8]) -> usize) -> Vec<u8> {
        let mut out = vec![0xa5; encode(&mut [])];
        assert_eq!(encode(&mut out), out.len());
        out
    }

    /// Merged rows by id.
    type Found = BTreeMap<u64, ([f32; DIM], RowSums)>;

    fn merged(shards: &[Shard], average: SparseAverage) -> Found {
        let bytes: Vec<Vec<u8>> = shards.iter().map(message).collect();
        let messages: Vec<Message<'_>> =
            bytes.iter().enumerate().map(|(rank, bytes)| Message::decode(rank, bytes, DIM, FIELDS).unwrap()).collect();
        let mut merger = Merger::default();
        // What it held before is forgotten.
        merger.begin(&messages[..messages.len() / 2]);
        merger.begin(&messages);
        let row = |(place, &id): (usize, &u64)| {
            let mut gradient = [f32::NAN; DIM];
            let row = merger.merge(&messages, place, average, &mut gradient);
            (id, (gradient, row))
        };
        let found: Found = merger.ids().iter().enumerate().map(row).collect();
        assert_eq!(found.len(), merger.ids().len(), "an id stands there twice");
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
        // If a length is too small, bytes are left behind the message.
        let refused =
            |bytes: &[u8]| !Message::decode(3, bytes, DIM, FIELDS).is_ok_and(|message| message.behind().is_empty());
        assert!(!refused(&good) && refused(&good[..good.len() - 1]) && refused(&[]) && refused(&good[..9]));
        for at in 0..HEADER {
            let mut bytes = good.clone();
            bytes[at] ^= 0x40;
            assert!(refused(&bytes), "byte {at}");
        }
        // Three rows of one of three fields: the fourth number of two bits is none of them.
        let good = {
            let lookup = Lookup::of(&[1, 2, 3]);
            encoded(|out| encode(&lookup, |row| (row, 1.0, 1.0), &[0.5; 3 * DIM], 3, out))
        };
        assert!(Message::decode(3, &good, DIM, 3).is_ok());
        let mut bytes = good.clone();
        bytes[HEADER + 3 * OF_ROW] |= 3;
        let refused = |bytes: &[u8]| Message::decode(3, bytes, DIM, 3).is_err();
        assert!(refused(&bytes), "a field that there is not");
    }

    proptest! {
        #[test]
        fn small_numbers_come_back(most in 1usize..1 << 16, seed in prop::collection::vec(any::<u32>(), 0..40)) {
            let numbers: Vec<u32> = seed.iter().map(|n| n % most as u32).collect();
            let mut bytes = vec![0; Numbers::bytes(numbers.len(), most)];
            let mut packed = Numbers { bytes: &mut bytes[..], width: Numbers::width(most) };
            numbers.iter().enumerate().for_each(|(i, number)| packed.set(i, *number));
            let packed = Numbers { bytes: &bytes[..], width: Numbers::width(most) };
            prop_assert!(numbers.iter().enumerate().all(|(i, number)| packed.get(i) == *number));
        }
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

        /// What the issue allows to be exchanged: 1.1 times rows x (8 + 4 + 4 d).
        #[test]
        fn messages_are_as_short_as_promised(rows in 100usize..500, dim in 8usize..64) {
            let allowed = 1.1 * (rows * (12 + 4 * dim)) as f64;
            prop_assert!(length(rows, dim, 8) as f64 <= allowed + (HEADER + 4) as f64);
        }
    }
}
