//! How the ranks of a training work together.

use serde::{Deserialize, Serialize};

/// Most ranks of a run.
pub const MOST_RANKS: usize = 8;

/// Iterations whose gradients are kept where ranks overlap. Twice as many as a rank may be ahead of rank 0's writing of rows, so
/// that ranks of different speed still find iterations that all of them have.
pub const KEPT_GRADIENTS: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranks {
    pub sync: RankSync,
    /// Iterations of a period in `overlap`; at its end parameters are averaged.
    pub period: u64,
    /// Ranks whose gradients make a global one in `overlap`; 0 = all.
    pub quorum: usize,
    /// Whether each rank records in `overlap` what it used when, in RUN_DIR/trace.
    pub trace: bool,
    pub sparse_average: SparseAverage,
    /// Seconds after which a rank that is alive and does not take part in an exchange is given up. Rank 0 evaluates and saves while
    /// the others wait.
    pub timeout_s: f64,
}

impl Default for Ranks {
    fn default() -> Self {
        Self {
            sync: RankSync::default(),
            period: 16,
            quorum: 0,
            trace: false,
            sparse_average: SparseAverage::default(),
            timeout_s: 100.0,
        }
    }
}

/// Whether ranks wait for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankSync {
    /// In every update: the result depends on the seed and the number of ranks alone.
    #[default]
    Step,
    /// At the end of a period only; gradients of others are used when they come.
    Overlap,
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
