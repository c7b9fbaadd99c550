//! The optimiser of the value network.

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
        const B1: f32 = 0.9;
        const B2: f32 = 0.999;
        self.steps += 1;
        let steps = self.steps.min(1 << 24) as i32;
        let (c1, c2) = (1.0 / (1.0 - B1.powi(steps)), 1.0 / (1.0 - B2.powi(steps)));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((w, g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *m = B1 * *m + (1.0 - B1) * g;
            *v = B2 * *v + (1.0 - B2) * g * g;
            *w -= rate * (*m * c1) / ((*v * c2).sqrt() + 1e-8);
        }
    }
}
