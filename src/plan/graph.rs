//! The supply-demand graph of a day that is to be served: forecast supply on one side, contracts on the other.
//!
//! **Flights.** Supply is split in time where a flight starts or ends: a node's page views before and after the border
//! are two kinds of supply, and a contract is joined only to those that lie wholly within its flight. Only the borders
//! of contracts that the node may serve split it. A border within a quarter hour splits that quarter's page views in proportion.
//!
//! **Merging.** Nodes that may serve the same contracts are one *kind*; a kind within one stretch of the day is a *group*,
//! and the plan treats all page views of a group alike. Nothing is lost: in HWM, SHALE and the transport problem only a node's
//! size and its contracts matter. Node curves may differ within a kind; they are kept for the
//! contracts' day curves.
//!
//! **Presence and rate.** A contract is in the queue of only a share of the page views that it targets: presence (of the
//! training days) times rate. That share, [`Terms::limit`], bounds what it may take of a group. Play probabilities
//! ("theta") are conditional on being in the queue: a contract with theta 1 takes `limit` of the page views.
//!
//! Edges are stored twice in compressed rows, by group and by contract; values of an edge are stored in the contracts' order.

use std::collections::HashMap;
use std::ops::Range;

use crate::log::compiled::Contract;
use crate::log::targeting::Targeting;

use super::forecast::{CELL_MS, Forecast, GRID, add};

/// Demand side of a contract.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    pub ad_id: u64,
    /// Impressions owed.
    pub demand: f64,
    /// Minor units per missing impression.
    pub penalty: f64,
    /// Largest share of a group that it can take: presence times rate, in [0, 1].
    pub limit: f64,
    /// Forecast page views whose queue contains it.
    pub supply: f64,
    /// Play probability that the control table prescribes.
    pub given: Option<f64>,
}

impl Terms {
    /// Returns demand over supply, at most 1: the play probability that spreads the contract evenly over its supply.
    pub fn even(&self) -> f64 {
        if self.demand <= 0.0 {
            0.0
        } else if self.demand >= self.supply {
            1.0
        } else {
            self.demand / self.supply
        }
    }
}

/// A kind of supply within a stretch of the day.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Group {
    kind: u32,
    /// Start and end, in cells of the grid.
    from: f64,
    to: f64,
}

/// The graph. Groups and contracts are numbered from 0, contracts in the given order.
#[derive(Debug, Clone)]
pub struct Graph {
    terms: Vec<Terms>,
    /// Page views of each group.
    supply: Vec<f64>,
    groups: Vec<Group>,
    group_starts: Vec<u32>,
    /// By group: contract, and the edge's index in the contracts' order.
    by_group: Vec<(u32, u32)>,
    contract_starts: Vec<u32>,
    /// By contract: group.
    by_contract: Vec<u32>,
    kind_starts: Vec<u32>,
    /// By kind: nodes of the forecast.
    nodes: Vec<u32>,
    unmerged: u64,
}

impl Graph {
    /// Joins a forecast with the contracts of a day that starts at `day_start_ms` (Unix milliseconds).
    ///
    /// `presence` returns the share of its targeted page views whose queue contains a contract.
    pub fn new(
        forecast: &Forecast,
        contracts: &[Contract],
        day_start_ms: u64,
        presence: impl Fn(&Contract) -> f64,
    ) -> Self {
        let cell = |ms: u64| (ms.saturating_sub(day_start_ms) as f64 / CELL_MS).min(GRID as f64);
        let flights: Vec<(f64, f64)> = contracts.iter().map(|c| (cell(c.start_ms), cell(c.end_ms))).collect();
        let kinds = Kinds::of(forecast, contracts);
        let mut graph = Self {
            terms: contracts
                .iter()
                .map(|c| Terms {
                    ad_id: c.ad_id,
                    demand: c.owed() as f64,
                    penalty: c.penalty,
                    limit: (presence(c) * c.rate).clamp(0.0, 1.0),
                    supply: 0.0,
                    given: c.theta,
                })
                .collect(),
            supply: Vec::new(),
            groups: Vec::new(),
            group_starts: vec![0],
            by_group: Vec::new(),
            contract_starts: Vec::new(),
            by_contract: Vec::new(),
            kind_starts: kinds.starts,
            nodes: kinds.nodes,
            unmerged: 0,
        };
        let mut borders = Vec::new();
        for (kind, eligible) in (0u32..).zip(&kinds.eligible) {
            let able: Vec<(u32, f64, f64)> = eligible
                .iter()
                .filter(|&&j| graph.terms[j as usize].limit > 0.0)
                .map(|&j| (j, flights[j as usize].0, flights[j as usize].1))
                .collect();
            let cumulative = graph.cumulative(forecast, kind);
            if cumulative[GRID] <= 0.0 || able.is_empty() {
                continue;
            }
            borders.clear();
            borders.extend([0.0, GRID as f64]);
            borders.extend(able.iter().flat_map(|&(_, start, end)| [start, end]));
            borders.sort_by(f64::total_cmp);
            borders.dedup();
            for stretch in borders.windows(2) {
                let (from, to) = (stretch[0], stretch[1]);
                let supply = at(&cumulative, to) - at(&cumulative, from);
                let flying = able.iter().filter(|&&(_, start, end)| start <= from && to <= end);
                let before = graph.by_group.len();
                // The indices in the contracts' order are known only when all groups are.
                graph.by_group.extend(flying.map(|&(j, ..)| (j, 0)));
                if supply <= 0.0 || graph.by_group.len() == before {
                    graph.by_group.truncate(before);
                    continue;
                }
                graph.supply.push(supply);
                graph.groups.push(Group { kind, from, to });
                graph.group_starts.push(place(graph.by_group.len()));
                graph.unmerged += ((graph.by_group.len() - before) * graph.nodes_of(kind).len()) as u64;
            }
        }
        graph.transpose();
        graph
    }

    /// Builds the edges by contract, and sums each contract's supply.
    fn transpose(&mut self) {
        let mut starts = vec![0u32; self.terms.len() + 1];
        for &(j, _) in &self.by_group {
            starts[j as usize + 1] += 1;
        }
        for j in 0..self.terms.len() {
            starts[j + 1] += starts[j];
        }
        let mut next = starts.clone();
        self.by_contract = vec![0; self.by_group.len()];
        for g in 0..self.supply.len() {
            for (j, edge) in &mut self.by_group[self.group_starts[g] as usize..self.group_starts[g + 1] as usize] {
                let terms = &mut self.terms[*j as usize];
                terms.supply += self.supply[g] * terms.limit;
                *edge = next[*j as usize];
                next[*j as usize] += 1;
                self.by_contract[*edge as usize] = g as u32;
            }
        }
        self.contract_starts = starts;
    }

    /// Returns the demand side of each contract.
    pub fn terms(&self) -> &[Terms] {
        &self.terms
    }

    /// Returns the page views of each group.
    pub fn supply(&self) -> &[f64] {
        &self.supply
    }

    /// Returns the contracts joined to a group, each with the edge's index in the contracts' order.
    pub fn contracts_of(&self, group: usize) -> &[(u32, u32)] {
        &self.by_group[self.group_starts[group] as usize..self.group_starts[group + 1] as usize]
    }

    /// Returns the groups joined to a contract.
    pub fn groups_of(&self, contract: usize) -> &[u32] {
        &self.by_contract[self.edges_of(contract)]
    }

    /// Returns the group at an edge.
    pub fn group_of(&self, edge: usize) -> usize {
        self.by_contract[edge] as usize
    }

    /// Returns the range of a contract's edges.
    pub fn edges_of(&self, contract: usize) -> Range<usize> {
        self.contract_starts[contract] as usize..self.contract_starts[contract + 1] as usize
    }

    /// Returns the number of edges.
    pub fn edges(&self) -> usize {
        self.by_contract.len()
    }

    /// Returns the number of edges without merging: node within a stretch of the day, and contract.
    pub fn unmerged_edges(&self) -> u64 {
        self.unmerged
    }

    fn nodes_of(&self, kind: u32) -> &[u32] {
        &self.nodes[self.kind_starts[kind as usize] as usize..self.kind_starts[kind as usize + 1] as usize]
    }

    /// Returns the page views of a kind before each grid point; `forecast` is the one that the graph was made from.
    fn cumulative(&self, forecast: &Forecast, kind: u32) -> [f64; GRID + 1] {
        let mut sums = [0.0; GRID + 1];
        for &node in self.nodes_of(kind) {
            let node = &forecast.nodes[node as usize];
            add(&mut sums[1..], node.pv, &forecast.curves[node.curve]);
        }
        for i in 0..GRID {
            sums[i + 1] += sums[i];
        }
        sums
    }

    /// Returns, per contract, how often its page views are booked when every contract spreads evenly: 1 if all of
    /// them are just sold, more if contracts compete for them. The mean over the contract's supply.
    pub fn contention(&self) -> Vec<f64> {
        let mut booked = vec![0.0; self.terms.len()];
        for (g, supply) in self.supply.iter().enumerate() {
            let contracts = self.contracts_of(g);
            // Not `even`: demand beyond all supply is booked too.
            let load: f64 = contracts
                .iter()
                .map(|&(j, _)| &self.terms[j as usize])
                .map(|t| if t.supply > 0.0 { t.limit * t.demand / t.supply } else { 0.0 })
                .sum();
            for &(j, _) in contracts {
                booked[j as usize] += supply * self.terms[j as usize].limit * load;
            }
        }
        booked.iter().zip(&self.terms).map(|(b, t)| if t.supply > 0.0 { b / t.supply } else { 0.0 }).collect()
    }

    /// Returns the day curve of each contract, impressions in each of [`GRID`] quarter hours, for `flow` impressions on each edge.
    ///
    /// `forecast` is the one that the graph was made from: within a group, impressions follow the page views.
    pub fn curves(&self, forecast: &Forecast, flow: &[f64]) -> Vec<[f32; GRID]> {
        let mut curves = vec![[0.0f32; GRID]; self.terms.len()];
        let mut cells = [0.0; GRID];
        let mut last: Option<(u32, [f64; GRID + 1])> = None;
        for (g, group) in self.groups.iter().enumerate() {
            if last.as_ref().is_none_or(|(kind, _)| *kind != group.kind) {
                last = Some((group.kind, self.cumulative(forecast, group.kind)));
            }
            let Some((_, cumulative)) = &last else { continue };
            let within = group.from as usize..(group.to.ceil() as usize).min(GRID);
            for i in within.clone() {
                let (from, to) = (group.from.max(i as f64), group.to.min(i as f64 + 1.0));
                cells[i] = (at(cumulative, to) - at(cumulative, from)) / self.supply[g];
            }
            for &(j, edge) in self.contracts_of(g) {
                let impressions = flow[edge as usize];
                if impressions > 0.0 {
                    for i in within.clone() {
                        curves[j as usize][i] += (impressions * cells[i]) as f32;
                    }
                }
            }
        }
        curves
    }
}

/// Interpolates sums at grid points.
fn at(cumulative: &[f64; GRID + 1], cell: f64) -> f64 {
    let i = (cell as usize).min(GRID - 1);
    cumulative[i] + (cumulative[i + 1] - cumulative[i]) * (cell - i as f64)
}

fn place(edges: usize) -> u32 {
    u32::try_from(edges).expect("the graph has more than four billion edges; merge forecast nodes first")
}

/// Forecast nodes grouped by the set of contracts that they may serve, ignoring flights.
struct Kinds {
    eligible: Vec<Vec<u32>>,
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Kinds {
    fn of(forecast: &Forecast, contracts: &[Contract]) -> Self {
        let index: HashMap<u64, usize> = contracts.iter().enumerate().map(|(j, c)| (c.ad_id, j)).collect();
        let slots = Wanted::of(contracts, |t| &t.slot);
        let regions = Wanted::of(contracts, |t| &t.region);
        let genders = Wanted::of(contracts, |t| &t.gender);
        let ages = Wanted::of(contracts, |t| &t.age);
        let mut known: HashMap<Box<[u64]>, u32> = HashMap::new();
        let mut eligible = Vec::new();
        let mut kind_of = Vec::with_capacity(forecast.nodes.len());
        let mut set = vec![0u64; contracts.len().div_ceil(64)];
        for node in &forecast.nodes {
            if node.ad_ids.is_empty() {
                let words = slots.by(node.slot_id).iter().zip(regions.by(node.region));
                let more = genders.by(node.gender.into()).iter().zip(ages.by(node.age.into()));
                for (word, ((s, r), (g, a))) in set.iter_mut().zip(words.zip(more)) {
                    *word = s & r & g & a;
                }
            } else {
                set.fill(0);
                for j in node.ad_ids.iter().filter_map(|id| index.get(id)) {
                    set[j / 64] |= 1 << (j % 64);
                }
            }
            let kind = known.get(&set[..]).copied().unwrap_or_else(|| {
                let kind = eligible.len() as u32;
                eligible.push((0..contracts.len() as u32).filter(|&j| contains(&set, j as usize)).collect::<Vec<_>>());
                known.insert(set.clone().into_boxed_slice(), kind);
                kind
            });
            kind_of.push(kind);
        }
        let mut starts = vec![0u32; eligible.len() + 1];
        for &kind in &kind_of {
            starts[kind as usize + 1] += 1;
        }
        for kind in 0..eligible.len() {
            starts[kind + 1] += starts[kind];
        }
        let mut next = starts.clone();
        let mut nodes = vec![0; kind_of.len()];
        for (node, &kind) in (0u32..).zip(&kind_of) {
            nodes[next[kind as usize] as usize] = node;
            next[kind as usize] += 1;
        }
        Self { eligible, starts, nodes }
    }
}

fn contains(set: &[u64], j: usize) -> bool {
    set[j / 64] >> (j % 64) & 1 == 1
}

/// Contracts that accept each value of one attribute, as bit sets.
struct Wanted {
    by_value: HashMap<u32, Vec<u64>>,
    /// Contracts that accept a value that no targeting names.
    others: Vec<u64>,
}

impl Wanted {
    fn of(contracts: &[Contract], values: fn(&Targeting) -> &Vec<u32>) -> Self {
        let mut others = vec![0; contracts.len().div_ceil(64)];
        for (j, _) in contracts.iter().enumerate().filter(|(_, c)| values(&c.targeting).is_empty()) {
            others[j / 64] |= 1u64 << (j % 64);
        }
        let mut by_value: HashMap<u32, Vec<u64>> = HashMap::new();
        for (j, c) in contracts.iter().enumerate() {
            for &value in values(&c.targeting) {
                by_value.entry(value).or_insert_with(|| others.clone())[j / 64] |= 1 << (j % 64);
            }
        }
        Self { by_value, others }
    }

    fn by(&self, value: u32) -> &[u64] {
        self.by_value.get(&value).unwrap_or(&self.others)
    }
}
