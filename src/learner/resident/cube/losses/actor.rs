//! The actor: each request as a choice between bids, and the gradient of its expected value.

use cubecl::prelude::*;

use crate::formulas::device::{auction_factor, auction_slope, bid, bid_slope, sigmoid};
use crate::formulas::shared::{LossFactors, outlook, policy_gradient};

use super::arguments::{Places, Sizes};

/// Score of an ad that may not be shown: its exponential is 0 beside any other.
const NEVER: f32 = -1e30;

/// Result of showing something on a request.
#[derive(CubeType, Clone, Copy)]
struct Offer {
    score: f32,
    /// Derivative of the score by the network's output.
    slope: f32,
    advantage: f32,
}

/// Returns the offer of a bidder on a request; requests are numbered over the batch.
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
    by: &LossFactors,
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
        let sharp = boost / by.temperature;
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

/// Returns the offer of an auction ad on a request.
#[cube]
fn auction(
    batch: &Array<f32>,
    scores: &Array<f32>,
    request: usize,
    ad: usize,
    of: &Sizes,
    at: &Places,
    by: &LossFactors,
    #[comptime] score_auctions: bool,
) -> Offer {
    let contest = request * of.auctions + ad;
    let boost = batch[at.auction_boost + contest];
    let mut score = f32::new(NEVER);
    let mut slope = 0.0f32;
    if boost >= 0.0 {
        score = boost / by.temperature * batch[at.auction_worth + contest];
        if comptime!(score_auctions) {
            let step = request / of.requests;
            let share = sigmoid(scores[step * rows(of, score_auctions) + of.bidders + ad]);
            slope = score * auction_slope(share);
            score *= auction_factor(share);
        }
    }
    Offer { score, slope, advantage: batch[at.auction_gain + contest] }
}

/// Returns the derivative of a request's expected value by the output of one of its offers.
#[cube]
fn pull(offer: &Offer, top: f32, sum: f32, mean: f32) -> f32 {
    policy_gradient((offer.score - top).exp() / sum, offer.advantage, mean, offer.slope)
}

/// Returns the number of the actor's rows per step.
#[cube]
fn rows(of: &Sizes, #[comptime] score_auctions: bool) -> usize {
    let mut rows = of.bidders;
    if comptime!(score_auctions) {
        rows += of.auctions;
    }
    rows
}

/// Evaluates each request: its highest score, the sum of the exponentials relative to it, its expected value, and the clipped
/// importance ratio of the action. Loss and ratio are 0 if nothing was shown. One unit each.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
pub(super) fn contests_kernel(
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
    by: LossFactors,
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

/// Computes the actor's gradient, with one unit for each of its rows.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
pub(super) fn actor_kernel(
    batch: &Array<f32>,
    scores: &Array<f32>,
    values: &Array<f32>,
    tops: &Array<f32>,
    sums: &Array<f32>,
    means: &Array<f32>,
    gradient: &mut Array<f32>,
    of: Sizes,
    at: Places,
    by: LossFactors,
    scale: f32,
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
    gradient[row] = scale * (spring - sum);
}
