//! Declares auction ads of a log to be contracts.
//!
//! The Tencent log has no contracts but real queues, so some of its ads are declared to be contracts. They must be ads that pay
//! per impression. The log does not name the billing type, but its numbers show it: `total eCPM = bid + quality` holds for an
//! ad that bids per thousand impressions (CPM) and `total = bid x pctr per mille + quality` for one that bids per click (CPC).
//! Either holds up to the rounding of the logged decimals, and sometimes both do, so an ad gets the type of the majority of its
//! entries.

use std::collections::{HashMap, HashSet};

use super::super::directory::Day;
use super::super::report::{Flaw, within};
use crate::log::schema::{AdType, ControlRow, DAY_MS, TrackRow};
use crate::log::targeting::Targeting;

/// Penalty of a declared contract, as a multiple of the auction worth of its impressions.
const PENALTY_FACTOR: f64 = 1.5;

/// The numbers of one logged queue entry that show its billing type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Price {
    /// Bid, minor units.
    pub bid: f64,
    pub pctr_per_mille: f64,
    pub quality: f64,
    pub total: f64,
}

impl Price {
    /// Parses the price of a raw entry from its columns.
    ///
    /// # Errors
    /// The column that is not a finite number or out of range.
    pub fn parse(bid: &str, pctr: &str, quality: &str, total: &str) -> Result<Self, Flaw> {
        Ok(Self {
            bid: within("bid", bid, 0.0, f64::MAX)?,
            pctr_per_mille: within("pctr", pctr, 0.0, f64::MAX)?,
            quality: within("quality_ecpm", quality, f64::MIN, f64::MAX)?,
            total: within("total_ecpm", total, f64::MIN, f64::MAX)?,
        })
    }
}

/// Returns the billing type that the identities indicate: +1 CPM, -1 CPC, 0 neither or both.
fn vote(p: Price) -> i64 {
    let cpm = (p.bid + p.quality - p.total).abs();
    let cpc = (p.bid * p.pctr_per_mille + p.quality - p.total).abs();
    // pctr is logged with three decimals of a per mille, the eCPMs with two or three.
    let tolerance = 0.1 + 0.0005 * p.bid.abs();
    if cpm.min(cpc) > tolerance {
        0
    } else if cpm < cpc {
        1
    } else if cpc < cpm {
        -1
    } else {
        0
    }
}

/// Billing statistics of each ad.
#[derive(Debug, Default)]
pub(super) struct Billing(HashMap<u64, Record>);

#[derive(Debug, Default)]
struct Record {
    entries: u64,
    ecpm: f64,
    votes: i64,
}

impl Billing {
    pub fn add(&mut self, ad_id: u64, price: Price, ecpm: f64) {
        let record = self.0.entry(ad_id).or_default();
        record.entries += 1;
        record.ecpm += ecpm;
        record.votes += vote(price);
    }

    /// Returns the `count` CPM-billed ads with the most entries; ties go to the lower id.
    pub fn declare(&self, count: usize) -> Vec<Declared> {
        let mut cpm: Vec<_> = self.0.iter().filter(|(_, r)| r.votes > 0).collect();
        cpm.sort_by_key(|&(&ad_id, r)| (std::cmp::Reverse(r.entries), ad_id));
        cpm.truncate(count);
        cpm.into_iter()
            .map(|(&ad_id, r)| Declared { ad_id, penalty: PENALTY_FACTOR * (r.ecpm / r.entries as f64) / 1_000.0 })
            .collect()
    }
}

/// An ad declared to be a contract; its penalty comes from the whole log, whichever part it is owed in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Declared {
    pub ad_id: u64,
    pub penalty: f64,
}

/// Numbers of requests with an ad.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Supply {
    pub appears: u64,
    pub may_show: u64,
}

/// Counts the requests that carry `ad_id`, and those that may show it.
pub(super) fn supply(rows: &[TrackRow], ad_id: u64) -> Supply {
    let mut supply = Supply::default();
    for entry in rows.iter().flat_map(|r| &r.queue).filter(|e| e.ad_id == ad_id) {
        supply.appears += 1;
        supply.may_show += u64::from(entry.filter == 0);
    }
    supply
}

/// Builds the control row of a declared contract that is owed `fill` of the requests that may show it.
pub(super) fn control_row(ad: Declared, supply: Supply, fill: f64, day: Day) -> ControlRow {
    let required = ((fill * supply.may_show as f64).round() as u64).max(1);
    ControlRow {
        ad_id: ad.ad_id,
        required,
        cap: required,
        delivered0: 0,
        start_ms: day.start_ms(),
        end_ms: day.start_ms() + DAY_MS,
        targeting: Targeting::default(),
        theta: None,
        rate: 1.0,
        penalty: ad.penalty,
        click_value: 0.0,
        pctr: None,
    }
}

/// Turns every entry of the ads in `contracts` into a contract entry; returns the ads that were found.
pub(super) fn mark_contracts(rows: &mut [TrackRow], contracts: &HashSet<u64>) -> HashSet<u64> {
    let mut found = HashSet::new();
    for entry in rows.iter_mut().flat_map(|r| &mut r.queue) {
        if contracts.contains(&entry.ad_id) {
            entry.ad_type = AdType::Contract;
            found.insert(entry.ad_id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(bid: f64, pctr_per_mille: f64, quality: f64, total: f64) -> Price {
        Price { bid, pctr_per_mille, quality, total }
    }

    #[test]
    fn an_entry_votes_for_the_identity_that_holds() {
        assert_eq!(vote(price(2199.0, 5.057, 101.14, 2300.14)), 1);
        assert_eq!(vote(price(137.0, 19.112, 382.24, 3000.584)), -1);
        assert_eq!(vote(price(15.0, 1.0, 20.0, 35.0)), 0, "both hold");
        assert_eq!(vote(price(61.0, 136.8, 1382.0, 5000.0)), 0, "neither holds");
    }

    #[test]
    fn the_most_frequent_cpm_ads_are_declared_and_ties_go_to_the_lower_id() {
        let mut billing = Billing::default();
        let cpm = |total: f64| price(total - 10.0, 2.0, 10.0, total);
        for ad in [30, 20, 20, 10] {
            billing.add(ad, cpm(400.0), 400.0);
        }
        billing.add(20, cpm(1_000.0), 1_000.0);
        for _ in 0..9 {
            billing.add(40, price(50.0, 2.0, 10.0, 110.0), 110.0); // CPC: frequent, but not eligible
        }
        // One of three entries of ad 10 looks like CPC because of rounding; the others outvote it.
        billing.add(10, price(100.0, 1.0005, 10.0, 110.05), 110.05);
        billing.add(10, cpm(400.0), 400.0);
        let declared = billing.declare(2);
        assert_eq!(declared.iter().map(|d| d.ad_id).collect::<Vec<_>>(), [10, 20]);
        assert!((declared[1].penalty - 1.5 * 600.0 / 1_000.0).abs() < 1e-12);
        assert_eq!(billing.declare(9).len(), 3);
    }

    #[test]
    fn demand_is_a_share_of_the_requests_that_may_show_it_and_at_least_one() {
        let day = Day { number: 18_010, utc_offset_minutes: 480 };
        let ad = Declared { ad_id: 7, penalty: 0.5 };
        let demand = |may_show| {
            let supply = Supply { appears: 100, may_show };
            control_row(ad, supply, 0.3, day).required
        };
        assert_eq!([demand(100), demand(5), demand(1), demand(0)], [30, 2, 1, 1]);
    }
}
