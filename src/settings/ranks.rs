//! Synchronisation of the ranks of a training.

use serde::{Deserialize, Serialize};

/// Maximum number of ranks of a learner, or of a table.
pub const MOST_RANKS: usize = 8;
/// Maximum number of tables of a machine.
pub const MOST_TABLES: usize = 8;
/// Maximum number of ranks of all tables of a machine.
pub const MOST_RANKS_HERE: usize = 24;

/// Number of iterations whose gradients are kept if ranks overlap. Twice the distance that a rank may be ahead of rank 0's
/// writing of rows, so that ranks of different speed still find iterations that all of them have.
pub const KEPT_GRADIENTS: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ranks {
    pub sync: RankSync,
    /// Iterations of a period in `overlap`; at its end parameters are averaged.
    pub period: u64,
    /// Number of ranks whose gradients make up a global one in `overlap`; 0 = all.
    pub quorum: usize,
    /// Whether each rank in `overlap` records which gradients it used and when, in RUN_DIR/trace.
    pub trace: bool,
    pub sparse_average: SparseAverage,
    /// Samples of the first rank of a table, as a share of the mean over its ranks. It writes the rows of all of them.
    pub first_share: f64,
    /// Tables with equal rows on a machine, each with `values.ranks` ranks of its own, the first of which writes it.
    pub tables: usize,
    /// Seconds after which a rank that is alive but does not take part in an exchange counts as failed. The other ranks wait
    /// while rank 0 evaluates and saves.
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
            first_share: 1.0,
            tables: 1,
            timeout_s: 100.0,
        }
    }
}

/// Points at which ranks wait for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankSync {
    /// In every update: the result depends only on the seed and the number of ranks.
    #[default]
    Step,
    /// Only at the end of a period; gradients of other ranks are used when they arrive.
    Overlap,
}

/// Divisor of the summed gradient of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SparseAverage {
    /// The number of ranks in which the row occurs: a rare row learns as fast as with one rank.
    #[default]
    Occurrence,
    /// The number of all ranks: the result of one rank with the whole batch.
    World,
}
