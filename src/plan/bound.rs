//! The hindsight bound: the highest total benefit that any policy could have reached on a day, from its dual prices.
//!
//! One effective price `p_j = lambda_j - mu_j` per contract covers both forms of the bound: for `p >= 0`, `mu = 0`
//! and for `p < 0`, `lambda = 0` is never worse, as `owed <= left`. So
//! `D(p) = sum_i max(0, b_i, max_j(click_ij + p_j)) - sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)` with `p_j <= penalty_j`,
//! convex in each price. Exact coordinate steps (the optimal price of a contract is an order statistic of the other values of
//! its requests) come close and then stall in a corner of the piecewise linear D. Newton steps on a smoothed D lead out of it
//! and, as the smoothing decreases, to a minimum whose prices also serve well.

use rayon::prelude::*;

use crate::log::compiled::Contract;
use crate::log::{CompiledLog, Request, draw};

use super::transport::Transport;

/// Prices and the bound that they prove.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Lowest D found, minor units: no policy earns more.
    pub upper: f64,
    /// `S = sum penalty * owed`, minor units.
    pub stake: f64,
    /// Effective price of each contract, minor units per impression.
    pub prices: Vec<f64>,
}

impl Bound {
    /// Returns the share of the bound that total benefit `j` reaches; `None` if nothing was at stake.
    pub fn share(&self, j: f64) -> Option<f64> {
        let whole = self.upper + self.stake;
        (whole != 0.0).then(|| (j + self.stake) / whole)
    }
}

/// Number of contracts above which few sweeps are made.
const MANY: usize = 256;

/// Requests of a day up to which D is minimised over all of them; on a longer day, over this many, evenly spread over its time.
/// Any prices prove a bound: the sample's prices are inserted into D over the whole day. Their error enters D to second order,
/// which leaves 0.01 points of `UB + S`.
const SAMPLED: usize = 400_000;
/// Requests per parallel task when D is summed over a whole day.
const PIECE: usize = 1 << 16;

/// A day as a transport problem.
pub struct Problem {
    transport: Transport,
    /// Per contract: the requests on which it may be shown, as (request, own click worth).
    takes: Vec<Vec<(u32, f64)>>,
}

impl Problem {
    /// Creates the problem of a whole day under one seed of rate draws.
    pub fn of_day(log: &CompiledLog, rate_seed: u64) -> Self {
        Self::of_rows(log, rate_seed, 0..log.requests().len(), 1.0)
    }

    /// Creates the problem of `wanted` requests, one from each of as many stretches of the day, with demands scaled by the
    /// same share.
    fn of_sample(log: &CompiledLog, rate_seed: u64, wanted: usize) -> Self {
        let len = log.requests().len();
        let rows = (0..wanted).map(|i| {
            let (from, to) = (i * len / wanted, (i + 1) * len / wanted);
            from + (draw::hash64(SAMPLE_SEED, len as u64, i as u64) % (to - from) as u64) as usize
        });
        Self::of_rows(log, rate_seed, rows, wanted as f64 / len as f64)
    }

    /// Creates the problem of ascending rows of a day.
    fn of_rows(log: &CompiledLog, rate_seed: u64, rows: impl Iterator<Item = usize>, share: f64) -> Self {
        let contracts = log.contracts();
        let column = |f: fn(&Contract) -> f64, share: f64| contracts.iter().map(|c| share * f(c)).collect();
        let mut transport = Transport::new(
            column(|c| c.owed() as f64, share),
            column(|c| c.left() as f64, share),
            column(|c| c.penalty, 1.0),
        );
        let mut takes = vec![Vec::new(); contracts.len()];
        let mut passed = Vec::new();
        for (i, r) in log.requests().ascending(rows).enumerate() {
            passing(log, rate_seed, &r, &mut passed);
            for &(contract, click) in &passed {
                takes[contract as usize].push((i as u32, click));
            }
            transport.push(r.best, 1.0, passed.iter().copied());
        }
        Self { transport, takes }
    }

    /// Returns `D(prices)`, minor units. Prices above the penalty are not allowed.
    pub fn dual(&self, prices: &[f64]) -> f64 {
        self.transport.dual(prices)
    }

    /// Sets price `j` to a minimiser of D along that coordinate.
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

    /// Minimises D: coordinate sweeps until they stall, then Newton steps on the smoothed dual with decreasing
    /// smoothing, then sweeps again.
    fn minimise(&mut self) -> (f64, Vec<f64>) {
        let t = &self.transport;
        let start: Vec<f64> = t.penalty.iter().map(|p| 0.5 * p).collect();
        let mut best = (t.dual(&start), start);
        // A sweep's cost grows with the square of a queue's contracts; with many contracts, Newton steps make most of the
        // progress anyway.
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

    /// Does at most `most` coordinate sweeps from the best prices, until they stall; keeps improvements.
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

/// Returns a price at which exactly `wanted` of the requests with these costs are taken: midway between two order statistics.
fn order_price(costs: &mut [f64], wanted: usize) -> f64 {
    if wanted >= costs.len() {
        // All are taken at any price above the highest cost, or there are none; the penalty bounds the price.
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

/// Does the same with every penalty times `delivery`: its prices lie at another point of the frontier between shortage and
/// auction revenue. Bound and stake are those of the scaled penalties.
pub fn weighted_bound(log: &CompiledLog, rate_seed: u64, delivery: f64) -> Bound {
    sampled_bound(log, rate_seed, delivery, SAMPLED)
}

/// Does [`weighted_bound`], minimised over at most `most` requests.
pub fn sampled_bound(log: &CompiledLog, rate_seed: u64, delivery: f64, most: usize) -> Bound {
    let len = log.requests().len();
    let stake = delivery * log.stake();
    let minimise = |mut problem: Problem| {
        problem.transport.penalty.iter_mut().for_each(|p| *p *= delivery);
        problem.minimise()
    };
    if len <= most {
        let (upper, prices) = minimise(Problem::of_day(log, rate_seed));
        return Bound { upper, stake, prices };
    }
    let (of_sample, prices) = minimise(Problem::of_sample(log, rate_seed, most));
    let upper = dual_of_day(log, rate_seed, &prices);
    let whole = upper + stake;
    let off = if whole > 0.0 { 100.0 * (upper - of_sample * len as f64 / most as f64) / whole } else { 0.0 };
    tracing::info!(
        "{}: bound {upper:.0} proved over all {len} requests by the prices of {most}; on these alone it differs by {off:+.3} points",
        log.name()
    );
    Bound { upper, stake, prices }
}

/// Seed of the sample of a long day's requests.
const SAMPLE_SEED: u64 = 0x0b0d_d001;

/// Returns D at these prices over all requests of a day.
fn dual_of_day(log: &CompiledLog, rate_seed: u64, prices: &[f64]) -> f64 {
    let rows = log.requests().len();
    let pieces = (0..rows.div_ceil(PIECE)).into_par_iter().map(|i| {
        crate::cancel::point();
        let mut sum = 0.0;
        visit(log, rate_seed, i * PIECE..rows.min((i + 1) * PIECE), |_, best, passed| {
            sum += value(best, passed, prices)
        });
        sum
    });
    // Summed in order, so that the sum does not depend on the schedule of the threads.
    let requests: f64 = pieces.collect::<Vec<f64>>().iter().sum();
    requests - log.contracts().iter().zip(prices).map(|(c, &price)| takings(c, price)).sum::<f64>()
}

/// Calls `each` for rows of a day with the best auction worth and the contracts that pass the rate draw, with their click worths.
pub fn visit(
    log: &CompiledLog,
    rate_seed: u64,
    rows: std::ops::Range<usize>,
    mut each: impl FnMut(usize, f64, &[(u32, f64)]),
) {
    let mut passed = Vec::new();
    for (row, r) in rows.clone().zip(log.requests().range(rows)) {
        passing(log, rate_seed, &r, &mut passed);
        each(row, r.best, &passed);
    }
}

fn passing(log: &CompiledLog, rate_seed: u64, request: &Request, passed: &mut Vec<(u32, f64)>) {
    passed.clear();
    for e in log.entries(request) {
        let c = &log.contracts()[e.contract as usize];
        if draw::passes(rate_seed, request.request_id, c.ad_id, c.rate) {
            passed.push((e.contract, c.click_value * e.pctr));
        }
    }
}

/// Returns the value of a request at these prices, `max(0, b, max_j(click_j + p_j))`, minor units.
pub fn value(best: f64, passed: &[(u32, f64)], prices: &[f64]) -> f64 {
    passed.iter().map(|&(j, click)| click + prices[j as usize]).fold(best.max(0.0), f64::max)
}

/// Returns a contract's own term of `D + S`, without its requests: `penalty owed - (p >= 0 ? p owed : p left)`.
pub fn rent(c: &Contract, price: f64) -> f64 {
    c.penalty * c.owed() as f64 - takings(c, price)
}

fn takings(c: &Contract, price: f64) -> f64 {
    price * if price >= 0.0 { c.owed() as f64 } else { c.left() as f64 }
}
