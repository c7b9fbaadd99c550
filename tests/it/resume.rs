//! Runs that go on: the same bytes in lock-step, wherever they were interrupted; refused where they would not be the same run.

use std::time::{Duration, Instant};

use admix::evaluator::judge::{ALIVE_EVERY, Judge, Start};
use admix::policy::file::PolicyFile;
use admix::run::{Context, RunDirectory};
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::harness::{ENDLESS, Ended, Run, child, eval, send_if_there, train, until_best};

/// Both policy files of a run.
fn policies(ended: &Ended) -> [Vec<u8>; 2] {
    [ended.best(), ended.last()].map(|path| std::fs::read(path).unwrap())
}

/// Interruptions of a chain of lock-step runs; more with ADMIX_INTERRUPTIONS.
fn interruptions() -> usize {
    std::env::var("ADMIX_INTERRUPTIONS").map_or(8, |n| n.parse().expect("ADMIX_INTERRUPTIONS is a number"))
}

/// Interrupts runs of `sets` at random moments, in every way there is, until so many interruptions have been gone on from;
/// each run that comes to its end must be the one that was never interrupted.
pub fn interrupted_like_uninterrupted(sets: &[&str], seed: u64, interruptions: usize) {
    let sets = [sets, &["checkpoint.every_s=0.02", "data.test=[]"]].concat();
    let begun = Instant::now();
    let whole = policies(&train(&sets, &["--deterministic"]));
    let takes = begun.elapsed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut left = interruptions;
    while left > 0 {
        let mut run = Run::start(&sets, &["--deterministic"]);
        let ended = loop {
            let moment = takes.mul_f64(rng.random_range(0.1..0.9));
            let start = Instant::now();
            let over = loop {
                if run.is_over() {
                    break true;
                }
                if start.elapsed() > moment {
                    break false;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            if over || left == 0 {
                break run.wait().expect(0);
            }
            left -= 1;
            // It may not have planned yet, or not have a snapshot.
            let how = "--resume=auto";
            match rng.random_range(0..4) {
                0 => {
                    run.signal(Signal::SIGINT);
                    let ended = run.wait();
                    // Without a code where it had not begun to listen.
                    assert!(matches!(ended.code, None | Some(0 | 130)), "{}", ended.stderr);
                    run = Run::resume(ended.into_folder(), &sets, &["--deterministic", how]);
                }
                1 => {
                    // All go back to the last snapshot, in the same run.
                    for role in ["actor0", "actor1", "learner", "learner1", "evaluator", "checkpointer"] {
                        if rng.random_bool(0.3)
                            && let Some(kin) = child(&run, role)
                        {
                            let _ = nix::sys::signal::kill(
                                nix::unistd::Pid::from_raw(kin.pid.cast_signed()),
                                Signal::SIGKILL,
                            );
                            break;
                        }
                    }
                }
                _ => run = Run::resume(run.kill(), &sets, &["--deterministic", how]),
            }
        };
        assert!(policies(&ended) == whole, "another policy after interruptions (seed {seed})");
    }
}

#[test]
fn interrupted_lock_step_runs_end_like_uninterrupted_ones() {
    interrupted_like_uninterrupted(&["budget.max_updates=128"], 1, interruptions());
}

#[test]
fn so_they_do_with_delayed_feedback_other_critics_and_without_a_plan_in_the_bids() {
    for (seed, sets) in [
        (2, &["env.feedback_delay_s=600", "episodes.requests_per_step=3"][..]),
        (3, &["learner.critic=categorical", "policy.warm_start=false", "learner.pool=600"]),
        (4, &["score_mode=all", "actors.episodes=1"]),
        (5, &["learner.target=hindsight", "policy.outlook=true", "env.feedback_delay_s=600"]),
    ] {
        interrupted_like_uninterrupted(sets, seed, 2);
    }
}

/// A snapshot of no updates made the actors draw other episodes than a run that was never interrupted.
#[test]
fn a_lock_step_run_interrupted_before_its_first_round_ends_goes_on_to_the_same_bytes() {
    let sets = ["budget.max_updates=64", "checkpoint.every_s=0.2", "data.test=[]"];
    let whole = policies(&train(&sets, &["--deterministic"]));
    let mut before_the_first = 0;
    for _ in 0..4 {
        let mut run = Run::start(&sets, &["--deterministic"]);
        run.until("a line of metrics", |run| {
            std::fs::read(run.dir().join("metrics.jsonl")).is_ok_and(|text| text.contains(&b'\n')).then_some(())
        });
        run.signal(Signal::SIGTERM);
        let ended = run.wait();
        assert!(matches!(ended.code, Some(0 | 130)), "{}", ended.stderr);
        let snapshot = admix::run::snapshot::newest(&ended.dir().join("checkpoints")).unwrap();
        before_the_first += usize::from(snapshot.is_some_and(|s| s.state.updates == 0));
        let ended = Run::resume(ended.into_folder(), &sets, &["--deterministic", "--resume=auto"]).wait().expect(0);
        assert!(policies(&ended) == whole, "another policy");
    }
    assert!(before_the_first > 0, "no run was interrupted before its first round; the test tests nothing");
}

/// They said that they went on, began at 0 and replaced the best policy by a worse one.
#[test]
fn a_run_without_a_readable_snapshot_is_not_begun_again_unasked_and_keeps_its_best_policy() {
    let sets = ["checkpoint.every_s=0.05", "budget.max_updates=200"];
    let ended = train(&sets, &[]);
    let best = std::fs::read(ended.best()).unwrap();
    let best_j = ended.outcome()["best_j"].as_f64().unwrap();
    let mut folder = ended.into_folder();
    let root = folder.path().join("run/checkpoints");
    let numbers = admix::run::snapshot::folder::numbers(&root).unwrap();
    for number in &numbers {
        std::fs::write(root.join(format!("{number:08}/state.bin")), "damaged").unwrap();
    }
    // All of them damaged, then none there.
    for attempt in ["damaged", "gone"] {
        if attempt == "gone" {
            std::fs::remove_dir_all(&root).unwrap();
        }
        for how in ["--resume", "--resume=auto"] {
            let refused = Run::resume(folder, &sets, &[how]).wait().expect(2);
            assert!(refused.stderr.contains("--resume=restart"), "{attempt}, {how}: {}", refused.stderr);
            assert!(std::fs::read(refused.best()).unwrap() == best, "{attempt}, {how}");
            folder = refused.into_folder();
        }
    }
    // Few updates make no better policy than many.
    let again = Run::resume(folder, &["checkpoint.every_s=0.05", "budget.max_updates=8"], &["--resume=restart"]);
    let again = again.wait().expect(0);
    assert_eq!(again.outcome()["updates"], 8);
    assert_eq!(again.manifest()["before"]["seconds"], 0.0);
    assert!(again.outcome()["best_j"].as_f64().unwrap() >= best_j);
    assert!(std::fs::read(again.dir().join("set-aside-1/best.safetensors")).unwrap() == best);
    let day = crate::harness::days().join("day-1");
    let of = |path: &std::path::Path| {
        let report =
            &eval(&["--log", day.to_str().unwrap(), "--baselines", "none", "--policy", path.to_str().unwrap()])[0];
        report["policies"].as_array().unwrap().iter().find(|p| p["kind"] == "trained").unwrap()["j"].as_f64().unwrap()
    };
    assert!(of(&again.best()) >= of(&again.dir().join("set-aside-1/best.safetensors")));
}

#[test]
fn a_run_killed_before_its_first_snapshot_begins_again_with_auto_alone() {
    let sets = ["checkpoint.every_s=1000", "budget.max_updates=10000000"];
    let mut run = Run::start(&sets, &[]);
    until_best(&mut run);
    let folder = run.kill();
    let refused = Run::resume(folder, &sets, &["--resume"]).wait().expect(2);
    assert!(refused.stderr.contains("no snapshot to go on from"), "{}", refused.stderr);
    let again = Run::resume(refused.into_folder(), &["budget.max_updates=8"], &["--resume=auto"]).wait().expect(0);
    assert!(again.stderr.contains("before its first snapshot"), "{}", again.stderr);
    assert_eq!(again.manifest()["before"]["seconds"], 0.0);
}

/// It left the last parameters and the outcome of the run before, and `auto` refused to begin again.
#[test]
fn a_run_started_over_and_killed_before_its_first_snapshot_begins_again_with_auto() {
    let ended = train(&["budget.max_updates=8"], &[]);
    let endless = ["checkpoint.every_s=1000", "budget.max_updates=10000000"];
    let mut over = Run::resume(ended.into_folder(), &endless, &["--resume=restart"]);
    over.until("a learner", |run| child(run, "learner"));
    let again = Run::resume(over.kill(), &["budget.max_updates=8"], &["--resume=auto"]).wait().expect(0);
    assert!(again.stderr.contains("before its first snapshot"), "{}", again.stderr);
    assert!(again.dir().join("set-aside-1/last.safetensors").is_file());
}

/// The learner that was stopped with the others sometimes left last parameters of which there was no snapshot; `auto` then refused to
/// begin again.
#[test]
fn a_lock_step_run_killed_after_it_went_back_to_its_beginning_begins_again_with_auto() {
    let common = ["checkpoint.every_s=1000", "data.test=[]", "watchdog.max_restarts=1000"];
    let mut run = Run::start(&[&common[..], &["budget.max_updates=10000000"]].concat(), &["--deterministic"]);
    for _ in 0..8 {
        let learner = run.until("a learner that publishes", |run| {
            let learner = child(run, "learner")?.pid;
            let control = admix::inspect::inspect(&run.dir(), 1).ok()?.memory?.control?;
            (control.learner.updates > 0 && child(run, "learner")?.pid == learner).then_some(learner)
        });
        send_if_there(run.until("an actor", |run| child(run, "actor0")).pid, Signal::SIGKILL);
        run.until("another learner", |run| child(run, "learner").filter(|kin| kin.pid != learner));
        assert!(!run.dir().join("policy/last.safetensors").exists());
    }
    let folder = run.kill();
    let sets = [&common[..], &["budget.max_updates=8"]].concat();
    let again = Run::resume(folder, &sets, &["--deterministic", "--resume=auto"]).wait().expect(0);
    assert!(again.stderr.contains("before its first snapshot"), "{}", again.stderr);
}

/// It said that the best so far stayed the one to beat, and replaced it; with `auto` there was no copy of it.
#[test]
fn the_best_policy_of_a_lock_step_run_that_begins_again_is_set_aside() {
    let common = ["checkpoint.every_s=1000", "data.test=[]"];
    let mut run = Run::start(&[&common[..], ENDLESS].concat(), &["--deterministic"]);
    until_best(&mut run);
    let folder = run.kill();
    let best = std::fs::read(folder.path().join("run/policy/best.safetensors")).unwrap();
    let few = [&common[..], &["budget.max_updates=8"]].concat();
    let auto = Run::resume(folder, &few, &["--deterministic", "--resume=auto"]).wait().expect(0);
    assert!(auto.stderr.contains("its best policy is in"), "{}", auto.stderr);
    assert!(std::fs::read(auto.dir().join("set-aside-1/best.safetensors")).unwrap() == best);
    let best = std::fs::read(auto.best()).unwrap();
    let over = Run::resume(auto.into_folder(), &few, &["--deterministic", "--resume=restart"]).wait().expect(0);
    assert!(over.stderr.contains("chooses its own best"), "{}", over.stderr);
    assert!(std::fs::read(over.dir().join("set-aside-2/best.safetensors")).unwrap() == best);
    assert!(std::fs::read(over.best()).unwrap() == best, "the same run has the same best policy");
}

/// An evaluator that replayed the best policy when it started gave no sign of life and was killed, and so was each of its successors; the
/// highest J stayed that of the snapshot.
#[test]
fn an_evaluator_that_adopts_a_best_policy_gives_signs_of_life_and_says_the_highest_j() {
    let ended = train(&["budget.max_updates=8", "data.test=[]"], &[]);
    let context = Context::load(&RunDirectory::open(&ended.dir()).unwrap()).unwrap();
    let days = context.days(&context.settings.data.validation).unwrap();
    let requests = days.iter().map(|day| day.log.requests().len()).sum::<usize>();
    let start = Start { actor: context.start.clone(), kept: false };
    let mut judge = Judge::new(days, context.spec.clone(), context.replay_options(), start);
    let best = PolicyFile::read(&ended.best()).unwrap().actor;
    let mut beats = 0;
    let found = judge.adopt(&best, &mut || beats += 1).unwrap();
    assert!(beats > 0 && beats >= requests / ALIVE_EVERY as usize, "{beats} in {requests} requests");
    assert_eq!(found.highest, found.j);
    assert_eq!(judge.adopt(&best, &mut || {}), None, "no better than itself");
    // Where the best has to beat the start by an interval, another one may have had a higher J.
    judge.resume(found.j - 2.0, found.j + 1.0, 0);
    assert_eq!(judge.adopt(&best, &mut || {}).unwrap().highest, found.j + 1.0);
}

#[test]
fn a_damaged_best_policy_is_put_back_from_the_snapshot() {
    let ended = train(&["budget.max_updates=64"], &[]);
    // The last evaluation may come after the last snapshot: the next run's has what it found.
    let ended = Run::resume(ended.into_folder(), &["budget.max_updates=64"], &["--resume"]).wait().expect(0);
    let best = std::fs::read(ended.best()).unwrap();
    std::fs::write(ended.best(), "damaged").unwrap();
    let again = Run::resume(ended.into_folder(), &["budget.max_updates=64"], &["--resume"]).wait().expect(0);
    assert!(again.stderr.contains("put back from snapshot"), "{}", again.stderr);
    assert!(std::fs::read(again.best()).unwrap() == best);
}

#[test]
fn a_free_run_goes_on_where_it_was() {
    let sets = [ENDLESS, &["checkpoint.every_s=0.1"]].concat();
    let mut run = Run::start(&sets, &[]);
    until_best(&mut run);
    let snapshots = run.dir().join("checkpoints");
    run.until("a snapshot", |_| admix::run::snapshot::newest(&snapshots).unwrap().filter(|s| s.state.updates > 20));
    let folder = run.kill();
    let before = admix::run::snapshot::newest(&folder.path().join("run/checkpoints")).unwrap().unwrap();
    let updates = before.state.updates;
    let budget = format!("budget.max_updates={}", updates + 40);
    let ended = Run::resume(folder, &[&budget], &["--resume"]).wait().expect(0);
    assert_eq!(ended.outcome()["updates"], updates + 40);
    assert_eq!(ended.manifest()["resumed"].as_array().unwrap().len(), 1);
    let [killed, all] = [&ended.manifest()["before"], &ended.outcome()].map(|of| of["seconds"].as_f64().unwrap());
    assert!(0.0 < killed && killed < all, "{killed} {all}");
    let lines = ended.metrics();
    let restored = lines.iter().find(|line| line["kind"] == "restored").expect("a record of it");
    assert_eq!(restored["updates"], updates);
    // It had the figures of a run that begins.
    let resumed = lines.iter().find(|line| line["kind"] == "resume").expect("a record of it");
    assert_eq!((&resumed["updates"], &resumed["samples"]), (&restored["updates"], &restored["samples"]));
    // The ledger is that of the whole run: what was unread when main died is lost.
    assert_eq!(ended.ledger("consumed"), ended.outcome()["samples"].as_u64().unwrap());
    // The best of the whole run is kept.
    let improved = lines.iter().filter(|line| line["kind"] == "evaluation" && line["improved"] == true);
    let best = improved.filter_map(|line| line["j"].as_f64()).fold(f64::MIN, f64::max);
    assert!(ended.outcome()["best_j"].as_f64() >= Some(best - 1e-9 * best.abs()), "{best} {}", ended.outcome());
}

#[test]
fn a_run_that_is_over_is_over_and_may_be_given_more_to_do() {
    let ended = train(&[], &[]);
    let table = ended.stdout.clone();
    let again = Run::resume(ended.into_folder(), &[], &["--resume=auto"]).wait().expect(0);
    assert_eq!(again.outcome()["updates"], 64);
    assert_eq!(again.stdout, table, "the same policy, the same table");
    let took = again.outcome()["seconds"].as_f64().unwrap();
    let more = Run::resume(again.into_folder(), &["budget.max_updates=96"], &["--resume"]).wait().expect(0);
    assert_eq!(more.outcome()["updates"], 96);
    let before = more.manifest()["before"]["seconds"].as_f64().unwrap();
    assert!((before - took).abs() < 1e-6 && more.outcome()["seconds"].as_f64().unwrap() > took, "{before} {took}");
}

#[test]
fn resume_auto_starts_where_there_is_nothing_and_resume_alone_does_not() {
    let ended = Run::start(&[], &["--resume"]).wait().expect(2);
    assert!(ended.stderr.contains("--resume=auto"), "{}", ended.stderr);
    let ended = Run::resume(ended.into_folder(), &[], &["--resume=auto"]).wait().expect(0);
    assert_eq!(ended.outcome()["updates"], 64);
    let ended = Run::resume(ended.into_folder(), &[], &[]).wait().expect(2);
    assert!(ended.stderr.contains("already holds a run") && ended.stderr.contains("--resume"), "{}", ended.stderr);
}

/// Another configuration and seed went on from them, and nobody was told.
#[test]
fn snapshots_without_a_manifest_are_refused() {
    let ended = Run::start(&[], &[]).wait().expect(0);
    let folder = ended.into_folder();
    std::fs::remove_file(folder.path().join("run/manifest.json")).unwrap();
    let mut folder = folder;
    for more in [&[][..], &["--resume=auto"], &["--resume"]] {
        let ended = Run::resume(folder, &[], more).wait();
        assert!(ended.stderr.contains("manifest.json"), "{more:?}: {}", ended.stderr);
        let ended = ended.expect(if more == ["--resume"] { 2 } else { 1 });
        folder = ended.into_folder();
    }
}

#[test]
fn another_configuration_mode_or_log_is_refused_and_named() {
    let mut run = Run::start(ENDLESS, &[]);
    until_best(&mut run);
    let mut folder = run.kill();
    for (sets, arguments, words) in [
        (
            &["learner.batch=64", "policy.hidden=8"][..],
            &["--resume"][..],
            &["learner.batch was 128, is 64", "policy.hidden"][..],
        ),
        (&[], &["--resume", "--seed", "9"], &["run.seed was 1, is 9"]),
        (&[], &["--resume", "--deterministic"], &["lock-step"]),
    ] {
        let ended = Run::resume(folder, sets, arguments).wait().expect(2);
        for word in words {
            assert!(ended.stderr.contains(word), "no `{word}` in {}", ended.stderr);
        }
        folder = ended.into_folder();
    }
    let manifest = folder.path().join("run/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace(&format!("\"{}\"", env!("CARGO_PKG_VERSION")), "\"0.0.9\"")).unwrap();
    // Starting over reads the plan that the other version made.
    for how in ["--resume", "--resume=restart"] {
        let ended = Run::resume(folder, &[], &[how]).wait().expect(2);
        assert!(ended.stderr.contains("0.0.9") && ended.stderr.contains("another --run-dir"), "{}", ended.stderr);
        folder = ended.into_folder();
    }
}

#[test]
fn damaged_snapshots_are_passed_over() {
    let sets = ["checkpoint.every_s=0.05", "checkpoint.keep=3", "data.test=[]", "budget.max_updates=150"];
    let ended = train(&sets, &["--deterministic"]);
    let whole = policies(&ended);
    let folder = ended.into_folder();
    let root = folder.path().join("run/checkpoints");
    let numbers = admix::run::snapshot::folder::numbers(&root).unwrap();
    assert!(numbers.len() > 1, "{numbers:?}");
    let newest = root.join(format!("{:08}", numbers[numbers.len() - 1]));
    let state = std::fs::read(newest.join("state.bin")).unwrap();
    std::fs::write(newest.join("state.bin"), &state[..state.len() / 2]).unwrap();
    let ended = Run::resume(folder, &sets, &["--deterministic", "--resume"]).wait().expect(0);
    assert!(ended.stderr.contains("damaged and passed over"), "{}", ended.stderr);
    assert!(policies(&ended) == whole);
}

#[test]
fn a_lock_step_run_that_loses_a_process_goes_back_and_ends_the_same() {
    let sets = ["checkpoint.every_s=0.05", "data.test=[]", "budget.max_updates=128"];
    let whole = policies(&train(&sets, &["--deterministic"]));
    for role in ["actor1", "learner", "evaluator"] {
        // A fast machine may end the run before the blow.
        let went_back = (0..10).any(|_| {
            let mut run = Run::start(&sets, &["--deterministic"]);
            let snapshots = run.dir().join("checkpoints");
            run.until("a snapshot", |_| admix::run::snapshot::newest(&snapshots).unwrap());
            if let Some(kin) = child(&run, role) {
                send_if_there(kin.pid, Signal::SIGKILL);
            }
            let ended = run.wait().expect(0);
            assert!(policies(&ended) == whole, "{role}");
            ended.outcome()["went_back"] == 1
        });
        assert!(went_back, "no run lost its {role}; the test tests nothing");
    }
}
