//! A sample of the training days' requests with their queues, as the forecast of another day's requests.
//!
//! Bounded in size, because every plan and policy file contains it. Stratified in time: one request, drawn by hash, from each
//! of many stretches with equal numbers of requests.

use std::collections::BTreeMap;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::log::targeting::Targeting;
use crate::log::{CompiledLog, draw};

use super::amount::is_amount;
use super::forecast::{GRID, Kind, cell};

/// Maximum number of requests and of contract entries in a sample, over all of its days.
const MOST_REQUESTS: usize = 18_000;
const MOST_ENTRIES: usize = 180_000;
const SEED: u64 = 0x5A3B_1E00;

/// Sampled requests, a list for each training day.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Kinds of requests that rows refer to.
    pub kinds: Vec<Kind>,
    pub days: Vec<SampledDay>,
}

/// Sample of one training day, stored by column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampledDay {
    /// Contracts that its queues could contain.
    pub contracts: Vec<SampledContract>,
    /// Per request, in time order: the cell of the forecast's grid, and the index of the kind.
    pub cells: Vec<u8>,
    pub kinds: Vec<u32>,
    /// The best auction worth, minor units per impression.
    pub best: Vec<f32>,
    /// Number of contract entries of the request.
    pub entries: Vec<u16>,
    /// Per entry, request by request: index into `contracts`, ascending, and predicted click probability.
    pub contract: Vec<u32>,
    pub pctr: Vec<f32>,
}

/// A contract on a sampled day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampledContract {
    pub ad_id: u64,
    /// Flight, cells of the forecast's grid that it covers completely.
    pub cells: (u8, u8),
    pub targeting: Targeting,
}

/// One sampled request.
#[derive(Debug, Clone, Copy)]
pub struct SampledRow<'a> {
    pub cell: usize,
    pub kind: Kind,
    pub best: f64,
    /// Indices of the day's contracts, ascending, and their click probabilities.
    pub contracts: &'a [u32],
    pub pctr: &'a [f32],
}

impl Sample {
    /// Draws a sample from logged days; the same days give the same sample.
    pub fn of_days(logs: &[&CompiledLog]) -> Self {
        let mut kinds = BTreeMap::<Kind, u32>::new();
        let share = |most: usize| most / logs.len().max(1);
        let mut days = Vec::new();
        for log in logs {
            let requests = log.requests();
            let mean = requests.iter().map(|r| log.entries(&r).len()).sum::<usize>() as f64 / requests.len() as f64;
            let wanted = share(MOST_REQUESTS).min((share(MOST_ENTRIES) as f64 / mean.max(1e-9)) as usize).max(1);
            let strata = requests.len().min(wanted);
            let mut day = SampledDay::new(log, strata);
            let picks = (0..strata).map(|i| {
                let (from, to) = (i * requests.len() / strata, (i + 1) * requests.len() / strata);
                from + (draw::hash64(SEED, days.len() as u64, i as u64) % (to - from) as u64) as usize
            });
            for r in requests.ascending(picks) {
                let next = kinds.len() as u32;
                let kind = *kinds.entry((r.slot_id, r.region, r.gender, r.age)).or_insert(next);
                day.push(log, &r, kind);
            }
            days.push(day);
        }
        let mut by_index: Vec<(u32, Kind)> = kinds.into_iter().map(|(kind, i)| (i, kind)).collect();
        by_index.sort_unstable();
        Self { kinds: by_index.into_iter().map(|(_, kind)| kind).collect(), days }
    }

    /// Returns the sample without one of its days, for judging on that day; the whole sample if there is no other.
    pub fn without(&self, day: usize) -> Self {
        let mut rest = self.clone();
        if rest.days.len() > 1 {
            rest.days.remove(day);
        }
        rest
    }

    /// Returns the sample thinned evenly to about `requests` requests, because solving it is cheaper; for many episodes.
    pub fn at_most(&self, requests: usize) -> Self {
        let held: usize = self.days.iter().map(|day| day.cells.len()).sum();
        let every = held.div_ceil(requests.max(1)).max(1);
        let days = self.days.iter().map(|day| {
            let mut kept = SampledDay { contracts: day.contracts.clone(), ..SampledDay::default() };
            let mut at = 0;
            for (i, &entries) in day.entries.iter().enumerate() {
                let range = at..at + entries as usize;
                at = range.end;
                if i % every == every / 2 {
                    kept.cells.push(day.cells[i]);
                    kept.kinds.push(day.kinds[i]);
                    kept.best.push(day.best[i]);
                    kept.entries.push(entries);
                    kept.contract.extend_from_slice(&day.contract[range.clone()]);
                    kept.pctr.extend_from_slice(&day.pctr[range]);
                }
            }
            kept
        });
        Self { kinds: self.kinds.clone(), days: days.collect() }
    }

    /// Returns the requests of one of its days.
    pub fn rows<'a>(&'a self, day: &'a SampledDay) -> impl Iterator<Item = SampledRow<'a>> {
        let mut at = 0;
        (0..day.cells.len()).map(move |i| {
            let range = at..at + day.entries[i] as usize;
            at = range.end;
            SampledRow {
                cell: day.cells[i].into(),
                kind: self.kinds[day.kinds[i] as usize],
                best: day.best[i].into(),
                contracts: &day.contract[range.clone()],
                pctr: &day.pctr[range],
            }
        })
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        let sound = |day: &SampledDay| {
            let rows = day.cells.len();
            rows == day.kinds.len()
                && rows == day.best.len()
                && rows == day.entries.len()
                && day.entries.iter().map(|&n| n as usize).sum::<usize>() == day.contract.len()
                && day.contract.len() == day.pctr.len()
                && day.cells.iter().all(|&c| (c as usize) < GRID)
                && day.kinds.iter().all(|&k| (k as usize) < self.kinds.len())
                && day.contract.iter().all(|&c| (c as usize) < day.contracts.len())
                && day.best.iter().chain(&day.pctr).all(|&v| is_amount(v.into()))
        };
        if !self.days.iter().all(sound) {
            bail!("the plan's sample of requests is malformed; make the plan again");
        }
        Ok(())
    }
}

impl SampledDay {
    fn new(log: &CompiledLog, rows: usize) -> Self {
        let start = log.day().start_ms;
        let contracts = log.contracts().iter().map(|c| SampledContract {
            ad_id: c.ad_id,
            cells: covered(c.start_ms.saturating_sub(start), c.end_ms.saturating_sub(start)),
            targeting: c.targeting.clone(),
        });
        Self {
            contracts: contracts.collect(),
            cells: Vec::with_capacity(rows),
            kinds: Vec::with_capacity(rows),
            best: Vec::with_capacity(rows),
            entries: Vec::with_capacity(rows),
            contract: Vec::new(),
            pctr: Vec::new(),
        }
    }

    fn push(&mut self, log: &CompiledLog, r: &crate::log::Request, kind: u32) {
        self.cells.push(cell(r.ts_ms - log.day().start_ms) as u8);
        self.kinds.push(kind);
        self.best.push(short(r.best));
        let mut entries: Vec<(u32, f32)> = log.entries(r).iter().map(|e| (e.contract, short(e.pctr))).collect();
        entries.sort_unstable_by_key(|(contract, _)| *contract);
        self.entries.push(entries.len() as u16);
        self.contract.extend(entries.iter().map(|(contract, _)| contract));
        self.pctr.extend(entries.iter().map(|(_, pctr)| pctr));
    }
}

/// Returns the cells `first..end` that lie completely within `start..end`, milliseconds from midnight.
fn covered(start: u64, end: u64) -> (u8, u8) {
    let width = crate::log::schema::DAY_MS / GRID as u64;
    let limit = |cells: u64| cells.min(GRID as u64) as u8;
    (limit(start.div_ceil(width)), limit(end / width))
}

/// Rounds to four significant digits: enough for a sample, and short as text.
fn short(value: f64) -> f32 {
    // Below this the scale would overflow.
    if value.abs() < 1e-30 {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    ((value * scale).round() / scale) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_sample_keeps_rows_whole() {
        let mut day = SampledDay::default();
        for i in 0..100u32 {
            day.cells.push((i % 96) as u8);
            day.kinds.push(0);
            day.best.push(i as f32);
            day.entries.push((i % 3) as u16);
            for e in 0..i % 3 {
                day.contract.push(i * 10 + e);
                day.pctr.push(i as f32);
            }
        }
        let sample = Sample { kinds: vec![(1, 2, 0, 0)], days: vec![day] };
        for most in [1, 7, 50, 99, 100, 1000] {
            let less = sample.at_most(most);
            assert!(less.days[0].cells.len() <= most && !less.days[0].cells.is_empty());
            for row in less.rows(&less.days[0]) {
                let i = row.best as u32;
                assert_eq!(row.contracts, (0..i % 3).map(|e| i * 10 + e).collect::<Vec<_>>());
            }
        }
        assert_eq!(sample.at_most(100), sample);
    }

    #[test]
    fn flights_cover_whole_cells_only() {
        let quarter = 900_000;
        assert_eq!(covered(0, 96 * quarter), (0, 96));
        assert_eq!(covered(1, 3 * quarter - 1), (1, 2));
        assert_eq!(covered(2 * quarter, 2 * quarter + 5), (2, 2));
        assert_eq!(covered(0, u64::MAX), (0, 96));
    }

    #[test]
    fn four_digits_remain() {
        for (value, text) in [(0.0, "0"), (0.0123456, "0.01235"), (12345.6, "12350"), (2.0, "2"), (9.9999, "10")] {
            assert_eq!(short(value).to_string(), text);
        }
        assert!((f64::from(short(2e-30)) - 2e-30).abs() < 1e-33 && short(1e-310) == 0.0);
    }
}
