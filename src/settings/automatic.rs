//! Numbers of the learner that may be `"auto"`: which value suits depends on where bids start.

use serde::{Deserialize, Serialize};

/// A number, or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or \"auto\"")]
pub enum Automatic {
    Fixed(f64),
    Auto(Auto),
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

impl Automatic {
    pub const AUTO: Self = Self::Auto(Auto::Auto);

    /// Returns the number, given the one that `"auto"` stands for.
    pub fn or(self, auto: f64) -> f64 {
        match self {
            Self::Fixed(value) => value,
            Self::Auto(_) => auto,
        }
    }
}
