//! Parses one line of the track log and resolves the oddities of its queue.

use std::collections::HashSet;

use super::super::report::{Flaw, number};
use super::billing::Price;
use crate::log::schema::{AdType, MAX_ECPM, MAX_QUEUE, QueueEntry, TrackRow};

/// Number of decimals of a pctr that identifies the injected test ad: ranked entries have three, the test ad a dozen or more.
const LONG_DECIMALS: usize = 6;

/// One line of the log.
pub(super) struct Parsed {
    pub row: TrackRow,
    /// Price of each entry of the queue.
    pub prices: Vec<Price>,
    /// Changes made to the row.
    pub changes: Vec<Flaw>,
}

impl Parsed {
    pub fn from_line(bytes: &[u8]) -> Result<Self, Flaw> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| Flaw::new("row", String::from_utf8_lossy(bytes), "not_utf8"))?
            .trim_end_matches(['\n', '\r']);
        let fields: Vec<&str> = text.split('\t').collect();
        let &[request_id, time, user, slot, queue] = fields.as_slice() else {
            return Err(Flaw::new("row", text, "not_5_columns"));
        };
        let request_id = number("request_id", request_id)?;
        // A time after the year 2100 is not in seconds but in a finer unit.
        let seconds: u64 = number("time", time)?;
        if seconds > 4_102_444_800 {
            return Err(Flaw::new("time", time, "out_of_range"));
        }
        let slot_id = number("ad_position", slot)?;
        let user_id = Some(number("user", user)?);
        let (queue, prices, changes) = parse_queue(queue)?;
        Ok(Self {
            row: TrackRow { request_id, ts_ms: seconds * 1_000, slot_id, region: 0, gender: 0, age: 0, user_id, queue },
            prices,
            changes,
        })
    }
}

/// A queue without its test ad and repetitions, the price of each entry, and the changes made.
type Queue = (Vec<QueueEntry>, Vec<Price>, Vec<Flaw>);

fn parse_queue(text: &str) -> Result<Queue, Flaw> {
    let mut entries = Vec::new();
    for entry in text.split(';') {
        let fields: Vec<&str> = entry.split(',').collect();
        let &[ad_id, bid, pctr, quality, total, filter] = fields.as_slice() else {
            return Err(Flaw::new("queue", entry, "not_6_parts_in_entry"));
        };
        let price = Price::parse(bid, pctr, quality, total)?;
        if price.total > MAX_ECPM {
            return Err(Flaw::new("total_ecpm", total, "out_of_range"));
        }
        let ad_id: u64 = number("ad_id", ad_id)?;
        let filter: u64 = number("filter", filter)?;
        let long = pctr.split_once('.').is_some_and(|(_, d)| d.len() > LONG_DECIMALS);
        entries.push((entry, ad_id, filter, long, price));
    }

    let mut changes = Vec::new();
    if let Some(&(entry, _, _, long, price)) = entries.last() {
        let before = entries.len().checked_sub(2).map(|i| entries[i].4.total);
        if long || before.is_some_and(|before| price.total > before) {
            entries.pop();
            changes.push(Flaw::new("queue", entry, "injected_test_ad_dropped"));
        }
    }

    let mut ads = HashSet::with_capacity(entries.len());
    let mut queue = Vec::with_capacity(entries.len());
    let mut prices = Vec::with_capacity(entries.len());
    for (entry, ad_id, filter, _, price) in entries {
        if !ads.insert(ad_id) {
            changes.push(Flaw::new("queue", entry, "repeated_ad_dropped"));
            continue;
        }
        if price.pctr_per_mille > 1_000.0 {
            changes.push(Flaw::new("pctr", entry, "pctr_above_1000_per_mille_set_to_1"));
        }
        if price.total < 0.0 {
            changes.push(Flaw::new("total_ecpm", entry, "negative_total_set_to_0"));
        }
        queue.push(QueueEntry {
            ad_id,
            ad_type: AdType::Auction,
            ecpm: price.total.max(0.0),
            pctr: (price.pctr_per_mille / 1_000.0).min(1.0),
            filter,
            boost: 1.0,
        });
        prices.push(price);
    }
    if queue.is_empty() {
        return Err(Flaw::new("queue", text, "empty_queue"));
    }
    if queue.len() > MAX_QUEUE {
        return Err(Flaw::new("queue", queue.len().to_string(), "queue_too_long"));
    }
    Ok((queue, prices, changes))
}
