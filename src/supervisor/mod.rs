//! The main process of a training run: plans, creates the shared memory, spawns, watches, restarts, reports, stops.
//!
//! - [`prepare`]: the first steps of main. [`resume`]: whether a run may be resumed. [`parallel`]: the run in separate processes.
//!   [`serial`]: the same run in one process, the reference for correctness and speed. [`children`]: spawning and reaping.
//!   `learners`: the learner's processes. `blame`: which of several ranks ended the others.
//!   [`job`]: what nodes agree on; [`together`]: what else they do together in a training of a
//!   policy. [`heartbeats`]: processes that hang, in every kind of run. [`watchdog`]: a training run without progress. [`failure`]:
//!   reasons of failure. [`interrupt`]: Ctrl-C. [`progress`]: display of the progress. [`manifest`]: description of the run on disk.
//!   [`values`]: runs of `admix values train`.

mod blame;
pub mod children;
pub mod failure;
mod heartbeats;
pub mod interrupt;
pub mod job;
mod learners;
pub mod manifest;
pub mod parallel;
pub mod prepare;
pub mod progress;
pub mod resume;
pub mod serial;
pub mod together;
pub mod values;
mod watchdog;

pub use failure::RunFailure;

use crate::shm::{Distribution, Ledger};

/// Reason why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitReason {
    /// The budget is spent.
    Budget,
    /// No improvement for the configured number of evaluations.
    Converged,
    Interrupted,
}

/// Results of a finished run. Times in seconds.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Outcome {
    pub reason: ExitReason,
    pub updates: u64,
    pub samples: u64,
    /// Of this session; in the manifest, of all since the run was last started over.
    pub seconds: f64,
    /// Total benefit of the best parameters on the validation days, minor units.
    pub best_j: f64,
    pub best_share: f64,
    pub evaluations: u64,
    /// Staleness of blocks in updates when the learner ingested them, over all blocks.
    pub policy_lag: Distribution,
    pub actor_restarts: u32,
    /// Restarts of the learner, the evaluator and the checkpointer.
    pub other_restarts: u32,
    /// Number of times that all processes of a lock-step run went back to the last snapshot.
    pub went_back: u32,
    /// Sample ledger; `None` in serial mode, where no sample can be lost.
    pub ledger: Option<Ledger>,
    /// Samples that a learner consumed after the snapshot from which its successor resumed.
    pub rolled_back: u64,
    /// Shares of the wall time that the learner computed and waited.
    pub learner_compute: f64,
    pub learner_wait: f64,
    /// Cost of the snapshots; `None` where none were taken.
    pub checkpoints: Option<Checkpoints>,
}

/// Cost of snapshots.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Checkpoints {
    /// Number of snapshots that reached the disk, and bytes written for them.
    pub snapshots: u64,
    pub bytes: u64,
    /// Failed attempts to write a snapshot.
    pub failures: u64,
    /// Seconds that the checkpointer spent writing.
    pub write_s: f64,
    /// Share of the wall time that the learner spent on snapshots.
    pub stall: f64,
}
