//! What the trainer writes into `metrics.jsonl`.

use serde::Serialize;

use crate::collective::shares::Work;
use crate::sparse::cache::Counters;

/// A record of training.
#[derive(Serialize)]
pub struct Training {
    pub epoch: u64,
    pub updates: u64,
    pub samples: u64,
    pub samples_per_s: f64,
    pub rows: usize,
    /// With several ranks: how often the gradients of an update were written, by all tables of the machine since main has started it.
    pub row_writes: Option<u64>,
    /// Means over the pass so far, per sample; `None` where the pass has none yet.
    pub click: Option<f64>,
    pub charge: Option<f64>,
    /// Seconds that the trainer has waited for readers; and for the row thread or, with several ranks, in exchanges and for rows.
    pub wait_s: f64,
    pub rows_wait_s: f64,
    /// Seconds that the trainer was held up by snapshots, and snapshots that began before their time because of
    /// `table.snapshot_rows`.
    pub snapshot_wait_s: f64,
    pub early_snapshots: u64,
    pub cache: Option<Counters>,
    /// With several ranks of a table, on the CPU.
    pub work: Option<Work>,
}

/// A record of an evaluation.
#[derive(Serialize)]
pub struct Evaluation {
    pub epoch: u64,
    pub updates: u64,
    pub click: f64,
    pub charge: f64,
    pub best: bool,
}
