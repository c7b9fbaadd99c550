//! This file defines what is measured: the sizes of table, batch and network, and batches of ids that are drawn by the exact discrete
//! Zipf law.

use std::path::PathBuf;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::gpu::Device;
use crate::rank::device::DeviceShape;
use crate::rank::rows::slots;
use crate::run::value_snapshot::ValueState;
use crate::settings::RowOptimizer;
use crate::sparse::TableShape;
use crate::sparse::table::DIRECT;
use crate::values::Block;
use crate::values::net::NetShape;
use crate::values::sample::{DENSE, Sample, Seen};

const HIDDEN: usize = 64;
/// Variance of the charges over their mean.
pub(super) const DISPERSION: f32 = 1.5;
pub(super) const NET_RATE: f32 = 1e-3;
pub(super) const ROW_RATE: f32 = 0.05;

/// What to measure.
#[derive(Debug, Clone)]
pub struct TableBench {
    pub rows: usize,
    pub batch: usize,
    /// Different batches, which are made beforehand and come again in turn.
    pub batches: usize,
    pub fields: usize,
    /// Floats of a row that take part in products; each head has one more.
    pub dim: usize,
    pub zipf: f64,
    pub optimizer: RowOptimizer,
    /// Rows of the cache; 0 = none.
    pub cache_rows: usize,
    pub prefetch: usize,
    pub device: Device,
    /// Arenas of the cache; on GPUs each on a device of its own, from `device` on.
    pub devices: usize,
    /// Whether a GPU computes from rows and parameters that the host has, as each of several ranks does.
    pub host_rows: bool,
    /// How long each form is measured, in each round where forms take turns.
    pub seconds: f64,
    /// Rounds in which flat table and cache take turns.
    pub rounds: usize,
    /// Accesses whose hits are counted, after three times as many; 0 = none.
    pub accesses: usize,
    /// Where the rows are written before anything learns.
    pub dump: Option<PathBuf>,
}

impl TableBench {
    /// Updates on the CPU, without a cache, of `batch` samples with `fields` ids each, by Zipf's law among `rows`. Nothing is timed.
    /// For tests, and public for those in `tests/cuda` and `tests/wgpu`.
    #[doc(hidden)]
    pub fn of_updates(rows: usize, [batch, fields, dim]: [usize; 3], optimizer: RowOptimizer) -> Self {
        Self {
            rows,
            batch,
            batches: 0,
            fields,
            dim,
            zipf: 1.05,
            optimizer,
            cache_rows: 0,
            prefetch: 1,
            device: Device::Cpu,
            devices: 1,
            host_rows: false,
            seconds: 0.0,
            rounds: 0,
            accesses: 0,
            dump: None,
        }
    }
}

pub fn table_shape(bench: &TableBench) -> TableShape {
    TableShape { dim: bench.dim + DIRECT, optimizer: bench.optimizer, max_rows: bench.rows, seed: 1, marks: false }
}

pub(super) fn net_shape(bench: &TableBench, shape: TableShape) -> NetShape {
    NetShape { fields: bench.fields, dim: shape.dim, hidden: HIDDEN }
}

pub(super) fn first_state(bench: &TableBench, shape: TableShape) -> ValueState {
    ValueState::new(1, net_shape(bench, shape).first_parameters(&mut ChaCha8Rng::seed_from_u64(2)))
}

/// What the benchmark needs of its GPUs.
pub fn device_shape(bench: &TableBench, shape: TableShape) -> DeviceShape {
    let rows = if bench.cache_rows > 0 { bench.cache_rows } else { bench.rows };
    DeviceShape {
        net: net_shape(bench, shape),
        table: shape,
        rows,
        slots: slots(bench.prefetch),
        dispersion: DISPERSION,
    }
}

/// Draws ranks 0.. by the exact Zipf law, by inverse transform.
pub(super) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    pub(super) fn new(n: usize, power: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=n).map(|i| {
            sum += (i as f64).powf(-power);
            sum
        });
        Self { cumulative: cumulative.collect() }
    }

    pub(super) fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        let whole = self.cumulative[self.cumulative.len() - 1];
        let u = rng.random::<f64>() * whole;
        self.cumulative.partition_point(|c| *c <= u).min(self.cumulative.len() - 1)
    }
}

pub(super) fn block(bench: &TableBench, zipf: &Zipf, scattered: &[u64], rng: &mut ChaCha8Rng) -> Block {
    let mut block = Block::default();
    for _ in 0..bench.batch {
        let ids: Vec<u64> = (0..bench.fields).map(|_| scattered[zipf.draw(rng)]).collect();
        let seen = Seen {
            dense: std::array::from_fn::<f32, DENSE, _>(|_| rng.random_range(-1.5..1.5)),
            charge: 1.0,
            logit: -4.0,
        };
        let clicked = rng.random::<f64>() < 0.02;
        let sample = Sample { seen, auction: true, charged: rng.random::<f32>(), clicked, weight: 1.0 };
        block.push(&sample, &ids, 1.0);
    }
    block
}
