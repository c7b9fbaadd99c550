//! A segment as one row of numbers in the pool, so that a batch is one gather.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

use crate::env::FEATURES;
use crate::policy::tensor_net::Rows;
use crate::settings::Credit;

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
