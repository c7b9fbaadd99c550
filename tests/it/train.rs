//! Training through the real program, in every mode: how it ends and what it leaves behind.

use std::process::Command;
use std::time::Duration;

use admix::policy::baselines;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::*;

fn day(i: usize) -> String {
    days().join(format!("day-{i}")).to_str().unwrap().to_owned()
}

/// The entry of policy `name` in an evaluation.
fn policy<'a>(report: &'a Value, name: &str) -> &'a Value {
    let policies = report["policies"].as_array().unwrap();
    policies.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

#[test]
fn a_parallel_run_ends_with_a_table_both_policies_and_a_complete_record() {
    let ended = train(&[], &[]);
    for word in ["day-2", "trained *", "logged", "oracle", "upper bound"].into_iter().chain(baselines::NAMES) {
        assert!(ended.stdout.contains(word), "no `{word}` in {}", ended.stdout);
    }
    assert!(ended.best().is_file() && ended.last().is_file());

    let manifest = ended.manifest();
    assert_eq!(manifest["mode"], "parallel");
    assert_eq!(manifest["seed"], 1);
    assert_eq!(manifest["device"], "cpu");
    let roles: Vec<&Value> = manifest["data"].as_array().unwrap().iter().map(|d| &d["role"]).collect();
    assert_eq!(roles, ["train", "validation", "test"]);
    assert!(manifest["ended"].as_str() >= manifest["started"].as_str());
    let outcome = ended.outcome();
    assert_eq!(outcome["reason"], "budget");
    assert_eq!(outcome["updates"], 64);
    assert!(outcome["samples"].as_u64() >= Some(64 * 128), "{outcome}");
    assert_eq!(outcome["actor_restarts"], 0);

    let metrics = ended.metrics();
    let of = |kind: &str| metrics.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of("learner").len(), 2, "one record each 32 updates");
    assert!(of("learner").iter().all(|line| line["critic_loss"].is_f64() && line["actor_norm"].is_f64()));
    assert_eq!(of("evaluation").len() as u64, outcome["evaluations"].as_u64().unwrap());
    assert_eq!(of("run").last().unwrap()["ledger"], outcome["ledger"]);
    assert!(of("restart").is_empty());
    for child in ["learner", "evaluator", "actor0", "actor1"] {
        assert!(ended.dir().join(format!("logs/{child}.log")).is_file(), "{child} logs to its own file");
    }
}

#[test]
fn every_sample_of_a_run_is_in_its_ledger() {
    let ended = train(&[], &[]);
    assert_eq!(ended.ledger("consumed"), ended.outcome()["samples"].as_u64().unwrap());
    assert_eq!((ended.ledger("lost"), ended.ledger("overwritten")), (0, 0), "nobody died, and actors waited");
}

#[test]
fn the_best_policy_is_worth_what_the_evaluations_said() {
    let ended = train(&[], &[]);
    let metrics = ended.metrics();
    let evaluations = || metrics.iter().filter(|line| line["kind"] == "evaluation");
    let improved = evaluations().filter(|line| line["improved"] == true);
    let best = improved.map(|line| line["j"].as_f64().unwrap()).fold(f64::MIN, f64::max);
    assert_eq!(ended.outcome()["best_j"].as_f64(), Some(best));
    assert_eq!(evaluations().next_back().unwrap()["updates"], 64, "the newest parameters are evaluated before the end");
    let report = &eval(&["--log", &day(1), "--baselines", "none", "--policy", ended.dir().to_str().unwrap()])[0];
    let j = policy(report, "run")["j"].as_f64().unwrap();
    assert!((j - best).abs() <= 1e-9 * best.abs(), "{j} is not {best}");
}

#[test]
fn eval_takes_the_run_directory_and_repeats_the_final_table() {
    let ended = train(&[], &["--json"]);
    let printed: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(printed.len(), 2, "one object for the one test day, the verdict, and nothing else on stdout");
    let report = &eval(&["--log", &day(2), "--policy", ended.dir().to_str().unwrap()])[0];
    let (trained, again) = (policy(&printed[0], "trained"), policy(report, "run"));
    assert_eq!(trained["kind"], "trained");
    assert_eq!(again["kind"], "trained");
    for field in ["j", "share", "shortage_rate", "auction_revenue", "contract_impressions", "auction_impressions"] {
        assert_eq!(trained[field], again[field], "{field}");
    }
    for name in ["logged", "oracle"].into_iter().chain(baselines::NAMES) {
        assert_eq!(policy(&printed[0], name), policy(report, name));
    }
    let file = &eval(&["--log", &day(2), "--baselines", "none", "--policy", ended.best().to_str().unwrap()])[0];
    assert_eq!(policy(file, "best")["j"], again["j"], "the run directory means its best policy");
}

#[test]
fn the_resolved_configuration_starts_the_same_run_again() {
    let first = train(&["learner.critic=scalar", "run.seed=5"], &[]);
    let config = first.dir().join("config.toml");
    let second = Run::start_from(tempfile::tempdir().unwrap(), &config, &[], &[]).wait().expect(0);
    let text = |ended: &Ended| std::fs::read_to_string(ended.dir().join("config.toml")).unwrap();
    assert_eq!(text(&first), text(&second));
    assert!(text(&first).contains("critic = \"scalar\"") && text(&first).contains("seed = 5"));
    assert_eq!(first.manifest()["config_hash"], second.manifest()["config_hash"]);
    assert_eq!(first.manifest()["data"], second.manifest()["data"]);
}

#[test]
fn the_policy_file_is_plain_safetensors_with_all_that_scoring_needs() {
    let ended = train(&[], &["--serial"]);
    let bytes = std::fs::read(ended.best()).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let head: Value = serde_json::from_str(header["__metadata__"]["admix"].as_str().unwrap()).unwrap();
    assert_eq!(head["format"], "admix-policy-1");
    assert!(head["features"].as_array().unwrap().len() > 5);
    assert_eq!(head["spec"]["score_mode"], "contract");
    assert!(head["plan"]["contracts"].as_object().is_some_and(|c| c.len() == 5), "{}", head["plan"]["contracts"]);
    assert!(head["updates"].is_u64());
    let mut end = 0;
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        assert!(name.starts_with("actor.") && tensor["dtype"] == "F32", "{name}: {tensor}");
        end = end.max(tensor["data_offsets"][1].as_u64().unwrap() as usize);
    }
    assert!(end > 0);
    assert_eq!(bytes.len(), 8 + len + end);
}

#[test]
fn patience_ends_a_run_that_no_longer_improves_as_converged() {
    for mode in [&[][..], &["--serial"]] {
        // An actor that never moves cannot improve.
        let sets = ["learner.actor_rate=0", "stop.patience=2", "budget.max_updates=1000000"];
        let outcome = train(&sets, mode).outcome();
        assert_eq!(outcome["reason"], "converged");
        assert!(outcome["updates"].as_u64().unwrap() > 10, "the head start does not count: {outcome}");
    }
}

#[test]
fn a_run_ends_when_its_samples_are_spent() {
    for mode in [&[][..], &["--serial"]] {
        let outcome = train(&["budget.max_updates=0", "budget.max_samples=6000"], mode).outcome();
        assert_eq!(outcome["reason"], "budget");
        let samples = outcome["samples"].as_u64().unwrap();
        // Blocks that lie in the rings at the end, two of each actor, are taken in too.
        assert!((6000..6000 + 5 * 256).contains(&samples), "{outcome}");
    }
}

#[test]
fn a_run_ends_when_its_time_is_up() {
    for mode in [&[][..], &["--serial"]] {
        let outcome = train(&["budget.max_updates=0", "budget.max_seconds=0.7"], mode).outcome();
        assert_eq!(outcome["reason"], "budget");
        assert!(outcome["seconds"].as_f64().unwrap() >= 0.7, "{outcome}");
    }
}

#[test]
fn every_critic_runs_with_every_credit() {
    for critic in ["quantile", "categorical", "scalar"] {
        for credit in ["contract", "total"] {
            let run = Run::start(&[&format!("learner.critic={critic}"), &format!("learner.credit={credit}")], &[]);
            if (critic, credit) == ("categorical", "total") {
                let ended = run.wait().expect(2);
                assert!(ended.stderr.contains("learner.credit"), "{}", ended.stderr);
                continue;
            }
            let ended = run.wait().expect(0);
            assert_eq!(ended.outcome()["updates"], 64, "{critic}, {credit}");
            let losses: Vec<Value> = ended.metrics().into_iter().filter(|line| line["kind"] == "learner").collect();
            assert!(losses.iter().all(|l| l["critic_loss"].as_f64() > Some(0.0)), "{critic}, {credit}: {losses:?}");
            assert!(losses.iter().all(|l| l["actor_norm"].as_f64() > Some(0.0)), "{critic}, {credit}: {losses:?}");
        }
    }
}

#[test]
fn the_network_may_score_the_auction_ads_too() {
    for mode in ["--serial", "--deterministic"] {
        let ended = train(&["score_mode=all"], &[mode]);
        assert_eq!(ended.outcome()["updates"], 64);
        let report = &eval(&["--log", &day(2), "--baselines", "none", "--policy", ended.dir().to_str().unwrap()])[0];
        assert!(policy(report, "run")["contract_impressions"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn delayed_feedback_is_trained_through() {
    for seconds in ["600", "86400"] {
        let ended = train(&[&format!("env.feedback_delay_s={seconds}")], &[]);
        assert_eq!(ended.outcome()["updates"], 64);
        assert_eq!(ended.ledger("lost"), 0, "every block fits its region");
        assert_eq!(ended.outcome()["actor_restarts"], 0);
    }
}

#[test]
fn overwriting_actors_do_not_wait_for_a_slow_learner_and_the_ledger_says_what_went() {
    let slow =
        ["learner.samples_per_update=16", "learner.batch=512", "learner.critic_hidden=192", "budget.max_updates=150"];
    let overwrite = [&slow[..], &["actors.overflow=overwrite", "actors.regions=3"]].concat();
    let ended = train(&overwrite, &[]);
    assert!(ended.ledger("overwritten") > 0, "{}", ended.outcome());
    assert_eq!(train(&slow, &[]).ledger("overwritten"), 0, "actors wait unless they are told otherwise");
}

#[test]
fn a_serial_run_reports_like_a_parallel_one() {
    let ended = train(&[], &["--serial"]);
    assert_eq!(ended.manifest()["mode"], "serial");
    let outcome = ended.outcome();
    assert_eq!((&outcome["updates"], &outcome["reason"]), (&64.into(), &"budget".into()));
    assert!(ended.best().is_file() && ended.last().is_file());
    assert!(ended.stdout.contains("trained *"), "{}", ended.stdout);
    let metrics = ended.metrics();
    assert_eq!(metrics.iter().filter(|line| line["kind"] == "learner").count(), 2);
    assert!(metrics.iter().filter(|line| line["kind"] == "evaluation").count() >= 4);
}

#[test]
fn the_literal_serial_scheme_makes_an_update_for_each_sample() {
    let outcome = train(&["serial.literal=true"], &["--serial"]).outcome();
    assert_eq!(outcome["updates"], 64);
    let samples = outcome["samples"].as_u64().unwrap();
    // Two batches fill the pool; what is replayed arrives in whole segments.
    assert!((256..256 + 64 * 3 + 64 * 8).contains(&samples), "{outcome}");
}

#[test]
fn days_without_any_contract_can_be_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    for (name, day) in [("a", 1), ("b", 2), ("c", 3)] {
        let dir = folder.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("day.toml"), format!("date = \"2026-02-0{day}\"\n")).unwrap();
        std::fs::write(dir.join("control.tsv"), "ad_id\trequired\tpenalty\tclick_value\n").unwrap();
        let midnight: u64 = 1_769_904_000_000 + (day - 1) * 86_400_000;
        let mut track = String::from("request_id\tts_ms\tslot_id\tregion\tgender\tage\tqueue\n");
        for i in 0..400 {
            let (ts, ecpm) = (midnight + i * 200_000, 500 + i % 7 * 100);
            track += &format!("{i}\t{ts}\t1\t1\t0\t0\t7,A,{ecpm},0.01,0;8,A,600,0.01,0\n");
        }
        std::fs::write(dir.join("track_log.tsv"), track).unwrap();
    }
    let list = |key: &str, name: &str| format!("data.{key}=[\"{}\"]", folder.path().join(name).display());
    let ended = train(&[&list("train", "a"), &list("validation", "b"), &list("test", "c")], &["--json"]);
    let report: Value = serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(policy(&report, "trained")["j"], policy(&report, "auction-only")["j"]);
}

#[test]
fn ctrl_c_saves_the_best_policy_and_leaves_nothing_behind() {
    for mode in [&[][..], &["--serial"], &["--deterministic"]] {
        let mut run = Run::start(ENDLESS, mode);
        until_best(&mut run);
        run.signal(Signal::SIGINT);
        let ended = run.wait().expect(130);
        assert_eq!(ended.outcome()["reason"], "interrupted", "{mode:?}");
        assert!(ended.last().is_file());
        assert!(ended.stderr.contains(ended.best().to_str().unwrap()), "{}", ended.stderr);
        let report = &eval(&["--log", &day(2), "--baselines", "none", "--policy", ended.dir().to_str().unwrap()])[0];
        assert!(policy(report, "run")["j"].is_f64());
        let evaluated = ended.metrics().into_iter().rfind(|line| line["kind"] == "evaluation").unwrap();
        // In lock-step they are not: a run that goes on must not have looked at what it would not have looked at.
        if mode != ["--deterministic"] {
            assert_eq!(evaluated["updates"], ended.outcome()["updates"], "the last parameters are evaluated as well");
        }
        if mode != ["--serial"] {
            ended.ledger("produced");
        }
    }
}

#[test]
fn sigterm_ends_a_run_like_ctrl_c() {
    let mut run = Run::start(ENDLESS, &[]);
    until_best(&mut run);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().expect(130).outcome()["reason"], "interrupted");
}

/// The evaluator took an interrupt for the end of training and left, although the learner, slower to start,
/// had not published anything: the best policy that the program named did not exist.
#[test]
fn ctrl_c_before_the_learner_is_ready_still_leaves_a_best_policy() {
    let mut run = Run::start(ENDLESS, &[]);
    let learner = run.until("learner", |run| child(run, "learner"));
    send(learner.pid, Signal::SIGSTOP);
    run.until("evaluator", |run| child(run, "evaluator"));
    std::thread::sleep(Duration::from_millis(200));
    run.signal(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    send(learner.pid, Signal::SIGCONT);
    let ended = run.wait().expect(130);
    assert!(ended.best().is_file(), "{}", ended.stderr);
}

/// A second interrupt was not looked at once training had ended: an evaluator that hung kept the program for minutes.
#[test]
fn a_second_ctrl_c_ends_the_run_at_once_whatever_the_children_do() {
    for stuck in ["evaluator", "learner"] {
        // A run that waited for its time of grace would be a hang.
        let mut run = Run::start(&[ENDLESS, &["watchdog.grace_s=100000"]].concat(), &[]);
        until_best(&mut run);
        let kin = run.until(stuck, |run| child(run, stuck));
        send(kin.pid, Signal::SIGSTOP);
        run.signal(Signal::SIGINT);
        run.until("the stop request", |run| {
            let memory = admix::inspect::inspect(&run.dir(), 1).unwrap().memory?;
            (memory.control?.stop_level > 0).then_some(())
        });
        assert_eq!(child(&run, stuck), Some(kin), "one interrupt waits");
        // What follows the first one at once is the same interrupt.
        std::thread::sleep(Duration::from_millis(500));
        run.signal(Signal::SIGINT);
        let ended = run.wait().expect(130);
        assert!(ended.best().is_file());
    }
}

/// The policy lag of a run, which must be a distribution that adds up.
fn policy_lag(ended: &Ended) -> Value {
    let lag = ended.outcome()["policy_lag"].clone();
    let of = |name: &str| lag[name].as_u64().unwrap_or_else(|| panic!("no `{name}` in {lag}"));
    let bins = lag["bins"].as_array().unwrap();
    assert_eq!(bins.iter().map(|bin| bin["count"].as_u64().unwrap()).sum::<u64>(), of("count"));
    assert_eq!(bins.last().unwrap()["to"], lag["max"]);
    assert!(of("count") > 0 && of("p50") <= of("p95") && of("p95") <= of("max"), "{lag}");
    assert!((0.0..=of("max") as f64).contains(&lag["mean"].as_f64().unwrap()), "{lag}");
    let records: Vec<Value> = ended.metrics().into_iter().filter(|line| line["kind"] == "learner").collect();
    let counts: Vec<u64> = records.iter().map(|line| line["policy_lag"]["count"].as_u64().unwrap()).collect();
    assert!(!counts.is_empty() && counts.is_sorted() && counts.last() <= Some(&of("count")), "{counts:?}");
    assert!(ended.stderr.contains(&format!("p95 {}, max {}", of("p95"), of("max"))), "{}", ended.stderr);
    lag
}

#[test]
fn policy_lag_is_told_as_a_distribution() {
    let parallel = policy_lag(&train(&[], &[]));
    assert!(parallel["max"].as_u64() <= Some(64), "no older than the run: {parallel}");
    let lock_step = policy_lag(&train(&[], &["--deterministic"]));
    assert_eq!(lock_step["max"], 0, "a round plays with the parameters of the last one: {lock_step}");
    // In one process parameters are as old as the last publication.
    let fresh = policy_lag(&train(&["learner.publish_every=1"], &["--serial"]));
    assert_eq!((&fresh["max"], fresh["bins"].as_array().unwrap().len()), (&0.into(), 1), "{fresh}");
    let stale = policy_lag(&train(&["learner.publish_every=64"], &["--serial"]));
    assert!((32..64).contains(&stale["max"].as_u64().unwrap()), "{stale}");
    assert!(stale["bins"].as_array().unwrap()[2..].iter().all(|bin| bin["count"].as_u64() > Some(0)), "{stale}");
    assert!(stale["p50"].as_u64() < stale["p95"].as_u64(), "{stale}");
    let literal = policy_lag(&train(&["serial.literal=true"], &["--serial"]));
    assert!(literal["max"].as_u64() < Some(64), "no older than a segment: {literal}");
}

#[test]
fn warm_start_is_a_flag_and_the_resolved_configuration_says_it() {
    let resolved = |sets: &[&str], flags: &[&str]| {
        let ended =
            train(&[&["budget.max_updates=1", "data.test=[]"], sets].concat(), &[&["--serial"], flags].concat());
        let text = std::fs::read_to_string(ended.dir().join("config.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        table["policy"]["warm_start"].as_bool().unwrap()
    };
    let (cold, warm) = ("policy.warm_start=false", "policy.warm_start=true");
    assert!(!resolved(&[cold], &[]) && resolved(&[warm], &[]), "without the flag the configuration decides");
    assert!(resolved(&[cold], &["--warm-start"]) && resolved(&[cold], &["--warm-start=true"]));
    assert!(!resolved(&[warm], &["--warm-start=false", "--seed", "3", "--device", "cpu"]));
    let ended = train(&[cold, "budget.max_updates=1"], &["--deterministic", "--warm-start", "--json"]);
    assert_eq!(ended.code, Some(0));
    assert!(Run::start(&[], &["--warm-start=perhaps"]).wait().expect(2).stderr.contains("--warm-start"));
    let help = Command::new(PROGRAM).args(["train", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("--warm-start[=<true|false>]"));
}

/// It ended at the first refusal, with exit code 1.
#[test]
fn a_serial_run_whose_policy_cannot_be_written_trains_on_and_ends_with_25() {
    let sets = ["budget.max_updates=48", "data.test=[]"];
    let ended = train(&sets, &["--serial"]);
    let (best, manifest, metrics) =
        (ended.best(), ended.dir().join("manifest.json"), ended.dir().join("metrics.jsonl"));
    [&best, &manifest, &metrics].into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    std::fs::create_dir(&best).unwrap();
    let ended = Run::resume(ended.into_folder(), &sets, &["--serial"]).wait().expect(25);
    assert!(ended.stderr.contains("a serial run is not resumed"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("training goes on").count(), 1, "{}", ended.stderr);
    let evaluations = ended.metrics().iter().filter(|line| line["kind"] == "evaluation").count();
    assert!(evaluations > 3, "{evaluations}");
}
