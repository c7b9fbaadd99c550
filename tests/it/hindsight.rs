//! Learning from prices in hindsight, through the real program.

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::policy::start::initial_actor;
use admix::settings::{Settings, Target};

use crate::harness::*;

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
    let size = WorldSize { requests: 4_000, queue: 6, eligible: 3, masked: 0.2, contracts: 4 };
    let mut days = vec![world::day(size).unwrap().0];
    days[0].horizon.memory_s = 60.0;
    let spec = world::spec(&days[0], &settings);
    let explorer = || Explorer::new(&days, &settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
    let mut whole = explorer();
    whole.block();
    let mut resumed = explorer();
    resumed.resume(&whole.save().unwrap()).unwrap();
    let mut lessons = 0;
    for i in 0..40 {
        let [expected, got] = [&mut whole, &mut resumed].map(Explorer::segment);
        lessons += got.lessons.len();
        assert!(got == expected, "segment {i} is another one");
    }
    assert!(lessons > 0, "no lesson was compared");
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
