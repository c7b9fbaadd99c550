//! `learner.actor_rate = "auto"`: a rate that suits the start of the bids.

use serde::{Deserialize, Serialize};

/// Rate for bids that start from a plan's prices. A ten times higher rate moved them away from prices that were already nearly
/// right: in eight volatile worlds the last parameters then lost the planner's gains (BENCHMARKS.md).
const FROM_A_PLAN: f64 = 1e-4;
/// Rate for bids without a starting price.
const FROM_NOTHING: f64 = 1e-3;

/// Adam's rate for the actor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a learning rate or \"auto\"")]
pub enum ActorRate {
    Fixed(f64),
    Auto(Auto),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl ActorRate {
    pub const AUTO: Self = Self::Auto(Auto::Auto);

    /// Returns the rate for bids that start from a plan's prices (`warm`) or not.
    pub fn resolve(self, warm: bool) -> f64 {
        match self {
            Self::Fixed(rate) => rate,
            Self::Auto(_) if warm => FROM_A_PLAN,
            Self::Auto(_) => FROM_NOTHING,
        }
    }
}
