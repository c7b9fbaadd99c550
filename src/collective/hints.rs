//! What a rank tells the writer of its table beside the gradients of its rows, so that the writer has less to do and others wait less.
//!
//! - **Where its rows are.** A rank has looked up the records of the rows that it read; the writer need not do so again.
//! - **Which rows it reads next.** A rank in step must not read rows for its next batch before the writer has moved them along the gradients of
//!   the last. Few rows are in both batches. The writer writes these first and says so; the others go on while it writes the rest. A rank gives
//!   [`BITS`] bits for each id that it reads next, one of them set by the hash of the id. Other ids may fall on the same bit: their rows are
//!   written early, which harms nobody.
//!
//! Records are those of one table: hints are for its own writer, and do not leave the machine.

use crate::sparse::index::mix;

/// Bits for each id: of the ids that nobody wants, one in seventeen is taken for a wanted one.
const BITS: usize = 16;
/// A row without a record.
const NONE: u32 = u32::MAX;

/// Bytes of the longest hints of `rows` rows, and as many in the next batch.
pub fn capacity(rows: usize) -> usize {
    size_of::<u32>() * (1 + rows) + set_len(rows)
}

fn set_len(ids: usize) -> usize {
    (ids * BITS).div_ceil(8)
}

/// Encodes hints: the `records` of the rows that a rank has given, in their order, or of none; and the ids that it reads next, if it knows
/// them. They are written to the beginning of `out`, if it has room for them; their length is returned.
pub fn encode(records: &[Option<u32>], next: &[u64], out: &mut [u8]) -> usize {
    let length = size_of::<u32>() * (1 + records.len()) + set_len(next.len());
    let Some(out) = out.get_mut(..length) else { return length };
    let (head, rest) = out.split_at_mut(size_of::<u32>());
    head.copy_from_slice(&(records.len() as u32).to_le_bytes());
    let (numbers, set) = rest.split_at_mut(size_of::<u32>() * records.len());
    let numbers = numbers.as_chunks_mut().0.iter_mut();
    numbers.zip(records).for_each(|(to, record)| *to = record.unwrap_or(NONE).to_le_bytes());
    set.fill(0);
    for &id in next {
        let (byte, bit) = place(id, set.len());
        set[byte] |= bit;
    }
    length
}

/// Where the bit of an id is in a set of `len` bytes.
fn place(id: u64, len: usize) -> (usize, u8) {
    let bit = ((u128::from(mix(id)) * (8 * len as u128)) >> 64) as usize;
    (bit / 8, 1 << (bit % 8))
}

/// The hints of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hints<'a> {
    records: &'a [[u8; 4]],
    wanted: &'a [u8],
}

impl<'a> Hints<'a> {
    /// Decodes the hints of a rank that has given so many `rows`; `None` where they are damaged. No bytes are no hints.
    pub fn decode(bytes: &'a [u8], rows: usize) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (len, rest) = bytes.split_first_chunk()?;
        let len = u32::from_le_bytes(*len) as usize;
        let (records, wanted) = rest.split_at_checked(len.checked_mul(4)?).filter(|_| len == rows || len == 0)?;
        Some(Self { records: records.as_chunks().0, wanted })
    }

    /// The record of the `row`th row that the rank has given, if it knew one.
    pub fn record(&self, row: usize) -> Option<u32> {
        self.records.get(row).map(|record| u32::from_le_bytes(*record)).filter(|record| *record != NONE)
    }

    /// Whether the rank has told which rows it wants next.
    pub fn tells_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether the rank may want this row next: true for every row that it wants, and for some others.
    pub fn wants(&self, id: u64) -> bool {
        self.tells_wanted() && {
            let (byte, bit) = place(id, self.wanted.len());
            self.wanted[byte] & bit != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes into memory that held other bytes.
    fn encoded(records: &[Option<u32>], next: &[u64]) -> Vec<u8> {
        let mut out = vec![0xa5; encode(records, next, &mut [])];
        assert_eq!(encode(records, next, &mut out), out.len());
        out
    }

    proptest! {
        #[test]
        fn what_is_told_is_heard(
            records in prop::collection::vec(prop::option::of(0u32..NONE), 0..50),
            next in prop::collection::vec(any::<u64>(), 0..50),
        ) {
            let out = encoded(&records, &next);
            prop_assert!(out.len() <= capacity(records.len().max(next.len())));
            let hints = Hints::decode(&out, records.len()).unwrap();
            prop_assert!((0..=records.len()).all(|row| hints.record(row) == records.get(row).copied().flatten()));
            prop_assert!(next.iter().all(|id| hints.wants(*id)));
            prop_assert!(!next.is_empty() || !hints.wants(5));
        }
    }

    #[test]
    fn little_is_taken_for_wanted() {
        let out = encoded(&[], &(0..20_000).collect::<Vec<_>>());
        let hints = Hints::decode(&out, 9).unwrap();
        let taken = (20_000..120_000).filter(|id| hints.wants(*id)).count();
        assert!((5_000..7_000).contains(&taken), "{taken} of 100,000");
    }

    #[test]
    fn damaged_hints_are_refused() {
        let good = encoded(&[Some(1), None], &[]);
        assert!(Hints::decode(&good, 2).is_some() && Hints::decode(&[], 2).is_some());
        for (bytes, rows) in [(&good[..], 3), (&good[..11], 2), (&good[..3], 2), (&[0xff; 20][..], u32::MAX as usize)] {
            assert!(Hints::decode(bytes, rows).is_none(), "{bytes:?}");
        }
    }
}
