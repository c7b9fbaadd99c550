//! A segment as one row of numbers, so that a block is one upload and a batch one gather.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

use crate::env::FEATURES;
use crate::policy::Bids;
use crate::policy::tensor_net::Rows;
use crate::settings::Credit;

use super::super::batch::SegmentRows;
use super::super::dims::Dims;

/// Where each field of a segment lies in its row. `T` steps, `N` contracts, `K` bidders, `R` requests in a step, `A` auction ads.
///
/// What is worked on together lies together: the critic's rows before and after a display, and what its outputs are multiplied by.
/// Whole numbers (ids, slots) are kept as `f32`, which is exact below 2^24. What a request may not show has boost [`ABSENT`].
#[derive(Debug, Clone)]
pub struct Layout {
    pub dims: Dims,
    pub requests: usize,
    pub by_total: bool,
    /// Length of a row.
    pub width: usize,
    /// All of the fields below.
    fields: Vec<Range<usize>>,
    pub states: Range<usize>,
    pub after: Range<usize>,
    pub last: Range<usize>,
    pub actor: Range<usize>,
    pub state_ids: Range<usize>,
    pub after_ids: Range<usize>,
    pub last_ids: Range<usize>,
    pub actor_ids: Range<usize>,
    pub potential: Range<usize>,
    pub after_potential: Range<usize>,
    pub last_potential: Range<usize>,
    pub inverse_scale: Range<usize>,
    pub rewards: Range<usize>,
    pub auction_rewards: Range<usize>,
    pub ends: Range<usize>,
    pub contract: Range<usize>,
    pub shift: Range<usize>,
    pub low: Range<usize>,
    pub penalty: Range<usize>,
    pub inverse_ahead: Range<usize>,
    pub spring: Range<usize>,
    pub unit: Range<usize>,
    pub click: Range<usize>,
    pub gain: Range<usize>,
    pub boost: Range<usize>,
    pub auction_worth: Range<usize>,
    pub auction_gain: Range<usize>,
    pub auction_boost: Range<usize>,
    pub active: Range<usize>,
    pub shown: Range<usize>,
    pub inverse_behaviour: Range<usize>,
}

/// Boost of what may not be shown; real ones are positive.
pub const ABSENT: f32 = -1.0;

/// The fields of a batch of `S` segments on the device; `M = S T`.
pub struct Fields<B: Backend> {
    /// `[M N, FEATURES]`, `[S N, ..]`, `[M (K + A), ..]`, `[M K, ..]`.
    pub states: Rows<B>,
    pub last: Rows<B>,
    pub actor: Rows<B>,
    pub after: Rows<B>,
    /// `[S, T, N]`
    pub potential: Tensor<B, 3>,
    /// `[S, T, N]`, or `[S, T, 1]` where the total is credited; 0 = nothing to learn.
    pub inverse_scale: Tensor<B, 3>,
    /// `[S, 1, N]`
    pub last_potential: Tensor<B, 3>,
    /// `[S, T, N]`
    pub rewards: Tensor<B, 3>,
    /// `[S, T, 1]`
    pub auction_rewards: Tensor<B, 3>,
    /// `[S, T, 1]`: 1 at the last step of a segment.
    pub ends: Tensor<B, 3>,
    /// `[M, K]`: the contract of each bidder; `None` where bidders are the contracts in their order.
    pub contract: Option<Tensor<B, 2, Int>>,
    /// `[M, K]`: what is added to the network's output, the lowest bid, the highest.
    pub shift: Tensor<B, 2>,
    pub low: Tensor<B, 2>,
    pub penalty: Tensor<B, 2>,
    /// `[M, K]`: one over the impressions by which the row after the display is further on; 0 = no bidder.
    pub inverse_ahead: Tensor<B, 2>,
    pub after_potential: Tensor<B, 2>,
    /// `[M, K]`: the anchor's pull beside a request's weight.
    pub spring: Tensor<B, 2>,
    /// `[M, R, K]`
    pub unit: Tensor<B, 3>,
    pub click: Tensor<B, 3>,
    pub gain: Tensor<B, 3>,
    pub boost: Tensor<B, 3>,
    /// `[M, R, A]`
    pub auction_worth: Tensor<B, 3>,
    pub auction_gain: Tensor<B, 3>,
    pub auction_boost: Tensor<B, 3>,
    /// `[M, R, 1]`: whether something was shown.
    pub active: Tensor<B, 3>,
    /// Where returns are corrected for the behaviour: `[M, 1, K + A]`, 1 at what was shown, and `[M, 1, 1]`, one over its probability.
    pub behaviour: Option<(Tensor<B, 3>, Tensor<B, 3>)>,
}

impl Layout {
    /// The layout of a run's segments; `requests` of them make a step.
    pub fn new(dims: Dims, requests: usize, actor_tables: usize, critic_tables: usize, credit: Credit) -> Self {
        let Dims { steps: t, contracts: n, eligible: k, auctions: a, .. } = dims;
        let by_total = credit == Credit::Total;
        let alone = usize::from(requests == 1);
        let mut width = 0usize;
        let mut fields = Vec::new();
        let mut field = |len: usize| {
            let begins = width;
            width += len;
            fields.push(begins..width);
            begins..width
        };
        let mut layout = Self {
            states: field(t * n * FEATURES),
            after: field(t * k * FEATURES),
            last: field(n * FEATURES),
            actor: field(t * dims.actor_rows() * FEATURES),
            state_ids: field(t * n * critic_tables),
            after_ids: field(t * k * critic_tables),
            last_ids: field(n * critic_tables),
            actor_ids: field(t * dims.actor_rows() * actor_tables),
            potential: field(t * n),
            after_potential: field(t * k),
            last_potential: field(n),
            inverse_scale: field(if by_total { t } else { t * n }),
            rewards: field(t * n),
            auction_rewards: field(t),
            ends: field(t),
            contract: field(t * k * alone),
            shift: field(t * k),
            low: field(t * k),
            penalty: field(t * k),
            inverse_ahead: field(t * k),
            spring: field(t * k),
            unit: field(t * requests * k),
            click: field(t * requests * k),
            gain: field(t * requests * k),
            boost: field(t * requests * k),
            auction_worth: field(t * requests * a),
            auction_gain: field(t * requests * a),
            auction_boost: field(t * requests * a),
            active: field(t * requests),
            shown: field(t * (k + a) * alone),
            inverse_behaviour: field(t * alone),
            width: 0,
            fields: vec![],
            dims,
            requests,
            by_total,
        };
        layout.width = width;
        layout.fields = fields;
        layout
    }

    /// Writes a segment into its row, which is all zeros before.
    ///
    /// `bids` are those of its day, with the day's money unit; `anchor` is the weight of the spring.
    pub fn pack(&self, rows: &SegmentRows, (bids, money): (&Bids, f64), anchor: f32, out: &mut [f32]) {
        let Dims { contracts: n, eligible: k, auctions: a, .. } = self.dims;
        let mut copy = |to: &Range<usize>, from: &[f32]| out[to.clone()].copy_from_slice(from);
        copy(&self.states, &rows.states);
        copy(&self.last, &rows.last);
        copy(&self.actor, &rows.actor);
        copy(&self.after, &rows.after);
        copy(&self.potential, &rows.potential);
        copy(&self.last_potential, &rows.last_potential);
        copy(&self.rewards, &rows.rewards);
        copy(&self.auction_rewards, &rows.auction_rewards);
        let mut copy_ids = |to: &Range<usize>, from: &[u32]| {
            for (to, id) in out[to.clone()].iter_mut().zip(from) {
                *to = *id as f32;
            }
        };
        copy_ids(&self.state_ids, &rows.state_ads);
        copy_ids(&self.last_ids, &rows.last_ads);
        copy_ids(&self.actor_ids, &rows.actor_ids);
        copy_ids(&self.after_ids, &rows.after_ads);
        let inverse = |scale: f32| if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let scales = &mut out[self.inverse_scale.clone()];
        if self.by_total {
            for (to, scales) in scales.iter_mut().zip(rows.scale.chunks_exact(n)) {
                *to = inverse(scales.iter().map(|s| s * s).sum::<f32>().sqrt());
            }
        } else {
            for ((to, scale), potential) in scales.iter_mut().zip(&rows.scale).zip(&rows.potential) {
                *to = if *potential > 0.0 { inverse(*scale) } else { 0.0 };
            }
        }
        out[self.ends.start + rows.len - 1] = 1.0;

        let used = rows.bidders.iter().flatten().count().max(1);
        let spring = anchor * rows.contests.len() as f32 / used as f32;
        for (at, bidder) in rows.bidders.iter().enumerate() {
            let Some(b) = bidder else { continue };
            let (base, low, penalty) = bids.terms(b.contract as usize);
            let mut set = |field: &Range<usize>, value: f32| out[field.start + at] = value;
            set(&self.shift, (base + f64::from(b.lift)) as f32);
            set(&self.low, (low / money) as f32);
            set(&self.penalty, (penalty / money) as f32);
            set(&self.inverse_ahead, 1.0 / b.ahead);
            set(&self.after_potential, b.after_potential);
            set(&self.spring, spring);
            if self.requests == 1 {
                set(&self.contract, b.contract as f32);
            }
        }
        out[self.boost.clone()].fill(ABSENT);
        out[self.auction_boost.clone()].fill(ABSENT);
        let mut before = (usize::MAX, 0);
        for contest in &rows.contests {
            let within = if before.0 == contest.step { before.1 + 1 } else { 0 };
            before = (contest.step, within);
            let request = contest.step * self.requests + within;
            for o in &rows.offers[contest.offers.0..contest.offers.1] {
                let at = request * k + o.slot;
                out[self.unit.start + at] = o.unit;
                out[self.click.start + at] = o.click;
                out[self.gain.start + at] = o.gain;
                out[self.boost.start + at] = o.boost;
            }
            for (i, o) in rows.auctions[contest.auctions.0..contest.auctions.1].iter().enumerate() {
                let at = request * a + i;
                out[self.auction_worth.start + at] = o.worth;
                out[self.auction_gain.start + at] = o.gain;
                out[self.auction_boost.start + at] = o.boost;
            }
            let Some(shown) = contest.shown else { continue };
            out[self.active.start + request] = 1.0;
            if let Some(behaviour) = contest.behaviour.filter(|_| self.requests == 1) {
                let offers = contest.offers.1 - contest.offers.0;
                let slot = if shown < offers { rows.offers[contest.offers.0 + shown].slot } else { k + shown - offers };
                out[self.shown.start + request * (k + a) + slot] = 1.0;
                out[self.inverse_behaviour.start + request] = 1.0 / behaviour.max(1e-6);
            }
        }
    }

    /// Where each number of a batch comes from, in its `segments` rows one behind the other. A batch is laid out field by field, each
    /// of all its segments.
    pub fn sources(&self, segments: usize) -> Vec<i32> {
        let mut sources = vec![0; segments * self.width];
        for field in &self.fields {
            for (i, at) in (segments * field.start..segments * field.end).enumerate() {
                sources[at] = (i / field.len() * self.width + field.start + i % field.len()) as i32;
            }
        }
        sources
    }

    /// Segments of a batch.
    pub fn segments<B: Backend>(&self, batch: &Tensor<B, 1>) -> usize {
        batch.dims()[0] / self.width
    }

    /// Rows of a batch, the features and ids of each.
    pub fn rows<B: Backend>(&self, batch: &Tensor<B, 1>, features: Range<usize>, ids: Range<usize>) -> Rows<B> {
        let s = self.segments(batch);
        let field = |range: &Range<usize>| batch.clone().slice(s * range.start..s * range.end);
        let rows = s * features.len() / FEATURES;
        let tables = s * ids.len() / rows;
        let columns = (tables > 0).then(|| field(&ids).reshape([rows, tables]).int());
        let column = |table: usize| columns.iter().map(move |c| c.clone().slice([0..rows, table..table + 1]));
        Rows {
            features: field(&features).reshape([rows, FEATURES]),
            ids: (0..tables).flat_map(column).map(|c| c.reshape([rows])).collect(),
        }
    }

    /// Cuts a batch `[S width]`, laid out as [`Layout::sources`] says, into its fields.
    pub fn cut<B: Backend>(&self, batch: &Tensor<B, 1>) -> Fields<B> {
        let Dims { steps: t, contracts: n, eligible: k, auctions: a, .. } = self.dims;
        let s = self.segments(batch);
        let (m, r) = (s * t, self.requests);
        let field = |range: &Range<usize>| batch.clone().slice(s * range.start..s * range.end);
        let rows = |features: &Range<usize>, ids: &Range<usize>| self.rows(batch, features.clone(), ids.clone());
        let by_step = |range: &Range<usize>, last: usize| field(range).reshape([s, t, last]);
        let by_bidder = |range: &Range<usize>| field(range).reshape([m, k]);
        let by_request = |range: &Range<usize>, last: usize| field(range).reshape([m, r, last]);
        let alone = r == 1;
        Fields {
            states: rows(&self.states, &self.state_ids),
            last: rows(&self.last, &self.last_ids),
            actor: rows(&self.actor, &self.actor_ids),
            after: rows(&self.after, &self.after_ids),
            potential: by_step(&self.potential, n),
            inverse_scale: by_step(&self.inverse_scale, if self.by_total { 1 } else { n }),
            last_potential: field(&self.last_potential).reshape([s, 1, n]),
            rewards: by_step(&self.rewards, n),
            auction_rewards: by_step(&self.auction_rewards, 1),
            ends: by_step(&self.ends, 1),
            contract: alone.then(|| by_bidder(&self.contract).int()),
            shift: by_bidder(&self.shift),
            low: by_bidder(&self.low),
            penalty: by_bidder(&self.penalty),
            inverse_ahead: by_bidder(&self.inverse_ahead),
            after_potential: by_bidder(&self.after_potential),
            spring: by_bidder(&self.spring),
            unit: by_request(&self.unit, k),
            click: by_request(&self.click, k),
            gain: by_request(&self.gain, k),
            boost: by_request(&self.boost, k),
            auction_worth: by_request(&self.auction_worth, a),
            auction_gain: by_request(&self.auction_gain, a),
            auction_boost: by_request(&self.auction_boost, a),
            active: by_request(&self.active, 1),
            behaviour: alone.then(|| (by_request(&self.shown, k + a), by_request(&self.inverse_behaviour, 1))),
        }
    }
}
