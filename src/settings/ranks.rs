//! How the ranks of a training work together.

use serde::{Deserialize, Serialize};

/// Most ranks of a run.
pub const MOST_RANKS: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranks {
    pub sparse_average: SparseAverage,
    /// Seconds after which a rank that is alive and does not take part in an exchange is given up. Rank 0 evaluates and saves while
    /// the others wait.
    pub timeout_s: f64,
}

impl Default for Ranks {
    fn default() -> Self {
        Self { sparse_average: SparseAverage::default(), timeout_s: 600.0 }
    }
}

/// By what the summed gradient of a row is divided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SparseAverage {
    /// The number of ranks in which the row occurs: a rare row learns as fast as with one rank.
    #[default]
    Occurrence,
    /// The number of all ranks: what one rank with the whole batch would compute.
    World,
}
