//! What an actor learns in hindsight about a state it visited.

use serde::{Deserialize, Serialize};

/// Contracts that wanted impressions at a moment: what was seen of each, and what its price should have been.
///
/// Self-contained, so that the learner replays nothing and lessons of many worlds mix in one batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    /// `[contracts, features]` of the actor's network.
    pub features: Vec<f32>,
    /// `[contracts, tables]` of the actor's network.
    pub ids: Vec<u32>,
    /// `[contracts]`: the logit of the bid before the network.
    pub starts: Vec<f32>,
    /// `[contracts]`: the hindsight price as a share of the penalty, 0 to 1.
    pub labels: Vec<f32>,
    /// `[contracts]`: weight of the row in the loss.
    pub weights: Vec<f32>,
}

impl Lesson {
    /// Contracts.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Whether a network with rows of `features` numbers and so many `tables` can learn from it.
    pub fn fits(&self, features: usize, tables: usize) -> bool {
        let n = self.len();
        self.features.len() == n * features
            && self.ids.len() == n * tables
            && self.starts.len() == n
            && self.weights.len() == n
            && self.features.iter().chain(&self.starts).all(|v| v.is_finite())
            && self.labels.iter().all(|v| (0.0..=1.0).contains(v))
            && self.weights.iter().all(|v| (0.0..=1e6).contains(v))
    }
}
