//! Adam over one flat parameter tensor, with the gradient clipped by its global norm, and an exponential moving average of the
//! parameters.

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::formulas::shared::{AdamFactors, AdamParameter, adam, clip_factor};
use crate::policy::AdamState;

use super::transfer::{to_host, upload};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;

/// Arrays that a step of the optimiser changes, flat tensors of one length.
#[derive(Debug, Clone)]
pub struct Arrays<B: Backend> {
    pub params: Tensor<B, 1>,
    /// Moving average of the parameters: a target critic, an averaged actor.
    pub follower: Tensor<B, 1>,
    pub first: Tensor<B, 1>,
    pub second: Tensor<B, 1>,
}

/// A backend that does steps of [`adam`].
pub trait Optimise: Backend {
    /// Does a step; returns the gradient's norm before clipping, `[1]`, left on the device.
    fn step(at: &mut Arrays<Self>, gradient: Tensor<Self, 1>, step: AdamFactors) -> Tensor<Self, 1>;
}

impl Optimise for Flex {
    fn step(at: &mut Arrays<Self>, gradient: Tensor<Self, 1>, step: AdamFactors) -> Tensor<Self, 1> {
        let norm = (gradient.clone() * gradient.clone()).sum().sqrt();
        let factor = clip_factor(to_host(norm.clone())[0], step.clip);
        let device = gradient.device();
        // An array that nobody else holds is taken without a copy.
        let take = |array: &mut Tensor<Self, 1>| to_host(std::mem::replace(array, Tensor::empty([0], &device)));
        let Arrays { params, follower, first, second } = at;
        let mut numbers = [&mut *params, &mut *follower, &mut *first, &mut *second].map(take);
        let [p, f, m, v] = &mut numbers;
        for (i, g) in to_host(gradient).into_iter().enumerate() {
            let old = AdamParameter { param: p[i], follower: f[i], first: m[i], second: v[i] };
            let new = adam(g * factor, &old, &step);
            (p[i], f[i], m[i], v[i]) = (new.param, new.follower, new.first, new.second);
        }
        for (array, numbers) in [params, follower, first, second].into_iter().zip(numbers) {
            *array = upload(numbers, &device);
        }
        norm
    }
}

/// Parameters with their optimiser.
#[derive(Debug, Clone)]
pub struct Adam<B: Backend> {
    pub at: Arrays<B>,
    steps: i32,
    rates: Rates,
}

/// Hyperparameters that are constant over a run.
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

    /// Does one step with `factor` on the learning rate; returns the gradient's norm before clipping, `[1]`, left on the device.
    pub fn step(&mut self, gradient: Tensor<B, 1>, factor: f64) -> Tensor<B, 1> {
        self.steps += 1;
        let Rates { learning, clip, epsilon, follow } = self.rates;
        let [first, second] = [BETA1, BETA2].map(|decay| 1.0 - decay.powi(self.steps));
        let step = AdamFactors {
            clip: clip as f32,
            rate: (factor * learning / first) as f32,
            correction: second as f32,
            epsilon: epsilon as f32,
            follow: follow as f32,
            decay1: BETA1 as f32,
            fresh1: (1.0 - BETA1) as f32,
            decay2: BETA2 as f32,
            fresh2: (1.0 - BETA2) as f32,
        };
        B::step(&mut self.at, gradient, step)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> i32 {
        self.steps
    }

    /// Restores a state of the same number of parameters.
    pub fn restore(&mut self, params: &[f32], follower: &[f32], state: &AdamState) {
        let device = self.at.params.device();
        let upload = |values: &[f32]| upload(values.to_vec(), &device);
        let (first, second) = (upload(&state.first), upload(&state.second));
        self.at = Arrays { params: upload(params), follower: upload(follower), first, second };
        self.steps = state.steps;
    }
}
