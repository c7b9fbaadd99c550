//! Snapshots: everything that a run goes on from, and how it lies on disk.
//!
//! [`state`] is what a snapshot holds besides the replay pool: networks, optimisers, random streams, counters, the best so far.
//! [`pool`] is the replay pool as the blocks that it came in. [`folder`] keeps snapshots in the run directory: each is a folder
//! that appears by one rename, once all of it is on the disk. [`files`] is the few file operations that this takes, so that
//! tests can stop between any two of them and lose what was not synced.
//!
//! The learner puts a snapshot into shared memory ([`crate::shm::Halves`]), the checkpointer process writes it here, and
//! whoever starts again (a replaced learner, a resumed run) reads the newest whole one.

pub mod files;
pub mod folder;
pub mod pool;
pub mod state;

pub use folder::{Snapshot, SnapshotFolder, newest};
pub use pool::{PoolBlock, PoolBlocks};
pub use state::{EvaluatorState, Publications, RngState, RunState};
