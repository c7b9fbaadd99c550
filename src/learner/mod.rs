//! The learner: an actor-critic with a distributional critic, fed by the actors' segments.
//!
//! An update rebuilds the states of a few segments ([`batch`]): a row for each contract and step, and each request of a step as a
//! contest between the bids that share those rows. It infers both networks on the device ([`trainer`]), works out
//! returns, losses and their gradients by the networks' outputs on the host ([`loss`]), and sends those back through the
//! networks. The losses are small closed forms over `[states, contracts, quantiles]`; as host kernels they cost one pass
//! over the outputs instead of a dozen tensor operations over `[.., quantiles, quantiles]`.
//!
//! - [`dims`]: sizes of a batch. [`pool`]: replay pool of compact segments. [`core`]: pool, replay ratio and budget around the trainer, the same in every
//!   mode. [`device`]: which backend. [`process`]: the learner process. [`saver`]: its side of snapshots.
//!
//! May import: `run`, `shm`, `policy`, `env`, `plan`, `log`, `settings`.

pub mod batch;
pub mod core;
pub mod device;
pub mod dims;
mod kernels;
pub mod loss;
pub mod optimiser;
pub mod pool;
pub mod process;
mod saver;
pub mod trainer;

pub use self::core::{Learner, LearnerState, Publication};
pub use device::Device;
pub use dims::Dims;
pub use trainer::{NotFinite, Train, UpdateStats};
