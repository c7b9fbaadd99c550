//! What a policy is shown beside, and what is said of it.

use std::process::Command;

use admix::evaluate::Stress;
use admix::log::CompileOptions;
use admix::policy::file::PolicyFile;
use admix::policy::{Controller, ReplayOptions, replay_day};
use serde_json::Value;

use crate::harness::*;

fn day(i: usize) -> String {
    days().join(format!("day-{i}")).to_str().unwrap().to_owned()
}

fn policy<'a>(report: &'a Value, name: &str) -> &'a Value {
    let policies = report["policies"].as_array().unwrap();
    policies.iter().find(|p| p["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn report(ended: &Ended) -> Value {
    serde_json::from_slice(&std::fs::read(ended.dir().join("report.json")).unwrap()).unwrap()
}

fn lines(ended: &Ended) -> Vec<Value> {
    ended.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn a_run_is_shown_beside_what_it_came_from_and_its_verdict_is_the_last_line() {
    let ended = train(&[], &["--json"]);
    let lines = lines(&ended);
    let kinds = [("trained", "trained"), ("trained:start", "start"), ("trained:untrained", "untrained")];
    for (name, kind) in kinds.into_iter().chain([("trained:last", "last")]) {
        assert_eq!(policy(&lines[0], name)["kind"], kind);
    }
    let line = lines.last().unwrap();
    let verdict = line["verdict"].as_object().unwrap();
    let keys: Vec<&str> = verdict.keys().map(String::as_str).collect();
    let mut wanted =
        ["policy", "against", "difference", "interval", "decision", "over_untrained", "over_untrained_interval"];
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
    let share = |name: &str| policy(&lines[0], name)["share"].as_f64().unwrap();
    let against = verdict["against"].as_str().unwrap();
    let difference = verdict["difference"].as_f64().unwrap();
    assert!((difference - 100.0 * (share("trained") - share(against))).abs() < 1e-9, "{line}");
    let [low, high] = [0, 1].map(|i| verdict["interval"][i].as_f64().unwrap());
    assert!(low <= difference && difference <= high, "{line}");
    let decision = if low > 0.0 {
        "better"
    } else if high < 0.0 {
        "worse"
    } else {
        "level"
    };
    assert_eq!(verdict["decision"], decision);

    // The best baseline was named on the validation day, and `eval` repeats all of it from the run directory.
    let baselines = eval(&["--log", &day(1), "--plan", ended.dir().join("plan/plan.json").to_str().unwrap()]);
    let of_kind = baselines[0]["policies"].as_array().unwrap().iter().filter(|p| p["kind"] == "baseline");
    let best = of_kind.max_by(|a, b| a["share"].as_f64().unwrap().total_cmp(&b["share"].as_f64().unwrap())).unwrap();
    assert_eq!(line["basis"]["best_baseline_by"], "validation");
    assert_eq!(best["name"], against);
    let report = report(&ended);
    assert_eq!(report["verdict"], line["verdict"]);
    assert_eq!(report["validation"]["best_baseline"], against);
    let mut again = eval_lines(&["--log", &day(2), "--policy", ended.dir().to_str().unwrap()]);
    let mut last = again.pop().unwrap();
    assert_eq!(last["verdict"]["policy"], "run");
    last["verdict"]["policy"] = "trained".into();
    assert_eq!(last, *line);

    // Of a file alone nothing says which baseline was best before.
    let file = eval_lines(&["--log", &day(2), "--policy", ended.best().to_str().unwrap()]).pop().unwrap();
    assert_eq!(file["basis"]["best_baseline_by"], "hindsight");
    assert_eq!(file["verdict"]["against"], file["basis"]["best_in_hindsight"]);
    let none = eval_lines(&["--log", &day(2), "--baselines", "none", "--policy", ended.best().to_str().unwrap()]);
    assert_eq!(none.len(), 1, "without a baseline there is no verdict");
}

#[test]
fn the_untrained_row_is_planner_and_controller_with_the_tuned_settings() {
    let ended = train(&[], &["--serial"]);
    let file = PolicyFile::read(ended.dir().as_path()).unwrap();
    let tuned = file.plan.tuned.unwrap();
    let view = (&admix::values::Told::Logged, &admix::values::Told::Logged);
    let day_2 = admix::evaluate::TestDay::open(&days().join("day-2"), CompileOptions::default(), view, None::<&Stress>)
        .unwrap();
    let model = day_2.model(&file.plan, Default::default());
    let mut controller = Controller::new(&file.untrained().spec.policy, tuned.pacing, tuned.receding);
    let options = ReplayOptions { rate_seed: 0, delay: admix::env::Delay::fixed(0.0) };
    let j = replay_day(&model, &mut controller, options, &mut |_| {}).j;
    let row = report(&ended)["days"][0].clone();
    let untrained = policy(&row, "trained:untrained")["j"].as_f64().unwrap();
    assert!((untrained - j).abs() <= 1e-6 * j.abs(), "{untrained} {j}");
}

#[test]
fn a_chosen_policy_that_is_its_start_is_called_that() {
    let ended = train(&["learner.actor_rate=0"], &[]);
    assert!(ended.stdout.contains("trained * = start"), "{}", ended.stdout);
    assert!(ended.stdout.contains("trained IS its start"), "{}", ended.stdout);
    let report = report(&ended);
    assert_eq!(report["basis"]["chosen_is_start"], true);
    let row = report["days"][0].clone();
    assert_eq!(policy(&row, "trained")["equals"], "trained:start");
    assert_eq!(policy(&row, "trained")["j"], policy(&row, "trained:start")["j"]);
}

#[test]
fn a_required_verdict_that_is_not_reached_ends_with_12() {
    // Half of the penalty as every bid, uncontrolled, is nobody's best policy.
    let bad = ["learner.actor_rate=0", "policy.warm_start=false", "policy.pacing=false"];
    for required in ["better", "level"] {
        let ended = Run::start(&bad, &["--require", required]).wait().expect(12);
        assert_eq!(report(&ended)["verdict"]["decision"], "worse");
        assert!(ended.stderr.contains("--require"), "{}", ended.stderr);
        assert!(ended.stdout.contains("not worth deploying"), "{}", ended.stdout);
    }
    let without = Run::start(&["data.test=[]"], &["--require", "level"]).wait().expect(2);
    assert!(without.stderr.contains("data.test"), "{}", without.stderr);
}

#[test]
fn a_run_starts_from_another_ones_policy() {
    let first = train(&["learner.actor_rate=0.01"], &["--serial"]);
    let from = first.last();
    let origin = PolicyFile::read(&from).unwrap();
    for mode in ["--serial", "--deterministic"] {
        let second = train(&["learner.actor_rate=0"], &[mode, "--from", from.to_str().unwrap()]);
        for path in [second.last(), second.best(), second.dir().join("policy/start.safetensors")] {
            assert!(PolicyFile::read(&path).unwrap().has_weights_of(&origin), "{mode}: {}", path.display());
        }
        let (then, now) = (report(&first)["days"][0].clone(), report(&second)["days"][0].clone());
        assert_eq!(policy(&now, "trained:start")["j"], policy(&then, "trained:last")["j"]);
        assert_eq!(policy(&now, "trained:untrained")["j"], policy(&then, "trained:untrained")["j"]);
    }
    let other = Run::start(&["policy.hidden=8"], &["--from", from.to_str().unwrap()]).wait().expect(2);
    assert!(other.stderr.contains("policy.hidden = 16"), "{}", other.stderr);
    let missing = Run::start(&[], &["--from", "nowhere.safetensors"]).wait().expect(2);
    assert!(missing.stderr.contains("--from"), "{}", missing.stderr);
}

#[test]
fn embeddings_follow_their_ids_into_the_next_run() {
    let sets = ["policy.ad_embedding=3", "policy.traffic_embedding=2"];
    let first = train(&sets, &["--serial"]);
    let from = first.last();
    let second =
        train(&[&sets[..], &["learner.actor_rate=0"]].concat(), &["--serial", "--from", from.to_str().unwrap()]);
    let (was, is) = (PolicyFile::read(&first.last()).unwrap(), PolicyFile::read(&second.last()).unwrap());
    assert!(is.has_weights_of(&was), "the same days know the same ids");
}

#[test]
fn two_runs_of_one_name_are_compared_under_names_that_tell_them_apart() {
    let (first, second) = (train(&[], &["--serial"]), train(&["run.seed=2"], &["--serial"]));
    let paths = [first.dir(), second.dir()];
    let output = Command::new(PROGRAM)
        .args(["eval", "--json", "--baselines", "pid", "--log", &day(2), "--policy"])
        .args(&paths)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<String> =
        paths.iter().map(|p| format!("{}/run", p.parent().unwrap().file_name().unwrap().to_string_lossy())).collect();
    for name in &names {
        assert_eq!(policy(&lines[0], name)["kind"], "trained");
        assert_eq!(policy(&lines[0], &format!("{name}:last"))["kind"], "last");
    }
    assert_eq!(lines[1]["verdict"]["policy"], names[0].as_str());
    assert_eq!(lines[2]["verdict"]["policy"], names[1].as_str());
}

#[test]
fn runs_are_listed_and_compared_by_what_their_directories_say() {
    let folder = tempfile::tempdir().unwrap();
    let config = config_in(folder.path(), days());
    let start = |name: &str, sets: &[&str], code: i32| {
        let mut command = Command::new(PROGRAM);
        command.args(["train", "--serial", "--config"]).arg(&config).arg("--run-dir").arg(folder.path().join(name));
        for set in sets {
            command.args(["--set", set]);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    };
    start("a/night", &[], 0);
    start("b/night", &["learner.actor_rate=0", "policy.warm_start=false", "policy.pacing=false"], 0);
    start("untested", &["data.test=[]"], 0);
    // Without its logs a finished run is still compared.
    let run = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).arg("runs").arg(folder.path()).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text, stderr) = run(&["--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let said: Value = serde_json::from_str(&text).unwrap();
    let runs = said["runs"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3);
    assert!(["a/night", "b/night", "untested"].iter().all(|name| names.contains(name)), "{names:?}");
    assert!(runs.iter().all(|r| r["state"] == "budget" && r["updates"] == 64), "{said}");
    let at = |name: &str| names.iter().position(|n| *n == name).unwrap();
    let values = &said["differing"]["policy.warm_start"];
    assert_eq!((&values[at("a/night")], &values[at("b/night")]), (&Value::Bool(true), &Value::Bool(false)));
    assert!(said["differing"].get("policy.hidden").is_none(), "what is the same is not listed");
    let compared = said["compared"].as_array().unwrap();
    assert_eq!(compared.len(), 1, "the third run reported no day");
    let share = |name: &str| runs[at(name)]["test_share"].as_f64().unwrap();
    let [own, against] = ["run", "against"].map(|key| compared[0][key].as_str().unwrap());
    let difference = compared[0]["difference"].as_f64().unwrap();
    assert!((difference - 100.0 * (share(own) - share(against))).abs() < 1e-9, "{said}");
    let (_, text, _) = run(&["--against", "b/night"]);
    assert!(text.contains("a/night - b/night: +") && text.contains("): better"), "{text}");
    let (code, _, stderr) = run(&["--against", "c"]);
    assert!(code == Some(2) && stderr.contains("no run `c`; there are"), "{stderr}");
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM).arg("runs").arg(empty.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_start_that_fails_leaves_no_run_directory() {
    for sets in [&["data.train=[\"/nowhere\"]"][..], &["actors.write_every=1000000000", "checkpoint.every_s=0"]] {
        let ended = Run::start(sets, &[]).wait();
        assert!(ended.code.is_some_and(|code| code != 0), "{}", ended.stderr);
        assert!(!ended.dir().exists(), "{}", ended.stderr);
    }
}

/// Deliveries are observed late, and the learned policy predicts them: it was compared with baselines that do not. And `eval` ran controllers every
/// 300 s, whatever the interval that they were tuned at.
#[test]
fn under_a_delay_baselines_that_predict_stand_beside_and_eval_repeats_all_of_them() {
    let sets = ["env.feedback_delay_s=3600", "baselines.interval_s=1800"];
    let ended = train(&sets, &["--json"]);
    let trained = &lines(&ended)[0];
    let run = ended.dir().to_str().unwrap().to_owned();
    let evaluated = &eval(&["--feedback-delay", "3600", "--policy", &run, "--log", &day(2)])[0];
    for name in ["pid", "pid-predicting", "pass-rate", "dual-descent-cold", "receding-horizon-predicting"] {
        let share = |report: &Value| policy(report, name)["share"].as_f64().unwrap();
        assert_eq!(share(trained), share(evaluated), "{name}");
    }
    let validation = report(&ended)["validation"]["policies"].clone();
    let named = |name: &str| validation.as_array().unwrap().iter().any(|p| p["name"] == name);
    assert!(named("receding-horizon-predicting"), "they are chosen among: {validation}");
    // A stress that delays, too.
    let stressed = &eval(&["--stress", "delay=600", "--policy", &run, "--log", &day(2)])[0];
    policy(stressed, "pid-predicting");
}
