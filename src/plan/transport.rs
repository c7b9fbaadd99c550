//! The transport problem between weighted requests and contracts, and its dual.
//!
//! A request of weight `w` stands for `w` alike. [`super::bound`] minimises the dual of a whole logged day, where each weighs 1;
//! the receding-horizon baseline that of a sample of what is still to come.

use multiversion::multiversion;

/// Requests with the contracts that may take them, and what the contracts want.
#[derive(Debug, Clone)]
pub struct Transport {
    /// Per request: the best auction worth, how many it stands for, and where its entries start.
    pub(super) best: Vec<f64>,
    weight: Vec<f64>,
    starts: Vec<u32>,
    /// Per entry: contract and worth of the predicted click.
    entries: Vec<(u32, f64)>,
    /// Impressions owed and still allowed, and minor units per missing one.
    pub(super) owed: Vec<f64>,
    pub(super) left: Vec<f64>,
    pub(super) penalty: Vec<f64>,
    /// Of the prices looked at last.
    doubt: Doubt,
}

impl Transport {
    /// A problem without requests; `owed <= left` for each contract.
    pub fn new(owed: Vec<f64>, left: Vec<f64>, penalty: Vec<f64>) -> Self {
        let doubt = Doubt::default();
        Self { best: vec![], weight: vec![], starts: vec![0], entries: vec![], owed, left, penalty, doubt }
    }

    /// Takes all requests out again and states what the contracts want now.
    pub fn restate(&mut self, owed: Vec<f64>, left: Vec<f64>) {
        self.best.clear();
        self.weight.clear();
        self.starts.truncate(1);
        self.entries.clear();
        (self.owed, self.left) = (owed, left);
    }

    /// Adds a request that stands for `weight` alike, with the contracts that may take it and the worth of their clicks.
    pub fn push(&mut self, best: f64, weight: f64, entries: impl IntoIterator<Item = (u32, f64)>) {
        self.best.push(best);
        self.weight.push(weight);
        self.entries.extend(entries);
        self.starts.push(self.entries.len() as u32);
    }

    pub(super) fn entries_of(&self, i: usize) -> &[(u32, f64)] {
        &self.entries[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// The size of a price here: the mean best auction worth plus the mean price. What smoothing is measured in.
    pub fn scale(&self, prices: &[f64]) -> f64 {
        let weight: f64 = self.weight.iter().sum();
        let worth: f64 = self.best.iter().zip(&self.weight).map(|(b, w)| b * w).sum();
        let price: f64 = prices.iter().map(|p| p.abs()).sum();
        let mean = |sum: f64, n: f64| if n > 0.0 { sum / n } else { 0.0 };
        mean(worth, weight) + mean(price, prices.len() as f64)
    }

    /// `D(prices)`, minor units. Prices above the penalty are not allowed.
    pub fn dual(&self, prices: &[f64]) -> f64 {
        let paid: f64 = (0..self.best.len()).map(|i| self.weight[i] * self.value(i, prices)).sum();
        paid - self.revenue(prices)
    }

    /// What one of request `i`'s kind is worth at these prices: the best of nothing, the auction and its contracts.
    pub(super) fn value(&self, i: usize, prices: &[f64]) -> f64 {
        let value = |&(j, click): &(u32, f64)| click + prices[j as usize];
        self.entries_of(i).iter().map(value).fold(self.best[i].max(0.0), f64::max)
    }

    /// Up to `steps` damped Newton steps on the dual with every maximum replaced by `smoothing * log(sum(exp(. / smoothing)))`;
    /// prices at a bound that the gradient presses against stay there. Ends early where no step improves; the steps taken.
    pub fn descend(&mut self, prices: &mut [f64], smoothing: f64, steps: usize) -> usize {
        self.newton(prices, smoothing, steps, 0.0)
    }

    /// The same for prices that need not be exact: the first step that moves no price by more than half of the smoothing is the
    /// last, and is taken without a look at where it leads. Within that reach curvatures change by less than a factor of `e`, so a
    /// full Newton step is one downhill, and what it leaves is of second order.
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
            // The trial that improves leaves its doubts: the next step is made of them.
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

    /// The Newton step from `prices`, which were the last to be looked at; to be subtracted.
    fn newton_step(&self, prices: &[f64], smoothing: f64) -> Vec<f64> {
        let n = prices.len();
        let (mut gradient, mut curvature) = self.derivatives(smoothing);
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
        // Where a price is so far off that no request is in doubt, there is no curvature: such a step goes no further than a price
        // can be off.
        let reach = 0.5 * self.scale(prices).max(1e-12);
        for &j in &free {
            let diagonal = &mut curvature[j * n + j];
            *diagonal += 1e-9 * diagonal.abs() + gradient[j].abs() / reach;
        }
        solve(&curvature, &gradient, &free, n, &mut step);
        step
    }

    /// How the prices answer to the demand, at a minimum of the dual smoothed by `smoothing`: what each moves by, minor units, when
    /// all demands grow by one part in `e`; and what each contract's supply grows by, as a share of its demand, when its own
    /// price grows by one part in `e`. Prices at a bound do not move.
    pub fn sensitivity(&mut self, prices: &[f64], smoothing: f64) -> (Vec<f64>, Vec<f64>) {
        self.smoothed(prices, smoothing);
        let n = prices.len();
        let (_, mut curvature) = self.derivatives(smoothing);
        let own = (0..n).map(|j| curvature[j * n + j] * prices[j] / self.owed[j].max(1e-9)).collect();
        let scale = self.scale(prices).max(1e-12);
        let free: Vec<usize> =
            (0..n).filter(|&j| prices[j] > 0.0 && prices[j] < self.penalty[j] && self.owed[j] > 0.0).collect();
        for &j in &free {
            // Where no request is near its price, a contract's price would move beyond all that the smoothing knows of.
            curvature[j * n + j] += 0.1 * self.owed[j] / scale;
        }
        let mut moves = vec![0.0; n];
        solve(&curvature, &self.owed, &free, n, &mut moves);
        (moves, own)
    }

    /// Prices after a step of `length`.
    fn moved(&self, prices: &[f64], step: &[f64], length: f64) -> Vec<f64> {
        let one = |(j, (price, step)): (usize, (&f64, &f64))| {
            let p = (price - length * step).min(self.penalty[j]);
            // A step over the kink stops at it first.
            if self.left[j] > self.owed[j] && p * price < 0.0 { 0.0 } else { p }
        };
        prices.iter().zip(step).enumerate().map(one).collect()
    }

    /// The smoothed dual; leaves what is in doubt at these prices.
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
            // Each is written, and counts if it is near: without a branch that no processor can foresee.
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

    /// Derivatives of the smoothed dual without its revenue: the impressions served to each contract, and the matrix of second
    /// derivatives, `[n, n]`.
    fn derivatives(&self, smoothing: f64) -> (Vec<f64>, Vec<f64>) {
        let (n, doubt) = (self.penalty.len(), &self.doubt);
        let (mut served, mut curvature) = (doubt.sure.clone(), vec![0.0; n * n]);
        let mut from = 0;
        for &(i, to) in &doubt.requests {
            let (candidates, weights) = (&doubt.candidates[from..to as usize], &doubt.weights[from..to as usize]);
            from = to as usize;
            let per_total = 1.0 / weights.iter().sum::<f64>();
            let per_smoothing = self.weight[i as usize] * per_total / smoothing;
            for (at, (&j, &w)) in candidates.iter().zip(weights).enumerate().filter(|(_, (j, _))| **j != NOBODY) {
                let j = j as usize;
                served[j] += self.weight[i as usize] * w * per_total;
                let slope = per_smoothing * w;
                curvature[j * n + j] += slope;
                // Below the diagonal alone: the rest is mirrored.
                for (&k, &other) in candidates[..=at].iter().zip(weights).filter(|(k, _)| **k != NOBODY) {
                    let (row, column) = (j.max(k as usize), j.min(k as usize));
                    curvature[row * n + column] -= slope * other * per_total;
                }
            }
        }
        for row in 0..n {
            for column in 0..row {
                curvature[column * n + row] = curvature[row * n + column];
            }
        }
        (served, curvature)
    }

    /// What the prices earn from the demands: `sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    fn revenue(&self, prices: &[f64]) -> f64 {
        prices.iter().enumerate().map(|(j, &p)| if p >= 0.0 { p * self.owed[j] } else { p * self.left[j] }).sum()
    }
}

/// What lies this many smoothings below the best candidate of a request carries no weight: `exp(-20)` of a request is less
/// than the rounding of a sum over a day of them.
const NEGLIGIBLE: f64 = 20.0;
/// Showing no contract, among candidates.
const NOBODY: u32 = u32::MAX;

/// What the smoothed dual found at some prices: which requests are in doubt, between whom, and who takes the others.
#[derive(Debug, Clone, Default)]
struct Doubt {
    /// Requests with several candidates that count, and where theirs end.
    requests: Vec<(u32, u32)>,
    /// Contract, or [`NOBODY`], and weight of each candidate, request by request; the best one's weight is 1.
    /// What comes after the last request's is of no meaning.
    candidates: Vec<u32>,
    weights: Vec<f64>,
    /// Per contract: the weight of the requests that it takes beyond doubt.
    sure: Vec<f64>,
}

impl Doubt {
    /// Makes room for so many candidates.
    fn clear(&mut self, contracts: usize, candidates: usize) {
        self.requests.clear();
        self.candidates.resize(candidates, NOBODY);
        self.weights.resize(candidates, 0.0);
        self.sure.clear();
        self.sure.resize(contracts, 0.0);
    }
}

/// Replaces each of `x`, from -700 to 0, by `exp(x)`, right to the last digit but one or two.
///
/// The C library's takes one number at a time, which was a quarter of replanning; this goes through vectors, and gives every
/// processor the same bits.
#[multiversion(targets = "simd")]
fn exponentials(x: &mut [f64]) {
    /// Adding it to a small number rounds that to a whole one, which then stands, with the bias of exponents, in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.0 + 1023.0;
    /// `ln 2` in two parts, the first of so few bits that its small multiples are exact.
    const LN2: (f64, f64) = (0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10);
    /// `1 / k!`, from the last.
    const TAYLOR: [f64; 13] = [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    for x in x {
        let rounded = *x * std::f64::consts::LOG2_E + ROUND;
        let whole = rounded - ROUND;
        let rest = (*x - whole * LN2.0) - whole * LN2.1;
        let mut sum = 0.0;
        for c in TAYLOR {
            sum = sum * rest + c;
        }
        *x = sum * f64::from_bits(rounded.to_bits() << 52);
    }
}

/// Unknowns above which conjugate gradients take over from Cholesky, whose cost grows with their cube.
const DIRECT: usize = 256;
const CONJUGATE_STEPS: usize = 50;

/// Solves `A x = b` over the `free` indices for a symmetric, positive `A`; the others stay 0.
fn solve(matrix: &[f64], b: &[f64], free: &[usize], n: usize, x: &mut [f64]) {
    if free.len() <= DIRECT {
        cholesky(matrix, b, free, n, x);
    } else {
        conjugate_gradients(matrix, b, free, n, x);
    }
}

/// Conjugate gradients with the diagonal as preconditioner; an inexact Newton step is still one downhill.
fn conjugate_gradients(matrix: &[f64], b: &[f64], free: &[usize], n: usize, x: &mut [f64]) {
    let diagonal: Vec<f64> = free.iter().map(|&i| matrix[i * n + i].max(1e-12)).collect();
    let mut residual: Vec<f64> = free.iter().map(|&i| b[i]).collect();
    let precondition = |r: &[f64]| r.iter().zip(&diagonal).map(|(r, d)| r / d).collect::<Vec<f64>>();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut direction = precondition(&residual);
    let mut size = dot(&residual, &direction);
    let end = 1e-10 * size;
    for _ in 0..CONJUGATE_STEPS {
        if size <= end {
            break;
        }
        let image: Vec<f64> = free
            .iter()
            .map(|&i| {
                let row = &matrix[i * n..(i + 1) * n];
                free.iter().zip(&direction).map(|(&k, d)| row[k] * d).sum::<f64>()
            })
            .collect();
        let along = dot(&direction, &image);
        if along <= 0.0 {
            break;
        }
        let length = size / along;
        for (r, &i) in free.iter().enumerate() {
            x[i] += length * direction[r];
            residual[r] -= length * image[r];
        }
        let scaled = precondition(&residual);
        let next = dot(&residual, &scaled);
        for (d, s) in direction.iter_mut().zip(&scaled) {
            *d = s + next / size * *d;
        }
        size = next;
    }
}

fn cholesky(matrix: &[f64], b: &[f64], free: &[usize], n: usize, x: &mut [f64]) {
    let m = free.len();
    let mut l = vec![0.0; m * m];
    let mut y = vec![0.0; m];
    for (r, &i) in free.iter().enumerate() {
        for (c, &k) in free.iter().enumerate().take(r + 1) {
            let mut v = matrix[i * n + k];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_solvers_agree_and_leave_what_is_not_free_at_zero() {
        // A'A + I for a fixed, irregular A.
        let n = 40;
        let a: Vec<f64> = (0..n * n).map(|i| ((i * i + 7 * i) % 101) as f64 / 101.0 - 0.5).collect();
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            for k in 0..n {
                let product: f64 = (0..n).map(|t| a[t * n + i] * a[t * n + k]).sum();
                matrix[i * n + k] = product + f64::from(u8::from(i == k));
            }
        }
        let b: Vec<f64> = (0..n).map(|i| (i % 5) as f64 - 1.5).collect();
        let free: Vec<usize> = (0..n).filter(|i| i % 7 != 3).collect();
        let (mut direct, mut iterated) = (vec![0.0; n], vec![0.0; n]);
        cholesky(&matrix, &b, &free, n, &mut direct);
        conjugate_gradients(&matrix, &b, &free, n, &mut iterated);
        for i in 0..n {
            assert!((direct[i] - iterated[i]).abs() < 1e-3 * (1.0 + direct[i].abs()), "{} {}", direct[i], iterated[i]);
            assert!(free.contains(&i) || (direct[i] == 0.0 && iterated[i] == 0.0));
        }
        for &i in &free {
            let image: f64 = free.iter().map(|&k| matrix[i * n + k] * direct[k]).sum();
            assert!((image - b[i]).abs() < 1e-4, "{image} is not {}", b[i]);
        }
    }

    /// Steps in one go are the same steps, to the last bit: what is kept of a trial is what would be worked out again.
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

    /// Where nothing moves far, following is descending, to what the smoothing blurs anyway; and it looks once instead of twice.
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

    #[test]
    fn exponentials_are_those_of_the_library() {
        let mut x: Vec<f64> = (0..200_003).map(|i| f64::from(i) * -700.0 / 200_003.0).chain([-1e-300, -0.0]).collect();
        let expected: Vec<f64> = x.iter().map(|x| x.exp()).collect();
        exponentials(&mut x);
        for (x, e) in x.iter().zip(expected) {
            assert!((x - e).abs() <= 4.0 * f64::EPSILON * e, "{x} is not {e}");
        }
        assert_eq!(x[0], 1.0);
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
