//! Planning a large day: supply-demand graph, High Water Mark, SHALE and the unavoidable shortage, beside one plain pass over all
//! pairs of contract and node.

use std::fmt;
use std::time::Instant;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::log::compiled::Contract;
use crate::log::schema::{ControlRow, DAY_MS};
use crate::log::targeting::Targeting;
use crate::plan::forecast::Node;
use crate::plan::shale::{Rounds, Shale};
use crate::plan::{Forecast, GRID, Graph, Hwm, shortage};

const SLOTS: u32 = 50;
const REGIONS: u32 = 80;
const GENDERS: u32 = 3;
const AGES: u32 = 10;
/// The most nodes: one for each combination of attributes.
pub const MOST_NODES: usize = (SLOTS * REGIONS * GENDERS * AGES) as usize;
/// Share of the targeted page views in whose queue a contract stands.
const PRESENCE: f64 = 0.95;

#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    pub contracts: usize,
    pub nodes: usize,
    pub page_views: f64,
    pub unmerged_edges: u64,
    pub groups: usize,
    pub edges: usize,
    /// Seconds are those of the fastest run of each stage.
    pub graph_seconds: f64,
    pub hwm_seconds: f64,
    pub shale_seconds: f64,
    pub shale_rounds: usize,
    pub shortage_seconds: f64,
    pub plan_seconds: f64,
    /// Every contract's supply, node by node: what demand over supply alone costs.
    pub pairs_seconds: f64,
    /// `plan_seconds / pairs_seconds`.
    pub ratio: f64,
    pub over_booked: usize,
    pub demand: f64,
    pub hwm_missing: f64,
    pub shale_missing: f64,
    pub unavoidable: f64,
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |missing: f64| 100.0 * missing / self.demand;
        writeln!(
            f,
            "plan: {} contracts x {} nodes, {:.1} M edges, merged {:.1} M edges to {} groups",
            self.contracts,
            self.nodes,
            self.unmerged_edges as f64 / 1e6,
            self.edges as f64 / 1e6,
            self.groups
        )?;
        writeln!(
            f,
            "graph {:.2} s, HWM {:.2} s, SHALE {:.2} s ({} rounds), shortage {:.2} s; together {:.2} s",
            self.graph_seconds,
            self.hwm_seconds,
            self.shale_seconds,
            self.shale_rounds,
            self.shortage_seconds,
            self.plan_seconds
        )?;
        writeln!(
            f,
            "one plain pass over all pairs (supply of each contract) {:.2} s: the plan costs {:.2} of it",
            self.pairs_seconds, self.ratio
        )?;
        write!(
            f,
            "missing of the demand: unavoidable {:.2} % ({} contracts over-booked), SHALE {:.2} %, HWM {:.2} %",
            percent(self.unavoidable),
            self.over_booked,
            percent(self.shale_missing),
            percent(self.hwm_missing)
        )
    }
}

/// Plans a generated day `runs` times.
pub fn run(contracts: usize, nodes: usize, seed: u64, runs: usize) -> PlanReport {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let forecast = forecast(nodes, &mut rng);
    let mut list = outlines(contracts, &mut rng);
    let mut pairs_seconds = f64::INFINITY;
    let mut supplies: Vec<f64> = Vec::new();
    for _ in 0..runs.max(1) {
        let started = Instant::now();
        supplies = list.iter().map(|c| forecast.supply(c, 0, PRESENCE).total()).collect();
        pairs_seconds = pairs_seconds.min(started.elapsed().as_secs_f64());
    }
    set_demands(&mut list, &supplies, forecast.traffic().total(), &mut rng);

    let mut best = [f64::INFINITY; 4];
    let mut report = None;
    for _ in 0..runs.max(1) {
        let clock = Instant::now();
        let mut lap = {
            let mut last = 0.0;
            move |best: &mut f64| {
                let now = clock.elapsed().as_secs_f64();
                *best = best.min(now - last);
                last = now;
            }
        };
        let graph = Graph::new(&forecast, &list, 0, |_| PRESENCE);
        lap(&mut best[0]);
        let hwm = Hwm::of(&graph);
        lap(&mut best[1]);
        let shale = Shale::of(&graph, &hwm.order, Rounds::default());
        lap(&mut best[2]);
        let missing = shortage::unavoidable(&graph, &hwm);
        lap(&mut best[3]);
        let lacking = |planned: &[f64]| -> f64 {
            graph.terms().iter().zip(planned).map(|(t, planned)| (t.demand - planned).max(0.0)).sum()
        };
        let plan_seconds = best.iter().sum();
        report = Some(PlanReport {
            contracts,
            nodes,
            page_views: forecast.traffic().total(),
            unmerged_edges: graph.unmerged_edges(),
            groups: graph.supply().len(),
            edges: graph.edges(),
            graph_seconds: best[0],
            hwm_seconds: best[1],
            shale_seconds: best[2],
            shale_rounds: shale.rounds,
            shortage_seconds: best[3],
            plan_seconds,
            pairs_seconds,
            ratio: plan_seconds / pairs_seconds,
            over_booked: missing.iter().filter(|&&m| m > 0.0).count(),
            demand: graph.terms().iter().map(|t| t.demand).sum(),
            hwm_missing: lacking(&hwm.planned),
            shale_missing: lacking(&shale.planned),
            unavoidable: missing.iter().sum(),
        });
    }
    report.expect("at least one run")
}

/// Nodes of all different attributes, about 100 page views each, a day curve per region.
fn forecast(nodes: usize, rng: &mut ChaCha8Rng) -> Forecast {
    let curves = (0..REGIONS)
        .map(|_| {
            let (peak, depth) = (rng.random_range(0.0..GRID as f64), rng.random_range(0.2..0.9));
            let wave = |i: usize| 1.0 + depth * ((i as f64 - peak) * std::f64::consts::TAU / GRID as f64).cos();
            let sum: f64 = (0..GRID).map(wave).sum();
            (0..GRID).map(|i| wave(i) / sum).collect()
        })
        .collect();
    let mut places: Vec<u32> = (0..MOST_NODES as u32).collect();
    for i in 0..nodes {
        places.swap(i, rng.random_range(i..MOST_NODES));
    }
    let nodes = places[..nodes]
        .iter()
        .map(|&place| {
            let (slot, region) = (place % SLOTS, place / SLOTS % REGIONS);
            let rest = place / SLOTS / REGIONS;
            Node {
                slot_id: slot,
                region,
                gender: (rest % GENDERS) as u8,
                age: (rest / GENDERS) as u8,
                pv: 100.0 * rng.random_range(-1.5f64..1.5).exp(),
                curve: region as usize,
                ad_ids: Vec::new(),
            }
        })
        .collect();
    Forecast { nodes, curves }
}

/// Contracts without their demands. One in five flies for a part of the day.
fn outlines(contracts: usize, rng: &mut ChaCha8Rng) -> Vec<Contract> {
    let mut list: Vec<Contract> = Vec::with_capacity(contracts);
    for j in 0..contracts {
        let mut some = |chance: f64, values: u32, most: u32| -> Vec<u32> {
            if rng.random::<f64>() >= chance {
                return Vec::new();
            }
            let mut chosen: Vec<u32> = (0..rng.random_range(1..=most)).map(|_| rng.random_range(0..values)).collect();
            chosen.sort_unstable();
            chosen.dedup();
            chosen
        };
        // The last two of each twenty are narrow, and the very last wants just what the one before it wants.
        let narrow = j % 20 >= 18;
        let (regions, slots) = if narrow { (3, 4) } else { (20, 15) };
        let targeting = match list.last() {
            Some(last) if j % 20 == 19 => last.targeting.clone(),
            _ => Targeting {
                region: some(1.0, REGIONS, regions),
                gender: some(0.35, GENDERS, 1),
                age: some(0.45, AGES, 4),
                slot: some(if narrow { 1.0 } else { 0.7 }, SLOTS, slots),
            },
        };
        let quarter = DAY_MS / 4;
        let (start_ms, end_ms) = match list.last() {
            Some(last) if j % 20 == 19 => (last.start_ms, last.end_ms),
            _ if rng.random::<f64>() < 0.2 => {
                let from = rng.random_range(0..4);
                (from * quarter, rng.random_range(from + 1..=4) * quarter)
            }
            _ => (0, DAY_MS),
        };
        list.push(Contract::before_the_day(&ControlRow {
            ad_id: 1 + j as u64,
            required: 1,
            cap: 1,
            delivered0: 0,
            start_ms,
            end_ms,
            targeting,
            theta: None,
            rate: 1.0,
            penalty: rng.random_range(1.0..10.0),
            click_value: 0.0,
            pctr: None,
        }));
    }
    list
}

/// Books about two thirds of the page views; the pairs of equal targeting ask for more than there is.
fn set_demands(list: &mut [Contract], supplies: &[f64], page_views: f64, rng: &mut ChaCha8Rng) {
    let depth = supplies.iter().sum::<f64>() / page_views.max(1.0);
    for (j, (contract, supply)) in list.iter_mut().zip(supplies).enumerate() {
        let share = if j % 20 >= 18 { 0.7 } else { rng.random_range(0.2..1.0) / depth.max(1.0) };
        contract.required = ((share * supply) as u64).max(1);
        contract.cap = contract.required;
    }
}
