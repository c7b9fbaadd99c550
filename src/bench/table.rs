//! The value model's updates, with and without the row thread and the cache, and how fast rows are found: ids by the exact discrete
//! Zipf law.
//!
//! One update is what training does with a block: unique ids, their rows, network forward and backward, the rows' optimiser, Adam. Blocks
//! are made beforehand, the table is full before the clock starts.

mod on_device;

use std::fmt;
use std::hash::Hasher as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use twox_hash::XxHash3_64;

use crate::gpu::{self, Device};
use crate::rank::device::{self, DeviceDense, DeviceShape, Opened};
use crate::rank::network::Network;
use crate::rank::prior::RowPrior;
use crate::rank::rows::{RowStep, Rows, slots};
use crate::rank::store::{BatchRows, Store};
use crate::run::value_snapshot::ValueState;
use crate::settings::{RowOptimizer, ValueSettings};
use crate::sparse::lookup::Finder;
use crate::sparse::table::DIRECT;
use crate::sparse::{Cache, Counters, HostTable, Lookup, TableShape, file};
use crate::values::Block;
use crate::values::net::NetShape;
use crate::values::sample::{DENSE, Sample, Seen};
use on_device::OnDevice;

/// Batches whose ids are looked up alone.
const LOOKED_UP: usize = 64;
const HIDDEN: usize = 64;
const NET_RATE: f32 = 1e-3;
const ROW_RATE: f32 = 0.05;
/// Variance of the charges over their mean.
const DISPERSION: f32 = 1.5;

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
    /// How long each form is measured, in each round where forms take turns.
    pub seconds: f64,
    /// Rounds in which flat table and cache take turns.
    pub rounds: usize,
    /// Accesses whose hits are counted, after three times as many; 0 = none.
    pub accesses: usize,
    /// Where the rows are written before anything learns.
    pub dump: Option<PathBuf>,
}

/// How fast updates are in one form.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Speed {
    pub updates_per_s: f64,
    pub samples_per_s: f64,
    pub step_ms: f64,
    /// Share of the time that the dense products waited for the row thread.
    pub waited: f64,
}

impl Speed {
    /// The speed of the round in the middle.
    fn median(mut rounds: Vec<Self>) -> Self {
        rounds.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        rounds[rounds.len() / 2]
    }
}

/// A figure over the rounds.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self { least: figures[0], median: figures[figures.len() / 2], most: figures[figures.len() - 1] }
    }
}

/// Figures of one run of the benchmark.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TableReport {
    pub rows: usize,
    pub batch: usize,
    pub fields: usize,
    pub dim: usize,
    pub zipf: f64,
    /// On the flat table, all on one thread.
    pub one_thread: Speed,
    /// On the flat table, rows on a thread of their own: the median round, as with the cache.
    pub row_thread: Speed,
    /// With the cache over the table, rows on a thread of their own.
    pub cached: Option<Speed>,
    /// The step with the cache over the step of the flat table in the same round.
    pub cached_over_flat: Option<Spread>,
    /// With network and rows on GPUs.
    pub on_device: Option<OnDevice>,
    /// Unique ids of a batch over all of its ids.
    pub unique_share: f64,
    /// Rows found and copied per second, at the same law and uniform.
    pub lookups_per_s: f64,
    pub uniform_lookups_per_s: f64,
    pub table_bytes: u64,
    /// Of the last round.
    pub cache: Option<Counters>,
    pub hits: Option<Hits>,
}

/// Hits of the cache, counted for every access: rows that were resident when their batch's prefetch was issued.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Hits {
    pub accesses: usize,
    pub share: f64,
    /// What a cache that held the most popular ids for ever would come to on the same draws.
    pub ideal: f64,
}

impl fmt::Display for TableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "table of {} rows ({:.0} MB), batches of {} x {} ids of {} floats, Zipf {}, {:.2} of the ids unique\n\
             lookups: {:.1} M rows/s, uniform {:.1} M rows/s",
            self.rows,
            self.table_bytes as f64 * 1e-6,
            self.batch,
            self.fields,
            self.dim,
            self.zipf,
            self.unique_share,
            self.lookups_per_s * 1e-6,
            self.uniform_lookups_per_s * 1e-6,
        )?;
        let forms =
            [("one thread", Some(self.one_thread)), ("row thread", Some(self.row_thread)), ("cached", self.cached)];
        for (name, speed) in forms.into_iter().filter_map(|(name, speed)| Some((name, speed?))) {
            write!(
                f,
                "\n{name:<10}  {:>8.2} ms a step, {:>8.0} samples/s, {:.2}x the step of the flat table; waits for rows {:.3} of the time",
                speed.step_ms,
                speed.samples_per_s,
                speed.step_ms / self.row_thread.step_ms,
                speed.waited
            )?;
        }
        if let Some(Spread { least, median, most }) = self.cached_over_flat {
            write!(f, "\ncached over flat, round by round: {median:.2} ({least:.2}..{most:.2})")?;
        }
        if let Some(on_device) = &self.on_device {
            write!(f, "{on_device}")?;
        }
        if let Some(hits) = self.hits {
            let Hits { accesses, share, ideal } = hits;
            write!(f, "\nhits: {share:.3} of {accesses} accesses; the most popular rows alone {ideal:.3}")?;
        }
        Ok(())
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

pub fn table_shape(bench: &TableBench) -> TableShape {
    TableShape { dim: bench.dim + DIRECT, optimizer: bench.optimizer, max_rows: bench.rows, seed: 1, marks: false }
}

/// Runs the benchmark.
///
/// # Errors
/// No memory for the table, or a cache smaller than a batch.
///
/// # Panics
/// Without rounds or batches.
pub fn run_table(bench: &TableBench) -> anyhow::Result<TableReport> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let shape = table_shape(bench);
    let mut table = HostTable::private(shape)?;
    // Popular ids stand anywhere in the table.
    let mut scattered: Vec<u64> = (0..bench.rows as u64).collect();
    scattered.shuffle(&mut rng);
    for id in 0..bench.rows as u64 {
        anyhow::ensure!(table.find_or_insert(id).is_some(), "the table is too small");
    }
    if let Some(path) = &bench.dump {
        file::write(path, &table)?;
    }
    let zipf = Zipf::new(bench.rows, bench.zipf);
    let made = (0..bench.batches as u64).into_par_iter().map(|number| {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        rng.set_stream(number + 1);
        Arc::new(block(bench, &zipf, &scattered, &mut rng))
    });
    let blocks: Vec<Arc<Block>> = made.collect();

    let of_blocks: Vec<u64> = blocks.iter().take(LOOKED_UP).flat_map(|block| block.ids.iter().copied()).collect();
    let of_batch = bench.batch * bench.fields;
    let lookups_per_s = lookups(&table, &of_blocks, of_batch, bench.seconds / 4.0);
    let uniform: Vec<u64> = (0..1 << 20).map(|_| rng.random_range(0..bench.rows as u64)).collect();
    let uniform_lookups_per_s = lookups(&table, &uniform, of_batch, bench.seconds / 4.0);

    let table = Store::new(table, &ValueSettings::default());
    let (one_thread, unique_share, table) = one_thread(bench, shape, table, &blocks)?;
    let mut table = table.into_table();
    let on_cpu = bench.device == Device::Cpu;
    let mut hits = None;
    if on_cpu && bench.cache_rows > 0 && bench.accesses > 0 {
        hits = Some(count_hits(bench, &mut table, &zipf, &scattered, &mut rng)?);
    }
    let mut settings = ValueSettings::default();
    (settings.table.cache_rows, settings.table.devices) = (bench.cache_rows, bench.devices);
    let (mut flat_rounds, mut cached_rounds, mut cache) = (vec![], vec![], None);
    for _ in 0..bench.rounds {
        let store = Store::new(table, &ValueSettings::default());
        let (speed, store) = on_row_thread(bench, shape, (store, None), &blocks, (1, Warm::Short))?;
        flat_rounds.push(speed);
        table = store.into_table();
        if on_cpu && bench.cache_rows > 0 {
            let store = Store::new(table, &settings);
            let (speed, mut store) =
                on_row_thread(bench, shape, (store, None), &blocks, (bench.prefetch, Warm::Short))?;
            cached_rounds.push(speed);
            cache = store.counters();
            store.flush();
            table = store.into_table();
        }
    }
    let ratios = flat_rounds.iter().zip(&cached_rounds).map(|(flat, cached)| cached.step_ms / flat.step_ms).collect();
    let cached = !cached_rounds.is_empty();
    let on_device = match bench.device {
        Device::Cuda(index) => Some(on_device::measure(bench, index, table, &blocks)?),
        Device::Cpu => None,
    };
    Ok(TableReport {
        rows: bench.rows,
        batch: bench.batch,
        fields: bench.fields,
        dim: bench.dim,
        zipf: bench.zipf,
        one_thread,
        row_thread: Speed::median(flat_rounds),
        cached: cached.then(|| Speed::median(cached_rounds)),
        cached_over_flat: cached.then(|| Spread::of(ratios)),
        on_device,
        unique_share,
        lookups_per_s,
        uniform_lookups_per_s,
        table_bytes: shape.footprint(),
        cache,
        hits,
    })
}

/// Updates before the clock starts.
#[derive(Debug, Clone, Copy)]
enum Warm {
    /// A cache of 1 % of ten million rows is full after 32.
    Short,
    /// Every batch has come once: what has room in a cache of any size is there.
    EveryBatch,
}

impl Warm {
    fn updates(self, batches: usize) -> u64 {
        match self {
            Self::Short => 32,
            Self::EveryBatch => batches as u64,
        }
    }
}

/// Counts updates once the first are over.
struct Clock {
    seconds: Duration,
    warm: u64,
    done: u64,
    began: Instant,
    /// What the dense products had waited when the clock started.
    waited: Duration,
}

impl Clock {
    fn new(seconds: f64, warm: u64) -> Self {
        Self { seconds: Duration::from_secs_f64(seconds), warm, done: 0, began: Instant::now(), waited: Duration::ZERO }
    }

    fn runs(&mut self, waited: Duration) -> bool {
        if self.done == self.warm {
            (self.began, self.waited) = (Instant::now(), waited);
        }
        self.done += 1;
        self.done <= self.warm + 1 || self.began.elapsed() < self.seconds
    }

    fn speed(&self, batch: usize, waited: Duration) -> Speed {
        let seconds = self.began.elapsed().as_secs_f64();
        let updates_per_s = (self.done - 1 - self.warm) as f64 / seconds;
        Speed {
            updates_per_s,
            samples_per_s: updates_per_s * batch as f64,
            step_ms: 1e3 / updates_per_s,
            waited: (waited - self.waited).as_secs_f64() / seconds,
        }
    }
}

/// Lookups, products and updates one after another; also the unique ids' share.
fn one_thread(
    bench: &TableBench,
    shape: TableShape,
    mut store: Store,
    blocks: &[Arc<Block>],
) -> anyhow::Result<(Speed, f64, Store)> {
    let (mut state, mut rows, mut d_rows) = (first_state(bench, shape), BatchRows::default(), vec![]);
    let mut network = Network::new(net_shape(bench, shape), DISPERSION, None, &state);
    let mut finder = Finder::default();
    let (mut clock, mut unique) = (Clock::new(bench.seconds, Warm::Short.updates(blocks.len())), 0);
    while clock.runs(Duration::ZERO) {
        let block = &blocks[clock.done as usize % blocks.len()];
        rows.begin(&mut finder, &block.ids);
        unique += rows.lookup.unique.len();
        store.fetch(&mut rows)?;
        store.settle(&mut rows, block)?;
        store.gather(&mut rows);
        network.begin(&state, block);
        network.interact(&state, block, &rows, &mut d_rows)?;
        network.step(&mut state, block, NET_RATE)?;
        store.update(&mut rows, &d_rows, ROW_RATE);
    }
    let ids = (clock.done - 1) as usize * bench.batch * bench.fields;
    Ok((clock.speed(bench.batch, Duration::ZERO), unique as f64 / ids as f64, store))
}

fn net_shape(bench: &TableBench, shape: TableShape) -> NetShape {
    NetShape { fields: bench.fields, dim: shape.dim, hidden: HIDDEN }
}

fn first_state(bench: &TableBench, shape: TableShape) -> ValueState {
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

/// What updates on fixed data came to.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Updates {
    pub device: String,
    /// Of each update: mean losses of charge and click.
    pub losses: Vec<[f64; 2]>,
    /// Of all rows and parameters at the end: equal bytes have equal digests.
    pub digest: String,
    #[serde(skip)]
    pub rows: Vec<(u64, Vec<u32>)>,
    #[serde(skip)]
    pub parameters: Vec<f32>,
    #[serde(skip)]
    pub cache: Option<Counters>,
}

/// The digest of rows and parameters.
fn digest(rows: &[(u64, Vec<u32>)], parameters: &[f32]) -> String {
    let mut hasher = XxHash3_64::new();
    for (id, words) in rows {
        hasher.write(&id.to_le_bytes());
        hasher.write(bytemuck::cast_slice(words));
    }
    hasher.write(bytemuck::cast_slice(parameters));
    format!("{:016x}", hasher.finish())
}

impl fmt::Display for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "update  charge         click")?;
        for (i, [charge, click]) in self.losses.iter().enumerate() {
            writeln!(f, "{:>6}  {charge:<13.8}  {click:.8}", i + 1)?;
        }
        write!(f, "table: {} updates on {}; rows and parameters {}", self.losses.len(), self.device, self.digest)
    }
}

/// Makes updates on fixed data on the benchmark's device.
///
/// # Errors
/// As [`updates`], and a GPU that does not work.
pub fn losses(bench: &TableBench, count: usize) -> anyhow::Result<Updates> {
    let opened = match bench.device {
        Device::Cpu => None,
        Device::Cuda(index) => {
            let devices = gpu::device::from(index, bench.devices);
            Some(device::open_cuda(&devices, &device_shape(bench, table_shape(bench)))?)
        }
    };
    updates(bench, opened, count, true)
}

/// Makes updates on fixed data from an empty table, with the prior: on the CPU, or on what was `opened` for [`device_shape`]. With `wait`,
/// each loss is waited for, so that all of them are known.
///
/// # Errors
/// A cache smaller than a batch, or a loss that is not finite.
pub fn updates(bench: &TableBench, opened: Option<Opened>, count: usize, wait: bool) -> anyhow::Result<Updates> {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let shape = table_shape(bench);
    let zipf = Zipf::new(bench.rows, bench.zipf);
    let ids: Vec<u64> = (0..bench.rows as u64).collect();
    let blocks: Vec<Arc<Block>> = (0..count).map(|_| Arc::new(varied(block(bench, &zipf, &ids, &mut rng)))).collect();
    let table = HostTable::private(shape)?;
    let mut settings = ValueSettings::default();
    (settings.table.cache_rows, settings.table.devices) = (bench.cache_rows, bench.devices);
    let (store, device) = match opened {
        Some((memory, dense)) => (Store::on_device(table, &settings, memory), Some(dense)),
        None => (Store::new(table, &settings), None),
    };
    let prior = RowPrior::of(vec![[0.2, 0.1]; bench.fields], 0.3);
    let mut state = first_state(bench, shape);
    let mut network = Network::new(net_shape(bench, shape), DISPERSION, device, &state);
    let mut rows = Rows::start(store, Some(prior), None, bench.prefetch)?;
    let (mut losses, mut asked) = (vec![], blocks.iter());
    for (update, block) in blocks.iter().enumerate() {
        while rows.has_room()
            && let Some(block) = asked.next()
        {
            rows.ask(block.clone());
        }
        network.begin(&state, block);
        let mut looked_up = rows.looked_up(|| ())?;
        let (_, batch, gradients) = looked_up.parts();
        let mut found = network.interact(&state, block, batch, gradients)?;
        if wait {
            found.add(network.settle(&state)?);
        }
        looked_up.ready(RowStep { rate: ROW_RATE, passes: update as f64 / count as f64, snapshot: None });
        network.step(&mut state, block, NET_RATE)?;
        losses.push([found.charge, found.click].map(|sum| sum / found.weight.max(1.0)));
    }
    network.settle(&state)?;
    network.fetch(&mut state)?;
    // The row thread ends with what it is doing, not with what it was given.
    drop(rows.settle(|| ()));
    let mut store = rows.end();
    store.flush();
    let table = store.table();
    let rows: Vec<_> = table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect();
    Ok(Updates {
        device: bench.device.to_string(),
        losses,
        digest: digest(&rows, &state.parameters),
        rows,
        parameters: state.parameters,
        cache: store.counters(),
    })
}

/// The same batch with what real ones have: contracts, auction ads without a prediction, weights.
fn varied(mut block: Block) -> Block {
    for i in 0..block.len() {
        block.auction[i] = i % 3 != 0;
        block.predicted[i] = if i % 7 == 0 { 0.0 } else { 0.25 + (i % 5) as f32 };
        block.weight[i] = if i % 11 == 0 { 10.0 } else { 1.0 };
        block.clicked[i] = i % 13 == 0;
    }
    block
}

/// As training does it: rows on a thread of their own.
fn on_row_thread(
    bench: &TableBench,
    shape: TableShape,
    (store, device): (Store, Option<Box<dyn DeviceDense>>),
    blocks: &[Arc<Block>],
    (ahead, warm): (usize, Warm),
) -> anyhow::Result<(Speed, Store)> {
    let mut state = first_state(bench, shape);
    let mut network = Network::new(net_shape(bench, shape), DISPERSION, device, &state);
    let mut rows = Rows::start(store, None, None, ahead)?;
    let (mut clock, mut asked) = (Clock::new(bench.seconds, warm.updates(blocks.len())), 0);
    while clock.runs(rows.waited() + network.waited()) {
        while rows.has_room() {
            asked += 1;
            rows.ask(blocks[asked % blocks.len()].clone());
        }
        let block = &blocks[clock.done as usize % blocks.len()];
        network.begin(&state, block);
        let mut looked_up = rows.looked_up(|| ())?;
        let (_, batch, gradients) = looked_up.parts();
        network.interact(&state, block, batch, gradients)?;
        looked_up.ready(RowStep { rate: ROW_RATE, passes: 1.0, snapshot: None });
        network.step(&mut state, block, NET_RATE)?;
    }
    network.settle(&state)?;
    let speed = clock.speed(bench.batch, rows.waited() + network.waited());
    Ok((speed, rows.end()))
}

/// Counts the cache's hits over `bench.accesses` accesses after three times as many.
fn count_hits(
    bench: &TableBench,
    table: &mut HostTable,
    zipf: &Zipf,
    scattered: &[u64],
    rng: &mut ChaCha8Rng,
) -> anyhow::Result<Hits> {
    let mut cache = Cache::new(table.shape(), bench.cache_rows, bench.devices);
    let (mut seen, mut hits, mut ideal) = (0, 0usize, 0usize);
    let size = bench.batch * bench.fields;
    while seen < 4 * bench.accesses {
        let ranks: Vec<usize> = (0..size).map(|_| zipf.draw(rng)).collect();
        let lookup = Lookup::of(&ranks.iter().map(|rank| scattered[*rank]).collect::<Vec<_>>());
        if seen >= 3 * bench.accesses {
            let resident: Vec<bool> = lookup.unique.iter().map(|id| cache.is_resident(*id)).collect();
            hits += lookup.inverse.iter().filter(|place| resident[**place as usize]).count();
            ideal += ranks.iter().filter(|rank| **rank < bench.cache_rows).count();
        }
        let mut ticket = cache.prefetch(table, &lookup.unique)?;
        cache.fetch(table, &lookup.unique, &mut ticket, usize::MAX);
        cache.release(ticket);
        seen += size;
    }
    let accesses = seen - (3 * bench.accesses).div_ceil(size) * size;
    let share = |count: usize| count as f64 / accesses as f64;
    Ok(Hits { accesses, share: share(hits), ideal: share(ideal) })
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
fn lookups(table: &HostTable, ids: &[u64], batch: usize, seconds: f64) -> f64 {
    let (began, mut found) = (Instant::now(), 0u64);
    let (mut records, mut values) = (vec![], Vec::<f32>::new());
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        for ids in ids.chunks(batch) {
            records.clear();
            values.clear();
            table.find_all(ids, &mut records);
            for (i, record) in records.iter().enumerate() {
                table.load_ahead(&records, i);
                record.iter().for_each(|record| values.extend_from_slice(table.row(*record)));
            }
            found += ids.len() as u64;
            std::hint::black_box(&values);
        }
    }
    found as f64 / began.elapsed().as_secs_f64()
}
