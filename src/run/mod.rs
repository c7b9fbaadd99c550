//! Resources that every process of a run opens: the run directory, the training inputs in it, the shared memory.
//!
//! Main writes [`directory`] and creates [`segments`]; children find both by name. [`context`] loads the inputs of training. For
//! runs of values, [`value_run`] has the shared data, [`beginning`] the starting point, [`value_cursor`] the training position and
//! [`value_snapshot`] the state to resume from, [`sparse_part`] the layout of a snapshot's rows in shared memory. [`metrics`] is the file of records to which all processes append, and [`flight`]
//! records the last events of a process for the report of a crash; [`alive`] gives signs of life during long work. A run resumes from a
//! [`snapshot`]. [`leakage`] refuses a day that has two roles.

pub mod alive;
pub mod beginning;
pub mod context;
pub mod directory;
pub mod flight;
pub mod leakage;
pub mod metrics;
pub mod segments;
pub mod snapshot;
pub mod sparse_part;
pub mod value_cursor;
pub mod value_run;
pub mod value_snapshot;

pub use crate::failpoint;
pub use context::{Context, open_days};
pub use directory::{CannotSave, NotARunDirectory, Occupied, RunDirectory, Unusable};
pub use metrics::Metrics;
pub use segments::{Segments, pack, unpack};
