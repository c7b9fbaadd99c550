//! Loops of the losses over rows of numbers, vectorised: returns, quantiles against quantiles, the projection onto atoms. Formulas
//! of one number, such as the quantile Huber loss, are in [`formulas::shared`](crate::formulas::shared).

use multiversion::multiversion;

use crate::formulas::shared::{self as formulas, LossFactors, return_step};

/// Numbers that are processed side by side.
const LANES: usize = 16;

/// Returns the sum of a row, not in its order: each addition would wait for the one before.
pub fn sum(row: &[f32]) -> f32 {
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    whole.iter().for_each(|part| (0..LANES).for_each(|l| lanes[l] += part[l]));
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += x);
    let mut width = LANES / 2;
    while width > 0 {
        (0..width).for_each(|l| lanes[l] += lanes[l + width]);
        width /= 2;
    }
    lanes[0]
}

/// Replaces a row by its exponentials relative to the largest; returns their sum.
pub fn exponentials(row: &mut [f32]) -> f32 {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in row {
        *x = (*x - top).exp();
        sum += *x;
    }
    sum
}

/// Returns the exponentials relative to the largest, and their sum.
pub fn softmax(row: &[f32]) -> (Vec<f32>, f32) {
    let mut weights = row.to_vec();
    let sum = exponentials(&mut weights);
    (weights, sum)
}

/// Computes lambda-returns with ratios clipped at 1 ([`return_step`]).
pub fn lambda_returns(
    len: usize,
    by: &LossFactors,
    ratios: &[f32],
    reward: impl Fn(usize) -> f32,
    value: impl Fn(usize) -> f32,
    last_value: f32,
) -> Vec<f32> {
    let mut returns = vec![0.0; len];
    let (mut next_value, mut next_return) = (last_value, last_value);
    for t in (0..len).rev() {
        let v = value(t);
        returns[t] = return_step(v, reward(t), next_value, next_return, ratios[t], by);
        (next_value, next_return) = (v, returns[t]);
    }
    returns
}

/// Computes the quantile Huber loss of `theta_q = factor * z_q` against target quantiles (Dabney et al. 2018, equations 9 and
/// 10), averaged over both; writes the gradient by `z` times `weight` to `gradient`.
///
/// Each lane is a quantile, so no sum runs across lanes. With a lane for each target, these sums took most of the time.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn quantile_huber(
    z: &[f32],
    targets: &[f32],
    taus: &[f32],
    factor: f32,
    by: &LossFactors,
    weight: f32,
    gradient: &mut [f32],
) -> f32 {
    let mean = 1.0 / (z.len() * targets.len()) as f32;
    let mut total = 0.0f32;
    for ((z, taus), gradient) in z.chunks(LANES).zip(taus.chunks(LANES)).zip(gradient.chunks_mut(LANES)) {
        // Lanes beyond the last quantile are computed and not read.
        let (mut theta, mut tau) = ([0.0f32; LANES], [0.0f32; LANES]);
        theta.iter_mut().zip(z).for_each(|(theta, z)| *theta = factor * z);
        tau[..taus.len()].copy_from_slice(taus);
        let (mut slope, mut losses) = ([0.0f32; LANES], [0.0f32; LANES]);
        for &y in targets {
            for l in 0..LANES {
                let (by_difference, loss) = formulas::quantile_huber(y - theta[l], tau[l], by);
                slope[l] += by_difference;
                losses[l] += loss;
            }
        }
        for (d, slope) in gradient.iter_mut().zip(slope) {
            *d = -weight * factor * mean * slope;
        }
        total += sum(&losses[..z.len()]);
    }
    mean * total
}

/// Projects weighted values onto the atoms, each to its two neighbours (Bellemare et al. 2017, equation 7).
pub fn project(atoms: &[f32], values: impl Iterator<Item = (f32, f32)>) -> Vec<f32> {
    let last = atoms.len() - 1;
    let step = (atoms[last] - atoms[0]) / last as f32;
    let mut projected = vec![0.0; atoms.len()];
    for (value, weight) in values {
        let at = ((value - atoms[0]) / step).clamp(0.0, last as f32);
        let low = (at as usize).min(last - 1);
        let high_share = at - low as f32;
        projected[low] += weight * (1.0 - high_share);
        projected[low + 1] += weight * high_share;
    }
    projected
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::factors::loss_factors;

    fn factors() -> LossFactors {
        let mut settings = crate::settings::Settings::default();
        (settings.learner.lambda, settings.learner.kappa) = (1.0, 0.2);
        loss_factors(&settings)
    }

    #[test]
    fn quantile_gradient_is_the_slope_of_the_loss() {
        let taus: Vec<f32> = (0..20).map(|i| (i as f32 + 0.5) / 20.0).collect();
        let targets: Vec<f32> = (0..20).map(|i| ((i * 7 % 13) as f32 - 6.0) * 0.11).collect();
        let z: Vec<f32> = (0..20).map(|i| (i as f32 - 9.0) * 0.07).collect();
        let mut gradient = vec![0.0; 20];
        let at = |z: &[f32], g: &mut [f32]| quantile_huber(z, &targets, &taus, 1.7, &factors(), 1.0, g);
        at(&z, &mut gradient);
        for i in 0..20 {
            let mut moved = z.clone();
            let mut unused = vec![0.0; 20];
            moved[i] += 1e-2;
            let high = at(&moved, &mut unused);
            moved[i] -= 2e-2;
            let low = at(&moved, &mut unused);
            let slope = (high - low) / 2e-2;
            assert!((slope - gradient[i]).abs() < 3e-3, "{i}: {slope} {}", gradient[i]);
        }
    }

    #[test]
    fn a_sum_by_lanes_is_the_sum() {
        for len in [0, 1, 5, 15, 16, 17, 31, 32, 51] {
            let row: Vec<f32> = (0..len).map(|i| ((i * 37 % 101) as f32) - 50.0).collect();
            assert_eq!(sum(&row), row.iter().sum::<f32>(), "{len} integers");
        }
    }

    #[test]
    fn returns_without_correction_are_sums_of_rewards() {
        let rewards = [1.0, 0.0, -0.5, 2.0];
        let returns = lambda_returns(4, &factors(), &[1.0; 4], |t| rewards[t], |t| 10.0 * t as f32, 3.0);
        for (got, want) in returns.iter().zip([5.5, 4.5, 4.5, 5.0]) {
            assert!((got - want).abs() < 1e-5, "{returns:?}");
        }
        // With ratio 0 nothing is learned from the action.
        assert_eq!(lambda_returns(2, &factors(), &[0.0; 2], |_| 9.0, |t| t as f32, 3.0), [0.0, 1.0]);
    }

    #[test]
    fn projection_keeps_weight_and_mean_inside_the_support() {
        let atoms: Vec<f32> = (0..51).map(|i| -1.0 + 0.05 * i as f32).collect();
        let values = [(0.123, 0.25), (-0.9, 0.5), (1.2, 0.25)];
        let p = project(&atoms, values.into_iter());
        let mean: f32 = p.iter().zip(&atoms).map(|(p, a)| p * a).sum();
        let want: f32 = values.iter().map(|(v, w)| v * w).sum();
        assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5 && (mean - want).abs() < 1e-4);
    }
}
