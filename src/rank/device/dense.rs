//! The network of the value model on a GPU: the layers, forward and back, around the products of a batch's rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_cubecl::CubeRuntime;

use crate::formulas::shared::AdamFactors;
use crate::gpu::layers::{Layer, Parts, sum};
use crate::gpu::numbers::{Numbers, Reader};
use crate::sparse::Lookup;
use crate::values::Block;
use crate::values::adam::Adam;
use crate::values::net::{Losses, MOST_CORRECTION, NetShape};
use crate::values::sample::DENSE;

use super::interaction::{BatchSizes, Interaction, LOSSES, LossConstants};
use super::order::Order;
use super::parameters::Parameters;
use super::slots::Shared;

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

    /// How long it has waited for rows that other devices own.
    fn waited(&self) -> Duration;
}

/// A batch on its way through the network.
struct Batch<R: CubeRuntime> {
    sizes: BatchSizes,
    /// Dense features, then the columns that losses need.
    data: Numbers<R>,
    /// Outputs of the layers, from below.
    h0: Numbers<R>,
    b: Numbers<R>,
    /// What the gradient of the parameters needs of [`DeviceDense::interact`].
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

/// Two arrays of numbers on their way from the device.
type Reading = Box<dyn FnOnce() -> [Vec<u32>; 2] + Send>;

/// The network of the value model on a GPU.
pub struct Dense<R: CubeRuntime> {
    products: Products<R>,
    parameters: Option<Parameters<R>>,
}

/// The network's products for one batch at a time, forward and back, with parameters that the caller has.
pub struct Products<R: CubeRuntime> {
    net: NetShape,
    dispersion: f32,
    batch: Option<Batch<R>>,
    order: Order,
    /// Losses of batches, and whether any gradient before was not finite.
    reading: VecDeque<Reading>,
    pub reader: Reader<R>,
    /// An array of the device's, for new ones beside it.
    pub beside: Numbers<R>,
    shared: Arc<Shared<R>>,
    waited: Duration,
}

impl<R: CubeRuntime> Dense<R> {
    pub fn new(products: Products<R>) -> Self {
        Self { products, parameters: None }
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
        let upload = |values: &[f32]| self.products.beside.upload(bytemuck::cast_slice(values));
        self.parameters =
            Some(Parameters { params: upload(parameters), first: upload(&adam.first), second: upload(&adam.second) });
    }

    fn store(&self, parameters: &mut Vec<f32>, adam: &mut Adam) {
        let Parameters { params, first, second } = self.parameters();
        let read = |numbers: &Numbers<R>| bytemuck::cast_vec(self.products.reader.begin(numbers)());
        (*parameters, adam.first, adam.second) = (read(params), read(first), read(second));
    }

    fn begin(&mut self, block: &Block) {
        let params = self.parameters().params.clone();
        self.products.begin(&params, block);
        // The trainer waits for the batch's rows now.
        params.begin_launched();
    }

    fn interact(&mut self, slot: usize, block: &Block, lookup: &Lookup) {
        let params = self.parameters().params.clone();
        self.products.interact(&params, slot, block, lookup);
    }

    fn step(&mut self, by: AdamFactors) {
        let params = self.parameters().params.clone();
        let gradient = self.products.back(&params);
        self.parameters().step(&gradient, by, &self.products.shared.bad);
        // The trainer looks for the next batch's rows now.
        gradient.begin_launched();
    }

    fn losses(&mut self, all: bool) -> Option<Losses> {
        self.products.losses(all)
    }

    fn waited(&self) -> Duration {
        self.products.waited
    }
}

impl<R: CubeRuntime> Products<R> {
    /// A network of this shape beside an array of its device. `dispersion` is the charges' variance over their mean.
    pub fn new(net: NetShape, dispersion: f32, beside: Numbers<R>, reader: Reader<R>, shared: Arc<Shared<R>>) -> Self {
        Self {
            net,
            dispersion,
            batch: None,
            order: Order::default(),
            reading: VecDeque::new(),
            reader,
            beside,
            shared,
            waited: Duration::ZERO,
        }
    }

    fn layers(&self) -> [Layer; 4] {
        let mut at = 0;
        self.net.layers().map(|(_, inputs, outputs)| {
            let layer = Layer { inputs, outputs, at };
            at += (inputs + 1) * outputs;
            layer
        })
    }

    /// Computes the layers below the products for a batch, as [`DeviceDense::begin`].
    pub fn begin(&mut self, params: &Numbers<R>, block: &Block) {
        let samples = block.len();
        let flag = |flags: &[bool]| flags.iter().map(|flag| f32::from(*flag)).collect::<Vec<_>>();
        let columns = [&block.dense, &block.predicted, &block.logit, &block.charged, &block.weight];
        let data = [columns.map(|column| &column[..]).concat(), flag(&block.auction), flag(&block.clicked)].concat();
        let data = self.beside.upload(bytemuck::cast_slice(&data));
        let [l0, l1, ..] = self.layers();
        let h0 = l0.forward(params, (&data, 0), samples, true);
        let b = l1.forward(params, (&h0, 0), samples, true);
        let sizes = BatchSizes { samples, fields: self.net.fields, dim: self.net.dim };
        self.batch = Some(Batch { sizes, data, h0, b, above: None });
    }

    /// Computes losses and the gradients of rows, as [`DeviceDense::interact`].
    pub fn interact(&mut self, params: &Numbers<R>, slot: usize, block: &Block, lookup: &Lookup) {
        self.order.find(lookup);
        let inverse = self.beside.upload(&lookup.inverse);
        let index = self.beside.upload(&[&self.order.places[..], &self.order.chunks, &self.order.rows].concat());
        let chunks_at = self.order.places.len();
        let rows_at = chunks_at + self.order.chunks.len();
        let [_, _, l2, l3] = self.layers();
        let mut numbers = self.shared.slot(slot);
        let begun = Instant::now();
        if numbers.elsewhere.is_some() {
            // The device does meanwhile what was launched so far.
            self.beside.begin_launched();
        }
        let rows = numbers.rows(self.net.dim);
        self.waited += begun.elapsed();
        let batch = self.batch.as_ref().expect("the batch has begun");
        let samples = batch.sizes.samples;
        let at = Interaction { sizes: batch.sizes, b: &batch.b, rows: &rows, inverse: &inverse };
        let top = at.products();
        let h1 = l2.forward(params, (&top, 0), samples, true);
        let out = l3.forward(params, (&h1, 0), samples, false);
        let by = LossConstants { scale: block.scale(), dispersion: self.dispersion, limit: MOST_CORRECTION };
        let (by_out, losses) = at.losses((&batch.data, samples * DENSE), &out, by);
        let by_h1 = l3.back(params, &by_out, samples, Some(&h1));
        let by_top = l2.back(params, &by_h1, samples, None);
        let by_rows = at.back_rows((&by_top, &by_out), (&index, chunks_at, rows_at), &self.shared.bad);
        numbers.keep(by_rows, self.net.dim, &self.reader);
        drop(numbers);
        let losses = sum(&losses, LOSSES);
        self.reading.push_back(Box::new(self.reader.begin_all([&losses, &self.shared.bad])));
        let above = Above { inverse, rows, top, h1, by_out, by_h1, by_top };
        self.batch.as_mut().expect("the batch has begun").above = Some(above);
    }

    /// Computes the gradient of the parameters.
    pub fn back(&mut self, params: &Numbers<R>) -> Numbers<R> {
        let Some(Batch { sizes, data, h0, b, above: Some(above) }) = self.batch.take() else {
            panic!("the batch was not computed")
        };
        let Above { inverse, rows, top, h1, by_out, by_h1, by_top } = above;
        let [l0, l1, l2, l3] = self.layers();
        let samples = sizes.samples;
        let by_b = Interaction { sizes, b: &b, rows: &rows, inverse: &inverse }.back_dense(&by_top);
        let by_h0 = l1.back(params, &by_b, samples, Some(&h0));
        let parts = Parts::new(&data, samples, self.net.parameters());
        parts.add(l0, (&data, 0), &by_h0, samples);
        parts.add(l1, (&h0, 0), &by_b, samples);
        parts.add(l2, (&top, 0), &by_h1, samples);
        parts.add(l3, (&h1, 0), &by_out, samples);
        parts.sum()
    }

    /// The losses that are known, as [`DeviceDense::losses`].
    pub fn losses(&mut self, all: bool) -> Option<Losses> {
        let mut sum = Losses::default();
        while self.reading.len() > usize::from(!all) {
            let [losses, bad] = self.reading.pop_front().expect("there are some")();
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
