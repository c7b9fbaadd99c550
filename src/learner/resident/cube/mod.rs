//! What the resident trainer computes, as kernels of a GPU.
//!
//! **Why kernels of our own.** As tensor operations an update is two hundred launches, and the queue that they wait in is slower than
//! the device at the batches that are trained with. Here it is about thirty: a layer is one launch with its bias and rectifier, the way
//! back through it two, and the losses take five, which write nothing larger than the networks' outputs. Products are in single
//! precision, not rounded to the eleven bits of TF32 that a library may choose: that puts the losses of a hundred updates off by
//! up to 1.5e-3, where the CPU's are repeated within 1e-4.
//!
//! Scalar formulas are those of the host ([`crate::learner::formulas`]); sizes and places are arguments of a launch, so that a kernel is
//! compiled once for all networks and batches.
//!
//! - [`records`]: segments into the pool. [`pool`]: batches out of it. [`networks`]: there and back again, [`embeddings`] of ids with it. [`losses`]: from outputs to gradients. [`adam`]: the optimiser.

mod adam;
mod embeddings;
mod losses;
mod networks;
mod pool;
mod records;

use burn::tensor::{Shape, Tensor, TensorPrimitive};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeRuntime};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::ComputeClient;
use cubecl::prelude::{ArrayArg, CubeCount, CubeDim};
use cubecl::server::Handle;

use super::super::networks::Networks;
use super::layout::Layout;

pub use losses::Constants;
pub use pool::gather;
pub use records::write;

/// Units of a cube where each works alone.
const CUBE: u32 = 256;

/// The backend of tensors beside the kernels.
pub type Cube<R> = CubeBackend<R, f32, i32, u32>;

/// Numbers one behind the other on the device.
pub struct Numbers<R: CubeRuntime> {
    client: ComputeClient<R>,
    device: R::Device,
    handle: Handle,
    len: usize,
}

impl<R: CubeRuntime> Clone for Numbers<R> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), device: self.device.clone(), handle: self.handle.clone(), len: self.len }
    }
}

impl<R: CubeRuntime> Numbers<R> {
    fn of<const D: usize>(tensor: &Tensor<Cube<R>, D>) -> Self {
        Self::of_primitive(tensor.clone().into_primitive().tensor())
    }

    /// Zeros on a device.
    pub fn zeros(device: &R::Device, len: usize) -> Self {
        Self::of(&Tensor::<Cube<R>, 1>::zeros([len], device))
    }

    /// Waits until everything that was launched before is done.
    pub fn wait(&self) {
        super::super::transfer::to_host(self.clone().flat().slice(0..1));
    }

    fn of_primitive(tensor: CubeTensor<R>) -> Self {
        let tensor = burn_cubecl::kernel::into_contiguous(tensor);
        let len = tensor.meta.shape().num_elements();
        Self { client: tensor.client, device: tensor.device, handle: tensor.handle, len }
    }

    /// Uninitialised, beside these.
    fn empty(&self, len: usize) -> Self {
        self.with(self.client.empty(len * size_of::<f32>()), len)
    }

    /// Uploaded beside these.
    pub fn upload(&self, values: &[u32]) -> Self {
        self.with(self.client.create_from_slice(bytemuck::cast_slice(values)), values.len())
    }

    fn with(&self, handle: Handle, len: usize) -> Self {
        Self { client: self.client.clone(), device: self.device.clone(), handle, len }
    }

    fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<Cube<R>, D> {
        let shape = Shape::from(shape);
        assert_eq!(shape.num_elements(), self.len, "a tensor of other numbers");
        let tensor = CubeTensor::new_contiguous(self.client, self.device, shape, self.handle, burn::tensor::DType::F32);
        Tensor::from_primitive(TensorPrimitive::Float(tensor))
    }

    fn flat(self) -> Tensor<Cube<R>, 1> {
        let len = self.len;
        self.tensor([len])
    }

    fn arg(&self) -> ArrayArg<R> {
        // SAFETY: the handle was made for so many numbers, or comes with a tensor that has them.
        unsafe { ArrayArg::from_raw_parts(self.handle.clone(), self.len) }
    }

    /// A launch of so many units, each of which works alone.
    fn units(&self, units: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(CUBE);
        (calculate_cube_count_elemwise(&self.client, units, dim), dim)
    }
}

fn whole(places: &[usize]) -> Vec<u32> {
    places.iter().map(|place| *place as u32).collect()
}

/// What gradients are multiplied by: one over the pairs of steps and contracts with something to learn, one over the requests.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    pub critic: f32,
    pub actor: f32,
}

/// What gradients are worked out from.
#[derive(Clone, Copy)]
pub struct Update<'a, R: CubeRuntime> {
    pub layout: &'a Layout,
    pub losses: &'a Constants<R>,
    pub networks: &'a Networks<Cube<R>>,
    /// As [`gather`] returns it.
    pub batch: &'a Numbers<R>,
    pub weights: Weights,
    pub train_actor: bool,
    /// Whether losses are summed for somebody to read.
    pub with_sums: bool,
}

impl<R: CubeRuntime> Update<'_, R> {
    /// Segments of the batch.
    fn segments(&self) -> usize {
        self.batch.len / self.layout.width
    }
}

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
