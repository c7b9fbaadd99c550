//! The written-out derivatives against finite differences, and what an untrained network does.

use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::values::sample::{Sample, Seen};

const SHAPE: NetShape = NetShape { fields: 3, dim: 5, hidden: 7 };

struct Scene {
    parameters: Vec<f32>,
    rows: Vec<f32>,
    inverse: Vec<u32>,
    batch: Block,
}

/// Samples that share rows, a field that meets itself, zero charges, a contract, an eCPM of 0, odd numbers of samples.
fn scene(seed: u64) -> Scene {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (n, unique) = (7, 5);
    let mut batch = Block::default();
    for i in 0..n {
        let seen = Seen {
            dense: std::array::from_fn(|_| rng.random_range(-1.0..1.0)),
            charge: if i == 3 { 0.0 } else { rng.random_range(0.5..3.0) },
            logit: rng.random_range(-3.0..0.0),
        };
        let charged = if i % 2 == 0 { 0.0 } else { rng.random_range(0.0..4.0) };
        let sample = Sample { seen, auction: i != 5, charged, clicked: i % 3 == 0, weight: 1.0 + i as f32 };
        batch.push(&sample, &[0; 3], 10.0);
    }
    let mut parameters = SHAPE.first_parameters(&mut rng);
    parameters.iter_mut().for_each(|w| *w += rng.random_range(-0.2..0.2));
    Scene {
        parameters,
        rows: (0..unique * SHAPE.dim).map(|_| rng.random_range(-0.4..0.4)).collect(),
        inverse: (0..n * SHAPE.fields).map(|_| rng.random_range(0..unique as u32)).collect(),
        batch,
    }
}

impl Scene {
    /// The mean loss, and which rectifiers are open.
    fn loss(&self) -> (f64, Vec<bool>) {
        let mut net = Net::new(SHAPE);
        net.forward(&self.parameters, &self.batch.dense, &self.rows, &self.inverse);
        let open = [&net.h0, &net.b, &net.h1].into_iter().flatten().map(|y| *y > 0.0).collect();
        (net.losses(&self.batch, 1.7).total() / self.batch.len() as f64, open)
    }

    /// The derivative by one number; `None` where a rectifier switches within the step, as there is none then.
    fn derivative(&mut self, number: impl Fn(&mut Self) -> &mut f32) -> Option<f64> {
        const STEP: f32 = 2e-3;
        let at = *number(self);
        *number(self) = at + STEP;
        let (up, open) = self.loss();
        *number(self) = at - STEP;
        let (down, same) = self.loss();
        *number(self) = at;
        (open == same).then(|| (up - down) / f64::from(2.0 * STEP))
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for seed in 0..5 {
        let mut scene = scene(seed);
        let (mut gradient, mut d_rows) = (vec![], vec![]);
        let (parameters, rows) = (scene.parameters.clone(), scene.rows.clone());
        let mut net = Net::new(SHAPE);
        net.forward(&parameters, &scene.batch.dense, &rows, &scene.inverse);
        net.losses(&scene.batch, 1.7);
        net.back_above(&parameters, &rows, &scene.inverse, &mut gradient, &mut d_rows);
        net.back_below(&parameters, &scene.batch.dense, &mut gradient);
        let mut compared = 0;
        let mut compare = |analytic: f32, numeric: Option<f64>, what: &str| {
            let Some(numeric) = numeric else { return };
            let error = (f64::from(analytic) - numeric).abs();
            assert!(error < 1e-3 + 1e-2 * numeric.abs(), "seed {seed}: {what}: {analytic} against {numeric}");
            compared += 1;
        };
        for (i, analytic) in gradient.iter().enumerate() {
            let numeric = scene.derivative(|s| &mut s.parameters[i]);
            compare(*analytic, numeric, &format!("parameter {i}"));
        }
        for (i, analytic) in d_rows.iter().enumerate() {
            let numeric = scene.derivative(|s| &mut s.rows[i]);
            compare(*analytic, numeric, &format!("row element {i}"));
        }
        assert!(compared > (parameters.len() + rows.len()) / 2, "{compared}");
    }
}

#[test]
fn a_network_that_has_learned_nothing_corrects_nothing() {
    let scene = scene(1);
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let parameters = SHAPE.first_parameters(&mut rng);
    let mut rows = scene.rows.clone();
    rows.chunks_mut(SHAPE.dim).for_each(|row| row[..DIRECT].fill(0.0));
    let mut net = Net::new(SHAPE);
    assert!(net.forward(&parameters, &scene.batch.dense, &rows, &scene.inverse).iter().all(|c| *c == 0.0));
}
