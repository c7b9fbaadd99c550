//! The rows of a sparse-parameter file that is not loaded into a table: whoever only looks rows up searches the file's bytes. Processes
//! that map a file share its pages.
//!
//! Ids ascend in a file, and they are hashes, spread evenly: a row is found by interpolation in two or three looks. Ids that are not
//! spread evenly are found by halving.

use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::file::{self, HEADER, RowFileError, RowLayout};
use super::table::TableShape;

/// Looks by interpolation before the rest is halved.
const INTERPOLATIONS: usize = 6;
/// Bytes up to which a file's checksum is checked when it is opened; beyond that, it would take seconds.
pub const CHECKED: usize = 64 << 20;

/// The bytes of a file of rows, mapped or in memory.
pub struct MappedRows {
    map: Mmap,
    path: PathBuf,
    layout: RowLayout,
    rows: usize,
    /// Seed of the first values of ids that are not in the file.
    seed: u64,
}

impl MappedRows {
    /// Takes the bytes of the file at `path`, whose header is checked, and all of them where they are no more than [`CHECKED`].
    ///
    /// # Errors
    /// Bytes that are none of these files.
    pub fn new(path: &Path, map: Mmap, seed: u64) -> Result<Self, RowFileError> {
        let found = file::check_bytes(path, &map, map.len() <= CHECKED)?;
        Ok(Self { map, path: path.to_owned(), layout: found.layout, rows: found.rows as usize, seed })
    }

    pub fn layout(&self) -> RowLayout {
        self.layout
    }

    /// The file that the rows are from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    fn row(&self, number: usize) -> &[u8] {
        let bytes = self.layout.row_bytes();
        &self.map[HEADER + number * bytes..][..bytes]
    }

    fn id(&self, number: usize) -> u64 {
        u64::from_le_bytes(self.row(number)[..8].try_into().expect("8 bytes"))
    }

    /// The number of an id's row.
    fn find(&self, id: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.rows);
        // All ids that are smaller stand before `low`, all that are larger at `high` or behind it.
        let (mut least, mut most) = (0u64, u64::MAX);
        for look in 0.. {
            if low >= high {
                return None;
            }
            let middle = if look < INTERPOLATIONS && most > least {
                let share = u128::from(id.clamp(least, most) - least) * (high - low) as u128;
                low + ((share / (u128::from(most - least) + 1)) as usize).min(high - low - 1)
            } else {
                low + (high - low) / 2
            };
            match self.id(middle) {
                found if found == id => return Some(middle),
                found if found < id => (low, least) = (middle + 1, found),
                found => (high, most) = (middle, found),
            }
        }
        None
    }

    /// Copies the floats of an id's row, or of its first value where the file has none. A value that is not finite reads as 0.
    pub fn read(&self, id: u64, row: &mut [f32]) {
        match self.find(id) {
            Some(number) => {
                for (value, bytes) in row.iter_mut().zip(self.row(number)[8..].chunks_exact(4)) {
                    let found = f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                    *value = if found.is_finite() { found } else { 0.0 };
                }
            }
            None => {
                let RowLayout { dim, optimizer, marks } = self.layout;
                let shape = TableShape { dim, optimizer, max_rows: 0, seed: self.seed, marks };
                shape.first_value(id, bytemuck::cast_slice_mut(row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;
    use proptest::prelude::*;

    use super::*;
    use crate::settings::RowOptimizer;
    use crate::sparse::HostTable;

    /// Memory that holds what the file does.
    fn map(path: &Path) -> Mmap {
        let bytes = std::fs::read(path).unwrap();
        let mut map = MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(&bytes);
        map.make_read_only().unwrap()
    }

    proptest! {
        /// Ids that are spread evenly, that stand side by side, and both ends of all ids.
        #[test]
        fn it_reads_what_a_table_reads(
            ids in prop::collection::btree_set(
                prop_oneof![any::<u64>(), 0u64..50, Just(u64::MAX - 1), (1u64 << 60)..(1 << 60) + 40], 0..200),
            asked in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..60], 0..50),
            marks in any::<bool>(),
        ) {
            let shape = TableShape { dim: 3, optimizer: RowOptimizer::Adagrad, max_rows: 200, seed: 4, marks };
            let mut table = HostTable::private(shape).unwrap();
            for &id in &ids {
                let record = table.find_or_insert(id).unwrap();
                table.update(id, record, &[1.0, (id % 7) as f32, -2.0], 0.1);
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("rows");
            file::write(&path, &table).unwrap();
            let mapped = MappedRows::new(&path, map(&path), 4).unwrap();
            prop_assert_eq!(mapped.len(), ids.len());
            let (mut row, mut words) = (vec![0.0f32; 3], vec![0; shape.words()]);
            for id in ids.iter().chain(&asked).copied().filter(|id| *id != u64::MAX) {
                mapped.read(id, &mut row);
                table.read(id, &mut words);
                prop_assert_eq!(bytemuck::cast_slice::<f32, u32>(&row), &words[..3], "id {}", id);
            }
        }
    }

    #[test]
    fn a_damaged_file_is_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let shape = TableShape { dim: 3, optimizer: RowOptimizer::Sgd, max_rows: 4, seed: 4, marks: false };
        let mut table = HostTable::private(shape).unwrap();
        table.find_or_insert(7).unwrap();
        file::write(&path, &table).unwrap();
        let good = std::fs::read(&path).unwrap();
        for (at, expected) in [(0, "magic"), (30, "rows"), (HEADER + 9, "checksum")] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let error = MappedRows::new(&path, map(&path), 4).err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
