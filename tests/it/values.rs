//! `admix values`: exposures of worlds with planted errors, through real processes, to days at corrected values.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use admix::settings::{Configuration as _, ValueSettings};
use admix::sparse::{HostTable, file};
use admix::values::ValueModel;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::decisions::synth;
use super::harness::PATIENCE;
use super::logs::LogRows;
use super::support::admix;

pub const WORLD: &str = "requests = 4000\nqueue = 8\nregions = 3\nslots = 2\nages = 2\nusers = 300\nauction_ads = 40\n\
                     contracts = 4\ncontracts_per_queue = 2.0\n[errors]\nad = 0.4\nad_region = 0.2\ntrain_days = 2\n";
pub const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/values.toml");

/// Two days to learn from, one to validate on and one that is reported.
pub struct Scene {
    pub folder: TempDir,
    pub days: Vec<PathBuf>,
}

impl Scene {
    pub fn new() -> Self {
        Self::of(WORLD)
    }

    /// Days of another world.
    pub fn of(world: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let days = synth(folder.path(), world, 4);
        Self { folder, days }
    }

    pub fn command(&self, run: &str, sets: &[&str]) -> assert_cmd::Command {
        let list = |days: &[PathBuf]| format!("{:?}", days.iter().map(|d| d.to_str().unwrap()).collect::<Vec<_>>());
        let mut command = admix();
        command.args(["values", "train", "--config", CONFIG, "--run-dir"]).arg(self.folder.path().join(run));
        let days = [
            format!("values.train={}", list(&self.days[..2])),
            format!("values.validation={}", list(&self.days[2..3])),
            "values.batch=256".into(),
            "values.epochs=4".into(),
            "values.patience=0".into(),
            "values.refit=false".into(),
            "table.max_rows=2000".into(),
        ];
        for set in days.iter().map(String::as_str).chain(sets.iter().copied()) {
            command.args(["--set", set]);
        }
        command
    }

    /// The same as a process that is started, without its messages.
    pub fn start(&self, run: &str, sets: &[&str]) -> std::process::Child {
        let command = self.command(run, sets);
        let mut program = std::process::Command::new(command.get_program());
        program.args(command.get_args()).stderr(std::process::Stdio::null()).spawn().unwrap()
    }

    /// Trains until the first evaluation is there, and interrupts.
    pub fn interrupted(&self, run: &str, sets: &[&str]) {
        let mut child = self.start(run, sets);
        let metrics = self.folder.path().join(run).join("metrics.jsonl");
        while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"kind\":\"evaluation\"")) {
            assert!(child.try_wait().unwrap().is_none(), "it ended before anything was learned");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        // It may have come to its end a moment before.
        let code = child.wait().unwrap().code();
        assert!(code == Some(130) || code == Some(0), "{code:?}");
    }

    /// Trains and returns the run directory.
    pub fn train(&self, run: &str, sets: &[&str]) -> PathBuf {
        self.command(run, sets).assert().success();
        self.folder.path().join(run)
    }
}

/// The bytes of a run's model, by file name.
pub fn model(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(run.join("values")).unwrap().flatten();
    files.map(|f| (f.file_name().into_string().unwrap(), std::fs::read(f.path()).unwrap())).collect()
}

/// What a run's manifest says.
pub fn manifest(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap()
}

/// Checks that a finished run has learned all its exposures in each of so many passes, and nothing else: so says its ledger, too. Returns the
/// ledger.
pub fn all_learned(run: &Path, passes: u64) -> Value {
    let manifest = manifest(run);
    let (exposures, outcome) = (&manifest["exposures"], &manifest["outcome"]);
    let (samples, ledger) = (outcome["samples"].as_u64().unwrap(), &outcome["ledger"]);
    assert_eq!(samples, passes * exposures["samples"].as_u64().unwrap(), "{outcome}");
    assert_eq!(ledger["consumed"], samples, "{outcome}");
    let parts = ["consumed", "overwritten", "lost", "unread", "discarded"];
    let accounted: u64 = parts.iter().map(|part| ledger[part].as_u64().unwrap()).sum();
    assert_eq!(ledger["produced"], accounted, "{outcome}");
    ledger.clone()
}

fn json_lines(command: &mut assert_cmd::Command) -> Vec<Value> {
    let output = command.assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn eval(day: &Path, arguments: &[&str]) -> Value {
    let mut command = admix();
    command.args(["eval", "--json", "--baselines", "auction-only", "--log"]).arg(day).args(arguments);
    json_lines(&mut command).remove(0)
}

fn j(report: &Value) -> f64 {
    let policies = report["policies"].as_array().unwrap();
    policies.iter().find(|p| p["name"] == "auction-only").unwrap()["j"].as_f64().unwrap()
}

#[test]
fn the_configuration_file_names_every_key_with_its_default() {
    let days = ["values.train=[\"a\"]".to_owned(), "values.validation=[\"b\"]".to_owned()];
    let mut loaded: ValueSettings = admix::settings::load(Path::new(CONFIG), &days).unwrap();
    loaded.values.train.clear();
    loaded.values.validation.clear();
    assert_eq!(loaded, ValueSettings::default());
    let written = std::fs::read_to_string(CONFIG).unwrap();
    for key in ValueSettings::default().to_toml().lines().filter_map(|l| l.split_once(" = ").map(|(key, _)| key)) {
        assert!(written.lines().any(|l| l.starts_with(&format!("{key} ="))), "{key} is not in configs/values.toml");
    }
}

#[test]
fn exposures_become_values_that_are_nearer_to_the_truth_and_earn_more() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.epochs=12", "values.refit=true"]);
    let reported = &scene.days[3];

    let mut command = admix();
    command.args(["values", "eval", "--json", "--values"]).arg(&run).arg("--log").arg(reported);
    let report = &json_lines(&mut command)[0];
    let figure = |path: &str| report.pointer(path).unwrap().as_f64().unwrap();
    assert!(figure("/charge/deviance") < 0.97 * figure("/charge/deviance_logged"), "{report}");
    assert!(figure("/exposures") > 3000.0 && figure("/joined/rows") == figure("/exposures"));
    assert!(
        figure("/click/log_loss") > 0.0 && !report["click"]["calibration"]["deciles"].as_array().unwrap().is_empty()
    );

    let values = ["--values", run.to_str().unwrap(), "--truth"];
    let [logged, corrected, truth] =
        [&["--truth"][..], &values, &["--told", "truth", "--truth"]].map(|arguments| eval(reported, arguments));
    assert_eq!((&logged["told"], &logged["judged"]), (&"logged".into(), &"truth".into()));
    assert!(corrected["told"].as_str().unwrap().starts_with("values:"));
    assert!(j(&logged) < j(&corrected) && j(&corrected) < j(&truth), "{} {} {}", j(&logged), j(&corrected), j(&truth));
    // Judged by the log, who is told the log earns more than who is told anything else.
    let [by_log, corrected_by_log] = [&[][..], &values[..2]].map(|arguments| j(&eval(reported, arguments)));
    assert!(by_log > corrected_by_log, "{by_log} {corrected_by_log}");

    let out = scene.folder.path().join("rows.bin");
    admix().args(["values", "dump", "--values"]).arg(&run).arg("--out").arg(&out).assert().success();
    let (dumped, read) = (file::read(&out, 0, 1).unwrap(), ValueModel::read(&run).unwrap());
    let rows = |table: &HostTable| -> Vec<(u64, Vec<u32>)> {
        table.sorted().into_iter().map(|(id, record)| (id, table.record(record).to_vec())).collect()
    };
    assert_eq!(rows(&dumped), rows(&file::read(read.rows.path(), 0, 1).unwrap()));

    // The plan is made at the values that are told.
    let plan = |arguments: &[&str]| {
        let mut command = admix();
        command.args(["plan", "--json"]).args(&scene.days[..1]).args(arguments);
        json_lines(&mut command).remove(0)["days"][0]["mean_best"].as_f64().unwrap()
    };
    assert!(plan(&[]) != plan(&values[..2]) && plan(&values[..2]) != plan(&["--told", "truth"]));
}

#[test]
fn the_validation_days_choose_how_exposures_weigh() {
    let scene = Scene::new();
    let auto = scene.train("auto", &[]);
    let [weighted, equal] =
        ["propensity", "equal"].map(|weights| scene.train(weights, &[&format!("values.weights={weights}")]));
    assert!(model(&weighted) != model(&equal), "exploration was logged");
    assert!(model(&auto) == model(&weighted) && model(&auto.join("equal")) == model(&equal));
    assert!(!weighted.join("equal").exists() && !equal.join("equal").exists());
    let loss = |run: &Path| ValueModel::read_meta(&run.join("values")).unwrap().validation_loss();
    let better = if loss(&equal) < loss(&weighted) { auto.join("equal") } else { auto.clone() };
    assert_eq!(ValueModel::folder(&auto), Some(better.join("values")));
}

#[test]
fn a_model_that_learns_nothing_changes_nothing() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.rate=0", "table.rate=0", "values.epochs=1"]);
    let told = ["--values", run.to_str().unwrap()];
    let (logged, untrained) = (eval(&scene.days[3], &[]), eval(&scene.days[3], &told));
    // One is summed up while it is replayed, the other is counted again at the judged values.
    assert!((j(&logged) - j(&untrained)).abs() < 1e-9 * j(&logged).abs(), "{} {}", j(&logged), j(&untrained));
    for figure in ["auction_impressions", "contract_impressions", "contracts"] {
        assert_eq!(logged["policies"][0][figure], untrained["policies"][0][figure], "{figure}");
    }
    for figure in ["ub", "primal", "stake"] {
        let [a, b] = [&logged, &untrained].map(|day| day["bound"][figure].as_f64().unwrap());
        assert!((a - b).abs() < 1e-9 * a.abs(), "{figure}: {a} {b}");
    }
}

#[test]
fn the_cache_the_arenas_and_the_timing_change_no_bit() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &["values.readers=2"]));
    for (name, sets) in [
        ("again", &["values.readers=2"][..]),
        ("cached", &["values.readers=2", "table.cache_rows=300", "table.prefetch=2"]),
        ("arenas", &["values.readers=2", "table.cache_rows=700", "table.prefetch=1", "table.devices=3"]),
    ] {
        let other = model(&scene.train(name, sets));
        // The row file is named after its content.
        assert!(plain == other, "{name}: {:?} {:?}", plain.keys(), other.keys());
    }
}

/// A failpoint kills every process that reaches it, the replacements too: how often depends on how far snapshots have come by then.
pub const MANY_DEATHS: &str = "watchdog.max_restarts=1000";

#[test]
fn killed_readers_and_trainers_change_no_bit() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &["values.readers=2"]));
    for (failpoint, sets) in [
        ("reader.claimed@5=kill", &[][..]),
        ("reader.committed@7=kill", &[]),
        ("rank.update@40=kill", &["checkpoint.every_s=0.001"]),
        ("rank.update@40=kill", &["checkpoint.every_s=0.001", "table.cache_rows=300"]),
    ] {
        let run = format!("{}-{}", failpoint.split('@').next().unwrap(), sets.len());
        let sets = [&["values.readers=2", MANY_DEATHS], sets].concat();
        let mut command = scene.command(&run, &sets);
        let assert = command.env("ADMIX_FAILPOINT", failpoint).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("started again") || said.contains("went back"), "{failpoint}: nobody died: {said}");
        assert!(plain == model(&scene.folder.path().join(&run)), "{failpoint}");
    }
}

/// Blocks that a killed reader gave twice counted as learned twice.
#[test]
fn samples_that_a_killed_reader_gave_twice_count_once() {
    let scene = Scene::new();
    let mut command = scene.command("killed", &["values.readers=2", "values.weights=equal", MANY_DEATHS]);
    command.env("ADMIX_FAILPOINT", "reader.committed@20=kill").assert().success();
    let ledger = all_learned(&scene.folder.path().join("killed"), 4);
    assert!(ledger["discarded"].as_u64() > Some(0), "nobody died: {ledger}");
}

/// A temporary file of the dead writer lay beside the model for ever.
#[test]
fn a_trainer_killed_while_it_writes_the_model_leaves_the_model_alone_in_its_folder() {
    let scene = Scene::new();
    for (i, sets) in [&[][..], &["values.ranks=2", "values.batch=128"]].into_iter().enumerate() {
        let plain = model(&scene.train(&format!("plain{i}"), sets));
        assert_eq!(plain.len(), 2);
        let run = format!("killed{i}");
        let mut command = scene.command(&run, &[sets, &["checkpoint.every_s=0.001", MANY_DEATHS]].concat());
        let assert = command.env("ADMIX_FAILPOINT", "values.model@2=kill").assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("went back"), "nobody died: {said}");
        assert!(plain == model(&scene.folder.path().join(&run)), "{sets:?}");
    }
}

/// Processes of a run by what they are called in lists.
pub fn pids(main: u32, name: &str) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
    let is = |pid: &&str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    children.split_whitespace().filter(is).map(|pid| pid.parse().unwrap()).collect()
}

/// Only a trainer that hung was replaced; a reader that hung ended the run.
#[test]
fn readers_and_trainers_that_hang_are_killed_and_change_no_bit() {
    let scene = Scene::new();
    let sets = ["values.readers=2", "values.epochs=30", "checkpoint.every_s=0.02"];
    let plain = model(&scene.train("plain", &sets));
    let limits = ["watchdog.silent_s=8", "ranks.timeout_s=5", MANY_DEATHS];
    for name in ["admix-reader1", "admix-trainer"] {
        let command = scene.command(name, &[&sets[..], &limits].concat());
        let mut program = std::process::Command::new(command.get_program());
        let mut child = program.args(command.get_args()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        let victim = loop {
            assert!(begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "no {name} to stop");
            if let Some(pid) = pids(child.id(), name).first() {
                break Pid::from_raw(*pid);
            }
        };
        kill(victim, Signal::SIGSTOP).unwrap();
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && said.contains("no sign of life"), "{name}: {said}");
        assert!(plain == model(&scene.folder.path().join(name)), "{name}");
    }
}

/// Few rows may change between two snapshots: they follow one another whatever the clock says, and every one is waited for.
const OFTEN: [&str; 6] = [
    "values.batch=16",
    "values.epochs=2",
    "values.fields=[\"ad\", \"user\", \"user*slot\"]",
    "table.max_rows=5000",
    "table.snapshot_rows=480",
    "table.prefetch=1",
];

#[test]
fn a_run_that_is_killed_at_any_point_of_a_snapshot_changes_no_bit() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &[&OFTEN[..4], &["checkpoint.every_s=0"]].concat()));
    for (failpoint, sets, said) in [
        ("rank.snapshot@20=kill", &[][..], "rows restored"),
        ("rank.snapshot.copying@60=kill", &[], "rows restored"),
        ("rank.snapshot.rows@20=kill", &[], "rows restored"),
        ("rank.snapshot.dense@20=kill", &[], "rows restored"),
        ("rank.update@150=kill", &["table.cache_rows=300"], "rows restored"),
        ("rank.snapshot.rows@20=kill", &["table.cache_rows=300", "table.devices=2"], "rows restored"),
        ("checkpoint.commit@5=fail", &[], ""),
        ("checkpoint.committed@20=kill", &[], "starting another"),
        ("checkpoint.merged@2=kill", &[], "starting another"),
        ("checkpoint.base@2=kill", &[], "starting another"),
    ] {
        let run = format!("{}-{}", failpoint.split('@').next().unwrap(), sets.len());
        let mut command = scene.command(&run, &[&OFTEN[..], &[MANY_DEATHS], sets].concat());
        let assert = command.env("ADMIX_FAILPOINT", failpoint).assert().success();
        let output = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(output.contains(said), "{failpoint}: nobody died: {output}");
        let run = scene.folder.path().join(&run);
        assert!(plain == model(&run), "{failpoint}");
        let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        let early = |line: &str| serde_json::from_str::<Value>(line).unwrap()["early_snapshots"].as_u64();
        assert!(metrics.lines().filter_map(early).any(|early| early > 0), "{failpoint}");
    }
}

/// When most rows change between two snapshots, each snapshot holds all rows and becomes a base without a merge.
#[test]
fn a_snapshot_of_all_rows_is_a_base() {
    let scene = Scene::new();
    let sets = ["checkpoint.every_s=0.001", MANY_DEATHS];
    let plain = model(&scene.train("plain", &["checkpoint.every_s=0"]));
    // Updates wait for the disk, so that there are as many snapshots on a slow one.
    for (run, failpoint, code) in [
        ("linked", "rank.update@1=5ms,checkpoint.base@3=kill", 0),
        ("unlinked", "rank.update@1=5ms,checkpoint.committed@3=kill", 0),
        // More than the steps in which one snapshot is copied: each trainer gets at least one to disk.
        ("copying", "rank.update@1=5ms,rank.snapshot.copying@60=kill", 0),
        ("cut", "rank.update@80=kill", 20),
    ] {
        let restarts = if code == 0 { MANY_DEATHS } else { "watchdog.max_restarts=0" };
        let mut command = scene.command(run, &[sets[0], restarts]);
        let assert = command.env("ADMIX_FAILPOINT", failpoint).assert().code(code);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(code != 0 || said.contains("starting another") || said.contains("rows restored"), "{run}: {said}");
        let checkpoints = scene.folder.path().join(run).join("checkpoints");
        let names = std::fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path());
        let (bases, others): (Vec<_>, Vec<_>) = names.partition(|path| path.to_string_lossy().contains("base-"));
        let links: Vec<u64> = bases.iter().map(|base| base.metadata().unwrap().nlink()).collect();
        assert!(links.contains(&2), "{run}: {links:?}");
        assert!(others.len() <= 4, "what they replace is gone: {others:?}");
        if code != 0 {
            scene.command(run, &sets).arg("--resume").assert().success();
        }
        assert!(plain == model(&scene.folder.path().join(run)), "{run}");
    }
}

/// The newest delta is torn: the run goes on from the snapshot before it. A torn base that no older one replaces is refused until it is back.
#[test]
fn torn_snapshots_are_passed_over() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &[&OFTEN[..4], &["checkpoint.every_s=0"]].concat()));
    for torn in ["delta", "state", "base"] {
        let mut command = scene.command(torn, &[&OFTEN[..], &["watchdog.max_restarts=0"]].concat());
        command.env("ADMIX_FAILPOINT", "rank.update@300=kill").assert().failure();
        let checkpoints = scene.folder.path().join(torn).join("checkpoints");
        let mut names: Vec<String> = std::fs::read_dir(&checkpoints)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let (bases, folders): (Vec<_>, Vec<_>) =
            names.iter().filter(|name| !name.starts_with('.')).partition(|name| name.starts_with("base-"));
        assert!(!bases.is_empty() && folders.len() > 1, "{names:?}");
        let newest = checkpoints.join(folders.last().unwrap());
        let path = match torn {
            "delta" => newest.join("pool.bin"),
            "state" => newest.join("state.bin"),
            _ => checkpoints.join(bases.last().unwrap()),
        };
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
        let assert = scene.command(torn, &OFTEN).arg("--resume").assert();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("damaged"), "{torn}: {said}");
        if torn == "base" {
            assert.code(2);
            assert!(said.contains("can be read"), "{said}");
            std::fs::write(&path, &bytes).unwrap();
            scene.command(torn, &OFTEN).arg("--resume").assert().success();
        } else {
            assert.success();
        }
        assert!(plain == model(&scene.folder.path().join(torn)), "{torn}");
    }
}

#[test]
fn a_loss_that_is_not_finite_goes_back_to_the_snapshot_and_ends_the_run_when_it_repeats() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &[&OFTEN[..4], &["checkpoint.every_s=0"]].concat()));
    let mut command = scene.command("once", &OFTEN);
    let assert = command.env("ADMIX_FAILPOINT", "rank.loss@300=fail").assert().success();
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("is not finite; all go back to snapshot") && said.contains("rows restored"), "{said}");
    assert!(plain == model(&scene.folder.path().join("once")));

    // Each trainer meets it at its first update.
    let mut command = scene.command("always", &OFTEN);
    command.env("ADMIX_FAILPOINT", "rank.loss@1=fail").assert().code(24);
    scene.command("diverges", &["table.optimizer=\"sgd\"", "table.rate=10", "values.epochs=2"]).assert().code(24);
}

#[test]
fn a_dump_over_its_own_model_or_over_a_link_to_it_leaves_the_model_whole() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.epochs=1"]);
    let before = model(&run);
    let rows = ValueModel::read(&run).unwrap().rows.path().to_owned();
    let [hard, soft] = ["hard.bin", "soft.bin"].map(|name| scene.folder.path().join(name));
    std::fs::hard_link(&rows, &hard).unwrap();
    std::os::unix::fs::symlink(&rows, &soft).unwrap();
    for out in [&rows, &hard, &soft] {
        let inode = std::fs::metadata(out).unwrap().ino();
        admix().args(["values", "dump", "--values"]).arg(&run).arg("--out").arg(out).assert().success();
        assert_ne!(std::fs::symlink_metadata(out).unwrap().ino(), inode, "{} was written in place", out.display());
        let mut after = model(&run);
        after.retain(|name, _| before.contains_key(name));
        assert!(before == after, "{}", out.display());
        assert!(std::fs::read(out).unwrap() == std::fs::read(&rows).unwrap(), "{}", out.display());
    }
}

/// A model that is copied over itself is cut short for a moment; whoever has it open must not die of it.
#[test]
fn a_model_whose_files_are_written_in_place_still_gives_its_values() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.epochs=1"]);
    let opened = ValueModel::read(&run).unwrap();
    let all = file::read(opened.rows.path(), 0, 1).unwrap();
    let entries = all.sorted();
    assert!(!entries.is_empty());
    std::fs::OpenOptions::new().write(true).open(opened.rows.path()).unwrap().set_len(0).unwrap();
    let mut row = vec![0.0; opened.meta.dim];
    for (id, record) in entries {
        opened.rows.read(id, &mut row);
        assert_eq!(row, all.row(record), "id {id}");
    }
    assert!(ValueModel::read(&run).is_err());
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bytes() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &[]));
    let mut program = std::process::Command::new(scene.command("cut", &[]).get_program());
    program.args(scene.command("cut", &[]).get_args());
    let mut child = program.stderr(std::process::Stdio::null()).spawn().unwrap();
    let metrics = scene.folder.path().join("cut/metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"kind\":\"values\"")) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before anything was learned");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    let code = child.wait().unwrap().code();
    // It may have come to its end a moment before.
    assert!(code == Some(130) || code == Some(0), "{code:?}");
    // Also where it takes no snapshots from here on: it began with parameters of its own beside the rows of the snapshot.
    scene.command("cut", &["checkpoint.every_s=0"]).arg("--resume").assert().success();
    assert!(plain == model(&scene.folder.path().join("cut")));
    let assert = scene.command("cut", &["values.dim=6"]).arg("--resume").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("another configuration"), "{said}");
}

/// Its directory was told to be no run directory, and going on there said that it "was "values", not "parallel"".
#[test]
fn a_run_of_values_is_named_where_a_policy_is_wanted() {
    let scene = Scene::new();
    let run = scene.train("run", &["values.epochs=1"]);
    let config = super::harness::config_in(scene.folder.path(), super::harness::days());
    let train = |arguments: &[&str]| {
        let mut command = admix();
        command.args(["train", "--config"]).arg(&config).args(arguments);
        command
    };
    let mut eval = admix();
    eval.args(["eval", "--baselines", "none", "--log"]).arg(&scene.days[3]).arg("--policy").arg(&run);
    let run = run.to_str().unwrap();
    for (mut command, word) in [
        (eval, "--values"),
        (train(&["--from", run]), "--values"),
        (train(&["--resume", "--run-dir", run]), "a run of `admix values train`"),
    ] {
        let said = String::from_utf8_lossy(&command.assert().code(2).get_output().stderr).into_owned();
        assert!(said.contains(word) && !said.contains("name a run directory"), "no `{word}` in {said}");
    }
    // The other way round it was a configuration with an unknown field.
    let ended = super::harness::train(&["budget.max_updates=1", "data.test=[]"], &["--serial"]);
    let assert = scene.command(ended.dir().to_str().unwrap(), &[]).arg("--resume").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("a run of `admix train`"), "{said}");
}

#[test]
fn what_cannot_be_learned_from_is_refused_by_name() {
    let scene = Scene::new();
    let refused = |sets: &[&str], code: i32, names: &[&str]| {
        let run = tempfile::tempdir_in(scene.folder.path()).unwrap();
        let name = run.path().file_name().unwrap().to_str().unwrap().to_owned();
        let assert = scene.command(&name, sets).assert().code(code);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    };
    refused(&["values.fields=[\"ad\", \"regoin\"]"], 2, &["values.fields", "regoin", "region"]);
    refused(&["values.fields=[]"], 2, &["values.fields"]);
    refused(&["values.dim=2"], 2, &["values.dim"]);
    refused(&["table.max_rows=50"], 1, &["table.max_rows", "50 rows"]);
    refused(&["table.cache_rows=20"], 1, &["table.cache_rows", "values.batch"]);

    let without = scene.folder.path().join("without");
    let mut day = LogRows::read(&scene.days[0]);
    day.requests.iter_mut().for_each(|row| row.user_id = None);
    day.write(without.clone());
    let list = format!("values.train=[{without:?}]");
    refused(&[&list], 2, &["joined_exposure", "without"]);
    std::fs::copy(scene.days[0].join("joined_exposure.tsv.zst"), without.join("joined_exposure.tsv.zst")).unwrap();
    refused(&[&list, "values.fields=[\"ad\", \"user\"]"], 2, &["user_id", "without"]);
}

#[test]
fn exposures_that_do_not_join_are_counted_by_what_is_wrong() {
    let scene = Scene::new();
    let path = scene.days[3].join("joined_exposure.tsv.zst");
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(&path).unwrap()).unwrap()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let cells = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
    lines.push(lines[1].clone());
    let mut stranger = cells(&lines[2]);
    stranger[0] = "99".into();
    lines.push(stranger.join("\t"));
    let mut elsewhere = cells(&lines[3]);
    elsewhere[3] = "123456".into();
    lines[3] = elsewhere.join("\t");
    let mut broken = cells(&lines[4]);
    broken[5] = "much".into();
    lines[4] = broken.join("\t");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(scene.days[3].join("joined_exposure.tsv"), lines.join("\n") + "\n").unwrap();
    let run = scene.train("run", &["values.epochs=1"]);
    let mut command = admix();
    command.args(["values", "eval", "--json", "--values"]).arg(&run).arg("--log").arg(&scene.days[3]);
    let report = &json_lines(&mut command)[0];
    for reason in ["repeated", "unknown_requests", "not_in_queue", "bad"] {
        assert_eq!(report["joined"][reason], 1, "{reason}: {report}");
    }
}

#[test]
fn exposures_can_be_made_without_queues() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("world.toml");
    std::fs::write(&config, WORLD).unwrap();
    let out = folder.path().join("days");
    let mut command = admix();
    command.args(["data", "synth", "--exposures-only", "--days", "1", "--config"]).arg(&config).arg("--out").arg(&out);
    command.assert().success();
    let day = LogRows::read(&out.join("day-0"));
    assert!(day.requests.len() > 3000 && day.requests.iter().all(|row| row.queue.len() == 1));
}
