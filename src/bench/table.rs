//! The value model's updates on one core, and how fast rows are found: ids by the exact discrete Zipf law.
//!
//! One update is what training does with a block: unique ids, their rows, network forward and backward, the rows' optimiser, Adam. Blocks
//! are made beforehand, the table is full before the clock starts.

use std::fmt;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::rank::store::Store;
use crate::settings::{RowOptimizer, ValueSettings};
use crate::sparse::table::DIRECT;
use crate::sparse::{Counters, HostTable, Lookup, TableShape};
use crate::values::Block;
use crate::values::net::{Adam, Gradients, Net, NetShape};
use crate::values::sample::{DENSE, Sample, Seen};

const BATCHES: usize = 64;

/// What to measure.
#[derive(Debug, Clone)]
pub struct TableBench {
    pub rows: usize,
    pub batch: usize,
    pub fields: usize,
    /// Floats of a row that take part in products; each head has one more.
    pub dim: usize,
    pub zipf: f64,
    pub optimizer: RowOptimizer,
    /// Rows of the cache; 0 = none.
    pub cache_rows: usize,
    pub prefetch: usize,
    pub seconds: f64,
}

/// Figures of one run of the benchmark, on one thread.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TableReport {
    pub rows: usize,
    pub batch: usize,
    pub fields: usize,
    pub dim: usize,
    pub zipf: f64,
    pub updates_per_s: f64,
    pub samples_per_s: f64,
    /// Unique ids of a batch over all of its ids.
    pub unique_share: f64,
    /// Rows found and copied per second, at the same law and uniform.
    pub lookups_per_s: f64,
    pub uniform_lookups_per_s: f64,
    pub table_bytes: u64,
    pub cache: Option<Counters>,
    /// Rows asked for that were resident before their batch's prefetch was issued, over all.
    pub hit_share: Option<f64>,
}

impl fmt::Display for TableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table: {:.0} samples/s ({:.1} updates/s of {} x {} ids of {} floats, {} rows, Zipf {}); {:.2} of the ids unique; lookups \
             {:.1} M/s, uniform {:.1} M/s; table {:.0} MB",
            self.samples_per_s,
            self.updates_per_s,
            self.batch,
            self.fields,
            self.dim,
            self.rows,
            self.zipf,
            self.unique_share,
            self.lookups_per_s * 1e-6,
            self.uniform_lookups_per_s * 1e-6,
            self.table_bytes as f64 * 1e-6
        )?;
        match self.hit_share {
            Some(share) => write!(f, "; of unique rows {share:.3} resident"),
            None => Ok(()),
        }
    }
}

/// Draws ranks 0.. by the exact Zipf law, by inverse transform.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(n: usize, power: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=n).map(|i| {
            sum += (i as f64).powf(-power);
            sum
        });
        Self { cumulative: cumulative.collect() }
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> usize {
        let whole = self.cumulative[self.cumulative.len() - 1];
        let u = rng.random::<f64>() * whole;
        self.cumulative.partition_point(|c| *c <= u).min(self.cumulative.len() - 1)
    }
}

/// Runs the benchmark.
///
/// # Errors
/// No memory for the table, or a cache smaller than a batch.
pub fn run_table(bench: &TableBench) -> anyhow::Result<TableReport> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let shape = TableShape { dim: bench.dim + DIRECT, optimizer: bench.optimizer, max_rows: bench.rows, seed: 1 };
    let mut table = HostTable::private(shape)?;
    // Popular ids stand anywhere in the table.
    let mut scattered: Vec<u64> = (0..bench.rows as u64).collect();
    scattered.shuffle(&mut rng);
    for id in 0..bench.rows as u64 {
        anyhow::ensure!(table.find_or_insert(id).is_some(), "the table is too small");
    }
    let zipf = Zipf::new(bench.rows, bench.zipf);
    let blocks: Vec<Block> = (0..BATCHES).map(|_| block(bench, &zipf, &scattered, &mut rng)).collect();

    let lookups_per_s = lookups(&table, blocks.iter().flat_map(|b| b.ids.iter().copied()), bench.seconds / 4.0);
    let uniform: Vec<u64> = (0..1 << 20).map(|_| rng.random_range(0..bench.rows as u64)).collect();
    let uniform_lookups_per_s = lookups(&table, uniform.iter().copied(), bench.seconds / 4.0);

    let mut settings = ValueSettings::default();
    settings.table.cache_rows = bench.cache_rows;
    let mut store = Store::new(table, &settings);
    let net_shape = NetShape { fields: bench.fields, dim: shape.dim, hidden: 64 };
    let mut parameters = net_shape.first_parameters(&mut rng);
    let (mut net, mut adam, mut gradients) = (Net::new(net_shape), Adam::new(parameters.len()), Gradients::default());
    let mut ahead = std::collections::VecDeque::new();
    let (mut next, mut done, mut unique) = (0, 0u64, 0usize);
    let mut spare: Vec<Lookup> = Vec::new();
    let mut began = Instant::now();
    while done < 5 || began.elapsed() < Duration::from_secs_f64(bench.seconds) {
        if done == 5 {
            began = Instant::now();
        }
        while ahead.len() < 1 + if bench.cache_rows > 0 { bench.prefetch } else { 0 } {
            let mut lookup = spare.pop().unwrap_or_default();
            store.find(&blocks[next % BATCHES].ids, &mut lookup);
            let ticket = store.prefetch(&lookup)?;
            ahead.push_back((next % BATCHES, lookup, ticket));
            next += 1;
        }
        let Some((i, lookup, ticket)) = ahead.pop_front() else { break };
        unique += lookup.unique.len();
        let rows = store.gather(&lookup, ticket)?;
        net.step(&parameters, rows, &lookup.inverse, &blocks[i], 1.0, &mut gradients);
        store.update(&gradients.rows, 0.05);
        adam.step(1e-3, &mut parameters, &gradients.parameters);
        spare.push(lookup);
        done += 1;
    }
    let updates_per_s = (done - 5) as f64 / began.elapsed().as_secs_f64();
    let cache = store.counters();
    Ok(TableReport {
        rows: bench.rows,
        batch: bench.batch,
        fields: bench.fields,
        dim: bench.dim,
        zipf: bench.zipf,
        updates_per_s,
        samples_per_s: updates_per_s * bench.batch as f64,
        unique_share: unique as f64 / (done as usize * bench.batch * bench.fields) as f64,
        lookups_per_s,
        uniform_lookups_per_s,
        table_bytes: shape.footprint(),
        cache,
        hit_share: cache.map(|c| c.hits as f64 / (c.hits + c.misses) as f64),
    })
}

fn block(bench: &TableBench, zipf: &Zipf, scattered: &[u64], rng: &mut ChaCha8Rng) -> Block {
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

/// Rows found and copied per second.
fn lookups(table: &HostTable, ids: impl Iterator<Item = u64> + Clone, seconds: f64) -> f64 {
    let mut record = vec![0; table.shape().words()];
    let (began, mut found, mut sum) = (Instant::now(), 0u64, 0u32);
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        for id in ids.clone() {
            table.read(id, &mut record);
            sum = sum.wrapping_add(record[DIRECT]);
            found += 1;
        }
    }
    std::hint::black_box(sum);
    found as f64 / began.elapsed().as_secs_f64()
}
