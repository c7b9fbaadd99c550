//! A request as the engine receives it, from a compiled log or from a live stream.

use crate::log::{Auction, ContractEntry, Entries};

/// A request without its queue.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Visit {
    pub request_id: u64,
    /// Milliseconds from midnight.
    pub offset: u64,
    pub slot_id: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    /// Best worth among the auction entries that may be shown, minor units per impression; 0 if none.
    pub best: f64,
    /// Indices of its slot and region in the vocabulary.
    pub place: [u16; 2],
}

/// A request with the entries of its queue that the log's static rules allow.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    pub visit: Visit,
    /// Contract entries, each of a contract of the day.
    pub entries: Entries<'a, ContractEntry>,
    /// Auction entries, best score first.
    pub auctions: Entries<'a, Auction>,
}
