//! Arrays of numbers on the device, as kernels take them.

use burn::tensor::{Shape, Tensor, TensorPrimitive};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeRuntime};
use cubecl::calculate_cube_count_elemwise;
use cubecl::client::ComputeClient;
use cubecl::device::Device as _;
use cubecl::device_handle::DeviceHandle;
use cubecl::future::block_on;
use cubecl::prelude::{ArrayArg, CubeCount, CubeDim};
use cubecl::server::Handle;

/// Units of a cube if each works alone.
pub const CUBE: u32 = 256;

/// Backend of the tensors used together with the kernels.
pub type Cube<R> = CubeBackend<R, f32, i32, u32>;

/// Contiguous numbers on the device.
pub struct Numbers<R: CubeRuntime> {
    pub client: ComputeClient<R>,
    pub device: R::Device,
    pub handle: Handle,
    pub len: usize,
}

impl<R: CubeRuntime> Clone for Numbers<R> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), device: self.device.clone(), handle: self.handle.clone(), len: self.len }
    }
}

impl<R: CubeRuntime> Numbers<R> {
    pub fn of<const D: usize>(tensor: &Tensor<Cube<R>, D>) -> Self {
        Self::of_primitive(tensor.clone().into_primitive().tensor())
    }

    /// Allocates uninitialised numbers with a client of its own, whose stream everything that comes of them goes through.
    pub fn allocate(client: ComputeClient<R>, device: R::Device, len: usize) -> Self {
        let handle = client.empty(len * size_of::<f32>());
        Self { client, device, handle, len }
    }

    /// Allocates zeros on a device.
    pub fn zeros(device: &R::Device, len: usize) -> Self {
        Self::of(&Tensor::<Cube<R>, 1>::zeros([len], device))
    }

    /// Waits until everything that was launched before is done.
    pub fn wait(&self) {
        let first = self.handle.clone().offset_end(((self.len - 1) * size_of::<f32>()) as u64);
        self.client.read_one_unchecked(first);
    }

    /// Lets the device begin with what was launched so far, and waits for nothing. cubecl hands launches over some tens at a time else, or when
    /// somebody waits for a result.
    pub fn begin_launched(&self) {
        DeviceHandle::<R::Server>::new(self.device.to_id()).flush_queue();
    }

    fn of_primitive(tensor: CubeTensor<R>) -> Self {
        let tensor = burn_cubecl::kernel::into_contiguous(tensor);
        let len = tensor.meta.shape().num_elements();
        Self { client: tensor.client, device: tensor.device, handle: tensor.handle, len }
    }

    /// Allocates uninitialised numbers on the same device.
    pub fn empty(&self, len: usize) -> Self {
        self.with(self.client.empty(len * size_of::<f32>()), len)
    }

    /// Uploads numbers to the same device.
    pub fn upload(&self, values: &[u32]) -> Self {
        self.with(self.client.create_from_slice(bytemuck::cast_slice(values)), values.len())
    }

    pub fn with(&self, handle: Handle, len: usize) -> Self {
        Self { client: self.client.clone(), device: self.device.clone(), handle, len }
    }

    pub fn tensor<const D: usize>(self, shape: [usize; D]) -> Tensor<Cube<R>, D> {
        let shape = Shape::from(shape);
        assert_eq!(shape.num_elements(), self.len, "a tensor of other numbers");
        let tensor = CubeTensor::new_contiguous(self.client, self.device, shape, self.handle, burn::tensor::DType::F32);
        Tensor::from_primitive(TensorPrimitive::Float(tensor))
    }

    pub fn flat(self) -> Tensor<Cube<R>, 1> {
        let len = self.len;
        self.tensor([len])
    }

    pub fn arg(&self) -> ArrayArg<R> {
        // SAFETY: the handle was created for this number of values, or belongs to a tensor that has them.
        unsafe { ArrayArg::from_raw_parts(self.handle.clone(), self.len) }
    }

    /// Returns the launch size of `units` units, each of which works alone.
    pub fn units(&self, units: usize) -> (CubeCount, CubeDim) {
        let dim = CubeDim::new_1d(CUBE);
        (calculate_cube_count_elemwise(&self.client, units, dim), dim)
    }
}

/// Reads arrays of a device without waiting for them.
pub struct Reader<R: CubeRuntime> {
    client: &'static ComputeClient<R>,
}

impl<R: CubeRuntime> Clone for Reader<R> {
    fn clone(&self) -> Self {
        Self { client: self.client }
    }
}

impl<R: CubeRuntime> Reader<R> {
    /// A reader of arrays that the client of `beside` has made. It is never freed: a process makes one for each device.
    pub fn new(beside: &Numbers<R>) -> Self {
        Self { client: Box::leak(Box::new(beside.client.clone())) }
    }

    /// Begins to copy numbers to the host, as they are now. The result waits for them.
    pub fn begin(&self, numbers: &Numbers<R>) -> impl FnOnce() -> Vec<u32> + Send + use<R> {
        let read = self.begin_all([numbers]);
        move || {
            let [numbers] = read();
            numbers
        }
    }

    /// As [`begin`](Self::begin), for several arrays of numbers, which come together.
    pub fn begin_all<const N: usize>(
        &self,
        numbers: [&Numbers<R>; N],
    ) -> impl FnOnce() -> [Vec<u32>; N] + Send + use<R, N> {
        let reading = self.client.read_async(numbers.map(|numbers| numbers.handle.clone()).into());
        move || {
            let read = block_on(reading).expect("the device answers");
            std::array::from_fn(|i| bytemuck::pod_collect_to_vec(&read[i]))
        }
    }
}

pub fn whole(places: &[usize]) -> Vec<u32> {
    places.iter().map(|place| *place as u32).collect()
}
