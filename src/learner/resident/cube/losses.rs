//! From the networks' outputs to gradients by them: returns, the expected policy gradient, distributional losses.
//!
//! The mathematics is that of [`crate::learner::loss`], one unit for each number or request.
//! The total's credit is the contract's with all contracts as members of one return.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::formulas::device::{auction_factor, auction_slope, bid, bid_slope, sigmoid};
use crate::formulas::shared::{outlook, policy_gradient, quantile_huber, return_step};
use crate::learner::loss::support;
use crate::settings::{Critic, Settings};

use super::networks::{ByOutputs, Passes};
use super::{Numbers, Update};

/// Score of what may not be shown: its exponential is nothing beside any other.
const NEVER: f32 = -1e30;

/// Sizes of a batch: `M` steps in all, `T` in a segment, `N` contracts, `K` bidders, `R` requests in a step, `A` auction ads, `Q` outputs of the critic.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    all: usize,
    steps: usize,
    contracts: usize,
    bidders: usize,
    requests: usize,
    auctions: usize,
    outputs: usize,
}

/// Where the fields of a batch begin.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Places {
    potential: usize,
    last_potential: usize,
    inverse_scale: usize,
    rewards: usize,
    auction_rewards: usize,
    ends: usize,
    contract: usize,
    shift: usize,
    low: usize,
    penalty: usize,
    ahead: usize,
    spring: usize,
    unit: usize,
    click: usize,
    gain: usize,
    boost: usize,
    auction_worth: usize,
    auction_gain: usize,
    auction_boost: usize,
    active: usize,
    shown: usize,
    inverse_behaviour: usize,
}

/// Constants of a launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Factors {
    inverse_temperature: f32,
    lambda: f32,
    inverse_kappa: f32,
    half_kappa: f32,
    actor_weight: f32,
    critic_weight: f32,
    /// First atom, and the distance between two.
    lowest: f32,
    atom_step: f32,
}

/// Greatest of `len` numbers, and the sum of the others' exponentials beside it.
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

/// Mean of what a row of the critic stands for.
#[cube]
fn mean(rows: &Array<f32>, support: &Array<f32>, at: usize, len: usize, #[comptime] categorical: bool) -> f32 {
    let mut sum = 0.0f32;
    if comptime!(categorical) {
        let (top, scale) = scale_of(rows, at, len);
        for i in 0..len {
            sum += (rows[at + i] - top).exp() * support[i];
        }
        sum /= scale;
    } else {
        for i in 0..len {
            sum += rows[at + i];
        }
        sum /= f32::cast_from(len);
    }
    sum
}

/// What each row of the critic is worth in money: before each step, after each display, behind each segment. One unit each.
#[cube(launch_unchecked)]
fn values_kernel(
    rows: &Array<f32>,
    last: &Array<f32>,
    batch: &Array<f32>,
    support: &Array<f32>,
    values: &mut Array<f32>,
    of: Sizes,
    at: Places,
    #[comptime] categorical: bool,
) {
    let row = ABSOLUTE_POS;
    if row >= values.len() {
        terminate!();
    }
    let first = of.all * (of.contracts + of.bidders);
    if row < first {
        let value = mean(rows, support, row * of.outputs, of.outputs, categorical);
        values[row] = value * batch[at.potential + row];
    } else {
        let value = mean(last, support, (row - first) * of.outputs, of.outputs, categorical);
        values[row] = value * batch[at.potential + row];
    }
}

/// What showing something on a request comes to.
#[derive(CubeType, Clone, Copy)]
struct Offer {
    score: f32,
    /// Derivative of the score by the network's output.
    slope: f32,
    advantage: f32,
}

/// A bidder on a request; requests are counted over the batch.
#[cube]
#[allow(clippy::too_many_arguments, reason = "arrays are arguments of a launch")]
fn offer(
    batch: &Array<f32>,
    scores: &Array<f32>,
    values: &Array<f32>,
    request: usize,
    bidder: usize,
    of: &Sizes,
    at: &Places,
    by: &Factors,
    #[comptime] score_auctions: bool,
) -> Offer {
    let step = request / of.requests;
    let slot = step * of.bidders + bidder;
    let contest = request * of.bidders + bidder;
    let share = sigmoid(scores[step * rows(of, score_auctions) + bidder] + batch[at.shift + slot]);
    let (low, high, unit) = (batch[at.low + slot], batch[at.penalty + slot], batch[at.unit + contest]);
    let boost = batch[at.boost + contest];
    let mut score = f32::new(NEVER);
    let mut slope = 0.0f32;
    if boost >= 0.0 {
        let sharp = boost * by.inverse_temperature;
        score = sharp * (bid(share, low, high, unit) + batch[at.click + contest]);
        slope = sharp * bid_slope(share, low, high, unit);
    }
    let mut contract = bidder;
    if of.requests == 1 {
        contract = usize::cast_from(batch[at.contract + slot]);
    }
    let now = values[step * of.contracts + contract];
    let after = values[of.all * of.contracts + slot];
    let advantage = batch[at.gain + contest] + outlook(after, now, batch[at.ahead + slot]);
    Offer { score, slope, advantage }
}

/// An auction ad on a request.
#[cube]
fn auction(
    batch: &Array<f32>,
    scores: &Array<f32>,
    request: usize,
    ad: usize,
    of: &Sizes,
    at: &Places,
    by: &Factors,
    #[comptime] score_auctions: bool,
) -> Offer {
    let contest = request * of.auctions + ad;
    let boost = batch[at.auction_boost + contest];
    let mut score = f32::new(NEVER);
    let mut slope = 0.0f32;
    if boost >= 0.0 {
        score = boost * by.inverse_temperature * batch[at.auction_worth + contest];
        if comptime!(score_auctions) {
            let step = request / of.requests;
            let share = sigmoid(scores[step * rows(of, score_auctions) + of.bidders + ad]);
            slope = score * auction_slope(share);
            score *= auction_factor(share);
        }
    }
    Offer { score, slope, advantage: batch[at.auction_gain + contest] }
}

/// Derivative of what is to be expected of a request by the output of one of its offers.
#[cube]
fn pull(offer: &Offer, top: f32, sum: f32, mean: f32) -> f32 {
    policy_gradient((offer.score - top).exp() / sum, offer.advantage, mean, offer.slope)
}

/// The actor's rows of a step.
#[cube]
fn rows(of: &Sizes, #[comptime] score_auctions: bool) -> usize {
    let mut rows = of.bidders;
    if comptime!(score_auctions) {
        rows += of.auctions;
    }
    rows
}

/// Each request as a contest: its greatest score, the sum of exponentials beside it, what is to be expected of it, and the clipped importance
/// ratio of what was shown. Loss and ratio are 0 where nothing was. One unit each.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn contests_kernel(
    batch: &Array<f32>,
    scores: &Array<f32>,
    values: &Array<f32>,
    tops: &mut Array<f32>,
    sums: &mut Array<f32>,
    means: &mut Array<f32>,
    losses: &mut Array<f32>,
    ratios: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: Factors,
    #[comptime] score_auctions: bool,
) {
    let request = ABSOLUTE_POS;
    if request >= of.all * of.requests {
        terminate!();
    }
    let mut top = f32::new(NEVER);
    for bidder in 0..of.bidders {
        let o = offer(batch, scores, values, request, bidder, &of, &at, &by, score_auctions);
        if o.score > top {
            top = o.score;
        }
    }
    for ad in 0..of.auctions {
        let o = auction(batch, scores, request, ad, &of, &at, &by, score_auctions);
        if o.score > top {
            top = o.score;
        }
    }
    let mut sum = 0.0f32;
    let mut expected = 0.0f32;
    let mut shown = 0.0f32;
    let shown_at = at.shown + request * (of.bidders + of.auctions);
    for bidder in 0..of.bidders {
        let o = offer(batch, scores, values, request, bidder, &of, &at, &by, score_auctions);
        let weight = (o.score - top).exp();
        sum += weight;
        expected += weight * o.advantage;
        if of.requests == 1 {
            shown += weight * batch[shown_at + bidder];
        }
    }
    for ad in 0..of.auctions {
        let o = auction(batch, scores, request, ad, &of, &at, &by, score_auctions);
        let weight = (o.score - top).exp();
        sum += weight;
        expected += weight * o.advantage;
        if of.requests == 1 {
            shown += weight * batch[shown_at + of.bidders + ad];
        }
    }
    let active = batch[at.active + request];
    let mut ratio = active;
    if of.requests == 1 {
        ratio = shown / sum * batch[at.inverse_behaviour + request];
        if ratio > 1.0 {
            ratio = f32::new(1.0);
        }
        ratio *= active;
    }
    tops[request] = top;
    sums[request] = sum;
    means[request] = expected / sum;
    losses[request] = -(expected / sum) * active;
    ratios[request] = ratio;
}

/// The actor's gradient, one unit for each of its rows.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn actor_kernel(
    batch: &Array<f32>,
    scores: &Array<f32>,
    values: &Array<f32>,
    tops: &Array<f32>,
    sums: &Array<f32>,
    means: &Array<f32>,
    gradient: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: Factors,
    #[comptime] score_auctions: bool,
) {
    let row = ABSOLUTE_POS;
    if row >= gradient.len() {
        terminate!();
    }
    let width = rows(&of, score_auctions);
    let step = row / width;
    let bidder = row - step * width;
    let mut sum = 0.0f32;
    for i in 0..of.requests {
        let request = step * of.requests + i;
        if bidder < of.bidders {
            let o = offer(batch, scores, values, request, bidder, &of, &at, &by, score_auctions);
            sum += pull(&o, tops[request], sums[request], means[request]) * batch[at.active + request];
        } else {
            let o = auction(batch, scores, request, bidder - of.bidders, &of, &at, &by, score_auctions);
            sum += pull(&o, tops[request], sums[request], means[request]) * batch[at.active + request];
        }
    }
    let mut spring = 0.0f32;
    if bidder < of.bidders {
        spring = batch[at.spring + step * of.bidders + bidder] * scores[row];
    }
    gradient[row] = by.actor_weight * (spring - sum);
}

/// Steps that a unit reads before it works on them: one by one, it would wait for memory at each.
const AT_ONCE: usize = 8;

/// Lambda-returns, one unit for each segment and member, from the last step to the first.
#[cube(launch_unchecked)]
fn returns_kernel(
    batch: &Array<f32>,
    values: &Array<f32>,
    ratios: &Array<f32>,
    returns: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: Factors,
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
            // Beyond the first step it is read again, so that no read waits for a condition.
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
            // Nothing is corrected for what was not shown, and nothing where a step is many requests.
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
                next_return = return_step(said[i], gained[i], next_value, next_return, corrected[i], by.lambda);
                next_value = said[i];
                returns[(behind - 1 - done - i) * credited + member] = next_return;
            }
        }
        done += AT_ONCE;
    }
}

/// The critic's gradient by what it said before each step, and its losses where they are asked for: one unit for each return and output.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn critic_kernel(
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
    by: Factors,
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
        slope = (returns[pair] - said) * inverse;
        loss = 0.5f32 * slope * slope;
    }
    if comptime!(critic == Critic::Quantile) {
        let tau = support[output];
        for j in 0..q {
            let mut target = shift;
            for i in 0..members {
                target += last[(behind + i) * q + j] * batch[at.last_potential + behind + i];
            }
            let u = (target - said) * inverse;
            let (by_difference, term) = quantile_huber(u, tau, by.inverse_kappa, by.half_kappa);
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
            let mut place = (moved - by.lowest) / by.atom_step;
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
        gradient[row * q + output] = (own - projected) * learns * by.critic_weight;
    } else {
        for i in 0..members {
            gradient[(row + i) * q + output] = -by.critic_weight * inverse * batch[at.potential + row + i] * slope;
        }
    }
    if comptime!(with_losses) {
        // One return stands for all its members, as its weight does.
        losses[ABSOLUTE_POS] = loss * f32::cast_from(members);
    }
}

/// Constants of the losses for one run.
pub struct Constants<R: CubeRuntime> {
    critic: Critic,
    lambda: f32,
    kappa: f32,
    temperature: f32,
    /// Quantile midpoints or atoms, `[Q]`; here and on the device.
    atoms: Vec<f32>,
    support: Numbers<R>,
}

impl<R: CubeRuntime> Constants<R> {
    /// Takes the constants from the settings, and to the device where `beside` is.
    pub fn new(settings: &Settings, beside: &Numbers<R>) -> Self {
        let l = &settings.learner;
        let atoms = support(l);
        let support = Numbers { len: atoms.len(), ..beside.upload(bytemuck::cast_slice(&atoms)) };
        let temperature = settings.policy.temperature as f32;
        Self { critic: l.critic, lambda: l.lambda as f32, kappa: l.kappa as f32, temperature, atoms, support }
    }
}

/// Gradients by the outputs, and where they are asked for the losses of critic and actor and the ratios, to be summed.
pub fn gradients<R: CubeRuntime>(update: &Update<R>, passes: &Passes<R>) -> (ByOutputs<R>, Option<[Numbers<R>; 3]>) {
    let (layout, losses, weights) = (update.layout, update.losses, update.weights);
    let d = layout.dims;
    let segments = update.segments();
    let all = segments * d.steps;
    let batch = update.batch;
    let sizes = || SizesLaunch::new(all, d.steps, d.contracts, d.eligible, layout.requests, d.auctions, d.outputs);
    let at = |field: &std::ops::Range<usize>| segments * field.start;
    let places = || {
        PlacesLaunch::new(
            at(&layout.potential),
            at(&layout.last_potential),
            at(&layout.inverse_scale),
            at(&layout.rewards),
            at(&layout.auction_rewards),
            at(&layout.ends),
            at(&layout.contract),
            at(&layout.shift),
            at(&layout.low),
            at(&layout.penalty),
            at(&layout.ahead),
            at(&layout.spring),
            at(&layout.unit),
            at(&layout.click),
            at(&layout.gain),
            at(&layout.boost),
            at(&layout.auction_worth),
            at(&layout.auction_gain),
            at(&layout.auction_boost),
            at(&layout.active),
            at(&layout.shown),
            at(&layout.inverse_behaviour),
        )
    };
    let total = layout.by_total;
    let atoms = &losses.atoms;
    let constants = || {
        FactorsLaunch::new(
            1.0 / losses.temperature,
            losses.lambda,
            1.0 / losses.kappa,
            0.5 * losses.kappa,
            weights.actor,
            if total { weights.critic * d.contracts as f32 } else { weights.critic },
            atoms[0],
            (atoms[atoms.len() - 1] - atoms[0]) / (atoms.len() - 1).max(1) as f32,
        )
    };
    let support = &losses.support;
    let (critic, last, scores) = (&passes.critic.outputs, &passes.last.outputs, &passes.actor.outputs);
    let pairs = all * d.contracts;
    let bidders = all * d.eligible;
    let requests = all * layout.requests;
    let credited = if total { 1 } else { d.contracts };
    let values = batch.empty(pairs + bidders + segments * d.contracts);
    assert_eq!(critic.len, (pairs + bidders) * d.outputs, "outputs for every row");
    assert_eq!(last.len, segments * d.contracts * d.outputs, "outputs for every row");
    assert_eq!(scores.len, all * d.actor_rows(), "outputs for every row");
    let [tops, sums, means, actor_losses, ratios] = [(); 5].map(|()| batch.empty(requests));
    let by = ByOutputs { states: batch.empty(pairs * d.outputs), actor: batch.empty(scores.len) };
    let returns = batch.empty(all * credited);
    let critic_losses = batch.empty(if update.with_sums { all * credited * d.outputs } else { 1 });
    let client = &batch.client;
    // SAFETY: the batch is laid out as the places say, outputs have the sizes that were asserted, results those that they were made
    // with; units beyond them end.
    unsafe {
        let (count, dim) = batch.units(values.len);
        values_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            critic.arg(),
            last.arg(),
            batch.arg(),
            support.arg(),
            values.arg(),
            sizes(),
            places(),
            losses.critic == Critic::Categorical,
        );
        let (count, dim) = batch.units(requests);
        contests_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            scores.arg(),
            values.arg(),
            tops.arg(),
            sums.arg(),
            means.arg(),
            actor_losses.arg(),
            ratios.arg(),
            sizes(),
            places(),
            constants(),
            d.score_auctions,
        );
        let (count, dim) = batch.units(by.actor.len);
        actor_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            scores.arg(),
            values.arg(),
            tops.arg(),
            sums.arg(),
            means.arg(),
            by.actor.arg(),
            sizes(),
            places(),
            constants(),
            d.score_auctions,
        );
        let (count, dim) = batch.units(segments * credited);
        returns_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            values.arg(),
            ratios.arg(),
            returns.arg(),
            sizes(),
            places(),
            constants(),
            total,
        );
        let (count, dim) = batch.units(all * credited * d.outputs);
        critic_kernel::launch_unchecked::<R>(
            client,
            count,
            dim,
            batch.arg(),
            critic.arg(),
            last.arg(),
            values.arg(),
            returns.arg(),
            support.arg(),
            by.states.arg(),
            critic_losses.arg(),
            sizes(),
            places(),
            constants(),
            losses.critic,
            total,
            update.with_sums,
        );
    }
    (by, update.with_sums.then_some([critic_losses, actor_losses, ratios]))
}
