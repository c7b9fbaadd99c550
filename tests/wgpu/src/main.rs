//! The GPU's trainer on a Vulkan device, held against the CPU's.
//!
//! **Why.** CUDA needs a GPU; Vulkan has a software device (Mesa's lavapipe). Both run kernels that the same
//! compiler fuses from the same tensor operations, so that everything but the last translation, to CUDA's language or to Vulkan's, and the
//! speed can be checked on any machine: losses within the tolerance of `scripts/gpu-check`, and that updates take no more memory as
//! they go on.

use std::sync::Arc;
use std::time::Instant;

use admix::actor::Explorer;
use admix::env::DayModel;
use admix::learner::resident::ResidentTrainer;
use admix::learner::trainer::UpdatePlan;
use admix::learner::{Device, Learner, device};
use admix::policy::PolicySpec;
use admix::product::bench::world::{self, WorldSize};
use admix::settings::{Critic, ScoreMode, Settings};
use burn_wgpu::{Wgpu, WgpuDevice, WgpuRuntime};
use cubecl::Runtime as _;

const TOLERANCE: f64 = 1e-4;
const UPDATES: usize = 100;

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
        let trainer = ResidentTrainer::<Wgpu>::new(self.days, &self.spec, &self.settings, device).expect("a trainer");
        Learner::new(self.days, self.spec.clone(), &self.settings, Box::new(trainer))
    }

    /// Losses of critic and actor of so many updates, a new block before each, and when each was read.
    fn losses(&self, learner: &mut Learner, updates: usize) -> Vec<([f64; 2], Instant)> {
        let actor = self.spec.initial_actor(1);
        let mut explorer = Explorer::new(self.days, &self.settings, self.spec.clone(), actor, 0, 0);
        let mut losses = vec![];
        while losses.len() < updates {
            learner.ingest(explorer.block().segments).expect("segments of these days");
            if learner.ready() {
                let batch = learner.batch();
                let plan = UpdatePlan { rate: 1.0, train_actor: true, read: true };
                let stats = learner.update_on(&batch, plan).expect("losses are finite").expect("they were asked for");
                losses.push(([stats.critic_loss, stats.actor_loss], Instant::now()));
            }
        }
        losses
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
    let host = scene.losses(&mut scene.on_the_host(), UPDATES);
    let began = Instant::now();
    let mut learner = scene.on_vulkan();
    let vulkan = scene.losses(&mut learner, UPDATES);
    let mut held = true;
    for (i, network) in ["critic", "actor"].into_iter().enumerate() {
        let size = host.iter().map(|(l, _)| l[i].abs()).fold(0.0, f64::max);
        let worst = host.iter().zip(&vulkan).map(|((a, _), (b, _))| (a[i] - b[i]).abs()).fold(0.0, f64::max) / size;
        held &= worst <= TOLERANCE;
        println!("{what}, {network}: {UPDATES} losses within {worst:.1e} of the host's");
    }
    let middle = in_use(&learner);
    let later = scene.losses(&mut learner, UPDATES);
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

fn main() {
    device::keep_kernels();
    let size = WorldSize { requests: 6_000, queue: 16, eligible: 8, contracts: 12 };
    let (day, _) = world::day(size).expect("a day can be made");
    let days = [day];
    let cases = [
        (1, ScoreMode::Contract, Critic::Quantile),
        (1, ScoreMode::All, Critic::Quantile),
        (1, ScoreMode::Contract, Critic::Categorical),
        (30, ScoreMode::Contract, Critic::Quantile),
        (30, ScoreMode::Contract, Critic::Scalar),
    ];
    let mut held = true;
    for (per_step, mode, critic) in cases {
        let settings = settings(per_step, mode, critic);
        let spec = world::spec(&days[0], &settings);
        let what = format!("{per_step} requests a step, {mode:?}, {critic:?}");
        held &= check(&Scene { days: &days, spec, settings }, &what);
    }
    println!("{}", if held { "held" } else { "NOT HELD" });
    std::process::exit(i32::from(!held));
}
