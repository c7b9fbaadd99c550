//! The critic: values of its outputs, returns from them, and its gradient.

use cubecl::prelude::*;

use crate::formulas::shared::{LossFactors, quantile_huber, return_step, scalar_loss};
use crate::settings::Critic;

use super::super::constants::Atoms;
use super::arguments::{Places, Sizes};

/// Returns the largest of `len` numbers, and the sum of all exponentials relative to it.
#[cube]
fn scale_of(numbers: &Array<f32>, at: usize, len: usize) -> (f32, f32) {
    let mut top = numbers[at];
    for i in 1..len {
        if numbers[at + i] > top {
            top = numbers[at + i];
        }
    }
    let mut sum = 0.0f32;
    for i in 0..len {
        sum += (numbers[at + i] - top).exp();
    }
    (top, sum)
}

/// Returns the mean of the distribution that a row of the critic represents.
#[cube]
fn mean(rows: &Array<f32>, support: &Array<f32>, at: usize, len: usize, #[comptime] averages: bool) -> f32 {
    let mut sum = 0.0f32;
    if comptime!(averages) {
        for i in 0..len {
            sum += rows[at + i];
        }
        sum /= f32::cast_from(len);
    } else {
        let (top, scale) = scale_of(rows, at, len);
        for i in 0..len {
            sum += (rows[at + i] - top).exp() * support[i];
        }
        sum /= scale;
    }
    sum
}

/// Computes the value of each row of the critic in money: before each step, after each display, after each segment. One unit each.
#[cube(launch_unchecked)]
pub(super) fn values_kernel(
    rows: &Array<f32>,
    last: &Array<f32>,
    batch: &Array<f32>,
    support: &Array<f32>,
    values: &mut Array<f32>,
    of: Sizes,
    at: Places,
    #[comptime] averages: bool,
) {
    let row = ABSOLUTE_POS;
    if row >= values.len() {
        terminate!();
    }
    let first = of.all * (of.contracts + of.bidders);
    if row < first {
        let value = mean(rows, support, row * of.outputs, of.outputs, averages);
        values[row] = value * batch[at.potential + row];
    } else {
        let value = mean(last, support, (row - first) * of.outputs, of.outputs, averages);
        values[row] = value * batch[at.potential + row];
    }
}

/// Steps that a unit reads together; reading one by one, it would wait for memory at each.
const AT_ONCE: usize = 8;

/// Computes lambda-returns, with one unit for each segment and member, from the last step to the first.
#[cube(launch_unchecked)]
pub(super) fn returns_kernel(
    batch: &Array<f32>,
    values: &Array<f32>,
    ratios: &Array<f32>,
    returns: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: LossFactors,
    #[comptime] total: bool,
) {
    let unit = ABSOLUTE_POS;
    let mut credited = of.contracts;
    let mut members = 1usize;
    if comptime!(total) {
        members = of.contracts;
        credited = 1usize;
    }
    if unit >= of.all / of.steps * credited {
        terminate!();
    }
    let segment = unit / credited;
    let member = unit - segment * credited;
    let beyond = of.all * (of.contracts + of.bidders) + segment * of.contracts + member;
    let mut last = 0.0f32;
    for i in 0..members {
        last += values[beyond + i];
    }
    let mut next_value = 0.0f32;
    let mut next_return = 0.0f32;
    let behind = (segment + 1) * of.steps;
    let mut done = 0usize;
    while done < of.steps {
        let mut said = Array::<f32>::new(AT_ONCE);
        let mut gained = Array::<f32>::new(AT_ONCE);
        let mut corrected = Array::<f32>::new(AT_ONCE);
        let mut ends = Array::<f32>::new(AT_ONCE);
        #[unroll]
        for i in 0..AT_ONCE {
            // Indices beyond the first step are clamped to it, so that no read waits for a condition.
            let mut step = segment * of.steps;
            if done + i < of.steps {
                step = behind - 1 - done - i;
            }
            let mut value = 0.0f32;
            let mut reward = 0.0f32;
            if comptime!(total) {
                for j in 0..of.contracts {
                    value += values[step * of.contracts + j];
                    reward += batch[at.rewards + step * of.contracts + j];
                }
                reward += batch[at.auction_rewards + step];
            } else {
                value += values[step * of.contracts + member];
                reward += batch[at.rewards + step * of.contracts + member];
            }
            // No correction if nothing was shown, or if a step is many requests.
            let mut ratio = f32::new(1.0);
            if of.requests == 1 {
                ratio = ratios[step] + 1.0f32 - batch[at.active + step];
            }
            said[i] = value;
            gained[i] = reward;
            corrected[i] = ratio;
            ends[i] = batch[at.ends + step];
        }
        #[unroll]
        for i in 0..AT_ONCE {
            if done + i < of.steps {
                if ends[i] > 0.0 {
                    next_value = last;
                    next_return = last;
                }
                next_return = return_step(said[i], gained[i], next_value, next_return, corrected[i], &by);
                next_value = said[i];
                returns[(behind - 1 - done - i) * credited + member] = next_return;
            }
        }
        done += AT_ONCE;
    }
}

/// Computes the critic's gradient by its outputs before each step, and its losses if requested: one unit for each return and
/// output.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
pub(super) fn critic_kernel(
    batch: &Array<f32>,
    rows: &Array<f32>,
    last: &Array<f32>,
    values: &Array<f32>,
    returns: &Array<f32>,
    support: &Array<f32>,
    gradient: &mut Array<f32>,
    losses: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: LossFactors,
    atoms: Atoms,
    scale: f32,
    #[comptime] critic: Critic,
    #[comptime] total: bool,
    #[comptime] with_losses: bool,
) {
    let mut credited = of.contracts;
    let mut members = 1usize;
    if comptime!(total) {
        members = of.contracts;
        credited = 1usize;
    }
    let q = of.outputs;
    let pair = ABSOLUTE_POS / q;
    let output = ABSOLUTE_POS - pair * q;
    if pair >= of.all * credited {
        terminate!();
    }
    let step = pair / credited;
    let member = pair - step * credited;
    let segment = step / of.steps;
    let row = step * of.contracts + member;
    let behind = segment * of.contracts + member;
    let inverse = batch[at.inverse_scale + pair];
    let mut said = 0.0f32;
    let mut last_value = 0.0f32;
    for i in 0..members {
        said += rows[(row + i) * q + output] * batch[at.potential + row + i];
        last_value += values[of.all * (of.contracts + of.bidders) + behind + i];
    }
    let shift = returns[pair] - last_value;
    let mut slope = 0.0f32;
    let mut loss = 0.0f32;
    if comptime!(critic == Critic::Scalar) {
        let (by_difference, term) = scalar_loss((returns[pair] - said) * inverse);
        slope = by_difference;
        loss = term;
    }
    if comptime!(critic == Critic::Quantile) {
        let tau = support[output];
        for j in 0..q {
            let mut target = shift;
            for i in 0..members {
                target += last[(behind + i) * q + j] * batch[at.last_potential + behind + i];
            }
            let u = (target - said) * inverse;
            let (by_difference, term) = quantile_huber(u, tau, &by);
            slope += by_difference;
            loss += term;
        }
        let pairs = 1.0f32 / f32::cast_from(q * q);
        slope *= pairs;
        loss *= pairs;
    }
    if comptime!(critic == Critic::Categorical) {
        let mut potential = batch[at.potential + row];
        let mut learns = f32::new(1.0);
        if inverse == 0.0 {
            potential = f32::new(1.0);
            learns = 0.0f32;
        }
        let (own_top, own_sum) = scale_of(rows, row * q, q);
        let own = (rows[row * q + output] - own_top).exp() / own_sum;
        let (last_top, last_sum) = scale_of(last, behind * q, q);
        let mut projected = 0.0f32;
        for j in 0..q {
            let moved = (support[j] * batch[at.last_potential + behind] + shift) / potential;
            let mut place = (moved - atoms.lowest) / atoms.step;
            if place < 0.0 {
                place = 0.0f32;
            }
            if place > f32::cast_from(q - 1) {
                place = f32::cast_from(q - 1);
            }
            let near = 1.0f32 - (place - f32::cast_from(output)).abs();
            if near > 0.0 {
                projected += near * (last[behind * q + j] - last_top).exp() / last_sum;
            }
        }
        let mut certain = own;
        if certain < 1e-12 {
            certain = f32::new(1e-12);
        }
        loss = -projected * certain.ln() * learns;
        gradient[row * q + output] = (own - projected) * learns * scale;
    } else {
        for i in 0..members {
            gradient[(row + i) * q + output] = -scale * inverse * batch[at.potential + row + i] * slope;
        }
    }
    if comptime!(with_losses) {
        // One return represents all its members, as its weight does.
        losses[ABSOLUTE_POS] = loss * f32::cast_from(members);
    }
}
