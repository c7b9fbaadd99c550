//! The optimiser of the value network.

use crate::formulas::shared::{AdamFactors, AdamParameter, adam};

const BETAS: [f32; 2] = [0.9, 0.999];

/// Adam for the network's parameters.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Adam {
    pub steps: u64,
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

impl Adam {
    pub fn new(parameters: usize) -> Self {
        Self { steps: 0, first: vec![0.0; parameters], second: vec![0.0; parameters] }
    }

    /// One step along a gradient.
    pub fn step(&mut self, rate: f32, parameters: &mut [f32], gradient: &[f32]) {
        let by = self.next(rate);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((w, g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
            let old = AdamParameter { param: *w, follower: *w, first: *m, second: *v };
            let new = adam(*g, &old, &by);
            (*w, *m, *v) = (new.param, new.first, new.second);
        }
    }

    /// Counts another step and returns its constants.
    pub fn next(&mut self, rate: f32) -> AdamFactors {
        self.steps += 1;
        let steps = self.steps.min(1 << 24) as i32;
        AdamFactors {
            clip: f32::MAX,
            rate: rate / (1.0 - BETAS[0].powi(steps)),
            correction: 1.0 - BETAS[1].powi(steps),
            epsilon: 1e-8,
            follow: 0.0,
            decay1: BETAS[0],
            fresh1: 1.0 - BETAS[0],
            decay2: BETAS[1],
            fresh2: 1.0 - BETAS[1],
        }
    }
}
