//! Requests with their queues in memory: the sorter's buffer, the block that the writer fills, a block that several policies replay.

use super::records::{Auction, ContractEntry, Request};

/// Requests with their entries; offsets count from the first entry of the buffer.
#[derive(Debug, Default)]
pub struct QueueBuffer {
    pub requests: Vec<Request>,
    pub entries: Vec<ContractEntry>,
    pub auctions: Vec<Auction>,
}

/// A request with its entries.
pub type Queue<'a> = (&'a Request, &'a [ContractEntry], &'a [Auction]);

impl QueueBuffer {
    pub fn push(&mut self, (request, entries, auctions): Queue) {
        self.requests.push(Request {
            entries_at: self.entries.len() as u32,
            auctions_at: self.auctions.len() as u32,
            entries: entries.len() as u16,
            auctions: auctions.len() as u16,
            ..*request
        });
        self.entries.extend_from_slice(entries);
        self.auctions.extend_from_slice(auctions);
    }

    pub fn get(&self, i: usize) -> Queue<'_> {
        let r = &self.requests[i];
        let (e, a) = (r.entries_at as usize, r.auctions_at as usize);
        (r, &self.entries[e..e + usize::from(r.entries)], &self.auctions[a..a + usize::from(r.auctions)])
    }

    /// Returns whether the entries of every request are there.
    pub fn is_whole(&self) -> bool {
        let within = |at: u32, n: u16, held: usize| at as usize + usize::from(n) <= held;
        self.requests.iter().all(|r| {
            within(r.entries_at, r.entries, self.entries.len())
                && within(r.auctions_at, r.auctions, self.auctions.len())
        })
    }

    pub fn bytes(&self) -> usize {
        size_of_val(&*self.requests) + size_of_val(&*self.entries) + size_of_val(&*self.auctions)
    }

    /// Returns the indices of the requests in time order.
    pub fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.requests.len() as u32).collect();
        if !self.requests.is_sorted_by_key(|r| r.ts_ms) {
            order.sort_by_key(|&i| self.requests[i as usize].ts_ms);
        }
        order
    }

    pub fn clear(&mut self) {
        self.requests.clear();
        self.entries.clear();
        self.auctions.clear();
    }
}
