//! The value model on GPUs: the rows of the cache lie there, and so does the network.
//!
//! The host keeps what it is good at: unique ids, the index of the table, which rows are resident and which go. It sends the places
//! of a batch's rows, the rows that are missing, and the batch. The device gathers each row once, expands by the inverse, computes
//! losses and gradients, and moves rows and parameters; only rows that leave the cache come back, and a few numbers a batch.
//!
//! With several devices, all of them own rows and the first one computes. [`owners`] tells how rows and gradients go from one to the
//! other; what is computed is the same to the bit, because rows are gathered and gradients are summed as on one device.
//!
//! Ranks of several keep their rows on the host, where they exchange gradients; the device of each computes [`gradients`] alone.
//!
//! Both of the trainer's threads launch through one stream of each device, so everything happens there in the order of the launches, which
//! [`Turns`](crate::shm::turns::Turns) already give; the parts of one upload, which the row thread waits for, go in any order. Nobody waits for a device but for losses, which are read one batch late, for
//! rows that left the cache, which are read when the next batch is fetched, and for what goes from one device to another.
//!
//! | file | what it is |
//! |---|---|
//! | [`owners`], [`spread`] | rows on the devices that own them; which of a batch's rows lie where |
//! | [`arena`], [`reach`] | what an owner computes on its records; a trial of that on places all over an arena |
//! | [`dense`], [`parameters`] | the network, and its optimiser |
//! | [`gradients`] | the network alone, for ranks whose rows and parameters are on the host |
//! | [`interaction`], [`order`] | a batch between its layers; the order in which gradients of rows are summed |
//! | [`slots`] | what both threads have of a batch |

mod arena;
mod dense;
mod gradients;
mod interaction;
mod order;
mod owners;
mod parameters;
mod reach;
mod slots;
mod spread;

use std::sync::Arc;

use burn_cubecl::CubeRuntime;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;
use cubecl::stream_id::StreamId;

use crate::gpu;
use crate::gpu::agreement::Subject;
use crate::gpu::numbers::{Numbers, Reader};
use crate::settings::ValueSettings;
use crate::sparse::TableShape;
use crate::sparse::cache::memory::DeviceMemory;
use crate::values::net::NetShape;

pub use dense::DeviceDense;
pub use gradients::DeviceGradients;

use dense::{Dense, Products};
use gradients::Gradients;
use owners::{Owner, Owners};
use slots::Shared;

/// What a value model needs of its devices.
#[derive(Debug, Clone, Copy)]
pub struct DeviceShape {
    pub net: NetShape,
    pub table: TableShape,
    /// Rows that the devices hold in all.
    pub rows: usize,
    /// Batches under way at a time.
    pub slots: usize,
    /// The charges' variance over their mean.
    pub dispersion: f32,
}

/// More rows than a device gives memory for at once.
#[derive(Debug, thiserror::Error)]
#[error(
    "{rows} rows take {:.1} GB on a device, which gives {:.1} GB at once; set table.cache_rows to {most} or less",
    *.bytes as f64 * 1e-9,
    *.at_once as f64 * 1e-9
)]
pub struct TooManyRows {
    rows: usize,
    bytes: u64,
    at_once: u64,
    /// Rows that fit all devices.
    most: u64,
}

/// Rows on their devices and network on the first, for the row thread and for the trainer's.
pub type Opened = (Box<dyn DeviceMemory>, Box<dyn DeviceDense>);

/// Opens the GPUs of these numbers for a value model; the first one computes.
///
/// # Errors
/// As [`open`], and a GPU that does not work.
pub fn open_cuda(indices: &[usize], shape: &DeviceShape) -> anyhow::Result<Opened> {
    let devices = indices.iter().map(|index| gpu::device::open(*index)).collect::<anyhow::Result<Vec<_>>>()?;
    open::<CudaRuntime>(&devices, shape)
}

/// Opens devices for a value model: an arena on each, the network on the first. A device that is named again has another arena, whose rows
/// come and go as if it were another device.
///
/// # Errors
/// [`TooManyRows`]; or kernels that do not reach all places.
///
/// # Panics
/// When there is no device.
pub fn open<R: CubeRuntime>(devices: &[R::Device], shape: &DeviceShape) -> anyhow::Result<Opened>
where
    R::Device: Send,
{
    let (owners, dense) = untried::<R>(devices, shape)?;
    owners.all.iter().try_for_each(|owner| owner.check(shape.table))?;
    Ok((Box::new(owners), Box::new(dense)))
}

/// As [`open`], for a driver that runs nothing: no kernel is tried. Public for `tests/cuda` alone.
///
/// # Errors
/// [`TooManyRows`].
#[doc(hidden)]
pub fn open_untried<R: CubeRuntime>(devices: &[R::Device], shape: &DeviceShape) -> anyhow::Result<Opened>
where
    R::Device: Send,
{
    let (owners, dense) = untried::<R>(devices, shape)?;
    Ok((Box::new(owners), Box::new(dense)))
}

fn untried<R: CubeRuntime>(devices: &[R::Device], shape: &DeviceShape) -> anyhow::Result<(Owners<R>, Dense<R>)> {
    let &DeviceShape { net, table, rows, slots, dispersion } = shape;
    let capacity = rows.div_ceil(devices.len());
    let all = devices.iter().map(|device| owner(device, table, capacity, devices.len()));
    let all: Vec<Owner<R>> = all.collect::<anyhow::Result<_>>()?;
    let (beside, reader) = (all[0].words().clone(), all[0].reader.clone());
    let shared = Arc::new(Shared::new(slots, beside.upload(&[0])));
    let products = Products::new(net, dispersion, beside, reader, shared.clone());
    Ok((Owners { all, shared }, Dense::new(products)))
}

/// Allocates places for `capacity` records on one of `devices` devices.
fn owner<R: CubeRuntime>(
    device: &R::Device,
    table: TableShape,
    capacity: usize,
    devices: usize,
) -> anyhow::Result<Owner<R>> {
    let client = client::<R>(device);
    let (words, at_once) = (capacity * table.words(), client.properties().memory.max_page_size);
    let bytes = (words * size_of::<u32>()) as u64;
    if bytes > at_once {
        let most = at_once / (table.words() * size_of::<u32>()) as u64 * devices as u64;
        return Err(TooManyRows { rows: capacity, bytes, at_once, most }.into());
    }
    Ok(Owner::new(Numbers::allocate(client, device.clone(), words), table, capacity))
}

/// A client of a device whose launches go through one stream.
fn client<R: CubeRuntime>(device: &R::Device) -> ComputeClient<R> {
    let mut client: ComputeClient<R> = R::client(device);
    // SAFETY: all that comes of this client goes through one stream, in the order of the calls.
    unsafe { client.set_stream(StreamId::current()) };
    client
}

/// Opens the GPU of this number for the gradients of a network of this shape. `dispersion` is the charges' variance over their mean.
///
/// # Errors
/// A GPU that does not work.
pub fn open_gradients_cuda(index: usize, net: NetShape, dispersion: f32) -> anyhow::Result<Box<dyn DeviceGradients>> {
    Ok(open_gradients::<CudaRuntime>(&gpu::device::open(index)?, net, dispersion))
}

/// Opens a device for the gradients of a network of this shape. `dispersion` is the charges' variance over their mean.
pub fn open_gradients<R: CubeRuntime>(device: &R::Device, net: NetShape, dispersion: f32) -> Box<dyn DeviceGradients>
where
    R::Device: Send,
{
    let beside = Numbers::allocate(client::<R>(device), device.clone(), 1);
    let reader = Reader::new(&beside);
    let shared = Arc::new(Shared::new(1, beside.upload(&[0])));
    let products = Products::new(net, dispersion, beside, reader, shared.clone());
    Box::new(Gradients::new(products, shared, net.dim))
}

/// What the devices of a run under these settings do.
pub fn subject(settings: &ValueSettings) -> Subject {
    match settings.ranks_here() {
        1 => Subject::Values { devices: settings.table.devices },
        ranks => Subject::ValueRanks { ranks },
    }
}
