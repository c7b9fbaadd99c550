//! Returns, losses and their gradients as tensor operations over a whole batch.
//!
//! The same mathematics as [`super::super::loss`], which says why; that one is also what this is tested against. Nothing here
//! waits for the device, and no shape depends on the data. Shapes are those of [`Fields`]: `S` segments of `T` steps, `M = S T`, `N`
//! contracts, `K` bidders, `R` requests in a step, `A` auction ads, `Q` outputs of the critic; `P` is any number of rows, `C` is `N`, or 1 where the total is credited.

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use crate::settings::{Credit, Critic, Settings};

use super::super::dims::Dims;
use super::super::loss::support;
use super::layout::Fields;

/// Score of what may not be shown: its exponential is nothing beside any other.
pub const NEVER: f32 = -1e30;

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
pub struct OutputGradients<B: Backend> {
    /// `[M N, Q]`
    pub states: Tensor<B, 2>,
    /// `[M (K + A), 1]`
    pub actor: Tensor<B, 2>,
    /// `[1]` each: losses of the critic and the actor, clipped importance ratios; where they were asked for.
    pub sums: Option<[Tensor<B, 1>; 3]>,
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
    pub critic: Critic,
    credit: Credit,
    pub lambda: f32,
    pub kappa: f32,
    pub temperature: f32,
    pub atoms: Vec<f32>,
    /// Quantile midpoints or atoms, `[1, Q]`.
    pub support: Tensor<B, 2>,
    /// `[1, T, T]`: `lambda^(s - t)` from step `t` on, 0 before.
    decay: Tensor<B, 3>,
}

/// What output rows are to be fitted to. Money in units of the mean best auction worth.
struct Aim<B: Backend> {
    /// The lambda-returns, `[S, T, C]`.
    returns: Tensor<B, 3>,
    /// One over the unit of the loss, `[S, T, C]`; 0 = nothing to learn.
    inverse_scale: Tensor<B, 3>,
    /// What the rows are multiplied by to be money, `[S, T, C]`.
    potential: Tensor<B, 3>,
    /// What the target critic sees at the segment's end: as it says it, `[S, 1, C, Q]`, what that is multiplied by and its mean, `[S, 1, C]`.
    last: Tensor<B, 4>,
    last_potential: Tensor<B, 3>,
    last_value: Tensor<B, 3>,
}

/// Gradient by output rows `[S, T, C, Q]`, and the sum of their losses, `[1]`, where it is asked for.
type Fit<B> = (Tensor<B, 4>, Option<Tensor<B, 1>>);

impl<B: Backend> TensorLosses<B> {
    pub fn new(dims: Dims, settings: &Settings, device: &B::Device) -> Self {
        let l = &settings.learner;
        let t = dims.steps;
        let atoms = support(l);
        let decay = |from: usize, to: usize| if to >= from { (l.lambda as f32).powi((to - from) as i32) } else { 0.0 };
        let decay: Vec<f32> = (0..t * t).map(|i| decay(i / t, i % t)).collect();
        Self {
            dims,
            critic: l.critic,
            credit: l.credit,
            lambda: l.lambda as f32,
            kappa: l.kappa as f32,
            temperature: settings.policy.temperature as f32,
            support: Tensor::from_data(TensorData::new(atoms.clone(), [1, atoms.len()]), device),
            atoms,
            decay: Tensor::from_data(TensorData::new(decay, [1, t, t]), device),
        }
    }

    /// Gradients of a batch, and the sums of its losses `with_sums`.
    pub fn batch(&self, f: &Fields<B>, out: &Outputs<B>, weights: Weights, with_sums: bool) -> OutputGradients<B> {
        let Dims { steps: t, contracts: n, outputs: q, .. } = self.dims;
        let s = f.potential.dims()[0];
        let values = self.mean(out.states.clone()).reshape([s, t, n]) * f.potential.clone();
        let last_values = self.mean(out.last.clone()).reshape([s, 1, n]) * f.last_potential.clone();
        let actor = self.actor(f, out, values.clone().reshape([s * t, n]), weights.actor);
        let correction = actor.ratios.clone().map(|ratios| ratios.reshape([s, t]));
        let by = match self.credit {
            Credit::Contract => Self::by_contract,
            Credit::Total => Self::by_total,
        };
        let (states, critic_loss) = by(self, f, out, (values, last_values), correction, weights.critic, with_sums);
        let sums = critic_loss.map(|critic_loss| {
            let loss = (actor.mean * f.active.clone()).sum().neg();
            // Nothing is corrected for what was not shown.
            let ratios = actor.ratios.map_or_else(|| f.active.clone(), |ratios| ratios * f.active.clone());
            [critic_loss, loss, ratios.sum()]
        });
        OutputGradients { states: states.reshape([s * t * n, q]), actor: actor.gradient, sums }
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
            mean,
            // What was not shown has nothing to correct.
            ratios: ratios.map(|ratios| ratios + active.neg() + 1.0),
        }
    }

    /// Lambda-returns `[S, T, C]` from rewards and values `[S, T, C]` and values at the end `[S, 1, C]`.
    ///
    /// `G_t - V_t = sum_(s >= t) lambda^(s - t) (prod_(t <= u <= s) rho_u) delta_s`: one weighted sum for each step, instead
    /// of one step after another.
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
            None => self.decay.clone(),
            Some(ratios) => {
                let logs = ratios.clamp_min(1e-6).log();
                let until = logs.clone().cumsum(1);
                let from = (until.clone() - logs).unsqueeze_dim::<3>(2);
                // Before its own step a product would be above 1; the decay is 0 there.
                (until.unsqueeze_dim::<3>(1) - from).clamp_max(0.0).exp() * self.decay.clone()
            }
        };
        let sums = (weights.unsqueeze_dim::<4>(3) * deltas.unsqueeze_dim::<4>(1)).sum_dim(2);
        values + sums.squeeze_dim(2)
    }

    /// A return for each contract.
    fn by_contract(
        &self,
        f: &Fields<B>,
        out: &Outputs<B>,
        (values, last_values): (Tensor<B, 3>, Tensor<B, 3>),
        correction: Option<Tensor<B, 2>>,
        weight: f32,
        with_sum: bool,
    ) -> Fit<B> {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        let [s, t, _] = values.dims();
        let aim = Aim {
            returns: self.returns(f, f.rewards.clone(), values, last_values.clone(), correction),
            inverse_scale: f.inverse_scale.clone(),
            potential: f.potential.clone(),
            last: out.last.clone().reshape([s, 1, n, q]),
            last_potential: f.last_potential.clone(),
            last_value: last_values,
        };
        self.fit(out.states.clone().reshape([s, t, n, q]), aim, weight, with_sum)
    }

    /// One return for the whole: `Z = sum_j Z_j`, output by output.
    fn by_total(
        &self,
        f: &Fields<B>,
        out: &Outputs<B>,
        (values, last_values): (Tensor<B, 3>, Tensor<B, 3>),
        correction: Option<Tensor<B, 2>>,
        weight: f32,
        with_sum: bool,
    ) -> Fit<B> {
        let Dims { contracts: n, outputs: q, .. } = self.dims;
        let [s, t, _] = values.dims();
        let potential = f.potential.clone().unsqueeze_dim::<4>(3);
        let rewards = f.auction_rewards.clone() + f.rewards.clone().sum_dim(2);
        let last_value = last_values.sum_dim(2);
        let last = out.last.clone().reshape([s, 1, n, q]) * f.last_potential.clone().unsqueeze_dim(3);
        let aim = Aim {
            returns: self.returns(f, rewards, values.sum_dim(2), last_value.clone(), correction),
            inverse_scale: f.inverse_scale.clone(),
            // The sum is already money.
            potential: Tensor::ones([1, 1, 1], &potential.device()),
            last: last.sum_dim(2),
            last_potential: Tensor::ones([1, 1, 1], &potential.device()),
            last_value,
        };
        let z = (out.states.clone().reshape([s, t, n, q]) * potential.clone()).sum_dim(2);
        let (by_total, loss) = self.fit(z, aim, weight * n as f32, with_sum);
        (by_total * potential, loss.map(|loss| loss.mul_scalar(n as f32)))
    }

    /// Fits output rows `[S, T, C, Q]` to the target distributions: the lambda-return plus the spread at the segment's end.
    fn fit(&self, z: Tensor<B, 4>, aim: Aim<B>, weight: f32, with_sum: bool) -> Fit<B> {
        let each = |x: Tensor<B, 3>| x.unsqueeze_dim::<4>(3);
        let (returns, inverse_scale) = (each(aim.returns), each(aim.inverse_scale));
        let potential = each(aim.potential);
        let factor = potential.clone() * inverse_scale.clone();
        let spread = |last: Tensor<B, 4>| {
            last * each(aim.last_potential.clone()) - each(aim.last_value.clone()) + returns.clone()
        };
        match self.critic {
            Critic::Scalar => {
                let u = returns * inverse_scale - factor.clone() * z;
                let loss = with_sum.then(|| (u.clone() * u.clone()).sum().mul_scalar(0.5));
                (u * factor.mul_scalar(-weight), loss)
            }
            Critic::Quantile => self.quantile_huber(z, factor, spread(aim.last) * inverse_scale, weight, with_sum),
            Critic::Categorical => {
                let targets = spread(self.support.clone().unsqueeze::<4>());
                self.cross_entropy(z, softmax(aim.last, 3), targets, (potential, inverse_scale), weight, with_sum)
            }
        }
    }

    /// Dabney et al. 2018, equations 9 and 10, averaged over both quantiles.
    fn quantile_huber(
        &self,
        z: Tensor<B, 4>,
        factor: Tensor<B, 4>,
        targets: Tensor<B, 4>,
        weight: f32,
        with_sum: bool,
    ) -> Fit<B> {
        let [.., q] = z.dims();
        let mean = 1.0 / (q * q) as f32;
        let theta = (z * factor.clone()).unsqueeze_dim::<5>(4);
        let u = targets.unsqueeze_dim::<5>(3) - theta;
        let tau = self.support.clone().reshape([1, 1, 1, q, 1]);
        let below = u.clone().lower_elem(0.0).float();
        // tau above the estimate, 1 - tau below it.
        let side = tau.clone() + below * (tau.mul_scalar(-2.0) + 1.0);
        let bounded = u.clone().div_scalar(self.kappa).clamp(-1.0, 1.0);
        let slope = side * bounded.clone();
        let loss = with_sum.then(|| {
            let pairs = slope.clone() * (u - bounded.mul_scalar(0.5 * self.kappa));
            pairs.sum().mul_scalar(mean)
        });
        let slopes: Tensor<B, 4> = slope.sum_dim(4).squeeze_dim(4);
        (slopes * factor.mul_scalar(-weight * mean), loss)
    }

    /// Bellemare et al. 2017: the target is projected onto the atoms, each value to its two neighbours. `shares` are those of the
    /// target's atoms, `[S, 1, C, Q]`, which have moved to `targets`, `[S, T, C, Q]`, in money.
    fn cross_entropy(
        &self,
        z: Tensor<B, 4>,
        shares: Tensor<B, 4>,
        targets: Tensor<B, 4>,
        (potential, inverse_scale): (Tensor<B, 4>, Tensor<B, 4>),
        weight: f32,
        with_sum: bool,
    ) -> Fit<B> {
        let [.., q] = z.dims();
        let (lowest, step) = (self.atoms[0], (self.atoms[q - 1] - self.atoms[0]) / (q - 1) as f32);
        let idle = inverse_scale.equal_elem(0.0);
        let learns = idle.clone().bool_not().float();
        let moved = targets / potential.mask_fill(idle, 1.0);
        let place = |value: Tensor<B, 4>| value.sub_scalar(lowest).div_scalar(step);
        let at = place(moved).clamp(0.0, (q - 1) as f32).unsqueeze_dim::<5>(3);
        let atoms = place(self.support.clone().unsqueeze::<4>()).unsqueeze_dim::<5>(4);
        let near = ((at - atoms).abs().neg() + 1.0).clamp_min(0.0);
        let projected: Tensor<B, 4> = (near * shares.unsqueeze_dim::<5>(3)).sum_dim(4).squeeze_dim(4);
        let own = softmax(z, 3);
        let loss = with_sum.then(|| {
            let logs = own.clone().clamp_min(1e-12).log();
            (projected.clone() * logs * learns.clone()).sum().neg()
        });
        ((own - projected) * learns.mul_scalar(weight), loss)
    }
}

/// What the actor's side of a batch gives.
struct Actor<B: Backend> {
    /// `[M (K + A), 1]`
    gradient: Tensor<B, 2>,
    /// Expected advantage of each request, `[M, R, 1]`.
    mean: Tensor<B, 3>,
    /// `[M, 1, 1]`, where returns are corrected for the behaviour.
    ratios: Option<Tensor<B, 3>>,
}
