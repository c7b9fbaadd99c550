//! A Gaussian belief about a few quantities whose sums are observed with noise: a Kalman filter for scalar observations.

use super::normals::Normals;

/// Mean and covariance, `[n]` and `[n, n]`.
#[derive(Debug, Clone)]
pub struct Gaussian {
    mean: Vec<f64>,
    cov: Vec<f64>,
}

impl Gaussian {
    /// Creates a belief about independent quantities with mean 0.
    pub fn new(variances: &[f64]) -> Self {
        let n = variances.len();
        let mut cov = vec![0.0; n * n];
        for (i, v) in variances.iter().enumerate() {
            cov[i * n + i] = *v;
        }
        Self { mean: vec![0.0; n], cov }
    }

    /// Replaces quantity `i` by `factor` times itself plus noise of variance `noise`.
    pub fn decay(&mut self, i: usize, factor: f64, noise: f64) {
        let n = self.mean.len();
        self.mean[i] *= factor;
        for k in 0..n {
            self.cov[i * n + k] *= factor;
            self.cov[k * n + i] *= factor;
        }
        self.cov[i * n + i] += noise;
    }

    /// Returns mean and variance of a sum.
    pub fn sum(&self, parts: &[usize]) -> (f64, f64) {
        let n = self.mean.len();
        let variance = parts.iter().flat_map(|i| parts.iter().map(move |k| self.cov[i * n + k])).sum();
        (parts.iter().map(|&i| self.mean[i]).sum(), variance)
    }

    /// Updates on an observation `value` of the sum of `parts` with noise of this variance.
    pub fn observe(&mut self, parts: &[usize], value: f64, variance: f64) {
        let n = self.mean.len();
        let (expected, own) = self.sum(parts);
        let with: Vec<f64> = (0..n).map(|i| parts.iter().map(|k| self.cov[i * n + k]).sum()).collect();
        let total = own + variance;
        if total <= 0.0 {
            return;
        }
        for i in 0..n {
            self.mean[i] += with[i] * (value - expected) / total;
            for k in 0..n {
                self.cov[i * n + k] -= with[i] * with[k] / total;
            }
        }
    }

    /// Updates on a count with mean `base * exp(sum of parts + shift)`, by the Laplace approximation of the posterior.
    pub fn observe_count(&mut self, parts: &[usize], shift: f64, base: f64, count: f64) {
        let (mean, variance) = self.sum(parts);
        if base <= 0.0 || variance <= 0.0 {
            return;
        }
        // Mode of the posterior, by Newton's method: the log-density is concave.
        let mut z = mean;
        for _ in 0..20 {
            let rate = base * (z + shift).exp();
            let step = (count - rate - (z - mean) / variance) / (rate + 1.0 / variance);
            z += step.clamp(-1.0, 1.0);
            if step.abs() < 1e-9 {
                break;
            }
        }
        let rate = base * (z + shift).exp();
        self.observe(parts, z + (count - rate) / rate, 1.0 / rate);
    }

    /// Returns the Cholesky factor, which maps standard normals to this belief.
    pub fn root(&self) -> Root {
        let n = self.mean.len();
        let mut lower = vec![0.0; n * n];
        for i in 0..n {
            for k in 0..=i {
                let sum: f64 = (0..k).map(|t| lower[i * n + t] * lower[k * n + t]).sum();
                let rest = self.cov[i * n + k] - sum;
                lower[i * n + k] = match k == i {
                    true => rest.max(0.0).sqrt(),
                    // An exactly known quantity has no covariance.
                    false if lower[k * n + k] < 1e-12 => 0.0,
                    false => rest / lower[k * n + k],
                };
            }
        }
        Root { mean: self.mean.clone(), lower }
    }
}

/// A belief in the form that draws need.
pub struct Root {
    mean: Vec<f64>,
    lower: Vec<f64>,
}

impl Root {
    pub fn draw(&self, normals: &mut Normals) -> Vec<f64> {
        let n = self.mean.len();
        let z: Vec<f64> = (0..n).map(|_| normals.next()).collect();
        (0..n).map(|i| self.mean[i] + (0..=i).map(|k| self.lower[i * n + k] * z[k]).sum::<f64>()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observing_a_sum_splits_it_by_what_was_uncertain() {
        let mut belief = Gaussian::new(&[1.0, 3.0]);
        belief.observe(&[0, 1], 2.0, 0.0);
        assert!((belief.mean[0] - 0.5).abs() < 1e-12 && (belief.mean[1] - 1.5).abs() < 1e-12);
        let (sum, variance) = belief.sum(&[0, 1]);
        assert!((sum - 2.0).abs() < 1e-12 && variance.abs() < 1e-12);
        // Each alone stays uncertain: 1 - 1/4.
        assert!((belief.sum(&[0]).1 - 0.75).abs() < 1e-12);
    }

    #[test]
    fn a_quantity_that_decays_to_its_own_noise_is_stationary() {
        let mut belief = Gaussian::new(&[2.0]);
        for _ in 0..100 {
            belief.decay(0, 0.8, 2.0 * (1.0 - 0.64));
        }
        assert!((belief.sum(&[0]).1 - 2.0).abs() < 1e-9);
    }

    #[test]
    fn counts_move_the_belief_as_far_as_they_are_sure() {
        let seen = |base: f64| {
            let mut belief = Gaussian::new(&[0.09]);
            belief.observe_count(&[0], 0.0, base, base * 0.5f64.exp());
            belief.sum(&[0])
        };
        let (many, few, none) = (seen(10_000.0), seen(2.0), seen(0.0));
        assert!((many.0 - 0.5).abs() < 0.01 && many.1 < 1e-4, "{many:?}");
        assert!(few.0 > 0.02 && few.0 < 0.2, "{few:?}");
        assert_eq!(none, (0.0, 0.09));
    }

    #[test]
    fn draws_have_the_belief_s_mean_and_covariance() {
        let mut belief = Gaussian::new(&[1.0, 3.0]);
        belief.observe(&[0, 1], 2.0, 1.0);
        let root = belief.root();
        let mut normals = Normals::new(3);
        let draws: Vec<Vec<f64>> = (0..20_000).map(|_| root.draw(&mut normals)).collect();
        let mean = |f: &dyn Fn(&[f64]) -> f64| draws.iter().map(|d| f(d)).sum::<f64>() / draws.len() as f64;
        let (a, b) = (mean(&|d| d[0]), mean(&|d| d[1]));
        assert!((a - belief.mean[0]).abs() < 0.03 && (b - belief.mean[1]).abs() < 0.04);
        let cov = mean(&|d| (d[0] - a) * (d[1] - b));
        assert!((cov - belief.cov[1]).abs() < 0.03, "{cov}");
    }
}
