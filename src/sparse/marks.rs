//! What a table notes of a row beside its values, where rows may have to go again: when it was used last, and whose it is.
//!
//! A mark stands behind the record's version: number of the last use (two words), day, id (two words). Files hold all of it but the
//! id, which stands in front of their rows anyway.

/// Words of a mark in memory, and in a file.
pub const WORDS: usize = 5;
pub const FILE_WORDS: usize = 3;

/// The last use of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LastUse {
    /// Uses of rows are numbered from 1, one after another over all rows. In a file, 0 says that the row is not there any more.
    pub number: u64,
    /// Days since 1970-01-01 of the newest exposure that has used it; 0 = unknown.
    pub day: u32,
}

impl LastUse {
    /// Reads the front of a mark.
    pub fn of(mark: &[u32]) -> Self {
        Self { number: u64::from(mark[0]) | u64::from(mark[1]) << 32, day: mark[2] }
    }

    /// The words of a file.
    pub fn words(self) -> [u32; FILE_WORDS] {
        [self.number as u32, (self.number >> 32) as u32, self.day]
    }
}

/// Writes the mark of an id's row.
pub fn write(mark: &mut [u32], id: u64, last: LastUse) {
    mark[..FILE_WORDS].copy_from_slice(&last.words());
    mark[FILE_WORDS..WORDS].copy_from_slice(&[id as u32, (id >> 32) as u32]);
}

/// The id that a mark names.
pub fn id(mark: &[u32]) -> u64 {
    u64::from(mark[FILE_WORDS]) | u64::from(mark[FILE_WORDS + 1]) << 32
}
