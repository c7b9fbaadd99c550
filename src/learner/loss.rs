//! Returns, losses, and their gradients by the networks' outputs; one segment at a time, on the host.
//!
//! Notation: step `t`, contract `j`, quantile `q`. The critic's output `z` is a fraction of the potential `m` (what the
//! remaining impressions could earn at most), so `Z_j = m_j z_j` and a contract that owes nothing is worth nothing. Losses
//! are measured in units of the scale `s`.

use multiversion::multiversion;

use crate::policy::Bids;
use crate::settings::{Credit, Critic, Learner};

use super::batch::SegmentRows;
use super::trainer::Dims;

/// What the networks said of one segment.
pub struct Outputs<'a> {
    /// `[T, N, Q]`
    pub states: &'a [f32],
    /// `[N, Q]`, from the target critic.
    pub last: &'a [f32],
    /// `[T, K, Q]`
    pub after: &'a [f32],
    /// `[T, K (+ A)]`
    pub actor: &'a [f32],
}

/// Gradients by the outputs, and what they were made from. Sums, not means.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Gradients {
    /// `[T, N, Q]`
    pub states: Vec<f32>,
    /// `[T, K (+ A)]`
    pub actor: Vec<f32>,
    pub critic_loss: f64,
    pub actor_loss: f64,
    /// Sum of the clipped importance ratios.
    pub ratios: f64,
}

/// Constants of the losses for one run.
pub struct Losses<'a> {
    pub settings: &'a Learner,
    pub dims: Dims,
    /// In units of the mean best auction worth.
    pub temperature: f32,
    /// Bid rule of each training day, and its money unit.
    pub bids: &'a [(Bids, f64)],
    /// Quantile midpoints, or the atoms' values.
    pub support: Vec<f32>,
    pub score_auctions: bool,
}

/// What an output row is to be fitted to. Money in units of the mean best auction worth.
struct Aim<'a> {
    /// The lambda-return.
    returns: f32,
    /// Unit of the loss.
    scale: f32,
    /// What the row is multiplied by to be money.
    potential: f32,
    /// The target critic's row at the segment's end, what that is multiplied by, and its mean in money.
    last: &'a [f32],
    last_potential: f32,
    last_value: f32,
}

/// Range of the categorical critic's atoms, as fractions of the potential.
const ATOMS: (f32, f32) = (-1.0, 1.5);

/// The quantile midpoints or the atoms that a critic's outputs stand for.
pub fn support(settings: &Learner) -> Vec<f32> {
    match settings.critic {
        Critic::Quantile => {
            let q = settings.quantiles;
            (0..q).map(|i| (i as f32 + 0.5) / q as f32).collect()
        }
        Critic::Categorical => {
            let n = settings.atoms;
            (0..n).map(|i| ATOMS.0 + (ATOMS.1 - ATOMS.0) * i as f32 / (n - 1) as f32).collect()
        }
        Critic::Scalar => vec![0.5],
    }
}

impl Losses<'_> {
    /// Mean of the fraction that an output row stands for.
    fn mean(&self, row: &[f32]) -> f32 {
        match self.settings.critic {
            Critic::Quantile | Critic::Scalar => row.iter().sum::<f32>() / row.len() as f32,
            Critic::Categorical => {
                let (weights, sum) = softmax(row);
                weights.iter().zip(&self.support).map(|(w, a)| w * a).sum::<f32>() / sum
            }
        }
    }

    /// Losses and gradients of a segment.
    ///
    /// `critic_weight` and `actor_weight` scale the gradients: one over the number of pairs and of states in the batch.
    pub fn segment(&self, rows: &SegmentRows, out: &Outputs, critic_weight: f32, actor_weight: f32) -> Gradients {
        let Dims { steps, contracts: n, outputs: q, .. } = self.dims;
        let mut g = Gradients {
            states: vec![0.0; steps * n * q],
            actor: vec![0.0; steps * self.dims.actor_rows()],
            ..Gradients::default()
        };
        let values: Vec<f32> = (0..rows.len * n)
            .map(|at| match rows.potential[at] {
                0.0 => 0.0,
                m => m * self.mean(&out.states[at * q..(at + 1) * q]),
            })
            .collect();
        let ratios = self.actor(rows, out, &values, actor_weight, &mut g);
        self.critic(rows, out, &values, &ratios, critic_weight, &mut g);
        g
    }

    /// The expected policy gradient `- sum_c pi_c A_c` and the importance ratios of the recorded actions.
    ///
    /// The advantage of showing contract c is its relative reward plus `E[Z_c]` with one more delivered minus `E[Z_c]` now.
    fn actor(&self, rows: &SegmentRows, out: &Outputs, values: &[f32], weight: f32, g: &mut Gradients) -> Vec<f32> {
        let Dims { contracts: n, eligible: k, auctions: a, outputs: q, .. } = self.dims;
        let (bids, unit) = &self.bids[rows.day];
        let actor_rows = self.dims.actor_rows();
        let slots = k + a;
        let mut scores = vec![f32::NEG_INFINITY; slots];
        let mut slopes = vec![0.0f32; slots];
        let mut advantages = vec![0.0f32; slots];
        let mut ratios = Vec::with_capacity(rows.len);
        for t in 0..rows.len {
            scores.fill(f32::NEG_INFINITY);
            for (slot, offer) in rows.offers[t * k..(t + 1) * k].iter().enumerate() {
                let Some(o) = offer else { continue };
                let output = f64::from(out.actor[t * actor_rows + slot] + o.pacing);
                let (bid, slope) = bids.contract(o.contract as usize, output, f64::from(o.unit));
                scores[slot] = o.boost * ((bid / unit) as f32 + o.click) / self.temperature;
                slopes[slot] = o.boost * (slope / unit) as f32 / self.temperature;
                let after = match o.after_potential {
                    0.0 => 0.0,
                    m => m * self.mean(&out.after[(t * k + slot) * q..(t * k + slot + 1) * q]),
                };
                advantages[slot] = o.gain + after - values[t * n + o.contract as usize];
            }
            for (i, offer) in rows.auctions[t * a..(t + 1) * a].iter().enumerate() {
                let Some(o) = offer else { continue };
                let (factor, slope) = if self.score_auctions {
                    Bids::auction(f64::from(out.actor[t * actor_rows + k + i]))
                } else {
                    (1.0, 0.0)
                };
                scores[k + i] = o.boost * o.worth * factor as f32 / self.temperature;
                slopes[k + i] = o.boost * o.worth * slope as f32 / self.temperature;
                advantages[k + i] = o.gain;
            }
            let Some(slot) = rows.steps[t].slot else {
                ratios.push(1.0);
                continue;
            };
            let (weights, sum) = softmax(&scores);
            let mean: f32 =
                weights.iter().zip(&advantages).map(|(w, a)| if *w > 0.0 { w * a / sum } else { 0.0 }).sum();
            for s in 0..slots {
                let share = weights[s] / sum;
                if share > 0.0 && (s < k || self.score_auctions) {
                    g.actor[t * actor_rows + s] = -weight * share * (advantages[s] - mean) * slopes[s];
                }
            }
            g.actor_loss -= f64::from(mean);
            let ratio = (weights[slot] / sum / rows.steps[t].behaviour.max(1e-6)).min(1.0);
            g.ratios += f64::from(ratio);
            ratios.push(ratio);
        }
        ratios
    }

    fn critic(
        &self,
        rows: &SegmentRows,
        out: &Outputs,
        values: &[f32],
        ratios: &[f32],
        weight: f32,
        g: &mut Gradients,
    ) {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        match self.settings.credit {
            Credit::Contract => {
                for j in 0..n {
                    let m_last = rows.last_potential[j];
                    let last = &out.last[j * q..(j + 1) * q];
                    let last_value = if m_last == 0.0 { 0.0 } else { m_last * self.mean(last) };
                    let reward = |t: usize| if rows.steps[t].shown == Some(j) { rows.steps[t].reward } else { 0.0 };
                    let value = |t: usize| values[t * n + j];
                    let returns =
                        lambda_returns(rows.len, self.settings.lambda as f32, ratios, reward, value, last_value);
                    for (t, &target) in returns.iter().enumerate() {
                        let at = t * n + j;
                        let (m, s) = (rows.potential[at], rows.scale[at]);
                        if m == 0.0 || s == 0.0 {
                            continue;
                        }
                        let row = at * q..(at + 1) * q;
                        let aim =
                            Aim { returns: target, scale: s, potential: m, last, last_potential: m_last, last_value };
                        let loss = self.fit(&out.states[row.clone()], &aim, weight, &mut g.states[row]);
                        g.critic_loss += f64::from(loss);
                    }
                }
            }
            Credit::Total => self.total_credit(rows, out, values, ratios, weight, g),
        }
    }

    /// One return for the whole: `Z = sum_j Z_j`, quantile by quantile.
    fn total_credit(
        &self,
        rows: &SegmentRows,
        out: &Outputs,
        values: &[f32],
        ratios: &[f32],
        weight: f32,
        g: &mut Gradients,
    ) {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        let sum_rows = |potential: &[f32], z: &[f32]| -> Vec<f32> {
            let mut sum = vec![0.0; q];
            for (m, row) in potential.iter().zip(z.chunks_exact(q)) {
                for (s, z) in sum.iter_mut().zip(row) {
                    *s += m * z;
                }
            }
            sum
        };
        let last = sum_rows(&rows.last_potential, out.last);
        let last_value = last.iter().sum::<f32>() / q as f32;
        let totals: Vec<f32> = values.chunks_exact(n).map(|v| v.iter().sum()).collect();
        let returns = lambda_returns(
            rows.len,
            self.settings.lambda as f32,
            ratios,
            |t| rows.steps[t].reward,
            |t| totals[t],
            last_value,
        );
        let mut by_total = vec![0.0; q];
        for (t, &target) in returns.iter().enumerate() {
            let states = t * n..(t + 1) * n;
            let s: f32 = rows.scale[states.clone()].iter().map(|s| s * s).sum::<f32>().sqrt();
            if s == 0.0 {
                continue;
            }
            let z = sum_rows(&rows.potential[states.clone()], &out.states[t * n * q..(t + 1) * n * q]);
            // The sum is already money: its potential is 1.
            let aim = Aim { returns: target, scale: s, potential: 1.0, last: &last, last_potential: 1.0, last_value };
            let loss = self.fit(&z, &aim, weight * n as f32, &mut by_total);
            g.critic_loss += f64::from(loss) * n as f64;
            for (j, at) in states.enumerate() {
                let m = rows.potential[at];
                for (i, d) in by_total.iter().enumerate() {
                    g.states[(t * n + j) * q + i] = m * d;
                }
            }
        }
    }

    /// Loss of one output row against the target distribution, and its gradient times `weight` into `gradient`.
    ///
    /// The target is the lambda-return plus the spread that the target critic sees at the segment's end.
    fn fit(&self, z: &[f32], aim: &Aim, weight: f32, gradient: &mut [f32]) -> f32 {
        let Aim { returns, scale: s, potential: m, last, last_potential: m_last, last_value } = *aim;
        match self.settings.critic {
            Critic::Scalar => {
                let u = (returns - m * z[0]) / s;
                gradient[0] = -weight * u * m / s;
                0.5 * u * u
            }
            Critic::Quantile => {
                let mut targets = [0.0f32; MAX_QUANTILES];
                let targets = &mut targets[..z.len()];
                for (y, l) in targets.iter_mut().zip(last) {
                    *y = (returns + m_last * l - last_value) / s;
                }
                quantile_huber(z, targets, &self.support, m / s, self.settings.kappa as f32, weight, gradient)
            }
            Critic::Categorical => {
                let (weights, sum) = softmax(last);
                let moved = self.support.iter().zip(&weights).map(|(atom, w)| {
                    let spread = if m_last == 0.0 { 0.0 } else { m_last * atom - last_value };
                    ((returns + spread) / m, w / sum)
                });
                let projected = project(&self.support, moved);
                let (weights, sum) = softmax(z);
                let mut loss = 0.0;
                for ((d, w), p) in gradient.iter_mut().zip(&weights).zip(&projected) {
                    let share = w / sum;
                    *d = weight * (share - p);
                    loss -= p * share.max(1e-12).ln();
                }
                loss
            }
        }
    }
}

/// The most quantiles that the kernel's stack buffer holds.
pub const MAX_QUANTILES: usize = 256;

/// Exponentials relative to the largest, and their sum.
fn softmax(row: &[f32]) -> (Vec<f32>, f32) {
    let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = row.iter().map(|x| (x - top).exp()).collect();
    let sum = weights.iter().sum();
    (weights, sum)
}

/// V-trace lambda-returns with ratios clipped at 1 and gamma 1 (Espeholt et al. 2018, section 4.1):
/// `G_t = V_t + rho_t (r_t + V_{t+1} - V_t) + lambda rho_t (G_{t+1} - V_{t+1})`.
fn lambda_returns(
    len: usize,
    lambda: f32,
    ratios: &[f32],
    reward: impl Fn(usize) -> f32,
    value: impl Fn(usize) -> f32,
    last_value: f32,
) -> Vec<f32> {
    let mut returns = vec![0.0; len];
    let (mut next_value, mut next_return) = (last_value, last_value);
    for t in (0..len).rev() {
        let v = value(t);
        let delta = reward(t) + next_value - v;
        returns[t] = v + ratios[t] * (delta + lambda * (next_return - next_value));
        (next_value, next_return) = (v, returns[t]);
    }
    returns
}

/// Quantile Huber loss of `theta_q = factor * z_q` against target quantiles (Dabney et al. 2018, equations 9 and 10), averaged
/// over both; the gradient by `z` times `weight` goes to `gradient`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn quantile_huber(
    z: &[f32],
    targets: &[f32],
    taus: &[f32],
    factor: f32,
    kappa: f32,
    weight: f32,
    gradient: &mut [f32],
) -> f32 {
    const LANES: usize = 16;
    let mean = 1.0 / (z.len() * targets.len()) as f32;
    let inverse = 1.0 / kappa;
    let half = 0.5 * kappa;
    let (chunks, rest) = targets.as_chunks::<LANES>();
    let mut total = [0.0f32; LANES];
    for ((z, &tau), d) in z.iter().zip(taus).zip(gradient) {
        let theta = factor * z;
        let mut slope = [0.0f32; LANES];
        let mut lane = |y: f32, l: usize| {
            let u = y - theta;
            let side = if u < 0.0 { 1.0 - tau } else { tau };
            let bounded = (u * inverse).clamp(-1.0, 1.0);
            slope[l] += side * bounded;
            // Equal to u^2 / (2 kappa) inside and |u| - kappa / 2 outside.
            total[l] += side * (bounded * (u - half * bounded));
        };
        for chunk in chunks {
            for (l, &y) in chunk.iter().enumerate() {
                lane(y, l);
            }
        }
        for (l, &y) in rest.iter().enumerate() {
            lane(y, l);
        }
        *d = -weight * factor * mean * slope.iter().sum::<f32>();
    }
    mean * total.iter().sum::<f32>()
}

/// Projects weighted values onto the atoms, each to its two neighbours (Bellemare et al. 2017, equation 7).
fn project(atoms: &[f32], values: impl Iterator<Item = (f32, f32)>) -> Vec<f32> {
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

    #[test]
    fn quantile_gradient_is_the_slope_of_the_loss() {
        let taus: Vec<f32> = (0..20).map(|i| (i as f32 + 0.5) / 20.0).collect();
        let targets: Vec<f32> = (0..20).map(|i| ((i * 7 % 13) as f32 - 6.0) * 0.11).collect();
        let z: Vec<f32> = (0..20).map(|i| (i as f32 - 9.0) * 0.07).collect();
        let mut gradient = vec![0.0; 20];
        let at = |z: &[f32], g: &mut [f32]| quantile_huber(z, &targets, &taus, 1.7, 0.2, 1.0, g);
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
    fn returns_without_correction_are_sums_of_rewards() {
        let rewards = [1.0, 0.0, -0.5, 2.0];
        let returns = lambda_returns(4, 1.0, &[1.0; 4], |t| rewards[t], |t| 10.0 * t as f32, 3.0);
        for (got, want) in returns.iter().zip([5.5, 4.5, 4.5, 5.0]) {
            assert!((got - want).abs() < 1e-5, "{returns:?}");
        }
        // With ratio 0 nothing is learned from what was done.
        assert_eq!(lambda_returns(2, 1.0, &[0.0; 2], |_| 9.0, |t| t as f32, 3.0), [0.0, 1.0]);
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
