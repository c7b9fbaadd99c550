//! How far ids err: the standard deviation of each field's direct weights, estimated from the exposures themselves.
//!
//! Rows are shrunk towards 0 by a Gaussian prior, and how much is right differs by field and by head: a field that tells nothing
//! should learn nothing. Two exposures that share an id share its error, so the mean product of their residuals is the sum of the
//! variances of all that they share. One such equation for each field, for the day and for the level of everything gives the
//! variances by elimination; what comes out negative is 0. Few exposures say little, so each estimate is averaged with the
//! configured one by its precision.
//!
//! The pairs of one group count the less the larger it is: a popular ad is known from few of its pairs, and all of them tell of one
//! error only.

use std::collections::HashMap;

use super::join::Joined;

/// Exposures that are looked at; more would only take longer.
const MOST_SAMPLES: usize = 1 << 18;
/// The least standard deviation: a field that seems to tell nothing may still learn a little.
const LEAST_SD: f64 = 1e-3;

/// Standard deviations of a field's direct weights: of the charge's, and of the click's.
pub type FieldSd = [f32; 2];

/// A residual in units of its variance, which is also the weight of the exposure, and what the exposure shares with others.
struct Residual {
    scaled: f64,
    weight: f64,
    /// Level (always 0), day, then the ids.
    keys: Vec<u64>,
}

/// Collects exposures of days.
pub struct PriorEstimate {
    fields: usize,
    days: usize,
    seen: u64,
    /// By head.
    residuals: [Vec<Residual>; 2],
}

impl PriorEstimate {
    /// An estimate from `days` days.
    pub fn new(fields: usize, days: usize) -> Self {
        Self { fields, days, seen: 0, residuals: [vec![], vec![]] }
    }

    /// Adds a day; of a large one every so many exposures.
    pub fn add(&mut self, joined: &Joined) {
        let stride = joined.samples.len().div_ceil(MOST_SAMPLES / self.days.max(1)).max(1);
        for (s, ids) in joined.samples.iter().zip(joined.ids.chunks_exact(self.fields)).step_by(stride) {
            let keys: Vec<u64> = [0, self.seen].into_iter().chain(ids.iter().copied()).collect();
            let p = 1.0 / (1.0 + (-f64::from(s.seen.logit)).exp());
            let clicked = f64::from(u8::from(s.clicked));
            self.residuals[1].push(Residual { scaled: clicked - p, weight: p * (1.0 - p), keys: keys.clone() });
            if s.auction && s.seen.charge > 0.0 {
                let relative = f64::from(s.charged / s.seen.charge) - 1.0;
                self.residuals[0].push(Residual { scaled: relative, weight: 1.0, keys });
            }
        }
        self.seen += 1;
    }

    /// The standard deviations of every field; `usual` is the configured one.
    pub fn finish(mut self, usual: f64) -> Vec<FieldSd> {
        // Of charges the variance is known only now.
        let charges = &mut self.residuals[0];
        let variance = charges.iter().map(|r| r.scaled * r.scaled).sum::<f64>() / charges.len().max(1) as f64;
        for r in charges.iter_mut().filter(|_| variance > 0.0) {
            (r.scaled, r.weight) = (r.scaled / variance, 1.0 / variance);
        }
        let by_head = self.residuals.each_ref().map(|residuals| variances(residuals, self.fields + 2, usual * usual));
        let sd = |variance: f64| variance.sqrt().max(LEAST_SD) as f32;
        (0..self.fields).map(|f| [sd(by_head[0][f + 2]), sd(by_head[1][f + 2])]).collect()
    }
}

/// What the pairs of exposures that share a key say of the components.
struct Equation {
    /// Sum of the products of residuals.
    product: f64,
    /// For each component, the weight of the pairs that share it too.
    shared: Vec<f64>,
    /// Variance of `product` if nothing but noise were there.
    noise: f64,
}

impl Equation {
    fn of(residuals: &[Residual], key: usize, components: usize, usual: f64) -> Self {
        let mut sums: HashMap<u64, f64> = HashMap::new();
        residuals.iter().for_each(|r| *sums.entry(r.keys[key]).or_default() += r.weight);
        // The variance of a group's mean square, with the usual error in it, grows so with its weight.
        let share = |group: u64| (1.0 + usual * sums[&group]).powi(-2);
        let mut equation = Self { product: 0.0, shared: vec![0.0; components], noise: 0.0 };
        for other in 0..components {
            let mut groups: HashMap<(u64, u64), [f64; 4]> = HashMap::new();
            for r in residuals {
                let sums = groups.entry((r.keys[key], r.keys[other])).or_default();
                let add = [r.scaled, r.scaled * r.scaled, r.weight, r.weight * r.weight];
                sums.iter_mut().zip(add).for_each(|(sum, x)| *sum += x);
            }
            // In a fixed order: sums in a map's own order would differ in the last bits from run to run.
            let mut groups: Vec<_> = groups.into_iter().collect();
            groups.sort_unstable_by_key(|(key, _)| *key);
            for ((group, _), [r, rr, w, ww]) in groups {
                let (share, pairs) = (share(group), w * w - ww);
                equation.shared[other] += share * pairs;
                if other == key {
                    equation.product += share * (r * r - rr);
                    equation.noise += 2.0 * share * share * pairs;
                }
            }
        }
        equation
    }

    /// Inverse variance of the component's estimate from this equation alone.
    fn precision(&self, key: usize) -> f64 {
        if self.noise > 0.0 { self.shared[key].powi(2) / self.noise } else { 0.0 }
    }
}

/// Variances of the components, each averaged with `usual`.
fn variances(residuals: &[Residual], components: usize, usual: f64) -> Vec<f64> {
    let equations: Vec<Equation> = (0..components).map(|c| Equation::of(residuals, c, components, usual)).collect();
    // Without pairs nothing is known of a component.
    let mut active: Vec<usize> = (0..components).filter(|&c| equations[c].shared[c] > 0.0).collect();
    let mut found = vec![0.0; components];
    while !active.is_empty() {
        let solved = solve(&active, &equations);
        let least = solved.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1)).map(|(i, v)| (i, *v));
        match least {
            Some((i, value)) if value < 0.0 || !value.is_finite() => {
                active.remove(i);
            }
            _ => {
                active.iter().zip(solved).for_each(|(&c, value)| found[c] = value);
                break;
            }
        }
    }
    (0..components)
        .map(|c| {
            // The configured value counts as one that errs by itself.
            let (precision, own) = (equations[c].precision(c), usual.powi(-2));
            (found[c] * precision + usual * own) / (precision + own)
        })
        .collect()
}

/// Solves the equations of the active components, by elimination with pivots.
fn solve(active: &[usize], equations: &[Equation]) -> Vec<f64> {
    let n = active.len();
    let mut rows: Vec<Vec<f64>> = active
        .iter()
        .map(|&a| {
            let Equation { product, shared, .. } = &equations[a];
            active.iter().map(|&b| shared[b] / shared[a]).chain([product / shared[a]]).collect()
        })
        .collect();
    for column in 0..n {
        let pivot = (column..n).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()));
        rows.swap(column, pivot.unwrap_or(column));
        let divisor = rows[column][column];
        if divisor.abs() < 1e-9 {
            // Two components that always go together: the later one is given nothing.
            rows[column].fill(0.0);
            rows[column][column] = 1.0;
            continue;
        }
        rows[column].iter_mut().for_each(|x| *x /= divisor);
        let pivot_row = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != column) {
            let factor = row[column];
            row.iter_mut().zip(&pivot_row).for_each(|(x, p)| *x -= factor * p);
        }
    }
    rows.iter().map(|row| row[n]).collect()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Sum of twelve uniform numbers: nearly Gaussian, variance 1.
    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
    }

    #[test]
    fn planted_variances_are_found_and_idle_fields_get_little() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        // Two fields that tell something, one that does not, and one that tells something crossed with the first.
        let (first, second) = (0.2, 0.1);
        let mut effects = |n: usize, sd: f64| -> Vec<f64> { (0..n).map(|_| sd * normal(&mut rng)).collect() };
        let (a, b, ab) = (effects(300, first), effects(100, second), effects(30_000, 0.15));
        let residuals: Vec<Residual> = (0..100_000)
            .map(|i| {
                let (x, y, idle) = (rng.random_range(0..300), rng.random_range(0..100), rng.random_range(0..200));
                let cross = x * 100 + y;
                let relative = a[x] + b[y] + ab[cross] + 0.5 * normal(&mut rng);
                let keys = [0, i % 3, x as u64, y as u64, idle, cross as u64];
                Residual { scaled: relative / 0.25, weight: 4.0, keys: keys.to_vec() }
            })
            .collect();
        let sd: Vec<f64> = variances(&residuals, 6, 0.15 * 0.15).into_iter().map(f64::sqrt).collect();
        for (at, planted) in [(2, first), (3, second), (5, 0.15)] {
            assert!((sd[at] / planted - 1.0).abs() < 0.25, "{at}: {planted} {sd:?}");
        }
        assert!(sd[4] < 0.04, "{sd:?}");
    }

    #[test]
    fn without_exposures_the_configured_value_stays() {
        assert_eq!(PriorEstimate::new(2, 1).finish(0.15), [[0.15; 2]; 2]);
    }
}
