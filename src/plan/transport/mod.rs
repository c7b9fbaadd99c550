//! The transport problem between weighted requests and contracts, and its dual.
//!
//! A request of weight `w` stands for `w` equal ones. [`super::bound`] minimises the dual of a whole logged day, with all
//! weights 1; the receding-horizon baseline that of a sample of the requests still to come.

mod exponentials;
mod solve;

use exponentials::exponentials;
pub(super) use solve::cholesky;
use solve::conjugate_gradients;

/// Number of unknowns above which conjugate gradients replace Cholesky, whose cost grows with their cube, and the Hessian is
/// not built as a matrix.
const DIRECT: usize = 256;

/// Requests with the contracts that may take them, and the contracts' demands.
#[derive(Debug, Clone)]
pub struct Transport {
    /// Per request: the best auction worth, its weight, and the start of its entries.
    pub(super) best: Vec<f64>,
    weight: Vec<f64>,
    starts: Vec<u32>,
    /// Per entry: contract and worth of the predicted click.
    entries: Vec<(u32, f64)>,
    /// Per contract: impressions owed and still allowed, and the penalty per missing impression, minor units.
    pub(super) owed: Vec<f64>,
    pub(super) left: Vec<f64>,
    pub(super) penalty: Vec<f64>,
    /// Of the prices evaluated last.
    doubt: Doubt,
}

impl Transport {
    /// Creates a problem without requests; `owed <= left` for each contract.
    pub fn new(owed: Vec<f64>, left: Vec<f64>, penalty: Vec<f64>) -> Self {
        let doubt = Doubt::default();
        Self { best: vec![], weight: vec![], starts: vec![0], entries: vec![], owed, left, penalty, doubt }
    }

    /// Removes all requests and sets the contracts' demands.
    pub fn restate(&mut self, owed: Vec<f64>, left: Vec<f64>) {
        self.best.clear();
        self.weight.clear();
        self.starts.truncate(1);
        self.entries.clear();
        (self.owed, self.left) = (owed, left);
    }

    /// Adds a request that stands for `weight` equal ones, with the contracts that may take it and the worth of their clicks.
    pub fn push(&mut self, best: f64, weight: f64, entries: impl IntoIterator<Item = (u32, f64)>) {
        self.best.push(best);
        self.weight.push(weight);
        self.entries.extend(entries);
        self.starts.push(self.entries.len() as u32);
    }

    pub(super) fn entries_of(&self, i: usize) -> &[(u32, f64)] {
        &self.entries[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// Returns the typical size of a price: the mean best auction worth plus the mean price. Unit of the smoothing.
    pub fn scale(&self, prices: &[f64]) -> f64 {
        let weight: f64 = self.weight.iter().sum();
        let worth: f64 = self.best.iter().zip(&self.weight).map(|(b, w)| b * w).sum();
        let price: f64 = prices.iter().map(|p| p.abs()).sum();
        let mean = |sum: f64, n: f64| if n > 0.0 { sum / n } else { 0.0 };
        mean(worth, weight) + mean(price, prices.len() as f64)
    }

    /// Returns `D(prices)`, minor units. Prices above the penalty are not allowed.
    pub fn dual(&self, prices: &[f64]) -> f64 {
        let paid: f64 = (0..self.best.len()).map(|i| self.weight[i] * self.value(i, prices)).sum();
        paid - self.revenue(prices)
    }

    /// Returns the value of one request of row `i` at these prices: the maximum of nothing, the auction and its contracts.
    pub(super) fn value(&self, i: usize, prices: &[f64]) -> f64 {
        let value = |&(j, click): &(u32, f64)| click + prices[j as usize];
        self.entries_of(i).iter().map(value).fold(self.best[i].max(0.0), f64::max)
    }

    /// Does up to `steps` damped Newton steps on the dual with every maximum replaced by
    /// `smoothing * log(sum(exp(. / smoothing)))`; prices at an active bound stay there. Ends early if no step improves; returns
    /// the number of steps.
    pub fn descend(&mut self, prices: &mut [f64], smoothing: f64, steps: usize) -> usize {
        self.newton(prices, smoothing, steps, 0.0)
    }

    /// Does the same for prices that need not be exact: the first step that moves no price by more than half of the smoothing
    /// is the last, and is taken without a line search. Within that distance second derivatives change by less than a factor of
    /// `e`, so a full Newton step descends, and the remaining error is of second order.
    pub fn follow(&mut self, prices: &mut [f64], smoothing: f64, steps: usize) -> usize {
        self.newton(prices, smoothing, steps, 0.5 * smoothing)
    }

    fn newton(&mut self, prices: &mut [f64], smoothing: f64, steps: usize, blind: f64) -> usize {
        let mut value = self.smoothed(prices, smoothing);
        for taken in 0..steps {
            crate::cancel::point();
            let step = self.newton_step(prices, smoothing);
            if step.iter().all(|s| s.abs() <= blind) {
                prices.copy_from_slice(&self.moved(prices, &step, 1.0));
                return taken + 1;
            }
            // The successful trial leaves its `doubt`, from which the next step is computed.
            let mut lengths = (0..12).map(|halvings| 0.5f64.powi(halvings));
            let improved = lengths.find_map(|length| {
                let moved = self.moved(prices, &step, length);
                let better = self.smoothed(&moved, smoothing);
                (better < value - 1e-12 * value.abs()).then_some((moved, better))
            });
            let Some((moved, better)) = improved else { return taken };
            prices.copy_from_slice(&moved);
            value = better;
        }
        steps
    }

    /// Returns the Newton step from `prices`, which must be the ones evaluated last; to be subtracted.
    fn newton_step(&self, prices: &[f64], smoothing: f64) -> Vec<f64> {
        let n = prices.len();
        let mut gradient = self.served();
        // With cap > required the slope jumps at 0 from -left to -owed.
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
        // If a price is so far off that no request is in doubt, its second derivative is 0. The damping then limits its step to
        // half the typical size of a price.
        let reach = 0.5 * self.scale(prices).max(1e-12);
        let damping = |j: usize, diagonal: f64| 1e-9 * diagonal.abs() + gradient[j].abs() / reach;
        self.solve(smoothing, &free, &gradient, damping, INEXACT)
    }

    /// Solves the smoothed dual's Hessian, with `damping(contract, diagonal)` added to its diagonal, for `target` over the `free`
    /// contracts; the others stay at 0. `[contracts]`. With more than [`DIRECT`] of them, up to a residual of `tolerance`.
    fn solve(
        &self,
        smoothing: f64,
        free: &[usize],
        target: &[f64],
        damping: impl Fn(usize, f64) -> f64,
        tolerance: f64,
    ) -> Vec<f64> {
        let n = target.len();
        let mut solution = vec![0.0; n];
        if free.len() <= DIRECT {
            let mut place = vec![usize::MAX; n];
            free.iter().enumerate().for_each(|(at, &j)| place[j] = at);
            let mut curvature = self.curvature(smoothing, &place, free.len());
            for (at, &j) in free.iter().enumerate() {
                let diagonal = &mut curvature[at * free.len() + at];
                *diagonal += damping(j, *diagonal);
            }
            let wanted: Vec<f64> = free.iter().map(|&j| target[j]).collect();
            free.iter().zip(cholesky(&curvature, &wanted)).for_each(|(&j, x)| solution[j] = x);
            return solution;
        }
        let mut fixed = vec![true; n];
        free.iter().for_each(|&j| fixed[j] = false);
        let mut diagonal = self.diagonal(smoothing);
        let damping: Vec<f64> = diagonal.iter().enumerate().map(|(j, d)| damping(j, *d)).collect();
        diagonal.iter_mut().zip(&damping).for_each(|(d, more)| *d += more);
        let curvature = Curvature::of(self, smoothing);
        let product = |direction: &[f64], image: &mut Vec<f64>| {
            image.clear();
            image.extend(damping.iter().zip(direction).map(|(more, d)| more * d));
            curvature.add(direction, image);
            image.iter_mut().zip(&fixed).filter(|(_, fixed)| **fixed).for_each(|(v, _)| *v = 0.0);
        };
        let wanted: Vec<f64> = target.iter().zip(&fixed).map(|(t, fixed)| if *fixed { 0.0 } else { *t }).collect();
        conjugate_gradients(product, &diagonal, &wanted, tolerance, &mut solution);
        solution
    }

    /// Returns the sensitivity of the prices at a minimum of the dual smoothed by `smoothing`: the derivative of each price by
    /// the log of all demands, minor units; and the derivative of each contract's supply, as a share of its demand, by the log
    /// of its own price. Prices at a bound do not move.
    pub fn sensitivity(&mut self, prices: &[f64], smoothing: f64) -> (Vec<f64>, Vec<f64>) {
        self.smoothed(prices, smoothing);
        let n = prices.len();
        let diagonal = self.diagonal(smoothing);
        let own = (0..n).map(|j| diagonal[j] * prices[j] / self.owed[j].max(1e-9)).collect();
        let scale = self.scale(prices).max(1e-12);
        let free: Vec<usize> =
            (0..n).filter(|&j| prices[j] > 0.0 && prices[j] < self.penalty[j] && self.owed[j] > 0.0).collect();
        // Without a request near its price, a contract's price would move beyond the range of the smoothing; the damping
        // prevents that.
        let moves = self.solve(smoothing, &free, &self.owed, |j, _| 0.1 * self.owed[j] / scale, 1e-5);
        (moves, own)
    }

    /// Returns the prices after a step of `length`.
    fn moved(&self, prices: &[f64], step: &[f64], length: f64) -> Vec<f64> {
        let one = |(j, (price, step)): (usize, (&f64, &f64))| {
            let p = (price - length * step).min(self.penalty[j]);
            // A step over the kink stops at it first.
            if self.left[j] > self.owed[j] && p * price < 0.0 { 0.0 } else { p }
        };
        prices.iter().zip(step).enumerate().map(one).collect()
    }

    /// Returns the smoothed dual; stores the requests in doubt at these prices.
    fn smoothed(&mut self, prices: &[f64], smoothing: f64) -> f64 {
        let mut doubt = std::mem::take(&mut self.doubt);
        doubt.clear(prices.len(), self.best.len() + self.entries.len());
        let reach = NEGLIGIBLE * smoothing;
        let per_smoothing = 1.0 / smoothing;
        let mut sum = 0.0;
        let mut from = 0;
        for (i, (&best, &weight)) in self.best.iter().zip(&self.weight).enumerate() {
            let floor = best.max(0.0);
            let entries = self.entries_of(i);
            let worth = |&(j, click): &(u32, f64)| click + prices[j as usize];
            let top = entries.iter().map(worth).fold(floor, |top, worth| if worth > top { worth } else { top });
            sum += weight * top;
            // Each candidate is written, and counts only if it is near: this avoids an unpredictable branch.
            let mut to = from;
            let mut candidate = |j, worth: f64| {
                let below = top - worth;
                doubt.candidates[to] = j;
                doubt.weights[to] = -below * per_smoothing;
                to += usize::from(below < reach);
            };
            candidate(NOBODY, floor);
            entries.iter().for_each(|entry| candidate(entry.0, worth(entry)));
            if to > from + 1 {
                doubt.requests.push((i as u32, to as u32));
                from = to;
            } else if doubt.candidates[from] != NOBODY {
                doubt.sure[doubt.candidates[from] as usize] += weight;
            }
        }
        exponentials(&mut doubt.weights[..from]);
        let mut above = 0.0;
        let mut from = 0;
        for &(i, to) in &doubt.requests {
            let total: f64 = doubt.weights[from..to as usize].iter().sum();
            above += self.weight[i as usize] * total.ln();
            from = to as usize;
        }
        self.doubt = doubt;
        sum + smoothing * above - self.revenue(prices)
    }

    /// Returns the impressions served to each contract: the gradient of the smoothed dual without its revenue.
    fn served(&self) -> Vec<f64> {
        let mut served = self.doubt.sure.clone();
        self.doubt.each(|i, candidates, weights, per_total| {
            for (&j, &w) in candidates.iter().zip(weights).filter(|(j, _)| **j != NOBODY) {
                served[j as usize] += self.weight[i] * w * per_total;
            }
        });
        served
    }

    /// Returns the Hessian of the smoothed dual, `[m, m]` over the contracts that have a `place` below `m`; only the
    /// lower half is set.
    fn curvature(&self, smoothing: f64, place: &[usize], m: usize) -> Vec<f64> {
        let mut curvature = vec![0.0; m * m];
        self.doubt.each(|i, candidates, weights, per_total| {
            let per_smoothing = self.weight[i] * per_total / smoothing;
            let placed = |j: u32| if j == NOBODY { usize::MAX } else { place[j as usize] };
            for (at, (&j, &w)) in candidates.iter().zip(weights).enumerate() {
                let j = placed(j);
                if j == usize::MAX {
                    continue;
                }
                let slope = per_smoothing * w;
                curvature[j * m + j] += slope;
                for (&k, &other) in candidates[..=at].iter().zip(weights) {
                    let k = placed(k);
                    if k != usize::MAX {
                        let (row, column) = (j.max(k), j.min(k));
                        curvature[row * m + column] -= slope * other * per_total;
                    }
                }
            }
        });
        curvature
    }

    /// Returns the diagonal of the Hessian of the smoothed dual.
    fn diagonal(&self, smoothing: f64) -> Vec<f64> {
        let mut diagonal = vec![0.0; self.owed.len()];
        self.doubt.each(|i, candidates, weights, per_total| {
            for (&j, &w) in candidates.iter().zip(weights).filter(|(j, _)| **j != NOBODY) {
                let share = w * per_total;
                diagonal[j as usize] += self.weight[i] * share / smoothing * (1.0 - share);
            }
        });
        diagonal
    }

    /// Returns the revenue of the prices from the demands: `sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    fn revenue(&self, prices: &[f64]) -> f64 {
        prices.iter().enumerate().map(|(j, &p)| if p >= 0.0 { p * self.owed[j] } else { p * self.left[j] }).sum()
    }
}

/// Relative residual of a Newton step: an inexact step descends too, and the next one has another Hessian.
const INEXACT: f64 = 0.03;

/// The Hessian as an operator on a direction, without its matrix, which would take 39 GB for 70,000 contracts.
struct Curvature {
    /// Per request in doubt: weight over smoothing, and the end of its contracts.
    requests: Vec<(f64, u32)>,
    /// Contract, and the share of the request that it gets.
    shares: Vec<(u32, f64)>,
}

impl Curvature {
    fn of(transport: &Transport, smoothing: f64) -> Self {
        let doubt = &transport.doubt;
        let mut requests = Vec::with_capacity(doubt.requests.len());
        let mut shares = Vec::with_capacity(doubt.requests.last().map_or(0, |&(_, end)| end as usize));
        doubt.each(|i, candidates, weights, per_total| {
            let contracts = candidates.iter().zip(weights).filter(|(j, _)| **j != NOBODY);
            shares.extend(contracts.map(|(&j, w)| (j, w * per_total)));
            requests.push((transport.weight[i] / smoothing, shares.len() as u32));
        });
        Self { requests, shares }
    }

    /// Adds the Hessian times `direction` to `image`.
    fn add(&self, direction: &[f64], image: &mut [f64]) {
        let mut from = 0;
        for &(weight, to) in &self.requests {
            let shares = &self.shares[from..to as usize];
            from = to as usize;
            let mean: f64 = shares.iter().map(|&(j, share)| share * direction[j as usize]).sum();
            for &(j, share) in shares {
                image[j as usize] += weight * share * (direction[j as usize] - mean);
            }
        }
    }
}

/// Distance below the best candidate of a request, in smoothings, beyond which a candidate has no weight: `exp(-20)` of a request
/// is less than the rounding of a sum over a day of them.
const NEGLIGIBLE: f64 = 20.0;
/// Candidate that stands for showing no contract.
const NOBODY: u32 = u32::MAX;

/// Result of evaluating the smoothed dual: the requests in doubt with their candidates, and the total of the others.
#[derive(Debug, Clone, Default)]
struct Doubt {
    /// Requests with several candidates that count, and the end of their candidates.
    requests: Vec<(u32, u32)>,
    /// Contract, or [`NOBODY`], and weight of each candidate, request by request; the best one's weight is 1.
    /// Contents beyond the last request are undefined.
    candidates: Vec<u32>,
    weights: Vec<f64>,
    /// Per contract: the weight of the requests that it takes without doubt.
    sure: Vec<f64>,
}

impl Doubt {
    /// Calls `body` for each request with its candidates, their weights, and one over the sum of these.
    fn each(&self, mut body: impl FnMut(usize, &[u32], &[f64], f64)) {
        let mut from = 0;
        for &(i, to) in &self.requests {
            let within = from..to as usize;
            from = to as usize;
            let weights = &self.weights[within.clone()];
            body(i as usize, &self.candidates[within], weights, 1.0 / weights.iter().sum::<f64>());
        }
    }

    /// Resets it, with room for `candidates` candidates.
    fn clear(&mut self, contracts: usize, candidates: usize) {
        self.requests.clear();
        self.candidates.resize(candidates, NOBODY);
        self.weights.resize(candidates, 0.0);
        self.sure.clear();
        self.sure.resize(contracts, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Hessian was a matrix of contracts by contracts: 5,000 contracts took minutes, and 70,000 ended with an allocation
    /// of 39 GB.
    #[test]
    fn the_curvature_times_a_direction_needs_no_matrix() {
        let hash = |i: u64, k: u64| crate::log::draw::hash64(3, i, k) as f64 / u64::MAX as f64;
        let n = 30;
        let column = |k: u64, factor: f64| (0..n).map(|j| factor * (0.2 + hash(j, k))).collect::<Vec<f64>>();
        let owed = column(1, 30.0);
        let mut transport = Transport::new(owed.clone(), owed, column(3, 4.0));
        for i in 0..500 {
            let entries = (0..n).filter(|&j| hash(i, 10 + j) < 0.3).map(|j| (j as u32, 0.3 * hash(i, 50 + j)));
            transport.push(2.0 * hash(i, 4), 1.0 + hash(i, 5), entries.collect::<Vec<_>>());
        }
        let (prices, smoothing) = (column(5, 2.0), 0.1);
        transport.smoothed(&prices, smoothing);
        let m = n as usize;
        let matrix = transport.curvature(smoothing, &(0..m).collect::<Vec<_>>(), m);
        let direction = column(6, 1.0);
        let mut image = vec![0.0; m];
        Curvature::of(&transport, smoothing).add(&direction, &mut image);
        let diagonal = transport.diagonal(smoothing);
        for i in 0..m {
            let row: f64 = (0..m).map(|k| matrix[i.max(k) * m + i.min(k)] * direction[k]).sum();
            assert!((row - image[i]).abs() < 1e-9 * (1.0 + row.abs()), "{row} {}", image[i]);
            assert!((matrix[i * m + i] - diagonal[i]).abs() < 1e-9 * (1.0 + diagonal[i]), "{i}");
        }
    }

    /// Many contracts reach the same bound as few: both solvers of a Newton step lead to the same optimum.
    #[test]
    fn more_contracts_than_a_matrix_is_made_for_are_priced() {
        let hash = |i: u64, k: u64| crate::log::draw::hash64(5, i, k) as f64 / u64::MAX as f64;
        let n = 2 * DIRECT as u64;
        let owed: Vec<f64> = (0..n).map(|j| 1.0 + (6.0 * hash(j, 1)).floor()).collect();
        let penalty: Vec<f64> = (0..n).map(|j| 1.0 + 3.0 * hash(j, 2)).collect();
        let mut transport = Transport::new(owed.clone(), owed, penalty.clone());
        for i in 0..6000 {
            let entries = (0..4).map(|k| ((hash(i, 10 + k) * n as f64) as u32, 0.0));
            let mut entries: Vec<(u32, f64)> = entries.collect();
            entries.sort_by_key(|e| e.0);
            entries.dedup_by_key(|e| e.0);
            transport.push(2.0 * hash(i, 4), 1.0, entries);
        }
        let mut prices: Vec<f64> = penalty.iter().map(|p| 0.5 * p).collect();
        let start = transport.dual(&prices);
        for smoothing in [0.5, 0.1, 0.02, 0.004] {
            transport.descend(&mut prices, smoothing, 30);
        }
        let end = transport.dual(&prices);
        assert!(end < start, "{end} {start}");
        // At the optimum, moving any one price gains next to nothing.
        for j in (0..n as usize).step_by(37) {
            for by in [-0.05, 0.05] {
                let mut moved = prices.clone();
                moved[j] = (moved[j] + by).min(penalty[j]);
                assert!(transport.dual(&moved) > end - 0.02, "{j}");
            }
        }
    }

    /// Several steps in one call equal single steps, to the last bit: the kept state of a trial equals its recomputation.
    #[test]
    fn several_steps_are_single_steps() {
        let hash = |i: u64, k: u64| crate::log::draw::hash64(7, i, k) as f64 / u64::MAX as f64;
        let n = 6;
        let column = |k: u64, factor: f64| (0..n).map(|j| factor * (0.2 + hash(j, k))).collect::<Vec<f64>>();
        let owed = column(1, 60.0);
        let left = owed.iter().zip(column(2, 8.0)).map(|(o, more)| o + more.floor()).collect();
        let mut transport = Transport::new(owed, left, column(3, 4.0));
        for i in 0..400 {
            let entries = (0..n).filter(|&j| hash(i, 10 + j) < 0.5).map(|j| (j as u32, 0.3 * hash(i, 20 + j)));
            transport.push(2.0 * hash(i, 4), 1.0, entries.collect::<Vec<_>>());
        }
        for smoothing in [1.0, 0.1, 0.003] {
            let (mut at_once, mut singly) = (column(5, 2.0), column(5, 2.0));
            let taken = transport.descend(&mut at_once, smoothing, 7);
            let mut one_by_one = 0;
            while one_by_one < 7 && transport.descend(&mut singly, smoothing, 1) == 1 {
                one_by_one += 1;
            }
            assert!(taken > 2, "{taken} steps show nothing");
            assert_eq!((taken, at_once), (one_by_one, singly));
        }
    }

    /// For small moves `follow` ends where `descend` does, within the smoothing, and evaluates the dual once instead of twice.
    #[test]
    fn following_ends_where_descending_does() {
        let hash = |i: u64, k: u64| crate::log::draw::hash64(11, i, k) as f64 / u64::MAX as f64;
        let n = 5;
        let column = |k: u64, factor: f64| (0..n).map(|j| factor * (0.2 + hash(j, k))).collect::<Vec<f64>>();
        let owed = column(1, 80.0);
        let mut transport = Transport::new(owed.clone(), owed, column(3, 4.0));
        for i in 0..500 {
            let entries = (0..n).filter(|&j| hash(i, 10 + j) < 0.5).map(|j| (j as u32, 0.3 * hash(i, 20 + j)));
            transport.push(2.0 * hash(i, 4), 1.0, entries.collect::<Vec<_>>());
        }
        let smoothing = 0.05;
        let mut exact = column(5, 2.0);
        transport.descend(&mut exact, smoothing, 50);
        let worst = |prices: &[f64]| prices.iter().zip(&exact).map(|(p, e)| (p - e).abs()).fold(0.0, f64::max);
        for (off, steps) in [(0.3 * smoothing, 1), (20.0 * smoothing, 12)] {
            let mut prices: Vec<f64> =
                exact.iter().zip(&transport.penalty).map(|(p, most)| (p + off).min(*most)).collect();
            let taken = transport.follow(&mut prices, smoothing, 12);
            assert!(taken <= steps, "{taken} steps from {off}");
            assert!(worst(&prices) < 0.1 * smoothing, "{} from {off}", worst(&prices));
        }
    }

    /// One request of weight `w` is `w` requests of weight 1, for every part of the dual.
    #[test]
    fn weights_count_requests() {
        let terms = || Transport::new(vec![3.0, 2.0], vec![4.0, 2.0], vec![2.0, 3.0]);
        let rows = [(0.5, vec![(0, 0.1), (1, 0.3)]), (1.2, vec![(0, 0.2)]), (0.0, vec![(1, 0.0)]), (0.7, vec![])];
        let (mut weighted, mut repeated) = (terms(), terms());
        for (best, entries) in rows {
            weighted.push(best, 3.0, entries.clone());
            for _ in 0..3 {
                repeated.push(best, 1.0, entries.clone());
            }
        }
        let mut prices = [vec![0.6, -0.1], vec![0.6, -0.1]];
        assert!((weighted.dual(&prices[0]) - repeated.dual(&prices[1])).abs() < 1e-12);
        assert!((weighted.scale(&prices[0]) - repeated.scale(&prices[1])).abs() < 1e-12);
        for _ in 0..5 {
            let taken = weighted.descend(&mut prices[0], 0.2, 1);
            assert_eq!(taken, repeated.descend(&mut prices[1], 0.2, 1));
        }
        assert!(prices[0].iter().zip(&prices[1]).all(|(a, b)| (a - b).abs() < 1e-9), "{prices:?}");
    }
}
