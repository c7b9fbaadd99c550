//! The nightly job through the real program: a week of nights, and what a job's file may say.

use std::path::Path;
use std::process::Command;

use crate::harness::PROGRAM;
use crate::support::admix;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn a_week_of_nights_is_right_every_morning() {
    let script = Path::new(ROOT).join("scripts/week-of-nights");
    let output = Command::new("python3")
        .arg(script)
        .args(["--small", "--admix", PROGRAM])
        .output()
        .expect("python3 runs scripts/week-of-nights");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_shipped_job_is_one_and_names_every_key() {
    let path = Path::new(ROOT).join("configs/retrain.toml");
    let job = admix::retrain::Job::load(&path).unwrap();
    assert!(job.config.is_file(), "{}", job.config.display());
    let written: toml::Table = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let all = toml::Table::try_from(&job).unwrap();
    let keys = |table: &toml::Table| -> Vec<String> {
        let inner = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::Table(t) => t.keys().map(|k| format!("{key}.{k}")).collect(),
            _ => vec![key.clone()],
        };
        table.iter().flat_map(inner).collect()
    };
    assert_eq!(keys(&written), keys(&all));
}

#[test]
fn a_job_that_cannot_be_run_is_refused_with_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    let good = "jobs = \"jobs\"\nconfig = \"c.toml\"\n[days]\ndir = \"days\"\n";
    for (text, word) in [
        (good.replace("jobs =", "jbos ="), "jbos"),
        (format!("{good}pattern = \"%Y-%m\"\n"), "%d"),
        (format!("{good}heldout = 0\n"), "days.heldout"),
        (format!("{good}[drift]\necpm = 0.5\n"), "drift.ecpm"),
        (format!("{good}[promote]\nbaselines = [\"pidd\"]\n"), "pidd"),
        (good.replace("[days]", "set = [\"data.train=[]\"]\n[days]"), "data.train"),
        (good.replace("[days]", "set = [\"data.values=runs/v\"]\n[days]"), "values.train"),
        (format!("{good}[values]\nset = [\"values.validation=[]\"]\n"), "values.validation"),
        (format!("{good}[promote]\nmargin = -0.5\n"), "promote.margin"),
        // The folder of days is missing.
        (good.to_owned(), "days.dir"),
    ] {
        std::fs::write(&path, &text).unwrap();
        let output = admix().args(["retrain", "--config"]).arg(&path).assert().code(2);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(said.contains(word), "no `{word}` in {said}");
    }
    assert!(!folder.path().join("jobs").exists(), "nothing was begun");
}
