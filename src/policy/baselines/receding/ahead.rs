//! The expected requests of a day: the sampled requests of the training days with the day's own contracts in their queues,
//! weighted by the day's forecast.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::env::KnownDay;
use crate::log::draw;
use crate::log::schema::DAY_MS;
use crate::log::targeting::TargetingIndex;
use crate::plan::forecast::Kind;
use crate::plan::sample::SampledContract;
use crate::plan::{GRID, Sample, VolumeModel};

/// Length of a cell of the forecast's grid, milliseconds.
pub(super) const CELL_MS: u64 = DAY_MS / GRID as u64;
/// Differs from any seed in use for rate draws.
const SEED: u64 = 0x4EC3_D146_0000_0001;
/// Weight of the sample's own frequency of a kind against the forecast's, rows.
const KIND_PRIOR: f64 = 3.0;
const FITTING_ROUNDS: usize = 3;

/// Results computed last: tuning, actors and evaluations replay the same days again and again.
static REMEMBERED: Mutex<Vec<Remembered>> = Mutex::new(vec![]);
/// Maximum number of days kept.
const MOST_REMEMBERED: usize = 16;

struct Remembered {
    sample: Weak<Sample>,
    day: Weak<KnownDay>,
    ahead: Arc<Ahead>,
}

impl Remembered {
    fn is_of(&self, sample: &Arc<Sample>, day: &Arc<KnownDay>) -> bool {
        std::ptr::eq(self.sample.as_ptr(), Arc::as_ptr(sample)) && std::ptr::eq(self.day.as_ptr(), Arc::as_ptr(day))
    }
}

/// Expected requests of a day.
#[derive(Default, Clone)]
pub(super) struct Ahead {
    /// In time order.
    pub rows: Vec<Row>,
    /// Contract, and worth of the predicted click.
    pub entries: Vec<(u32, f64)>,
}

/// A sampled request, adapted to this day.
#[derive(Clone)]
pub(super) struct Row {
    pub cell: usize,
    kind: Kind,
    /// Number of forecast requests that it stands for.
    pub weight: f64,
    /// Minor units per impression.
    pub best: f64,
    /// Range within [`Ahead::entries`].
    pub entries: std::ops::Range<usize>,
}

impl Ahead {
    /// Builds the expected requests from the forecast and the sample; kept while both are in use.
    pub fn of(sample: &Arc<Sample>, day: &Arc<KnownDay>) -> Arc<Self> {
        let remembered = || REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered().iter().find(|known| known.is_of(sample, day)) {
            return known.ahead.clone();
        }
        let ahead = Arc::new(Self::new(sample, day));
        let mut all = remembered();
        // A weak pointer keeps the allocation, so its address is not reused.
        all.retain(|known| known.sample.strong_count() > 0 && known.day.strong_count() > 0);
        if all.len() == MOST_REMEMBERED {
            all.remove(0);
        }
        all.push(Remembered { sample: Arc::downgrade(sample), day: Arc::downgrade(day), ahead: ahead.clone() });
        ahead
    }

    fn new(sample: &Sample, day: &KnownDay) -> Self {
        let contracts = &day.contracts;
        let wanting = TargetingIndex::new(contracts.iter().map(|c| &c.targeting));
        let index: BTreeMap<u64, u32> = contracts.iter().zip(0..).map(|(c, j)| (c.ad_id, j)).collect();
        let mut all = Self::default();
        for sampled in &sample.days {
            // Index and data of each of the day's contracts on the sampled day.
            let mut place: Vec<Option<(u32, &SampledContract)>> = vec![None; contracts.len()];
            for (known, at) in sampled.contracts.iter().zip(0..) {
                if let Some(&j) = index.get(&known.ad_id) {
                    place[j as usize] = Some((at, known));
                }
            }
            for (i, row) in (0u64..).zip(sample.rows(sampled)) {
                let (slot, region, gender, age) = row.kind;
                let from = all.entries.len();
                let middle = row.cell as u64 * CELL_MS + CELL_MS / 2;
                for j in wanting.matching(slot, region, gender, age) {
                    let c = &contracts[j];
                    if !(c.start..c.end).contains(&middle) || !draw::passes(SEED, i, c.ad_id, c.rate) {
                        continue;
                    }
                    let place = place[j];
                    let j = j as u32;
                    if let Some(at) = place.and_then(|(at, _)| row.contracts.binary_search(&at).ok()) {
                        all.entries.push((j, c.click_value * f64::from(row.pctr[at])));
                        continue;
                    }
                    // It was eligible for this queue and absent. Otherwise only its mean presence is known.
                    let absent = place.is_some_and(|(_, known)| {
                        (known.cells.0..known.cells.1).contains(&(row.cell as u8))
                            && known.targeting.matches(slot, region, gender, age)
                    });
                    if !absent && draw::passes(!SEED, i, c.ad_id, c.presence) {
                        all.entries.push((j, c.mean_click));
                    }
                }
                let entries = from..all.entries.len();
                all.rows.push(Row { cell: row.cell, kind: row.kind, weight: 1.0, best: row.best, entries });
            }
        }
        all.weigh(day);
        all.rows.sort_by_key(|row| row.cell);
        all
    }

    /// Weights rows so that they add up to the day's forecast: by time, by kind of request, by the contracts that they may
    /// serve, in total.
    fn weigh(&mut self, day: &KnownDay) {
        let Self { rows, entries } = self;
        let mut counts = [0.0; GRID];
        for row in rows.iter() {
            counts[row.cell] += 1.0;
        }
        let mut kinds = BTreeMap::<Kind, f64>::new();
        for row in rows.iter_mut() {
            let from = row.cell as u64 * CELL_MS;
            row.weight = (day.traffic.before(from + CELL_MS) - day.traffic.before(from)) / counts[row.cell];
            *kinds.entry(row.kind).or_default() += row.weight;
        }
        let total = |rows: &[Row]| rows.iter().map(|row| row.weight).sum::<f64>();
        let prior = KIND_PRIOR * total(rows) / rows.len().max(1) as f64;
        for row in rows.iter_mut() {
            let forecast = day.kinds.get(&row.kind).copied().unwrap_or(0.0);
            row.weight *= (forecast + prior) / (kinds[&row.kind] + prior).max(1e-12);
        }
        // The contracts that a request may serve matter more than its kind: a few rounds of proportional fitting.
        let mut served_by: Vec<Vec<u32>> = vec![vec![]; day.contracts.len()];
        for (i, row) in (0u32..).zip(rows.iter()) {
            for &(j, _) in &entries[row.entries.clone()] {
                served_by[j as usize].push(i);
            }
        }
        for _ in 0..FITTING_ROUNDS {
            for (served, c) in served_by.iter().zip(&day.contracts) {
                let supply: f64 = served.iter().map(|&i| rows[i as usize].weight).sum();
                if supply > 0.0 {
                    // A factor far from 1 reflects the noise of the sample rather than the forecast.
                    let factor = (c.supply.total() / supply).clamp(0.5, 2.0);
                    for &i in served {
                        rows[i as usize].weight *= factor;
                    }
                }
            }
        }
        let scale = day.traffic.total() / total(rows).max(1e-12);
        for row in rows {
            row.weight *= scale;
        }
    }

    /// Corrects the weights of regions whose traffic the forecast has misjudged.
    pub fn correct(&mut self, model: &VolumeModel) {
        self.rows.iter_mut().for_each(|row| row.weight *= model.region_factor(row.kind.1));
    }
}
