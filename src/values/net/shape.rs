//! Sizes of a network, and where its layers lie among its parameters.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::sparse::table::DIRECT;
use crate::values::products;
use crate::values::sample::DENSE;

use super::layer::Layer;

/// Corrections that a network computes of a sample: of the charge and of the click.
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

    pub fn pairs(&self) -> usize {
        products::pairs(self.fields)
    }

    /// Names, inputs and outputs of the layers, in their order.
    pub fn layers(&self) -> [(&'static str, usize, usize); 4] {
        let (k, h) = (self.product(), self.hidden);
        [("below.0", DENSE, h), ("below.1", h, k), ("above.0", k + self.pairs(), h), ("above.1", h, HEADS)]
    }

    /// Where layer `number` lies.
    pub fn layer(&self, number: usize) -> Layer {
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
