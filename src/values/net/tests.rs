//! The written-out derivatives against finite differences, and what an untrained network does.

use rand::{RngExt as _, SeedableRng as _};

use rand_chacha::ChaCha8Rng;

use super::*;
use crate::sparse::table::DIRECT;
use crate::values::sample::{DENSE, Sample, Seen};

const SHAPE: NetShape = NetShape { fields: 3, dim: 5, hidden: 7 };

struct Scene {
    parameters: Vec<f32>,
    rows: Vec<f32>,
    inverse: Vec<u32>,
    batch: Block,
}

/// Samples that share rows, a field that meets itself, zero charges, a contract, an eCPM of 0, odd numbers of samples.
fn scene(seed: u64) -> Scene {
    scene_of(7, seed)
}

fn scene_of(n: usize, seed: u64) -> Scene {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let unique = 5;
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
    fn embedded(&self) -> Embedded<'_> {
        Embedded { rows: &self.rows, inverse: &self.inverse }
    }

    fn lesson(&self) -> Lesson<'_> {
        Lesson { batch: &self.batch, first: 0, dispersion: 1.7 }
    }

    /// Learns the batch: its losses, and the gradients of parameters and rows.
    fn learn(&self, net: &mut Net) -> (Losses, Vec<f32>, Vec<f32>) {
        let (mut gradient, mut d_rows) = (vec![], vec![]);
        net.below(&self.parameters, &self.batch.dense);
        let losses = net.learn_above(&self.parameters, self.embedded(), self.lesson(), &mut gradient, &mut d_rows);
        net.back_below(&self.parameters, &self.batch.dense, &mut gradient);
        (losses, gradient, d_rows)
    }

    /// The mean loss, and which rectifiers are open.
    fn loss(&self) -> (f64, Vec<bool>) {
        let mut net = Net::new(SHAPE);
        net.forward(&self.parameters, &self.batch.dense, self.embedded());
        let open = [&net.h0, &net.b, net.above[0].hidden()].into_iter().flatten().map(|y| *y > 0.0).collect();
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
        let (_, gradient, d_rows) = scene.learn(&mut Net::new(SHAPE));
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
        assert!(compared > (gradient.len() + d_rows.len()) / 2, "{compared}");
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
    let embedded = Embedded { rows: &rows, inverse: &scene.inverse };
    assert!(net.forward(&parameters, &scene.batch.dense, embedded).iter().all(|c| *c == 0.0));
}

/// One sample, fewer than a tile, whole tiles and chunks, and some more of each.
const SIZES: [usize; 8] = [1, 2, 23, 48, 49, 480, 1000, 1031];

#[test]
fn two_threads_learn_the_bits_of_one() {
    let (mut one, mut two) = (Net::new(SHAPE), Net::on_two_threads(SHAPE));
    assert!(two.threads.is_some());
    for (seed, n) in (0..).zip(SIZES) {
        let scene = scene_of(n, seed);
        assert_eq!(scene.learn(&mut one), scene.learn(&mut two), "{n} samples");
    }
}

/// Chunks and shares only change the order of sums: their losses are those of all samples at once.
#[test]
fn losses_of_a_batch_are_those_of_its_samples() {
    let mut net = Net::new(SHAPE);
    for (seed, n) in (0..).zip(SIZES) {
        let scene = scene_of(n, seed);
        let (learned, ..) = scene.learn(&mut net);
        let corrections = net.forward(&scene.parameters, &scene.batch.dense, scene.embedded()).to_vec();
        let losses = net.losses(&scene.batch, 1.7);
        for (a, b) in [(learned.charge, losses.charge), (learned.click, losses.click), (learned.weight, losses.weight)]
        {
            assert!((a - b).abs() <= 1e-9 * b.abs(), "{n} samples: {a}, {b}");
        }
        for i in 0..n {
            let dense = &scene.batch.dense[i * DENSE..][..DENSE];
            let embedded = Embedded { rows: &scene.rows, inverse: &scene.inverse[i * SHAPE.fields..][..SHAPE.fields] };
            assert_eq!(
                Net::new(SHAPE).forward(&scene.parameters, dense, embedded),
                &corrections[i * HEADS..][..HEADS],
                "{i} of {n}"
            );
        }
    }
}

/// The gradient of a batch in which each sample stands twice is that of the batch, whichever share and chunk they are in.
#[test]
fn a_batch_twice_has_the_gradient_of_once() {
    let mut net = Net::new(SHAPE);
    for (seed, n) in (0..).zip(SIZES) {
        let once = scene_of(n, seed);
        let mut twice = scene_of(n, seed);
        twice.inverse.extend_from_within(..);
        twice.batch.dense.extend_from_within(..);
        for of in
            [&mut twice.batch.predicted, &mut twice.batch.charged, &mut twice.batch.logit, &mut twice.batch.weight]
        {
            of.extend_from_within(..);
        }
        for of in [&mut twice.batch.auction, &mut twice.batch.clicked] {
            of.extend_from_within(..);
        }
        let (_, gradient, d_rows) = once.learn(&mut net);
        let (_, gradient_2, d_rows_2) = twice.learn(&mut net);
        for (a, b) in gradient.iter().chain(&d_rows).zip(gradient_2.iter().chain(&d_rows_2)) {
            assert!((a - b).abs() <= 1e-4 + 1e-3 * b.abs(), "{n} samples: {a}, {b}");
        }
    }
}
