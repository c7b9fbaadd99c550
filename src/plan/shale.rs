//! SHALE (Bharadwaj et al., "SHALE: an efficient algorithm for allocation of guaranteed display advertising", KDD 2012).
//!
//! Spreads every contract as evenly over its supply as the others allow, and misses impressions where that is cheapest.
//! With `x` the play probability of contract j on group i, `t_j` = demand over supply, `w_ij = limit_j * supply_i` the page views
//! that the contract can take, V the weight of an even spread and `u_j` the impressions missing:
//!
//! ```text
//!     minimise  1/2 sum_ij w_ij V / t_j (x_ij - t_j)^2  +  sum_j penalty_j u_j
//!     so that   sum_i w_ij x_ij + u_j >= demand_j,   sum_j limit_j x_ij <= 1,   0 <= x_ij <= 1,   u_j >= 0
//! ```
//!
//! With prices alpha of the demands and beta of the groups the solution is `x_ij = t_j (1 + (alpha_j - beta_i) / V)`, kept within
//! [0, 1]; `0 <= alpha_j <= penalty_j`, below the penalty only if the demand is met; `beta_i > 0` only if the group is sold out.
//! (The paper has limit 1, for which `x <= 1` follows from the groups; otherwise it is a separate constraint.)
//!
//! Stage one alternates: all beta given alpha, all alpha given beta. It can be stopped at any time. Stage two turns
//! any alpha into a plan that serves: contracts in allocation order take `min(left, x(zeta_j - beta_i))`, with `zeta_j` chosen so
//! that the remaining supply meets the demand. Serving needs `t`, alpha and zeta of each contract; the beta of a request
//! follows from the alphas of the contracts in its queue.

use super::graph::Graph;

/// Stopping rule of stage one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// Maximum number of rounds.
    pub most: usize,
    /// Largest change of an alpha at which stage one stops, as a share of V.
    pub tolerance: f64,
}

impl Default for Rounds {
    /// Later rounds change little: stage two corrects the remaining errors of stage one.
    fn default() -> Self {
        Self { most: 20, tolerance: 1e-4 }
    }
}

/// V over the mean penalty: an even spread is worth a tenth of delivery.
const SPREAD_SHARE: f64 = 0.1;

/// Values of a contract that serving needs. Prices in minor units per impression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Play probability of an even spread.
    pub even: f64,
    pub alpha: f64,
    pub zeta: f64,
}

impl Share {
    /// Returns the play probability at a price, [0, 1]: `t (1 + price / V)`.
    fn at(&self, price: f64, spread: f64) -> f64 {
        (self.even * (1.0 + price / spread)).clamp(0.0, 1.0)
    }

    /// Returns the play probability if the request's price is `beta`.
    pub fn play(&self, beta: f64, spread: f64) -> f64 {
        self.at(self.zeta - beta, spread)
    }

    /// Returns the share that it wants of a group, or of a request, of which it can take `limit`.
    pub fn wanted(&self, limit: f64, spread: f64) -> Wanted {
        let most = limit * self.even;
        Wanted { at_zero: most * (1.0 + self.alpha / spread), slope: most / spread, limit }
    }
}

/// A contract's share of a group as a linear function of the group's price: `at_zero - slope * beta`, clamped to [0, limit].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Wanted {
    at_zero: f64,
    slope: f64,
    limit: f64,
}

/// The plan of all contracts.
#[derive(Debug, Clone, PartialEq)]
pub struct Shale {
    /// V, the weight of an even spread, minor units per impression.
    pub spread: f64,
    pub shares: Vec<Share>,
    /// Price of each group.
    pub beta: Vec<f64>,
    /// Number of rounds of stage one.
    pub rounds: usize,
    /// Planned impressions of each contract.
    pub planned: Vec<f64>,
    /// Planned impressions on each edge.
    pub flow: Vec<f64>,
}

impl Shale {
    /// Plans the contracts of a graph; `order` is the allocation order of stage two.
    pub fn of(graph: &Graph, order: &[u32], rounds: Rounds) -> Self {
        let terms = graph.terms();
        let mean = terms.iter().map(|t| t.penalty).sum::<f64>() / terms.len().max(1) as f64;
        let spread = if mean > 0.0 { SPREAD_SHARE * mean } else { 1.0 };
        let even = |j: usize| terms[j].given.unwrap_or_else(|| terms[j].even());
        let shares = (0..terms.len()).map(|j| Share { even: even(j), alpha: 0.0, zeta: 0.0 }).collect();
        let mut plan = Self {
            spread,
            shares,
            beta: vec![0.0; graph.supply().len()],
            rounds: 0,
            planned: vec![0.0; terms.len()],
            flow: vec![0.0; graph.edges()],
        };
        while plan.rounds < rounds.most {
            crate::cancel::point();
            plan.price_groups(graph);
            plan.rounds += 1;
            if plan.price_demands(graph) <= rounds.tolerance * spread {
                break;
            }
        }
        plan.price_groups(graph);
        plan.serve(graph, order);
        plan
    }

    /// Returns the play probability of a contract on a request without other contracts.
    pub fn theta(&self, j: usize) -> f64 {
        self.shares[j].play(0.0, self.spread)
    }

    fn price_groups(&mut self, graph: &Graph) {
        let spread = self.spread;
        let wanted: Vec<Wanted> =
            self.shares.iter().zip(graph.terms()).map(|(share, terms)| share.wanted(terms.limit, spread)).collect();
        for (g, beta) in self.beta.iter_mut().enumerate() {
            *beta = price_of(graph.contracts_of(g).iter().map(|&(j, _)| wanted[j as usize]), *beta);
        }
    }

    /// Sets every alpha; returns the largest change.
    fn price_demands(&mut self, graph: &Graph) -> f64 {
        // One array, because each contract accesses groups in irregular order.
        let groups: Vec<(f64, f64)> = graph.supply().iter().copied().zip(self.beta.iter().copied()).collect();
        let mut moved: f64 = 0.0;
        for (j, (share, terms)) in self.shares.iter_mut().zip(graph.terms()).enumerate() {
            if terms.demand <= 0.0 || terms.supply <= 0.0 {
                continue;
            }
            let slope = share.even / self.spread;
            let missing = |alpha: f64| {
                let at_zero = share.even + slope * alpha;
                let (mut sum, mut steep) = (0.0, 0.0);
                for &g in graph.groups_of(j) {
                    let (supply, beta) = groups[g as usize];
                    let x = at_zero - slope * beta;
                    sum += supply * x.clamp(0.0, 1.0);
                    steep += if x > 0.0 && x < 1.0 { supply } else { 0.0 };
                }
                (terms.limit * sum - terms.demand, terms.limit * steep * slope)
            };
            let alpha = root(missing, 0.0, terms.penalty, share.alpha, 1e-12 * terms.demand);
            moved = moved.max((alpha - share.alpha).abs());
            share.alpha = alpha;
        }
        moved
    }

    /// Does stage two.
    fn serve(&mut self, graph: &Graph, order: &[u32]) {
        let mut left = graph.supply().to_vec();
        for &j in order {
            let j = j as usize;
            let terms = &graph.terms()[j];
            let (share, spread, beta) = (self.shares[j], self.spread, &self.beta);
            if terms.demand <= 0.0 {
                self.shares[j].zeta = -spread;
                continue;
            }
            let slope = share.even / spread;
            // Impressions of each group at a zeta, and the number of them that depends on zeta.
            let take = |zeta: f64, g: usize| {
                let width = terms.limit * graph.supply()[g];
                let x = share.even + slope * (zeta - beta[g]);
                let wanted = width * x.clamp(0.0, 1.0);
                let free = x > 0.0 && x < 1.0 && wanted < left[g];
                (wanted.min(left[g]), if free { width } else { 0.0 })
            };
            let missing = |zeta: f64| {
                let (mut sum, mut steep) = (0.0, 0.0);
                for &g in graph.groups_of(j) {
                    let (taken, width) = take(zeta, g as usize);
                    sum += taken;
                    steep += width;
                }
                (sum - terms.demand, slope * steep)
            };
            // At this zeta every probability is 1.
            let dearest = graph.groups_of(j).iter().map(|&g| beta[g as usize]).fold(0.0, f64::max);
            let most = dearest + spread * (1.0 / share.even.max(1e-12) - 1.0);
            let zeta = root(missing, -spread, most, share.alpha, 1e-12 * terms.demand);
            let taken: Vec<f64> = graph.groups_of(j).iter().map(|&g| take(zeta, g as usize).0).collect();
            for ((flow, &g), taken) in self.flow[graph.edges_of(j)].iter_mut().zip(graph.groups_of(j)).zip(taken) {
                *flow = taken;
                left[g as usize] -= taken;
                self.planned[j] += taken;
            }
            self.shares[j].zeta = zeta;
        }
    }
}

/// Returns the price at which contracts just share a group, or a request: the sum of their shares is 1; 0 if they want less
/// than all of it. `guess` only saves time.
pub fn price_of(wanted: impl Iterator<Item = Wanted> + Clone, guess: f64) -> f64 {
    let unsold = |beta: f64| {
        let (mut sum, mut slope) = (0.0, 0.0);
        for w in wanted.clone() {
            let x = w.at_zero - w.slope * beta;
            sum += x.clamp(0.0, w.limit);
            slope += if x > 0.0 && x < w.limit { w.slope } else { 0.0 };
        }
        (1.0 - sum, slope)
    };
    // Most groups are not sold out; one evaluation is enough for them.
    if guess == 0.0 && unsold(0.0).0 >= 0.0 {
        return 0.0;
    }
    // Price at which no contract wants a share.
    let high = wanted.clone().filter(|w| w.slope > 0.0).map(|w| w.at_zero / w.slope).fold(0.0, f64::max);
    root(unsold, 0.0, high, guess, 1e-13)
}

/// Returns the zero of an increasing, piecewise linear function within `low..=high`, or the nearer end if it has none there.
///
/// Newton steps, exact as soon as they reach the right piece; bisection if they leave the bracket or the piece is flat.
/// `f` returns value and slope.
fn root(f: impl Fn(f64) -> (f64, f64), low: f64, high: f64, guess: f64, tolerance: f64) -> f64 {
    let (mut below, mut above) = (low, high);
    // An end that has not been tried may be the answer.
    let (mut low_tried, mut high_tried) = (false, false);
    let mut x = guess.clamp(low, high);
    for _ in 0..200 {
        let (y, slope) = f(x);
        if y.abs() <= tolerance {
            return x;
        }
        if y < 0.0 {
            if x >= high {
                return high;
            }
            (below, low_tried) = (x, true);
        } else {
            if x <= low {
                return low;
            }
            (above, high_tried) = (x, true);
        }
        let next = x - y / slope;
        let next = if slope > 0.0 && below < next && next < above {
            next
        } else if y < 0.0 && !high_tried {
            high
        } else if y > 0.0 && !low_tried {
            low
        } else {
            0.5 * (below + above)
        };
        if (next - x).abs() <= 1e-15 * x.abs() {
            return next;
        }
        x = next;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_of_stairs_and_ramps_are_found_from_anywhere() {
        // Flat, steep, flat, gentle.
        let f = |x: f64| {
            let y = (x - 1.0).clamp(0.0, 0.5) * 4.0 + 0.1 * (x - 3.0).max(0.0);
            let slope = if x > 1.0 && x < 1.5 { 4.0 } else { 0.0 } + if x > 3.0 { 0.1 } else { 0.0 };
            (y, slope)
        };
        for guess in [0.0, 1.0, 1.2, 2.0, 5.0, 10.0] {
            for (level, at) in [(1.0, 1.25), (1.9, 1.475), (2.3, 6.0)] {
                let x = root(|x| (f(x).0 - level, f(x).1), 0.0, 10.0, guess, 1e-12);
                assert!((x - at).abs() < 1e-9, "level {level} from {guess}: {x}");
            }
            assert_eq!(root(|x| (f(x).0 + 1.0, f(x).1), 0.0, 10.0, guess, 0.0), 0.0);
            assert_eq!(root(|x| (f(x).0 - 9.0, f(x).1), 0.0, 10.0, guess, 0.0), 10.0);
        }
    }
}
