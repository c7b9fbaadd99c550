//! The main process of a training run: plans, creates the shared memory, spawns, watches, restarts, reports, stops.
//!
//! - [`prepare`]: what main does first. [`resume`]: whether a run may go on. [`parallel`]: the run in real processes. [`serial`]:
//!   the same run in one process, the reference for correctness and speed. [`children`]: spawning and reaping. [`watchdog`]:
//!   whether the run gets on. [`failure`]: why it cannot. [`interrupt`]: Ctrl-C. [`progress`]: what a person sees.
//!   [`manifest`]: what the run leaves written about itself. [`values`]: runs of `admix values train`.
//!
//! May import: everything but `cli` and what stands beside training (`bench`, `study`, `inspect`, `soak`).

pub mod children;
pub mod failure;
pub mod interrupt;
pub mod manifest;
pub mod parallel;
pub mod prepare;
pub mod progress;
pub mod resume;
pub mod serial;
pub mod values;
mod watchdog;

pub use failure::RunFailure;

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
    /// Of the learner, the evaluator and the checkpointer.
    pub other_restarts: u32,
    /// Times that all processes of a lock-step run went back to the last snapshot.
    pub went_back: u32,
    /// Where every sample went; `None` in serial mode, where none can be lost.
    pub ledger: Option<Ledger>,
    /// Samples that a learner had consumed after the snapshot that its successor went on from.
    pub rolled_back: u64,
    /// Shares of the wall time.
    pub learner_compute: f64,
    pub learner_wait: f64,
    /// `None` where no snapshots were taken.
    pub checkpoints: Option<Checkpoints>,
}

/// What snapshots cost.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Checkpoints {
    /// Snapshots that reached the disk, and what was written for them.
    pub snapshots: u64,
    pub bytes: u64,
    /// Attempts that the file system refused.
    pub failures: u64,
    /// Seconds of the checkpointer.
    pub write_s: f64,
    /// Share of the wall time in which the learner was busy with snapshots.
    pub stall: f64,
}
