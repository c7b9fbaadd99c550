//! The value model's trainer on a Vulkan device, held against the CPU's: losses, rows and parameters; and with a cache through which
//! rows come and go against one that holds all of them, bit for bit.

use admix::bench::table::{TableBench, Updates, device_shape, table_shape, updates};
use admix::gpu::Device;
use admix::rank::device::open;
use admix::settings::RowOptimizer;
use burn_wgpu::{WgpuDevice, WgpuRuntime};

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
    TableBench {
        rows: 4_000,
        batch,
        fields,
        dim,
        zipf: 1.05,
        optimizer,
        cache_rows,
        prefetch,
        device: Device::Cpu,
        seconds: 0.0,
        accesses: 0,
        dump: None,
    }
}

fn on_vulkan(bench: &TableBench, wait: bool) -> Updates {
    let shape = device_shape(bench, table_shape(bench));
    let opened = open::<WgpuRuntime>(WgpuDevice::default(), &shape).expect("memory for the rows");
    updates(bench, Some(opened), UPDATES, wait).expect("losses are finite")
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

/// Whether the value model's trainer on Vulkan holds, in all variants.
pub fn check() -> bool {
    let sizes = [(64, 5, 6), (130, 3, 17), (33, 8, 4), (257, 2, 1)];
    let optimizers = [RowOptimizer::Sgd, RowOptimizer::Adagrad, RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam];
    let (mut held, mut worst, mut evictions, mut variants) = (true, 0.0, 0, 0);
    for (optimizer, size) in optimizers.into_iter().flat_map(|optimizer| sizes.map(|size| (optimizer, size))) {
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
        let batch = size.0 * size.1;
        for (cache_rows, prefetch) in [(batch, 0), (batch + batch / 100 + 1, 1), (2 * batch, 2)] {
            let cached = on_vulkan(&bench(optimizer, size, cache_rows, prefetch), false);
            evictions += cached.cache.map_or(0, |counters| counters.write_backs);
            if !same_bits(&cached, &vulkan) {
                held = false;
                println!(
                    "values, {optimizer:?}, {size:?}: a cache of {cache_rows} rows, {prefetch} ahead, changes bits"
                );
            }
        }
        variants += 1;
    }
    // A network that learns nothing would agree as well.
    let learned =
        updates(&bench(RowOptimizer::Adagrad, sizes[0], 0, 1), None, UPDATES, true).expect("losses are finite");
    held &= evictions > 1_000 && learned.losses[UPDATES - 1][1] < learned.losses[0][1];
    println!(
        "values, {variants} variants of {UPDATES} updates: within {worst:.1e} of the host's; the same bits with three caches each, {evictions} rows written back"
    );
    held
}
