//! The counts that a check needs of all requests, from one pass that is shared out among the cores.

use std::collections::{BTreeSet, HashSet};

use foldhash::fast::RandomState;
use rayon::prelude::*;

use crate::log::CompiledLog;
use crate::log::records::BLOCK;
use crate::log::targeting::TargetingIndex;

/// Requests per parallel task: whole blocks.
const PIECE: usize = 16 * BLOCK;
const HOUR_MS: u64 = 3_600_000;

/// Counts of a day's requests. Hours are local.
#[derive(Debug, Clone)]
pub struct Census {
    /// Requests by hour; a day may have 25 hours.
    pub hours: [u64; 25],
    /// Requests on which nothing may be shown.
    pub unfillable: u64,
    /// By contract and hour: requests that its targeting matches within its flight.
    pub targeted: Vec<[u64; 24]>,
    /// By contract and hour: requests in whose queue it may be shown.
    pub present: Vec<[u64; 24]>,
    /// Ids of contracts that are auction ads in queues as well.
    pub both_types: BTreeSet<u64>,
}

impl Census {
    pub fn of(log: &CompiledLog) -> Self {
        let contracts = log.contracts();
        let wanting = TargetingIndex::new(contracts.iter().map(|c| &c.targeting));
        let ids: HashSet<u64, RandomState> = contracts.iter().map(|c| c.ad_id).collect();
        let rows = log.requests().len();
        let pieces = (0..rows.div_ceil(PIECE)).into_par_iter();
        let counted = pieces.fold(
            || Self::none(contracts.len()),
            |mut census, piece| {
                crate::cancel::point();
                for r in log.requests().range(piece * PIECE..rows.min((piece + 1) * PIECE)) {
                    let hour = (r.ts_ms - log.day().start_ms) / HOUR_MS;
                    census.hours[hour.min(24) as usize] += 1;
                    let hour = hour.min(23) as usize;
                    for j in wanting.matching(r.slot_id, r.region, r.gender, r.age) {
                        let flight = contracts[j].start_ms..contracts[j].end_ms;
                        census.targeted[j][hour] += u64::from(flight.contains(&r.ts_ms));
                    }
                    let (entries, auctions) = (log.entries(&r), log.auctions(&r));
                    census.unfillable += u64::from(entries.is_empty() && auctions.is_empty());
                    entries.iter().for_each(|e| census.present[e.contract as usize][hour] += 1);
                    census.both_types.extend(auctions.iter().map(|a| a.ad_id).filter(|id| ids.contains(id)));
                }
                census
            },
        );
        counted.reduce(|| Self::none(contracts.len()), Self::merge)
    }

    fn none(contracts: usize) -> Self {
        let by_hour = vec![[0; 24]; contracts];
        Self { hours: [0; 25], unfillable: 0, targeted: by_hour.clone(), present: by_hour, both_types: BTreeSet::new() }
    }

    fn merge(mut self, other: Self) -> Self {
        let add = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(sum, n)| *sum += n);
        add(&mut self.hours, &other.hours);
        self.unfillable += other.unfillable;
        add(self.targeted.as_flattened_mut(), other.targeted.as_flattened());
        add(self.present.as_flattened_mut(), other.present.as_flattened());
        self.both_types.extend(other.both_types);
        self
    }
}
