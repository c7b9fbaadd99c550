//! Sweeps and shards through the real program: parts give what the whole gives, and nothing is trained twice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{CONFIG, PROGRAM, days};

const SWEEP: &str = r#"
config = "config.toml"
set = ["run.deterministic=true", "actors.count=1", "budget.max_updates=16", "learner.critic_head_start=4", "evaluate.every=4",
       "baselines.tuning_replays=4"]
seeds = [1, 2]
baselines = ["static-prices", "pid"]
[grid]
"policy.warm_start" = [true, false]
learner.actor_rate = [0.001, 0.003]
"#;

/// A folder with a sweep file or a study file.
struct Desk {
    folder: tempfile::TempDir,
    command: &'static str,
}

impl Desk {
    fn new(command: &'static str, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), CONFIG.replace("DAYS", days().to_str().unwrap())).unwrap();
        let desk = Self { folder, command };
        desk.write(text);
        desk
    }

    fn write(&self, text: &str) {
        std::fs::write(self.folder.path().join("file.toml"), text).unwrap();
    }

    fn out(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, out: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg(self.command).arg("--config").arg(self.folder.path().join("file.toml"));
        command.arg("--out").arg(self.out(out)).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, out: &str, arguments: &[&str], code: i32) -> (String, String) {
        check(&self.start(out, arguments).output().unwrap(), code)
    }

    fn lines(&self, out: &str, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out(out).join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn check(output: &Output, code: i32) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Rows of a CSV by their trial, without how long anything took.
fn csv(path: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.rsplitn(2, ',').last().unwrap().split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn two_shards_at_once_and_then_the_table_are_one_whole_sweep() {
    let desk = Desk::new("sweep", SWEEP);
    let (whole, _) = desk.run("whole", &[], 0);
    let shards: Vec<_> = ["1/2", "2/2"]
        .map(|shard| {
            desk.start("parts", &["--shard", shard]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .into();
    for shard in shards {
        let (table, said) = check(&shard.wait_with_output().unwrap(), 0);
        assert!(table.is_empty() && said.contains("without --shard makes the table"), "{said}");
    }
    assert!(!desk.out("parts").join("sweep.csv").exists());
    // Four trials with two seeds each, and the plan.
    let (merged, said) = desk.run("parts", &[], 0);
    assert!(said.contains("9 of 9 plans and runs are there already"), "{said}");

    let rows = csv(&desk.out("whole").join("sweep.csv"));
    assert_eq!(rows, csv(&desk.out("parts").join("sweep.csv")));
    assert_eq!(desk.lines("whole", "results.jsonl"), desk.lines("parts", "results.jsonl"));
    let without_seconds = |table: &str| -> Vec<String> {
        table.lines().map(|line| line.trim_end_matches(" |").rsplitn(2, " | ").last().unwrap().to_owned()).collect()
    };
    assert_eq!(without_seconds(&whole), without_seconds(&merged));
    assert!(
        rows[0].join(",").starts_with("rank,trial,learner.actor_rate,policy.warm_start,runs,validation,validation_low")
    );
    assert_eq!(rows.len(), 5);
    assert!(rows[1..].iter().all(|row| row[4] == "2"));
    let values: BTreeSet<(&str, &str)> = rows[1..].iter().map(|row| (&*row[2], &*row[3])).collect();
    assert_eq!(values.len(), 4, "every combination");
    assert_eq!(std::fs::read_to_string(desk.out("parts").join("sweep.md")).unwrap(), merged);

    // The ranking is that of the validation days, whatever the reported day says.
    let curves = desk.lines("parts", "learning.jsonl");
    let share = |row: &Vec<String>| {
        let mine = curves.iter().filter(|c| c["variant"] == *row[1]).map(|c| c["best_share"].as_f64().unwrap());
        100.0 * mine.sum::<f64>() / 2.0
    };
    for pair in rows[1..].windows(2) {
        assert!(share(&pair[0]) >= share(&pair[1]));
    }
    for row in &rows[1..] {
        let said: f64 = row[5].parse().unwrap();
        let (low, high): (f64, f64) = (row[6].parse().unwrap(), row[7].parse().unwrap());
        assert!((said - share(row)).abs() < 1e-9 && low <= said && said <= high, "{row:?}");
    }

    // A value more trains what is new and nothing else.
    desk.write(&SWEEP.replace("[0.001, 0.003]", "[0.001, 0.003, 0.002]"));
    let (table, said) = desk.run("parts", &["--json"], 0);
    assert!(said.contains("9 of 13 plans and runs are there already"), "{said}");
    let ranking: Value = serde_json::from_str(&table).unwrap();
    assert_eq!(ranking["trials"].as_array().unwrap().len(), 6);
    assert!(
        ranking["chosen"]["mean"].is_f64() && ranking["trials"][1]["behind_first"]["mean"].as_f64().unwrap() <= 0.0
    );
}

#[test]
fn two_shards_of_a_study_on_a_synthetic_world_are_one_whole_study() {
    let world = "requests = 600\ncontracts = 3\ncontracts_per_queue = 2.0\nqueue = 6\nauction_ads = 40\nusers = 300\nregions = 3\n";
    let study = SWEEP.split("[grid]").next().unwrap().to_owned()
        + "[days]\ntrain = [0]\nvalidation = [1]\nreport = [2]\n[[world]]\nsynth = \"world.toml\"\nseeds = [1, 2]\n[[variant]]\nname = \"v\"\n";
    let desk = Desk::new("study", &study);
    std::fs::write(desk.folder.path().join("world.toml"), world).unwrap();
    let shards = ["1/2", "2/2"].map(|shard| {
        desk.start("out", &["--shard", shard]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for shard in shards {
        check(&shard.wait_with_output().unwrap(), 0);
    }
    let (_, said) = desk.run("out", &[], 0);
    assert!(said.contains("6 of 6 plans and runs are there already"), "{said}");
    let parts = desk.lines("out", "results.jsonl");
    // The same folder again, because runs record the paths of their days.
    std::fs::remove_dir_all(desk.out("out")).unwrap();
    desk.run("out", &[], 0);
    assert_eq!(desk.lines("out", "results.jsonl"), parts);
}

#[test]
fn what_a_lost_shard_did_not_make_is_named_or_made() {
    let desk = Desk::new("sweep", &SWEEP.replace("seeds = [1, 2]", "seeds = [1]"));
    desk.run("out", &["--shard", "1/2"], 0);
    let (_, said) = desk.run("out", &["--evaluate-only"], 1);
    assert!(said.contains("missing: data t-") && said.contains("not finished with these settings"), "{said}");
    let (_, said) = desk.run("out", &[], 0);
    assert!(said.contains("3 of 5 plans and runs are there already"), "{said}");
}

/// Trials with different delays were ranked as if they had been evaluated alike.
#[test]
fn a_sweep_that_cannot_be_carried_out_is_refused_with_what_to_change() {
    for (from, to, word) in [
        ("[grid]", "[grit]", "`[grid]` or `[random]`"),
        ("[0.001, 0.003]", "0.001", "learner.actor_rate"),
        ("[true, false]", "[true, \"maybe\"]", "policy.warm_start"),
        ("\"policy.warm_start\"", "\"policy.warm_strat\"", "policy.warm_start"),
        ("\"policy.warm_start\" = [true, false]", "\"run.seed\" = [1, 2]", "seeds"),
        ("seeds = [1, 2]", "seeds = []", "seed"),
        ("\"policy.warm_start\" = [true, false]", "env.feedback_delay_s = [0.0, 600.0]", "vary `env.feedback_delay_s`"),
        ("set = [", "set = [\"data.test=[]\", ", "data.test"),
    ] {
        assert!(SWEEP.contains(from), "{from}");
        let desk = Desk::new("sweep", &SWEEP.replace(from, to));
        let (_, said) = desk.run("out", &[], 2);
        assert!(said.contains(word), "{to}: no `{word}` in {said}");
        assert!(!desk.out("out").exists(), "{to}");
    }
    let desk = Desk::new("sweep", SWEEP);
    for shard in ["0/2", "3/2", "x"] {
        let (_, said) = desk.run("out", &["--shard", shard], 2);
        assert!(said.contains("I/N"), "{said}");
    }
}

#[test]
fn every_sweep_file_that_is_shipped_can_be_used() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/sweep"));
    let mut found = 0;
    for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        let sweep = admix::study::Sweep::load(&file, None).unwrap_or_else(|e| panic!("{}: {e:#}", file.display()));
        assert!(sweep.trials.len() > 1);
        found += 1;
    }
    assert!(found >= 2);
}
