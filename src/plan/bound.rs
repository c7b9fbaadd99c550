//! The hindsight bound: the best that anyone could have earned on a day, from its dual prices.
//!
//! One effective price `p_j = lambda_j - mu_j` per contract covers both forms of the bound: for `p >= 0`, `mu = 0`
//! and for `p < 0`, `lambda = 0` is never worse, as `owed <= left`. So
//! `D(p) = sum_i max(0, b_i, max_j(click_ij + p_j)) - sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)` with `p_j <= penalty_j`,
//! convex in each price. Exact coordinate steps (the price of a contract is an order statistic of what its requests
//! cost otherwise) come close and then stall in a corner of the piecewise linear D; Newton steps on a smoothed D lead out of
//! it, and as the smoothing goes, to a minimum whose prices also serve well.

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
        self.values(prices).sum::<f64>() - self.revenue(prices)
    }

    /// What each request is worth at these prices, `max(0, b_i, max_j(click_ij + p_j))`, minor units.
    pub fn values<'a>(&'a self, prices: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        (0..self.best.len()).map(move |i| {
            let value = |&(j, click): &(u32, f64)| click + prices[j as usize];
            self.entries_of(i).iter().map(value).fold(self.best[i].max(0.0), f64::max)
        })
    }

    /// The requests that contract `j` may take.
    pub fn requests_of(&self, j: usize) -> impl Iterator<Item = usize> + '_ {
        self.takes[j].iter().map(|&(i, _)| i as usize)
    }

    /// What contract `j` adds to `D + S` beside its requests: `penalty_j owed_j - (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    pub fn rent(&self, j: usize, price: f64) -> f64 {
        self.penalty[j] * self.owed[j] - price * if price >= 0.0 { self.owed[j] } else { self.left[j] }
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

    /// Minimises D: coordinate sweeps to a standstill, then Newton steps on the smoothed dual with the smoothing taken away
    /// little by little, then sweeps again.
    fn minimise(&self) -> (f64, Vec<f64>) {
        let n = self.owed.len();
        let start: Vec<f64> = self.penalty.iter().map(|p| 0.5 * p).collect();
        let mut best = (self.dual(&start), start);
        self.sweep(&mut best, 40);
        if n == 0 {
            return best;
        }
        let mut prices = best.1.clone();
        let scale = self.best.iter().sum::<f64>() / self.best.len().max(1) as f64
            + prices.iter().map(|p| p.abs()).sum::<f64>() / n as f64;
        let mut smoothing = 0.1 * scale.max(1e-12);
        for _ in 0..11 {
            for _ in 0..6 {
                if !self.newton_step(&mut prices, smoothing) {
                    break;
                }
            }
            let d = self.dual(&prices);
            if d < best.0 {
                best = (d, prices.clone());
            }
            smoothing *= 0.4;
        }
        self.sweep(&mut best, 4);
        best
    }

    /// Coordinate sweeps from the best prices until they stand still, `most` at most; keeps what is better.
    fn sweep(&self, best: &mut (f64, Vec<f64>), most: usize) {
        let mut prices = best.1.clone();
        let mut costs = Vec::new();
        let mut last = best.0;
        for _ in 0..most {
            for j in 0..prices.len() {
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

    /// One damped Newton step on the dual with every maximum replaced by `smoothing * log(sum(exp(. / smoothing)))`; prices at
    /// a bound that the gradient presses against stay there. False if no step improves.
    fn newton_step(&self, prices: &mut [f64], smoothing: f64) -> bool {
        let n = prices.len();
        let mut gradient = vec![0.0; n];
        let mut curvature = vec![0.0; n * n];
        let value = self.smoothed(prices, smoothing, Some((&mut gradient, &mut curvature)));
        // With cap > required the slope jumps at 0 from -left to -owed.
        let mut step = vec![0.0; n];
        let mut free = Vec::with_capacity(n);
        for j in 0..n {
            let served = gradient[j];
            let slope = if prices[j] > 0.0 || (prices[j] == 0.0 && served < self.owed[j]) {
                served - self.owed[j]
            } else if prices[j] < 0.0 || served > self.left[j] {
                served - self.left[j]
            } else {
                0.0
            };
            gradient[j] = slope;
            let pressed = prices[j] >= self.penalty[j] && slope < 0.0;
            if slope != 0.0 && !pressed {
                free.push(j);
            }
        }
        solve(&curvature, &gradient, &free, n, &mut step);
        let mut length = 1.0;
        for _ in 0..12 {
            let moved: Vec<f64> = (0..n)
                .map(|j| {
                    let p = (prices[j] - length * step[j]).min(self.penalty[j]);
                    // A step over the kink stops at it first.
                    if self.left[j] > self.owed[j] && p * prices[j] < 0.0 { 0.0 } else { p }
                })
                .collect();
            if self.smoothed(&moved, smoothing, None) < value - 1e-12 * value.abs() {
                prices.copy_from_slice(&moved);
                return true;
            }
            length *= 0.5;
        }
        false
    }

    /// The smoothed dual; into `derivatives` go the impressions served to each contract and the matrix of second
    /// derivatives, `[n, n]`.
    fn smoothed(&self, prices: &[f64], smoothing: f64, mut derivatives: Option<(&mut Vec<f64>, &mut Vec<f64>)>) -> f64 {
        let n = prices.len();
        let mut sum = 0.0;
        let mut weights: Vec<(usize, f64)> = Vec::new();
        for i in 0..self.best.len() {
            let floor = self.best[i].max(0.0);
            let entries = self.entries_of(i);
            let top = entries.iter().map(|&(j, click)| click + prices[j as usize]).fold(floor, f64::max);
            weights.clear();
            let mut total = ((floor - top) / smoothing).exp();
            for &(j, click) in entries {
                let x = (click + prices[j as usize] - top) / smoothing;
                // Beyond this a candidate carries no weight in double precision.
                if x > -40.0 {
                    let w = x.exp();
                    total += w;
                    weights.push((j as usize, w));
                }
            }
            sum += top + smoothing * total.ln();
            if let Some((served, curvature)) = &mut derivatives {
                for &(j, w) in &weights {
                    let share = w / total;
                    served[j] += share;
                    curvature[j * n + j] += share / smoothing;
                    for &(k, v) in &weights {
                        curvature[j * n + k] -= share * (v / total) / smoothing;
                    }
                }
            }
        }
        sum - self.revenue(prices)
    }

    /// What the prices earn from the demands: `sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    fn revenue(&self, prices: &[f64]) -> f64 {
        prices.iter().enumerate().map(|(j, &p)| if p >= 0.0 { p * self.owed[j] } else { p * self.left[j] }).sum()
    }
}

/// Solves `(A + ridge) x = b` over the `free` indices by Cholesky; the others stay 0.
fn solve(matrix: &[f64], b: &[f64], free: &[usize], n: usize, x: &mut [f64]) {
    let m = free.len();
    let mut l = vec![0.0; m * m];
    let mut y = vec![0.0; m];
    for (r, &i) in free.iter().enumerate() {
        for (c, &k) in free.iter().enumerate().take(r + 1) {
            let mut v = matrix[i * n + k];
            if r == c {
                v += 1e-9 * v.abs() + 1e-6;
            }
            for t in 0..c {
                v -= l[r * m + t] * l[c * m + t];
            }
            l[r * m + c] = if r == c { v.max(1e-12).sqrt() } else { v / l[c * m + c] };
        }
        let before: f64 = (0..r).map(|t| l[r * m + t] * y[t]).sum();
        y[r] = (b[i] - before) / l[r * m + r];
    }
    for r in (0..m).rev() {
        let after: f64 = (r + 1..m).map(|t| l[t * m + r] * x[free[t]]).sum();
        x[free[r]] = (y[r] - after) / l[r * m + r];
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
    problem.penalty.iter_mut().for_each(|p| *p *= delivery);
    let (upper, prices) = problem.minimise();
    Bound { upper, stake: delivery * log.stake(), prices }
}
