//! Writes a compiled log request by request. A block is written as soon as it is full, so memory does not grow with the day.

use std::io::{Result, Seek, SeekFrom, Write};
use std::path::Path;

use bytemuck::Zeroable as _;
use twox_hash::{XxHash3_64, XxHash3_128};

use super::output::Output;
use crate::log::block::{FIELDS, Packer};
use crate::log::compiled::{MAGIC, Tail, VERSION};
use crate::log::day::Day;
use crate::log::queue_buffer::QueueBuffer;
use crate::log::records::{Auction, BLOCK, ContractEntry, HEADER, Header, Request};
use crate::log::requests::{BlockMeta, Requests};

/// A compiled log being written. Its header is zero until [`LogWriter::finish`], so an incomplete file is never taken for a
/// complete one.
pub struct LogWriter<W> {
    to: W,
    at: u64,
    index: Vec<BlockMeta>,
    /// Block that is being filled.
    block: QueueBuffer,
    packer: Packer,
    counts: [u64; 3],
    content: Content,
}

/// The hash of a day's traffic: [`crate::log::CompiledLog::content`].
#[derive(Default)]
struct Content {
    hash: XxHash3_128,
    /// What the hash takes of a request.
    words: Vec<u64>,
}

impl Content {
    fn add(&mut self, r: &Request, auctions: impl ExactSizeIterator<Item = Auction>) {
        let place = u64::from(r.slot_id) << 32 | u64::from(r.region);
        self.words.clear();
        self.words.extend([r.request_id, r.ts_ms, place, auctions.len() as u64]);
        self.words.extend(auctions.flat_map(|a| [a.ad_id, a.ecpm.to_bits()]));
        self.hash.write(bytemuck::cast_slice(&self.words));
    }
}

impl<W: Write + Seek> LogWriter<W> {
    /// Creates a writer; [`LogWriter::begin`] starts the log.
    pub fn new(to: W) -> Self {
        let (block, packer, content) = (QueueBuffer::default(), Packer::default(), Content::default());
        Self { to, at: 0, index: Vec::new(), block, packer, counts: [0; 3], content }
    }

    /// Appends a request, which must not be earlier than the one before it.
    pub fn push(&mut self, request: &Request, entries: &[ContractEntry], auctions: &[Auction]) -> Result<()> {
        self.content.add(request, auctions.iter().copied());
        // A block holds 4,096 queues of at most 512 entries, so its own offsets always fit.
        let block = u32::try_from(self.index.len()).expect("a day of less than 2^44 requests");
        self.block.push((&Request { block, ..*request }, entries, auctions));
        if self.block.requests.len() == BLOCK { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let requests = &self.block.requests;
        let (Some(first), Some(last)) = (requests.first(), requests.last()) else { return Ok(()) };
        let (first_ms, last_ms) = (first.ts_ms, last.ts_ms);
        let widest = requests.iter().map(|r| u32::from(r.entries)).max().unwrap_or(0);
        let counts = [requests.len(), self.block.entries.len(), self.block.auctions.len()];
        let ads = self.packer.pack(&self.block);
        // The next block begins at a multiple of eight.
        let bytes = &self.packer.bytes;
        let padding = &[0; 8][..bytes.len().next_multiple_of(8) - bytes.len()];
        self.to.write_all(bytes)?;
        self.to.write_all(padding)?;
        let [requests, entries, auctions] = counts.map(|n| n as u32);
        self.index.push(BlockMeta {
            at: self.at,
            bytes: bytes.len() as u64,
            checksum: XxHash3_64::oneshot(bytes),
            first_ms,
            last_ms,
            requests,
            entries,
            auctions,
            widest,
            ads,
            zero: 0,
        });
        self.at += (bytes.len() + padding.len()) as u64;
        self.counts.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n as u64);
        self.block.clear();
        Ok(())
    }

    /// Writes the last block, the index, the tail and finally the header. A tail without a content hash gets that of the requests
    /// written.
    pub fn finish(mut self, tail: Tail, inputs: u128) -> Result<()> {
        self.end_block()?;
        let content = (self.counts[0] > 0).then(|| format!("{:032x}", self.content.hash.finish_128()));
        let tail = Tail { content: tail.content.or(content), ..tail };
        let tail = serde_json::to_vec(&tail).expect("plain values serialise");
        let index: &[u8] = bytemuck::cast_slice(&self.index);
        let mut checksum = XxHash3_64::new();
        for part in [index, &tail] {
            std::hash::Hasher::write(&mut checksum, part);
            self.to.write_all(part)?;
        }
        let [requests, entries, auctions] = self.counts;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            fields: FIELDS as u32,
            inputs: [inputs as u64, (inputs >> 64) as u64],
            checksum: std::hash::Hasher::finish(&checksum),
            total_bytes: self.at + (index.len() + tail.len()) as u64,
            requests,
            entries,
            auctions,
            tail_bytes: tail.len() as u64,
            blocks: self.index.len() as u64,
            reserved: [0; 4],
        };
        self.to.seek(SeekFrom::Start(0))?;
        self.to.write_all(bytemuck::bytes_of(&header))?;
        self.to.flush()
    }
}

/// State of an unfinished log: the length, counts and index of what is written, and the block that is not full yet.
pub struct Begun<B, I> {
    pub at: u64,
    pub counts: [u64; 3],
    pub block: B,
    pub index: I,
}

impl<W: Output + ?Sized> LogWriter<&mut W> {
    pub fn begun(&self) -> Begun<&QueueBuffer, &[BlockMeta]> {
        Begun { at: self.at, counts: self.counts, block: &self.block, index: &self.index }
    }

    /// Continues the log that another writer began at `path`, after all its blocks were checked.
    ///
    /// # Errors
    /// A file that does not hold these blocks.
    pub fn resume(
        &mut self,
        path: &Path,
        begun: Begun<QueueBuffer, Vec<BlockMeta>>,
        (day, contracts): (&Day, usize),
    ) -> std::result::Result<(), String> {
        let Begun { at, counts, block, index } = begun;
        let map = crate::log::map::read_only(path).map_err(|e| e.to_string())?;
        let end = usize::try_from(at).ok().filter(|end| (HEADER..=map.len()).contains(end)).ok_or("it is too short")?;
        let mut written = Requests::new(path.to_owned(), map, index, end, contracts, day)?;
        written.release_passed();
        written.verify()?;
        let mut content = Content::default();
        written.iter().for_each(|r| content.add(&r, written.auctions(&r).iter()));
        for i in 0..block.requests.len() {
            let (request, _, auctions) = block.get(i);
            content.add(request, auctions.iter().copied());
        }
        self.to.resume(at).map_err(|e| e.to_string())?;
        (self.at, self.counts, self.block, self.index, self.content) =
            (at, counts, block, written.into_index(), content);
        Ok(())
    }

    /// Begins a log, or starts it again.
    pub fn begin(&mut self) -> Result<()> {
        self.to.restart()?;
        self.to.write_all(bytemuck::bytes_of(&Header::zeroed()))?;
        self.at = HEADER as u64;
        self.index.clear();
        self.block.clear();
        self.counts = [0; 3];
        self.content = Content::default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::log::CompiledLog;
    use crate::log::day::Day;

    /// Offsets were counted in 32 bits for a whole day and wrapped silently.
    #[test]
    fn a_day_of_more_than_2_to_the_32_entries_is_read_back_right() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sparse = file.reopen().unwrap();
        let mut writer: LogWriter<&mut File> = LogWriter::new(&mut sparse);
        writer.begin().unwrap();
        let day = Day::of_timestamp(0);
        let block = |writer: &mut LogWriter<&mut File>, number: u64| {
            for i in 0..BLOCK as u64 {
                let id = number * BLOCK as u64 + i;
                let request = Request { request_id: id, ts_ms: number, ..bytemuck::Zeroable::zeroed() };
                let auction = |k| Auction { ad_id: id + k, pctr: 0.5, ..bytemuck::Zeroable::zeroed() };
                let auctions: Vec<Auction> = (0..id % 3).map(auction).collect();
                writer.push(&request, &[], &auctions).unwrap();
            }
        };
        block(&mut writer, 0);
        // Full blocks that nobody reads: 2^32 entries and more in total.
        let bytes = 9 * BLOCK as u64 * 512;
        let full = BlockMeta { auctions: (BLOCK * 512) as u32, bytes, first_ms: 1, last_ms: 1, ..writer.index[0] };
        for _ in 0..2100 {
            writer.index.push(BlockMeta { at: writer.at, ..full });
            writer.at += bytes;
            writer.counts[0] += BLOCK as u64;
            writer.counts[2] += u64::from(full.auctions);
            // A hole of the file.
            writer.to.seek(SeekFrom::Start(writer.at)).unwrap();
        }
        block(&mut writer, 2101);
        let tail = Tail {
            name: "large".into(),
            day,
            contracts: vec![],
            counts: Default::default(),
            contracts_declared: false,
            content: None,
        };
        writer.finish(tail, 7).unwrap();
        let log = CompiledLog::open(file.path()).unwrap();
        assert!(log.entry_counts().1 > 1 << 32);
        let rows = log.requests().len();
        assert_eq!(rows, 2102 * BLOCK);
        for row in (0..BLOCK).chain(rows - BLOCK..rows) {
            let r = log.requests().row(row);
            assert_eq!(r.request_id, row as u64);
            let ids: Vec<u64> = log.auctions(&r).iter().map(|a| a.ad_id).collect();
            assert_eq!(ids, (0..row as u64 % 3).map(|k| row as u64 + k).collect::<Vec<_>>());
        }
    }
}
