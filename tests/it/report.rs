//! What a run leaves to be looked at: the page, and the screen of `watch`.

use std::path::Path;
use std::process::{Command, Output};

use admix::run::RunDirectory;

use crate::harness::*;
use crate::support::python;
use crate::{decisions, values};

fn watch(dir: &Path) -> Output {
    Command::new(PROGRAM).arg("watch").arg(dir).arg("--once").output().unwrap()
}

/// The screen that `watch` printed, which must fit a small terminal.
fn screen(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    text
}

#[test]
fn the_page_of_a_run_is_one_file_with_everything_in_it() {
    let ended = train(&[], &[]);
    let page = std::fs::read_to_string(ended.dir().join("report.html")).unwrap();
    for foreign in ["http:", "https:", "<script", "src=", "<link", "url("] {
        assert!(!page.contains(foreign), "the page asks for something else: {foreign}");
    }
    for word in
        ["trained:start", "trained:untrained", "trained:last", "receding-horizon", "Validation", "Shortage against"]
    {
        assert!(page.contains(word), "no `{word}`");
    }
    for heading in [
        "Where it differs from",
        "Prices, day-2",
        "Delivery against plan, day-2",
        "Time by process",
        "<td>actor1",
        "<td>learner",
    ] {
        assert!(page.contains(heading), "no `{heading}`");
    }
    assert!(!page.contains("NaN") && !page.contains("inf,"), "every coordinate is a number");
    let count = |what: &str| page.matches(what).count();
    // The curve, the critic, the frontier, the hours, the prices, and one for each of five contracts.
    assert_eq!((count("<svg"), count("</svg>")), (5 + 5, 5 + 5));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(ended.dir().join("report.json")).unwrap()).unwrap();
    let day = &report["days"][0];
    let delivered: u64 = day["delivered"]["trained"]
        .as_array()
        .unwrap()
        .iter()
        .map(|contract| contract.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>())
        .sum();
    let row = day["policies"].as_array().unwrap().iter().find(|p| p["name"] == "trained").unwrap();
    assert_eq!(row["contract_impressions"], delivered, "quarter hours add up to the day");
}

#[test]
fn a_run_without_reported_days_has_a_page_too() {
    let ended = train(&["data.test=[]"], &["--serial"]);
    let page = std::fs::read_to_string(ended.dir().join("report.html")).unwrap();
    assert!(page.contains("there is no verdict") && page.contains("Validation"), "{page}");
}

#[test]
fn a_live_run_and_a_finished_one_fit_a_small_terminal() {
    let mut run = Run::start(ENDLESS, &[]);
    until_working(&mut run);
    let live = run.until("evaluations on the screen", |run| {
        let text = screen(&watch(&run.dir()));
        (text.contains('*') && text.contains("samples:")).then_some(text)
    });
    for word in ["training", "validation share", "learner", "actor1", "alive", "computing", "lag"] {
        assert!(live.contains(word), "no `{word}` in {live}");
    }
    run.signal(nix::sys::signal::Signal::SIGINT);
    run.wait().expect(130);
    let ended = train(&[], &[]);
    let over = screen(&watch(&ended.dir()));
    for word in ["ended: budget", "updates 64/64", "start", "verdict:", "evaluator"] {
        assert!(over.contains(word), "no `{word}` in {over}");
    }
    let none = watch(days());
    assert_eq!(none.status.code(), Some(2));
}

/// The last evaluation was taken for the one with most updates, and the screen ended with a panic.
#[test]
fn the_screen_of_a_run_that_went_back_or_was_started_over_shows_its_curve() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    drop(RunDirectory::create(&run).unwrap());
    std::fs::write(run.join("config.toml"), "[budget]\nmax_updates = 64\n").unwrap();
    let manifest = serde_json::json!({
        "admix": "0.1.0", "mode": "parallel", "seed": 1, "host": "here", "device": "cpu", "started": "2026-11-23T04:00:00Z",
        "ended": "2026-11-23T05:00:00Z", "outcome": {"reason": "budget"},
    });
    std::fs::write(run.join("manifest.json"), manifest.to_string()).unwrap();
    let record = |kind: &str, updates: u64, share: f64| {
        serde_json::json!({
            "time": 1.0, "kind": kind, "updates": updates, "share": share, "shortage_rate": 0.1, "auction_revenue": 5.0,
            "improved": true,
        })
    };
    let whole = [record("start", 0, 0.0), record("evaluation", 0, 0.5), record("evaluation", 64, 0.9)];
    let resumed = [record("resume", 0, 0.0), record("restored", 8, 0.0), record("evaluation", 16, 0.6)];
    let over = [record("start", 0, 0.0), record("evaluation", 0, 0.5), record("evaluation", 24, 0.7)];
    for (again, newest) in
        [(&resumed, "last 60.00, highest 60.00 at update 16"), (&over, "last 70.00, highest 70.00 at update 24")]
    {
        let lines: String = whole.iter().chain(again).map(|record| format!("{record}\n")).collect();
        std::fs::write(run.join("metrics.jsonl"), lines).unwrap();
        let text = screen(&watch(&run));
        assert!(text.contains(newest), "no `{newest}` in {text}");
    }
}

/// Prints the scalar `evaluation/share` of an event folder.
const READ_EVENTS: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for scalar in events.Scalars('evaluation/share'):
    print(scalar.step, scalar.value)
assert 'learner/policy_lag/mean' in events.Tags()['scalars'], events.Tags()
";

#[test]
fn the_metrics_of_a_run_are_scalars_of_tensorboard() {
    let test = "the_metrics_of_a_run_are_scalars_of_tensorboard";
    let Some(python) = python(test, "tensorboard, torch") else { return };
    let ended = train(&[], &["--serial"]);
    let out = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/tensorboard.py");
    let written = Command::new(&python).arg(script).arg(ended.dir()).arg("--out").arg(out.path()).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let name = ended.dir().file_name().unwrap().to_owned();
    let read = Command::new(&python).args(["-c", READ_EVENTS]).arg(out.path().join(name)).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let metrics = std::fs::read_to_string(ended.dir().join("metrics.jsonl")).unwrap();
    let records = metrics.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let expected: Vec<(u64, f64)> = records
        .filter(|record| record["kind"] == "evaluation")
        .map(|record| (record["updates"].as_u64().unwrap(), record["share"].as_f64().unwrap()))
        .collect();
    let text = String::from_utf8(read.stdout).unwrap();
    let scalars: Vec<(u64, f64)> = text
        .lines()
        .map(|line| {
            let (step, value) = line.split_once(' ').unwrap();
            (step.parse().unwrap(), value.parse().unwrap())
        })
        .collect();
    assert_eq!(scalars.len(), expected.len());
    for (scalar, (updates, share)) in scalars.iter().zip(&expected) {
        assert!(scalar.0 == *updates && (scalar.1 - share).abs() < 1e-6, "{scalar:?}, {updates} {share}");
    }
}

#[test]
fn a_decision_is_explained_as_it_was_taken() {
    let ended = train(&[], &["--serial"]);
    let (run, day) = (ended.dir(), days().join("day-2"));
    let out = tempfile::tempdir().unwrap();
    let decisions = Command::new(PROGRAM)
        .args(["eval", "--json", "--policy"])
        .arg(&run)
        .arg("--log")
        .arg(&day)
        .arg("--decisions")
        .arg(out.path())
        .output()
        .unwrap();
    assert!(decisions.status.success(), "{}", String::from_utf8_lossy(&decisions.stderr));
    let rows = |policy: &str| -> Vec<Vec<String>> {
        let text = std::fs::read_to_string(out.path().join(format!("day-2/decisions.{policy}.tsv"))).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("request_id\tad_id\ttype\tts_ms\tbid\tprice\trunner_up\trunner_up_bid"));
        lines.map(|line| line.split('\t').map(String::from).collect()).collect()
    };
    let own = rows("run");
    let number = |text: &str| text.parse::<f64>().unwrap();
    for row in own.iter().filter(|row| row[6] != "-") {
        assert!(number(&row[4]) >= number(&row[7]), "the runner-up bids no more: {row:?}");
        assert!(
            row[2] != "A" || (number(&row[4]) - number(&row[5])).abs() < 1e-2,
            "an auction ad bids its eCPM: {row:?}"
        );
    }
    assert!(own.windows(2).all(|w| number(&w[0][3]) <= number(&w[1][3])), "in the order of time");
    // A draw, which the worth of ads that took no part in it must not stand before.
    let drawn = rows("random");
    assert!(drawn.iter().all(|row| row[4] == "-" || (1000.0..=2000.0).contains(&number(&row[4]))), "{drawn:?}");
    // Contracts late in the day, where what was shown before matters.
    let contracts = own.iter().rev().filter(|row| row[2] == "C").take(3);
    for row in contracts {
        let output = Command::new(PROGRAM)
            .args(["explain", "--json", "--request", &row[0], "--policy"])
            .arg(&run)
            .arg("--log")
            .arg(&day)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let views = said["views"].as_array().unwrap();
        for view in views {
            let policy = view["policy"].as_str().unwrap();
            let row = rows(policy).into_iter().find(|r| r[0] == row[0]).unwrap();
            let shown = &view["candidates"][0];
            assert_eq!(shown["ad_id"].to_string(), row[1], "{policy}");
            let bid = shown["bid"].as_f64().unwrap() * shown["boost"].as_f64().unwrap();
            assert!((bid - number(&row[4])).abs() < 1e-2 + 1e-12 * bid.abs(), "{policy}: {bid} {row:?}");
        }
        assert_eq!(views[0]["policy"], "run");
        let state = &views[0]["candidates"][0]["contract"];
        assert!(state["observed"].as_f64() < state["owed"].as_f64(), "{state}");
        assert!(views[0]["candidates"][0]["features"].as_object().is_some_and(|f| f.len() > 5));
        assert_eq!(views.len(), 2 + admix::policy::baselines::NAMES.len());
    }
    let missing = Command::new(PROGRAM)
        .args(["explain", "--request", "1", "--policy"])
        .arg(&run)
        .arg("--log")
        .arg(&day)
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn a_decision_at_the_values_of_a_model_is_explained_at_them() {
    let out = tempfile::tempdir().unwrap();
    let days = decisions::synth(out.path(), values::WORLD, 3);
    let plan = decisions::plan(out.path(), &days[..1]);
    let policy = decisions::policies(out.path(), &plan, &days[0]).remove(0);
    let (name, day, ratios) = (policy.file_stem().unwrap().to_str().unwrap(), &days[2], out.path().join("ratios"));
    let output = |arguments: &[&str], more: &[&Path]| {
        let output = Command::new(PROGRAM).args(arguments).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    output(&["values", "ratios", "--log"], &[&days[0], Path::new("--out"), &ratios]);
    let of_day: [&Path; 6] = [Path::new("--policy"), &policy, Path::new("--log"), day, Path::new("--values"), &ratios];
    output(&["eval", "--json"], &[&of_day[..], &[Path::new("--decisions"), out.path()]].concat());
    let decided = out.path().join(format!("day-2/decisions.{name}.tsv"));
    let decided = std::fs::read_to_string(decided).unwrap();
    for row in decided.lines().rev().take(3).map(|line| line.split('\t').collect::<Vec<_>>()) {
        let explained = |more: &[&Path]| -> serde_json::Value {
            serde_json::from_str(&output(&["explain", "--json", "--request", row[0]], more)).unwrap()
        };
        let [corrected, logged] = [&of_day[..], &of_day[..4]].map(explained);
        assert_eq!(corrected["views"][0]["candidates"][0]["ad_id"].to_string(), row[1]);
        assert!(corrected["told"].as_str().unwrap().starts_with("values:") && logged["told"] == "logged");
        assert!(corrected["views"][0]["price"] != logged["views"][0]["price"], "the values change nothing");
    }
}
