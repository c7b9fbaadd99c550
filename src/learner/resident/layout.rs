//! Layout of a segment as one row of numbers in the pool, so that a batch is one gather.

use std::ops::Range;

use crate::env::FEATURES;
use crate::settings::Credit;

use super::super::dims::Dims;

/// Position of each field of a segment in its row. `T` steps, `N` contracts, `K` bidders, `R` requests in a step, `A` auction ads.
///
/// Fields that are processed together are adjacent: the critic's rows before and after a display, and the factors on its outputs.
/// Integers (ids, slots) are stored as `f32`, which is exact below 2^24. An ad that a request may not show has boost [`ABSENT`].
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
    pub ahead: Range<usize>,
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

/// Boost of an ad that may not be shown; real boosts are positive.
pub const ABSENT: f32 = -1.0;

impl Layout {
    /// Creates the layout of a run's segments with `requests` requests per step.
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
            ahead: field(t * k),
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

    /// Returns the source index of each number of a batch in its `segments` concatenated rows. A batch is laid out field by
    /// field, each with all its segments.
    pub fn sources(&self, segments: usize) -> Vec<u32> {
        let mut sources = vec![0; segments * self.width];
        for field in &self.fields {
            for (i, at) in (segments * field.start..segments * field.end).enumerate() {
                sources[at] = (i / field.len() * self.width + field.start + i % field.len()) as u32;
            }
        }
        sources
    }
}
