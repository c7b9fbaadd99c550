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
//! | [`layer`] | a layer's place among the parameters, and its products |
//! | [`above`] | products in pairs and the layers above them, for some of a batch's samples |

mod above;
mod layer;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::sparse::table::DIRECT;

use super::products;
use super::sample::{Block, DENSE};

use above::{Above, Gradients, Weights};
pub use above::{Embedded, Lesson};
use layer::{Layer, rectify};

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
    above: [Above; SHARES],
    /// Gradients of the second share.
    spare: (Vec<f32>, Vec<f32>),
    /// A thread for the second share.
    beside: Option<rayon::ThreadPool>,
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
            above: std::array::from_fn(|_| Above::new(shape)),
            spare: (vec![], vec![]),
            beside: None,
        }
    }

    /// Makes a network that learns the second share of each batch on a thread of its own. Where none is to be had, it learns on one.
    pub fn on_two_threads(shape: NetShape) -> Self {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(SHARES - 1).thread_name(|_| "network".into());
        Self { beside: pool.build().ok(), ..Self::new(shape) }
    }

    /// Computes the corrections (c, q) of samples from their `dense` features.
    pub fn forward(&mut self, parameters: &[f32], dense: &[f32], of: Embedded) -> &[f32] {
        self.below(parameters, dense);
        self.out.resize(self.b.len() / self.shape.product() * HEADS, 0.0);
        let [above, _] = &mut self.above;
        above.forward(parameters, of, &self.b, &mut self.out);
        &self.out
    }

    /// Computes the losses of the samples that [`forward`](Self::forward) was called with last. `dispersion` is the charges' variance over their mean.
    pub fn losses(&mut self, batch: &Block, dispersion: f32) -> Losses {
        let [above, _] = &mut self.above;
        above.losses(&self.out, Lesson { batch, first: 0, dispersion })
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
        of: Embedded,
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
            d_rows.resize(of.rows.len(), 0.0);
        }
        let layers = [shape.layer(2), shape.layer(3)];
        layers.iter().zip(&mut self.transposed).for_each(|(layer, to)| layer.transpose(parameters, to));
        let weights = Weights { parameters, transposed: self.transposed.each_ref().map(Vec::as_slice) };

        let samples = lesson.batch.len();
        let first = (samples * FIRST.0 / FIRST.1).next_multiple_of(above::TILES).min(samples);
        let (b, d_b) = (self.b.split_at(first * shape.product()), self.d_b.split_at_mut(first * shape.product()));
        let places = of.inverse.split_at(first * shape.fields);
        let mut first_share = || {
            let of = Embedded { inverse: places.0, ..of };
            here.learn(weights, of, lesson, b.0, Gradients { d_b: d_b.0, parameters: gradient, rows: d_rows })
        };
        let mut second_share = || {
            let of = Embedded { inverse: places.1, ..of };
            let lesson = Lesson { first: lesson.first + first, ..lesson };
            there.learn(weights, of, lesson, b.1, Gradients { d_b: d_b.1, parameters: spare, rows: spare_rows })
        };
        let mut losses = [Losses::default(); SHARES];
        match &self.beside {
            Some(pool) => {
                let [of_first, of_second] = &mut losses;
                pool.in_place_scope(|scope| {
                    scope.spawn(|_| *of_second = second_share());
                    *of_first = first_share();
                });
            }
            None => losses = [first_share(), second_share()],
        }

        gradient.iter_mut().zip(&*spare).for_each(|(d, other)| *d += other);
        d_rows.iter_mut().zip(&*spare_rows).for_each(|(d, other)| *d += other);
        let [mut sum, other] = losses;
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

/// A correction within its bounds.
pub fn clamped(correction: f32) -> f32 {
    crate::formulas::values::clamped(correction, MOST_CORRECTION)
}

#[cfg(test)]
#[path = "net/tests.rs"]
mod tests;
