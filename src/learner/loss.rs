//! Returns, losses, and their gradients by the networks' outputs; one segment at a time, on the host.
//!
//! Notation: step `t`, contract `j`, quantile `q`. The critic's output `z` is a fraction of the potential `m` (the maximum
//! earnings of the remaining impressions), so `Z_j = m_j z_j` and a contract that owes nothing is worth nothing. Losses are
//! measured in units of the scale `s`.

use crate::formulas::shared::{LossFactors, outlook, policy_gradient, scalar_loss};
use crate::policy::Bids;
use crate::settings::{Credit, Critic, Learner, MOST_QUANTILES};

use super::batch::SegmentRows;
use super::calibration::{Calibration, Deciles};
use super::dims::Dims;
use super::kernels::{exponentials, lambda_returns, project, quantile_huber, softmax, sum};

/// Outputs of the networks for one segment.
pub struct Outputs<'a> {
    /// `[T, N, Q]`
    pub states: &'a [f32],
    /// `[N, Q]`, from the target critic.
    pub last: &'a [f32],
    /// `[T, K]`, as [`Losses::mean`] returns it.
    pub after: &'a [f32],
    /// `[T, K (+ A)]`
    pub actor: &'a [f32],
}

/// Gradients by the outputs, and statistics. Sums, not means.
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
    /// Filled for a critic of quantiles that credits by contract.
    pub calibration: Calibration,
}

/// Constants of the losses for one run.
pub struct Losses<'a> {
    pub settings: &'a Learner,
    pub dims: Dims,
    pub factors: LossFactors,
    /// Bid rule of each training day, and its money unit.
    pub bids: &'a [(Bids, f64)],
    /// Quantile midpoints, or the atoms' values.
    pub support: Vec<f32>,
    pub score_auctions: bool,
    /// As [`crate::settings::Settings::anchor`] returns it.
    pub anchor: f32,
}

/// Target of an output row. Money in units of the mean best auction worth.
struct Aim<'a> {
    /// The lambda-return.
    returns: f32,
    /// Unit of the loss.
    scale: f32,
    /// Factor that converts the row to money.
    potential: f32,
    /// The target critic's row at the segment's end, the factor that converts it to money, and its mean in money.
    last: &'a [f32],
    last_potential: f32,
    last_value: f32,
}

/// Range of the categorical critic's atoms, as fractions of the potential.
const ATOMS: (f32, f32) = (-1.0, 1.5);

/// Returns the quantile midpoints or the atoms of a critic's outputs.
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
    /// Returns the mean of the fraction that an output row represents.
    pub fn mean(&self, row: &[f32]) -> f32 {
        if self.settings.critic.averages_outputs() {
            return sum(row) / row.len() as f32;
        }
        let (weights, total) = softmax(row);
        weights.iter().zip(&self.support).map(|(w, a)| w * a).sum::<f32>() / total
    }

    /// Computes the losses and gradients of a segment.
    ///
    /// `critic_weight` and `actor_weight` scale the gradients: one over the number of pairs and of requests in the batch.
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

    /// Computes the expected policy gradient `- sum_c pi_c A_c` of every request; returns the importance ratios of the steps.
    ///
    /// The advantage of showing contract c is its relative reward plus the change by the next impression in the contract's future
    /// earnings: `E[Z_c]` some impressions ahead minus `E[Z_c]` now, per impression.
    fn actor(&self, rows: &SegmentRows, out: &Outputs, values: &[f32], weight: f32, g: &mut Gradients) -> Vec<f32> {
        let Dims { contracts: n, eligible: k, .. } = self.dims;
        let (bids, unit) = &self.bids[rows.day];
        let actor_rows = self.dims.actor_rows();
        // By bidder: the share of its bid, and the change by the next impression.
        let stakes: Vec<(f64, f32)> = rows
            .bidders
            .iter()
            .enumerate()
            .map(|(at, bidder)| {
                let Some(b) = bidder else { return (0.0, 0.0) };
                let (t, slot) = (at / k, at % k);
                let after = match b.after_potential {
                    0.0 => 0.0,
                    m => m * out.after[at],
                };
                let output = f64::from(out.actor[t * actor_rows + slot] + b.lift);
                let share = bids.share(b.contract as usize, output);
                (share, outlook(after, values[t * n + b.contract as usize], b.ahead))
            })
            .collect();
        let mut ratios = vec![1.0; rows.len];
        let mut scores = Vec::new();
        let mut slopes = Vec::new();
        let mut advantages = Vec::new();
        for contest in &rows.contests {
            let Some(shown) = contest.shown else { continue };
            let t = contest.step;
            scores.clear();
            slopes.clear();
            advantages.clear();
            let offers = &rows.offers[contest.offers.0..contest.offers.1];
            for o in offers {
                let bidder = rows.bidders[t * k + o.slot].expect("who may be shown has a row");
                let (share, change) = stakes[t * k + o.slot];
                let (bid, slope) = bids.at_share(bidder.contract as usize, share, f64::from(o.unit));
                let worth = (bid / unit) as f32 + o.click;
                scores.push(o.boost * worth / self.factors.temperature);
                slopes.push(o.boost * (slope / unit) as f32 / self.factors.temperature);
                advantages.push(o.gain + change);
            }
            for (i, o) in rows.auctions[contest.auctions.0..contest.auctions.1].iter().enumerate() {
                let (factor, slope) = if self.score_auctions {
                    Bids::auction(f64::from(out.actor[t * actor_rows + k + i]))
                } else {
                    (1.0, 0.0)
                };
                scores.push(o.boost * o.worth * factor as f32 / self.factors.temperature);
                slopes.push(o.boost * o.worth * slope as f32 / self.factors.temperature);
                advantages.push(o.gain);
            }
            let total = exponentials(&mut scores);
            let mean: f32 = scores.iter().zip(&advantages).map(|(w, a)| w * a / total).sum();
            for (s, (w, a)) in scores.iter().zip(&advantages).enumerate() {
                let row = match offers.get(s) {
                    Some(o) => o.slot,
                    None if self.score_auctions => k + s - offers.len(),
                    None => continue,
                };
                g.actor[t * actor_rows + row] -= policy_gradient(weight * w / total, *a, mean, slopes[s]);
            }
            g.actor_loss -= f64::from(mean);
            let ratio = contest.behaviour.map_or(1.0, |b| (scores[shown] / total / b.max(1e-6)).min(1.0));
            g.ratios += f64::from(ratio);
            ratios[t] = ratio;
        }
        // The anchor: an L2 penalty on the outputs, towards the controller's bids, with the same weight on every row.
        let rows_used = rows.bidders.iter().flatten().count().max(1);
        let spring = self.anchor * weight * rows.contests.len() as f32 / rows_used as f32;
        for (at, _) in rows.bidders.iter().enumerate().filter(|(_, b)| b.is_some()) {
            let row = at / k * actor_rows + at % k;
            g.actor[row] += spring * out.actor[row];
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
                let deciles = Deciles::of(q);
                for j in 0..n {
                    let m_last = rows.last_potential[j];
                    let last = &out.last[j * q..(j + 1) * q];
                    let last_value = if m_last == 0.0 { 0.0 } else { m_last * self.mean(last) };
                    let reward = |t: usize| rows.rewards[t * n + j];
                    let value = |t: usize| values[t * n + j];
                    let returns = lambda_returns(rows.len, &self.factors, ratios, reward, value, last_value);
                    for (t, &target) in returns.iter().enumerate() {
                        let at = t * n + j;
                        let (m, s) = (rows.potential[at], rows.scale[at]);
                        if m == 0.0 || s == 0.0 {
                            continue;
                        }
                        let row = at * q..(at + 1) * q;
                        let aim =
                            Aim { returns: target, scale: s, potential: m, last, last_potential: m_last, last_value };
                        let loss = self.fit(&out.states[row.clone()], &aim, weight, &mut g.states[row.clone()]);
                        g.critic_loss += f64::from(loss);
                        if self.settings.critic == Critic::Quantile {
                            // Outcome: one of the target distribution's quantiles, in rotation.
                            let came = target + m_last * last[at % q] - last_value;
                            g.calibration.see(&deciles, &out.states[row], came / m);
                        }
                    }
                }
            }
            Credit::Total => self.total_credit(rows, out, values, ratios, weight, g),
        }
    }

    /// Fits one return for all contracts: `Z = sum_j Z_j`, quantile by quantile.
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
            &self.factors,
            ratios,
            |t| rows.auction_rewards[t] + rows.rewards[t * n..(t + 1) * n].iter().sum::<f32>(),
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

    /// Computes the loss of one output row against the target distribution, and writes its gradient times `weight` to `gradient`.
    ///
    /// The target is the lambda-return plus the spread of the target critic's distribution at the segment's end.
    fn fit(&self, z: &[f32], aim: &Aim, weight: f32, gradient: &mut [f32]) -> f32 {
        let Aim { returns, scale: s, potential: m, last, last_potential: m_last, last_value } = *aim;
        match self.settings.critic {
            Critic::Scalar => {
                let (slope, loss) = scalar_loss((returns - m * z[0]) / s);
                gradient[0] = -weight * slope * m / s;
                loss
            }
            Critic::Quantile => {
                let mut targets = [0.0f32; MOST_QUANTILES];
                let targets = &mut targets[..z.len()];
                for (y, l) in targets.iter_mut().zip(last) {
                    *y = (returns + m_last * l - last_value) / s;
                }
                quantile_huber(z, targets, &self.support, m / s, &self.factors, weight, gradient)
            }
            Critic::Categorical => {
                let (weights, total) = softmax(last);
                let moved = self.support.iter().zip(&weights).map(|(atom, w)| {
                    let spread = if m_last == 0.0 { 0.0 } else { m_last * atom - last_value };
                    ((returns + spread) / m, w / total)
                });
                let projected = project(&self.support, moved);
                let (weights, total) = softmax(z);
                let mut loss = 0.0;
                for ((d, w), p) in gradient.iter_mut().zip(&weights).zip(&projected) {
                    let share = w / total;
                    *d = weight * (share - p);
                    loss -= p * share.max(1e-12).ln();
                }
                loss
            }
        }
    }
}
