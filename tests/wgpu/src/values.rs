//! The value model's trainer on Vulkan devices, held against the CPU's: losses, rows and parameters; and with rows that come and go through
//! caches, and that lie in several arenas, against one device that holds all of them, bit for bit.

use std::sync::LazyLock;
use std::time::Instant;

use admix::bench::table::{TableBench, Updates, device_shape, table_shape, updates, updates_from_host};
use admix::rank::device::{Opened, open, open_gradients};
use admix::settings::RowOptimizer;
use burn_wgpu::{WgpuDevice, WgpuRuntime};
use cubecl::Runtime as _;
use cubecl::device::Device as _;

use crate::planted::{Bug, Planted};

/// Largest difference of a loss, relative to the mean size of the CPU's; and of an element of a row, a state or the parameters,
/// relative to the largest of its kind.
const TOLERANCE: f64 = 1e-4;
const UPDATES: usize = 40;

fn bench(
    optimizer: RowOptimizer,
    (batch, fields, dim): (usize, usize, usize),
    cache_rows: usize,
    prefetch: usize,
) -> TableBench {
    TableBench { cache_rows, prefetch, ..TableBench::of_updates(4_000, [batch, fields, dim], optimizer) }
}

/// Devices of so many arenas. Where there is only a software device, it is opened as two, which cannot read each other's memory; another
/// one is named again and again: two kinds of devices round otherwise.
fn devices(arenas: usize) -> Vec<WgpuDevice> {
    static SECOND: LazyLock<WgpuDevice> = LazyLock::new(|| {
        let (default, software) = (WgpuRuntime::client(&WgpuDevice::default()), WgpuDevice::Cpu);
        let all_software = default.enumerate_all_devices().iter().all(|id| *id == software.to_id());
        if all_software { software } else { WgpuDevice::default() }
    });
    [WgpuDevice::default(), SECOND.clone()].into_iter().cycle().take(arenas).collect()
}

fn opened(bench: &TableBench) -> Opened {
    let shape = device_shape(bench, table_shape(bench));
    open::<WgpuRuntime>(&devices(bench.devices), &shape).expect("memory for the rows")
}

fn on_vulkan(bench: &TableBench, wait: bool) -> Updates {
    updates(bench, Some(opened(bench)), UPDATES, wait).expect("losses are finite")
}

/// Largest difference between two lists of numbers, over the largest number.
fn difference(a: &[f32], b: &[f32]) -> f64 {
    let size = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, |worst, d| if worst >= d { worst } else { d });
    if a.len() == b.len() { f64::from(worst / size) } else { f64::NAN }
}

fn rows_of(updates: &Updates, dim: usize) -> [Vec<f32>; 2] {
    let floats = |range: fn(usize, usize) -> std::ops::Range<usize>| {
        let rows = updates.rows.iter().flat_map(|(_, words)| &words[range(dim, words.len())]);
        rows.map(|word| f32::from_bits(*word)).collect()
    };
    [floats(|dim, _| 0..dim), floats(|dim, words| dim..words - 1)]
}

/// Whether a device's updates are the CPU's up to rounding: the same rows with the same number of updates, the same losses.
fn agrees(bench: &TableBench, cpu: &Updates, vulkan: &Updates) -> Result<f64, String> {
    let known =
        |updates: &Updates| updates.rows.iter().map(|(id, words)| (*id, words[words.len() - 1])).collect::<Vec<_>>();
    if known(cpu) != known(vulkan) {
        return Err("other rows, or other numbers of updates".into());
    }
    let mut worst = difference(&cpu.parameters, &vulkan.parameters);
    let dim = table_shape(bench).dim;
    for (cpu, vulkan) in rows_of(cpu, dim).iter().zip(&rows_of(vulkan, dim)) {
        if !cpu.is_empty() {
            worst = f64::max(worst, difference(cpu, vulkan));
        }
    }
    for loss in 0..2 {
        let of = |updates: &Updates| updates.losses.iter().map(|losses| losses[loss] as f32).collect::<Vec<_>>();
        worst = f64::max(worst, difference(&of(cpu), &of(vulkan)));
    }
    if worst <= TOLERANCE { Ok(worst) } else { Err(format!("differ by {worst:.1e}")) }
}

fn same_bits(a: &Updates, b: &Updates) -> bool {
    let bits = |updates: &Updates| updates.parameters.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
    a.rows == b.rows && bits(a) == bits(b)
}

/// A cache's rows for batches of so many ids: one batch, one batch and 1 %, two batches.
fn caches(batch: usize) -> [usize; 3] {
    [batch, batch + batch / 100 + 1, 2 * batch]
}

const OPTIMIZERS: [RowOptimizer; 4] =
    [RowOptimizer::Sgd, RowOptimizer::Adagrad, RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam];
/// Batches, fields and floats of a row: sizes that fill no tile.
const SIZES: [(usize, usize, usize); 4] = [(64, 5, 6), (130, 3, 17), (33, 8, 4), (257, 2, 1)];

/// Whether rows in several arenas are those of one device to the bit, and whether it is found where they are not. `same` compares updates with those
/// of a device that holds all rows.
fn check_arenas(optimizer: RowOptimizer, size: (usize, usize, usize), same: impl Fn(&Updates) -> bool) -> [u64; 2] {
    let (mut variants, mut written_back) = (0, 0);
    for (arenas, rows) in [2, 3].into_iter().flat_map(|arenas| caches(size.0 * size.1).map(|rows| (arenas, rows))) {
        for prefetch in 0..3 {
            let bench = TableBench { devices: arenas, ..bench(optimizer, size, rows, prefetch) };
            let spread = on_vulkan(&bench, false);
            let cache = spread.cache.expect("a cache");
            // Of the rows that batches have asked for, so many lie on another device, and cross twice.
            let crossed = cache.bytes_between / (8 * table_shape(&bench).dim as u64);
            let share = crossed as f64 / (cache.hits + cache.misses) as f64;
            if !same(&spread) || (share - (1.0 - 1.0 / arenas as f64)).abs() > 0.1 {
                println!(
                    "values, {optimizer:?}, {size:?}: {arenas} arenas, {rows} rows, {prefetch} ahead: other bits, or {share:.2} of \
                     the rows crossed"
                );
                return [0, 0];
            }
            variants += 1;
            written_back += cache.write_backs;
        }
        for bug in [Bug::GathersFromTheWrongArena, Bug::SendsToTheWrongOwner] {
            let bench = TableBench { devices: arenas, ..bench(optimizer, size, rows, 1) };
            let (memory, dense) = opened(&bench);
            let planted = Planted::new(memory, bug);
            let wrong = updates(&bench, Some((Box::new(planted), dense)), UPDATES, false).expect("losses are finite");
            if same(&wrong) {
                println!("values, {optimizer:?}, {size:?}: {arenas} arenas, {rows} rows: {bug:?} was not found");
                return [0, 0];
            }
        }
    }
    [variants, written_back]
}

/// Whether the value model's trainer on Vulkan holds, in all variants.
pub fn check() -> bool {
    let began = Instant::now();
    let (mut held, mut worst, mut written_back, mut variants, mut spread) = (true, 0.0, 0, 0, [0, 0]);
    for (i, (optimizer, size)) in
        OPTIMIZERS.into_iter().flat_map(|optimizer| SIZES.map(|size| (optimizer, size))).enumerate()
    {
        let all = bench(optimizer, size, 0, 1);
        let cpu = updates(&all, None, UPDATES, true).expect("losses are finite");
        let vulkan = on_vulkan(&all, true);
        match agrees(&all, &cpu, &vulkan) {
            Ok(difference) => worst = f64::max(worst, difference),
            Err(why) => {
                held = false;
                println!("values, {optimizer:?}, {size:?}: {why}");
            }
        }
        // As each of several ranks computes: the device has neither rows nor parameters of its own.
        let shape = device_shape(&all, table_shape(&all));
        let device = open_gradients::<WgpuRuntime>(&devices(1)[0], shape.net, shape.dispersion);
        let from_host = updates_from_host(&all, Some(device), UPDATES).expect("losses are finite");
        match agrees(&all, &cpu, &from_host) {
            Ok(difference) => worst = f64::max(worst, difference),
            Err(why) => {
                held = false;
                println!("values, {optimizer:?}, {size:?}, rows of the host: {why}");
            }
        }
        for (cache_rows, prefetch) in caches(size.0 * size.1).into_iter().zip(0..) {
            let cached = on_vulkan(&bench(optimizer, size, cache_rows, prefetch), false);
            written_back += cached.cache.map_or(0, |counters| counters.write_backs);
            if !same_bits(&cached, &vulkan) {
                held = false;
                println!(
                    "values, {optimizer:?}, {size:?}: a cache of {cache_rows} rows, {prefetch} ahead, changes bits"
                );
            }
        }
        variants += 1;
        // Every optimiser and every size once: what is spread does not depend on both.
        if i % SIZES.len() == i / SIZES.len() {
            let [found, back] = check_arenas(optimizer, size, |other| same_bits(other, &vulkan));
            held &= found > 0;
            spread = [spread[0] + found, spread[1] + back];
        }
    }
    // A network that learns nothing would agree as well.
    let learned =
        updates(&bench(RowOptimizer::Adagrad, SIZES[0], 0, 1), None, UPDATES, true).expect("losses are finite");
    held &= written_back > 1_000 && spread[1] > 1_000 && learned.losses[UPDATES - 1][1] < learned.losses[0][1];
    println!(
        "values, {variants} variants of {UPDATES} updates: with rows on the device and on the host: within {worst:.1e} of the host's; the same bits with three caches each, {written_back} \
         rows written back"
    );
    println!(
        "values, {} variants of two and three arenas on {:?}: the same bits, {} rows written back; rows from the wrong arena and gradients to the \
         wrong owner were found in each; {:.0} s in all",
        spread[0],
        devices(3),
        spread[1],
        began.elapsed().as_secs_f64()
    );
    held
}
