//! Adam over one flat parameter tensor, with the gradient clipped by its global norm, and a copy that follows slowly.

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::run::snapshot::AdamState;

use super::networks::{to_host, upload};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;

/// What a step of the optimiser changes, flat tensors of one length.
#[derive(Debug, Clone)]
pub struct Arrays<B: Backend> {
    pub params: Tensor<B, 1>,
    /// Moves towards the parameters after each step: a target critic, an averaged actor.
    pub follower: Tensor<B, 1>,
    pub first: Tensor<B, 1>,
    pub second: Tensor<B, 1>,
}

/// How a step is done, corrections for the number of steps in it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The gradient's norm is at most this.
    pub clip: f64,
    /// Learning rate over the correction of the first moment.
    pub rate: f64,
    /// Correction of the second moment.
    pub correction: f64,
    pub epsilon: f64,
    /// Share of its way that the follower goes.
    pub follow: f64,
}

impl Step {
    /// Decay of the first and the second moment.
    pub const DECAY: [f64; 2] = [BETA1, BETA2];
}

/// A backend that takes steps of Adam (Kingma and Ba 2015).
pub trait Optimise: Backend {
    /// What a step makes of the arrays, and the gradient's norm before clipping, `[1]`, left on the device.
    fn step(at: &Arrays<Self>, gradient: Tensor<Self, 1>, step: Step) -> (Arrays<Self>, Tensor<Self, 1>) {
        let norm = (gradient.clone() * gradient.clone()).sum().sqrt();
        let factor = (norm.clone() + 1e-12).recip().mul_scalar(step.clip).clamp_max(1.0);
        let gradient = gradient * factor;
        let first = at.first.clone().mul_scalar(BETA1) + gradient.clone().mul_scalar(1.0 - BETA1);
        let second = at.second.clone().mul_scalar(BETA2) + (gradient.clone() * gradient).mul_scalar(1.0 - BETA2);
        let spread = second.clone().div_scalar(step.correction).sqrt().add_scalar(step.epsilon);
        let params = at.params.clone() - first.clone().mul_scalar(step.rate) / spread;
        let follower = at.follower.clone() + (params.clone() - at.follower.clone()).mul_scalar(step.follow);
        (Arrays { params, follower, first, second }, norm)
    }
}

impl Optimise for Flex {}

/// Parameters with their optimiser.
#[derive(Debug, Clone)]
pub struct Adam<B: Backend> {
    pub at: Arrays<B>,
    steps: i32,
    rates: Rates,
}

/// What stays the same over a run.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub learning: f64,
    pub clip: f64,
    pub epsilon: f64,
    pub follow: f64,
}

impl<B: Optimise> Adam<B> {
    pub fn new(params: &[f32], rates: Rates, device: &B::Device) -> Self {
        let (params, follower) = (upload(params.to_vec(), device), upload(params.to_vec(), device));
        let zeros = || Tensor::zeros(params.shape(), device);
        let (first, second) = (zeros(), zeros());
        Self { at: Arrays { params, follower, first, second }, steps: 0, rates }
    }

    /// One step with `factor` on the learning rate; the gradient's norm before clipping, `[1]`, left on the device.
    pub fn step(&mut self, gradient: Tensor<B, 1>, factor: f64) -> Tensor<B, 1> {
        self.steps += 1;
        let Rates { learning, clip, epsilon, follow } = self.rates;
        let [first, second] = Step::DECAY.map(|decay| 1.0 - decay.powi(self.steps));
        let step = Step { clip, rate: factor * learning / first, correction: second, epsilon, follow };
        let (at, norm) = B::step(&self.at, gradient, step);
        self.at = at;
        norm
    }

    /// The moments and the count of steps, on the host.
    pub fn state(&self) -> AdamState {
        let Arrays { first, second, .. } = &self.at;
        AdamState { first: to_host(first.clone()), second: to_host(second.clone()), steps: self.steps }
    }

    /// Goes on from a state for as many parameters.
    pub fn restore(&mut self, params: &[f32], follower: &[f32], state: &AdamState) {
        let device = self.at.params.device();
        let upload = |values: &[f32]| upload(values.to_vec(), &device);
        let (first, second) = (upload(&state.first), upload(&state.second));
        self.at = Arrays { params: upload(params), follower: upload(follower), first, second };
        self.steps = state.steps;
    }
}
