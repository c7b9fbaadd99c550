//! What a value run starts with, and what is said of one that was started several times, is over, or is not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use admix::run::RunDirectory;
use admix::run::snapshot::folder;
use admix::run::value_snapshot::ValueSnapshot;
use admix::shm::names::CONTROL;
use admix::shm::{Control, RunNames};
use admix::sparse::file;
use admix::values::ValueModel;
use nix::sys::signal::Signal;

use super::harness::{PATIENCE, segments_of, send};
use super::support::admix;
use super::values::{MANY_DEATHS, Scene, manifest, model};

#[test]
fn a_run_begins_with_the_rows_of_a_file_or_with_another_run() {
    let scene = Scene::new();
    let first = scene.train("first", &["values.epochs=2"]);
    let rows = scene.folder.path().join("rows.bin");
    admix().args(["values", "dump", "--values"]).arg(&first).arg("--out").arg(&rows).assert().success();
    let begun = |run: &str, from: &Path, sets: &[&str]| {
        scene.command(run, sets).arg("--from").arg(from).assert().success();
        scene.folder.path().join(run)
    };
    // It begins where the other one ended: at rates of 0 nothing moves.
    let still = ["values.epochs=1", "values.rate=0", "table.rate=0"];
    let embeddings = |run: &Path| {
        let model = ValueModel::read(run).unwrap();
        let table = file::read(model.rows.path(), 0, 1).unwrap();
        let rows = table.sorted().into_iter().map(|(id, record)| (id, table.row(record).to_vec()));
        (model.parameters.clone(), rows.collect::<BTreeMap<_, _>>())
    };
    let [before, of_run, of_rows] =
        [first.clone(), begun("of-run", &first, &still), begun("of-rows", &rows, &still)].map(|run| embeddings(&run));
    assert!(before == of_run);
    assert!(before.0 != of_rows.0 && before.1 == of_rows.1, "a row file has no network");

    // Kills and snapshots do not lose what it began with.
    let plain = model(&begun("plain", &first, &["checkpoint.every_s=0"]));
    let mut command = scene.command("killed", &["checkpoint.every_s=0.001", MANY_DEATHS]);
    command.arg("--from").arg(&first).env("ADMIX_FAILPOINT", "rank.update@50=kill").assert().success();
    assert!(plain == model(&scene.folder.path().join("killed")));
    let assert = scene.command("other", &["values.hidden=5"]).arg("--from").arg(&first).assert().code(1);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("values.from") && said.contains("values.hidden = 32"), "{said}");
}

/// Killed before its first snapshot and resumed without its source, a run went on with a random network, and its later stages failed; a relative
/// path that was gone was another configuration.
#[test]
fn a_run_goes_on_without_the_source_that_it_began_with() {
    let scene = Scene::new();
    let source = scene.train("source", &["values.epochs=2", "values.weights=propensity"]);
    let sets = ["values.from=source", "values.epochs=2", "values.refit=true", "checkpoint.every_s=1000"];
    let command = |run: &str, sets: &[&str]| {
        let mut command = scene.command(run, sets);
        command.current_dir(scene.folder.path());
        command
    };
    command("plain", &sets).assert().success();
    let mut killed = command("killed", &[&sets[..], &["watchdog.max_restarts=0"]].concat());
    killed.env("ADMIX_FAILPOINT", "rank.update@20=kill").assert().code(20);
    std::fs::remove_dir_all(source).unwrap();
    let assert = command("killed", &sets).arg("--resume").assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("no snapshot to go on from") && said.contains("--resume=auto"), "{said}");
    command("killed", &sets).arg("--resume=auto").assert().success();
    let [plain, killed] = ["plain", "killed"].map(|run| scene.folder.path().join(run));
    for stage in ["", "equal", "refit"] {
        assert!(model(&plain.join(stage)) == model(&killed.join(stage)), "{stage}");
    }
    let assert = command("new", &sets).assert().code(2);
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("values.from") && said.contains("neither"), "{said}");
}

/// Resuming a run replaced its seconds by those of the last start; where it was finished, by those of a start that found nothing to do.
#[test]
fn an_outcome_is_that_of_all_starts_and_a_finished_run_stays_as_it_is() {
    let scene = Scene::new();
    let sets = ["values.epochs=30", "values.weights=equal", "values.refit=true"];
    scene.interrupted("run", &sets);
    let run = scene.folder.path().join("run");
    let seconds = || manifest(&run)["outcome"]["seconds"].as_f64().unwrap();
    let (first, begun) = (seconds(), manifest(&run)["outcome"]["reason"] == "interrupted");
    scene.command("run", &sets).arg("--resume").assert().success();
    assert!(!begun || seconds() > first, "{} {first}", seconds());
    let files =
        || ["manifest.json", "refit/manifest.json", "config.toml"].map(|name| std::fs::read(run.join(name)).unwrap());
    let snapshots = || -> std::collections::BTreeSet<PathBuf> {
        let folders = ["checkpoints", "refit/checkpoints"].map(|name| run.join(name));
        folders.iter().flat_map(|folder| folder.read_dir().unwrap()).map(|entry| entry.unwrap().path()).collect()
    };
    let before = (files(), snapshots());
    let assert = scene.command("run", &sets).arg("--resume").assert().success();
    let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(said.contains("is finished and stays as it is"), "{said}");
    assert!(before == (files(), snapshots()));
}

/// A training that was killed in its first stage was evaluated without a word.
#[test]
fn whoever_reads_an_unfinished_training_is_warned() {
    let scene = Scene::new();
    let sets = ["values.epochs=30", "watchdog.max_restarts=0"];
    let mut command = scene.command("run", &sets);
    command.env("ADMIX_FAILPOINT", "rank.update@200=kill").assert().code(20);
    let run = scene.folder.path().join("run");
    let said = |command: &mut assert_cmd::Command| {
        String::from_utf8_lossy(&command.assert().success().get_output().stderr).into_owned()
    };
    let mut values = admix();
    values.args(["values", "eval", "--values"]).arg(&run).arg("--log").arg(&scene.days[3]);
    let mut told = admix();
    told.args(["eval", "--baselines", "auction-only", "--log"]).arg(&scene.days[3]).arg("--values").arg(&run);
    for command in [&mut values, &mut told] {
        let warned = said(command);
        assert!(warned.contains("is not finished") && warned.contains("--resume"), "{warned}");
    }
}

/// All files below a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// The snapshots were deleted, and the run began again.
#[test]
fn a_run_of_which_no_snapshot_can_be_read_is_refused_and_keeps_them() {
    let scene = Scene::new();
    let plain = model(&scene.train("plain", &["checkpoint.every_s=0"]));
    let sets = ["checkpoint.every_s=0.001", "watchdog.max_restarts=0"];
    scene.command("cut", &sets).env("ADMIX_FAILPOINT", "rank.update@80=kill").assert().code(20);
    let checkpoints = scene.folder.path().join("cut/checkpoints");
    let numbers = folder::numbers(&checkpoints).unwrap();
    let paths: Vec<PathBuf> = numbers.iter().map(|number| checkpoints.join(format!("{number:08}/state.bin"))).collect();
    let states: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(!states.is_empty());
    for (path, state) in paths.iter().zip(&states) {
        std::fs::write(path, &state[..state.len() / 2]).unwrap();
    }
    let before = contents(&checkpoints);
    for how in ["--resume", "--resume=auto"] {
        let assert = scene.command("cut", &sets).arg(how).assert().code(2);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("snapshots") && said.contains("can be read"), "{how}: {said}");
        assert!(contents(&checkpoints) == before, "{how}");
    }
    for (path, state) in paths.iter().zip(&states) {
        std::fs::write(path, state).unwrap();
    }
    scene.command("cut", &sets).arg("--resume").assert().success();
    assert!(plain == model(&scene.folder.path().join("cut")));
}

/// It was resumed by any version, and docs/operations.md says that it is not.
#[test]
fn a_run_of_another_version_is_not_resumed() {
    let scene = Scene::new();
    scene.interrupted("run", &["values.epochs=30"]);
    let path = scene.folder.path().join("run/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(&format!("\"{}\"", env!("CARGO_PKG_VERSION")), "\"0.0.9\"")).unwrap();
    for how in ["--resume", "--resume=auto"] {
        let assert = scene.command("run", &["values.epochs=30"]).arg(how).assert().code(2);
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("0.0.9") && said.contains("another --run-dir"), "{how}: {said}");
    }
}

/// The control block was created after the tables, and removed before they went back to a snapshot: meanwhile a start in another container
/// removed them.
#[test]
fn tables_do_not_stand_without_a_control_block() {
    let scene = Scene::new();
    let command = scene.command("run", &["checkpoint.every_s=0.001", MANY_DEATHS]);
    let mut program = std::process::Command::new(command.get_program());
    let points = "values.tables@1=200ms,values.goes-back@1=200ms,rank.update@50=kill";
    program.args(command.get_args()).env("ADMIX_FAILPOINT", points).stderr(std::process::Stdio::null());
    let mut child = program.spawn().unwrap();
    let (mut looks, begun) = (0, std::time::Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on and on");
        let table = segments_of(child.id()).into_iter().find(|name| name.ends_with("-table"));
        if let Some(table) = table {
            let (names, _) = RunNames::parse(&table).unwrap();
            let stands_alone = !names.is_alive() && Path::new("/dev/shm").join(&table).exists();
            assert!(!stands_alone, "{table}");
            looks += 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success() && looks > 0, "{status}, {looks} looks");
    assert!(manifest(&scene.folder.path().join("run"))["outcome"]["went_back"].as_u64() > Some(0), "nobody died");
}

/// Starts a run, interrupts it when a failpoint holds it up, and waits until `watchdog.grace_s` is over. Checks that it tells of what its newest
/// snapshot has; returns the updates of that.
fn killed_after_grace(scene: &Scene, run: &str, failpoint: &str, sets: &[&str]) -> u64 {
    let command = scene.command(run, &[&["values.epochs=200", "watchdog.grace_s=2"], sets].concat());
    let mut program = std::process::Command::new(command.get_program());
    program.args(command.get_args()).env("ADMIX_FAILPOINT", failpoint).stderr(std::process::Stdio::null());
    let mut child = program.spawn().unwrap();
    let done = |control: Control| {
        let read: u64 = control.actors.iter().map(|reader| reader.steps.get()).sum();
        read + control.learner.updates.get()
    };
    let (begun, mut before, mut since) = (Instant::now(), 0, Instant::now());
    while before == 0 || since.elapsed() < Duration::from_secs(2) {
        assert!(child.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE, "nothing holds it up");
        let control = RunNames::of_process(child.id()).and_then(|names| Control::observe(&names.part(CONTROL)).ok());
        let now = control.map_or(0, done);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    send(child.id(), Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{failpoint}");
    let run = scene.folder.path().join(run);
    let manifest = manifest(&run);
    let outcome = &manifest["outcome"];
    let newest = ValueSnapshot::newest(&RunDirectory::open(&run).unwrap()).unwrap();
    let (updates, samples) = newest.map_or((0, 0), |snapshot| (snapshot.state.updates, snapshot.state.samples));
    assert_eq!((&outcome["reason"], &outcome["updates"]), (&"interrupted".into(), &updates.into()), "{outcome}");
    let ledger = &outcome["ledger"];
    let parts = ["consumed", "overwritten", "lost", "unread", "discarded"];
    let accounted: u64 = parts.iter().map(|part| ledger[part].as_u64().unwrap()).sum();
    assert_eq!((&outcome["samples"], &ledger["consumed"]), (&samples.into(), &samples.into()), "{outcome}");
    assert_eq!(ledger["produced"], accounted, "{outcome}");
    updates
}

/// The block that it had begun was neither lost nor unread, and the run ended with exit code 1.
#[test]
fn a_reader_that_hangs_until_grace_is_over_leaves_a_ledger_that_balances() {
    let sets = [
        "values.ranks=2",
        "values.batch=128",
        "values.weights=equal",
        "ranks.sync=overlap",
        "ranks.period=5",
        "checkpoint.every_s=0.05",
    ];
    killed_after_grace(&Scene::new(), "run", "reader.claimed@40=3600000ms", &sets);
}

/// The outcome told of all updates, and a resume began with the newest snapshot, or at 0.
#[test]
fn a_trainer_that_hangs_until_grace_is_over_leaves_the_figures_of_its_newest_snapshot() {
    let scene = Scene::new();
    let sets = ["values.weights=equal", "checkpoint.every_s=0.2"];
    assert_eq!(killed_after_grace(&scene, "first", "rank.snapshot.dense@1=3600000ms", &sets), 0);
    let updates = killed_after_grace(&scene, "third", "rank.snapshot.dense@3=3600000ms", &sets);
    assert!(updates > 0, "two snapshots came to disk");
}
