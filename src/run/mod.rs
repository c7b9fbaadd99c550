//! What every process of a run opens: the run directory, the training knowledge in it, the shared memory.
//!
//! Main writes [`directory`] and creates [`segments`]; children find both by name. [`context`] loads what a run
//! trains on, [`value_run`] what a run of values shares, [`beginning`] what it begins with, [`value_cursor`] where it stands,
//! [`value_snapshot`] what it resumes from. [`metrics`] is the line-per-record file that all of them append to,
//! [`flight`] records the last events of a process for the report of a crash. A run resumes from a [`snapshot`]. [`leakage`] refuses
//! a day that has two roles.
//!
//! May import: `shm`, `collective`, `nodes`, `sparse`, `policy`, `values`, `env`, `plan`, `log`, `settings`.

pub mod beginning;
pub mod context;
pub mod directory;
pub mod failpoint;
pub mod flight;
pub mod leakage;
pub mod metrics;
pub mod segments;
pub mod snapshot;
pub mod value_cursor;
pub mod value_run;
pub mod value_snapshot;

pub use context::{Context, open_days};
pub use directory::{CannotSave, NotARunDirectory, RunDirectory};
pub use metrics::Metrics;
pub use segments::{Segments, pack, unpack};
