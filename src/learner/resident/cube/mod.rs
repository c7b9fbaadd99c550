//! GPU kernels of the resident trainer.
//!
//! **Why own kernels.** As tensor operations an update is two hundred launches, and at the batch sizes used in training the
//! launch queue is slower than the device. Here it is about thirty: a layer is one launch with its bias and rectifier, its
//! back-propagation two, and the losses take five, which write nothing larger than the networks' outputs. Products are in
//! single precision, not rounded to the eleven bits of TF32 that a library may choose: that rounding changes the losses of a
//! hundred updates by up to 1.5e-3, while these kernels match the CPU's within 1e-4.
//!
//! Scalar formulas are those of the host ([`crate::formulas`]); sizes and positions are arguments of a launch, so that a kernel is
//! compiled once for all networks and batches.
//!
//! - [`records`]: expands segments into the pool. [`pool`]: gathers batches from it. [`networks`]: forward and backward passes,
//!   with the [`embeddings`] of ids. [`losses`]: gradients by the outputs. [`adam`]: the optimiser.
//! - [`constants`]: constants of the losses from the settings. [`update`]: inputs of an update. Arrays on the device and the products
//!   of layers are in [`crate::gpu`].

mod adam;
mod constants;
mod embeddings;
mod losses;
mod networks;
mod pool;
mod records;
mod update;

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;

use crate::gpu::numbers::{Cube, Numbers};

pub use constants::Constants;
pub use pool::gather;
pub use records::write;
pub use update::{Update, Weights};

/// Gradients by the parameters, flat.
pub struct Gradients<R: CubeRuntime> {
    pub critic: Tensor<Cube<R>, 1>,
    pub actor: Option<Tensor<Cube<R>, 1>>,
    /// `[1]` each: losses of the critic and the actor, clipped importance ratios; if they were requested.
    pub sums: Option<[Tensor<Cube<R>, 1>; 3]>,
}

/// Infers a batch, computes its losses and back-propagates them.
pub fn gradients<R: CubeRuntime>(update: Update<R>) -> Gradients<R> {
    let outputs = networks::infer(&update);
    let (by, sums) = losses::gradients(&update, &outputs);
    let (critic, actor) = networks::back(&update, &outputs, &by);
    let sums = sums.map(|sums| sums.map(|terms: Numbers<R>| terms.flat().sum()));
    Gradients { critic, actor, sums }
}
