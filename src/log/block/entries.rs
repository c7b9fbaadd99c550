//! The entries of a request, whether they are in memory or packed in a compiled log.

use super::{Auction, Block, ContractEntry};

/// A row of entries that a block stores.
pub trait Packed: Copy {
    #[doc(hidden)]
    fn unpack(of: Stored<'_>, i: usize) -> Self;
}

impl Packed for ContractEntry {
    #[inline(always)]
    fn unpack(of: Stored<'_>, i: usize) -> Self {
        of.block.entry(of.file, i)
    }
}

impl Packed for Auction {
    #[inline(always)]
    fn unpack(of: Stored<'_>, i: usize) -> Self {
        of.block.auction(of.file, i)
    }
}

/// A block with the bytes of its file.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    pub(in crate::log) block: &'a Block,
    pub(in crate::log) file: &'a [u8],
}

/// Consecutive entries of a request, in memory or in a compiled log.
#[derive(Debug, Clone, Copy)]
pub enum Entries<'a, T> {
    Plain(&'a [T]),
    /// Entries `from..end` of a block.
    Stored {
        of: Stored<'a>,
        from: u32,
        end: u32,
    },
}

impl<'a, T: Packed> Entries<'a, T> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.len(),
            Self::Stored { from, end, .. } => (end - from) as usize,
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn first(&self) -> Option<T> {
        self.iter().next()
    }

    #[inline]
    pub fn iter(&self) -> EntriesIter<'a, T> {
        EntriesIter { of: *self, next: 0 }
    }

    /// Returns the first `most` entries.
    #[inline]
    pub fn truncated(self, most: usize) -> Self {
        let most = most.min(self.len());
        match self {
            Self::Plain(rows) => Self::Plain(&rows[..most]),
            Self::Stored { of, from, .. } => Self::Stored { of, from, end: from + most as u32 },
        }
    }

    /// Appends all entries to `out`.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<T>) {
        match *self {
            Self::Plain(rows) => out.extend_from_slice(rows),
            Self::Stored { of, from, end } => out.extend((from..end).map(|i| T::unpack(of, i as usize))),
        }
    }

    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }
}

impl<'a, T: Packed> IntoIterator for Entries<'a, T> {
    type Item = T;
    type IntoIter = EntriesIter<'a, T>;

    #[inline]
    fn into_iter(self) -> EntriesIter<'a, T> {
        self.iter()
    }
}

/// Iterator over [`Entries`].
#[derive(Debug, Clone)]
pub struct EntriesIter<'a, T> {
    of: Entries<'a, T>,
    next: usize,
}

impl<T: Packed> Iterator for EntriesIter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        let row = match &self.of {
            Entries::Plain(rows) => rows.get(self.next).copied(),
            Entries::Stored { of, from, end } => {
                let i = *from as usize + self.next;
                (i < *end as usize).then(|| T::unpack(*of, i))
            }
        };
        self.next += usize::from(row.is_some());
        row
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.len() - self.next;
        (left, Some(left))
    }
}

impl<T: Packed> ExactSizeIterator for EntriesIter<'_, T> {}
