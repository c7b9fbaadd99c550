//! The GPU's trainer, on the CPU, held against the CPU's: pool, batches and losses as tensors beside closed forms in loops.

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::env::DayModel;
use admix::learner::trainer::UpdatePlan;
use admix::learner::{Device, Learner, UpdateStats};
use admix::settings::{Credit, Critic, ScoreMode, Settings};
use proptest::prelude::*;

use super::harness::train;
use super::worlds;

const DEVICES: [Device; 2] = [Device::Cpu, Device::CpuResident];

fn small() -> Settings {
    let mut settings = Settings::default();
    settings.policy.hidden = 8;
    settings.policy.warm_start = false;
    settings.learner.critic_hidden = 8;
    settings.learner.quantiles = 5;
    settings.learner.atoms = 7;
    settings.learner.segment = 4;
    settings.learner.batch = 12;
    settings.learner.pool = 24;
    settings.actors.write_every = 8;
    settings.actors.episodes = 2;
    settings
}

/// What `updates` updates did on each device: the same segments, the same draws.
fn both(days: &[DayModel], settings: &Settings, updates: usize) -> [Vec<UpdateStats>; 2] {
    let spec = world::spec(&days[0], settings);
    DEVICES.map(|device| {
        let mut explorer = Explorer::new(days, settings, spec.clone(), spec.initial_actor(1), 0, 0);
        let trainer = device.trainer(days, &spec, settings).unwrap();
        let mut learner = Learner::new(days, spec.clone(), settings, trainer);
        let mut did = vec![];
        while did.len() < updates {
            // Old places are taken again and again.
            for _ in 0..3 {
                learner.ingest(explorer.block().segments).unwrap();
            }
            if learner.ready() {
                let batch = learner.batch();
                let plan = UpdatePlan { rate: 1.0, train_actor: did.len() % 3 != 1, read: true };
                did.push(learner.update_on(&batch, plan).unwrap().unwrap());
            }
        }
        did
    })
}

/// The largest difference between the two devices in each figure, beside the figure's largest size.
fn differences([host, resident]: &[Vec<UpdateStats>; 2]) -> [f64; 5] {
    let figures: [fn(&UpdateStats) -> f64; 5] =
        [|s| s.critic_loss, |s| s.actor_loss, |s| s.ratio, |s| s.critic_norm, |s| s.actor_norm];
    figures.map(|figure| {
        let size = host.iter().map(|s| figure(s).abs()).fold(0.0, f64::max);
        let pairs = host.iter().zip(resident);
        pairs.map(|(a, b)| (figure(a) - figure(b)).abs()).fold(0.0, f64::max) / size.max(1e-9)
    })
}

/// Every critic and credit that there is, and what changes a segment's shape or content.
fn variants() -> impl Strategy<Value = Settings> {
    let critics = [
        (Critic::Quantile, Credit::Contract),
        (Critic::Categorical, Credit::Contract),
        (Critic::Scalar, Credit::Contract),
        (Critic::Quantile, Credit::Total),
        (Critic::Scalar, Credit::Total),
    ];
    let critic = prop::sample::select(critics.to_vec());
    let modes = prop::sample::select(vec![ScoreMode::Contract, ScoreMode::All]);
    let embeddings = prop::sample::select(vec![(0, 0), (3, 0), (0, 2), (2, 2)]);
    let delays = prop::sample::select(vec![0.0, 600.0]);
    let bids = (any::<bool>(), any::<bool>());
    (critic, modes, 1usize..4, embeddings, delays, bids, 0.0..1.0f64).prop_map(
        |((critic, credit), mode, per_step, (ad, traffic), delay, (negative_bids, pacing), lambda)| {
            let mut s = small();
            (s.learner.critic, s.learner.credit, s.score_mode) = (critic, credit, mode);
            s.episodes.requests_per_step = per_step;
            (s.policy.ad_embedding, s.policy.traffic_embedding) = (ad, traffic);
            s.env.feedback_delay_s = delay;
            (s.policy.negative_bids, s.policy.pacing) = (negative_bids, pacing);
            s.learner.lambda = lambda;
            s
        },
    )
}

proptest! {
    #![proptest_config(worlds::cases(96))]

    #[test]
    fn both_trainers_do_the_same_on_random_worlds(world in worlds::world(), settings in variants()) {
        let loaded = world.load();
        prop_assume!(!loaded.day.log.requests().is_empty());
        // Later updates carry on what rounding did to the first ones' Adam steps.
        let all = both(std::slice::from_ref(&loaded.day), &settings, 3);
        for (i, difference) in differences(&all).into_iter().enumerate() {
            prop_assert!(difference < 2e-3, "figure {}: {difference:.1e}, {all:?}", i);
        }
    }
}

#[test]
fn a_hundred_losses_are_those_of_the_host() {
    let size = WorldSize { requests: 6_000, queue: 16, eligible: 8, contracts: 12 };
    let (day, _) = world::day(size).unwrap();
    let days = [day];
    for (per_step, mode) in [(1, ScoreMode::Contract), (1, ScoreMode::All), (10, ScoreMode::Contract)] {
        let mut settings = Settings::default();
        settings.episodes.requests_per_step = per_step;
        settings.score_mode = mode;
        settings.policy.hidden = 32;
        settings.learner.segment = 32;
        settings.learner.batch = 128;
        settings.learner.pool = 2_048;
        settings.actors.write_every = 128;
        // The tolerance of scripts/gpu-check.
        let all = both(&days, &settings, 100);
        let [critic, actor, ..] = differences(&all);
        assert!(critic < 1e-4 && actor < 1e-4, "{per_step} {mode:?}: {:?}", differences(&all));
    }
}

fn small_day() -> [DayModel; 1] {
    [world::day(WorldSize { requests: 500, queue: 6, eligible: 3, contracts: 4 }).unwrap().0]
}

/// What an update led to is not always read: weights that are not finite have to be found before anybody gets them.
#[test]
fn weights_that_are_not_finite_are_not_published() {
    let (days, settings) = (small_day(), small());
    let spec = world::spec(&days[0], &settings);
    for device in DEVICES {
        let trainer = device.trainer(&days, &spec, &settings).unwrap();
        let mut learner = Learner::new(&days, spec.clone(), &settings, trainer);
        let mut state = learner.state();
        assert!(learner.publication().is_ok());
        state.trainer.averaged[3] = f32::NAN;
        learner.restore(&state).unwrap();
        assert!(learner.publication().unwrap_err().to_string().contains("a weight is not finite"));
    }
}

#[test]
fn a_state_goes_from_one_device_to_the_other_and_back() {
    let (days, settings) = (small_day(), small());
    let spec = world::spec(&days[0], &settings);
    let [mut host, mut resident] = DEVICES.map(|device| {
        let trainer = device.trainer(&days, &spec, &settings).unwrap();
        Learner::new(&days, spec.clone(), &settings, trainer)
    });
    let mut explorer = Explorer::new(&days, &settings, spec.clone(), spec.initial_actor(1), 0, 0);
    while !host.ready() {
        host.ingest(explorer.block().segments).unwrap();
    }
    host.update(true).unwrap();
    let state = host.state();
    resident.restore(&state).unwrap();
    assert_eq!(resident.state().trainer, state.trainer);
}

#[test]
fn a_pool_that_the_device_cannot_point_into_is_refused() {
    let mut settings = small();
    settings.learner.pool = 1 << 24;
    let days = small_day();
    let spec = world::spec(&days[0], &settings);
    let refused = Device::CpuResident.trainer(&days, &spec, &settings).err().expect("it is too large");
    assert!(refused.to_string().contains("lower learner.pool"), "{refused}");
    assert!(Device::Cpu.trainer(&days, &spec, &settings).is_ok());
}

/// The whole flow with the pool on the device; `resume` and `crash` have snapshots and roll-backs.
#[test]
fn a_lock_step_training_with_a_resident_pool_repeats_itself_and_is_near_the_hosts() {
    let ended = train(&["run.device=cpu-resident"], &["--deterministic"]);
    assert_eq!(ended.manifest()["device"], "cpu-resident");
    let again = train(&["run.device=cpu-resident"], &["--deterministic"]);
    let host = train(&[], &["--deterministic"]);
    assert!(std::fs::read(ended.last()).unwrap() == std::fs::read(again.last()).unwrap());
    let losses = |ended: &super::harness::Ended| {
        let lines = ended.metrics().into_iter().filter(|line| line["kind"] == "learner");
        lines.map(|line| line["critic_loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let (resident, host) = (losses(&ended), losses(&host));
    assert!(!host.is_empty() && resident.len() == host.len());
    for (a, b) in resident.iter().zip(&host) {
        assert!((a - b).abs() < 0.02 * b.abs(), "{resident:?} {host:?}");
    }
}
