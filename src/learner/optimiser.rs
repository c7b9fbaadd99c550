//! Adam over one flat parameter tensor, with the gradient clipped by its global norm.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use crate::run::snapshot::AdamState;

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;

/// Adam (Kingma and Ba 2015) for one flat tensor.
#[derive(Debug, Clone)]
pub struct Adam<B: Backend> {
    first: Tensor<B, 1>,
    second: Tensor<B, 1>,
    steps: i32,
    epsilon: f64,
    clip: f64,
}

impl<B: Backend> Adam<B> {
    pub fn new(len: usize, epsilon: f64, clip: f64, device: &B::Device) -> Self {
        Self { first: Tensor::zeros([len], device), second: Tensor::zeros([len], device), steps: 0, epsilon, clip }
    }

    /// The moments and the count of steps, on the host.
    pub fn state(&self) -> AdamState {
        let host = |t: &Tensor<B, 1>| t.clone().into_data().into_vec().expect("optimisers compute in f32");
        AdamState { first: host(&self.first), second: host(&self.second), steps: self.steps }
    }

    /// Goes on from a state for as many parameters.
    pub fn restore(&mut self, state: &AdamState) {
        let device = self.first.device();
        let upload = |m: &[f32]| Tensor::from_data(TensorData::new(m.to_vec(), [m.len()]), &device);
        self.first = upload(&state.first);
        self.second = upload(&state.second);
        self.steps = state.steps;
    }

    /// One step; returns the new parameters and the gradient's norm before clipping, `[1]`, left on the device.
    pub fn step(&mut self, params: Tensor<B, 1>, gradient: Tensor<B, 1>, rate: f64) -> (Tensor<B, 1>, Tensor<B, 1>) {
        self.steps += 1;
        let norm = (gradient.clone() * gradient.clone()).sum().sqrt();
        let factor = (norm.clone() + 1e-12).recip().mul_scalar(self.clip).clamp_max(1.0);
        let gradient = gradient * factor;
        self.first = self.first.clone().mul_scalar(BETA1) + gradient.clone().mul_scalar(1.0 - BETA1);
        self.second = self.second.clone().mul_scalar(BETA2) + (gradient.clone() * gradient).mul_scalar(1.0 - BETA2);
        let correct1 = 1.0 - BETA1.powi(self.steps);
        let correct2 = 1.0 - BETA2.powi(self.steps);
        let spread = self.second.clone().div_scalar(correct2).sqrt().add_scalar(self.epsilon);
        (params - self.first.clone().mul_scalar(rate / correct1) / spread, norm)
    }
}
