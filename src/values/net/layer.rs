//! A fully connected layer: where its weights lie among the parameters of a network, and its products.

use crate::values::linear;

/// Where a layer lies among the parameters, and its sizes.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    pub at: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl Layer {
    fn len(self) -> usize {
        (self.inputs + 1) * self.outputs
    }

    fn weights(self, parameters: &[f32]) -> (&[f32], &[f32]) {
        parameters[self.at..self.at + self.len()].split_at(self.inputs * self.outputs)
    }

    pub fn weights_mut(self, parameters: &mut [f32]) -> (&mut [f32], &mut [f32]) {
        parameters[self.at..self.at + self.len()].split_at_mut(self.inputs * self.outputs)
    }

    /// Computes the outputs of samples, rectified where that is asked for.
    pub fn forward(self, parameters: &[f32], x: &[f32], y: &mut Vec<f32>, rectified: bool) {
        y.resize(x.len() / self.inputs * self.outputs, 0.0);
        self.forward_to(parameters, x, y);
        if rectified {
            y.iter_mut().for_each(|y| *y = y.max(0.0));
        }
    }

    /// Writes the outputs of samples.
    pub fn forward_to(self, parameters: &[f32], x: &[f32], y: &mut [f32]) {
        let (w, b) = self.weights(parameters);
        linear::forward(x, w, b, self.inputs, y);
    }

    /// Writes the transpose of the weights.
    pub fn transpose(self, parameters: &[f32], out: &mut Vec<f32>) {
        linear::transpose(self.weights(parameters).0, self.outputs, out);
    }

    /// Adds the gradient of the parameters to `gradient`, which is as long as all parameters.
    pub fn backward_weights(self, x: &[f32], dy: &[f32], gradient: &mut [f32]) {
        let (dw, db) = self.weights_mut(gradient);
        linear::backward_weights(x, dy, self.inputs, dw, db);
    }

    /// Writes the gradient of the inputs; `transposed` is the transpose of the weights.
    pub fn backward_inputs(self, dy: &[f32], transposed: &[f32], dx: &mut [f32]) {
        linear::backward_inputs(dy, transposed, self.outputs, self.inputs, dx);
    }
}

/// Takes the gradient of rectified numbers back through the rectifier: what it closed has none.
pub fn rectify(d: &mut [f32], rectified: &[f32]) {
    d.iter_mut().zip(rectified).for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 });
}
