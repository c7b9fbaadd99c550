//! Over-booked contracts: the exact shortage that no allocation can avoid, by flow on the supply-demand graph.
//!
//! The sets of contracts that can be delivered together form a polymatroid, so one flow does both: it delivers as many
//! impressions as possible, and it misses those with the cheapest penalty, as the total benefit requires. **Attribution**: if
//! contracts share a shortage, the one with the lower penalty goes short first, entirely if need be; among equal penalties the
//! allocation order of [`Hwm`] decides (the scarcer contract is served first). Auction prices are not considered: an impression
//! that sells for more in the auction is given up by choice, not missing.
//!
//! Method: start from HWM's plan; Dinic's blocking flows (1970) from all short contracts to spare supply; then, in order of
//! falling penalty, from each short contract to contracts with a lower penalty, which give up impressions. If neither
//! is possible, the reached supply is closed: no later contract can get more out of it.

use super::graph::Graph;
use super::hwm::Hwm;

/// Returns the impressions of each contract that no allocation of the forecast supply can deliver.
pub fn unavoidable(graph: &Graph, start: &Hwm) -> Vec<f64> {
    let mut transport = Transport::from_plan(graph, start);
    let short = |t: &Transport| (0..t.missing.len()).filter(|&j| t.missing[j] > t.tiny).collect::<Vec<_>>();
    loop {
        let sources = short(&transport);
        if !transport.search(&sources, 0.0) {
            break;
        }
        for j in sources {
            transport.deliver(j, 0.0);
        }
    }
    let mut dearest_first: Vec<usize> = (0..transport.missing.len()).collect();
    dearest_first.sort_by(|&a, &b| graph.terms()[b].penalty.total_cmp(&graph.terms()[a].penalty));
    for j in dearest_first {
        let penalty = graph.terms()[j].penalty;
        while transport.missing[j] > transport.tiny {
            if !transport.search(&[j], penalty) {
                transport.close_reached();
                break;
            }
            transport.deliver(j, penalty);
        }
    }
    // A remainder from rounding is no shortage.
    let rounded = |(j, &missing): (usize, &f64)| if missing > 1e-9 * graph.terms()[j].demand { missing } else { 0.0 };
    transport.missing.iter().enumerate().map(rounded).collect()
}

const UNREACHED: u32 = u32::MAX;

/// A flow from groups to contracts and the search for augmenting paths.
struct Transport<'a> {
    graph: &'a Graph,
    /// Impressions on each edge.
    flow: Vec<f64>,
    /// Page views of each group that no contract takes.
    spare: Vec<f64>,
    /// Impressions that each contract lacks.
    missing: Vec<f64>,
    /// Groups that cannot give more to any contract.
    closed: Vec<bool>,
    /// Distance from the sources: contracts even, groups odd.
    contract_level: Vec<u32>,
    group_level: Vec<u32>,
    /// Next edge to try in this round of blocking flows.
    contract_next: Vec<usize>,
    group_next: Vec<usize>,
    /// Page views below which an amount counts as 0.
    tiny: f64,
}

impl<'a> Transport<'a> {
    fn from_plan(graph: &'a Graph, plan: &Hwm) -> Self {
        let terms = graph.terms();
        let mut flow = plan.flow.clone();
        let mut spare = graph.supply().to_vec();
        let mut missing = Vec::with_capacity(terms.len());
        for (j, terms) in terms.iter().enumerate() {
            // A prescribed probability may plan for more than is owed.
            let kept = if plan.planned[j] > terms.demand { terms.demand / plan.planned[j] } else { 1.0 };
            for (flow, &g) in flow[graph.edges_of(j)].iter_mut().zip(graph.groups_of(j)) {
                *flow *= kept;
                spare[g as usize] -= *flow;
            }
            missing.push((terms.demand - plan.planned[j] * kept).max(0.0));
        }
        let groups = graph.supply().len();
        Self {
            graph,
            flow,
            missing,
            closed: vec![false; groups],
            contract_level: vec![UNREACHED; terms.len()],
            group_level: vec![UNREACHED; groups],
            contract_next: vec![0; terms.len()],
            group_next: vec![0; groups],
            tiny: 1e-13 * spare.iter().sum::<f64>() + 1e-12,
            spare,
        }
    }

    fn room(&self, j: usize, edge: usize, group: usize) -> f64 {
        self.graph.terms()[j].limit * self.graph.supply()[group] - self.flow[edge]
    }

    /// Whether a contract gives up impressions for one with this penalty.
    fn gives_up(&self, j: usize, penalty: f64) -> bool {
        self.graph.terms()[j].penalty < penalty
    }

    /// Computes the levels of everything that the sources reach, up to the first level with spare supply or a contract that
    /// gives up; returns false if there is none.
    fn search(&mut self, sources: &[usize], penalty: f64) -> bool {
        self.contract_level.fill(UNREACHED);
        self.group_level.fill(UNREACHED);
        self.group_next.fill(0);
        for j in 0..self.contract_next.len() {
            self.contract_next[j] = self.graph.edges_of(j).start;
        }
        let mut contracts = sources.to_vec();
        for &j in sources {
            self.contract_level[j] = 0;
        }
        let mut level = 0;
        while !contracts.is_empty() {
            let mut groups = Vec::new();
            for j in std::mem::take(&mut contracts) {
                for (edge, &g) in self.graph.edges_of(j).zip(self.graph.groups_of(j)) {
                    let g = g as usize;
                    if self.group_level[g] == UNREACHED && !self.closed[g] && self.room(j, edge, g) > self.tiny {
                        self.group_level[g] = level + 1;
                        groups.push(g);
                    }
                }
            }
            let mut found = false;
            for g in groups {
                found |= self.spare[g] > self.tiny;
                for &(j, edge) in self.graph.contracts_of(g) {
                    let j = j as usize;
                    if self.contract_level[j] == UNREACHED && self.flow[edge as usize] > self.tiny {
                        self.contract_level[j] = level + 2;
                        found |= self.gives_up(j, penalty);
                        contracts.push(j);
                    }
                }
            }
            if found {
                return true;
            }
            level += 2;
        }
        false
    }

    /// Closes the groups that the last search reached.
    fn close_reached(&mut self) {
        for (closed, level) in self.closed.iter_mut().zip(&self.group_level) {
            *closed |= *level != UNREACHED;
        }
    }

    /// Delivers impressions to a short contract along the levels of the last search.
    fn deliver(&mut self, j: usize, penalty: f64) {
        let got = self.find(j, self.missing[j], penalty);
        self.missing[j] -= got;
    }

    /// Finds up to `want` impressions for a contract in groups one level further.
    fn find(&mut self, j: usize, want: f64, penalty: f64) -> f64 {
        let mut got = 0.0;
        let end = self.graph.edges_of(j).end;
        while self.contract_next[j] < end && want - got > self.tiny {
            let edge = self.contract_next[j];
            let g = self.graph.group_of(edge);
            let room = self.room(j, edge, g);
            if self.group_level[g] == self.contract_level[j] + 1 && room > self.tiny {
                let taken = self.free(g, room.min(want - got), penalty);
                self.flow[edge] += taken;
                got += taken;
            }
            if want - got > self.tiny {
                self.contract_next[j] += 1;
            }
        }
        got
    }

    /// Frees up to `want` page views of a group: spare ones, then those of contracts that give up or find others.
    fn free(&mut self, g: usize, want: f64, penalty: f64) -> f64 {
        let mut got = self.spare[g].clamp(0.0, want);
        self.spare[g] -= got;
        while let Some(&(j, edge)) = self.graph.contracts_of(g).get(self.group_next[g])
            && want - got > self.tiny
        {
            let (j, edge) = (j as usize, edge as usize);
            if self.contract_level[j] == self.group_level[g] + 1 && self.flow[edge] > self.tiny {
                let asked = self.flow[edge].min(want - got);
                let freed = if self.gives_up(j, penalty) {
                    self.missing[j] += asked;
                    asked
                } else {
                    self.find(j, asked, penalty)
                };
                self.flow[edge] -= freed;
                got += freed;
            }
            if want - got > self.tiny {
                self.group_next[g] += 1;
            }
        }
        got
    }
}
