//! Updates on fixed data, so that devices can be compared: their losses, and what rows and network are in the end.

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

use crate::gpu::{self, Device};
use crate::rank::device::{self, DeviceGradients, Opened};
use crate::rank::gradients::Gradients;
use crate::rank::network::Network;
use crate::rank::prior::RowPrior;
use crate::rank::rows::{RowStep, Rows};
use crate::rank::store::{BatchRows, Store};
use crate::settings::ValueSettings;
use crate::sparse::lookup::Finder;
use crate::sparse::{Counters, HostTable};
use crate::values::Block;

use super::shape::{
    DISPERSION, NET_RATE, ROW_RATE, TableBench, Zipf, block, device_shape, first_state, net_shape, table_shape,
};

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
    let shape = table_shape(bench);
    match bench.device {
        Device::Cpu if bench.host_rows => updates_from_host(bench, None, count),
        Device::Cpu => updates(bench, None, count, true),
        Device::Cuda(index) if bench.host_rows => {
            let opened = device::open_gradients_cuda(index, net_shape(bench, shape), DISPERSION)?;
            updates_from_host(bench, Some(opened), count)
        }
        Device::Cuda(index) => {
            let devices = gpu::device::from(index, bench.devices);
            updates(bench, Some(device::open_cuda(&devices, &device_shape(bench, shape))?), count, true)
        }
    }
}

/// Blocks of the benchmark's shape, the same for each call.
fn fixed(bench: &TableBench, count: usize) -> Vec<Arc<Block>> {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let zipf = Zipf::new(bench.rows, bench.zipf);
    let ids: Vec<u64> = (0..bench.rows as u64).collect();
    (0..count).map(|_| Arc::new(varied(block(bench, &zipf, &ids, &mut rng)))).collect()
}

fn prior(bench: &TableBench) -> RowPrior {
    RowPrior::of(vec![[0.2, 0.1]; bench.fields], 0.3)
}

/// Makes updates on fixed data from an empty table, with the prior: on the CPU, or on what was `opened` for [`device_shape`]. With `wait`,
/// each loss is waited for, so that all of them are known.
///
/// # Errors
/// A cache smaller than a batch, or a loss that is not finite.
pub fn updates(bench: &TableBench, opened: Option<Opened>, count: usize, wait: bool) -> anyhow::Result<Updates> {
    let shape = table_shape(bench);
    let blocks = fixed(bench, count);
    let table = HostTable::private(shape)?;
    let mut settings = ValueSettings::default();
    (settings.table.cache_rows, settings.table.devices) = (bench.cache_rows, bench.devices);
    let (store, device) = match opened {
        Some((memory, dense)) => (Store::on_device(table, &settings, memory), Some(dense)),
        None => (Store::new(table, &settings), None),
    };
    let mut state = first_state(bench, shape);
    let mut network = Network::new(net_shape(bench, shape), DISPERSION, device, &state);
    let mut rows = Rows::start(store, Some(prior(bench)), None, bench.prefetch)?;
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
    Ok(came_to(bench, losses, &store, state.parameters))
}

/// Makes the updates of [`updates`] as a rank makes them: rows and parameters are on the host, where they are moved, and gradients come
/// from the CPU, or from the device that was `opened` for them.
///
/// # Errors
/// A loss that is not finite.
pub fn updates_from_host(
    bench: &TableBench,
    opened: Option<Box<dyn DeviceGradients>>,
    count: usize,
) -> anyhow::Result<Updates> {
    let shape = table_shape(bench);
    let settings = ValueSettings::default();
    let mut store = Store::direct(HostTable::private(shape)?, &settings);
    let mut prior = prior(bench);
    let mut state = first_state(bench, shape);
    let mut network = Gradients::new(net_shape(bench, shape), DISPERSION, 1, opened);
    let (mut finder, mut rows, mut by_rows, mut losses) = (Finder::default(), BatchRows::default(), vec![], vec![]);
    for (update, block) in fixed(bench, count).iter().enumerate() {
        rows.begin(&mut finder, &block.ids);
        network.begin(&state, block);
        store.fetch(&mut rows)?;
        store.settle(&mut rows, block)?;
        store.gather(&mut rows);
        let found = network.compute(&state, block, &rows, &mut by_rows)?;
        prior.add(&rows, &block.weight, update as f64 / count as f64, &mut by_rows);
        store.update(&mut rows, &by_rows, ROW_RATE);
        network.apply(&mut state, NET_RATE);
        state.updates += 1;
        losses.push([found.charge, found.click].map(|sum| sum / found.weight.max(1.0)));
    }
    Ok(came_to(bench, losses, &store, state.parameters))
}

/// What updates came to, given what the rows are in the end.
fn came_to(bench: &TableBench, losses: Vec<[f64; 2]>, store: &Store, parameters: Vec<f32>) -> Updates {
    let table = store.table();
    let rows: Vec<_> = table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect();
    let digest = digest(&rows, &parameters);
    Updates { device: bench.device.to_string(), losses, digest, rows, parameters, cache: store.counters() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RowOptimizer;

    /// On the CPU, that is: whatever computes from rows of the host is held against this.
    #[test]
    fn rows_of_the_host_make_the_updates_of_the_row_thread() {
        for optimizer in [RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam] {
            let bench = TableBench::of_updates(500, [64, 4, 6], optimizer);
            let [thread, host] =
                [updates(&bench, None, 12, true), updates_from_host(&bench, None, 12)].map(Result::unwrap);
            assert_eq!((thread.digest, thread.losses), (host.digest, host.losses), "{optimizer:?}");
            assert!(host.rows.len() > 100);
        }
    }
}
