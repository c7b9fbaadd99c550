//! Updates on fixed data, so that devices can be compared: their losses, and what rows and network are in the end.

use std::fmt;
use std::hash::Hasher as _;
use std::sync::Arc;

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

use crate::gpu::{self, Device};
use crate::rank::device::{self, Opened};
use crate::rank::network::Network;
use crate::rank::prior::RowPrior;
use crate::rank::rows::{RowStep, Rows};
use crate::rank::store::Store;
use crate::settings::ValueSettings;
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
