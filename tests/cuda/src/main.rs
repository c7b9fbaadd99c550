//! The host's side of training on CUDA, where there is no GPU.
//!
//! **Why.** Some things about CUDA can be known without one: that NVRTC compiles every kernel, how many launches an update is, and
//! how long the host takes for them and for new samples, which no GPU can make up for. `driver.rs` stands in for the driver, loads kernels and
//! counts launches, and runs nothing: what is worked out is not looked at. `scripts/wgpu` checks that.

use std::time::{Duration, Instant};

use admix::actor::Explorer;
use admix::bench::table::{TableBench, device_shape, table_shape, updates, updates_from_host};
use admix::bench::world::{self, WorldSize};
use admix::env::{Block, DayModel};
use admix::gpu::Device as Gpu;
use admix::learner::Learner;
use admix::learner::resident::ResidentTrainer;
use admix::learner::trainer::UpdatePlan;
use admix::policy::start::initial_actor;
use admix::rank::device::{open_gradients, open_untried};
use admix::settings::{Credit, Critic, RowOptimizer, ScoreMode, Settings};
use burn_cuda::CudaDevice;
use cubecl::cuda::CudaRuntime;
use libloading::{Library, Symbol};

const WORLD: WorldSize = WorldSize { requests: 6_000, queue: 16, eligible: 8, masked: 0.2, contracts: 30 };
const UPDATES: usize = 2_000;
const VALUE_UPDATES: usize = 200;
/// Blocks that are taken in again and again, and for how long.
const BLOCKS: usize = 16;
const TAKING: Duration = Duration::from_secs(3);

/// What the stand-in counts.
struct Driver(Library);

impl Driver {
    fn open() -> anyhow::Result<Self> {
        // SAFETY: the stand-in does nothing when it is loaded.
        let library = unsafe { Library::new("libcuda.so")? };
        let driver = Self(library);
        driver
            .count(b"standin_launches")
            .map_err(|_| anyhow::anyhow!("this is a real driver: run scripts/gpu-check"))?;
        Ok(driver)
    }

    fn count(&self, what: &[u8]) -> anyhow::Result<u64> {
        // SAFETY: the stand-in's counters take nothing and give a count.
        let counter: Symbol<extern "C" fn() -> u64> = unsafe { self.0.get(what)? };
        Ok(counter())
    }

    fn launches(&self) -> anyhow::Result<u64> {
        self.count(b"standin_launches")
    }

    fn modules(&self) -> anyhow::Result<u64> {
        self.count(b"standin_modules")
    }
}

fn learner<'a>(days: &'a [DayModel], settings: &Settings) -> anyhow::Result<Learner<'a>> {
    let spec = world::spec(&days[0], settings);
    let trainer = ResidentTrainer::<CudaRuntime>::new(days, &spec, settings, CudaDevice { index: 0 })?;
    let mut learner = Learner::new(days, spec.clone(), settings, Box::new(trainer));
    let mut explorer = Explorer::new(days, settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
    while !learner.ready() {
        learner.ingest(explorer.block().segments)?;
    }
    Ok(learner)
}

fn update(learner: &mut Learner, read: bool) {
    let batch = learner.batch();
    // Numbers that nobody worked out may be anything.
    let _ = learner.update_on(&batch, UpdatePlan { rate: 1.0, train_actor: true, read });
}

/// Steps a second from decoded blocks into the pool.
fn taken_in(days: &[DayModel], settings: &Settings, learner: &mut Learner) -> anyhow::Result<f64> {
    let spec = world::spec(&days[0], settings);
    let mut explorer = Explorer::new(days, settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
    let blocks: Vec<Block> = (0..BLOCKS).map(|_| explorer.block()).collect();
    let (mut steps, mut took) = (0, Duration::ZERO);
    for block in blocks.iter().cycle() {
        if took >= TAKING {
            break;
        }
        let segments = block.segments.clone();
        let began = Instant::now();
        learner.ingest(segments)?;
        took += began.elapsed();
        steps += block.samples();
    }
    let began = Instant::now();
    learner.wait();
    Ok(steps as f64 / (took + began.elapsed()).as_secs_f64())
}

/// Compiles the kernels of the value model for every optimiser; then launches and time of an update.
fn values(driver: &Driver) -> anyhow::Result<()> {
    let bench = |optimizer, rows, cache_rows, devices| TableBench {
        cache_rows,
        devices,
        ..TableBench::of_updates(rows, [4096, 8, 16], optimizer)
    };
    let updates = |bench: &TableBench, count: usize| {
        let shape = device_shape(bench, table_shape(bench));
        let devices: Vec<CudaDevice> = (0..bench.devices).map(|index| CudaDevice { index }).collect();
        updates(bench, Some(open_untried::<CudaRuntime>(&devices, &shape)?), count, false)
    };
    let before = driver.modules()?;
    for optimizer in [RowOptimizer::Sgd, RowOptimizer::Adagrad, RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam] {
        updates(&bench(optimizer, 50_000, 40_000, 1), 2)?;
    }
    println!("values: {} kernels compiled and loaded", driver.modules()? - before);
    println!(
        "rows       cache  devices  launches an update  host's us an update, look-ups and blocks included  MB between devices"
    );
    for (rows, cache_rows, devices) in
        [(1_000_000, 0, 1), (1_000_000, 60_000, 1), (1_000_000, 0, 2), (1_000_000, 60_000, 2), (1_000_000, 60_000, 4)]
    {
        let count = VALUE_UPDATES;
        let (before, began) = (driver.launches()?, Instant::now());
        let done = updates(&bench(RowOptimizer::RowwiseAdagrad, rows, cache_rows, devices), count)?;
        let each = began.elapsed().as_secs_f64() * 1e6 / count as f64;
        let launches = (driver.launches()? - before) as f64 / count as f64;
        let between = done.cache.map_or(0, |cache| cache.bytes_between) as f64 * 1e-6 / count as f64;
        println!("{rows:>9}  {cache_rows:>5}  {devices:>7}  {launches:>18.1}  {each:>53.1}  {between:>18.2}");
    }
    // As a rank of several computes. Its rows are moved on the host, which is part of the time.
    let bench = bench(RowOptimizer::RowwiseAdagrad, 1_000_000, 0, 1);
    let shape = device_shape(&bench, table_shape(&bench));
    let device = open_gradients::<CudaRuntime>(&CudaDevice { index: 0 }, shape.net, shape.dispersion);
    let (before, began) = (driver.launches()?, Instant::now());
    updates_from_host(&bench, Some(device), VALUE_UPDATES)?;
    let each = began.elapsed().as_secs_f64() * 1e6 / VALUE_UPDATES as f64;
    let launches = (driver.launches()? - before) as f64 / VALUE_UPDATES as f64;
    println!("rows and parameters on the host: {launches:.1} launches and {each:.1} us an update");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let driver = Driver::open()?;
    let days = [world::day(WORLD)?.0];

    let (spec, settings) = (world::spec(&days[0], &Settings::default()), Settings::default());
    let refused = Gpu::Cuda(0).trainer(&days, &spec, &settings).err();
    anyhow::ensure!(refused.is_some(), "a GPU that runs nothing was taken for one that does");
    values(&driver)?;

    let began = Instant::now();
    for critic in [Critic::Quantile, Critic::Categorical, Critic::Scalar] {
        for (credit, mode) in [(Credit::Contract, ScoreMode::Contract), (Credit::Total, ScoreMode::All)] {
            if critic == Critic::Categorical && credit == Credit::Total {
                continue;
            }
            for (per_step, embedding, hidden) in [(1, 0, 16), (1, 4, 32), (30, 0, 64)] {
                let mut settings = Settings::default();
                (settings.learner.critic, settings.learner.credit, settings.score_mode) = (critic, credit, mode);
                settings.episodes.requests_per_step = per_step;
                settings.policy.ad_embedding = embedding;
                (settings.policy.hidden, settings.learner.critic_hidden) = (hidden, hidden);
                (settings.learner.segment, settings.learner.batch, settings.learner.pool) = (8, 64, 256);
                let mut learner = learner(&days, &settings)?;
                update(&mut learner, true);
                update(&mut learner, false);
                learner.wait();
            }
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{} kernels, those of all variants, compiled and loaded in {took:.1} s", driver.modules()?);

    println!("contracts  requests in a step  batch  launches an update  host's us an update  taken in, M steps/s");
    for (contracts, per_step, batch) in [(30, 1, 256), (30, 1, 4_096), (30, 30, 512), (8, 1, 256)] {
        let days = [world::day(WorldSize { contracts, ..WORLD })?.0];
        let mut settings = Settings::default();
        settings.episodes.requests_per_step = per_step;
        settings.policy.ad_embedding = 0;
        (settings.learner.batch, settings.learner.pool) = (batch, 2 * batch);
        let mut learner = learner(&days, &settings)?;
        let updates = |learner: &mut Learner| {
            (0..UPDATES).for_each(|_| update(learner, false));
            learner.wait();
        };
        updates(&mut learner);
        let (before, began) = (driver.launches()?, Instant::now());
        updates(&mut learner);
        let each = began.elapsed().as_secs_f64() * 1e6 / UPDATES as f64;
        let launches = (driver.launches()? - before) as f64 / UPDATES as f64;
        let taken_in = taken_in(&days, &settings, &mut learner)? * 1e-6;
        println!("{contracts:>9}  {per_step:>18}  {batch:>5}  {launches:>18.1}  {each:>19.1}  {taken_in:>20.2}");
    }
    Ok(())
}
