//! What a value run starts with, and what is said of one that was started several times, is over, or is not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use admix::sparse::file;
use admix::values::ValueModel;

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
    command("killed", &sets).arg("--resume").assert().success();
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
