//! Studies through the real program: what they write, what they refuse, and that they go on where they stopped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::harness::{PATIENCE, PROGRAM, days, eval, send};

const WORLD: &str = "\
requests = 800
contracts = 4
contracts_per_queue = 2.0
queue = 8
auction_ads = 60
users = 500
regions = 4
ages = 3
slots = 2
";

const CONFIG: &str = r#"
[data]
train = ["-"]
validation = ["-"]
[run]
device = "cpu"
deterministic = true
[policy]
hidden = 16
[learner]
batch = 128
samples_per_update = 128
pool = 4000
critic_head_start = 4
critic_hidden = 16
quantiles = 8
[actors]
count = 1
write_every = 256
[evaluate]
every = 4
[budget]
max_updates = 16
[baselines]
tuning_replays = 4
"#;

/// A study of a synthetic world and one of log directories.
const STUDY: &str = r#"
config = "base.toml"
seeds = [1, 2]
baselines = ["static-prices", "pid"]
stresses = ["prices=1.4@14", "volume=0.75+newcomers=0.3"]
frontier = [0.5, 1]

[days]
train = [0]
validation = [1]
report = [2]

[[world]]
name = "made"
synth = "world.toml"
seeds = [5]

[[world]]
name = "logged"
logs = ["DAYS/day-0", "DAYS/day-1", "DAYS/day-2"]

[[variant]]
name = "warm"

[[variant]]
name = "cold"
set = ["policy.warm_start=false"]
"#;

/// A folder with a study file and what it names.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new(study: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("world.toml"), WORLD).unwrap();
        std::fs::write(folder.path().join("base.toml"), CONFIG).unwrap();
        std::fs::write(folder.path().join("late.toml"), format!("{CONFIG}[env]\nfeedback_delay_s = 600.0\n")).unwrap();
        let desk = Self(folder);
        desk.write(study);
        desk
    }

    fn write(&self, study: &str) {
        let text = study.replace("DAYS", days().to_str().unwrap());
        std::fs::write(self.0.path().join("study.toml"), text).unwrap();
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("out")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("study").arg("--config").arg(self.0.path().join("study.toml"));
        command.arg("--out").arg(self.out()).args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.out().join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn run_dir(&self, name: &str) -> PathBuf {
        self.out().join("runs").join(name)
    }

    fn manifest(&self, run: &str) -> Option<Value> {
        serde_json::from_slice(&std::fs::read(self.run_dir(run).join("manifest.json")).ok()?).ok()
    }
}

fn expect(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    stderr
}

#[test]
fn a_study_evaluates_everybody_everywhere_and_is_not_trained_twice() {
    let desk = Desk::new(STUDY);
    let first = desk.run(&["--jobs", "2"]);
    expect(&first, 0);
    let table = String::from_utf8(first.stdout).unwrap();
    for word in ["warm *", "cold *", "pid", "oracle", "made", "logged", "prices=1.4@14", "hindsight", "lag max"] {
        assert!(table.contains(word), "no `{word}` in {table}");
    }
    assert_eq!(std::fs::read_to_string(desk.out().join("table.md")).unwrap(), table);

    let rows = desk.lines("results.jsonl");
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let seen: BTreeSet<(String, String, String, Option<u64>)> = rows
        .iter()
        .map(|row| (text(row, "world"), text(row, "stress"), text(row, "name"), row["seed"].as_u64()))
        .collect();
    // Two worlds, no stress and two; two variants with two seeds each, two baselines and the best of them, the oracle.
    assert_eq!((rows.len(), seen.len()), (2 * 3 * (4 + 4 * 4), 2 * 3 * (4 + 4 * 4)));
    assert!(rows.iter().all(|row| row["share"].as_f64().is_some_and(|s| s <= 1.0 + 1e-9)), "{rows:?}");
    assert!(rows.iter().all(|row| row["seed"].is_u64() != (row["kind"] == "baseline" || row["kind"] == "oracle")));
    assert_eq!(desk.lines("learning.jsonl").len(), 8);
    assert_eq!(desk.lines("frontier.jsonl").len(), 4);
    let curves = std::fs::read_to_string(desk.out().join("curves.svg")).unwrap();
    assert!(curves.starts_with("<svg xmlns="), "{curves}");
    // Four runs and their mean, and the name behind it.
    for (class, name) in [("v0", ">warm</text>"), ("v1", ">cold</text>")] {
        let lines = |class: &str| curves.matches(&format!("<polyline class=\"{class}\"")).count();
        assert_eq!((lines(&format!("run {class}")), lines(class)), (4, 1), "{curves}");
        assert!(curves.contains(name), "{curves}");
    }

    // A row is what `eval` says of that run on that day.
    let dir = desk.run_dir("logged/cold-2");
    let day = days().join("day-2");
    let arguments = ["--baselines", "none", "--stress", "prices=1.4@14", "--log", day.to_str().unwrap(), "--policy"];
    let report = &eval(&[&arguments[..], &[dir.to_str().unwrap()]].concat())[0];
    let row = rows.iter().find(|row| {
        row["world"] == "logged" && row["name"] == "cold" && row["seed"] == 2 && row["stress"] == "prices=1.4@14"
    });
    assert_eq!(row.unwrap()["j"], report["policies"][0]["j"]);

    // The means are those of the rows.
    let json: Value = serde_json::from_slice(&desk.run(&["--json", "--evaluate-only"]).stdout).unwrap();
    let warm = json["policies"].as_array().unwrap().iter().find(|p| p["policy"] == "warm").unwrap();
    let shares: Vec<f64> = rows
        .iter()
        .filter(|row| row["name"] == "warm" && row["stress"] == "none")
        .map(|row| row["share"].as_f64().unwrap())
        .collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!((warm["mean_share"].as_f64().unwrap() - mean).abs() < 1e-12);
    assert_eq!(warm["runs"], 4);

    // The best baseline is the one of the validation day, and the difference to it is paired.
    let validation = desk.lines("validation.jsonl");
    let share_of = |rows: &[Value], world: &str, name: &str| {
        let mine = |r: &&Value| r["world"] == world && r["name"] == name && r["stress"] == "none";
        let shares: Vec<f64> = rows.iter().filter(mine).map(|r| r["share"].as_f64().unwrap()).collect();
        shares.iter().sum::<f64>() / shares.len() as f64
    };
    let mut points = Vec::new();
    for world in ["made", "logged"] {
        let names: BTreeSet<String> = validation
            .iter()
            .filter(|r| r["world"] == world && r["kind"] == "baseline")
            .map(|r| text(r, "name"))
            .collect();
        assert_eq!(names.len(), 2, "the validation day is the baselines'");
        let by_share =
            |a: &&String, b: &&String| share_of(&validation, world, a).total_cmp(&share_of(&validation, world, b));
        let best = share_of(&rows, world, names.iter().max_by(by_share).unwrap());
        assert_eq!(share_of(&rows, world, "best-baseline"), best);
        points.push(100.0 * (share_of(&rows, world, "warm") - best));
    }
    let differences = desk.lines("differences.jsonl");
    let of_warm = |d: &&Value| d["policy"] == "warm" && d["against"] == "best-baseline" && d["days"] == "all";
    let found = differences.iter().find(of_warm).unwrap();
    assert!((found["points"].as_f64().unwrap() - (points[0] + points[1]) / 2.0).abs() < 1e-9, "{found}");
    assert!(found["interval"].is_array() && table.contains("best-baseline"));

    // The second time everything is there; a variant that changed is trained again, the other is not.
    let runs = ["made/warm-1", "made/cold-1"];
    let manifests = || runs.map(|run| std::fs::read(desk.run_dir(run).join("manifest.json")).unwrap());
    let before = manifests();
    let again = desk.run(&[]);
    assert!(expect(&again, 0).contains("10 of 10 plans and runs are there already"));
    assert_eq!(String::from_utf8(again.stdout).unwrap(), table);
    assert_eq!(manifests(), before);

    // What a user would take is the better one on the validation day, whatever the reported one says.
    desk.write(&STUDY.replace("frontier =", "choose = true\nfrontier ="));
    expect(&desk.run(&["--evaluate-only"]), 0);
    let rows = desk.lines("results.jsonl");
    let curves = desk.lines("learning.jsonl");
    let chosen: Vec<&Value> = rows.iter().filter(|row| row["name"] == "chosen").collect();
    assert_eq!(chosen.len(), 2 * 3 * 2);
    for row in chosen {
        let of_run = |other: &Value| other["world"] == row["world"] && other["seed"] == row["seed"];
        let best = |variant: &str| {
            let curve = curves.iter().find(|c| of_run(c) && c["variant"] == variant).unwrap();
            curve["best_share"].as_f64().unwrap()
        };
        let variant = if best("cold") > best("warm") { "cold" } else { "warm" };
        let same = |r: &&Value| of_run(r) && r["stress"] == row["stress"] && r["name"] == variant;
        assert_eq!(rows.iter().find(same).unwrap()["j"], row["j"]);
    }
    desk.write(&STUDY.replace("policy.warm_start=false", "policy.pacing=false"));
    expect(&desk.run(&[]), 0);
    let after = manifests();
    assert_eq!(after[0], before[0]);
    assert!(after[1] != before[1], "the changed variant was trained again");
}

/// Variants with different delays were compared as if they had been evaluated alike.
#[test]
fn days_in_two_roles_and_other_mistakes_are_refused_before_anything_is_made() {
    for (from, to, word) in [
        ("report = [2]", "report = [2, 1]", "day 1 is in days.report and in days.validation"),
        ("validation = [1]", "validation = [0]", "day 0 is in days.validation and in days.train"),
        ("report = [2]", "report = [2, 2]", "day 2"),
        ("report = [2]", "report = [3]", "names day 3"),
        ("\"DAYS/day-1\"", "\"DAYS/day-2\"", "names a log directory twice"),
        ("seeds = [1, 2]", "seeds = [1, 1]", "twice"),
        ("\"pid\"", "\"pod\"", "no baseline `pod`"),
        ("name = \"cold\"", "name = \"pid\"", "called like a baseline"),
        ("policy.warm_start=false", "run.seed=4", "the study's own"),
        ("policy.warm_start=false", "policy.warm_strat=false", "policy.warm_start"),
        ("policy.warm_start=false", "env.feedback_delay_s=600", "sets `env.feedback_delay_s`, which changes the days"),
        ("policy.warm_start=false", "data.max_bad_share=0.5", "sets `data.max_bad_share`, which changes the days"),
        ("set = [\"policy.warm_start=false\"]", "config = \"late.toml\"", "with another `env`"),
        ("volume=0.75", "volume=75", "volume=75"),
        ("seeds = [5]", "sedes = [5]", "sedes"),
    ] {
        assert!(STUDY.contains(from), "{from}");
        let desk = Desk::new(&STUDY.replace(from, to));
        let said = expect(&desk.run(&[]), 2);
        assert!(said.contains(word), "{to}: {said}");
        assert!(!desk.out().exists(), "{to}");
    }
}

/// Learned policies predict what they have shown, and no baseline that does so stood beside them.
#[test]
fn a_stress_that_delays_feedback_brings_the_baselines_that_predict() {
    let names = |from: &str, to: &str| {
        let all = STUDY.replace("[\"static-prices\", \"pid\"]", "\"all\"");
        assert!(all.contains(from), "{from}");
        let desk = Desk::new(&all.replace(from, to));
        admix::study::Study::load(&desk.0.path().join("study.toml"), None).unwrap().baselines
    };
    let predicting = |names: &[String]| names.iter().any(|name| name == "pid-predicting");
    assert!(!predicting(&names("volume=0.75", "volume=0.75")) && !predicting(&names("volume=0.75", "delay=0")));
    assert!(predicting(&names("volume=0.75", "volume=0.75+delay=600")));
    assert!(predicting(&names("config =", "set = [\"env.feedback_delay_s=600\"]\nconfig =")), "it is set for all");
}

#[test]
fn a_run_that_fails_is_named_and_does_not_stop_the_others() {
    // More shared memory than any machine has.
    let study = STUDY.replace("policy.warm_start=false", "actors.write_every=1000000000");
    let desk = Desk::new(&study);
    let output = desk.run(&["--jobs", "2"]);
    let said = expect(&output, 1);
    assert!(said.contains("made cold seed 1: FAILED") && said.contains("missing: logged cold seed 2"), "{said}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("warm *") && !table.contains("cold *"), "{table}");
    assert_eq!(desk.lines("results.jsonl").len(), 2 * 3 * (4 + 2 * 4));
}

/// The best of the baselines that need no plan was named the best baseline, and every policy was far above it.
#[test]
fn a_world_without_a_plan_takes_that_of_a_run_or_has_no_best_baseline() {
    let study = STUDY.replace("seeds = [1, 2]", "seeds = [1]").replace("\"static-prices\", ", "\"random\", ");
    let desk = Desk::new(&study);
    expect(&desk.run(&["--jobs", "2"]), 0);
    let whole = desk.lines("results.jsonl");
    std::fs::remove_file(desk.out().join("plans/made.json")).unwrap();
    let said = expect(&desk.run(&["--evaluate-only"]), 1);
    assert!(said.contains("made warm seed 1: its plan takes the place of the world's"), "{said}");
    assert_eq!(desk.lines("results.jsonl"), whole, "the variant that is planned alike has the same plan");

    // The run that is left starts cold, and was planned with other settings.
    desk.write(&study.replace("[[variant]]\nname = \"warm\"\n\n", ""));
    let output = desk.run(&["--evaluate-only", "--json"]);
    expect(&output, 1);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["worlds_without_plan"], serde_json::json!(["made"]));
    let of = |policy: &str| json["policies"].as_array().unwrap().iter().find(|p| p["policy"] == policy).unwrap();
    let worlds = |value: &Value| value["worlds"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for (policy, its) in [
        ("random", &["logged", "made"][..]),
        ("cold", &["logged", "made"]),
        ("best-baseline", &["logged"]),
        ("pid", &["logged"]),
    ] {
        assert_eq!(worlds(of(policy)), its, "{policy}");
    }
    let differences = json["differences"].as_array().unwrap();
    for difference in differences.iter().filter(|d| d["against"] == "best-baseline") {
        assert_eq!(worlds(difference), ["logged"]);
    }
    let gap = |policy: &str| 1.0 - of(policy)["worlds"]["logged"].as_f64().unwrap();
    let closed = of("cold")["gap_closed_best"].as_f64().unwrap();
    let best = gap(json["best_baseline"].as_str().unwrap());
    assert!((closed - (1.0 - gap("cold") / best)).abs() < 1e-9, "{closed}");
    let table = std::fs::read_to_string(desk.out().join("table.md")).unwrap();
    assert!(table.contains("Without a plan: made."), "{table}");
}

/// A study under way.
struct Under(Child);

impl Under {
    fn until(&mut self, what: &str, mut found: impl FnMut() -> bool) {
        let start = Instant::now();
        while !found() {
            assert!(self.0.try_wait().unwrap().is_none(), "the study ended before {what}");
            assert!(start.elapsed() < PATIENCE, "no {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A configuration that was changed while the study was evaluated made it fail at its end.
#[test]
fn a_study_ends_whatever_becomes_of_its_configuration_meanwhile() {
    let desk = Desk::new(&STUDY.replace("seeds = [1, 2]", "seeds = [1]"));
    let mut under = Under(desk.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    under.until("the curves, which are drawn before days are evaluated", || desk.out().join("curves.svg").exists());
    std::fs::write(desk.0.path().join("base.toml"), "no configuration").unwrap();
    assert_eq!(under.0.wait().unwrap().code(), Some(0));
    assert!(desk.out().join("table.md").is_file());
}

/// Processes that mention a folder in their command line.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let lines = std::fs::read_dir("/proc").unwrap().flatten();
    lines
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok())
        .filter(|line| line.contains(folder))
        .collect()
}

fn gone(folder: &Path) {
    let start = Instant::now();
    while !processes_in(folder).is_empty() {
        assert!(start.elapsed() < PATIENCE, "left behind: {:?}", processes_in(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupted_study_goes_on_with_the_runs_that_it_lacks() {
    let study = STUDY
        .replace(
            "config =",
            "set = [\"budget.max_updates=0\", \"budget.max_seconds=15\", \"stop.patience=0\", \"run.deterministic=false\"]\nconfig =",
        )
        .replace("seeds = [1, 2]", "seeds = [1]")
        .replace("\n[[variant]]\nname = \"cold\"\nset = [\"policy.warm_start=false\"]\n", "");
    let desk = Desk::new(&study);
    let spawn = || Under(desk.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let (first, second) = ("made/warm-1", "logged/warm-1");
    let finished = |run: &str| desk.manifest(run).is_some_and(|m| m["outcome"]["reason"] == "budget");

    let mut under = spawn();
    under.until("a second run", || desk.manifest(second).is_some());
    assert!(finished(first));
    send(under.0.id(), Signal::SIGINT);
    assert_eq!(under.0.wait().unwrap().code(), Some(130));
    assert_eq!(processes_in(&desk.out()), Vec::<String>::new());
    assert!(!finished(second) && !desk.out().join("results.jsonl").exists());
    let kept = std::fs::read(desk.run_dir(first).join("manifest.json")).unwrap();

    // Killed, it takes its run with it.
    let mut under = spawn();
    under.until("the second run again", || {
        !processes_in(&desk.run_dir(second)).is_empty() && desk.manifest(second).is_some_and(|m| m["outcome"].is_null())
    });
    under.0.kill().unwrap();
    under.0.wait().unwrap();
    gone(&desk.out());
    assert!(!finished(second));

    let said = expect(&desk.run(&[]), 0);
    assert!(said.contains("3 of 4 plans and runs are there already"), "{said}");
    assert!(finished(second));
    assert_eq!(std::fs::read(desk.run_dir(first).join("manifest.json")).unwrap(), kept);
    assert!(desk.out().join("table.md").is_file());
}

#[test]
fn every_study_file_that_is_shipped_can_be_used() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/study"));
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for file in files.filter(|file| file.file_name().unwrap() != "ipinyou.toml") {
        let study = admix::study::Study::load(&file, None);
        let study = study.unwrap_or_else(|e| panic!("{}: {e:#}", file.display()));
        assert!(!study.variants.is_empty() && !study.seeds.is_empty());
    }
    // The real days lie where --data says.
    let data = tempfile::tempdir().unwrap();
    for day in ["weekday-0", "weekday-1", "weekday-2"] {
        std::fs::create_dir(data.path().join(day)).unwrap();
    }
    let study = admix::study::Study::load(&folder.join("ipinyou.toml"), Some(data.path())).unwrap();
    let orders: BTreeSet<Vec<usize>> =
        study.worlds.iter().map(|w| [&w.days.train[..], &w.days.validation, &w.days.report].concat()).collect();
    assert_eq!(orders.len(), 6, "every order of the three days");
}
