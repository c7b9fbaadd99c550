//! The requests of a compiled log, found through the index of its blocks. Each block is checked on first access.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::block::{Block, Entries, Limits, Sizes, Stored};
use super::day::Day;
use super::records::{Auction, BLOCK, ContractEntry, HEADER, Request};

/// Location and contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockMeta {
    /// Offset of the first byte in the file, and number of bytes.
    pub at: u64,
    pub bytes: u64,
    pub checksum: u64,
    /// Times of the first and last request.
    pub first_ms: u64,
    pub last_ms: u64,
    pub requests: u32,
    pub entries: u32,
    pub auctions: u32,
    /// Largest number of contract entries of one request.
    pub widest: u32,
    /// Auction ads in the dictionary.
    pub ads: u32,
    pub zero: u32,
}

/// All requests of a day in time order.
///
/// Reading a request of a damaged block panics with a message that names the file; files of up to 64 MiB were checked when they
/// were opened.
pub struct Requests {
    path: PathBuf,
    map: Mmap,
    index: Vec<BlockMeta>,
    /// The blocks that were checked.
    blocks: Box<[OnceLock<Box<Block>>]>,
    len: usize,
    contracts: usize,
    /// Whether iterators release the pages of the blocks that they have left.
    released: bool,
}

impl Requests {
    /// Checks the index of the blocks, which must end before offset `end` of the file.
    pub(super) fn new(
        path: PathBuf,
        map: Mmap,
        index: Vec<BlockMeta>,
        end: usize,
        contracts: usize,
        day: &Day,
    ) -> Result<Self, String> {
        let (mut len, mut last_ms) = (0, 0);
        for (i, block) in index.iter().enumerate() {
            let full = if i + 1 < index.len() { BLOCK..=BLOCK } else { 1..=BLOCK };
            let inside = block.at >= HEADER as u64
                && block.at % 8 == 0
                && block.at.checked_add(block.bytes).is_some_and(|last| last <= end as u64);
            if !inside || !full.contains(&(block.requests as usize)) || block.zero != 0 {
                return Err(format!("block {i} points outside"));
            }
            let ordered = last_ms <= block.first_ms && block.first_ms <= block.last_ms;
            if !ordered || !day.contains(block.first_ms) || !day.contains(block.last_ms) {
                return Err(format!("block {i} is out of order or outside the day"));
            }
            last_ms = block.last_ms;
            len += block.requests as usize;
        }
        let blocks = index.iter().map(|_| OnceLock::new()).collect();
        Ok(Self { path, map, index, blocks, len, contracts, released: false })
    }

    /// Returns the index, and closes the file.
    pub(super) fn into_index(self) -> Vec<BlockMeta> {
        self.index
    }

    /// Makes iterators release the pages of the blocks that they have left, so that a pass over a large file takes little memory. The map
    /// must be that of a file.
    pub(super) fn release_passed(&mut self) {
        self.released = true;
    }

    /// Releases all pages, where iterators do so too. For whoever reads rows in no order.
    pub fn release(&self) {
        if self.released {
            super::map::release(&self.map, 0..self.map.len());
        }
    }

    #[cold]
    fn leave(&self, number: usize) {
        let BlockMeta { at, bytes, .. } = self.index[number];
        super::map::release(&self.map, at as usize..(at + bytes) as usize);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the numbers of requests, contract entries and auction entries.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let sum = |f: fn(&BlockMeta) -> u32| self.index.iter().map(|b| u64::from(f(b))).sum();
        (self.len as u64, sum(|b| b.entries), sum(|b| b.auctions))
    }

    pub(super) fn widest(&self) -> usize {
        self.index.iter().map(|b| b.widest as usize).max().unwrap_or(0)
    }

    pub(super) fn verify(&self) -> Result<(), String> {
        for (number, block) in self.blocks.iter().enumerate() {
            if block.get().is_none() {
                let checked = self.check(number)?;
                let _ = block.set(checked);
                if self.released {
                    self.leave(number);
                }
            }
        }
        Ok(())
    }

    /// Checks a block's checksum, and every index and number in it.
    fn check(&self, number: usize) -> Result<Box<Block>, String> {
        let meta = &self.index[number];
        let at = meta.at as usize;
        let end = at + meta.bytes as usize;
        if XxHash3_64::oneshot(&self.map[at..end]) != meta.checksum {
            return Err(format!("checksum mismatch in block {number}, the file is damaged"));
        }
        let BlockMeta { requests, entries, auctions, widest, ads, first_ms, last_ms, .. } = *meta;
        let sizes = Sizes { requests, entries, auctions, widest, ads };
        let limits = Limits { first_ms, last_ms, contracts: self.contracts };
        Block::check(&self.map, at, end, sizes, limits).map(Box::new).map_err(|why| format!("block {number}: {why}"))
    }

    /// Returns a block, checking it on first access.
    #[inline(always)]
    fn block(&self, number: usize) -> &Block {
        match self.blocks[number].get() {
            Some(block) => block,
            None => self.first_touch(number),
        }
    }

    #[cold]
    fn first_touch(&self, number: usize) -> &Block {
        self.blocks[number].get_or_init(|| match self.check(number) {
            Ok(block) => block,
            Err(reason) => panic!("{}", super::LogError::Compiled { path: self.path.clone(), reason }),
        })
    }

    #[inline]
    pub(super) fn entries(&self, request: &Request) -> Entries<'_, ContractEntry> {
        let of = Stored { block: self.block(request.block as usize), file: &self.map };
        Entries::Stored { of, from: request.entries_at, end: request.entries_at + u32::from(request.entries) }
    }

    #[inline]
    pub(super) fn auctions(&self, request: &Request) -> Entries<'_, Auction> {
        let of = Stored { block: self.block(request.block as usize), file: &self.map };
        Entries::Stored { of, from: request.auctions_at, end: request.auctions_at + u32::from(request.auctions) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the request at `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, row: usize) -> Request {
        assert!(row < self.len, "row {row} of {}", self.len);
        self.block(row / BLOCK).request(&self.map, row / BLOCK, row % BLOCK)
    }

    /// Returns the time of the request at `row`, Unix milliseconds.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn ts_ms(&self, row: usize) -> u64 {
        assert!(row < self.len, "row {row} of {}", self.len);
        self.block(row / BLOCK).ts_ms(&self.map, row % BLOCK)
    }

    pub fn first(&self) -> Option<Request> {
        (!self.is_empty()).then(|| self.row(0))
    }

    pub fn last(&self) -> Option<Request> {
        self.len.checked_sub(1).map(|row| self.row(row))
    }

    pub fn iter(&self) -> Iter<'_> {
        self.range(0..self.len)
    }

    /// Returns the requests of a range of rows.
    ///
    /// # Panics
    /// If the range goes beyond the last row.
    pub fn range(&self, rows: Range<usize>) -> Iter<'_> {
        assert!(rows.end <= self.len);
        let block = rows.start / BLOCK;
        Iter { requests: self, rows, block }
    }

    /// Returns the requests at these rows, each of which must be higher than the one before.
    pub fn ascending(&self, rows: impl Iterator<Item = usize>) -> impl Iterator<Item = Request> {
        let (mut requests, mut next) = (self.iter(), 0);
        rows.map_while(move |row| requests.nth(row - std::mem::replace(&mut next, row + 1)))
    }

    pub fn to_vec(&self) -> Vec<Request> {
        self.iter().collect()
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} requests of {}", self.len, self.path.display())
    }
}

impl PartialEq for Requests {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// Iterator over the requests of a range of rows.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    requests: &'a Requests,
    rows: Range<usize>,
    /// Block of the last request returned.
    block: usize,
}

impl Iter<'_> {
    /// Returns the request at any row. Like the next one, it may release the pages of the request before it.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&mut self, row: usize) -> Request {
        let block = row / BLOCK;
        if block != self.block {
            if self.requests.released {
                self.requests.leave(self.block);
            }
            self.block = block;
        }
        self.requests.row(row)
    }
}

impl Iterator for Iter<'_> {
    type Item = Request;

    #[inline]
    fn next(&mut self) -> Option<Request> {
        self.rows.next().map(|row| self.row(row))
    }

    fn nth(&mut self, n: usize) -> Option<Request> {
        self.rows.nth(n).map(|row| self.row(row))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.next_back().map(|row| self.row(row))
    }
}

impl<'a> IntoIterator for &'a Requests {
    type Item = Request;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}
