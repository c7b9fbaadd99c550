//! Sorts compiled requests by time in bounded memory.
//!
//! Logs are written in time order or nearly so: usually a window of buffered requests is enough, and every request is written once.
//! If a request is earlier than one already written, the pass starts again with a full external sort: sorted runs are spilled to an
//! unnamed file and merged. Requests of the same millisecond stay in the order of the table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::log::error::{LogError, Result};
use crate::log::keep;
use crate::log::queue_buffer::{Queue, QueueBuffer};
use crate::log::records::{Auction, ContractEntry, Request};
use crate::log::scan::Next;

/// Callback that receives each request in time order.
pub type Out<'a> = dyn FnMut(Queue) -> Result<()> + 'a;

pub struct Sorter {
    held: QueueBuffer,
    /// Memory for the buffer after half of it was given.
    spare: QueueBuffer,
    /// Buffer limit in bytes, approximate.
    most: usize,
    /// Latest time passed to the output.
    given_ms: u64,
    spill: Option<Spill>,
}

impl Sorter {
    /// Creates a sorter that buffers requests in about an eighth of `memory` bytes.
    pub fn new(memory: usize) -> Self {
        // Offsets of entries are u32, so an unreasonably large limit is clamped.
        let most = (memory / 8).clamp(1 << 10, 32 << 30);
        Self { held: QueueBuffer::default(), spare: QueueBuffer::default(), most, given_ms: 0, spill: None }
    }

    /// Drops the buffered requests before a new pass.
    ///
    /// # Errors
    /// A file for sorted runs that cannot be emptied.
    pub fn reset(&mut self) -> Result<()> {
        self.held.clear();
        self.given_ms = 0;
        match &mut self.spill {
            Some(spill) => spill.reset(),
            None => Ok(()),
        }
    }

    /// Switches to the external sort from the next pass on; data beyond memory goes to a file in the folder of `dir`.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub fn spill(&mut self, dir: &Path) -> Result<()> {
        self.spill = Some(Spill::new(dir)?);
        Ok(())
    }

    /// Returns the buffered requests and the latest time passed to the output; `None` if rows are sorted on disk.
    pub fn held(&self) -> Option<(&QueueBuffer, u64)> {
        self.spill.is_none().then_some((&self.held, self.given_ms))
    }

    /// Goes back to what [`Sorter::held`] returned.
    pub fn resume(&mut self, held: QueueBuffer, given_ms: u64) {
        (self.held, self.given_ms) = (held, given_ms);
    }

    /// Adds a request. `Next::Again` asks for a new pass.
    ///
    /// # Errors
    /// Any error of `out`, or no room for a sorted run.
    pub fn push(&mut self, queue: Queue, out: &mut Out) -> Result<Next> {
        if self.spill.is_none() && queue.0.ts_ms < self.given_ms {
            return Ok(Next::Again);
        }
        self.held.push(queue);
        if self.held.bytes() >= self.most {
            match &mut self.spill {
                Some(spill) => {
                    spill.add(&self.held)?;
                    self.held.clear();
                }
                None => self.give_half(out)?,
            }
        }
        Ok(Next::GoOn)
    }

    /// Outputs the earlier half of the buffer.
    fn give_half(&mut self, out: &mut Out) -> Result<()> {
        let order = self.held.order();
        let (now, later) = order.split_at(order.len().div_ceil(2));
        for &i in now {
            out(self.held.get(i as usize))?;
            self.given_ms = self.held.requests[i as usize].ts_ms;
        }
        // Keep the order of the table, so that equal times stay in it.
        let mut later = later.to_vec();
        later.sort_unstable();
        self.spare.clear();
        later.iter().for_each(|&i| self.spare.push(self.held.get(i as usize)));
        std::mem::swap(&mut self.held, &mut self.spare);
        Ok(())
    }

    /// Outputs the rest.
    ///
    /// # Errors
    /// As [`Sorter::push`].
    pub fn finish(&mut self, out: &mut Out) -> Result<()> {
        match self.spill.as_mut().filter(|spill| !spill.runs.is_empty()) {
            None => self.held.order().into_iter().try_for_each(|i| out(self.held.get(i as usize)))?,
            Some(spill) => {
                spill.add(&self.held)?;
                self.held = QueueBuffer::default();
                spill.merge(out)?;
            }
        }
        self.held.clear();
        Ok(())
    }
}

/// Sorted runs in an unnamed file: pieces of compressed records, each preceded by its compressed length and its length.
struct Spill {
    /// Log directory, and the folder of the file.
    dir: PathBuf,
    folder: PathBuf,
    file: File,
    end: u64,
    /// Offsets of the first byte and one past the last byte of each run.
    runs: Vec<(u64, u64)>,
}

/// Bytes of records that are compressed together.
const PIECE: usize = 1 << 16;

impl Spill {
    fn new(dir: &Path) -> Result<Self> {
        let folder = keep::scratch(dir);
        let file = tempfile::tempfile_in(&folder).map_err(|cause| LogError::NotKept { dir: dir.to_owned(), cause })?;
        Ok(Self { dir: dir.to_owned(), folder, file, end: 0, runs: Vec::new() })
    }

    fn reset(&mut self) -> Result<()> {
        self.runs.clear();
        self.end = 0;
        self.file.set_len(0).map_err(|e| LogError::io(&self.folder, e))
    }

    /// Writes a sorted run.
    fn add(&mut self, held: &QueueBuffer) -> Result<()> {
        let from = self.end;
        let mut piece = Vec::with_capacity(2 * PIECE);
        for i in held.order() {
            crate::cancel::point();
            let (request, entries, auctions) = held.get(i as usize);
            piece.extend_from_slice(bytemuck::bytes_of(request));
            piece.extend_from_slice(bytemuck::cast_slice(entries));
            piece.extend_from_slice(bytemuck::cast_slice(auctions));
            if piece.len() >= PIECE {
                self.write(&mut piece)?;
            }
        }
        if !piece.is_empty() {
            self.write(&mut piece)?;
        }
        self.runs.push((from, self.end));
        Ok(())
    }

    fn write(&mut self, piece: &mut Vec<u8>) -> Result<()> {
        let packed = lz4_flex::block::compress(piece);
        let lengths = [packed.len() as u32, piece.len() as u32];
        self.file
            .write_all_at(bytemuck::cast_slice(&lengths), self.end)
            .and_then(|()| self.file.write_all_at(&packed, self.end + 8))
            .map_err(|cause| LogError::NotKept { dir: self.dir.clone(), cause })?;
        self.end += 8 + packed.len() as u64;
        piece.clear();
        Ok(())
    }

    fn merge(&self, out: &mut Out) -> Result<()> {
        let failed = |e| LogError::io(&self.folder, e);
        let mut runs: Vec<Run> =
            self.runs.iter().map(|&(at, end)| Run { file: &self.file, at, end, ..Run::new(&self.file) }).collect();
        let mut heap = BinaryHeap::new();
        for (i, run) in runs.iter_mut().enumerate() {
            if run.next().map_err(failed)? {
                heap.push(Reverse((run.request.ts_ms, i)));
            }
        }
        while let Some(Reverse((_, i))) = heap.pop() {
            crate::cancel::point();
            let run = &mut runs[i];
            out((&run.request, &run.entries, &run.auctions))?;
            if run.next().map_err(failed)? {
                heap.push(Reverse((run.request.ts_ms, i)));
            }
        }
        Ok(())
    }
}

/// Reader of a sorted run.
struct Run<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    piece: Vec<u8>,
    within: usize,
    request: Request,
    entries: Vec<ContractEntry>,
    auctions: Vec<Auction>,
}

impl<'a> Run<'a> {
    fn new(file: &'a File) -> Self {
        let request = bytemuck::Zeroable::zeroed();
        let (entries, auctions) = (Vec::new(), Vec::new());
        Self { file, at: 0, end: 0, piece: Vec::new(), within: 0, request, entries, auctions }
    }

    /// Moves to the next request; returns false at the end.
    fn next(&mut self) -> std::io::Result<bool> {
        if self.within == self.piece.len() {
            if self.at == self.end {
                return Ok(false);
            }
            let mut lengths = [0u32; 2];
            self.file.read_exact_at(bytemuck::cast_slice_mut(&mut lengths), self.at)?;
            let [packed, whole] = lengths.map(|n| n as usize);
            let mut bytes = vec![0; packed];
            self.file.read_exact_at(&mut bytes, self.at + 8)?;
            self.piece = lz4_flex::block::decompress(&bytes, whole).map_err(std::io::Error::other)?;
            self.at += 8 + packed as u64;
            self.within = 0;
        }
        let mut take = |n: usize| {
            let from = self.within;
            self.within += n;
            &self.piece[from..from + n]
        };
        self.request = bytemuck::pod_read_unaligned(take(size_of::<Request>()));
        let (entries, auctions) = (usize::from(self.request.entries), usize::from(self.request.auctions));
        self.entries = bytemuck::pod_collect_to_vec(take(entries * size_of::<ContractEntry>()));
        self.auctions = bytemuck::pod_collect_to_vec(take(auctions * size_of::<Auction>()));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ts_ms: u64, id: u64) -> (Request, Vec<ContractEntry>, Vec<Auction>) {
        let request = Request { ts_ms, request_id: id, ..bytemuck::Zeroable::zeroed() };
        let entry = ContractEntry { pctr: id as f64, ..bytemuck::Zeroable::zeroed() };
        let auction = Auction { ad_id: id, ..bytemuck::Zeroable::zeroed() };
        (request, vec![entry; (id % 3) as usize], vec![auction; (id % 5) as usize])
    }

    fn sorted(times: &[u64], most: usize, spill: bool) -> Option<Vec<(u64, u64)>> {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter { most, ..Sorter::new(0) };
        if spill {
            sorter.spill(dir.path()).unwrap();
        }
        let mut given = Vec::new();
        let mut out = |(r, entries, auctions): Queue| {
            let expected = request(r.ts_ms, r.request_id);
            assert_eq!((entries, auctions), (&expected.1[..], &expected.2[..]));
            given.push((r.ts_ms, r.request_id));
            Ok(())
        };
        for (id, &ts) in (0..).zip(times) {
            let (r, entries, auctions) = request(ts, id);
            if sorter.push((&r, &entries, &auctions), &mut out).unwrap() == Next::Again {
                return None;
            }
        }
        sorter.finish(&mut out).unwrap();
        Some(given)
    }

    #[test]
    fn requests_come_out_in_time_order_and_ties_in_that_of_the_table() {
        let times: Vec<u64> = (0..3000u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 400).collect();
        let mut expected: Vec<(u64, u64)> = times.iter().copied().zip(0..).collect();
        expected.sort_by_key(|&(ts, _)| ts);
        for most in [200, 5_000, 90_000, 1 << 30] {
            assert_eq!(sorted(&times, most, true).as_ref(), Some(&expected), "{most} bytes held");
        }
        assert_eq!(sorted(&times, 5_000, false), None, "a window is not enough");
        let nearly: Vec<u64> = (0..3000u64).map(|i| i - i % 7).collect();
        let mut expected: Vec<(u64, u64)> = nearly.iter().copied().zip(0..).collect();
        expected.sort_by_key(|&(ts, _)| ts);
        for (most, spill) in [(5_000, false), (5_000, true), (1 << 30, false)] {
            assert_eq!(sorted(&nearly, most, spill).as_ref(), Some(&expected), "{most} bytes held, {spill}");
        }
    }
}
