//! What the trainer asks of a backend, as kernels of a GPU.
//!
//! **Why kernels of our own.** As tensor operations an update is two hundred launches, and the queue that they wait in is slower than
//! the device at the batches that are trained with. Here it is about thirty: a layer is one launch with its bias and rectifier, the way
//! back through it two, and the losses take five, which write nothing larger than the networks' outputs. Products are in single
//! precision, not rounded to the eleven bits of TF32 that a library may choose: that puts the losses of a hundred updates off by
//! up to 1.5e-3, where the CPU's are repeated within 1e-4.
//!
//! Each function states what it does in [`super::operations`] and [`super::super::optimiser`], in plain tensor operations. Sizes and places are
//! arguments of a launch, so that a kernel is compiled once for all networks and batches.
//!
//! - [`records`]: segments into the pool. [`pool`]: batches out of it. [`networks`]: there and back again, [`embeddings`] of ids with it. [`losses`]: from outputs to gradients. [`adam`]: the optimiser.

mod adam;
mod embeddings;
mod losses;
mod networks;
mod pool;
mod records;

use burn::tensor::{Int, Shape, Tensor, TensorPrimitive};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::ComputeClient;
use cubecl::prelude::{ArrayArg, CubeCount, CubeDim};
use cubecl::server::Handle;

use super::layout::Layout;
use super::operations::{Gradients, Resident, Update};
use super::record::Record;

/// Units of a cube where each works alone.
const CUBE: u32 = 256;

type Cube<R, B> = CubeBackend<R, f32, i32, B>;

/// Numbers one behind the other on the device.
struct Numbers<R: CubeRuntime> {
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
    fn of<B: BoolElement, const D: usize>(tensor: &Tensor<Cube<R, B>, D>) -> Self {
        Self::of_primitive(tensor.clone().into_primitive().tensor())
    }

    /// Whole numbers of 32 bits.
    fn of_whole<B: BoolElement>(tensor: &Tensor<Cube<R, B>, 1, Int>) -> Self {
        Self::of_primitive(tensor.clone().into_primitive())
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
    fn upload(&self, values: &[u32]) -> Self {
        self.with(self.client.create_from_slice(bytemuck::cast_slice(values)), values.len())
    }

    fn with(&self, handle: Handle, len: usize) -> Self {
        Self { client: self.client.clone(), device: self.device.clone(), handle, len }
    }

    fn tensor<B: BoolElement, const D: usize>(self, shape: [usize; D]) -> Tensor<Cube<R, B>, D> {
        let shape = Shape::from(shape);
        assert_eq!(shape.num_elements(), self.len, "a tensor of other numbers");
        let tensor = CubeTensor::new_contiguous(self.client, self.device, shape, self.handle, burn::tensor::DType::F32);
        Tensor::from_primitive(TensorPrimitive::Float(tensor))
    }

    fn flat<B: BoolElement>(self) -> Tensor<Cube<R, B>, 1> {
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

impl<R: CubeRuntime, B: BoolElement> Resident for Cube<R, B> {
    fn write(
        pool: Tensor<Self, 1>,
        records: Vec<f32>,
        places: &[usize],
        layouts: (&Record, &Layout),
    ) -> Tensor<Self, 1> {
        records::write(&Numbers::of(&pool), records, places, layouts);
        pool
    }

    fn gather(
        pool: &Tensor<Self, 1>,
        places: &[usize],
        sources: &Tensor<Self, 1, Int>,
        width: usize,
    ) -> Tensor<Self, 1> {
        let batch = pool::gather(&Numbers::of(pool), places, &Numbers::of_whole(sources), width);
        batch.flat()
    }

    fn gradients(update: Update<Self>) -> Gradients<Self> {
        let outputs = networks::infer(&update);
        let (by, sums) = losses::gradients(&update, &outputs);
        let (critic, actor) = networks::back(&update, &outputs, &by);
        let sums = sums.map(|sums| sums.map(|terms: Numbers<R>| terms.flat::<B>().sum()));
        Gradients { critic, actor, sums }
    }
}
