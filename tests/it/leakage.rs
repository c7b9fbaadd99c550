//! A day has one role: what was trained on must not be judged on, whatever its directory is called.

use std::path::{Path, PathBuf};

use admix::log::schema::ControlRow;
use serde_json::Value;

use crate::harness::*;
use crate::logs::LogRows;
use crate::support::admix;

/// Copies a log directory under another name, its tables packed another way.
fn copy(day: &Path, to: PathBuf) -> PathBuf {
    let rows = LogRows::read(day);
    // Contracts that owe something else: the traffic is the same.
    let contracts = rows.contracts.iter().map(|c| ControlRow { required: c.required + 1, cap: c.cap + 1, ..c.clone() });
    LogRows { contracts: contracts.collect(), inventory: None, ..rows }.write(to)
}

fn said(assert: assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

#[test]
fn a_day_in_two_roles_is_refused_by_its_content_with_both_directories_and_the_remedy() {
    let scratch = tempfile::tempdir().unwrap();
    let config = config_in(scratch.path(), days());
    let link = scratch.path().join("link");
    std::os::unix::fs::symlink(days().join("day-1"), &link).unwrap();
    for (set, original, again) in [
        ("data.validation", "day-0", copy(&days().join("day-0"), scratch.path().join("v"))),
        ("data.test", "day-0", copy(&days().join("day-0"), scratch.path().join("t"))),
        // A link is followed.
        ("data.test", "day-1", link),
        ("data.test", "day-0", days().join("day-0")),
    ] {
        let found = again.canonicalize().unwrap();
        let run = scratch.path().join("run");
        let set = format!("{set}=[{again:?}]");
        let stderr = said(
            admix()
                .args(["train", "--config"])
                .arg(&config)
                .args(["--set", &set, "--run-dir"])
                .arg(&run)
                .assert()
                .code(2),
        );
        for word in [days().join(original).to_str().unwrap(), found.to_str().unwrap(), "seen", "name another day"] {
            assert!(stderr.contains(word), "no `{word}` in {stderr}");
        }
        assert!(!run.exists(), "nothing was begun");
    }
    let day = |i: u32| days().join(format!("day-{i}"));
    // Twice in one role.
    let stderr = said(admix().arg("plan").args([day(0), day(0)]).assert().code(2));
    assert!(stderr.contains("name it once") && stderr.contains("the training days"), "{stderr}");
    let stderr = said(
        admix().arg("plan").args([day(0), day(1)]).arg("--validation").arg(scratch.path().join("v")).assert().code(2),
    );
    assert!(stderr.contains("same day") && stderr.contains("--validation"), "{stderr}");
}

#[test]
fn a_study_that_reports_a_copy_of_a_training_day_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    config_in(scratch.path(), days());
    copy(&days().join("day-0"), scratch.path().join("copy"));
    let study = scratch.path().join("study.toml");
    let text = format!(
        "config = \"config.toml\"\nset = [\"data.test=[]\"]\nseeds = [1]\n[days]\ntrain = [0]\nvalidation = [1]\nreport = [2]\n\
         [[world]]\nname = \"w\"\nlogs = [{:?}, {:?}, \"copy\"]\n",
        days().join("day-0"),
        days().join("day-1")
    );
    // `data` is the study's own to set.
    std::fs::write(&study, text.replace("set = [\"data.test=[]\"]\n", "")).unwrap();
    let out = scratch.path().join("out");
    let stderr = said(admix().args(["study", "--config"]).arg(&study).arg("--out").arg(&out).assert().code(2));
    assert!(stderr.contains("days.report") && stderr.contains("days.train") && stderr.contains("copy"), "{stderr}");
}

/// `seen` of a day's report: policy and use.
fn seen(report: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    report["seen"].as_array().unwrap().iter().map(|s| (text(&s["policy"]), text(&s["used"]))).collect()
}

#[test]
fn eval_says_of_a_day_that_a_policy_was_trained_or_chosen_on_it() {
    let scratch = tempfile::tempdir().unwrap();
    let ended = train(&["data.test=[]"], &["--serial"]);
    let policy = ended.best();
    let again = copy(&days().join("day-0"), scratch.path().join("renamed"));
    let path = |i: u32| days().join(format!("day-{i}")).to_str().unwrap().to_owned();
    let (policy, again) = (policy.to_str().unwrap(), again.to_str().unwrap());
    let own = |used: &str| vec![("baselines".to_owned(), used.to_owned()), ("best".to_owned(), used.to_owned())];

    let reports = eval(&["--policy", policy, "--baselines", "pid", "--log", &path(0), &path(1), &path(2), again]);
    assert_eq!(reports.iter().map(seen).collect::<Vec<_>>(), [own("train"), own("validation"), vec![], own("train")]);
    // What the day was put under does not make it another day.
    let stressed = eval(&["--policy", policy, "--baselines", "none", "--stress", "volume=0.75", "--log", again]);
    assert_eq!(seen(&stressed[0]), [("best".to_owned(), "train".to_owned())]);

    let table = |log: &str| {
        let output = admix().args(["eval", "--baselines", "none", "--policy", policy, "--log", log]).assert().success();
        String::from_utf8_lossy(&output.get_output().stdout).into_owned()
    };
    assert!(table(&path(0)).starts_with("day-0 is a TRAINING DAY of best"), "{}", table(&path(0)));
    assert!(table(&path(1)).starts_with("day-1 is a VALIDATION DAY of best"), "{}", table(&path(1)));
    assert!(table(&path(2)).starts_with("policy"), "{}", table(&path(2)));

    // A policy that starts from another one has seen what that one saw.
    let swapped = [
        format!("data.train=[{:?}]", path(1)),
        format!("data.validation=[{:?}]", path(2)),
        format!("data.test=[{:?}]", path(0)),
    ];
    let sets: Vec<&str> = swapped.iter().map(String::as_str).collect();
    let ended = train(&sets, &["--serial", "--from", policy]);
    assert!(ended.stderr.contains("was made from day-0 (data.test)"), "{}", ended.stderr);
    assert!(ended.stdout.contains("day-0 is a TRAINING DAY of"), "{}", ended.stdout);
    let report: Value = serde_json::from_slice(&std::fs::read(ended.dir().join("report.json")).unwrap()).unwrap();
    assert!(seen(&report["days"][0]).contains(&("trained".to_owned(), "train".to_owned())), "{report}");
    let page = std::fs::read_to_string(ended.dir().join("report.html")).unwrap();
    assert!(page.contains("TRAINING DAY") && !page.contains("Days that were not trained on"));
}

#[test]
fn eval_says_what_of_a_day_is_new_to_a_policy() {
    let scratch = tempfile::tempdir().unwrap();
    let ended = train(&["data.test=[]"], &["--serial"]);
    let mut rows = LogRows::read(&days().join("day-2"));
    rows.inventory = None;
    let renamed = rows.contracts[0].ad_id;
    rows.contracts[0].ad_id = 987_654_321;
    let half = rows.requests.len() / 2;
    for (i, row) in rows.requests.iter_mut().enumerate() {
        row.queue.iter_mut().filter(|e| e.ad_id == renamed).for_each(|e| e.ad_id = 987_654_321);
        if i < half {
            row.region += 1000;
        }
    }
    let share = half as f64 / rows.requests.len() as f64;
    let owed: u64 = rows.contracts.iter().map(|c| c.required).sum();
    let expected = rows.contracts[0].required as f64 / owed as f64;
    let contracts = rows.contracts.len();
    let day = rows.write(scratch.path().join("elsewhere"));
    let (policy, log) = (ended.best(), day.to_str().unwrap());
    let arguments = ["--policy", policy.to_str().unwrap(), "--baselines", "pid", "--log", log];
    let report = &eval(&arguments)[0];
    let unknown = report["unknown"].as_array().unwrap();
    assert_eq!(unknown.iter().map(|u| u["policy"].as_str().unwrap()).collect::<Vec<_>>(), ["baselines", "best"]);
    for u in unknown {
        assert_eq!((u["unknown_contracts"].as_u64(), u["contracts"].as_u64()), (Some(1), Some(contracts as u64)));
        assert!((u["owed_share"].as_f64().unwrap() - expected).abs() < 1e-12, "{u}");
        assert!((u["traffic_share"].as_f64().unwrap() - share).abs() < 1e-12, "{u}");
    }
    let output = admix().arg("eval").args(arguments).assert().success();
    let table = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert!(table.starts_with("elsewhere is partly new to baselines, best: 1 of"), "{table}");
    assert!(table.contains("slot or region that was on no training day"), "{table}");
    let usual = &eval(&["--policy", policy.to_str().unwrap(), "--log", days().join("day-2").to_str().unwrap()])[0];
    assert_eq!((seen(usual).len(), usual["unknown"].as_array().unwrap().len()), (0, 0));
}
