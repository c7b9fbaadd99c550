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
//!
//! | file | what it is |
//! |---|---|
//! | [`shape`] | sizes, and where the layers lie |
//! | [`layer`] | a layer and its products |
//! | [`losses`] | losses of samples and their gradients by the corrections |
//! | [`above`] | products in pairs and the layers above them, for some of a batch's samples |

mod above;
mod layer;
mod losses;
mod shape;

use super::sample::Block;

use above::{Above, Gradients, Weights};
use layer::rectify;
use losses::losses;

pub use above::Embedded;
pub use losses::{Lesson, Losses, MOST_CORRECTION, clamped};
pub use shape::{HEADS, NetShape};

/// Shares of a batch whose gradients are summed apart: two threads compute them at once, or one computes them in turn, with the same bits.
const SHARES: usize = 2;
/// Samples of the first share, of so many in all. It is the larger one: where there are two cores, the thread of the second share has one of them
/// together with the row thread.
const FIRST: (usize, usize) = (2, 3);

/// A network at work: its sizes and the memory of a batch.
pub struct Net {
    shape: NetShape,
    /// Activations of the layers below and their gradients, by layer.
    h0: Vec<f32>,
    b: Vec<f32>,
    d_h0: Vec<f32>,
    d_b: Vec<f32>,
    /// Transposed weights of one or two layers.
    transposed: [Vec<f32>; 2],
    /// Corrections of the samples that [`forward`](Self::forward) was called with last.
    out: Vec<f32>,
    /// Gradients of their losses.
    slopes: Vec<f32>,
    above: [Above; SHARES],
    /// Gradients of the second share.
    spare: (Vec<f32>, Vec<f32>),
    /// A thread for each share.
    threads: Option<rayon::ThreadPool>,
}

impl Net {
    /// Makes a network of one thread.
    pub fn new(shape: NetShape) -> Self {
        Self {
            shape,
            h0: vec![],
            b: vec![],
            d_h0: vec![],
            d_b: vec![],
            transposed: [vec![], vec![]],
            out: vec![],
            slopes: vec![],
            above: std::array::from_fn(|_| Above::new(shape)),
            spare: (vec![], vec![]),
            threads: None,
        }
    }

    /// Makes a network that learns the two shares of a batch on a thread each. Where none are to be had, it learns on one.
    pub fn on_two_threads(shape: NetShape) -> Self {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(SHARES).thread_name(|_| "network".into());
        Self { threads: pool.build().ok(), ..Self::new(shape) }
    }

    /// Computes the corrections (c, q) of samples from their `dense` features.
    pub fn forward(&mut self, parameters: &[f32], dense: &[f32], embedded: Embedded) -> &[f32] {
        self.below(parameters, dense);
        self.out.resize(self.b.len() / self.shape.product() * HEADS, 0.0);
        let [above, _] = &mut self.above;
        above.forward(parameters, embedded, &self.b, &mut self.out);
        &self.out
    }

    /// Computes the losses of the samples that [`forward`](Self::forward) was called with last. `dispersion` is the charges' variance over their mean.
    pub fn losses(&mut self, batch: &Block, dispersion: f32) -> Losses {
        losses(&self.out, Lesson { batch, first: 0, dispersion }, &mut self.slopes)
    }

    /// Computes the layers below the products from the dense features, which need no rows.
    pub fn below(&mut self, parameters: &[f32], dense: &[f32]) {
        self.shape.layer(0).forward(parameters, dense, &mut self.h0, true);
        self.shape.layer(1).forward(parameters, &self.h0, &mut self.b, true);
    }

    /// Computes the losses of the batch that [`below`](Self::below) was called with last, and the gradients of its rows (`dim` floats for
    /// each unique id) and of the layers above the products: the mean over the samples.
    pub fn learn_above(
        &mut self,
        parameters: &[f32],
        embedded: Embedded,
        lesson: Lesson,
        gradient: &mut Vec<f32>,
        d_rows: &mut Vec<f32>,
    ) -> Losses {
        let shape = self.shape;
        self.d_b.resize(self.b.len(), 0.0);
        let [here, there] = &mut self.above;
        let (spare, spare_rows) = &mut self.spare;
        for gradient in [&mut *gradient, spare] {
            gradient.clear();
            gradient.resize(parameters.len(), 0.0);
        }
        for d_rows in [&mut *d_rows, spare_rows] {
            d_rows.clear();
            d_rows.resize(embedded.rows.len(), 0.0);
        }
        let layers = [shape.layer(2), shape.layer(3)];
        layers.iter().zip(&mut self.transposed).for_each(|(layer, to)| layer.transpose(parameters, to));
        let weights = Weights { parameters, transposed: self.transposed.each_ref().map(Vec::as_slice) };

        let samples = lesson.batch.len();
        let first = (samples * FIRST.0 / FIRST.1).next_multiple_of(above::TILES).min(samples);
        let (b, d_b) = (self.b.split_at(first * shape.product()), self.d_b.split_at_mut(first * shape.product()));
        let places = embedded.inverse.split_at(first * shape.fields);
        let mut first_share = || {
            let embedded = Embedded { inverse: places.0, ..embedded };
            here.learn(weights, embedded, lesson, b.0, Gradients { d_b: d_b.0, parameters: gradient, rows: d_rows })
        };
        let mut second_share = || {
            let embedded = Embedded { inverse: places.1, ..embedded };
            let lesson = Lesson { first: lesson.first + first, ..lesson };
            there.learn(weights, embedded, lesson, b.1, Gradients { d_b: d_b.1, parameters: spare, rows: spare_rows })
        };
        // The thread that has computed the first share computes the second one, too, if the other has not begun with it.
        let (mut sum, other) = match &self.threads {
            Some(pool) => pool.install(|| rayon::join(first_share, second_share)),
            None => (first_share(), second_share()),
        };

        gradient.iter_mut().zip(&*spare).for_each(|(d, other)| *d += other);
        d_rows.iter_mut().zip(&*spare_rows).for_each(|(d, other)| *d += other);
        sum.add(other);
        sum
    }

    /// Computes the gradients of the layers below the products, once [`learn_above`](Self::learn_above) has computed the others.
    pub fn back_below(&mut self, parameters: &[f32], dense: &[f32], gradient: &mut [f32]) {
        let (first, second) = (self.shape.layer(0), self.shape.layer(1));
        rectify(&mut self.d_b, &self.b);
        second.backward_weights(&self.h0, &self.d_b, gradient);
        let [transposed, _] = &mut self.transposed;
        second.transpose(parameters, transposed);
        self.d_h0.resize(self.h0.len(), 0.0);
        second.backward_inputs(&self.d_b, transposed, &mut self.d_h0);
        rectify(&mut self.d_h0, &self.h0);
        first.backward_weights(dense, &self.d_h0, gradient);
    }
}

#[cfg(test)]
#[path = "net/tests.rs"]
mod tests;
