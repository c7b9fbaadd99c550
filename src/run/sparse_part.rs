//! The rows' part of a snapshot in shared memory: ids whose rows were dropped, counts of ids without a row, rows.
//!
//! Four little-endian numbers in front say how many rows and dropped ids there are, how many bytes of counts, and whether these are all rows of
//! the table or those that have changed.

use anyhow::Context as _;

use crate::shm::{ahead, prefetch_lines};
use crate::sparse::file::{RowFileImage, RowLayout};
use crate::sparse::order::{Key, by_id};

const HEAD: usize = 32;

/// Header of the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseHead {
    pub rows: usize,
    pub dropped: usize,
    /// Bytes of counts.
    pub sightings: usize,
    /// The rows are all of the table.
    pub all: bool,
}

impl SparseHead {
    pub fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let numbers = [self.rows, self.dropped, self.sightings, self.all.into()];
        head.chunks_exact_mut(8).zip(numbers).for_each(|(bytes, n)| bytes.copy_from_slice(&(n as u64).to_le_bytes()));
        head
    }

    /// Bytes of the whole part.
    pub fn bytes(self, layout: RowLayout) -> usize {
        HEAD + self.dropped * size_of::<u64>() + self.sightings + self.rows * layout.row_bytes()
    }
}

/// The part, as the checkpointer reads it.
pub struct SparsePart<'a> {
    layout: RowLayout,
    /// Rows as they stand in files, in no order.
    rows: &'a [u8],
    dropped: &'a [u8],
    pub sightings: &'a [u8],
    pub all: bool,
}

/// Memory that is used for one delta after another: fresh pages of a large one cost as much as its rows.
#[derive(Default)]
pub struct DeltaMemory {
    keys: Vec<Key>,
    spare: Vec<Key>,
    image: Vec<u8>,
}

impl<'a> SparsePart<'a> {
    /// Bytes of a part with so many changed rows at most, and so many bytes of counts.
    pub fn capacity(layout: RowLayout, rows: usize, sightings: usize) -> usize {
        let dropped = if layout.marks { rows } else { 0 };
        SparseHead { rows, dropped, sightings, all: false }.bytes(layout)
    }

    /// Reads a part.
    ///
    /// # Errors
    /// Bytes that are none.
    pub fn parse(bytes: &'a [u8], layout: RowLayout) -> anyhow::Result<Self> {
        let (head, rest) = bytes.split_at_checked(HEAD).context("a part without a head")?;
        let number = |i: usize| u64_at(head, 8 * i) as usize;
        let (rows, dropped, sightings) = (number(0), number(1), number(2));
        let lens = rows.checked_mul(layout.row_bytes()).zip(dropped.checked_mul(8));
        let ends = lens.and_then(|(rows, dropped)| {
            let counts = dropped.checked_add(sightings)?;
            Some((dropped, counts, counts.checked_add(rows)?))
        });
        let what = || format!("{rows} rows and {dropped} ids do not make a part of {} bytes", bytes.len());
        let (ids, counts, _) = ends.filter(|(.., end)| *end == rest.len()).with_context(what)?;
        Ok(Self {
            layout,
            dropped: &rest[..ids],
            sightings: &rest[ids..counts],
            rows: &rest[counts..],
            all: number(3) != 0,
        })
    }

    /// Makes a delta of the rows, ids ascending; a dropped one has no use. Returns the file's bytes.
    pub fn delta<'m>(&self, memory: &'m mut DeltaMemory) -> &'m [u8] {
        let DeltaMemory { keys, spare, image } = memory;
        let len = self.layout.row_bytes();
        let count = self.rows.len() / len;
        keys.clear();
        keys.extend(self.rows.chunks_exact(len).zip(0..).map(|(row, place)| Key { id: u64_at(row, 0), place }));
        // Behind the rows, as it were.
        keys.extend(
            self.dropped.chunks_exact(8).zip(count as u32..).map(|(id, place)| Key { id: u64_at(id, 0), place }),
        );
        by_id(keys, spare);
        let none = vec![0; len - size_of::<u64>()];
        let mut out = RowFileImage::begin(image, self.layout, keys.len());
        for (i, Key { id, place }) in keys.iter().enumerate() {
            let at = |key: &Key| self.rows.get(key.place as usize * len..).and_then(|rows| rows.get(..len));
            keys[ahead(i, keys.len())].iter().filter_map(at).for_each(prefetch_lines);
            match self.rows.get(*place as usize * len..(*place as usize + 1) * len) {
                Some(row) => out.push(row),
                None => [&id.to_le_bytes()[..], &none].into_iter().for_each(|piece| out.push(piece)),
            }
        }
        out.finish();
        image
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
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
        let head = SparseHead { rows: 2, dropped: 1, sightings: 6, all: true };
        let mut bytes = head.encode().to_vec();
        bytes.extend_from_slice(&5u64.to_le_bytes());
        bytes.extend_from_slice(b"counts");
        for (id, words) in &rows {
            bytes.extend_from_slice(&id.to_le_bytes());
            words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        }
        assert_eq!(bytes.len(), head.bytes(layout));
        assert_eq!(bytes.len(), SparsePart::capacity(layout, 2, 6) - 8, "two rows, one of two dropped ids");
        let part = SparsePart::parse(&bytes, layout).unwrap();
        assert_eq!((part.sightings, part.all), (&b"counts"[..], true));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("delta");
        let mut memory = DeltaMemory::default();
        // The second time in the memory of the first.
        for _ in 0..2 {
            std::fs::write(&path, part.delta(&mut memory)).unwrap();
            let (mut reader, mut delta) = (RowFileReader::open(&path).unwrap(), vec![]);
            while let Some((id, words)) = reader.read().unwrap() {
                delta.push((id, words.to_vec()));
            }
            assert_eq!(delta, [(3, rows[1].1.to_vec()), (5, vec![0; 5]), (7, rows[0].1.to_vec())]);
        }
        for damaged in [&bytes[..8], &bytes[..bytes.len() - 1], &[255; 40]] {
            assert!(SparsePart::parse(damaged, layout).is_err());
        }
    }
}
