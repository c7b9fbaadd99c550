//! The part of the network that needs rows: products in pairs and the layers above them, with their gradients.
//!
//! Samples go through it a chunk at a time, forward and back, so that what is kept of them stays in a core's own cache.

use crate::sparse::table::DIRECT;
use crate::values::products;

use super::layer::rectify;
use super::losses::{Lesson, Losses, losses};
use super::shape::{HEADS, NetShape};

/// Samples that fill the tiles of products on every processor.
pub const TILES: usize = 24;
/// Samples that go through the layers together.
const CHUNK: usize = 10 * TILES;

/// Rows of the unique ids of a batch, and the place of each sample's `fields` ids among them.
#[derive(Debug, Clone, Copy)]
pub struct Embedded<'a> {
    pub rows: &'a [f32],
    pub inverse: &'a [u32],
}

/// Parameters, and the transposed weights of the two layers above the products.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    pub parameters: &'a [f32],
    pub transposed: [&'a [f32]; 2],
}

/// Where gradients go: those of the samples' dense vectors are written, the others are added.
pub struct Gradients<'a> {
    pub d_b: &'a mut [f32],
    pub parameters: &'a mut [f32],
    pub rows: &'a mut [f32],
}

/// Memory for a chunk of samples.
pub struct Above {
    shape: NetShape,
    /// Activations and their gradients, by layer.
    top: Vec<f32>,
    h1: Vec<f32>,
    out: Vec<f32>,
    d_top: Vec<f32>,
    d_h1: Vec<f32>,
    d_out: Vec<f32>,
}

impl Above {
    pub fn new(shape: NetShape) -> Self {
        Self { shape, top: vec![], h1: vec![], out: vec![], d_top: vec![], d_h1: vec![], d_out: vec![] }
    }

    #[cfg(test)]
    pub fn hidden(&self) -> &Vec<f32> {
        &self.h1
    }

    /// Writes the corrections of samples with the dense vectors `b`.
    pub fn forward(&mut self, parameters: &[f32], embedded: Embedded, b: &[f32], out: &mut [f32]) {
        let NetShape { fields, .. } = self.shape;
        let chunks = b.chunks(CHUNK * self.shape.product()).zip(embedded.inverse.chunks(CHUNK * fields));
        for ((b, inverse), out) in chunks.zip(out.chunks_mut(CHUNK * HEADS)) {
            self.forward_chunk(parameters, Embedded { inverse, ..embedded }, b, out);
        }
    }

    /// Computes the losses of samples with the dense vectors `b`, and their gradients.
    pub fn learn(&mut self, weights: Weights, embedded: Embedded, lesson: Lesson, b: &[f32], to: Gradients) -> Losses {
        let (k, fields) = (self.shape.product(), self.shape.fields);
        let (first, second) = (self.shape.layer(2), self.shape.layer(3));
        let mut sum = Losses::default();
        let mut out = std::mem::take(&mut self.out);
        let chunks = b.chunks(CHUNK * k).zip(to.d_b.chunks_mut(CHUNK * k)).zip(embedded.inverse.chunks(CHUNK * fields));
        for (chunk, ((b, d_b), inverse)) in chunks.enumerate() {
            let embedded = Embedded { inverse, ..embedded };
            out.resize(b.len() / k * HEADS, 0.0);
            self.forward_chunk(weights.parameters, embedded, b, &mut out);
            let lesson = Lesson { first: lesson.first + chunk * CHUNK, ..lesson };
            sum.add(losses(&out, lesson, &mut self.d_out));

            second.backward_weights(&self.h1, &self.d_out, to.parameters);
            self.d_h1.resize(self.h1.len(), 0.0);
            second.backward_inputs(&self.d_out, weights.transposed[1], &mut self.d_h1);
            rectify(&mut self.d_h1, &self.h1);
            first.backward_weights(&self.top, &self.d_h1, to.parameters);
            self.d_top.resize(self.top.len(), 0.0);
            first.backward_inputs(&self.d_h1, weights.transposed[0], &mut self.d_top);
            products::backward(b, embedded.rows, self.shape.dim, inverse, &self.d_top, d_b, to.rows);
            for (places, d_out) in inverse.chunks_exact(fields).zip(self.d_out.chunks_exact(HEADS)) {
                for &place in places {
                    let d_row = &mut to.rows[place as usize * self.shape.dim..][..DIRECT];
                    d_row.iter_mut().zip(d_out).for_each(|(d, out)| *d += out);
                }
            }
        }
        self.out = out;
        sum
    }

    fn forward_chunk(&mut self, parameters: &[f32], embedded: Embedded, b: &[f32], out: &mut [f32]) {
        let NetShape { fields, dim, .. } = self.shape;
        let (first, second) = (self.shape.layer(2), self.shape.layer(3));
        self.top.resize(b.len() / self.shape.product() * first.inputs, 0.0);
        products::forward(b, embedded.rows, dim, embedded.inverse, fields, &mut self.top);
        first.forward(parameters, &self.top, &mut self.h1, true);
        second.forward_to(parameters, &self.h1, out);
        for (out, places) in out.chunks_exact_mut(HEADS).zip(embedded.inverse.chunks_exact(fields)) {
            for &place in places {
                let row = &embedded.rows[place as usize * dim..][..DIRECT];
                out.iter_mut().zip(row).for_each(|(out, w)| *out += w);
            }
        }
    }
}
