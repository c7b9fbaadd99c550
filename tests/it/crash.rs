//! Killed processes: actors and evaluators are replaced, nothing is left behind, no sample is unaccounted for.

use std::process::Command;
use std::time::Duration;

use admix::run::snapshot;
use admix::shm::Control;
use nix::sys::signal::Signal;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::harness::{
    ENDLESS, Ended, HASTY, Kin, PROGRAM, Run, child, children_of, copy_program, eval, segments_of, send, send_if_there,
    train, until_best,
};

pub fn control_of(kin: &Kin) -> Control {
    Control::open(&format!("{}-control", kin.names)).unwrap()
}

/// Kills the process in `role` and waits for another in its place. How soon that is, `admix soak` measures.
pub fn kill_and_await(run: &mut Run, role: &str) {
    let victim = run.until(role, |run| child(run, role));
    send(victim.pid, Signal::SIGKILL);
    run.until("replacement", |run| child(run, role).filter(|kin| kin.pid != victim.pid));
}

/// The records of restarts of processes whose name starts with `role`.
fn restarts(metrics: &[Value], role: &str) -> Vec<Value> {
    let of = |line: &&Value| line["kind"] == "restart" && line["process"].as_str().is_some_and(|p| p.starts_with(role));
    metrics.iter().filter(of).cloned().collect()
}

#[test]
fn killed_actors_are_replaced_and_training_goes_on_with_an_exact_ledger() {
    const KILLS: u32 = 18;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut run = Run::start(ENDLESS, &[]);
    let control = control_of(&run.until("actor", |run| child(run, "actor0")));
    run.until("sample", |_| (control.learner.samples_consumed.get() > 0).then_some(()));
    let mut kills = [0; 2];
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
        let id = rng.random_range(0..2);
        kill_and_await(&mut run, &format!("actor{id}"));
        kills[id] += 1;
    }
    let steps = || [0, 1].map(|id| control.actors[id].steps.get());
    let (before, samples, updates) = (steps(), control.learner.samples_consumed.get(), control.learner.updates.get());
    run.until("samples of both actors", |_| (0..2).all(|id| steps()[id] > before[id] + 1000).then_some(()));
    run.until("use of them", |_| (control.learner.samples_consumed.get() > samples + 2000).then_some(()));
    run.until("updates", |_| (control.learner.updates.get() > updates + 10).then_some(()));
    drop(control);

    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert_eq!(ended.outcome()["actor_restarts"], KILLS);
    assert_eq!(ended.ledger("consumed"), ended.outcome()["samples"].as_u64().unwrap());
    let records = restarts(&ended.metrics(), "actor");
    assert_eq!(records.iter().filter(|r| r["process"] == "actor0").count(), kills[0]);
    assert_eq!(records.iter().filter(|r| r["process"] == "actor1").count(), kills[1]);
    let lost: u64 = records.iter().map(|r| r["lost"].as_u64().unwrap()).sum();
    assert_eq!(ended.ledger("lost"), lost, "what died with an actor is told at its restart");
}

#[test]
fn an_actor_killed_as_soon_as_it_starts_is_still_replaced() {
    let mut run = Run::start(ENDLESS, &[]);
    for _ in 0..8 {
        kill_and_await(&mut run, "actor1");
    }
    run.signal(Signal::SIGINT);
    run.wait().expect(130).ledger("produced");
}

#[test]
fn overwriting_actors_may_be_killed_too() {
    let sets = [ENDLESS, &["actors.overflow=overwrite", "actors.regions=3", "learner.samples_per_update=16"]].concat();
    let mut run = Run::start(&sets, &[]);
    until_best(&mut run);
    for _ in 0..6 {
        kill_and_await(&mut run, "actor0");
        std::thread::sleep(Duration::from_millis(60));
    }
    // On a busy machine actors may never be ahead of the learner by themselves.
    let learner = child(&run, "learner").unwrap();
    send(learner.pid, Signal::SIGSTOP);
    run.until("overwritten samples", |run| {
        let seen = Command::new(PROGRAM).arg("inspect").arg(run.dir()).arg("--json").output().unwrap();
        let seen: Value = serde_json::from_slice(&seen.stdout).ok()?;
        let rings = seen["memory"]["rings"].as_array()?;
        rings.iter().any(|ring| ring["ledger"]["overwritten"].as_u64() > Some(0)).then_some(())
    });
    send(learner.pid, Signal::SIGCONT);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert!(ended.ledger("overwritten") > 0, "{}", ended.outcome());
}

#[test]
fn an_actor_that_keeps_dying_ends_the_run_and_its_log_is_named() {
    let mut run = Run::start(&[ENDLESS, &["actors.max_restarts=2"]].concat(), &[]);
    kill_and_await(&mut run, "actor0");
    kill_and_await(&mut run, "actor0");
    let victim = run.until("actor", |run| child(run, "actor0"));
    send(victim.pid, Signal::SIGKILL);
    let ended = run.wait().expect(20);
    let log = ended.dir().join("logs/actor0.log");
    assert!(ended.stderr.contains(log.to_str().unwrap()), "{}", ended.stderr);
    assert!(ended.stderr.contains("died 3 times"), "{}", ended.stderr);
}

#[test]
fn killed_evaluators_are_replaced_and_the_run_ends_well() {
    let mut run = Run::start(ENDLESS, &[]);
    let control = control_of(&run.until("evaluator", |run| child(run, "evaluator")));
    for _ in 0..3 {
        let evaluations = control.evaluator.evaluations.get();
        run.until("evaluation", |_| (control.evaluator.evaluations.get() > evaluations).then_some(()));
        kill_and_await(&mut run, "evaluator");
    }
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    let metrics = ended.metrics();
    assert_eq!(restarts(&metrics, "evaluator").len(), 3);
    let evaluations = || metrics.iter().filter(|line| line["kind"] == "evaluation");
    assert_eq!(evaluations().next_back().unwrap()["updates"], ended.outcome()["updates"]);
    // Whoever takes over knows what was best before.
    let improved = evaluations().filter(|line| line["improved"] == true);
    let best = improved.map(|line| line["j"].as_f64().unwrap()).fold(f64::MIN, f64::max);
    // An evaluator may die between the best policy's file and its line.
    assert!(ended.outcome()["best_j"].as_f64() >= Some(best), "{best}: {}", ended.outcome());
}

#[test]
fn a_killed_learner_is_replaced_and_goes_on_from_the_newest_snapshot() {
    let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=0.1"]].concat(), &[]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    // Snapshots of a learner that had no samples yet are not what is tested.
    run.until("updates", |_| (control.learner.updates.get() > 0).then_some(()));
    for kill in 0..3 {
        let snapshots = control.checkpoint.snapshots.get();
        run.until("snapshots", |_| (control.checkpoint.snapshots.get() > snapshots + 1).then_some(()));
        kill_and_await(&mut run, "learner");
        // Read after the death: the dead learner made updates until it died, and only its successor gets beyond them.
        let updates = control.learner.updates.get();
        run.until("progress", |_| (control.learner.updates.get() > updates).then_some(()));
        assert!(control.learner.rollbacks.get() == 0, "kill {kill}");
    }
    let rolled_back = control.learner.rolled_back.get();
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    let outcome = ended.outcome();
    assert_eq!((outcome["other_restarts"].as_u64(), outcome["rolled_back"].as_u64()), (Some(3), Some(rolled_back)));
    // What was consumed is in the last learner or was lost with one before it.
    assert_eq!(ended.ledger("consumed"), outcome["samples"].as_u64().unwrap() + rolled_back);
    let restored: Vec<Value> = ended.metrics().into_iter().filter(|line| line["kind"] == "restored").collect();
    assert_eq!(restored.len(), 3, "each went on from a snapshot");
    assert!(restored.iter().all(|r| r["updates"].as_u64() > Some(0)));
}

#[test]
fn a_learner_killed_before_the_first_snapshot_is_replaced_by_one_that_begins_anew() {
    let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=1000"]].concat(), &[]);
    let control = control_of(&run.until("learner", |run| child(run, "learner")));
    run.until("updates", |_| (control.learner.updates.get() > 3).then_some(()));
    kill_and_await(&mut run, "learner");
    run.until("a new beginning", |_| (control.learner.rolled_back.get() > 0).then_some(()));
    run.until("updates", |_| (control.learner.updates.get() > 3).then_some(()));
    drop(control);
    run.signal(Signal::SIGTERM);
    run.wait().expect(130).ledger("produced");
}

#[test]
fn a_learner_that_keeps_dying_ends_the_run_with_its_log_named_and_the_best_policy_kept() {
    let mut run = Run::start(&[ENDLESS, &["watchdog.max_restarts=1"]].concat(), &[]);
    until_best(&mut run);
    kill_and_await(&mut run, "learner");
    send(child(&run, "learner").unwrap().pid, Signal::SIGKILL);
    let ended = run.wait().expect(20);
    let log = ended.dir().join("logs/learner.log");
    assert!(log.is_file());
    for word in [log.to_str().unwrap(), "learner died 2 times"] {
        assert!(ended.stderr.contains(word), "no `{word}` in {}", ended.stderr);
    }
    let day = crate::harness::days().join("day-2");
    let report = &eval(&["--log", day.to_str().unwrap(), "--policy", ended.dir().to_str().unwrap()])[0];
    assert!(report["policies"].as_array().unwrap().iter().any(|p| p["kind"] == "trained"));
}

#[test]
fn killed_checkpointers_are_replaced_and_snapshots_go_on() {
    let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=0.05"]].concat(), &[]);
    let control = control_of(&run.until("checkpointer", |run| child(run, "checkpointer")));
    for _ in 0..5 {
        let snapshots = control.checkpoint.snapshots.get();
        run.until("a snapshot", |_| (control.checkpoint.snapshots.get() > snapshots).then_some(()));
        kill_and_await(&mut run, "checkpointer");
    }
    let snapshots = control.checkpoint.snapshots.get();
    run.until("a snapshot", |_| (control.checkpoint.snapshots.get() > snapshots).then_some(()));
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert_eq!(ended.outcome()["checkpoints"]["failures"], 0);
    let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().expect("a snapshot");
    assert_eq!(Some(newest.state.updates), ended.outcome()["updates"].as_u64());
}

/// Between writing a snapshot, the rename and saying so.
#[test]
fn a_checkpointer_killed_at_any_point_of_a_commit_loses_nothing() {
    for failpoint in ["checkpoint.commit@2=kill", "checkpoint.committed@2=kill"] {
        let sets = ["budget.max_updates=200", "checkpoint.every_s=0.05", "watchdog.max_restarts=1000"];
        let ended = Run::start_failing(failpoint, &sets).wait().expect(0);
        assert!(ended.outcome()["other_restarts"].as_u64() > Some(0), "{failpoint}: {}", ended.outcome());
        let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().expect("a snapshot");
        assert_eq!(newest.state.updates, 200, "{failpoint}");
        let indices: Vec<u64> = newest.pool.iter().map(|block| block.index).collect();
        assert!(indices.windows(2).all(|w| w[0] + 1 == w[1]), "{failpoint}: {indices:?}");
        assert_eq!(indices.last(), Some(&(newest.state.blocks - 1)), "{failpoint}");
        let steps: u64 = newest.pool.iter().map(|block| u64::from(block.samples)).sum();
        assert!(steps >= 4000.min(newest.state.samples), "{failpoint}: the pool is not whole");
    }
}

#[test]
fn a_file_system_that_refuses_snapshots_does_not_end_training() {
    let sets = ["checkpoint.every_s=0.05", "budget.max_updates=200"];
    let ended = Run::start_failing("checkpoint.commit@2=fail", &sets).wait().expect(0);
    assert_eq!(ended.outcome()["checkpoints"]["failures"], 1);
    let log = std::fs::read_to_string(ended.dir().join("logs/checkpointer.log")).unwrap();
    assert!(log.contains("cannot be written, training goes on"), "{log}");
    let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().expect("a snapshot");
    assert_eq!(newest.state.updates, 200, "it was tried again");
}

#[test]
fn a_loss_that_is_not_finite_sends_the_learner_back_and_its_batch_is_kept() {
    let sets = ["budget.max_updates=200", "checkpoint.every_s=0.05"];
    one_roll_back(Run::start_failing("learner.loss@150=fail", &sets).wait().expect(0));
}

/// Publications are made at the start and every eighth update: this is the one after the last update.
#[test]
fn weights_that_are_seen_not_to_be_finite_at_the_very_end_send_the_learner_back_too() {
    let sets = ["budget.max_updates=200", "checkpoint.every_s=0.05", "learner.publish_every=8"];
    one_roll_back(Run::start_failing("learner.weights@27=fail", &sets).wait().expect(0));
}

fn one_roll_back(ended: Ended) {
    assert_eq!(ended.outcome()["updates"], 200);
    assert!(ended.outcome()["rolled_back"].as_u64().is_some());
    let kept: Vec<_> = std::fs::read_dir(ended.dir().join("incidents")).unwrap().collect();
    assert_eq!(kept.len(), 1);
    let bytes = std::fs::read(kept[0].as_ref().unwrap().path()).unwrap();
    assert!(!admix::env::Block::decode(&bytes).unwrap().segments.is_empty());
    let restored: Vec<Value> = ended.metrics().into_iter().filter(|line| line["kind"] == "restored").collect();
    assert_eq!(restored.len(), 1);
}

#[test]
fn losses_that_stay_not_finite_end_the_run_with_a_code_of_their_own() {
    let sets = ["budget.max_updates=400", "checkpoint.every_s=0.02", "watchdog.max_rollbacks=2"];
    let failpoints = "learner.loss@100=fail,learner.loss@101=fail,learner.loss@102=fail";
    let ended = Run::start_failing(failpoints, &sets).wait().expect(24);
    assert!(ended.stderr.contains("not finite") && ended.stderr.contains("incidents"), "{}", ended.stderr);
    assert_eq!(std::fs::read_dir(ended.dir().join("incidents")).unwrap().count(), 2);
}

/// As systemd and container supervisors do. Children died of it, and a learner that replaced the dead one wrote what it knew,
/// nothing, over what had been learned.
#[test]
fn a_sigterm_to_all_processes_saves_what_was_learned() {
    for main_last in [false, true] {
        let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=1000"]].concat(), &[]);
        let control = control_of(&run.until("learner", |run| child(run, "learner")));
        run.until("updates", |_| (control.learner.updates.get() > 20).then_some(()));
        drop(control);
        let children = run.until("all children", |run| Some(children_of(run.pid())).filter(|c| c.len() == 5));
        if !main_last {
            run.signal(Signal::SIGTERM);
        }
        children.iter().for_each(|kin| send_if_there(kin.pid, Signal::SIGTERM));
        if main_last {
            std::thread::sleep(Duration::from_millis(200));
            run.signal(Signal::SIGTERM);
        }
        let ended = run.wait().expect(130);
        let outcome = ended.outcome();
        assert_eq!((&outcome["actor_restarts"], &outcome["other_restarts"]), (&0.into(), &0.into()), "{outcome}");
        assert_eq!(outcome["rolled_back"], 0);
        let updates = outcome["updates"].as_u64().unwrap();
        assert!(updates > 20, "{outcome}");
        let last = admix::policy::file::PolicyFile::read(&ended.last()).unwrap();
        assert_eq!(last.updates, updates);
        let newest = snapshot::newest(&ended.dir().join("checkpoints")).unwrap().expect("a snapshot");
        assert_eq!(newest.state.updates, updates);
    }
}

/// A build that replaced the program's file, or a folder of logs that was tidied away, ended a training run at the next death.
#[test]
fn a_run_whose_program_and_logs_are_removed_still_replaces_its_processes() {
    let folder = tempfile::tempdir().unwrap();
    let config = crate::harness::config_in(folder.path(), crate::harness::days());
    let program = folder.path().join("admix-of-today");
    copy_program(&program);
    let mut run = Run::start_program(Command::new(&program), folder, &config, ENDLESS, &[], &[]);
    until_best(&mut run);
    std::fs::remove_file(&program).unwrap();
    std::fs::remove_dir_all(run.dir().join("logs")).unwrap();
    for role in ["actor0", "learner", "evaluator", "checkpointer"] {
        kill_and_await(&mut run, role);
    }
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert!(ended.dir().join("logs/actor0.log").is_file());
}

/// Stopped, not dead: only its silence tells.
#[test]
fn a_process_that_hangs_is_killed_and_replaced() {
    for role in ["actor0", "evaluator", "checkpointer", "learner"] {
        let mut run = Run::start(&[ENDLESS, &HASTY].concat(), &[]);
        until_best(&mut run);
        let control = control_of(&run.until("actor", |run| child(run, "actor1")));
        run.until("a snapshot", |_| (control.checkpoint.snapshots.get() > 0).then_some(()));
        let victim = run.until(role, |run| child(run, role));
        send_if_there(victim.pid, Signal::SIGSTOP);
        run.until("replacement", |run| child(run, role).filter(|kin| kin.pid != victim.pid));
        let updates = control.learner.updates.get();
        run.until("progress", |_| (control.learner.updates.get() > updates).then_some(()));
        drop(control);
        run.signal(Signal::SIGINT);
        let ended = run.wait().expect(130);
        assert!(ended.stderr.contains(&format!("{role} has given no sign of life")), "{}", ended.stderr);
    }
}

#[test]
fn a_run_in_which_nothing_moves_ends_and_says_who_starved() {
    let stuck = [ENDLESS, &["watchdog.silent_s=0", "watchdog.stuck_s=40", "watchdog.grace_s=1"]].concat();
    for (roles, code, word) in [
        (&["actor0", "actor1"][..], 21, "the learner got no samples"),
        (&["learner"][..], 23, "the learner stands still"),
    ] {
        let mut run = Run::start(&stuck, &[]);
        until_best(&mut run);
        for role in roles {
            let kin = run.until(role, |run| child(run, role));
            send(kin.pid, Signal::SIGSTOP);
        }
        let ended = run.wait().expect(code);
        assert!(ended.stderr.contains(word), "{}", ended.stderr);
    }
    // Before the learner has published anything.
    let run = loop {
        let mut run = Run::start(&stuck, &[]);
        let learner = run.until("learner", |run| child(run, "learner"));
        send(learner.pid, Signal::SIGSTOP);
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", learner.pid)).unwrap();
        run.until("its halt", |_| state().contains(") T ").then_some(()));
        if control_of(&learner).learner.param_version.get() == 0 {
            break run;
        }
        run.kill();
    };
    let ended = run.wait().expect(22);
    assert!(ended.stderr.contains("the actors got no parameters"), "{}", ended.stderr);
}

#[test]
fn a_run_that_cannot_save_in_time_ends_all_the_same() {
    let mut run = Run::start(&[ENDLESS, &["watchdog.grace_s=1"]].concat(), &[]);
    until_best(&mut run);
    send(child(&run, "learner").unwrap().pid, Signal::SIGSTOP);
    run.signal(Signal::SIGTERM);
    let ended = run.wait().expect(130);
    assert!(ended.stderr.contains("watchdog.grace_s"), "{}", ended.stderr);
    assert!(ended.best().is_file());
}

#[test]
fn a_log_that_changes_under_a_run_is_noticed_by_whoever_opens_it_next() {
    let folder = tempfile::tempdir().unwrap();
    let days = crate::decisions::synth(folder.path(), "requests = 900\ncontracts = 3\ncontracts_per_queue = 2.0\n", 3);
    let sets = [ENDLESS, &["actors.max_restarts=3"]].concat();
    let mut run = Run::start_on(days[0].parent().unwrap(), &sets, &[]);
    until_best(&mut run);
    // A sound log still, with a forecast of another level.
    let inventory = days[0].join("inventory.tsv");
    let text = std::fs::read_to_string(&inventory).unwrap();
    let (first, rest) = text.split_once('\n').unwrap();
    let fewer: Vec<&str> = rest.lines().skip(1).collect();
    std::fs::write(&inventory, format!("{first}\n{}\n", fewer.join("\n"))).unwrap();
    send(child(&run, "actor0").unwrap().pid, Signal::SIGKILL);
    let ended = run.wait().expect(20);
    let said = std::fs::read_to_string(ended.dir().join("logs/actor0.log")).unwrap();
    assert!(said.contains("has changed under the run"), "{said}");
}

#[test]
fn children_of_a_killed_main_process_die_and_the_next_start_sweeps_its_memory() {
    let mut run = Run::start(ENDLESS, &[]);
    until_best(&mut run);
    let pid = run.pid();
    let parts = |names: Vec<String>| {
        let mut parts: Vec<String> = names.iter().map(|n| n.rsplit('-').next().unwrap().to_owned()).collect();
        parts.sort();
        parts
    };
    assert_eq!(parts(segments_of(pid)), ["control", "halves", "params", "ring0", "ring1"]);
    // Some of them may not have begun yet.
    run.until("children", |_| (children_of(pid).len() == 5).then_some(()));
    run.kill();
    train(&[], &[]);
    assert_eq!(segments_of(pid), Vec::<String>::new());
}
