//! The learner: an actor-critic with a distributional critic, fed by the actors' segments.
//!
//! An update processes the states of a few segments ([`batch`]): a row for each contract and step, and each request of a step as a
//! choice between the bids that share those rows. It infers both networks, computes returns, losses and their gradients by the
//! networks' outputs, and back-propagates those. There are two implementations behind one interface
//! ([`trainer`]), and they agree to rounding:
//!
//! - [`host`], on the CPU: compact segments are rebuilt for each batch, and the losses are closed forms ([`loss`],
//!   [`kernels`]), one pass over the outputs instead of a dozen tensor operations over `[.., quantiles, quantiles]`.
//! - [`resident`], on a GPU: segments are replayed once and stay on the device, where the project's own kernels make rows of
//!   them, gather batches, infer and learn, so that an update sends a few numbers and waits for nothing.
//!
//! The other modules:
//!
//! - [`hindsight`]: losses of hindsight prices, on the CPU alone. [`calibration`]: calibration of the critic's distributions.
//! - [`dims`]: sizes of a batch. [`pool`]: replay pool of compact segments. [`core`]: pool, replay ratio, budget and the decay of
//!   learning rates around the trainer, the same in every mode. [`share`]: the part of one of several ranks. [`networks`], [`optimiser`]: parameters as flat
//!   tensors. [`passes`]: a network's passes on the CPU. `row_loops`, `open_sums`, `id_sums`: its loops, its products with 0/1 matrices, its sums by embedding. `present`: the rows of a batch that need them.
//! - [`device`]: choice of the backend.
//! - [`process`]: the learner process, from its start to its end. `member`: what it holds, and what it tells other ranks. [`updates`]: its updates. [`rings`]: its side of shared memory. [`saver`]: its side of snapshots.
//! - [`peers`]: the other ranks of a learner (`learner.ranks`), as one of them sees them. `together`: what they do together.

pub mod batch;
pub mod calibration;
pub mod core;
pub mod device;
pub mod dims;
pub mod factors;
pub mod hindsight;
mod host;
mod id_sums;
mod kernels;
pub mod loss;
mod member;
pub mod networks;
mod open_sums;
pub mod optimiser;
pub mod passes;
pub mod peers;
pub mod pool;
mod present;
pub mod process;
pub mod resident;
pub mod rings;
mod row_loops;
mod saver;
pub mod share;
mod together;
pub mod trainer;
mod transfer;
pub mod updates;

pub use self::core::{Learner, LearnerState, Publication};
pub use device::Device;
pub use dims::Dims;
pub use share::{GradientShare, Tally};
pub use trainer::{Batch, NotFinite, Train, UpdateStats};
