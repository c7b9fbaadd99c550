//! Returns, losses and their gradients as tensor operations over a whole batch.
//!
//! The same mathematics as [`super::super::loss`], which says why; that one is also what this is tested against. Nothing here
//! waits for the device, and no shape depends on the data. Shapes are those of [`Fields`]: `S` segments of `T` steps, `M = S T`, `N`
//! contracts, `K` bidders, `R` requests in a step, `A` auction ads, `Q` outputs of the critic; `P` is any number of rows.

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use crate::settings::{Credit, Critic, Settings};

use super::super::dims::Dims;
use super::super::loss::support;
use super::layout::Fields;

/// Score of what may not be shown: its exponential is nothing beside any other.
const NEVER: f32 = -1e30;

/// What the networks said of a batch.
pub struct Outputs<B: Backend> {
    /// `[M N, Q]`
    pub states: Tensor<B, 2>,
    /// `[S N, Q]`, from the target critic.
    pub last: Tensor<B, 2>,
    /// `[M K, Q]`
    pub after: Tensor<B, 2>,
    /// `[M (K + A), 1]`
    pub actor: Tensor<B, 2>,
}

/// Gradients by the outputs, and sums of what they were made from.
pub struct Gradients<B: Backend> {
    /// `[M N, Q]`
    pub states: Tensor<B, 2>,
    /// `[M (K + A), 1]`
    pub actor: Tensor<B, 2>,
    /// `[1]` each: losses of the critic and the actor, clipped importance ratios.
    pub sums: [Tensor<B, 1>; 3],
}

/// What gradients are multiplied by: one over the pairs of steps and contracts with something to learn, one over the requests.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    pub critic: f32,
    pub actor: f32,
}

/// Constants of the losses for one run.
pub struct TensorLosses<B: Backend> {
    dims: Dims,
    critic: Critic,
    credit: Credit,
    kappa: f32,
    temperature: f32,
    atoms: Vec<f32>,
    /// Quantile midpoints or atoms, `[1, Q]`.
    support: Tensor<B, 2>,
    /// `[1, T, T]`: `lambda^(s - t)` from step `t` on, 0 before.
    decay: Tensor<B, 3>,
    /// `[T, T]`: 1 where the row is not after the column.
    until: Tensor<B, 2>,
}

/// What output rows are to be fitted to. Money in units of the mean best auction worth.
struct Aim<B: Backend> {
    /// The lambda-returns, `[P, 1]`.
    returns: Tensor<B, 2>,
    /// One over the unit of the loss, `[P, 1]`; 0 = nothing to learn.
    inverse_scale: Tensor<B, 2>,
    /// What the rows are multiplied by to be money, `[P, 1]`.
    potential: Tensor<B, 2>,
    /// What the target critic sees at the segment's end: `[P, Q]` as it says it, what that is multiplied by and its mean, `[P, 1]`.
    last: Tensor<B, 2>,
    last_potential: Tensor<B, 2>,
    last_value: Tensor<B, 2>,
}

impl<B: Backend> TensorLosses<B> {
    pub fn new(dims: Dims, settings: &Settings, device: &B::Device) -> Self {
        let l = &settings.learner;
        let t = dims.steps;
        let atoms = support(l);
        let table = |f: &dyn Fn(usize, usize) -> f32| {
            let cells: Vec<f32> = (0..t * t).map(|i| f(i / t, i % t)).collect();
            Tensor::<B, 2>::from_data(TensorData::new(cells, [t, t]), device)
        };
        let decay = |from: usize, to: usize| if to >= from { (l.lambda as f32).powi((to - from) as i32) } else { 0.0 };
        Self {
            dims,
            critic: l.critic,
            credit: l.credit,
            kappa: l.kappa as f32,
            temperature: settings.policy.temperature as f32,
            support: Tensor::from_data(TensorData::new(atoms.clone(), [1, atoms.len()]), device),
            atoms,
            decay: table(&decay).unsqueeze(),
            until: table(&|from, to| f32::from(u8::from(from <= to))),
        }
    }

    /// Losses and gradients of a batch.
    pub fn batch(&self, f: &Fields<B>, out: &Outputs<B>, weights: Weights) -> Gradients<B> {
        let Dims { steps: t, contracts: n, .. } = self.dims;
        let s = f.potential.dims()[0];
        let values = self.mean(out.states.clone()).reshape([s, t, n]) * f.potential.clone();
        let last_values = self.mean(out.last.clone()).reshape([s, 1, n]) * f.last_potential.clone();
        let actor = self.actor(f, out, values.clone().reshape([s * t, n]), weights.actor);
        let correction = actor.ratios.map(|ratios| ratios.reshape([s, t]));
        let (states, critic_loss) = match self.credit {
            Credit::Contract => self.by_contract(f, out, values, last_values, correction, weights.critic),
            Credit::Total => self.by_total(f, out, values, last_values, correction, weights.critic),
        };
        Gradients { states, actor: actor.gradient, sums: [critic_loss, actor.loss, actor.ratio_sum] }
    }

    /// Mean of the fraction that each output row stands for, `[P, 1]`.
    fn mean(&self, rows: Tensor<B, 2>) -> Tensor<B, 2> {
        match self.critic {
            Critic::Quantile | Critic::Scalar => rows.mean_dim(1),
            Critic::Categorical => (softmax(rows, 1) * self.support.clone()).sum_dim(1),
        }
    }

    /// The expected policy gradient of every request; `values` are `[M, N]`.
    fn actor(&self, f: &Fields<B>, out: &Outputs<B>, values: Tensor<B, 2>, weight: f32) -> Actor<B> {
        let Dims { eligible: k, auctions: a, score_auctions, .. } = self.dims;
        let m = values.dims()[0];
        let outputs = out.actor.clone().reshape([m, self.dims.actor_rows()]);
        let output = outputs.clone().slice([0..m, 0..k]);
        let now = match &f.contract {
            Some(contract) => values.gather(1, contract.clone()),
            None => values,
        };
        let after = self.mean(out.after.clone()).reshape([m, k]) * f.after_potential.clone();
        let change = ((after - now) * f.inverse_ahead.clone()).unsqueeze_dim::<3>(1);

        let share = sigmoid(output.clone() + f.shift.clone());
        let by_output = (share.clone() * (share.clone().neg() + 1.0)).unsqueeze_dim::<3>(1);
        let low = f.low.clone().unsqueeze_dim::<3>(1);
        let span = f.penalty.clone().unsqueeze_dim::<3>(1) * f.unit.clone() - low.clone();
        let bid = low + span.clone() * share.unsqueeze_dim(1);
        let absent = f.boost.clone().lower_elem(0.0);
        let boost = f.boost.clone().clamp_min(0.0) / self.temperature;
        let scores = (boost.clone() * (bid + f.click.clone())).mask_fill(absent, NEVER);
        let slopes = boost * span * by_output;
        let advantages = f.gain.clone() + change;

        let auction_absent = f.auction_boost.clone().lower_elem(0.0);
        let auction_worth = f.auction_boost.clone().clamp_min(0.0) / self.temperature * f.auction_worth.clone();
        let auction_share = score_auctions.then(|| sigmoid(outputs.slice([0..m, k..k + a])).unsqueeze_dim::<3>(1));
        let auction_scores = match &auction_share {
            Some(share) => auction_worth.clone() * share.clone().mul_scalar(2.0),
            None => auction_worth.clone(),
        };
        let auction_scores = auction_scores.mask_fill(auction_absent, NEVER);

        let top = scores.clone().max_dim(2).max_pair(auction_scores.clone().max_dim(2));
        let weights = (scores - top.clone()).exp();
        let auction_weights = (auction_scores - top).exp();
        let sum = weights.clone().sum_dim(2) + auction_weights.clone().sum_dim(2);
        let probabilities = weights / sum.clone();
        let auction_probabilities = auction_weights / sum;
        let mean = (probabilities.clone() * advantages.clone()).sum_dim(2)
            + (auction_probabilities.clone() * f.auction_gain.clone()).sum_dim(2);
        let active = f.active.clone();
        let pull = active.clone().mul_scalar(-weight);
        let by_row = (probabilities.clone() * (advantages - mean.clone()) * slopes * pull.clone()).sum_dim(1);
        let mut gradient = by_row.reshape([m, k]) + f.spring.clone().mul_scalar(weight) * output;
        if let Some(share) = auction_share {
            let slopes = auction_worth * (share.clone() * (share.neg() + 1.0)).mul_scalar(2.0);
            let advantages = f.auction_gain.clone() - mean.clone();
            let by_row = (auction_probabilities.clone() * advantages * slopes * pull).sum_dim(1);
            gradient = Tensor::cat(vec![gradient, by_row.reshape([m, a])], 1);
        }
        let ratios = f.behaviour.as_ref().map(|(shown, inverse)| {
            let all = Tensor::cat(vec![probabilities, auction_probabilities], 2);
            ((all * shown.clone()).sum_dim(2) * inverse.clone()).clamp_max(1.0)
        });
        Actor {
            gradient: gradient.reshape([m * self.dims.actor_rows(), 1]),
            loss: (mean * active.clone()).sum().neg(),
            ratio_sum: ratios.clone().map_or_else(|| active.clone().sum(), Tensor::sum),
            // What was not shown has nothing to correct.
            ratios: ratios.map(|ratios| ratios + active.neg() + 1.0),
        }
    }

    /// Lambda-returns `[S, T, C]` from rewards and values `[S, T, C]` and values at the end `[S, 1, C]`.
    ///
    /// `G_t - V_t = sum_(s >= t) lambda^(s - t) (prod_(t <= u <= s) rho_u) delta_s`: one product with a triangular matrix.
    fn returns(
        &self,
        f: &Fields<B>,
        rewards: Tensor<B, 3>,
        values: Tensor<B, 3>,
        last: Tensor<B, 3>,
        correction: Option<Tensor<B, 2>>,
    ) -> Tensor<B, 3> {
        let [s, t, c] = values.dims();
        let beyond = Tensor::zeros([s, 1, c], &values.device());
        let next = Tensor::cat(vec![values.clone().slice([0..s, 1..t, 0..c]), beyond], 1) + f.ends.clone() * last;
        let deltas = rewards + next - values.clone();
        let weights = match correction {
            None => self.decay.clone().repeat_dim(0, s),
            Some(ratios) => {
                let logs = ratios.clamp_min(1e-6).log();
                let until = logs.clone().matmul(self.until.clone());
                let from = (until.clone() - logs).unsqueeze_dim::<3>(2);
                // Before its own step a product would be above 1; the decay is 0 there.
                (until.unsqueeze_dim::<3>(1) - from).clamp_max(0.0).exp() * self.decay.clone()
            }
        };
        values + weights.matmul(deltas)
    }

    /// A return for each contract.
    fn by_contract(
        &self,
        f: &Fields<B>,
        out: &Outputs<B>,
        values: Tensor<B, 3>,
        last_values: Tensor<B, 3>,
        correction: Option<Tensor<B, 2>>,
        weight: f32,
    ) -> (Tensor<B, 2>, Tensor<B, 1>) {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        let [s, t, _] = values.dims();
        let returns = self.returns(f, f.rewards.clone(), values, last_values.clone(), correction);
        let row = |x: Tensor<B, 3>| x.reshape([s * t * n, 1]);
        let each_step = |x: Tensor<B, 3>| x.repeat_dim(1, t).reshape([s * t * n, 1]);
        let aim = Aim {
            returns: row(returns),
            inverse_scale: row(f.inverse_scale.clone()),
            potential: row(f.potential.clone()),
            last: out.last.clone().reshape([s, 1, n * q]).repeat_dim(1, t).reshape([s * t * n, q]),
            last_potential: each_step(f.last_potential.clone()),
            last_value: each_step(last_values),
        };
        self.fit(out.states.clone(), &aim, weight)
    }

    /// One return for the whole: `Z = sum_j Z_j`, output by output.
    fn by_total(
        &self,
        f: &Fields<B>,
        out: &Outputs<B>,
        values: Tensor<B, 3>,
        last_values: Tensor<B, 3>,
        correction: Option<Tensor<B, 2>>,
        weight: f32,
    ) -> (Tensor<B, 2>, Tensor<B, 1>) {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        let [s, t, _] = values.dims();
        let potential = f.potential.clone().reshape([s * t, n, 1]);
        let total = |z: Tensor<B, 2>, potential: Tensor<B, 3>| {
            let [p, n, _] = potential.dims();
            (z.reshape([p, n, q]) * potential).sum_dim(1).reshape([p, q])
        };
        let rewards = f.auction_rewards.clone() + f.rewards.clone().sum_dim(2);
        let last_value = last_values.sum_dim(2);
        let returns = self.returns(f, rewards, values.sum_dim(2), last_value.clone(), correction);
        let last = total(out.last.clone(), f.last_potential.clone().reshape([s, n, 1]));
        let ones = Tensor::ones([s * t, 1], &potential.device());
        let aim = Aim {
            returns: returns.reshape([s * t, 1]),
            inverse_scale: f.inverse_scale.clone().reshape([s * t, 1]),
            // The sum is already money.
            potential: ones.clone(),
            last: last.reshape([s, 1, q]).repeat_dim(1, t).reshape([s * t, q]),
            last_potential: ones,
            last_value: last_value.repeat_dim(1, t).reshape([s * t, 1]),
        };
        let z = total(out.states.clone(), potential.clone());
        let (by_total, loss) = self.fit(z, &aim, weight * n as f32);
        let states = by_total.unsqueeze_dim::<3>(1) * potential;
        (states.reshape([s * t * n, q]), loss.mul_scalar(n as f32))
    }

    /// Gradient by output rows `[P, Q]` and the sum of their losses against the target distributions.
    fn fit(&self, z: Tensor<B, 2>, aim: &Aim<B>, weight: f32) -> (Tensor<B, 2>, Tensor<B, 1>) {
        let factor = aim.potential.clone() * aim.inverse_scale.clone();
        match self.critic {
            Critic::Scalar => {
                let u = aim.returns.clone() * aim.inverse_scale.clone() - factor.clone() * z;
                (u.clone() * factor.mul_scalar(-weight), (u.clone() * u).sum().mul_scalar(0.5))
            }
            Critic::Quantile => {
                let spread = aim.last.clone() * aim.last_potential.clone() - aim.last_value.clone();
                let targets = (spread + aim.returns.clone()) * aim.inverse_scale.clone();
                self.quantile_huber(z, factor, targets, weight)
            }
            Critic::Categorical => self.cross_entropy(z, aim, weight),
        }
    }

    /// Dabney et al. 2018, equations 9 and 10, averaged over both quantiles.
    fn quantile_huber(
        &self,
        z: Tensor<B, 2>,
        factor: Tensor<B, 2>,
        targets: Tensor<B, 2>,
        weight: f32,
    ) -> (Tensor<B, 2>, Tensor<B, 1>) {
        let [p, q] = z.dims();
        let mean = 1.0 / (q * q) as f32;
        let theta = (z * factor.clone()).unsqueeze_dim::<3>(2);
        let u = targets.unsqueeze_dim::<3>(1) - theta;
        let tau = self.support.clone().reshape([1, q, 1]);
        let below = u.clone().lower_elem(0.0).float();
        // tau above the estimate, 1 - tau below it.
        let side = tau.clone() + below * (tau.mul_scalar(-2.0) + 1.0);
        let bounded = u.clone().div_scalar(self.kappa).clamp(-1.0, 1.0);
        let slope = side * bounded.clone();
        let loss = (slope.clone() * (u - bounded.mul_scalar(0.5 * self.kappa))).sum().mul_scalar(mean);
        let slopes: Tensor<B, 2> = slope.sum_dim(2).reshape([p, q]);
        (slopes * factor.mul_scalar(-weight * mean), loss)
    }

    /// Bellemare et al. 2017: the target is projected onto the atoms, each value to its two neighbours.
    fn cross_entropy(&self, z: Tensor<B, 2>, aim: &Aim<B>, weight: f32) -> (Tensor<B, 2>, Tensor<B, 1>) {
        let [p, q] = z.dims();
        let step = (self.atoms[q - 1] - self.atoms[0]) / (q - 1) as f32;
        let idle = aim.inverse_scale.clone().equal_elem(0.0);
        let learns = idle.clone().bool_not().float();
        let potential = aim.potential.clone().mask_fill(idle, 1.0);
        let spread = self.support.clone() * aim.last_potential.clone() - aim.last_value.clone();
        let moved = (spread + aim.returns.clone()) / potential;
        let at = moved.sub_scalar(self.atoms[0]).div_scalar(step).clamp(0.0, (q - 1) as f32);
        let atoms = (self.support.clone().sub_scalar(self.atoms[0])).div_scalar(step).reshape([1, q, 1]);
        let near = ((at.unsqueeze_dim::<3>(1) - atoms).abs().neg() + 1.0).clamp_min(0.0);
        let projected: Tensor<B, 2> =
            (near * softmax(aim.last.clone(), 1).unsqueeze_dim::<3>(1)).sum_dim(2).reshape([p, q]);
        let shares = softmax(z, 1);
        let logs = shares.clone().clamp_min(1e-12).log();
        let loss = (projected.clone() * logs * learns.clone()).sum().neg();
        ((shares - projected) * learns.mul_scalar(weight), loss)
    }
}

/// What the actor's side of a batch gives.
struct Actor<B: Backend> {
    /// `[M (K + A), 1]`
    gradient: Tensor<B, 2>,
    loss: Tensor<B, 1>,
    ratio_sum: Tensor<B, 1>,
    /// `[M, 1, 1]`, where returns are corrected for the behaviour.
    ratios: Option<Tensor<B, 3>>,
}
