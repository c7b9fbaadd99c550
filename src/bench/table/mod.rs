//! The value model's updates, with and without the row thread and the cache, and how fast rows are found: ids by the exact discrete
//! Zipf law.
//!
//! One update is what training does with a block: unique ids, their rows, network forward and backward, the rows' optimiser, Adam. Blocks
//! are made beforehand, the table is full before the clock starts.
//!
//! | file | what it is |
//! |---|---|
//! | [`shape`] | sizes, and the batches |
//! | [`speed`] | updates as training makes them, timed |
//! | [`on_device`] | the same with rows and network on GPUs |
//! | [`updates`] | updates on fixed data, to compare devices |

mod on_device;
mod shape;
mod speed;
mod updates;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::gpu::Device;
use crate::rank::network::Network;
use crate::rank::store::{BatchRows, Store};
use crate::settings::ValueSettings;
use crate::sparse::lookup::Finder;
use crate::sparse::{Cache, Counters, HostTable, Lookup, TableShape, file};
use crate::values::Block;

use on_device::OnDevice;
use shape::{DISPERSION, NET_RATE, ROW_RATE, Zipf, block, first_state, net_shape};
use speed::{Clock, Speed, Spread, Warm, on_row_thread};

pub use shape::{TableBench, device_shape, table_shape};
pub use updates::{Updates, losses, updates, updates_from_host};

/// Batches whose ids are looked up alone.
const LOOKED_UP: usize = 64;

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
