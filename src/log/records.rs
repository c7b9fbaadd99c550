//! The records of a compiled log: a request, its entries, and the header of the file.
//!
//! They have a file of their own because both the layout of blocks and the log that is made of them need them.

use bytemuck::{Pod, Zeroable};

use super::schema::TrackRow;

/// Number of requests per block.
pub const BLOCK: usize = 4096;

/// One request; its entries are ranges of the two groups of entries of its block.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Request {
    pub request_id: u64,
    pub ts_ms: u64,
    /// Highest worth among the auction entries that may be shown, minor units per impression; 0 if there are none.
    pub best: f64,
    pub(super) user_id: u64,
    /// Number of the request's block, and the numbers of its first entries within that block.
    pub(super) block: u32,
    pub(super) entries_at: u32,
    pub(super) auctions_at: u32,
    pub slot_id: u32,
    pub region: u32,
    pub(super) entries: u16,
    pub(super) auctions: u16,
    pub gender: u8,
    pub age: u8,
    pub(super) has_user: u8,
    pub(super) padding: [u8; 5],
}

impl Request {
    /// Builds a request from a row of a stream, without its entries.
    pub fn of_row(row: &TrackRow) -> Self {
        Self {
            request_id: row.request_id,
            ts_ms: row.ts_ms,
            slot_id: row.slot_id,
            region: row.region,
            user_id: row.user_id.unwrap_or(0),
            gender: row.gender,
            age: row.age,
            has_user: u8::from(row.user_id.is_some()),
            ..Self::zeroed()
        }
    }

    /// Returns the user id, if the log has one.
    pub fn user(&self) -> Option<u64> {
        (self.has_user != 0).then_some(self.user_id)
    }
}

/// A contract entry that may be shown by the static rules: filter 0, row in control, in flight, targeting matches.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct ContractEntry {
    pub pctr: f64,
    pub ecpm: f64,
    pub boost: f64,
    /// Index into [`super::CompiledLog::contracts`].
    pub contract: u32,
    pub(super) padding: u32,
}

/// An auction entry that may be shown (filter 0). The entries of a request are sorted by score: `ecpm * boost` descending, then
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
    /// Returns the worth, minor units per impression.
    pub fn worth(&self) -> f64 {
        self.ecpm / 1000.0
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    /// Number of fields of a block.
    pub fields: u32,
    pub inputs: [u64; 2],
    /// Checksum of the index and the tail.
    pub checksum: u64,
    pub total_bytes: u64,
    pub requests: u64,
    pub entries: u64,
    pub auctions: u64,
    pub tail_bytes: u64,
    pub blocks: u64,
    pub reserved: [u64; 4],
}

pub(super) const HEADER: usize = size_of::<Header>();
