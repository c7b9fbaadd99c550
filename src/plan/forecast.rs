//! Forecast traffic, and each contract's supply in it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::log::compiled::Contract;
use crate::log::schema::{DAY_MS, InventoryRow};
use crate::log::targeting::Targeting;
use crate::log::{self, CompiledLog, inventory, table};

use super::amount::is_amount;

/// Points of a day curve: quarters of an hour.
pub const GRID: usize = 96;
pub(super) const CELL_MS: f64 = DAY_MS as f64 / GRID as f64;

/// Slot, region, gender and age of a request.
pub type Kind = (u32, u32, u8, u8);

/// Forecast page views of one kind of request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub slot_id: u32,
    pub region: u32,
    pub gender: u8,
    pub age: u8,
    /// Page views of the day.
    pub pv: f64,
    /// Index into [`Forecast::curves`].
    pub curve: usize,
    /// Contracts that it may serve; empty = derived from targeting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ad_ids: Vec<u64>,
}

impl Node {
    /// Whether the node may serve a contract: one that it lists, or one that targets it if it lists none.
    pub fn serves(&self, ad_id: u64, targeting: &Targeting) -> bool {
        if self.ad_ids.is_empty() {
            targeting.matches(self.slot_id, self.region, self.gender, self.age)
        } else {
            self.ad_ids.contains(&ad_id)
        }
    }
}

/// Forecast traffic of a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forecast {
    pub nodes: Vec<Node>,
    /// Shares of [`GRID`] quarter hours, each summing to 1.
    pub curves: Vec<Vec<f64>>,
}

/// Cumulative forecast supply over the day: `cumulative[i]` requests before grid point `i`.
#[derive(Debug, Clone, PartialEq)]
pub struct Supply {
    cumulative: Vec<f64>,
}

/// Requests of logged days, by kind and by time of the day.
#[derive(Default)]
pub(super) struct Counted {
    kinds: BTreeMap<Kind, f64>,
    cells: Vec<f64>,
    days: usize,
}

impl Counted {
    /// Counts the requests of a day.
    pub(super) fn of(log: &CompiledLog) -> Self {
        let mut counted = Self { kinds: BTreeMap::new(), cells: vec![0.0; GRID], days: 1 };
        for r in log.requests() {
            *counted.kinds.entry((r.slot_id, r.region, r.gender, r.age)).or_default() += 1.0;
            counted.cells[cell(r.ts_ms - log.day().start_ms)] += 1.0;
        }
        counted
    }

    pub(super) fn sum<'a>(days: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self { cells: vec![0.0; GRID], ..Self::default() };
        for day in days {
            day.kinds.iter().for_each(|(kind, n)| *sum.kinds.entry(*kind).or_default() += n);
            sum.cells.iter_mut().zip(&day.cells).for_each(|(sum, n)| *sum += n);
            sum.days += day.days;
        }
        sum
    }

    /// The mean of the days.
    pub(super) fn forecast(self) -> Forecast {
        let total: f64 = self.cells.iter().sum();
        let curve = self.cells.iter().map(|n| n / total.max(1.0)).collect();
        let days = self.days.max(1) as f64;
        let node = |((slot_id, region, gender, age), n): (Kind, f64)| Node {
            slot_id,
            region,
            gender,
            age,
            pv: n / days,
            curve: 0,
            ad_ids: Vec::new(),
        };
        Forecast { nodes: self.kinds.into_iter().map(node).collect(), curves: vec![curve] }
    }
}

impl Forecast {
    /// Reads the inventory of a log directory; `None` if there is none.
    ///
    /// # Errors
    /// If the inventory is malformed.
    pub fn of_directory(dir: &Path) -> Result<Option<Self>, log::LogError> {
        Ok(match table::find(dir, "inventory")? {
            Some(path) => Some(Self::from_inventory(&inventory::read(&path)?)),
            None => None,
        })
    }

    /// Converts an inventory table. Equal curves are stored once.
    pub fn from_inventory(rows: &[InventoryRow]) -> Self {
        let mut curves = Vec::new();
        let mut known: HashMap<Vec<u64>, usize> = HashMap::new();
        let nodes = rows
            .iter()
            .map(|row| Node {
                slot_id: row.slot_id,
                region: row.region,
                gender: row.gender,
                age: row.age,
                pv: row.pv,
                curve: *known.entry(row.curve.iter().map(|share| share.to_bits()).collect()).or_insert_with(|| {
                    let repeat = GRID / row.curve.len();
                    let shares = row.curve.iter().flat_map(|share| std::iter::repeat_n(share / repeat as f64, repeat));
                    curves.push(shares.collect());
                    curves.len() - 1
                }),
                ad_ids: row.ad_ids.clone(),
            })
            .collect();
        Self { nodes, curves }
    }

    /// Averages logged days: a node for each kind of request seen, one common curve.
    pub fn from_logs(logs: &[&CompiledLog]) -> Self {
        Counted::sum(&logs.iter().map(|log| Counted::of(log)).collect::<Vec<_>>()).forecast()
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.nodes.iter().any(|n| n.curve >= self.curves.len() || !is_amount(n.pv))
            || self.curves.iter().any(|c| c.len() != GRID || !c.iter().all(|&share| is_amount(share)))
        {
            bail!("the forecast is malformed; make the plan again");
        }
        Ok(())
    }

    /// Returns the supply of all requests.
    pub fn traffic(&self) -> Supply {
        let mut cells = vec![0.0; GRID];
        for node in &self.nodes {
            add(&mut cells, node.pv, &self.curves[node.curve]);
        }
        Supply::from_cells(&cells)
    }

    /// Returns the page views of the day by kind of request.
    pub fn by_kind(&self) -> BTreeMap<Kind, f64> {
        let mut kinds = BTreeMap::new();
        for node in &self.nodes {
            *kinds.entry((node.slot_id, node.region, node.gender, node.age)).or_default() += node.pv;
        }
        kinds
    }

    /// Returns the supply of a contract: matching nodes within its flight, times its presence in the queues and its rate.
    pub fn supply(&self, contract: &Contract, day_start_ms: u64, presence: f64) -> Supply {
        let mut cells = vec![0.0; GRID];
        for node in &self.nodes {
            if node.serves(contract.ad_id, &contract.targeting) {
                add(&mut cells, node.pv * presence * contract.rate, &self.curves[node.curve]);
            }
        }
        let start = contract.start_ms.saturating_sub(day_start_ms) as f64 / CELL_MS;
        let end = contract.end_ms.saturating_sub(day_start_ms) as f64 / CELL_MS;
        for (i, supply) in cells.iter_mut().enumerate() {
            let inside = (end.min(i as f64 + 1.0) - start.max(i as f64)).clamp(0.0, 1.0);
            *supply *= inside;
        }
        Supply::from_cells(&cells)
    }
}

/// Returns the cell of the grid that contains a time of the day.
pub fn cell(offset_ms: u64) -> usize {
    ((offset_ms as f64 / CELL_MS) as usize).min(GRID - 1)
}

pub(super) fn add(cells: &mut [f64], pv: f64, curve: &[f64]) {
    for (cell, share) in cells.iter_mut().zip(curve) {
        *cell += pv * share;
    }
}

/// A time of the day on the grid, computed once for look-ups in many curves.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    cell: usize,
    within: f64,
}

impl Time {
    #[inline]
    pub fn at(offset_ms: u64) -> Self {
        let x = (offset_ms as f64 / CELL_MS).min(GRID as f64);
        let cell = (x as usize).min(GRID - 1);
        Self { cell, within: x - cell as f64 }
    }
}

impl Supply {
    fn from_cells(cells: &[f64]) -> Self {
        let mut cumulative = Vec::with_capacity(GRID + 1);
        let mut sum = 0.0;
        cumulative.push(0.0);
        for supply in cells {
            sum += supply;
            cumulative.push(sum);
        }
        Self { cumulative }
    }

    /// Returns the same supply with each hour weighted by a factor.
    pub fn tilted(&self, by_hour: &[f64; 24]) -> Self {
        let cells: Vec<f64> =
            self.cumulative.windows(2).enumerate().map(|(i, c)| (c[1] - c[0]) * by_hour[i * 24 / GRID]).collect();
        Self::from_cells(&cells)
    }

    /// Returns the requests before `offset_ms` of the day.
    pub fn before(&self, offset_ms: u64) -> f64 {
        self.until(Time::at(offset_ms))
    }

    /// Returns the requests before a time of the day.
    #[inline]
    pub fn until(&self, time: Time) -> f64 {
        let (low, high) = (self.cumulative[time.cell], self.cumulative[time.cell + 1]);
        low + (high - low) * time.within
    }

    /// Returns the requests of the whole day.
    pub fn total(&self) -> f64 {
        self.cumulative[GRID]
    }

    /// Returns the offset from midnight, milliseconds, before which `share` of the day's requests lie.
    pub fn time_of_share(&self, share: f64) -> u64 {
        let wanted = share.clamp(0.0, 1.0) * self.total();
        let i = self.cumulative.partition_point(|&c| c <= wanted).clamp(1, GRID) - 1;
        let (low, high) = (self.cumulative[i], self.cumulative[i + 1]);
        let within = if high > low { ((wanted - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 };
        ((i as f64 + within) * CELL_MS) as u64
    }
}
