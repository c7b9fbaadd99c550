//! Snapshots: the state from which a run resumes, and its form on disk.
//!
//! [`state`] is the content of a snapshot besides the replay pool: networks, optimisers, random streams, counters, the best
//! result so far. [`pool`] is the replay pool as the blocks that it was filled with. [`folder`] keeps snapshots in the run
//! directory: each is a folder that appears by one rename, once all of it is on the disk. `ranks` has the parts of a learner's ranks. [`files`] has the few file operations
//! for this, so that tests can stop between any two of them and lose unsynced data.
//!
//! The learner puts a snapshot into shared memory ([`crate::shm::Halves`]), the checkpointer process writes it to disk, and a
//! replaced learner or a resumed run reads the newest complete one.

pub mod files;
pub mod folder;
pub mod pool;
mod ranks;
pub mod state;

pub use folder::{RankPart, Snapshot, SnapshotFolder, newest};
pub use pool::{PoolBlock, PoolBlocks};
pub use state::{EvaluatorState, Publications, RankState, RngState, RunState};
