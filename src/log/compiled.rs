//! The compiled log: one memory-mapped file per day.
//!
//! Layout: a 120-byte header, then the requests, the contract entries, the auction entries (fixed-size
//! records, 8-byte aligned), then the contracts and the counts of the compilation as JSON. Opening one
//! checks magic, version, lengths, the checksum of the body, every index and every figure in it, so that nothing
//! that is read later can point outside or be what replay does not expect.

use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::day::Day;
use super::error::{LogError, Result};
use super::schema::{ControlRow, MAX_CLICK_VALUE, MAX_IMPRESSIONS, MAX_PENALTY};
use super::targeting::Targeting;

const MAGIC: [u8; 8] = *b"ADMIXLOG";
pub const VERSION: u32 = 3;

/// One request; its entries are runs of the two entry arrays.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Request {
    pub request_id: u64,
    pub ts_ms: u64,
    /// The best worth among the auction entries that may be shown, minor units per impression; 0 if none.
    pub best: f64,
    pub(super) entries_at: u32,
    pub(super) auctions_at: u32,
    pub(super) entries: u16,
    pub(super) auctions: u16,
    pub slot_id: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    pub(super) has_user: u8,
    pub(super) padding: [u8; 1],
    pub(super) user_id: u64,
}

impl Request {
    /// The user, where the log says who it was.
    pub fn user(&self) -> Option<u64> {
        (self.has_user != 0).then_some(self.user_id)
    }
}

/// A contract entry that may be shown by the static rules: filter 0, control row, in flight, targeted.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    pub pctr: f64,
    pub ecpm: f64,
    pub boost: f64,
    /// Index into [`CompiledLog::contracts`].
    pub contract: u32,
    pub(super) padding: u32,
}

/// An auction entry that may be shown (filter 0). A request's are sorted by score: `ecpm * boost` descending, then
/// `ecpm` descending, then `ad_id` ascending.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Auction {
    pub ad_id: u64,
    pub ecpm: f64,
    pub pctr: f64,
    pub boost: f64,
}

impl Auction {
    /// Minor units per impression.
    pub fn worth(&self) -> f64 {
        self.ecpm / 1000.0
    }
}

/// A contract of the day with its flight resolved.
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
    /// Minor units per missing impression.
    pub penalty: f64,
    /// Minor units per predicted click.
    pub click_value: f64,
    /// The control table's fallback click probability.
    pub pctr: Option<f64>,
    /// Mean predicted click probability over the contract's entries of the day, else the control table's, else 0. Known
    /// only when the day is over.
    pub mean_pctr: f64,
    /// Requests that the targeting matches within the flight.
    pub targeted: u64,
    /// Of those, requests in whose queue the contract stands and may be shown.
    pub present: u64,
}

impl Contract {
    /// A contract of whose day nothing is logged yet.
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

    /// Impressions still owed when the log starts.
    pub fn owed(&self) -> u64 {
        self.required.saturating_sub(self.delivered0)
    }

    /// Impressions that may still be shown when the log starts.
    pub fn left(&self) -> u64 {
        self.cap.saturating_sub(self.delivered0)
    }

    /// Mean worth of an impression's predicted clicks, minor units.
    pub fn mean_click_worth(&self) -> f64 {
        self.click_value * self.mean_pctr
    }
}

/// What the compilation counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Rows of the track log.
    pub rows: u64,
    pub quarantined: u64,
    /// Quarantined rows by reason.
    pub reasons: std::collections::BTreeMap<String, u64>,
    /// Rows that stood before an earlier one; sorted, not quarantined.
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
    /// [`CompiledLog::content`] of the day as it was logged, where this one has other values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u32,
    record_sizes: u32,
    inputs: [u64; 2],
    body_checksum: u64,
    total_bytes: u64,
    requests: u64,
    entries: u64,
    auctions: u64,
    tail_bytes: u64,
    reserved: [u64; 5],
}

const HEADER: usize = size_of::<Header>();
const RECORD_SIZES: u32 =
    (size_of::<Request>() as u32) << 16 | (size_of::<Entry>() as u32) << 8 | size_of::<Auction>() as u32;

/// A day of requests, mapped.
#[derive(Debug)]
pub struct CompiledLog {
    path: PathBuf,
    map: Mmap,
    header: Header,
    tail: Tail,
}

/// Serialises a compiled log; `inputs` identifies what it was compiled from.
pub(super) fn encode(
    requests: &[Request],
    entries: &[Entry],
    auctions: &[Auction],
    tail: &Tail,
    inputs: u128,
) -> Vec<u8> {
    let tail = serde_json::to_vec(tail).expect("plain values serialise");
    let mut bytes = vec![0; HEADER];
    bytes.extend_from_slice(bytemuck::cast_slice(requests));
    bytes.extend_from_slice(bytemuck::cast_slice(entries));
    bytes.extend_from_slice(bytemuck::cast_slice(auctions));
    bytes.extend_from_slice(&tail);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        record_sizes: RECORD_SIZES,
        inputs: [inputs as u64, (inputs >> 64) as u64],
        body_checksum: XxHash3_64::oneshot(&bytes[HEADER..]),
        total_bytes: bytes.len() as u64,
        requests: requests.len() as u64,
        entries: entries.len() as u64,
        auctions: auctions.len() as u64,
        tail_bytes: tail.len() as u64,
        reserved: [0; 5],
    };
    bytes[..HEADER].copy_from_slice(bytemuck::bytes_of(&header));
    bytes
}

impl CompiledLog {
    /// Maps and checks a compiled log.
    ///
    /// # Errors
    /// Another magic or version, a length or checksum that does not fit, an index that points outside.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of_map(path, super::map::read_only(path).map_err(|e| LogError::io(path, e))?)
    }

    /// A compiled log that lies in memory alone; `path` stands for it in errors.
    pub(super) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        Self::of_map(path, super::map::in_memory(bytes).map_err(|e| LogError::io(path, e))?)
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
        if header.version != VERSION || header.record_sizes != RECORD_SIZES {
            return Err(broken(format!("format version {}, this program writes {VERSION}", header.version)));
        }
        if header.total_bytes != map.len() as u64 {
            return Err(broken(format!("{} of {} bytes are there", map.len(), header.total_bytes)));
        }
        let wanted = [
            (header.requests, size_of::<Request>()),
            (header.entries, size_of::<Entry>()),
            (header.auctions, size_of::<Auction>()),
            (header.tail_bytes, 1),
        ]
        .into_iter()
        .try_fold(HEADER as u64, |sum, (count, size)| {
            count.checked_mul(size as u64).and_then(|bytes| sum.checked_add(bytes))
        });
        if wanted != Some(header.total_bytes) {
            return Err(broken("its counts do not add up to its length".into()));
        }
        if XxHash3_64::oneshot(&map[HEADER..]) != header.body_checksum {
            return Err(broken("checksum mismatch, the file is damaged".into()));
        }
        let tail_at = map.len() - header.tail_bytes as usize;
        let tail: Tail = serde_json::from_slice(&map[tail_at..]).map_err(|e| broken(e.to_string()))?;
        let log = Self { path: path.to_owned(), map, header, tail };
        log.check_indices().and_then(|()| log.check_values()).map_err(broken)?;
        Ok(log)
    }

    fn check_indices(&self) -> std::result::Result<(), String> {
        let inside = |at: u32, n: u16, len: u64| u64::from(at) + u64::from(n) <= len;
        let mut last = 0;
        for r in self.requests() {
            if !inside(r.entries_at, r.entries, self.header.entries)
                || !inside(r.auctions_at, r.auctions, self.header.auctions)
            {
                return Err(format!("request {} points outside", r.request_id));
            }
            if r.ts_ms < last || !self.tail.day.contains(r.ts_ms) {
                return Err(format!("request {} is out of order or outside the day", r.request_id));
            }
            last = r.ts_ms;
        }
        let n = self.tail.contracts.len();
        if self.all_entries().iter().any(|e| e.contract as usize >= n) {
            return Err("an entry names a contract that is not there".into());
        }
        Ok(())
    }

    /// What replay takes for granted of the figures.
    fn check_values(&self) -> std::result::Result<(), String> {
        let amount = |v: f64| v.is_finite() && v >= 0.0;
        let share = |v: f64| (0.0..=1.0).contains(&v);
        if let Some(r) = self.requests().iter().find(|r| !amount(r.best) || r.gender > 2 || r.age > 9) {
            return Err(format!("request {} holds impossible values", r.request_id));
        }
        let entries = self.all_entries().iter().map(|e| (e.ecpm, e.pctr, e.boost));
        let mut all = entries.chain(self.all_auctions().iter().map(|a| (a.ecpm, a.pctr, a.boost)));
        if !all.all(|(ecpm, pctr, boost)| amount(ecpm) && share(pctr) && amount(boost)) {
            return Err("an entry holds impossible values".into());
        }
        let sound = |c: &Contract| {
            (0.0..=MAX_PENALTY).contains(&c.penalty)
                && (0.0..=MAX_CLICK_VALUE).contains(&c.click_value)
                && c.required.max(c.cap) <= MAX_IMPRESSIONS
                && [Some(c.rate), Some(c.mean_pctr), c.theta, c.pctr].into_iter().flatten().all(share)
        };
        match self.tail.contracts.iter().find(|c| !sound(c)) {
            Some(c) => Err(format!("contract {} holds impossible values", c.ad_id)),
            None => Ok(()),
        }
    }

    /// Identifies the inputs and options that this was compiled from.
    pub fn inputs(&self) -> u128 {
        u128::from(self.header.inputs[0]) | u128::from(self.header.inputs[1]) << 64
    }

    /// Identifies the day's traffic by its requests and their auction ads, whatever the directory is called, however its files are
    /// written, whichever contracts it is replayed with and at whichever values; `None` for a day without requests.
    pub fn content(&self) -> Option<String> {
        if self.tail.content.is_some() {
            return self.tail.content.clone();
        }
        if self.requests().is_empty() {
            return None;
        }
        let mut hasher = XxHash3_128::new();
        for r in self.requests() {
            let fields =
                [r.request_id, r.ts_ms, u64::from(r.slot_id) << 32 | u64::from(r.region), u64::from(r.auctions)];
            hasher.write(bytemuck::cast_slice(&fields));
            for a in self.auctions(r) {
                hasher.write(bytemuck::cast_slice(&[a.ad_id, a.ecpm.to_bits()]));
            }
        }
        Some(format!("{:032x}", hasher.finish_128()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the log directory.
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

    /// Whether an importer declared auction ads to be contracts: such contracts are not real.
    pub fn contracts_declared(&self) -> bool {
        self.tail.contracts_declared
    }

    /// All requests in time order.
    pub fn requests(&self) -> &[Request] {
        let at = HEADER;
        bytemuck::cast_slice(&self.map[at..at + self.header.requests as usize * size_of::<Request>()])
    }

    fn all_entries(&self) -> &[Entry] {
        let at = HEADER + self.header.requests as usize * size_of::<Request>();
        bytemuck::cast_slice(&self.map[at..at + self.header.entries as usize * size_of::<Entry>()])
    }

    fn all_auctions(&self) -> &[Auction] {
        let end = self.map.len() - self.header.tail_bytes as usize;
        let at = end - self.header.auctions as usize * size_of::<Auction>();
        bytemuck::cast_slice(&self.map[at..end])
    }

    /// The contract entries of a request.
    pub fn entries(&self, request: &Request) -> &[Entry] {
        let at = request.entries_at as usize;
        &self.all_entries()[at..at + request.entries as usize]
    }

    /// The auction entries of a request, best score first.
    pub fn auctions(&self, request: &Request) -> &[Auction] {
        let at = request.auctions_at as usize;
        &self.all_auctions()[at..at + request.auctions as usize]
    }

    /// The most contract entries that any request carries.
    pub fn widest(&self) -> usize {
        self.requests().iter().map(|r| r.entries as usize).max().unwrap_or(0)
    }

    /// `S = sum penalty * owed`, minor units.
    pub fn stake(&self) -> f64 {
        self.contracts().iter().map(|c| c.penalty * c.owed() as f64).sum()
    }
}
