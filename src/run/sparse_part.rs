//! The rows' part of a snapshot in shared memory: rows that have changed, ids whose rows were dropped, counts of ids without a row.
//!
//! Two little-endian numbers in front say how many rows and dropped ids there are; the counts are the rest.

use std::io::{Seek, Write};

use anyhow::Context as _;

use crate::shm::prefetch;
use crate::sparse::file::{RowFileWriter, RowLayout};
use crate::sparse::index::AHEAD;

const HEAD: usize = 16;

/// The part, as the checkpointer reads it.
pub struct SparsePart<'a> {
    layout: RowLayout,
    /// Rows as they stand in files, in no order.
    rows: Vec<(u64, &'a [u8])>,
    dropped: Vec<u64>,
    pub sightings: &'a [u8],
}

impl<'a> SparsePart<'a> {
    /// Bytes of a part with so many changed rows at most, and so many bytes of counts.
    pub fn capacity(layout: RowLayout, rows: usize, sightings: usize) -> usize {
        let dropped = if layout.marks { size_of::<u64>() } else { 0 };
        HEAD + rows * (layout.row_bytes() + dropped) + sightings
    }

    /// Returns the header of a part with so many changed and dropped rows.
    pub fn head(rows: usize, dropped: usize) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&(rows as u64).to_le_bytes());
        head[8..].copy_from_slice(&(dropped as u64).to_le_bytes());
        head
    }

    /// Reads a part.
    ///
    /// # Errors
    /// Bytes that are none.
    pub fn parse(bytes: &'a [u8], layout: RowLayout) -> anyhow::Result<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD).context("a part without a head")?;
        let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let (rows, dropped) = (long(&head[..8]) as usize, long(&head[8..]) as usize);
        let len = layout.row_bytes();
        let ends = rows.checked_mul(len).zip(dropped.checked_mul(8)).and_then(|(a, b)| Some((a, a.checked_add(b)?)));
        let ends = ends.filter(|(_, end)| *end <= rest.len());
        let what = || format!("{rows} rows and {dropped} ids do not make a part of {} bytes", bytes.len());
        let (at, end) = ends.with_context(what)?;
        Ok(Self {
            layout,
            rows: rest[..at].chunks_exact(len).map(|row| (long(&row[..8]), row)).collect(),
            dropped: rest[at..end].chunks_exact(8).map(long).collect(),
            sightings: &rest[end..],
        })
    }

    /// Writes the rows as a delta, ids ascending; a dropped one has no use.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_delta(mut self, out: impl Write + Seek) -> std::io::Result<u64> {
        let none = vec![0; self.layout.row_bytes() - size_of::<u64>()];
        self.rows.extend(self.dropped.iter().map(|id| (*id, &[][..])));
        self.rows.sort_unstable_by_key(|(id, _)| *id);
        let (mut out, mut dropped) = (RowFileWriter::begin(out, self.layout)?, Vec::new());
        for (i, (id, row)) in self.rows.iter().enumerate() {
            if let Some((_, [first, .., last])) = self.rows.get(i + AHEAD) {
                prefetch(first);
                prefetch(last);
            }
            if row.is_empty() {
                dropped.clear();
                dropped.extend_from_slice(&id.to_le_bytes());
                dropped.extend_from_slice(&none);
                out.push_row(&dropped)?;
            } else {
                out.push_row(row)?;
            }
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RowOptimizer;
    use crate::sparse::file::RowFileReader;

    #[test]
    fn a_part_comes_back_and_a_damaged_one_is_refused() {
        let layout = RowLayout { dim: 1, optimizer: RowOptimizer::Sgd, marks: true };
        let rows = [(7u64, [1u32, 2, 3, 0, 5]), (3, [6, 7, 8, 0, 9])];
        let mut bytes = SparsePart::head(2, 1).to_vec();
        for (id, words) in &rows {
            bytes.extend_from_slice(&id.to_le_bytes());
            words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        bytes.extend_from_slice(&5u64.to_le_bytes());
        let whole = bytes.len();
        bytes.extend_from_slice(b"counts");
        assert_eq!(bytes.len(), SparsePart::capacity(layout, 2, 6) - 8, "two rows, one of two dropped ids");
        let part = SparsePart::parse(&bytes, layout).unwrap();
        assert_eq!(part.sightings, b"counts");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delta");
        part.write_delta(std::fs::File::create(&path).unwrap()).unwrap();
        let (mut reader, mut delta) = (RowFileReader::open(&path).unwrap(), vec![]);
        while let Some((id, words)) = reader.read().unwrap() {
            delta.push((id, words.to_vec()));
        }
        assert_eq!(delta, [(3, rows[1].1.to_vec()), (5, vec![0; 5]), (7, rows[0].1.to_vec())]);
        for damaged in [&bytes[..8], &bytes[..whole - 1], &[255; 40]] {
            assert!(SparsePart::parse(damaged, layout).is_err());
        }
    }
}
