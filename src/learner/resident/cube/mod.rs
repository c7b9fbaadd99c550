//! What the resident trainer computes, as kernels of a GPU.
//!
//! **Why kernels of our own.** As tensor operations an update is two hundred launches, and the queue that they wait in is slower than
//! the device at the batches that are trained with. Here it is about thirty: a layer is one launch with its bias and rectifier, the way
//! back through it two, and the losses take five, which write nothing larger than the networks' outputs. Products are in single
//! precision, not rounded to the eleven bits of TF32 that a library may choose: that puts the losses of a hundred updates off by
//! up to 1.5e-3, where the CPU's are repeated within 1e-4.
//!
//! Scalar formulas are those of the host ([`crate::formulas`]); sizes and places are arguments of a launch, so that a kernel is
//! compiled once for all networks and batches.
//!
//! - [`records`]: segments into the pool. [`pool`]: batches out of it. [`networks`]: there and back again, [`embeddings`] of ids with it. [`losses`]: from outputs to
//!   gradients. [`adam`]: the optimiser.
//! - [`numbers`]: what they work on. [`constants`]: what the losses take from the settings. [`update`]: what gradients are worked out from.

mod adam;
mod constants;
mod embeddings;
mod losses;
mod networks;
mod numbers;
mod pool;
mod records;
mod update;

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;

pub use constants::Constants;
pub use numbers::{Cube, Numbers};
pub use pool::gather;
pub use records::write;
pub use update::{Update, Weights};

/// Gradients by the parameters, flat.
pub struct Gradients<R: CubeRuntime> {
    pub critic: Tensor<Cube<R>, 1>,
    pub actor: Option<Tensor<Cube<R>, 1>>,
    /// `[1]` each: losses of the critic and the actor, clipped importance ratios; where they were asked for.
    pub sums: Option<[Tensor<Cube<R>, 1>; 3]>,
}

/// Infers a batch, works out its losses and goes back through the networks.
pub fn gradients<R: CubeRuntime>(update: Update<R>) -> Gradients<R> {
    let outputs = networks::infer(&update);
    let (by, sums) = losses::gradients(&update, &outputs);
    let (critic, actor) = networks::back(&update, &outputs, &by);
    let sums = sums.map(|sums| sums.map(|terms: Numbers<R>| terms.flat().sum()));
    Gradients { critic, actor, sums }
}
