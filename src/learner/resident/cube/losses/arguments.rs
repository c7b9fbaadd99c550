//! Arguments of the loss kernels: sizes, and positions in a batch.

use cubecl::prelude::*;

/// Sizes of a batch: `M` steps in all, `T` in a segment, `N` contracts, `K` bidders, `R` requests in a step, `A` auction ads,
/// `Q` outputs of the critic.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Sizes {
    pub all: usize,
    pub steps: usize,
    pub contracts: usize,
    pub bidders: usize,
    pub requests: usize,
    pub auctions: usize,
    pub outputs: usize,
}

/// Start indices of a batch's fields.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Places {
    pub potential: usize,
    pub last_potential: usize,
    pub inverse_scale: usize,
    pub rewards: usize,
    pub auction_rewards: usize,
    pub ends: usize,
    pub contract: usize,
    pub shift: usize,
    pub low: usize,
    pub penalty: usize,
    pub ahead: usize,
    pub spring: usize,
    pub unit: usize,
    pub click: usize,
    pub gain: usize,
    pub boost: usize,
    pub auction_worth: usize,
    pub auction_gain: usize,
    pub auction_boost: usize,
    pub active: usize,
    pub shown: usize,
    pub inverse_behaviour: usize,
}
