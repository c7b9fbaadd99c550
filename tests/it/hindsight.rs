//! Learning from prices in hindsight, through the real program.

use std::sync::Arc;

use admix::actor::Explorer;
use admix::bench::world;
use admix::env::DayModel;
use admix::log::{self, CompileOptions};
use admix::plan::Plan;
use admix::policy::start::initial_actor;
use admix::settings::{Settings, Target};

use crate::decisions::synth;
use crate::harness::*;
use crate::volume::WORLD;

/// From bids far too low, without the training days' prices, planner or controller.
const COLD: [&str; 7] = [
    "policy.warm_start=false",
    "policy.pacing=false",
    "policy.initial_bid=0.05",
    "learner.target=hindsight",
    "learner.samples_per_update=16",
    "budget.max_updates=600",
    "evaluate.every=100",
];

/// Shares on the validation day, from the first evaluation to the last.
fn shares(sets: &[&str]) -> Vec<f64> {
    let sets: Vec<&str> = COLD.iter().chain(sets).copied().collect();
    let ended = train(&sets, &["--deterministic"]);
    let metrics = ended.metrics();
    metrics.iter().filter(|line| line["kind"] == "evaluation").map(|line| line["share"].as_f64().unwrap()).collect()
}

#[test]
fn without_a_planner_hindsight_gains_points_and_nothing_at_rate_zero() {
    let learned = shares(&[]);
    let (start, last) = (learned[0], *learned.last().unwrap());
    assert!(last >= start + 0.05, "validation went from {start} to {last}: {learned:?}");
    let stood = shares(&["learner.actor_rate=0", "learner.critic_rate=0", "budget.max_updates=100"]);
    assert!(stood.iter().all(|share| *share == stood[0]), "nothing is learned at rate 0: {stood:?}");
}

#[test]
fn lock_step_with_lessons_is_the_same_policy_again() {
    let sets = ["learner.target=hindsight", "policy.outlook=true", "learner.lesson_every_s=900"];
    let [first, second] = [0, 1].map(|_| std::fs::read(train(&sets, &["--deterministic"]).last()).unwrap());
    assert!(first == second, "the same seed in lock-step gives the same bytes");
}

/// It went on with the tuned price memory, which the network does not know.
#[test]
fn an_explorer_of_the_outlook_goes_on_with_the_same_prices() {
    let mut settings = Settings::default();
    settings.policy.outlook = true;
    settings.learner.target = Target::Hindsight;
    settings.episodes.requests_per_step = 5;
    settings.learner.segment = 8;
    let scratch = tempfile::tempdir().unwrap();
    let dirs = synth(scratch.path(), WORLD, 1);
    let log = log::open(&dirs[0], CompileOptions::default()).unwrap();
    let plan = Plan::from_days(&[&log], 0).unwrap();
    let mut days = vec![DayModel::new(&dirs[0], log, &plan, Arc::default()).unwrap()];
    days[0].horizon.memory_s = 60.0;
    let spec = world::spec(&days[0], &settings);
    let explorer = || Explorer::new(&days, &settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
    let mut whole = explorer();
    let begun: Vec<u64> = (0..8).map(|_| whole.segment().episode).collect();
    let mut resumed = explorer();
    resumed.resume(&whole.save().unwrap()).unwrap();
    let mut replans = 0;
    for i in 0..80 {
        let [expected, got] = [&mut whole, &mut resumed].map(Explorer::segment);
        assert!(got == expected, "segment {i} is another one");
        if begun.contains(&got.episode) {
            replans += got.replans.len();
        }
    }
    assert!(replans > 1, "{replans} plans in the episodes that went on");
}

#[test]
fn both_targets_learn_together() {
    let sets = ["learner.target=both", "policy.outlook=true"];
    let metrics = train(&sets, &["--serial"]).metrics();
    let learner: Vec<_> = metrics.iter().filter(|line| line["kind"] == "learner").collect();
    assert!(!learner.is_empty());
    for line in learner {
        assert!(line["critic_loss"].as_f64().unwrap() > 0.0 && line["actor_norm"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn a_gpu_that_is_named_for_prices_in_hindsight_is_refused() {
    let ended = Run::start(&["learner.target=hindsight"], &["--device", "cuda"]).wait();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("learner.target") && ended.stderr.contains("--device cpu"), "{}", ended.stderr);
}
