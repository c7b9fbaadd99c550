//! `learner.ranks`: several learners that share the work of an update. What they compute together is what one computes from the same
//! samples; through real processes, the same seed gives the same bytes, whoever is killed.

use std::time::Duration;

use admix::actor::Explorer;
use admix::bench::world::{self, WorldSize};
use admix::env::Segment;
use admix::learner::batch::Rebuild;
use admix::learner::trainer::{Train, UpdatePlan};
use admix::learner::{Device, Dims, GradientShare, Learner, LearnerState, NotFinite, Tally, UpdateStats};
use admix::nodes::Node;
use admix::policy::TrainerState;
use admix::policy::file::PolicyFile;
use admix::policy::start::initial_actor;
use admix::run::snapshot;
use admix::settings::{Critic, Settings, Target};
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::crash::{control_of, kill_and_await};
use super::harness::{ENDLESS, Ended, HASTY, Run, child, children_of, config_in, days, send_if_there, train};
use super::resume::interrupted_like_uninterrupted;

const SEGMENTS: usize = 16;

fn settings(target: Target, critic: Critic) -> Settings {
    let mut settings = Settings::default();
    settings.learner.target = target;
    settings.learner.critic = critic;
    settings.episodes.requests_per_step = 10;
    settings.episodes.steps = 60;
    settings.learner.segment = 16;
    settings.learner.batch = 16 * SEGMENTS;
    settings.policy.hidden = 16;
    settings.learner.critic_hidden = 16;
    settings
}

/// Trainers of the same networks, and segments to learn from.
struct Scene {
    settings: Settings,
    days: Vec<admix::env::DayModel>,
    spec: std::sync::Arc<admix::policy::PolicySpec>,
    segments: Vec<Segment>,
}

impl Scene {
    fn new(settings: Settings) -> Self {
        let size = WorldSize { requests: 2_000, queue: 6, eligible: 3, masked: 0.2, contracts: 4 };
        let days = vec![world::day(size).unwrap().0];
        let spec = world::spec(&days[0], &settings);
        let mut explorer = Explorer::new(&days, &settings, spec.clone(), initial_actor(&spec, 1), 0, 0);
        let segments = (0..SEGMENTS).map(|_| explorer.segment()).collect();
        Self { settings, days, spec, segments }
    }

    fn trainer(&self) -> Box<dyn Train> {
        Device::Cpu.trainer(&self.days, &self.spec, &self.settings).unwrap()
    }

    fn batch(&self, trainer: &dyn Train, segments: &[Segment]) -> admix::learner::Batch {
        let Self { days, spec, settings, .. } = self;
        let dims = Dims::of(days, spec, settings);
        let drawn: Vec<_> = segments.iter().enumerate().collect();
        trainer.batch(&drawn, Rebuild { days, spec, settings, dims: &dims })
    }

    /// One update by one trainer with all segments.
    fn alone(&self, trainer: &mut dyn Train, plan: UpdatePlan) -> UpdateStats {
        let batch = self.batch(trainer, &self.segments);
        trainer.update(&batch, plan).unwrap().unwrap()
    }

    /// One update by several trainers with a part of the segments each, which may distort what it gives to the others.
    fn together(
        &self,
        trainers: &mut [Box<dyn Train>],
        plan: UpdatePlan,
        distort: impl Fn(&mut GradientShare),
    ) -> anyhow::Result<UpdateStats> {
        let ranks = trainers.len();
        let parts = self.segments.chunks(SEGMENTS / ranks);
        let shares: Vec<GradientShare> = trainers
            .iter()
            .zip(parts)
            .map(|(trainer, part)| {
                let mut share = trainer.share(&self.batch(&**trainer, part), plan).unwrap();
                distort(&mut share);
                share
            })
            .collect();
        let mean = |i: usize| shares.iter().map(|share| share.gradients[i]).sum::<f32>() / ranks as f32;
        let share = GradientShare {
            gradients: (0..shares[0].gradients.len()).map(mean).collect(),
            tally: Tally::sum(shares.iter().map(|share| &share.tally)),
        };
        let all: anyhow::Result<Vec<_>> =
            trainers.iter_mut().map(|trainer| trainer.apply(&share, ranks, plan)).collect();
        let all = all?;
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        assert!(trainers.windows(2).all(|w| w[0].state() == w[1].state()), "ranks that have drifted apart");
        Ok(all[0].unwrap())
    }
}

/// The largest difference of what a first step leaves in the moments, which are linear in the gradients, relative to the largest one.
fn difference(a: &TrainerState, b: &TrainerState) -> f32 {
    let of = |a: &[f32], b: &[f32]| {
        let most = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(most > 0.0, "nothing was learned");
        a.iter().zip(b).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / most
    };
    of(&a.critic_adam.first, &b.critic_adam.first).max(of(&a.actor_adam.first, &b.actor_adam.first))
}

const PLAN: UpdatePlan = UpdatePlan { rate: 1.0, train_actor: true, read: true };

const CASES: [(Target, Critic); 5] = [
    (Target::Return, Critic::Quantile),
    (Target::Return, Critic::Categorical),
    (Target::Return, Critic::Scalar),
    (Target::Hindsight, Critic::Quantile),
    (Target::Both, Critic::Quantile),
];

#[test]
fn ranks_with_a_part_of_the_batch_each_take_the_step_of_one_with_the_whole() {
    for (target, critic) in CASES {
        let mut settings = settings(target, critic);
        // A step that is clipped would hide a wrong factor.
        (settings.learner.actor_clip, settings.learner.critic_clip) = (1e9, 1e9);
        let scene = Scene::new(settings);
        let mut one = scene.trainer();
        let stats = scene.alone(&mut *one, PLAN);
        for ranks in [1, 2, 4] {
            let several = || -> Vec<_> { (0..ranks).map(|_| scene.trainer()).collect() };
            let mut trainers = several();
            let together = scene.together(&mut trainers, PLAN, |_| {}).unwrap();
            let worst = difference(&one.state(), &trainers[0].state());
            eprintln!("{target:?} {critic:?} {ranks}: {worst:e}");
            assert!(worst < 5e-6, "{target:?}, {critic:?}, {ranks} ranks: {worst}");
            let figures = |s: &UpdateStats| [s.critic_loss, s.actor_loss, s.ratio, s.critic_norm, s.actor_norm];
            for (a, b) in figures(&stats).into_iter().zip(figures(&together)) {
                assert!((a - b).abs() <= 1e-5 * a.abs(), "{target:?}, {critic:?}, {ranks}: {stats:?} {together:?}");
            }
            assert_eq!(stats.calibration, together.calibration);
            // Ranks that divide by what they have themselves weigh alike, whatever is in their batches.
            let mut trainers = several();
            scene
                .together(&mut trainers, PLAN, |share| {
                    let Tally { pairs, lesson_weight, .. } = share.tally;
                    let own = if target == Target::Hindsight { lesson_weight } else { pairs as f64 } as f32;
                    share.gradients.iter_mut().for_each(|g| *g *= 1e3 / own);
                })
                .unwrap();
            assert!(difference(&one.state(), &trainers[0].state()) > 1e-3, "{target:?}, {critic:?}: no planted bug");
        }
    }
}

#[test]
fn ranks_stay_equal_over_many_steps_and_the_actor_waits_for_the_critic() {
    let scene = Scene::new(settings(Target::Both, Critic::Quantile));
    let mut trainers: Vec<_> = (0..2).map(|_| scene.trainer()).collect();
    let start = trainers[0].state();
    for step in 0..20 {
        let plan = UpdatePlan { train_actor: step >= 5, rate: 0.5, ..PLAN };
        scene.together(&mut trainers, plan, |_| {}).unwrap();
        let state = trainers[0].state();
        assert_eq!(state.actor == start.actor, step < 5, "step {step}");
        assert!(state.critic != start.critic);
    }
}

/// The digest is what every exchange compares.
#[test]
fn a_number_of_one_rank_that_is_another_is_seen_in_its_digest() {
    let scene = Scene::new(settings(Target::Return, Critic::Quantile));
    let mut trainers: Vec<_> = (0..2).map(|_| scene.trainer()).collect();
    scene.together(&mut trainers, PLAN, |_| {}).unwrap();
    let trained = trainers[0].state();
    let digest = |trainer: TrainerState| {
        let mut learner = Learner::new(&scene.days, scene.spec.clone(), &scene.settings, scene.trainer());
        let state = LearnerState { trainer, ..learner.state() };
        learner.restore(&state).unwrap();
        learner.digest()
    };
    let same = digest(trained.clone());
    assert_eq!(same, digest(trainers[1].state()));
    let drifts: [fn(&mut TrainerState) -> &mut f32; 6] = [
        |s| &mut s.actor[3],
        |s| &mut s.averaged[3],
        |s| &mut s.critic[3],
        |s| &mut s.target[3],
        |s| &mut s.actor_adam.second[3],
        |s| &mut s.critic_adam.first[3],
    ];
    for (i, drift) in drifts.into_iter().enumerate() {
        let mut drifted = trained.clone();
        let number = drift(&mut drifted);
        *number = f32::from_bits(number.to_bits() ^ 1);
        assert!(digest(drifted) != same, "drift {i}");
    }
}

#[test]
fn a_loss_or_gradient_of_one_rank_that_is_not_finite_is_an_error_in_all() {
    let scene = Scene::new(settings(Target::Return, Critic::Quantile));
    let distortions: [fn(&mut GradientShare); 2] =
        [|share| share.tally.critic_loss = f64::NAN, |share| share.gradients[0] = f32::NAN];
    for distort in distortions {
        let mut trainers: Vec<_> = (0..2).map(|_| scene.trainer()).collect();
        let error = scene.together(&mut trainers, PLAN, distort).unwrap_err();
        assert!(error.is::<NotFinite>(), "{error:#}");
    }
}

const TWO: &str = "learner.ranks=2";
/// Every exchange takes so long that a run cannot be over before a test has seen it.
const SLOW: (&str, &str) = ("ADMIX_FAILPOINT", "exchange.latency@1=30ms");

/// Starts a lock-step run of two ranks.
fn lock_step(sets: &[&str], environment: &[(&str, &str)]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let config = config_in(folder.path(), days());
    Run::start_under(folder, &config, &[&[TWO][..], sets].concat(), &["--deterministic"], environment)
}

fn policies(ended: &Ended) -> [Vec<u8>; 2] {
    [ended.best(), ended.last()].map(|path| std::fs::read(path).unwrap())
}

#[test]
fn the_same_seed_and_number_of_ranks_give_the_same_policy() {
    let plain = lock_step(&[], &[]).wait().expect(0);
    assert!(policies(&plain) == policies(&lock_step(&["checkpoint.every_s=0"], &[SLOW]).wait().expect(0)));
    let three = lock_step(&["learner.ranks=1"], &[]).wait().expect(0);
    assert!(policies(&plain)[1] != policies(&three)[1], "another number of ranks draws other batches");
    let [start, last] = ["start", "last"]
        .map(|name| PolicyFile::read(&plain.dir().join(format!("policy/{name}.safetensors"))).unwrap());
    assert!(start.actor != last.actor);
    assert_eq!(plain.outcome()["updates"], 64);
    // Every rank was at work, and the snapshot has its part.
    let metrics = plain.metrics();
    let of_run = metrics.iter().rfind(|line| line["kind"] == "run").unwrap();
    for name in ["learner", "learner1"] {
        let timing = of_run["processes"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap();
        assert!(timing["compute_s"].as_f64() > Some(0.0), "{timing}");
    }
    let newest = snapshot::newest(&plain.dir().join("checkpoints")).unwrap().unwrap();
    assert_eq!((newest.ranks.len(), newest.state.updates), (1, 64));
    assert_eq!(plain.ledger("consumed"), newest.state.samples);
    let part = &newest.ranks[0];
    assert!(part.state.samples > 0 && part.state.samples < newest.state.samples);
    assert_eq!(part.pool.last().map(|block| block.index + 1), Some(part.state.blocks));
}

/// The budget was looked at behind one more round of all actors.
#[test]
fn ranks_that_have_made_the_last_update_wait_for_no_further_round() {
    // The update of the first round is the last one, and takes so long that the actors can be stopped meanwhile.
    let mut run = lock_step(&["budget.max_updates=1"], &[("ADMIX_FAILPOINT", "exchange.latency@1=5000ms")]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    run.until("the first round", |_| (control.learner.samples_consumed.get() > 0).then_some(()));
    drop(control);
    let actors: Vec<_> = ["actor0", "actor1"].iter().filter_map(|role| child(&run, role)).collect();
    actors.iter().for_each(|actor| send_if_there(actor.pid, Signal::SIGSTOP));
    run.until("the end of the ranks", |run| {
        ["learner", "learner1"].iter().all(|role| child(run, role).is_none()).then_some(())
    });
    // Main waits for them.
    actors.iter().for_each(|actor| send_if_there(actor.pid, Signal::SIGCONT));
    assert_eq!(run.wait().expect(0).outcome()["updates"], 1);
}

#[test]
fn ranks_of_every_target_learn_and_a_run_takes_any_number_of_actors() {
    for sets in [["learner.target=both", "learner.ranks=3"], ["learner.target=hindsight", "learner.ranks=2"]] {
        let sets = [&sets[..], &["actors.count=5", "learner.batch=384", "learner.pool=6000"]].concat();
        let ended = train(&sets, &[]);
        assert_eq!(ended.outcome()["updates"], 64, "{sets:?}");
        assert_eq!(ended.ledger("consumed"), ended.outcome()["samples"].as_u64().unwrap());
        let records = ended.metrics().into_iter().filter(|line| line["kind"] == "learner");
        let losses: Vec<f64> = records.map(|line| line["critic_loss"].as_f64().unwrap()).collect();
        assert!(!losses.is_empty() && losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");
    }
}

#[test]
fn processes_killed_at_random_moments_change_no_bit_of_a_lock_step_run() {
    let sets =
        ["budget.max_updates=200", "checkpoint.every_s=0.02", "watchdog.max_restarts=1000", "actors.max_restarts=1000"];
    let plain = lock_step(&sets, &[]).wait().expect(0);
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let mut run = lock_step(&sets, &[SLOW]);
    // Each role once, then any: the first before anything is saved.
    let roles = ["learner1", "learner", "actor0", "evaluator", "checkpointer", "actor1", "learner1", "learner"];
    let mut kills = 0;
    for role in roles {
        while !run.is_over() {
            if let Some(victim) = child(&run, role) {
                send_if_there(victim.pid, Signal::SIGKILL);
                kills += 1;
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..500)));
    }
    let ended = run.wait().expect(0);
    assert!(kills > 0 && ended.outcome()["went_back"].as_u64() > Some(0), "{kills}: {}", ended.outcome());
    assert!(policies(&ended) == policies(&plain), "after {kills} kills");
    assert_eq!(ended.outcome()["updates"], 200);
    ended.ledger("produced");
}

/// Between its part of a snapshot and the first rank's, which makes it whole. The second snapshot of a process begins when the first one
/// is on disk, so every start gets further; the last snapshot of a run is certain.
#[test]
fn ranks_killed_within_a_snapshot_change_no_bit() {
    let sets = ["budget.max_updates=24", "watchdog.max_restarts=1000", "checkpoint.every_s=0.001"];
    let plain = lock_step(&sets, &[]).wait().expect(0);
    for failpoint in ["peer.snapshot@2=kill", "learner.snapshot@2=kill"] {
        let ended = lock_step(&sets, &[("ADMIX_FAILPOINT", failpoint)]).wait().expect(0);
        assert!(ended.outcome()["went_back"].as_u64() > Some(0), "{failpoint}: nobody died");
        assert!(policies(&ended) == policies(&plain), "{failpoint}");
        // A free run goes on in the same shared memory, in which parts of such a snapshot lie.
        let free = [&sets[..], &[TWO]].concat();
        let ended = Run::start_failing(failpoint, &free).wait().expect(0);
        let outcome = ended.outcome();
        assert!(outcome["other_restarts"].as_u64() > Some(0), "{failpoint}: {outcome}");
        assert_eq!(outcome["updates"], 24, "{failpoint}");
        let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap();
        assert_eq!((newest.state.updates, newest.ranks[0].state.updates), (24, 24), "{failpoint}");
        let samples = outcome["samples"].as_u64().unwrap() + outcome["rolled_back"].as_u64().unwrap();
        assert_eq!(ended.ledger("consumed"), samples, "{failpoint}: {outcome}");
    }
}

#[test]
fn killed_ranks_are_replaced_and_all_go_on_from_the_newest_snapshot() {
    let mut run = Run::start(&[ENDLESS, &[TWO, "checkpoint.every_s=0.1"]].concat(), &[]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    run.until("updates", |_| (control.learner.updates.get() > 0).then_some(()));
    for role in ["learner1", "learner", "learner1"] {
        let snapshots = control.checkpoint.snapshots.get();
        run.until("snapshots", |_| (control.checkpoint.snapshots.get() > snapshots + 1).then_some(()));
        kill_and_await(&mut run, role);
        // Read after the death: only the successors get beyond these.
        let updates = control.learner.updates.get();
        run.until("progress", |_| (control.learner.updates.get() > updates).then_some(()));
    }
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    let outcome = ended.outcome();
    assert_eq!((&outcome["actor_restarts"], &outcome["other_restarts"]), (&0.into(), &3.into()), "{outcome}");
    let samples = outcome["samples"].as_u64().unwrap() + outcome["rolled_back"].as_u64().unwrap();
    assert_eq!(ended.ledger("consumed"), samples);
    let restored: Vec<_> = ended.metrics().into_iter().filter(|line| line["kind"] == "restored").collect();
    assert_eq!(restored.len(), 3, "each time from a snapshot");
}

#[test]
fn a_rank_that_hangs_is_killed_and_all_go_on() {
    let mut run = Run::start(&[ENDLESS, &[TWO], &HASTY].concat(), &[]);
    let victim = run.until("rank", |run| child(run, "learner1"));
    let control = control_of(&victim);
    run.until("a snapshot", |_| (control.checkpoint.snapshots.get() > 0).then_some(()));
    send_if_there(victim.pid, Signal::SIGSTOP);
    run.until("replacement", |run| child(run, "learner1").filter(|kin| kin.pid != victim.pid));
    let updates = control.learner.updates.get();
    run.until("progress", |_| (control.learner.updates.get() > updates).then_some(()));
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert!(ended.stderr.contains("learner1 has given no sign of life"), "{}", ended.stderr);
}

#[test]
fn an_interrupted_run_saves_and_goes_on_with_as_many_ranks_alone() {
    let sets = ["budget.max_updates=200", TWO];
    let plain = lock_step(&sets, &[]).wait().expect(0);
    // It takes twenty seconds, so that it cannot be over before it is interrupted.
    let mut run = lock_step(&sets, &[("ADMIX_FAILPOINT", "exchange.latency@1=100ms")]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    run.until("updates", |_| (control.learner.updates.get() > 5).then_some(()));
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap();
    assert_eq!(Some(newest.state.updates), ended.outcome()["updates"].as_u64());
    assert_eq!(newest.ranks[0].state.updates, newest.state.updates);
    let resumed = |folder, ranks: &str| {
        let sets = ["budget.max_updates=200", ranks];
        Run::resume(folder, &sets, &["--deterministic", "--resume"]).wait()
    };
    let refused = resumed(ended.into_folder(), "learner.ranks=1").expect(2);
    assert!(refused.stderr.contains("learner.ranks was 2, is 1 (in lock-step"), "{}", refused.stderr);
    let ended = resumed(refused.into_folder(), TWO).expect(0);
    assert!(policies(&ended) == policies(&plain));
}

/// Interrupted by SIGINT, by SIGKILL to main and by SIGKILL to each role, at random moments.
#[test]
fn lock_step_runs_of_two_ranks_that_are_killed_and_resumed_end_like_untouched_ones() {
    interrupted_like_uninterrupted(&[TWO, "budget.max_updates=96"], 17, 5);
    interrupted_like_uninterrupted(&[TWO, "budget.max_updates=64", "learner.target=both", "learner.pool=600"], 18, 2);
}

#[test]
fn a_free_run_goes_on_with_another_number_of_ranks_and_with_the_pools_of_all() {
    // What lies in rings at the end does not fill a pool.
    let rings = "actors.regions=2";
    let mut run = Run::start(&[ENDLESS, &[TWO, rings, "checkpoint.every_s=0.1"]].concat(), &[]);
    let snapshots = run.dir().join("checkpoints");
    run.until("a snapshot", |_| snapshot::newest(&snapshots).unwrap().filter(|s| s.state.updates > 40));
    let mut folder = run.kill();
    for (before, ranks) in [(2, 1), (1, 2)] {
        let newest = snapshot::newest(&folder.path().join("run/checkpoints")).unwrap().unwrap();
        assert_eq!(newest.ranks.len() + 1, before);
        let updates = newest.state.updates + 8;
        let dealt = newest.dealt_to(Node::default().world(ranks));
        let [budget, ranks_set] = [format!("budget.max_updates={updates}"), format!("learner.ranks={ranks}")];
        let ended = Run::resume(folder, &[&budget, &ranks_set, rings], &["--resume"]).wait().expect(0);
        let outcome = ended.outcome();
        assert_eq!(outcome["updates"], updates, "{}", ended.stderr);
        let samples = outcome["samples"].as_u64().unwrap() + outcome["rolled_back"].as_u64().unwrap();
        assert_eq!(ended.ledger("consumed"), samples, "{outcome}");
        let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap();
        assert_eq!((newest.ranks.len() + 1, newest.state.updates), (ranks, updates));
        for rank in 0..ranks {
            let [pool, dealt] = [&newest, &dealt].map(|snapshot| snapshot.part_of(rank).unwrap().2);
            let steps: u64 = pool.iter().map(|block| u64::from(block.samples)).sum();
            assert!(
                pool[0].index == 0 || steps >= 4000 / ranks as u64,
                "rank {rank} of {ranks} has {steps} steps alone"
            );
            assert!(pool.windows(2).all(|two| two[0].index + 1 == two[1].index));
            let kept = pool.iter().filter_map(|block| Some((block, dealt.get(block.index as usize)?)));
            assert!(kept.clone().count() > 0 && kept.clone().all(|(block, dealt)| block == dealt));
        }
        folder = ended.into_folder();
    }
}

#[test]
fn a_free_run_that_is_asked_to_stop_saves_and_every_sample_is_accounted_for() {
    let mut run = Run::start(&[ENDLESS, &[TWO, "checkpoint.every_s=1000"]].concat(), &[]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    run.until("updates", |_| (control.learner.updates.get() > 20).then_some(()));
    drop(control);
    // As service managers do, to all processes.
    let children = children_of(run.pid());
    children.iter().for_each(|kin| send_if_there(kin.pid, Signal::SIGTERM));
    run.signal(Signal::SIGTERM);
    let ended = run.wait().expect(130);
    let outcome = ended.outcome();
    assert_eq!(outcome["other_restarts"], 0, "{outcome}");
    assert_eq!(ended.ledger("consumed"), outcome["samples"].as_u64().unwrap());
    let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap();
    assert_eq!(Some(newest.state.updates), outcome["updates"].as_u64());
}

#[test]
fn losses_that_are_not_finite_send_all_ranks_back() {
    let sets = ["budget.max_updates=200", "checkpoint.every_s=0.05", TWO];
    // The updates before take much longer than until the first snapshot.
    let failpoints = "learner.loss@150=fail,exchange.latency@1=3ms";
    let ended = Run::start_failing(failpoints, &sets).wait().expect(0);
    assert_eq!(ended.outcome()["updates"], 200);
    let mut kept: Vec<_> = std::fs::read_dir(ended.dir().join("incidents"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort();
    assert!(kept.len() == 2 && kept.iter().any(|name| name.ends_with("-rank-1.block")), "{kept:?}");
    assert_eq!(ended.metrics().iter().filter(|line| line["kind"] == "restored").count(), 1);
}

#[test]
fn settings_that_ranks_cannot_share_are_refused_at_once() {
    let refused = |sets: &[&str], arguments: &[&str], names: &[&str]| {
        let ended = Run::start(&[&[TWO][..], sets].concat(), arguments).wait();
        assert!(matches!(ended.code, Some(1 | 2)), "{sets:?}: {:?}", ended.code);
        assert!(names.iter().all(|name| ended.stderr.contains(name)), "{sets:?}: {}", ended.stderr);
        assert!(!ended.dir().join("metrics.jsonl").exists(), "{sets:?}");
    };
    refused(&["learner.batch=192"], &[], &["learner.batch", "learner.ranks = 2", "2 x learner.segment = 128"]);
    refused(&["learner.pool=4001"], &[], &["learner.pool", "learner.ranks = 2"]);
    refused(&["actors.count=1"], &[], &["learner.ranks", "actors.count = 1"]);
    refused(&["learner.ranks=9"], &[], &["learner.ranks", "at most 8"]);
    refused(&[], &["--serial"], &["learner.ranks = 2", "--serial"]);
    refused(&["learner.collective=nccl"], &["--device", "cpu"], &["learner.collective", "each rank needs a GPU"]);
    refused(&["learner.collective=nccl", "learner.ranks=1"], &[], &["learner.collective", "set learner.ranks"]);
}
