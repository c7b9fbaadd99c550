//! How sure a share is: a block bootstrap over the hours of the day.
//!
//! Requests of one hour share its prices and its traffic; hours are taken as the blocks. What a policy earned in each hour is
//! set beside what the bound allots to it ([`super::measure::DayMeasure`] says how), hours are drawn with replacement, and the
//! share is worked out anew. Draws come from one fixed seed, so that the same evaluation gives the same interval, and
//! policies see the same draws.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const SEED: u64 = 95;
const REPLICATES: usize = 1000;

/// What one block contributed to `J + S` and to `UB + S`, minor units.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Block {
    pub earned: f64,
    pub bound: f64,
}

/// The 95 % percentile interval of the mean over days of the share; blocks are drawn within their day. `None` where a day
/// has nothing at stake.
pub fn share_interval(days: &[&[Block]]) -> Option<[f64; 2]> {
    if days.is_empty() || days.iter().any(|blocks| blocks.iter().map(|b| b.bound).sum::<f64>() == 0.0) {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut shares: Vec<f64> = (0..REPLICATES)
        .map(|_| days.iter().map(|blocks| draw(blocks, &mut rng)).sum::<f64>() / days.len() as f64)
        .filter(|share| share.is_finite())
        .collect();
    shares.sort_by(f64::total_cmp);
    let at = |quantile: f64| shares.get((quantile * (shares.len().max(1) - 1) as f64).round() as usize).copied();
    Some([at(0.025)?, at(0.975)?])
}

/// The share of as many blocks as there are, drawn with replacement.
fn draw(blocks: &[Block], rng: &mut ChaCha8Rng) -> f64 {
    let mut sum = Block::default();
    for _ in 0..blocks.len() {
        let block = blocks[rng.random_range(0..blocks.len())];
        sum.earned += block.earned;
        sum.bound += block.bound;
    }
    sum.earned / sum.bound
}
