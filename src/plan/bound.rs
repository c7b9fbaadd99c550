//! The hindsight bound: the best that anyone could have earned on a day, from its dual prices.
//!
//! One effective price `p_j = lambda_j - mu_j` per contract covers both forms of the bound: for `p >= 0`, `mu = 0`
//! and for `p < 0`, `lambda = 0` is never worse, as `owed <= left`. So
//! `D(p) = sum_i max(0, b_i, max_j(click_ij + p_j)) - sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)` with `p_j <= penalty_j`,
//! convex in each price. Exact coordinate steps (the price of a contract is an order statistic of what its requests
//! cost otherwise) come close and then stall in a corner of the piecewise linear D; Newton steps on a smoothed D lead out of
//! it, and as the smoothing goes, to a minimum whose prices also serve well.

use crate::log::CompiledLog;
use crate::log::compiled::Contract;
use crate::log::draw;

use super::transport::Transport;

/// Prices and the bound that they prove.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The least D found, minor units: no policy earns more.
    pub upper: f64,
    /// `S = sum penalty * owed`, minor units.
    pub stake: f64,
    /// Effective price of each contract, minor units per impression.
    pub prices: Vec<f64>,
}

impl Bound {
    /// The part of the bound that total benefit `j` reaches; `None` where nothing was at stake.
    pub fn share(&self, j: f64) -> Option<f64> {
        let whole = self.upper + self.stake;
        (whole != 0.0).then(|| (j + self.stake) / whole)
    }
}

/// Contracts above which few sweeps are made.
const MANY: usize = 256;

/// A day as the transport problem sees it.
pub struct Problem {
    transport: Transport,
    /// Per contract: the requests that it may take, as (request, own click worth).
    takes: Vec<Vec<(u32, f64)>>,
}

impl Problem {
    /// The problem of a whole day under one seed of rate draws.
    pub fn of_day(log: &CompiledLog, rate_seed: u64) -> Self {
        let contracts = log.contracts();
        let column = |f: fn(&Contract) -> f64| contracts.iter().map(f).collect();
        let mut transport =
            Transport::new(column(|c| c.owed() as f64), column(|c| c.left() as f64), column(|c| c.penalty));
        let mut takes = vec![Vec::new(); contracts.len()];
        let mut passed = Vec::new();
        for (i, r) in log.requests().iter().enumerate() {
            passed.clear();
            for e in log.entries(r) {
                let c = &contracts[e.contract as usize];
                if draw::passes(rate_seed, r.request_id, c.ad_id, c.rate) {
                    let click = c.click_value * e.pctr;
                    passed.push((e.contract, click));
                    takes[e.contract as usize].push((i as u32, click));
                }
            }
            transport.push(r.best, 1.0, passed.iter().copied());
        }
        Self { transport, takes }
    }

    /// `D(prices)`, minor units. Prices above the penalty are not allowed.
    pub fn dual(&self, prices: &[f64]) -> f64 {
        self.transport.dual(prices)
    }

    /// What each request is worth at these prices, `max(0, b_i, max_j(click_ij + p_j))`, minor units.
    pub fn values<'a>(&'a self, prices: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        (0..self.transport.best.len()).map(move |i| self.transport.value(i, prices))
    }

    /// The requests that contract `j` may take.
    pub fn requests_of(&self, j: usize) -> impl Iterator<Item = usize> + '_ {
        self.takes[j].iter().map(|&(i, _)| i as usize)
    }

    /// What contract `j` adds to `D + S` beside its requests: `penalty_j owed_j - (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    pub fn rent(&self, j: usize, price: f64) -> f64 {
        let t = &self.transport;
        t.penalty[j] * t.owed[j] - price * if price >= 0.0 { t.owed[j] } else { t.left[j] }
    }

    /// Sets price `j` to a minimiser of D along it.
    fn coordinate_step(&self, j: usize, prices: &mut [f64], costs: &mut Vec<f64>) {
        let t = &self.transport;
        costs.clear();
        for &(i, click) in &self.takes[j] {
            let other = t
                .entries_of(i as usize)
                .iter()
                .filter(|(k, _)| *k as usize != j)
                .map(|&(k, c)| c + prices[k as usize])
                .fold(t.best[i as usize].max(0.0), f64::max);
            costs.push(other - click);
        }
        let at_zero = costs.iter().filter(|&&c| c < 0.0).count() as f64;
        let price = if at_zero < t.owed[j] {
            order_price(costs, t.owed[j] as usize).max(0.0)
        } else if at_zero > t.left[j] {
            order_price(costs, t.left[j] as usize).min(0.0)
        } else {
            0.0
        };
        prices[j] = price.min(t.penalty[j]);
    }

    /// Minimises D: coordinate sweeps to a standstill, then Newton steps on the smoothed dual with the smoothing taken away
    /// little by little, then sweeps again.
    fn minimise(&mut self) -> (f64, Vec<f64>) {
        let t = &self.transport;
        let start: Vec<f64> = t.penalty.iter().map(|p| 0.5 * p).collect();
        let mut best = (t.dual(&start), start);
        // A sweep's cost grows with the square of a queue's contracts; of many contracts, Newton steps do the most of it anyway.
        let (first, last) = if best.1.len() > MANY { (2, 1) } else { (40, 4) };
        self.sweep(&mut best, first);
        if best.1.is_empty() {
            return best;
        }
        let mut prices = best.1.clone();
        let t = &mut self.transport;
        let mut smoothing = 0.1 * t.scale(&prices).max(1e-12);
        for _ in 0..11 {
            t.descend(&mut prices, smoothing, 6);
            let d = t.dual(&prices);
            if d < best.0 {
                best = (d, prices.clone());
            }
            smoothing *= 0.4;
        }
        self.sweep(&mut best, last);
        best
    }

    /// Coordinate sweeps from the best prices until they stand still, `most` at most; keeps what is better.
    fn sweep(&self, best: &mut (f64, Vec<f64>), most: usize) {
        let mut prices = best.1.clone();
        let mut costs = Vec::new();
        let mut last = best.0;
        for _ in 0..most {
            for j in 0..prices.len() {
                crate::cancel::point();
                self.coordinate_step(j, &mut prices, &mut costs);
            }
            let d = self.dual(&prices);
            if d < best.0 {
                *best = (d, prices.clone());
            }
            if last - d <= 1e-7 * d.abs() {
                break;
            }
            last = d;
        }
    }
}

/// A price at which exactly `wanted` of the requests with these costs are taken: midway between two order statistics.
fn order_price(costs: &mut [f64], wanted: usize) -> f64 {
    if wanted >= costs.len() {
        // All are taken at any price above the dearest, none if there are none; the penalty bounds it.
        return f64::INFINITY;
    }
    let (below, at, _) = costs.select_nth_unstable_by(wanted, f64::total_cmp);
    match below.iter().copied().max_by(f64::total_cmp) {
        Some(last_taken) => 0.5 * (last_taken + *at),
        None => *at - 1e-6 * (1.0 + at.abs()),
    }
}

/// Minimises D for a day under one seed of rate draws.
pub fn hindsight_bound(log: &CompiledLog, rate_seed: u64) -> Bound {
    weighted_bound(log, rate_seed, 1.0)
}

/// The same with every penalty times `delivery`: its prices serve at another point of the frontier between shortage and
/// auction revenue. Bound and stake are those of the scaled penalties.
pub fn weighted_bound(log: &CompiledLog, rate_seed: u64, delivery: f64) -> Bound {
    let mut problem = Problem::of_day(log, rate_seed);
    problem.transport.penalty.iter_mut().for_each(|p| *p *= delivery);
    let (upper, prices) = problem.minimise();
    Bound { upper, stake: delivery * log.stake(), prices }
}
