//! The hindsight bound: the best that anyone could have earned on a day, from its dual prices.
//!
//! One effective price `p_j = lambda_j - mu_j` per contract covers both forms of the bound: for `p >= 0`, `mu = 0`
//! and for `p < 0`, `lambda = 0` is never worse, as `owed <= left`. So
//! `D(p) = sum_i max(0, b_i, max_j(click_ij + p_j)) - sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)` with `p_j <= penalty_j`,
//! convex in each price. Exact coordinate steps (the price of a contract is an order statistic of what its requests
//! cost otherwise) come close and then stall in a corner; subgradient steps lead out of it.

use crate::log::CompiledLog;
use crate::log::draw;

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

/// A day as the transport problem sees it.
pub struct Problem {
    /// Per request: the best auction worth, and where its entries start.
    best: Vec<f64>,
    starts: Vec<u32>,
    /// Per entry: contract and worth of the predicted click.
    entries: Vec<(u32, f64)>,
    /// Per contract: the requests that it may take, as (request, own click worth).
    takes: Vec<Vec<(u32, f64)>>,
    owed: Vec<f64>,
    left: Vec<f64>,
    penalty: Vec<f64>,
}

impl Problem {
    /// The problem of a whole day under one seed of rate draws.
    pub fn of_day(log: &CompiledLog, rate_seed: u64) -> Self {
        let contracts = log.contracts();
        let mut problem = Self {
            best: Vec::with_capacity(log.requests().len()),
            starts: vec![0],
            entries: Vec::new(),
            takes: vec![Vec::new(); contracts.len()],
            owed: contracts.iter().map(|c| c.owed() as f64).collect(),
            left: contracts.iter().map(|c| c.left() as f64).collect(),
            penalty: contracts.iter().map(|c| c.penalty).collect(),
        };
        for r in log.requests() {
            let i = problem.best.len() as u32;
            for e in log.entries(r) {
                let c = &contracts[e.contract as usize];
                if draw::passes(rate_seed, r.request_id, c.ad_id, c.rate) {
                    let click = c.click_value * e.pctr;
                    problem.entries.push((e.contract, click));
                    problem.takes[e.contract as usize].push((i, click));
                }
            }
            problem.best.push(r.best);
            problem.starts.push(problem.entries.len() as u32);
        }
        problem
    }

    fn entries_of(&self, i: usize) -> &[(u32, f64)] {
        &self.entries[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// `D(prices)`, minor units. Prices above the penalty are not allowed.
    pub fn dual(&self, prices: &[f64]) -> f64 {
        self.dual_and_served(prices, None)
    }

    fn dual_and_served(&self, prices: &[f64], mut served: Option<&mut [f64]>) -> f64 {
        if let Some(served) = served.as_deref_mut() {
            served.fill(0.0);
        }
        let mut sum = 0.0;
        for i in 0..self.best.len() {
            let mut top = self.best[i].max(0.0);
            let mut winner = None;
            for &(j, click) in self.entries_of(i) {
                let value = click + prices[j as usize];
                if value > top {
                    top = value;
                    winner = Some(j);
                }
            }
            sum += top;
            if let (Some(served), Some(j)) = (served.as_deref_mut(), winner) {
                served[j as usize] += 1.0;
            }
        }
        for (j, &p) in prices.iter().enumerate() {
            sum -= if p >= 0.0 { p * self.owed[j] } else { p * self.left[j] };
        }
        sum
    }

    /// Sets price `j` to a minimiser of D along it.
    fn coordinate_step(&self, j: usize, prices: &mut [f64], costs: &mut Vec<f64>) {
        costs.clear();
        for &(i, click) in &self.takes[j] {
            let other = self
                .entries_of(i as usize)
                .iter()
                .filter(|(k, _)| *k as usize != j)
                .map(|&(k, c)| c + prices[k as usize])
                .fold(self.best[i as usize].max(0.0), f64::max);
            costs.push(other - click);
        }
        let at_zero = costs.iter().filter(|&&c| c < 0.0).count() as f64;
        let price = if at_zero < self.owed[j] {
            order_price(costs, self.owed[j] as usize).max(0.0)
        } else if at_zero > self.left[j] {
            order_price(costs, self.left[j] as usize).min(0.0)
        } else {
            0.0
        };
        prices[j] = price.min(self.penalty[j]);
    }

    /// Minimises D: coordinate sweeps to a standstill, subgradient steps from there, sweeps again.
    fn minimise(&self) -> (f64, Vec<f64>) {
        let n = self.owed.len();
        let mut prices: Vec<f64> = self.penalty.iter().map(|p| 0.5 * p).collect();
        let mut costs = Vec::new();
        let mut best = (self.dual(&prices), prices.clone());
        let sweeps = |prices: &mut Vec<f64>, best: &mut (f64, Vec<f64>), costs: &mut Vec<f64>, most: usize| {
            let mut last = f64::INFINITY;
            for _ in 0..most {
                for j in 0..n {
                    self.coordinate_step(j, prices, costs);
                }
                let d = self.dual(prices);
                if d < best.0 {
                    *best = (d, prices.clone());
                }
                if last - d <= 1e-7 * d.abs() {
                    break;
                }
                last = d;
            }
        };
        sweeps(&mut prices, &mut best, &mut costs, 40);
        let mut served = vec![0.0; n];
        let mut average = vec![0.0; n];
        for round in 0..4 {
            prices.clone_from(&best.1);
            let slopes = self.price_slopes(&prices);
            average.fill(0.0);
            let steps = 80;
            for t in 0..steps {
                self.dual_and_served(&prices, Some(&mut served));
                let rate = 0.5f64.powi(round) / (1.0 + t as f64 / 8.0);
                for j in 0..n {
                    let wanted = if prices[j] >= 0.0 { self.owed[j] } else { self.left[j] };
                    prices[j] = (prices[j] + rate * slopes[j] * (wanted - served[j])).min(self.penalty[j]);
                    average[j] += prices[j] / f64::from(steps);
                }
                let d = self.dual(&prices);
                if d < best.0 {
                    best = (d, prices.clone());
                }
            }
            let d = self.dual(&average);
            if d < best.0 {
                best = (d, average.clone());
            }
            prices.clone_from(&best.1);
            sweeps(&mut prices, &mut best, &mut costs, 6);
        }
        best
    }

    /// How much a price has to rise for one more impression, around the point where the contract stands.
    fn price_slopes(&self, prices: &[f64]) -> Vec<f64> {
        let mut costs = Vec::new();
        (0..prices.len())
            .map(|j| {
                costs.clear();
                for &(i, click) in &self.takes[j] {
                    let other = self
                        .entries_of(i as usize)
                        .iter()
                        .filter(|(k, _)| *k as usize != j)
                        .map(|&(k, c)| c + prices[k as usize])
                        .fold(self.best[i as usize].max(0.0), f64::max);
                    costs.push(other - click);
                }
                if costs.is_empty() {
                    return 0.0;
                }
                let width = (self.owed[j] * 0.1).max(2.0);
                let last = costs.len() - 1;
                let high = order_price(&mut costs, ((self.owed[j] + width) as usize).min(last));
                let low = order_price(&mut costs, ((self.owed[j] - width).max(0.0) as usize).min(last));
                ((high - low) / (2.0 * width)).abs()
            })
            .collect()
    }
}

/// A price at which exactly `wanted` of the requests with these costs are taken: midway between two order statistics.
fn order_price(costs: &mut [f64], wanted: usize) -> f64 {
    if costs.is_empty() {
        return 0.0;
    }
    if wanted >= costs.len() {
        // All are taken at any price above the dearest; the penalty bounds it.
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
    let (upper, prices) = Problem::of_day(log, rate_seed).minimise();
    Bound { upper, stake: log.stake(), prices }
}
