//! The network of the value model, with its derivatives written out.
//!
//! Dense features go through two layers to a vector as wide as the embeddings' product part; it and the embeddings of the fields
//! are multiplied in pairs; two layers on top give the two corrections, to which each row adds its first two elements directly.
//! The last layer starts at 0 and so do those elements: a network that has learned nothing corrects nothing.
//!
//! ```text
//! dense (12) - linear - relu - linear - relu = b (k)          row of field f = [direct charge, direct click, e_f (k)]
//! [b, <b,e_1>, <e_1,e_2>, ..] - linear - relu - linear = (c, q);   c += sum of direct charges, q += sum of direct clicks
//! charge: Poisson deviance of y against w0 exp(c), over its dispersion      click: logistic loss of logit + q
//! ```

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::formulas::host::{logistic, poisson};
use crate::formulas::values::{clamped_slope, click_probability};
use crate::sparse::table::DIRECT;

use super::linear::{backward_inputs, backward_weights, forward, transpose};
use super::products;
use super::sample::{Block, DENSE};

/// Corrections beyond this say that something is wrong, not what an impression is worth.
pub const MOST_CORRECTION: f32 = 3.0;
pub const HEADS: usize = 2;

/// Sizes of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetShape {
    pub fields: usize,
    /// Floats of a row.
    pub dim: usize,
    pub hidden: usize,
}

/// Where the layers lie among the parameters.
#[derive(Debug, Clone, Copy)]
struct Layer {
    at: usize,
    inputs: usize,
    outputs: usize,
}

impl Layer {
    fn len(self) -> usize {
        (self.inputs + 1) * self.outputs
    }

    fn weights(self, parameters: &[f32]) -> (&[f32], &[f32]) {
        parameters[self.at..self.at + self.len()].split_at(self.inputs * self.outputs)
    }

    fn weights_mut(self, parameters: &mut [f32]) -> (&mut [f32], &mut [f32]) {
        parameters[self.at..self.at + self.len()].split_at_mut(self.inputs * self.outputs)
    }
}

impl NetShape {
    /// Floats of a row that take part in products.
    pub fn product(&self) -> usize {
        self.dim - DIRECT
    }

    fn pairs(&self) -> usize {
        products::pairs(self.fields)
    }

    /// Names, inputs and outputs of the layers, in their order.
    pub fn layers(&self) -> [(&'static str, usize, usize); 4] {
        let (k, h) = (self.product(), self.hidden);
        [("below.0", DENSE, h), ("below.1", h, k), ("above.0", k + self.pairs(), h), ("above.1", h, HEADS)]
    }

    fn layer(&self, number: usize) -> Layer {
        let mut at = 0;
        for (_, inputs, outputs) in &self.layers()[..number] {
            at += (inputs + 1) * outputs;
        }
        let (_, inputs, outputs) = self.layers()[number];
        Layer { at, inputs, outputs }
    }

    /// Parameters of the network.
    pub fn parameters(&self) -> usize {
        self.layers().iter().map(|(_, inputs, outputs)| (inputs + 1) * outputs).sum()
    }

    /// First parameters: He's uniform ones, and zeroes in the last layer.
    pub fn first_parameters(&self, rng: &mut ChaCha8Rng) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters()];
        for number in 0..3 {
            let layer = self.layer(number);
            let bound = (6.0 / layer.inputs as f32).sqrt();
            let (weights, _) = layer.weights_mut(&mut parameters);
            weights.iter_mut().for_each(|w| *w = rng.random_range(-bound..bound));
        }
        parameters
    }
}

/// Losses of a batch, each summed over its samples by weight.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Losses {
    /// Poisson deviance over the dispersion, auction rows.
    pub charge: f64,
    pub click: f64,
    /// Sum of the weights.
    pub weight: f64,
}

impl Losses {
    pub fn total(&self) -> f64 {
        self.charge + self.click
    }

    pub fn add(&mut self, other: Self) {
        self.charge += other.charge;
        self.click += other.click;
        self.weight += other.weight;
    }
}

/// A network at work: its sizes and the memory of a batch.
pub struct Net {
    shape: NetShape,
    /// Activations and their gradients, by layer.
    h0: Vec<f32>,
    b: Vec<f32>,
    top: Vec<f32>,
    h1: Vec<f32>,
    out: Vec<f32>,
    d_h0: Vec<f32>,
    d_b: Vec<f32>,
    d_top: Vec<f32>,
    d_h1: Vec<f32>,
    d_out: Vec<f32>,
    transposed: Vec<f32>,
}

impl Net {
    pub fn new(shape: NetShape) -> Self {
        let empty = Vec::new;
        Self {
            shape,
            h0: empty(),
            b: empty(),
            top: empty(),
            h1: empty(),
            out: empty(),
            d_h0: empty(),
            d_b: empty(),
            d_top: empty(),
            d_h1: empty(),
            d_out: empty(),
            transposed: empty(),
        }
    }

    /// Computes the corrections (c, q) of samples: `dense` features, `rows` of the unique ids, and the place of each sample's
    /// `fields` ids among them.
    pub fn forward(&mut self, parameters: &[f32], dense: &[f32], rows: &[f32], inverse: &[u32]) -> &[f32] {
        self.below(parameters, dense);
        self.above(parameters, rows, inverse)
    }

    /// Computes the layers below the products from the dense features, which need no rows.
    pub fn below(&mut self, parameters: &[f32], dense: &[f32]) {
        layer(parameters, self.shape.layer(0), dense, &mut self.h0, true);
        layer(parameters, self.shape.layer(1), &self.h0, &mut self.b, true);
    }

    /// Computes the corrections (c, q) of the samples that [`below`](Self::below) was called with last.
    pub fn above(&mut self, parameters: &[f32], rows: &[f32], inverse: &[u32]) -> &[f32] {
        let shape = self.shape;
        let (k, fields, dim) = (shape.product(), shape.fields, shape.dim);
        let n = self.b.len() / k;
        let width = k + shape.pairs();
        self.top.resize(n * width, 0.0);
        products::forward(&self.b, rows, dim, inverse, fields, &mut self.top);
        layer(parameters, shape.layer(2), &self.top, &mut self.h1, true);
        layer(parameters, shape.layer(3), &self.h1, &mut self.out, false);
        for (out, places) in self.out.chunks_exact_mut(HEADS).zip(inverse.chunks_exact(fields)) {
            for &place in places {
                let row = &rows[place as usize * dim..][..DIRECT];
                out.iter_mut().zip(row).for_each(|(out, w)| *out += w);
            }
        }
        &self.out
    }

    /// Computes the gradients of the rows (`dim` floats for each unique id) and of the layers above the products, for the samples
    /// that [`losses`](Self::losses) was called with last: the mean over the samples.
    pub fn back_above(
        &mut self,
        parameters: &[f32],
        rows: &[f32],
        inverse: &[u32],
        gradient: &mut Vec<f32>,
        d_rows: &mut Vec<f32>,
    ) {
        let shape = self.shape;
        gradient.clear();
        gradient.resize(parameters.len(), 0.0);
        d_rows.clear();
        d_rows.resize(rows.len(), 0.0);
        self.back(parameters, shape.layer(3), Through::Top, gradient);
        self.back(parameters, shape.layer(2), Through::Products, gradient);
        let (fields, dim) = (shape.fields, shape.dim);
        self.d_b.resize(self.b.len(), 0.0);
        products::backward(&self.b, rows, dim, inverse, &self.d_top, &mut self.d_b, d_rows);
        for (places, d_out) in inverse.chunks_exact(fields).zip(self.d_out.chunks_exact(HEADS)) {
            for &place in places {
                let d_row = &mut d_rows[place as usize * dim..][..DIRECT];
                d_row.iter_mut().zip(d_out).for_each(|(d, out)| *d += out);
            }
        }
    }

    /// Computes the gradients of the layers below the products, once [`back_above`](Self::back_above) has computed the others.
    pub fn back_below(&mut self, parameters: &[f32], dense: &[f32], gradient: &mut [f32]) {
        self.back(parameters, self.shape.layer(1), Through::Bottom, gradient);
        let below = self.shape.layer(0);
        let (dw, db) = below.weights_mut(gradient);
        backward_weights(dense, &self.d_h0, below.inputs, dw, db);
    }

    /// Computes the losses of the samples that [`above`](Self::above) was called with last, and their gradients by the corrections.
    /// `dispersion` is the charges' variance over their mean.
    pub fn losses(&mut self, batch: &Block, dispersion: f32) -> Losses {
        let mut losses = Losses::default();
        let scale = batch.scale();
        self.d_out.clear();
        for (i, out) in self.out.chunks_exact(HEADS).enumerate() {
            let weight = batch.weight[i];
            let (c, q) = (clamped(out[0]), clamped(out[1]));
            let mut slope = [0.0; HEADS];
            if batch.auction[i] && batch.predicted[i] > 0.0 {
                let expected = batch.predicted[i] * c.exp();
                losses.charge +=
                    f64::from(weight) * poisson(batch.charged[i].into(), expected.into()) / f64::from(dispersion);
                slope[0] = weight * scale * (expected - batch.charged[i]) / dispersion;
            }
            let logit = batch.logit[i] + q;
            let clicked = f32::from(batch.clicked[i]);
            losses.click += f64::from(weight) * logistic(clicked.into(), logit.into());
            slope[1] = weight * scale * (click_probability(logit) - clicked);
            losses.weight += f64::from(weight);
            let slopes = slope.iter().zip(out).zip([c, q]);
            self.d_out.extend(slopes.map(|((slope, raw), bounded)| clamped_slope(*slope, *raw, bounded)));
        }
        losses
    }

    /// Takes a gradient back through one layer: its weights' part is added to `d`, its inputs' part stays here.
    fn back(&mut self, parameters: &[f32], layer: Layer, through: Through, d: &mut [f32]) {
        let (x, dy, dx) = match through {
            Through::Top => (&self.h1, &self.d_out, &mut self.d_h1),
            Through::Products => (&self.top, &self.d_h1, &mut self.d_top),
            Through::Bottom => {
                // The rectifier behind the second layer.
                self.d_b.iter_mut().zip(&self.b).for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 });
                (&self.h0, &self.d_b, &mut self.d_h0)
            }
        };
        let (dw, db) = layer.weights_mut(d);
        backward_weights(x, dy, layer.inputs, dw, db);
        transpose(layer.weights(parameters).0, layer.outputs, &mut self.transposed);
        dx.resize(x.len(), 0.0);
        backward_inputs(dy, &self.transposed, layer.outputs, layer.inputs, dx);
        if !matches!(through, Through::Products) {
            // The rectifier below.
            dx.iter_mut().zip(x).for_each(|(d, x)| *d = if *x > 0.0 { *d } else { 0.0 });
        }
    }
}

/// Which layer a gradient goes back through.
#[derive(Debug, Clone, Copy)]
enum Through {
    Top,
    Products,
    Bottom,
}

fn layer(parameters: &[f32], layer: Layer, x: &[f32], y: &mut Vec<f32>, rectify: bool) {
    let (w, b) = layer.weights(parameters);
    y.resize(x.len() / layer.inputs * layer.outputs, 0.0);
    forward(x, w, b, layer.inputs, y);
    if rectify {
        y.iter_mut().for_each(|y| *y = y.max(0.0));
    }
}

/// A correction within its bounds.
pub fn clamped(correction: f32) -> f32 {
    crate::formulas::values::clamped(correction, MOST_CORRECTION)
}

#[cfg(test)]
#[path = "net/tests.rs"]
mod tests;
