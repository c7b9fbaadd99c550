//! The frontier of shortage against auction revenue for different weights of delivery.
//!
//! In hindsight it is computed by the bound's solver with every penalty multiplied by a weight: serving with those prices
//! trades auction revenue for delivery, or delivery for revenue, at the best rate that the day allows. Trained variants with
//! another `reward.contract_delivery` are shown beside it.

use serde::Serialize;

use crate::env::{DayModel, Delay};
use crate::plan::{hindsight_bound, weighted_bound};
use crate::policy::baselines::Oracle;
use crate::policy::{ReplayOptions, replay_day};

/// Hindsight result for one weight on one day. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HindsightPoint {
    pub world: String,
    pub day: usize,
    /// Factor on all penalties.
    pub weight: f64,
    pub shortage_rate: f64,
    pub auction_revenue: f64,
    /// J and share with the true penalties.
    pub j: f64,
    pub share: Option<f64>,
}

/// Serves a day in hindsight with each of `weights`; the prices are computed from the whole day.
pub fn hindsight(world: &str, index: usize, day: &DayModel, weights: &[f64], rate_seed: u64) -> Vec<HindsightPoint> {
    if weights.is_empty() {
        return vec![];
    }
    let bound = hindsight_bound(&day.log, rate_seed);
    let options = ReplayOptions { rate_seed, delay: Delay::fixed(0.0) };
    weights
        .iter()
        .map(|&weight| {
            let weighted = weighted_bound(&day.log, rate_seed, weight);
            let totals = replay_day(day, &mut Oracle::new(&weighted, &day.log, rate_seed), options, &mut |_| {});
            HindsightPoint {
                world: world.to_owned(),
                day: index,
                weight,
                shortage_rate: totals.shortage_rate(),
                auction_revenue: totals.auction_revenue,
                j: totals.j,
                share: bound.share(totals.j),
            }
        })
        .collect()
}
