//! The dictionary of a feature server: its entries are scores, and what should not be served is not written.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admix::bench::score::jsonl;
use admix::env::Vocabulary;
use admix::export::{bucket_of, pctr_of, probe};
use admix::log::draw;
use admix::log::schema::TrackRow;
use admix::plan::Plan;
use admix::policy::PolicySpec;
use admix::policy::baselines::{NAMES, draws};
use admix::policy::file::PolicyFile;
use admix::policy::start::initial_actor;
use admix::policy::stored::BaselineFile;
use admix::score::{DayFiles, Decision, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use admix::settings::{self, ScoreMode};
use serde_json::Value;

use super::decisions::{SMALL, TWISTED, plan, synth};
use super::support::admix;
use super::worlds::open;

/// A policy whose network has not learned yet: planner and controller.
fn untrained(folder: &Path, plan: &Path, day: &Path) -> String {
    let policy = settings::Policy { hidden: 8, ..settings::Policy::default() };
    let vocabulary = Vocabulary::of_days(&[&open(day)], false);
    let spec = PolicySpec { score_mode: ScoreMode::Contract, policy, vocabulary };
    let actor = initial_actor(&spec, 3);
    let path = folder.join("untrained.safetensors");
    PolicyFile { spec: Arc::new(spec), plan: Plan::read(plan).unwrap(), actor, updates: 0 }.write(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

struct Exported {
    rows: Vec<HashMap<String, String>>,
    state: Vec<u8>,
    report: Value,
}

fn export(policy: &str, plan: &Path, log: &Path, out: &Path, more: &[&str]) -> Exported {
    let output = admix()
        .args(["export", "--policy", policy, "--json", "--plan"])
        .arg(plan)
        .arg("--log")
        .arg(log)
        .arg("--out")
        .arg(out)
        .args(more)
        .assert()
        .success();
    let text = std::fs::read_to_string(out).unwrap();
    let header: Vec<&str> = text.lines().next().unwrap().split('\t').collect();
    let row =
        |line: &str| header.iter().map(ToString::to_string).zip(line.split('\t').map(ToOwned::to_owned)).collect();
    let mut state = out.as_os_str().to_owned();
    state.push(".state");
    Exported {
        rows: text.lines().skip(1).map(row).collect(),
        state: std::fs::read(PathBuf::from(state)).unwrap(),
        report: serde_json::from_slice(&output.get_output().stdout).unwrap(),
    }
}

#[test]
fn an_entry_is_the_score_at_the_recorded_state() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 3);
    let plan = plan(scratch.path(), &days[..2]);
    let learned = untrained(scratch.path(), &plan, &days[0]);
    let day = &days[2];
    let of = |name: &str| day.join(name);
    let files =
        DayFiles { control: of("control.tsv"), inventory: Some(of("inventory.tsv")), day: Some(of("day.toml")) };
    let served = ServedDay::read(&files, 0).unwrap();
    let exposure = of("joined_exposure.tsv");
    let during = ["--at", "13:30", "--delivered-from", exposure.to_str().unwrap()];
    for (policy, more) in
        [(learned.as_str(), &[] as &[&str]), ("baseline:receding-horizon", &[]), (learned.as_str(), &during)]
    {
        let exported = export(policy, &plan, day, &scratch.path().join("dictionary.tsv"), more);
        assert!(exported.rows.len() > 50, "{} entries", exported.rows.len());
        assert!(exported.report["coverage"].as_f64().unwrap() >= 0.95, "{}", exported.report);
        let opened = ServedPolicy::open(policy, Some(&plan)).unwrap();
        let options = ScoreOptions { stateless: true, ..ScoreOptions::default() };
        let mut scorer = Scorer::new(&served, &opened, options).unwrap();
        assert!(scorer.restore(&exported.state).unwrap().goes_on);
        let worths = scorer.replay().day.price_by_hour.clone();
        let (mut exact, mut requests) = (0, vec![]);
        for row in exported.rows.iter().filter(|row| row["score_kind"] == "exact") {
            let number = |name: &str| row[name].parse::<f64>().unwrap();
            let contract = served.contracts.iter().find(|c| c.ad_id as f64 == number("ad_id")).unwrap();
            let ts_ms: u64 = row["valid_from_ms"].parse().unwrap();
            let hour = ((ts_ms - served.day.start_ms) / 3_600_000) as usize;
            let key = (row["slot_id"].parse().unwrap(), pctr_of(row["pac_bucket"].parse().unwrap()));
            let request = probe(contract, key, ts_ms, worths[hour], 0);
            assert_eq!(bucket_of(key.1).to_string(), row["pac_bucket"]);
            let mut decision = Decision::default();
            scorer.decide(&request, &mut decision).unwrap();
            let score = decision.scores.iter().find(|(ad_id, _)| *ad_id == contract.ad_id).unwrap().1;
            assert!((score - number("score")).abs() <= 1e-9 * score.abs(), "{row:?}: {score}");
            assert_eq!(row["model_version"], opened.version);
            exact += 1;
            // Ids may not come twice in a stream, and the contract has to be drawn.
            let next = requests.last().map_or(0, |(last, _): &(TrackRow, f64)| last.request_id + 1);
            let request_id = (next..).find(|&id| draw::passes(0, id, contract.ad_id, contract.rate)).unwrap();
            requests.push((TrackRow { request_id, ..request }, score));
        }
        // The command at the state in the file beside the dictionary.
        let rows: Vec<TrackRow> = requests.iter().map(|(request, _)| request.clone()).collect();
        let output = admix()
            .args(["score", "--stateless", "--format", "jsonl", "--policy", policy, "--plan"])
            .args([&plan, Path::new("--state"), &scratch.path().join("dictionary.tsv.state"), Path::new("--control")])
            .args([&files.control, Path::new("--inventory"), &of("inventory.tsv"), Path::new("--day"), &of("day.toml")])
            .write_stdin(jsonl(&rows).unwrap())
            .assert()
            .success();
        let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
        assert_eq!(text.lines().count(), requests.len());
        for (line, (request, expected)) in text.lines().zip(&requests) {
            let answer: Value = serde_json::from_str(line).unwrap();
            let of_contract =
                answer["scores"].as_array().unwrap().iter().find(|s| s["ad_id"] == request.queue[0].ad_id);
            let score = of_contract.unwrap()["score"].as_f64().unwrap();
            assert!((score - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{line}: {expected}");
        }
        assert!(exact > 40, "{exact} exact entries");
        // Every ad has its fallbacks.
        for row in &exported.rows {
            let same = |r: &&HashMap<String, String>| r["ad_id"] == row["ad_id"] && r["pac_bucket"] == "*";
            assert!(exported.rows.iter().filter(same).any(|r| r["slot_id"] == "*"));
            assert!(exported.rows.iter().filter(same).any(|r| r["slot_id"] == row["slot_id"]));
        }
    }
}

#[test]
fn what_should_not_be_served_is_not_written() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), &format!("{SMALL}{TWISTED}"), 2);
    let plan = plan(scratch.path(), &days[..1]);
    let out = scratch.path().join("dictionary.tsv");
    std::fs::write(&out, "yesterday's").unwrap();
    let export = |policy: &str, more: &[&str]| {
        let mut command = admix();
        command.args(["export", "--policy", policy]).args(more).arg("--plan").arg(&plan);
        command.arg("--log").arg(&days[1]).arg("--out").arg(&out).assert()
    };
    let promoted = scratch.path().join("promoted.safetensors");
    BaselineFile::new("pass-rate", Plan::read(&plan).unwrap()).unwrap().write(&promoted).unwrap();
    let drawing: Vec<&str> = NAMES.into_iter().filter(|name| draws(name)).collect();
    assert_eq!(drawing, ["random", "theta-lottery", "shale", "pass-rate"]);
    // Those whose scores are finite were written: one draw for a whole period, with the figures of another policy.
    let repeats = "draws on each request";
    let mut refused: Vec<_> = drawing.iter().map(|name| (format!("baseline:{name}"), repeats)).collect();
    refused.push((promoted.to_str().unwrap().to_owned(), repeats));
    refused.push(("baseline:auction-only".to_owned(), "needs a number"));
    for (policy, why) in refused {
        let output = export(&policy, &[]).code(12);
        let told = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(told.contains(why), "{policy}: {told}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "yesterday's");
    }
    for (at, code) in [("25:00", 2), ("noon", 2), ("17", 2)] {
        export("baseline:receding-horizon", &["--at", at]).code(code);
    }
    let output = export("no-such-policy", &[]).code(2);
    let told = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(told.contains("no-such-policy"), "{told}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "yesterday's");
}
