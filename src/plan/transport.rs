//! The transport problem between weighted requests and contracts, and its dual.
//!
//! A request of weight `w` stands for `w` alike. [`super::bound`] minimises the dual of a whole logged day, where each weighs 1;
//! the receding-horizon baseline that of a sample of what is still to come.

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
}

impl Transport {
    /// A problem without requests; `owed <= left` for each contract.
    pub fn new(owed: Vec<f64>, left: Vec<f64>, penalty: Vec<f64>) -> Self {
        Self { best: vec![], weight: vec![], starts: vec![0], entries: vec![], owed, left, penalty }
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
    pub fn descend(&self, prices: &mut [f64], smoothing: f64, steps: usize) -> usize {
        let mut weights = Weights::default();
        let mut value = self.smoothed(prices, smoothing, &mut weights);
        for taken in 0..steps {
            // The trial that improves leaves its weights: the next step's derivatives are made of them.
            match self.newton_step(prices, smoothing, value, &mut weights) {
                Some((moved, better)) => {
                    prices.copy_from_slice(&moved);
                    value = better;
                }
                None => return taken,
            }
        }
        steps
    }

    /// One step from prices whose smoothed dual is `value`, made of `weights`: the new prices and their value, their weights in
    /// `weights`; `None` if nothing improves.
    fn newton_step(
        &self,
        prices: &[f64],
        smoothing: f64,
        value: f64,
        weights: &mut Weights,
    ) -> Option<(Vec<f64>, f64)> {
        let n = prices.len();
        let (mut gradient, mut curvature) = self.derivatives(smoothing, weights);
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
        let mut length = 1.0;
        for _ in 0..12 {
            let moved: Vec<f64> = (0..n)
                .map(|j| {
                    let p = (prices[j] - length * step[j]).min(self.penalty[j]);
                    // A step over the kink stops at it first.
                    if self.left[j] > self.owed[j] && p * prices[j] < 0.0 { 0.0 } else { p }
                })
                .collect();
            let better = self.smoothed(&moved, smoothing, weights);
            if better < value - 1e-12 * value.abs() {
                return Some((moved, better));
            }
            length *= 0.5;
        }
        None
    }

    /// The smoothed dual; into `weights` goes what its derivatives are made of.
    fn smoothed(&self, prices: &[f64], smoothing: f64, weights: &mut Weights) -> f64 {
        let mut sum = 0.0;
        weights.entries.clear();
        weights.rows.clear();
        // Beyond this a candidate carries no weight in double precision; decided without a division where it is clear.
        let (least, surely) = (-40.0, -40.001 * smoothing);
        for i in 0..self.best.len() {
            let floor = self.best[i].max(0.0);
            let entries = self.entries_of(i);
            let top = entries.iter().map(|&(j, click)| click + prices[j as usize]).fold(floor, f64::max);
            let mut total = exponential((floor - top) / smoothing);
            for &(j, click) in entries {
                let below = click + prices[j as usize] - top;
                if below < surely {
                    continue;
                }
                let x = below / smoothing;
                if x > least {
                    let w = exponential(x);
                    total += w;
                    weights.entries.push((j, w));
                }
            }
            weights.rows.push((weights.entries.len() as u32, total));
            // Most requests have one candidate that counts, and log(1) is 0.
            let above = if total == 1.0 { 0.0 } else { smoothing * total.ln() };
            sum += self.weight[i] * (top + above);
        }
        sum - self.revenue(prices)
    }

    /// Derivatives of the smoothed dual without its revenue: the impressions served to each contract, and the matrix of second
    /// derivatives, `[n, n]`.
    fn derivatives(&self, smoothing: f64, weights: &mut Weights) -> (Vec<f64>, Vec<f64>) {
        let n = self.penalty.len();
        let (mut served, mut curvature) = (vec![0.0; n], vec![0.0; n * n]);
        let mut from = 0;
        for (&weight, &(to, total)) in self.weight.iter().zip(&weights.rows) {
            let candidates = &weights.entries[from..to as usize];
            from = to as usize;
            let shares: &mut Vec<f64> = &mut weights.shares;
            shares.clear();
            shares.extend(candidates.iter().map(|&(_, w)| w / total));
            for &(j, w) in candidates {
                let j = j as usize;
                let share = weight * w / total;
                served[j] += share;
                let row = &mut curvature[j * n..(j + 1) * n];
                row[j] += share / smoothing;
                for (&(k, _), other) in candidates.iter().zip(shares.iter()) {
                    row[k as usize] -= share * other / smoothing;
                }
            }
        }
        (served, curvature)
    }

    /// What the prices earn from the demands: `sum_j (p_j >= 0 ? p_j owed_j : p_j left_j)`.
    fn revenue(&self, prices: &[f64]) -> f64 {
        prices.iter().enumerate().map(|(j, &p)| if p >= 0.0 { p * self.owed[j] } else { p * self.left[j] }).sum()
    }
}

/// Of every request, the candidates that count at some prices.
#[derive(Default)]
struct Weights {
    /// Contract and weight, request by request.
    entries: Vec<(u32, f64)>,
    /// Per request: where its entries end, and the sum of the weights, that of showing none of them included.
    rows: Vec<(u32, f64)>,
    /// Of one request's candidates, while derivatives are made.
    shares: Vec<f64>,
}

/// `exp(x)` for `x <= 0`, without the call where the answer is clear: at the top candidate and where nothing is left.
fn exponential(x: f64) -> f64 {
    if x == 0.0 {
        1.0
    } else if x < -746.0 {
        0.0
    } else {
        x.exp()
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
