//! The requests of a compiled log, found through the index of its blocks. Each block is checked on first access.

use std::ops::{Index, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::compiled::{Auction, BLOCK, Entry, HEADER, Request};
use super::day::Day;

/// Location and contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BlockMeta {
    /// Offset of the first byte in the file.
    pub at: u64,
    pub checksum: u64,
    /// Times of the first and last request.
    pub first_ms: u64,
    pub last_ms: u64,
    pub requests: u32,
    pub entries: u32,
    pub auctions: u32,
    /// Largest number of contract entries of one request.
    pub widest: u32,
}

impl BlockMeta {
    /// Returns the size of the block in bytes.
    fn bytes(&self) -> u64 {
        size_of::<Request>() as u64 * u64::from(self.requests)
            + size_of::<Entry>() as u64 * u64::from(self.entries)
            + size_of::<Auction>() as u64 * u64::from(self.auctions)
    }

    /// Returns the file offsets of its contract entries and of its auction entries.
    fn entries_at(&self) -> (usize, usize) {
        let entries = self.at as usize + self.requests as usize * size_of::<Request>();
        (entries, entries + self.entries as usize * size_of::<Entry>())
    }
}

/// All requests of a day in time order, read like a slice.
///
/// Reading a request of a damaged block panics with a message that names the file; files of up to 64 MiB were checked when they
/// were opened.
pub struct Requests {
    path: PathBuf,
    map: Mmap,
    index: Vec<BlockMeta>,
    checked: Box<[AtomicBool]>,
    len: usize,
    contracts: usize,
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
                && block.at.checked_add(block.bytes()).is_some_and(|last| last <= end as u64);
            if !inside || !full.contains(&(block.requests as usize)) {
                return Err(format!("block {i} points outside"));
            }
            let ordered = last_ms <= block.first_ms && block.first_ms <= block.last_ms;
            if !ordered || !day.contains(block.first_ms) || !day.contains(block.last_ms) {
                return Err(format!("block {i} is out of order or outside the day"));
            }
            last_ms = block.last_ms;
            len += block.requests as usize;
        }
        let checked = index.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { path, map, index, checked, len, contracts })
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
        for (i, checked) in self.checked.iter().enumerate() {
            // Relaxed: the flag guards no other writes; the bytes of the block never change.
            if !checked.load(Ordering::Relaxed) {
                self.check(i)?;
                checked.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Checks a block's checksum, and every index and number in it.
    fn check(&self, number: usize) -> Result<(), String> {
        let block = &self.index[number];
        let at = block.at as usize;
        if XxHash3_64::oneshot(&self.map[at..at + block.bytes() as usize]) != block.checksum {
            return Err(format!("checksum mismatch in block {number}, the file is damaged"));
        }
        let amount = |v: f64| v.is_finite() && v >= 0.0;
        let share = |v: f64| (0.0..=1.0).contains(&v);
        let (entries_at, auctions_at) = block.entries_at();
        let requests: &[Request] = bytemuck::cast_slice(&self.map[at..entries_at]);
        let mut last = block.first_ms;
        for r in requests {
            let inside = |at: u32, n: u16, len: u32| u64::from(at) + u64::from(n) <= u64::from(len);
            if r.block as usize != number
                || !inside(r.entries_at, r.entries, block.entries)
                || !inside(r.auctions_at, r.auctions, block.auctions)
                || u32::from(r.entries) > block.widest
            {
                return Err(format!("request {} points outside", r.request_id));
            }
            if r.ts_ms < last || r.ts_ms > block.last_ms {
                return Err(format!("request {} is out of order", r.request_id));
            }
            if !amount(r.best) || r.gender > 2 || r.age > 9 {
                return Err(format!("request {} holds impossible values", r.request_id));
            }
            last = r.ts_ms;
        }
        let entries: &[Entry] = bytemuck::cast_slice(&self.map[entries_at..auctions_at]);
        if entries.iter().any(|e| e.contract as usize >= self.contracts) {
            return Err("an entry names a contract that is not there".into());
        }
        let auctions: &[Auction] = bytemuck::cast_slice(&self.map[auctions_at..at + block.bytes() as usize]);
        let entries = entries.iter().map(|e| (e.ecpm, e.pctr, e.boost));
        let mut all = entries.chain(auctions.iter().map(|a| (a.ecpm, a.pctr, a.boost)));
        if !all.all(|(ecpm, pctr, boost)| amount(ecpm) && share(pctr) && amount(boost)) {
            return Err("an entry holds impossible values".into());
        }
        Ok(())
    }

    /// Returns a block, checking it on first access.
    #[inline]
    fn block(&self, number: usize) -> &BlockMeta {
        if !self.checked[number].load(Ordering::Relaxed) {
            self.first_touch(number);
        }
        &self.index[number]
    }

    #[cold]
    fn first_touch(&self, number: usize) {
        if let Err(reason) = self.check(number) {
            panic!("{}", super::LogError::Compiled { path: self.path.clone(), reason });
        }
        self.checked[number].store(true, Ordering::Relaxed);
    }

    pub(super) fn entries(&self, request: &Request) -> &[Entry] {
        let (at, _) = self.block(request.block as usize).entries_at();
        let from = at + request.entries_at as usize * size_of::<Entry>();
        bytemuck::cast_slice(&self.map[from..from + usize::from(request.entries) * size_of::<Entry>()])
    }

    pub(super) fn auctions(&self, request: &Request) -> &[Auction] {
        let (_, at) = self.block(request.block as usize).entries_at();
        let from = at + request.auctions_at as usize * size_of::<Auction>();
        bytemuck::cast_slice(&self.map[from..from + usize::from(request.auctions) * size_of::<Auction>()])
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn first(&self) -> Option<&Request> {
        (!self.is_empty()).then(|| &self[0])
    }

    pub fn last(&self) -> Option<&Request> {
        self.len.checked_sub(1).map(|row| &self[row])
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
        Iter { requests: self, rows }
    }

    pub fn to_vec(&self) -> Vec<Request> {
        self.iter().copied().collect()
    }
}

impl Index<usize> for Requests {
    type Output = Request;

    #[inline]
    fn index(&self, row: usize) -> &Request {
        assert!(row < self.len, "row {row} of {}", self.len);
        let at = self.block(row / BLOCK).at as usize + row % BLOCK * size_of::<Request>();
        bytemuck::from_bytes(&self.map[at..at + size_of::<Request>()])
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
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Request;

    #[inline]
    fn next(&mut self) -> Option<&'a Request> {
        self.rows.next().map(|row| &self.requests[row])
    }

    fn nth(&mut self, n: usize) -> Option<&'a Request> {
        self.rows.nth(n).map(|row| &self.requests[row])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.next_back().map(|row| &self.requests[row])
    }
}

impl<'a> IntoIterator for &'a Requests {
    type Item = &'a Request;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}
