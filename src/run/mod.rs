//! What every process of a run opens: the run directory, the training knowledge in it, the shared memory.
//!
//! Main writes [`directory`] and creates [`segments`]; children find both by name. [`context`] loads what a run
//! trains on. [`metrics`] is the line-per-record file that all of them append to.
//!
//! May import: `shm`, `policy`, `env`, `plan`, `log`, `settings`.

pub mod context;
pub mod directory;
pub mod metrics;
pub mod segments;

pub use context::{Context, open_days};
pub use directory::RunDirectory;
pub use metrics::Metrics;
pub use segments::{Segments, pack, unpack};
