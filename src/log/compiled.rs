//! The compiled log: one memory-mapped file per day.
//!
//! Layout: a 120-byte header; blocks of [`super::records::BLOCK`] requests each (the last one may be shorter), every block with its requests, their
//! contract entries and their auction entries, packed as [`super::block`] says; the index of the blocks; then the contracts and
//! the counts of the compilation as JSON. Opening checks the header, the index and the tail. A block is checked on first access:
//! its checksum, every index and every number in it, so that no read can go out of bounds or return a value that replay does not
//! expect. A small file is checked completely when it is opened, so that a damaged one is compiled again before it is used. A
//! damaged block of a large file ends the process that accesses it, with a message that names the file.

use std::path::Path;

use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::block::{Entries, FIELDS};
use super::day::Day;
use super::error::{LogError, Result};
use super::queue_buffer::QueueBuffer;
use super::records::{Auction, ContractEntry, HEADER, Header, Request};
use super::requests::{BlockMeta, Iter, Requests};
use super::schema::{ControlRow, MAX_CLICK_VALUE, MAX_IMPRESSIONS, MAX_PENALTY};
use super::targeting::Targeting;

pub(super) const MAGIC: [u8; 8] = *b"ADMIXLOG";
pub const VERSION: u32 = 5;
/// File size in bytes up to which all blocks are checked at opening, which takes about 10 ms.
const CHECKED_WHOLE: usize = 64 << 20;

/// A contract of the day with absolute flight times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    pub ad_id: u64,
    pub required: u64,
    pub cap: u64,
    pub delivered0: u64,
    pub start_ms: u64,
    pub end_ms: u64,
    pub targeting: Targeting,
    pub theta: Option<f64>,
    pub rate: f64,
    /// Penalty, minor units per missing impression.
    pub penalty: f64,
    /// Worth of a predicted click, minor units.
    pub click_value: f64,
    /// Fallback click probability from the control table.
    pub pctr: Option<f64>,
    /// Mean predicted click probability over the contract's entries of the day, else the control table's, else 0. Known only
    /// after the day is over.
    pub mean_pctr: f64,
    /// Requests that the targeting matches within the flight.
    pub targeted: u64,
    /// Number of those requests in whose queue the contract may be shown.
    pub present: u64,
}

impl Contract {
    /// Builds a contract without statistics of the day.
    pub fn before_the_day(row: &ControlRow) -> Self {
        Self {
            ad_id: row.ad_id,
            required: row.required,
            cap: row.cap,
            delivered0: row.delivered0,
            start_ms: row.start_ms,
            end_ms: row.end_ms,
            targeting: row.targeting.clone(),
            theta: row.theta,
            rate: row.rate,
            penalty: row.penalty,
            click_value: row.click_value,
            pctr: row.pctr,
            mean_pctr: row.pctr.unwrap_or(0.0),
            targeted: 0,
            present: 0,
        }
    }

    /// Returns the impressions still owed when the log starts.
    pub fn owed(&self) -> u64 {
        self.required.saturating_sub(self.delivered0)
    }

    /// Returns the impressions that may still be shown when the log starts.
    pub fn left(&self) -> u64 {
        self.cap.saturating_sub(self.delivered0)
    }

    /// Returns the mean worth of the predicted clicks of an impression, minor units.
    pub fn mean_click_worth(&self) -> f64 {
        self.click_value * self.mean_pctr
    }
}

/// Counts made by the compilation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows of the track log.
    pub rows: u64,
    pub quarantined: u64,
    /// Quarantined rows by reason.
    pub reasons: std::collections::BTreeMap<String, u64>,
    /// Rows with an earlier time than a row before them; they are sorted, not quarantined.
    pub out_of_order: u64,
    /// Entries that `env.complete_queues` added.
    pub completed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Tail {
    pub name: String,
    pub day: Day,
    pub contracts: Vec<Contract>,
    pub counts: Counts,
    /// Whether an importer declared auction ads to be contracts.
    pub contracts_declared: bool,
    /// [`CompiledLog::content`] of the day as logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// A memory-mapped day of requests.
#[derive(Debug)]
pub struct CompiledLog {
    header: Header,
    tail: Tail,
    requests: Requests,
}

impl CompiledLog {
    /// Maps a compiled log and checks its header, index and tail; checks everything if the file is small.
    ///
    /// # Errors
    /// A wrong magic or version, a wrong length or checksum, an index out of bounds.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_checking(path, CHECKED_WHOLE)
    }

    /// Opens like [`CompiledLog::open`]; in files of more than `whole` bytes, blocks are checked on first access.
    ///
    /// # Errors
    /// As [`CompiledLog::open`].
    pub fn open_checking(path: &Path, whole: usize) -> Result<Self> {
        let map = super::map::read_only(path).map_err(|e| LogError::io(path, e))?;
        let small = map.len() <= whole;
        let mut log = Self::of_map(path, map)?;
        if small {
            log.verify()?;
        } else {
            log.requests.release_passed();
        }
        Ok(log)
    }

    /// Opens a compiled log that exists only in memory; errors name `path`.
    pub(super) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let log = Self::of_map(path, super::map::in_memory(bytes).map_err(|e| LogError::io(path, e))?)?;
        log.verify()?;
        Ok(log)
    }

    /// Checks every block that has not been checked yet.
    ///
    /// # Errors
    /// The first block that is damaged.
    pub fn verify(&self) -> Result<()> {
        self.requests.verify().map_err(|reason| LogError::Compiled { path: self.path().to_owned(), reason })
    }

    fn of_map(path: &Path, map: Mmap) -> Result<Self> {
        let broken = |reason: String| LogError::Compiled { path: path.to_owned(), reason };
        if map.len() < HEADER {
            return Err(broken(format!("{} bytes is shorter than a header", map.len())));
        }
        let header: Header = bytemuck::pod_read_unaligned(&map[..HEADER]);
        if header.magic != MAGIC {
            return Err(broken("wrong magic, this is some other file".into()));
        }
        if header.version != VERSION || header.fields != FIELDS as u32 {
            return Err(broken(format!("format version {}, this program writes {VERSION}", header.version)));
        }
        if header.total_bytes != map.len() as u64 {
            return Err(broken(format!("{} of {} bytes are there", map.len(), header.total_bytes)));
        }
        let index_bytes = header.blocks.checked_mul(size_of::<BlockMeta>() as u64);
        let index_at = index_bytes
            .and_then(|bytes| header.total_bytes.checked_sub(bytes)?.checked_sub(header.tail_bytes))
            .filter(|at| *at >= HEADER as u64)
            .ok_or_else(|| broken("its counts do not add up to its length".into()))? as usize;
        if XxHash3_64::oneshot(&map[index_at..]) != header.checksum {
            return Err(broken("checksum mismatch, the file is damaged".into()));
        }
        let tail_at = map.len() - header.tail_bytes as usize;
        let tail: Tail = serde_json::from_slice(&map[tail_at..]).map_err(|e| broken(e.to_string()))?;
        check_contracts(&tail.contracts).map_err(broken)?;
        // The tail may have any length, so the index need not be aligned.
        let index: Vec<BlockMeta> = bytemuck::pod_collect_to_vec(&map[index_at..tail_at]);
        let requests =
            Requests::new(path.to_owned(), map, index, index_at, tail.contracts.len(), &tail.day).map_err(broken)?;
        let counts = (header.requests, header.entries, header.auctions);
        if requests.counts() != counts {
            return Err(broken("its counts are not those of its blocks".into()));
        }
        Ok(Self { header, tail, requests })
    }

    /// Returns the hash of the inputs and options that this log was compiled from.
    pub fn inputs(&self) -> u128 {
        u128::from(self.header.inputs[0]) | u128::from(self.header.inputs[1]) << 64
    }

    /// Returns a hash of the day's traffic: its requests and their auction ads. It does not depend on the name of the directory,
    /// the file format, or the contracts and values used for replay. `None` for a day without requests.
    pub fn content(&self) -> Option<String> {
        self.tail.content.clone()
    }

    pub fn path(&self) -> &Path {
        self.requests.path()
    }

    /// Returns the name of the log directory.
    pub fn name(&self) -> &str {
        &self.tail.name
    }

    pub fn day(&self) -> &Day {
        &self.tail.day
    }

    pub fn contracts(&self) -> &[Contract] {
        &self.tail.contracts
    }

    pub fn counts(&self) -> &Counts {
        &self.tail.counts
    }

    /// Returns whether an importer declared auction ads to be contracts, so that the contracts are not real.
    pub fn contracts_declared(&self) -> bool {
        self.tail.contracts_declared
    }

    /// Returns all requests in time order.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns the contract entries of a request of this log.
    #[inline]
    pub fn entries(&self, request: &Request) -> Entries<'_, ContractEntry> {
        self.requests.entries(request)
    }

    /// Returns the auction entries of a request of this log, best score first.
    #[inline]
    pub fn auctions(&self, request: &Request) -> Entries<'_, Auction> {
        self.requests.auctions(request)
    }

    /// Unpacks the next `count` requests of an iterator over this log, fewer at its end, in place of what `to` holds.
    pub fn unpack(&self, rows: &mut Iter, count: usize, to: &mut QueueBuffer) {
        to.clear();
        for r in rows.take(count) {
            let (entries_at, auctions_at) = (to.entries.len() as u32, to.auctions.len() as u32);
            to.requests.push(Request { entries_at, auctions_at, ..r });
            self.entries(&r).append_to(&mut to.entries);
            self.auctions(&r).append_to(&mut to.auctions);
        }
    }

    /// Returns the largest number of contract entries of any request.
    pub fn widest(&self) -> usize {
        self.requests.widest()
    }

    /// Returns the numbers of contract entries and auction entries over all requests.
    #[cfg(test)]
    pub(super) fn entry_counts(&self) -> (u64, u64) {
        (self.header.entries, self.header.auctions)
    }

    /// Returns the sum of `penalty * owed` over all contracts, minor units.
    pub fn stake(&self) -> f64 {
        self.contracts().iter().map(|c| c.penalty * c.owed() as f64).sum()
    }
}

/// Checks the assumptions that replay makes about contracts.
fn check_contracts(contracts: &[Contract]) -> std::result::Result<(), String> {
    let share = |v: f64| (0.0..=1.0).contains(&v);
    let sound = |c: &Contract| {
        (0.0..=MAX_PENALTY).contains(&c.penalty)
            && (0.0..=MAX_CLICK_VALUE).contains(&c.click_value)
            && c.required.max(c.cap) <= MAX_IMPRESSIONS
            && [Some(c.rate), Some(c.mean_pctr), c.theta, c.pctr].into_iter().flatten().all(share)
    };
    match contracts.iter().find(|c| !sound(c)) {
        Some(c) => Err(format!("contract {} holds impossible values", c.ad_id)),
        None => Ok(()),
    }
}
