//! Gradients of embedding rows between ranks: how a rank's shard of a batch is encoded.
//!
//! A row that occurs in several samples of a shard has one gradient there, the sum. [`super::merger`] sums those of all ranks.

use crate::shm::prefetch_lines_to_write;
use crate::sparse::Lookup;

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

/// The field of a row, and the weights of the samples that it occurs in. A rank gives them with the row's gradient.
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

/// Bytes of a message of `rows` rows.
pub fn length(rows: usize, dim: usize, fields: usize) -> usize {
    HEADER + rows * (OF_ROW + 4 * dim) + Numbers::bytes(rows, fields)
}

/// Small numbers, packed bit by bit: of each row its field.
#[derive(Debug, Clone, Copy)]
struct Numbers<'a> {
    bytes: &'a [u8],
    /// Bits of a number, 16 at most.
    width: u32,
}

impl<'a> Numbers<'a> {
    /// Numbers below `most` that were packed.
    fn new(bytes: &'a [u8], most: usize) -> Self {
        Self { bytes, width: Self::width(most) }
    }

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

    fn get(&self, i: usize) -> u32 {
        let at = i * self.width as usize;
        let word = self.bytes[at / 8..].first_chunk().expect("a word");
        u32::from_le_bytes(*word) >> (at % 8) & ((1 << self.width) - 1)
    }

    /// Packs numbers below `most` into `bytes`, which are as many as [`bytes`](Self::bytes) says; all of them are written. Bits are collected in a
    /// register: a read-modify-write for each number would overlap the store before it, and stall.
    ///
    /// # Panics
    /// If `bytes` has no room for all numbers.
    fn pack(numbers: impl Iterator<Item = u32>, most: usize, bytes: &mut [u8]) {
        let width = Self::width(most);
        let (words, rest) = bytes.as_chunks_mut::<4>();
        let (mut words, mut word, mut bits) = (words.iter_mut(), 0u64, 0);
        for number in numbers {
            word |= u64::from(number) << bits;
            bits += width;
            if bits >= u32::BITS {
                words.next().expect("room for all numbers").copy_from_slice(&(word as u32).to_le_bytes());
                word >>= u32::BITS;
                bits -= u32::BITS;
            }
        }
        for bytes in words.map(<[u8; 4]>::as_mut_slice).chain([rest]) {
            let length = bytes.len();
            bytes.copy_from_slice(&word.to_le_bytes()[..length]);
            word = 0;
        }
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
    let (ids, weights, squares) = (ids.as_chunks_mut().0, weights.as_chunks_mut().0, squares.as_chunks_mut().0);
    let of_rows = lookup.unique.iter().enumerate().map(|(row, id)| {
        let (field, weight, square) = of_row(row);
        ids[row] = id.to_le_bytes();
        weights[row] = weight.to_le_bytes();
        squares[row] = square.to_le_bytes();
        field as u32
    });
    Numbers::pack(of_rows, fields, bytes);
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
    fields: Numbers<'a>,
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
        let numbers = Numbers::new(bytes, fields);
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

    /// Returns the ids of the rows.
    pub fn ids(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.ids.iter().map(|id| u64::from_le_bytes(*id))
    }

    /// Returns the field of a row and the weights of its samples.
    pub fn sums(&self, row: usize) -> RowSums {
        let [weights, squares] = [self.weights, self.squares].map(|floats| f32::from_le_bytes(floats[row]));
        RowSums { field: self.fields.get(row), weights, squares }
    }

    /// Returns the gradients of all rows, `dim` floats each, one row after another: the bytes of each float, the lowest first.
    pub fn gradients(&self) -> &'a [[u8; 4]] {
        self.gradients
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIM: usize = 3;

    /// Encodes into memory that held other bytes.
    fn encoded(encode: impl Fn(&mut [u8]) -> usize) -> Vec<u8> {
        let mut out = vec![0xa5; encode(&mut [])];
        assert_eq!(encode(&mut out), out.len());
        out
    }

    /// A message of four rows, one of each of four fields.
    fn four() -> Vec<u8> {
        let lookup = Lookup::of(&[7, u64::MAX - 1, 9, 8]);
        let gradients: Vec<f32> = (0..4 * DIM as u16).map(f32::from).collect();
        encoded(|out| encode(&lookup, |row| (3 - row, row as f32, 0.5), &gradients, 4, out))
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let bytes = [four(), vec![1, 2]].concat();
        let message = Message::decode(0, &bytes, DIM, 4).unwrap();
        assert_eq!((message.rows(), message.behind()), (4, &[1, 2][..]));
        assert!(message.ids().eq([7, u64::MAX - 1, 9, 8]));
        let floats: Vec<f32> = message.gradients().iter().map(|float| f32::from_le_bytes(*float)).collect();
        assert_eq!(floats, (0..4 * DIM as u16).map(f32::from).collect::<Vec<_>>());
        for row in 0..4 {
            let sums = RowSums { field: 3 - row as u32, weights: row as f32, squares: 0.5 };
            assert_eq!(message.sums(row), sums);
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        let good = four();
        // If a length is too small, bytes are left behind the message.
        let refused =
            |bytes: &[u8]| !Message::decode(3, bytes, DIM, 4).is_ok_and(|message| message.behind().is_empty());
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
            let mut bytes = vec![0xa5; Numbers::bytes(numbers.len(), most)];
            Numbers::pack(numbers.iter().copied(), most, &mut bytes);
            let packed = Numbers::new(&bytes, most);
            prop_assert!(numbers.iter().enumerate().all(|(i, number)| packed.get(i) == *number));
            // Every byte was written, so that equal numbers are equal bytes.
            let mut again = vec![0x5a; bytes.len()];
            Numbers::pack(numbers.iter().copied(), most, &mut again);
            prop_assert_eq!(bytes, again);
        }

        /// What the issue allows to be exchanged: 1.1 times rows x (8 + 4 + 4 d).
        #[test]
        fn messages_are_as_short_as_promised(rows in 100usize..500, dim in 8usize..64) {
            let allowed = 1.1 * (rows * (12 + 4 * dim)) as f64;
            prop_assert!(length(rows, dim, 8) as f64 <= allowed + (HEADER + 4) as f64);
        }
    }
}
