//! How the ranks of a training work together.

use serde::{Deserialize, Serialize};

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
