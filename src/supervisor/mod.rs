//! The main process of a training run: plans, creates the shared memory, spawns, watches, restarts, reports, stops.
//!
//! - [`prepare`]: what main does first. [`parallel`]: the run in real processes. [`serial`]: the same run in one process, the
//!   reference for correctness and speed. [`children`]: spawning and reaping. [`interrupt`]: Ctrl-C. [`progress`]: what a
//!   person sees. [`manifest`]: what the run leaves written about itself.
//!
//! May import: everything but `product` and `cli`.

pub mod children;
pub mod interrupt;
pub mod manifest;
pub mod parallel;
pub mod prepare;
pub mod progress;
pub mod serial;

use crate::shm::{Distribution, Ledger};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitReason {
    /// The budget is spent.
    Budget,
    /// No improvement for the configured number of evaluations.
    Converged,
    Interrupted,
}

/// What a finished run reports. Times in seconds.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Outcome {
    pub reason: ExitReason,
    pub updates: u64,
    pub samples: u64,
    pub seconds: f64,
    /// Total benefit of the best parameters on the validation days, minor units.
    pub best_j: f64,
    pub best_share: f64,
    pub evaluations: u64,
    /// Updates that the parameters of a block were behind when the learner took it in, over all blocks.
    pub policy_lag: Distribution,
    pub actor_restarts: u32,
    /// Where every sample went; `None` in serial mode, where none can be lost.
    pub ledger: Option<Ledger>,
    /// Shares of the wall time.
    pub learner_compute: f64,
    pub learner_wait: f64,
}
