//! The value model on a GPU: the rows of the cache lie there, and so does the network.
//!
//! The host keeps what it is good at: unique ids, the index of the table, which rows are resident and which go. It sends the places
//! of a batch's rows, the rows that are missing, and the batch. The device gathers each row once, expands by the inverse, computes
//! losses and gradients, and moves rows and parameters; only rows that leave the cache come back, and a few numbers a batch.
//!
//! Both of the trainer's threads launch through one stream, so everything happens in the order of the launches, which
//! [`Turns`](crate::shm::turns::Turns) already give. Nobody waits for the device but for losses, which are read one batch late, and for
//! rows that left the cache, which are read when the next batch is fetched.
//!
//! [`arena`], [`interaction`], [`parameters`]: what the device computes on rows, on a batch, and on the network. [`order`]: the order in which
//! gradients of rows are summed.

mod arena;
mod interaction;
mod order;
mod parameters;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_cubecl::CubeRuntime;
use cubecl::client::ComputeClient;
use cubecl::cuda::CudaRuntime;
use cubecl::stream_id::StreamId;

use crate::formulas::shared::AdamFactors;
use crate::gpu;
use crate::gpu::layers::{Layer, Parts, sum};
use crate::gpu::numbers::{Numbers, Reader};
use crate::sparse::cache::memory::{DeviceMemory, DeviceStep, Memory, Taken};
use crate::sparse::optimiser::adam_corrections;
use crate::sparse::{Lookup, TableShape};
use crate::values::Block;
use crate::values::adam::Adam;
use crate::values::net::{Losses, MOST_CORRECTION, NetShape};
use crate::values::sample::DENSE;

use arena::Arena;
use interaction::{BatchSizes, Interaction, LOSSES, LossConstants};
use order::Order;
use parameters::Parameters;

/// Updates of a row after which the corrections of lazy Adam are 1 in single precision.
const CORRECTED: u32 = 1 << 14;

/// The network of the value model on a GPU, as the trainer's thread sees it.
pub trait DeviceDense: Send {
    /// Replaces the parameters.
    fn load(&mut self, parameters: &[f32], adam: &Adam);

    /// Copies the parameters and their moments to the host.
    fn store(&self, parameters: &mut Vec<f32>, adam: &mut Adam);

    /// Computes the layers below the products for a batch, which needs no rows.
    fn begin(&mut self, block: &Block);

    /// Computes the losses of the batch and the gradients of its rows, which stay in its slot.
    fn interact(&mut self, slot: usize, block: &Block, lookup: &Lookup);

    /// Computes the rest of the gradient and moves the parameters along it.
    fn step(&mut self, by: AdamFactors);

    /// Returns the losses of the batches before the last one that were not returned yet; of the last one too, if `all`. `None`
    /// if a loss or a gradient was not finite.
    fn losses(&mut self, all: bool) -> Option<Losses>;
}

/// A batch's arrays that both threads use.
struct SlotNumbers<R: CubeRuntime> {
    /// Rows of the unique ids, and their places in the arena.
    gathered: Option<(Numbers<R>, Numbers<R>)>,
    gradients: Option<Numbers<R>>,
}

/// What both threads share.
struct Shared<R: CubeRuntime> {
    slots: Vec<Mutex<SlotNumbers<R>>>,
    /// `[1]`: not 0 once a gradient was not finite.
    bad: Numbers<R>,
}

impl<R: CubeRuntime> Shared<R> {
    fn slot(&self, slot: usize) -> MutexGuard<'_, SlotNumbers<R>> {
        self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a value model needs of a device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceShape {
    pub net: NetShape,
    pub table: TableShape,
    /// Rows that the device holds.
    pub rows: usize,
    /// Batches under way at a time.
    pub slots: usize,
    /// The charges' variance over their mean.
    pub dispersion: f32,
}

/// Rows and network on a device, for the row thread and for the trainer's.
pub type Opened = (Box<dyn DeviceMemory>, Box<dyn DeviceDense>);

/// Opens the GPU of this number for a value model.
///
/// # Errors
/// As [`open`], and a GPU that does not work.
pub fn open_cuda(index: usize, shape: &DeviceShape) -> anyhow::Result<Opened> {
    open::<CudaRuntime>(gpu::device::open(index)?, shape)
}

/// Opens a device for a value model.
///
/// # Errors
/// More rows than the device gives memory for at once.
pub fn open<R: CubeRuntime>(device: R::Device, shape: &DeviceShape) -> anyhow::Result<Opened>
where
    R::Device: Send,
{
    let &DeviceShape { net, table, rows, slots, dispersion } = shape;
    let mut client: ComputeClient<R> = R::client(&device);
    let bytes = (rows * table.words() * size_of::<u32>()) as u64;
    let most = client.properties().memory.max_page_size;
    anyhow::ensure!(
        bytes <= most,
        "{rows} rows take {:.1} GB on the device, which gives {:.1} GB at once; lower table.cache_rows to {}",
        bytes as f64 * 1e-9,
        most as f64 * 1e-9,
        most / (table.words() * size_of::<u32>()) as u64
    );
    // SAFETY: all that comes of this client goes through one stream, in the order of the calls.
    unsafe { client.set_stream(StreamId::current()) };
    let words = Numbers::allocate(client, device, rows * table.words());
    let bad = words.upload(&[0]);
    let empty = || Mutex::new(SlotNumbers { gathered: None, gradients: None });
    let shared = Arc::new(Shared { slots: (0..slots).map(|_| empty()).collect(), bad });
    let corrections: Vec<f32> = (1..=CORRECTED).flat_map(adam_corrections).collect();
    let dense = Dense {
        net,
        dispersion,
        parameters: None,
        batch: None,
        order: Order::default(),
        reading: VecDeque::new(),
        reader: Reader::new(&words),
        beside: words.clone(),
        shared: shared.clone(),
    };
    let rows = Rows {
        corrections: words.upload(bytemuck::cast_slice(&corrections)),
        reader: dense.reader.clone(),
        arena: Arena { words, dim: table.dim, width: table.words(), capacity: rows },
        shape: table,
        shared,
    };
    Ok((Box::new(rows), Box::new(dense)))
}

/// The rows of the cache, as the row thread sees them.
struct Rows<R: CubeRuntime> {
    arena: Arena<R>,
    shape: TableShape,
    /// Of lazy Adam, two for each of a row's first updates.
    corrections: Numbers<R>,
    reader: Reader<R>,
    shared: Arc<Shared<R>>,
}

impl<R: CubeRuntime> Memory for Rows<R>
where
    R::Device: Send,
{
    fn put(&mut self, places: &[u32], words: &[u32]) {
        self.arena.put(places, words);
    }

    fn take(&mut self, places: &[u32]) -> Taken {
        Box::new(self.reader.begin(&self.arena.take(places)))
    }
}

impl<R: CubeRuntime> DeviceMemory for Rows<R>
where
    R::Device: Send,
{
    fn gather(&mut self, slot: usize, places: &[u32], firsts: &[f32]) {
        self.shared.slot(slot).gathered = Some(self.arena.gather(places, firsts));
    }

    fn update(&mut self, slot: usize, step: &DeviceStep) {
        let mut numbers = self.shared.slot(slot);
        let SlotNumbers { gathered, gradients } = &mut *numbers;
        let (_, places) = gathered.take().expect("the batch was gathered");
        let gradients = gradients.take().expect("its gradients were computed");
        let rates = [step.rate, step.passes];
        self.arena.update(&places, &gradients, &step.precisions, &self.corrections, self.shape.optimizer, rates);
    }
}

/// A batch on its way through the network.
struct Batch<R: CubeRuntime> {
    sizes: BatchSizes,
    /// Dense features, then the columns that losses need.
    data: Numbers<R>,
    /// Outputs of the layers, from below.
    h0: Numbers<R>,
    b: Numbers<R>,
    /// What [`DeviceDense::step`] needs of [`DeviceDense::interact`].
    above: Option<Above<R>>,
}

/// The layers above the products, forward and back.
struct Above<R: CubeRuntime> {
    inverse: Numbers<R>,
    rows: Numbers<R>,
    top: Numbers<R>,
    h1: Numbers<R>,
    by_out: Numbers<R>,
    by_h1: Numbers<R>,
    by_top: Numbers<R>,
}

/// Losses on their way to the host.
type Reading = Box<dyn FnOnce() -> Vec<u32> + Send>;

struct Dense<R: CubeRuntime> {
    net: NetShape,
    dispersion: f32,
    parameters: Option<Parameters<R>>,
    batch: Option<Batch<R>>,
    order: Order,
    /// Losses of batches, and whether any gradient before was not finite.
    reading: VecDeque<[Reading; 2]>,
    reader: Reader<R>,
    /// An array of the device's, for new ones beside it.
    beside: Numbers<R>,
    shared: Arc<Shared<R>>,
}

impl<R: CubeRuntime> Dense<R> {
    fn layers(&self) -> [Layer; 4] {
        let mut at = 0;
        self.net.layers().map(|(_, inputs, outputs)| {
            let layer = Layer { inputs, outputs, at };
            at += (inputs + 1) * outputs;
            layer
        })
    }

    fn parameters(&self) -> &Parameters<R> {
        self.parameters.as_ref().expect("parameters are loaded first")
    }
}

impl<R: CubeRuntime> DeviceDense for Dense<R>
where
    R::Device: Send,
{
    fn load(&mut self, parameters: &[f32], adam: &Adam) {
        let upload = |values: &[f32]| self.beside.upload(bytemuck::cast_slice(values));
        self.parameters =
            Some(Parameters { params: upload(parameters), first: upload(&adam.first), second: upload(&adam.second) });
    }

    fn store(&self, parameters: &mut Vec<f32>, adam: &mut Adam) {
        let Parameters { params, first, second } = self.parameters();
        let read = |numbers: &Numbers<R>| bytemuck::cast_vec(self.reader.begin(numbers)());
        (*parameters, adam.first, adam.second) = (read(params), read(first), read(second));
    }

    fn begin(&mut self, block: &Block) {
        let samples = block.len();
        let flag = |flags: &[bool]| flags.iter().map(|flag| f32::from(*flag)).collect::<Vec<_>>();
        let columns = [&block.dense, &block.predicted, &block.logit, &block.charged, &block.weight];
        let data = [columns.map(|column| &column[..]).concat(), flag(&block.auction), flag(&block.clicked)].concat();
        let data = self.beside.upload(bytemuck::cast_slice(&data));
        let [l0, l1, ..] = self.layers();
        let params = &self.parameters().params;
        let h0 = l0.forward(params, (&data, 0), samples, true);
        let b = l1.forward(params, (&h0, 0), samples, true);
        let sizes = BatchSizes { samples, fields: self.net.fields, dim: self.net.dim };
        self.batch = Some(Batch { sizes, data, h0, b, above: None });
    }

    fn interact(&mut self, slot: usize, block: &Block, lookup: &Lookup) {
        self.order.find(lookup);
        let inverse = self.beside.upload(&lookup.inverse);
        let index = self.beside.upload(&[&self.order.places[..], &self.order.chunks, &self.order.rows].concat());
        let chunks_at = self.order.places.len();
        let rows_at = chunks_at + self.order.chunks.len();
        let [_, _, l2, l3] = self.layers();
        let mut numbers = self.shared.slot(slot);
        let rows = numbers.gathered.as_ref().expect("the batch was gathered").0.clone();
        let batch = self.batch.as_ref().expect("the batch has begun");
        let (params, samples) = (&self.parameters().params, batch.sizes.samples);
        let at = Interaction { sizes: batch.sizes, b: &batch.b, rows: &rows, inverse: &inverse };
        let top = at.products();
        let h1 = l2.forward(params, (&top, 0), samples, true);
        let out = l3.forward(params, (&h1, 0), samples, false);
        let by = LossConstants { scale: block.scale(), dispersion: self.dispersion, limit: MOST_CORRECTION };
        let (by_out, losses) = at.losses((&batch.data, samples * DENSE), &out, by);
        let by_h1 = l3.back(params, &by_out, samples, Some(&h1));
        let by_top = l2.back(params, &by_h1, samples, None);
        numbers.gradients = Some(at.back_rows((&by_top, &by_out), (&index, chunks_at, rows_at), &self.shared.bad));
        drop(numbers);
        let read = |numbers: &Numbers<R>| -> Reading { Box::new(self.reader.begin(numbers)) };
        self.reading.push_back([read(&sum(&losses, LOSSES)), read(&self.shared.bad)]);
        let above = Above { inverse, rows, top, h1, by_out, by_h1, by_top };
        self.batch.as_mut().expect("the batch has begun").above = Some(above);
    }

    fn step(&mut self, by: AdamFactors) {
        let Some(Batch { sizes, data, h0, b, above: Some(above) }) = self.batch.take() else {
            panic!("the batch was not computed")
        };
        let Above { inverse, rows, top, h1, by_out, by_h1, by_top } = above;
        let [l0, l1, l2, l3] = self.layers();
        let samples = sizes.samples;
        let by_b = Interaction { sizes, b: &b, rows: &rows, inverse: &inverse }.back_dense(&by_top);
        let by_h0 = l1.back(&self.parameters().params, &by_b, samples, Some(&h0));
        let parts = Parts::new(&data, samples, self.net.parameters());
        parts.add(l0, (&data, 0), &by_h0, samples);
        parts.add(l1, (&h0, 0), &by_b, samples);
        parts.add(l2, (&top, 0), &by_h1, samples);
        parts.add(l3, (&h1, 0), &by_out, samples);
        self.parameters().step(&parts.sum(), by, &self.shared.bad);
    }

    fn losses(&mut self, all: bool) -> Option<Losses> {
        let mut sum = Losses::default();
        while self.reading.len() > usize::from(!all) {
            let [losses, bad] = self.reading.pop_front().expect("there are some").map(|read| read());
            let [charge, click, weight] = [losses[0], losses[1], losses[2]].map(|bits| f64::from(f32::from_bits(bits)));
            sum.charge += charge;
            sum.click += click;
            sum.weight += weight;
            if f32::from_bits(bad[0]) != 0.0 || !sum.total().is_finite() {
                return None;
            }
        }
        Some(sum)
    }
}
