//! High Water Mark: one play probability per contract (Chen et al., "Ad serving using a compact allocation plan", 2012).
//!
//! Contracts are processed in allocation order, the scarcest first (least supply). Each gets the probability `theta` with which
//! the remaining supply meets its demand: `sum over its groups g of min(left_g, limit * theta * supply_g) = demand`;
//! 1 if no probability is enough. Then its impressions are subtracted from the remaining supply. When serving, contracts are
//! processed in the same order and each takes its share of the request until the whole request is taken.

use super::graph::{Graph, Terms};

/// The plan of all contracts.
#[derive(Debug, Clone, PartialEq)]
pub struct Hwm {
    /// Contracts in allocation order.
    pub order: Vec<u32>,
    /// Play probability of each contract on requests whose queue contains it.
    pub theta: Vec<f64>,
    /// Planned impressions of each contract.
    pub planned: Vec<f64>,
    /// Planned impressions on each edge.
    pub flow: Vec<f64>,
}

impl Hwm {
    /// Plans the contracts of a graph. A probability prescribed by the control table is kept.
    pub fn of(graph: &Graph) -> Self {
        let terms = graph.terms();
        let order = scarcest_first(terms);
        let mut left = graph.supply().to_vec();
        let mut plan = Self {
            order,
            theta: vec![0.0; terms.len()],
            planned: vec![0.0; terms.len()],
            flow: vec![0.0; graph.edges()],
        };
        for &j in &plan.order {
            crate::cancel::point();
            let j = j as usize;
            let theta = terms[j].given.unwrap_or_else(|| play_probability(graph, j, &left));
            for (flow, &g) in plan.flow[graph.edges_of(j)].iter_mut().zip(graph.groups_of(j)) {
                let g = g as usize;
                *flow = left[g].min(terms[j].limit * theta * graph.supply()[g]);
                left[g] -= *flow;
                plan.planned[j] += *flow;
            }
            plan.theta[j] = theta;
        }
        plan
    }

    /// Returns the rank of each contract in the allocation order.
    pub fn ranks(&self) -> Vec<u32> {
        let mut ranks = vec![0; self.order.len()];
        for (rank, &j) in (0..).zip(&self.order) {
            ranks[j as usize] = rank;
        }
        ranks
    }
}

/// Sorts by supply, least first; ties go to the larger demand, then to the lower ad id.
fn scarcest_first(terms: &[Terms]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..terms.len() as u32).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (&terms[a as usize], &terms[b as usize]);
        a.supply.total_cmp(&b.supply).then(b.demand.total_cmp(&a.demand)).then(a.ad_id.cmp(&b.ad_id))
    });
    order
}

/// Solves `sum min(left, limit * theta * supply) = demand` by Newton steps.
///
/// The sum is concave and piecewise linear in theta, so each step stays below the solution and passes at least one
/// more exhausted group; usually a handful of steps is enough.
fn play_probability(graph: &Graph, j: usize, left: &[f64]) -> f64 {
    let Terms { demand, limit, .. } = graph.terms()[j];
    if demand <= 0.0 {
        return 0.0;
    }
    let mut theta = 0.0;
    loop {
        let (mut used_up, mut slope) = (0.0, 0.0);
        for &g in graph.groups_of(j) {
            let width = limit * graph.supply()[g as usize];
            if left[g as usize] <= width * theta {
                used_up += left[g as usize];
            } else {
                slope += width;
            }
        }
        // No group has supply left, or the contract has no supply at all.
        if slope <= 0.0 {
            return 1.0;
        }
        let next = (demand - used_up) / slope;
        if next >= 1.0 {
            return 1.0;
        }
        if next <= theta {
            return theta;
        }
        theta = next;
    }
}
