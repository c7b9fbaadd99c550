//! Computing on a GPU, whoever does it: the learner of policies and the trainer of values.
//!
//! - [`device`]: the device that a name means, and whether this machine has it. [`agreement`]: whether a GPU computes the CPU's
//!   numbers. [`kernels`]: compiled kernels, kept for the next start.
//! - [`failures`]: the end of a process whose GPU fails.
//! - [`numbers`]: arrays on the device, as kernels take them. [`layers`]: layers of networks, forward and backward.

pub mod agreement;
pub mod device;
pub mod failures;
pub mod kernels;
pub mod layers;
pub mod numbers;

pub use device::Device;
