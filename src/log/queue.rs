//! The entries of a request's queue that may be shown by the static rules: filter, control row, flight, targeting.
//!
//! Compiled logs and live streams share this implementation.

use std::collections::HashMap;

use super::error::BadValue;
use super::records::{Auction, ContractEntry, Request};
use super::schema::{AdType, ControlRow, TrackRow};
use super::targeting::TargetingIndex;
use foldhash::fast::RandomState;

/// The contracts of a day, looked up by ad id.
#[derive(Debug, Clone)]
pub struct QueueRules {
    contracts: Vec<ControlRow>,
    index: HashMap<u64, u32, RandomState>,
    targeting: TargetingIndex,
    complete: bool,
}

/// The entries of one queue that may be shown.
#[derive(Debug, Clone, Default)]
pub struct Showable {
    pub entries: Vec<ContractEntry>,
    /// Best score first: `ecpm * boost`, then `ecpm`, both descending, then `ad_id` ascending.
    pub auctions: Vec<Auction>,
    /// Highest worth among the auction entries, minor units per impression; 0 if there are none.
    pub best: f64,
    /// Number of entries added by completing the queue.
    pub completed: u64,
}

impl QueueRules {
    /// Builds the rules from a day's contracts; `complete` adds to each queue the eligible contracts missing from it.
    pub fn new(contracts: Vec<ControlRow>, complete: bool) -> Self {
        let index = (0u32..).zip(&contracts).map(|(i, c)| (c.ad_id, i)).collect();
        let targeting = TargetingIndex::new(contracts.iter().map(|c| &c.targeting));
        Self { contracts, index, targeting, complete }
    }

    pub fn contracts(&self) -> &[ControlRow] {
        &self.contracts
    }

    pub fn into_contracts(self) -> Vec<ControlRow> {
        self.contracts
    }

    /// Returns the index of a contract in the control table.
    pub fn contract(&self, ad_id: u64) -> Option<u32> {
        self.index.get(&ad_id).copied()
    }

    /// Checks that every contract entry has a control row.
    ///
    /// # Errors
    /// The first contract entry without one.
    pub fn check(&self, row: &TrackRow) -> Result<(), BadValue> {
        match row.queue.iter().find(|e| e.ad_type == AdType::Contract && !self.index.contains_key(&e.ad_id)) {
            Some(entry) => Err(BadValue::new(
                "queue",
                &entry.ad_id.to_string(),
                "unknown_contract",
                "a contract entry without a row in control",
            )),
            None => Ok(()),
        }
    }

    /// Returns whether the flight and targeting of a contract match a request.
    pub fn may_show(&self, contract: u32, row: &TrackRow) -> bool {
        let c = &self.contracts[contract as usize];
        (c.start_ms..c.end_ms).contains(&row.ts_ms) && c.targeting.matches(row.slot_id, row.region, row.gender, row.age)
    }

    /// Returns the indices of the contracts whose flight and targeting match a compiled request, ascending.
    pub(super) fn wanting(&self, r: &Request) -> impl Iterator<Item = usize> + '_ {
        let ts_ms = r.ts_ms;
        let matching = self.targeting.matching(r.slot_id, r.region, r.gender, r.age);
        matching.filter(move |&i| (self.contracts[i].start_ms..self.contracts[i].end_ms).contains(&ts_ms))
    }

    /// Selects the entries that may be shown on a request that passed [`QueueRules::check`].
    pub fn sort(&self, row: &TrackRow, out: &mut Showable) {
        let Showable { entries, auctions, best, completed } = out;
        entries.clear();
        auctions.clear();
        *completed = 0;
        for e in row.queue.iter().filter(|e| e.filter == 0) {
            match e.ad_type {
                AdType::Auction => {
                    auctions.push(Auction { ad_id: e.ad_id, ecpm: e.ecpm, pctr: e.pctr, boost: e.boost });
                }
                AdType::Contract => {
                    if let Some(contract) = self.contract(e.ad_id).filter(|&c| self.may_show(c, row)) {
                        entries.push(ContractEntry {
                            pctr: e.pctr,
                            ecpm: e.ecpm,
                            boost: e.boost,
                            contract,
                            padding: 0,
                        });
                    }
                }
            }
        }
        if self.complete {
            for i in self.wanting(&Request::of_row(row)) {
                let c = &self.contracts[i];
                if row.queue.iter().all(|e| e.ad_id != c.ad_id) {
                    *completed += 1;
                    let pctr = c.pctr.unwrap_or(0.0);
                    let ecpm = c.click_value * pctr * 1000.0;
                    entries.push(ContractEntry { pctr, ecpm, boost: 1.0, contract: i as u32, padding: 0 });
                }
            }
        }
        sort_by_score(auctions);
        *best = auctions.iter().map(Auction::worth).fold(0.0, f64::max);
    }
}

/// Sorts auction ads into the order of a compiled log.
pub(super) fn sort_by_score(auctions: &mut [Auction]) {
    auctions.sort_by(|a, b| {
        (b.ecpm * b.boost).total_cmp(&(a.ecpm * a.boost)).then(b.ecpm.total_cmp(&a.ecpm)).then(a.ad_id.cmp(&b.ad_id))
    });
}
