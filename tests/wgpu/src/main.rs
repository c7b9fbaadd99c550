//! The GPU's trainer on a Vulkan device, held against the CPU's.
//!
//! **Why.** CUDA needs a GPU; Vulkan has a software device (Mesa's lavapipe). Both run the same kernels, written once, so that everything but the
//! last translation, to CUDA's language or to Vulkan's, and the speed can be checked on any machine: losses within the tolerance of
//! `scripts/gpu-check`, every variant of the losses, and that updates take no more memory as they go on.

mod planted;
mod values;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::env::{DayModel, Segment};
use admix::gpu::kernels::keep_kernels;
use admix::learner::batch::Rebuild;
use admix::learner::resident::ResidentTrainer;
use admix::learner::trainer::{Train, UpdatePlan};
use admix::learner::{Device, Dims, GradientShare, Learner, Tally, UpdateStats};
use admix::policy::PolicySpec;
use admix::policy::start::initial_actor;
use admix::settings::{Credit, Critic, ScoreMode, Settings};
use burn_wgpu::{WgpuDevice, WgpuRuntime};
use cubecl::Runtime as _;

const TOLERANCE: f64 = 1e-4;
const UPDATES: usize = 100;
const WORLD: WorldSize = WorldSize { requests: 6_000, queue: 16, eligible: 8, masked: 0.2, contracts: 12 };
/// Wider, because norms of small batches are differences of large terms.
const VARIANTS_TOLERANCE: f64 = 2e-3;

fn settings(per_step: usize, mode: ScoreMode, critic: Critic) -> Settings {
    let mut settings = Settings::default();
    settings.episodes.requests_per_step = per_step;
    settings.score_mode = mode;
    settings.learner.critic = critic;
    settings.policy.ad_embedding = if per_step == 1 { 4 } else { 0 };
    settings.policy.hidden = 32;
    settings.learner.segment = 32;
    settings.learner.batch = 128;
    settings.learner.pool = 2_048;
    settings.actors.write_every = 128;
    settings
}

struct Scene<'a> {
    days: &'a [DayModel],
    spec: Arc<PolicySpec>,
    settings: Settings,
}

impl Scene<'_> {
    fn on_the_host(&self) -> Learner<'_> {
        let trainer = Device::Cpu.trainer(self.days, &self.spec, &self.settings).expect("a trainer");
        Learner::new(self.days, self.spec.clone(), &self.settings, trainer)
    }

    fn on_vulkan(&self) -> Learner<'_> {
        let device = WgpuDevice::default();
        let trainer =
            ResidentTrainer::<WgpuRuntime>::new(self.days, &self.spec, &self.settings, device).expect("a trainer");
        Learner::new(self.days, self.spec.clone(), &self.settings, Box::new(trainer))
    }

    /// What so many updates did, a new block before each, and when each was read.
    fn updates(&self, learner: &mut Learner, updates: usize) -> Vec<(UpdateStats, Instant)> {
        let actor = initial_actor(&self.spec, 1);
        let mut explorer = Explorer::new(self.days, &self.settings, self.spec.clone(), actor, 0, 0);
        let mut did = vec![];
        while did.len() < updates {
            learner.ingest(explorer.block().segments).expect("segments of these days");
            if learner.ready() {
                let batch = learner.batch();
                let plan = UpdatePlan { rate: 1.0, train_actor: true, read: true };
                let stats = learner.update_on(&batch, plan).expect("losses are finite").expect("they were asked for");
                did.push((stats, Instant::now()));
            }
        }
        did
    }
}

/// Bytes in use on the device, once all is done.
fn in_use(learner: &Learner) -> u64 {
    learner.wait();
    let usage = WgpuRuntime::client(&WgpuDevice::default()).memory_usage().expect("the device answers");
    usage.bytes_in_use
}

/// Whether both learners' losses agree, and the device's memory stays what it is from the middle to the end.
fn check(scene: &Scene, what: &str) -> bool {
    let host = scene.updates(&mut scene.on_the_host(), UPDATES);
    let began = Instant::now();
    let mut learner = scene.on_vulkan();
    let vulkan = scene.updates(&mut learner, UPDATES);
    let mut held = true;
    for (name, loss) in &FIGURES[..2] {
        let size = host.iter().map(|(s, _)| loss(s).abs()).fold(0.0, f64::max);
        let worst =
            host.iter().zip(&vulkan).map(|((a, _), (b, _))| (loss(a) - loss(b)).abs()).fold(0.0, f64::max) / size;
        held &= worst <= TOLERANCE;
        println!("{what}, {name}: {UPDATES} within {worst:.1e} of the host's");
    }
    let middle = in_use(&learner);
    let later = scene.updates(&mut learner, UPDATES);
    let end = in_use(&learner);
    held &= end <= middle + middle / 100;
    let first = vulkan[0].1 - began;
    let tenth = vulkan[9].1 - vulkan[0].1;
    let last = later[UPDATES - 1].1 - later[UPDATES - 10].1;
    println!(
        "{what}: first update after {:.1} s, the next nine in {:.1} s, the last nine in {:.1} s; {:.1} MB in use after {UPDATES} updates, \
         {:.1} MB after {}",
        first.as_secs_f64(),
        tenth.as_secs_f64(),
        last.as_secs_f64(),
        middle as f64 * 1e-6,
        end as f64 * 1e-6,
        2 * UPDATES
    );
    held
}

/// What an update does, by name.
const FIGURES: [(&str, fn(&UpdateStats) -> f64); 5] = [
    ("critic's loss", |s| s.critic_loss),
    ("actor's loss", |s| s.actor_loss),
    ("ratio", |s| s.ratio),
    ("critic's norm", |s| s.critic_norm),
    ("actor's norm", |s| s.actor_norm),
];

/// Largest differences of [`FIGURES`] between the same updates of two, each over its own size.
fn between(one: &[UpdateStats], other: &[UpdateStats]) -> [f64; FIGURES.len()] {
    assert_eq!(one.len(), other.len());
    FIGURES.map(|(_, figure)| {
        let size = one.iter().map(|s| figure(s).abs()).fold(1e-9, f64::max);
        let differences = one.iter().zip(other).map(|(a, b)| (figure(a) - figure(b)).abs() / size);
        // NaN is what it stays.
        differences.fold(0.0_f64, |worst, d| if worst.is_nan() || d <= worst { worst } else { d })
    })
}

/// The same between host and device, after so many updates of each.
fn differences(scene: &Scene, updates: usize) -> [f64; FIGURES.len()] {
    let [host, vulkan] = [scene.on_the_host(), scene.on_vulkan()].map(|mut learner| {
        scene.updates(&mut learner, updates).into_iter().map(|(stats, _)| stats).collect::<Vec<_>>()
    });
    between(&host, &vulkan)
}

fn said(differences: [f64; FIGURES.len()]) -> String {
    FIGURES.iter().zip(differences).map(|((name, _), d)| format!("{name} {d:.1e}")).collect::<Vec<_>>().join(", ")
}

/// Every critic, credit, mode and embedding, at sizes that fill no tile, in segments that are not full.
fn check_variants(days: &[DayModel]) -> bool {
    let critics = [
        (Critic::Quantile, Credit::Contract),
        (Critic::Categorical, Credit::Contract),
        (Critic::Scalar, Credit::Contract),
        (Critic::Quantile, Credit::Total),
        (Critic::Scalar, Credit::Total),
    ];
    let modes = [ScoreMode::Contract, ScoreMode::All];
    let embeddings = [(0, 0), (3, 0), (0, 2), (2, 2)];
    let sizes = [(8, 8, 5), (33, 17, 16), (70, 65, 19), (16, 130, 33)];
    let mut worst = [0.0; FIGURES.len()];
    let mut variants = 0;
    for (critic, mode, (ad, traffic), per_step) in critics
        .into_iter()
        .flat_map(|critic| modes.map(|mode| (critic, mode)))
        .flat_map(|(critic, mode)| embeddings.map(|e| (critic, mode, e)))
        .flat_map(|(critic, mode, e)| [1, 3].map(|per_step| (critic, mode, e, per_step)))
    {
        let mut settings = settings(per_step, mode, critic.0);
        settings.learner.credit = critic.1;
        (settings.policy.ad_embedding, settings.policy.traffic_embedding) = (ad, traffic);
        let (hidden, critic_hidden, outputs) = sizes[variants % sizes.len()];
        (settings.policy.hidden, settings.learner.critic_hidden) = (hidden, critic_hidden);
        (settings.learner.quantiles, settings.learner.atoms) = (outputs, outputs);
        (settings.learner.segment, settings.learner.batch, settings.learner.pool) = (7, 42, 84);
        settings.actors.write_every = 21;
        // Episodes that end within a segment; what is observed later than it was delivered; bids without the controller.
        settings.episodes.steps = 17;
        settings.env.feedback_delay_s = if variants % 3 == 0 { 600.0 } else { 0.0 };
        settings.policy.pacing = variants % 5 != 0;
        let spec = world::spec(&days[0], &settings);
        let differences = differences(&Scene { days, spec, settings }, 4);
        for (d, worst) in differences.into_iter().zip(&mut worst) {
            *worst = f64::max(*worst, d);
            if d.is_nan() || d > VARIANTS_TOLERANCE {
                let embeddings = format!("embeddings of {ad} and {traffic}");
                println!("{critic:?}, {mode:?}, {per_step} requests a step, {embeddings}: {}", said(differences));
                return false;
            }
        }
        variants += 1;
    }
    println!("{variants} variants of four updates, beside the host's: {}", said(worst));
    true
}

/// A state goes from one device to the other and back as it is; weights that are not finite are found before anybody gets them; a pool that the
/// device cannot point into is refused.
fn check_states(days: &[DayModel]) -> bool {
    let settings = settings(1, ScoreMode::Contract, Critic::Quantile);
    let spec = world::spec(&days[0], &settings);
    let scene = Scene { days, spec, settings };
    let mut host = scene.on_the_host();
    scene.updates(&mut host, 3);
    let mut state = host.state();
    let mut vulkan = scene.on_vulkan();
    vulkan.restore(&state).expect("a state of the same networks");
    let mut held = vulkan.state().trainer == state.trainer && vulkan.publication().is_ok();
    state.trainer.averaged[3] = f32::NAN;
    vulkan.restore(&state).expect("a state of the same networks");
    held &= vulkan.publication().is_err();
    let mut large = scene.settings.clone();
    large.learner.pool = 1 << 24;
    let refused = ResidentTrainer::<WgpuRuntime>::new(days, &scene.spec, &large, WgpuDevice::default()).err();
    held &= refused.is_some_and(|e| e.to_string().contains("lower learner.pool"));
    println!("states and refusals: {}", if held { "held" } else { "NOT HELD" });
    held
}

/// Two ranks with a half of the segments each: what each device's ranks do together, and one trainer alone with all segments.
struct Ranks {
    together: Vec<UpdateStats>,
    alone: Vec<UpdateStats>,
}

impl Ranks {
    /// `distort` may plant a bug in what the ranks give each other.
    fn learn(
        scene: &Scene,
        updates: usize,
        trainer: impl Fn(&Settings) -> Box<dyn Train>,
        distort: impl Fn(&mut GradientShare),
    ) -> Self {
        let Scene { days, spec, settings } = scene;
        let dims = Dims::of(days, spec, settings);
        let with = Rebuild { days, spec, settings, dims: &dims };
        let mut explorer = Explorer::new(days, settings, spec.clone(), initial_actor(spec, 1), 0, 0);
        let segments: Vec<Segment> = (0..dims.segments).map(|_| explorer.segment()).collect();
        let batch = |trainer: &mut Box<dyn Train>, part: &[Segment]| {
            let placed: Vec<_> = part.iter().enumerate().collect();
            trainer.store(&placed, with);
            trainer.batch(&placed, with)
        };
        let plan = UpdatePlan { rate: 1.0, train_actor: true, read: true };
        let mut all = trainer(settings);
        let whole = batch(&mut all, &segments);
        let alone =
            (0..updates).map(|_| all.update(&whole, plan).expect("losses are finite").expect("they were asked for"));
        let alone = alone.collect();
        let mut ranks = [(); 2].map(|()| trainer(&settings.of_rank(2)));
        let halves = segments.chunks(segments.len() / 2);
        let batches: Vec<_> = ranks.iter_mut().zip(halves).map(|(rank, half)| batch(rank, half)).collect();
        let mut together = vec![];
        for _ in 0..updates {
            let mut shares: Vec<_> =
                ranks.iter().zip(&batches).map(|(rank, batch)| rank.share(batch, plan).expect("its batch")).collect();
            shares.iter_mut().for_each(&distort);
            let share = GradientShare {
                gradients: shares[0].gradients.iter().zip(&shares[1].gradients).map(|(a, b)| (a + b) / 2.0).collect(),
                tally: Tally::sum(shares.iter().map(|share| &share.tally)),
            };
            let stats = ranks.each_mut().map(|rank| rank.apply(&share, 2, plan).expect("losses are finite"));
            assert!(stats[0] == stats[1] && ranks[0].state() == ranks[1].state(), "ranks that have drifted apart");
            together.extend(stats[0]);
        }
        Self { together, alone }
    }
}

/// Ranks on devices of their own learn what ranks on the CPU learn, and what one device learns from all segments.
fn check_ranks(days: &[DayModel]) -> bool {
    let mut held = true;
    for (per_step, critic) in [(1, Critic::Quantile), (3, Critic::Categorical)] {
        let mut settings = settings(per_step, ScoreMode::Contract, critic);
        (settings.learner.segment, settings.learner.batch, settings.learner.pool) = (7, 84, 84);
        let spec = world::spec(&days[0], &settings);
        let scene = Scene { days, spec, settings };
        let on_the_host = |settings: &Settings| Device::Cpu.trainer(days, &scene.spec, settings).expect("a trainer");
        let on_vulkan = |settings: &Settings| -> Box<dyn Train> {
            let trainer = ResidentTrainer::<WgpuRuntime>::new(days, &scene.spec, settings, WgpuDevice::default());
            Box::new(trainer.expect("a trainer"))
        };
        let host = Ranks::learn(&scene, 4, on_the_host, |_| {});
        let vulkan = Ranks::learn(&scene, 4, on_vulkan, |_| {});
        for (what, one) in [("the host's", &host.together), ("one device alone", &vulkan.alone)] {
            let differences = between(one, &vulkan.together);
            held &= differences.iter().all(|d| *d <= VARIANTS_TOLERANCE);
            println!("two ranks, {critic:?}, beside {what}: {}", said(differences));
        }
        let halved = |share: &mut GradientShare| share.gradients.iter_mut().for_each(|g| *g *= 0.5);
        let planted = between(&host.together, &Ranks::learn(&scene, 4, on_vulkan, halved).together);
        let found = planted.iter().any(|d| *d > VARIANTS_TOLERANCE);
        held &= found;
        println!("gradients that were halved on their way: {}", if found { "found" } else { "NOT FOUND" });
    }
    held
}

/// The sizes that are trained with: many cubes in every direction.
fn check_sizes() -> bool {
    let (day, _) = world::day(WorldSize { contracts: 30, ..WORLD }).expect("a day can be made");
    let days = [day];
    let mut held = true;
    for (per_step, batch) in [(30, 512), (1, 4096)] {
        let mut settings = Settings::default();
        settings.episodes.requests_per_step = per_step;
        (settings.learner.batch, settings.learner.pool) = (batch, 2 * batch);
        let spec = world::spec(&days[0], &settings);
        let differences = differences(&Scene { days: &days, spec, settings }, 4);
        held &=
            differences[..2].iter().all(|d| *d <= TOLERANCE) && differences.iter().all(|d| *d <= VARIANTS_TOLERANCE);
        println!("30 contracts, {batch} steps of {per_step} requests, beside the host's: {}", said(differences));
    }
    held
}

/// CPU time so far of each thread of this process, oldest first.
fn thread_times() -> Vec<(u64, String, Duration)> {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").expect("a process has threads").flatten();
    let mut times: Vec<(u64, String, Duration)> = threads
        .map(|thread| {
            let on_cpu = read(thread.path().join("schedstat"));
            let on_cpu = on_cpu.split_whitespace().next().and_then(|t| t.parse().ok()).unwrap_or(0);
            let number = thread.file_name().to_string_lossy().parse().unwrap_or(0);
            (number, read(thread.path().join("comm")).trim().to_owned(), Duration::from_nanos(on_cpu))
        })
        .collect();
    times.sort();
    times
}

/// What an update costs each thread: the first draws and launches, that of the device's client hands launches to the driver, and
/// those behind it, on a software device, are the driver and the device.
fn report_threads(scene: &Scene) {
    let mut learner = scene.on_vulkan();
    scene.updates(&mut learner, 10);
    let mut updates = |n: usize| {
        for _ in 0..n {
            let batch = learner.batch();
            let plan = UpdatePlan { rate: 1.0, train_actor: true, read: false };
            learner.update_on(&batch, plan).expect("nothing is read");
        }
        learner.wait();
    };
    updates(20);
    let before = thread_times();
    updates(UPDATES);
    let times = thread_times().into_iter().filter_map(|(number, name, after)| {
        let earlier = before.iter().find(|(n, ..)| *n == number).map_or(Duration::ZERO, |(.., time)| *time);
        let each = (after - earlier).as_secs_f64() * 1e6 / UPDATES as f64;
        (each >= 1.0).then(|| format!("{name} {each:.0}"))
    });
    println!("CPU time of an update by thread, us: {}", times.collect::<Vec<_>>().join(", "));
}

fn main() {
    keep_kernels();

    let (day, _) = world::day(WORLD).expect("a day can be made");
    let days = [day];
    let cases = [
        (1, ScoreMode::Contract, Critic::Quantile),
        (1, ScoreMode::All, Critic::Quantile),
        (1, ScoreMode::Contract, Critic::Categorical),
        (30, ScoreMode::Contract, Critic::Quantile),
        (30, ScoreMode::Contract, Critic::Scalar),
    ];
    let mut held = check_states(&days) & check_ranks(&days) & values::check() & check_variants(&days);
    if std::env::args().any(|argument| argument == "--variants") {
        println!("{}", if held { "held" } else { "NOT HELD" });
        std::process::exit(i32::from(!held));
    }
    held &= check_sizes();
    for (per_step, mode, critic) in cases {
        let settings = settings(per_step, mode, critic);
        let spec = world::spec(&days[0], &settings);
        let what = format!("{per_step} requests a step, {mode:?}, {critic:?}");
        held &= check(&Scene { days: &days, spec, settings }, &what);
    }
    let settings = settings(1, ScoreMode::Contract, Critic::Quantile);
    let settings = Settings { policy: admix::settings::Policy { ad_embedding: 0, ..settings.policy }, ..settings };
    let spec = world::spec(&days[0], &settings);
    report_threads(&Scene { days: &days, spec, settings });
    println!("{}", if held { "held" } else { "NOT HELD" });
    std::process::exit(i32::from(!held));
}
