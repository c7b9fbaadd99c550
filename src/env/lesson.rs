//! Hindsight labels for a state that an actor visited.

use serde::{Deserialize, Serialize};

/// Contracts that could use impressions at a moment: the features of each, and the price that hindsight finds right.
///
/// Self-contained, so that the learner replays nothing and one batch can mix lessons of many worlds.
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
    /// Returns the number of contracts.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Whether a network with rows of `features` numbers and `tables` embedding tables can learn from it.
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
