//! `ranks.tables`: several tables with equal rows on one machine, each with ranks of its own, through real processes.

use std::path::Path;
use std::time::Duration;

use admix::settings::RowOptimizer;
use admix::sparse::TableShape;
use serde_json::Value;

use super::harness::PATIENCE;
use super::ranks::{best_loss, killed_at_each, killed_at_random_moments, learned_as_well};
use super::support::admix;
use super::values::{MANY_DEATHS, Scene, WORLD, model, pids};

/// The last record of training.
fn last_record(run: &Path) -> Value {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let mut records = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.rfind(|record| record["kind"] == "values").unwrap()
}

/// What a command that fails says.
fn fails(command: &mut assert_cmd::Command, code: i32) -> String {
    let assert = command.assert().code(code);
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

/// "3 tables x 4 ranks: three sparse writes a step, not twelve": every table is written once, by its own first rank.
#[test]
fn tables_with_their_ranks_learn_what_one_table_with_all_ranks_learns() {
    let scene = Scene::of(WORLD);
    for (i, (ranks, tables, batch)) in
        [(1, &[2][..], "values.batch=128"), (2, &[2], "values.batch=64"), (4, &[3], "values.batch=20")]
            .into_iter()
            .enumerate()
    {
        let run = |tables: usize, ranks: usize| {
            let sets = [format!("values.ranks={ranks}"), format!("ranks.tables={tables}"), batch.to_owned()];
            let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["values.readers=2"]).collect();
            let run = scene.train(&format!("{i}-{tables}x{ranks}"), &sets);
            let record = last_record(&run);
            let number = |key: &str| record[key].as_u64().unwrap();
            assert_eq!(number("row_writes"), tables as u64 * number("updates"), "{tables} tables x {ranks} ranks");
            model(&run)
        };
        for &tables in tables {
            let all = ranks * tables;
            // Twelve ranks of one table are more than it may have: six of each of two.
            let fewer = if all > 8 { run(2, all / 2) } else { run(1, all) };
            assert!(fewer == run(tables, ranks), "{tables} tables x {ranks} ranks");
        }
    }
}

#[test]
fn killed_processes_change_no_bit() {
    let scene = Scene::of(WORLD);
    let sets = ["values.readers=2", "values.ranks=2", "ranks.tables=2", "values.batch=64"];
    let plain = model(&scene.train("plain", &["values.readers=2", "values.ranks=4", "values.batch=64"]));
    killed_at_each(
        &scene,
        &sets,
        &plain,
        &[
            "reader.committed@52=kill",
            "other.update@20=kill",
            "rank.written@23=kill",
            "rank.snapshot@2=kill",
            "table.exchange@21=kill",
            "table.write@19=kill",
            "table.written@22=kill",
        ],
    );
    // The first ranks of both tables, and another one of the second.
    let long = [&sets[..], &["values.epochs=30", "checkpoint.every_s=0.02"]].concat();
    let plain = model(&scene.train("long", &long));
    let kills = killed_at_random_moments(&scene, "random", &long, &["admix-trainer", "admix-rank2", "admix-rank3"]);
    assert!(plain == model(&scene.folder.path().join("random")), "after {kills} kills");
}

/// A snapshot does not know how many tables there were.
#[test]
fn an_interrupted_run_goes_on_with_any_number_of_tables_that_makes_as_many_ranks() {
    let scene = Scene::of(WORLD);
    let of = |tables: &'static str, ranks: &'static str| [tables, ranks, "values.batch=64", "values.epochs=30"];
    let (two, one) = (of("ranks.tables=2", "values.ranks=1"), of("ranks.tables=1", "values.ranks=2"));
    let plain = model(&scene.train("plain", &two));
    for (run, before, after) in [("same", &two, &two), ("fewer", &two, &one), ("more", &one, &two)] {
        scene.interrupted(run, before);
        scene.command(run, after).arg("--resume").assert().success();
        assert!(plain == model(&scene.folder.path().join(run)), "{run}");
    }
    scene.interrupted("other", &two);
    let said = fails(scene.command("other", &of("ranks.tables=2", "values.ranks=2")).arg("--resume"), 2);
    assert!(said.contains("values.ranks was 1 of each of 2 tables and is 2 of each of 2 tables now"), "{said}");
}

/// The other ranks read what it missed, so that all rows differ from there on; the parameters, of which all have the mean, do not.
#[test]
fn a_table_that_missed_a_write_is_found_at_the_end_of_the_pass() {
    let scene = Scene::of(WORLD);
    for (run, failpoint) in [("second", "table.write@7=fail"), ("first", "rank.write@7=fail")] {
        let sets = ["values.ranks=1", "ranks.tables=2", "values.batch=128"];
        let said = fails(scene.command(run, &sets).env("ADMIX_FAILPOINT", failpoint), 1);
        assert!(said.contains("the rows of the table of rank 1 are not those of rank 0"), "{failpoint}: {said}");
    }
}

#[test]
fn settings_that_do_not_go_together_and_tables_without_room_are_named() {
    let scene = Scene::of(WORLD);
    let refused = |sets: &[&str], names: &[&str]| {
        let said = fails(&mut scene.command("refused", sets), 2);
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    };
    refused(&["ranks.tables=0"], &["ranks.tables", "1..=8"]);
    refused(&["ranks.tables=4", "values.ranks=8"], &["ranks.tables", "32 ranks", "24"]);
    refused(&["ranks.tables=2", "ranks.quorum=3", "ranks.sync=overlap"], &["ranks.quorum", "2 ranks"]);
    for set in ["table.devices=2", "table.admit_after=2", "table.keep_days=7", "table.when_full=oldest"] {
        refused(&["ranks.tables=2", set], &[set.split('=').next().unwrap(), "2 ranks"]);
    }
    // One of them would fit.
    let free = nix::sys::statvfs::statvfs("/dev/shm").unwrap();
    let free = free.blocks_available() * free.fragment_size();
    let shape = TableShape { dim: 8, optimizer: RowOptimizer::Adagrad, max_rows: 1 << 20, seed: 1, marks: false };
    let rows = format!("table.max_rows={}", (0.7 * free as f64 / shape.footprint() as f64 * (1 << 20) as f64) as u64);
    let said = fails(&mut scene.command("large", &["ranks.tables=2", &rows]), 1);
    assert!(said.contains("2 tables of ") && said.contains("lower ranks.tables"), "{said}");
}

#[test]
fn tables_whose_ranks_overlap_learn_as_well_as_in_step_and_survive_kills() {
    let scene = Scene::of(WORLD);
    let sets = ["values.ranks=1", "ranks.tables=2", "values.batch=128", "values.epochs=6", "values.weights=equal"];
    let overlap = [&sets[..], &["ranks.sync=overlap", "ranks.period=5"]].concat();
    let (a, b) = (best_loss(&scene.train("step", &sets)), best_loss(&scene.train("overlap", &overlap)));
    assert!((a - b).abs() < 0.02 * a, "{a} {b}");
    let record = last_record(&scene.folder.path().join("overlap"));
    assert_eq!(record["row_writes"].as_u64().unwrap(), 2 * record["updates"].as_u64().unwrap(), "{record}");
    let sets = [&overlap[..], &["checkpoint.every_s=0.001", MANY_DEATHS]].concat();
    for failpoint in ["table.update@20=kill", "table.written@21=kill", "table.exchange@5=kill", "rank.written@21=kill"]
    {
        let run = failpoint.split('@').next().unwrap();
        let assert = scene.command(run, &sets).env("ADMIX_FAILPOINT", failpoint).assert().success();
        let said = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(said.contains("went back"), "{failpoint}: nobody died: {said}");
        learned_as_well(&scene.folder.path().join(run), b, 6);
    }
    let long = [&sets[..], &["values.epochs=60"]].concat();
    let plain = best_loss(&scene.train("long", &long));
    scene.interrupted("cut", &long);
    scene.command("cut", &long).arg("--resume").assert().success();
    learned_as_well(&scene.folder.path().join("cut"), plain, 60);
}

#[test]
fn inspect_and_watch_say_which_tables_there_are_and_who_writes_them() {
    let scene = Scene::of(WORLD);
    let sets = ["values.ranks=2", "ranks.tables=2", "values.batch=64", "values.epochs=4000", "values.weights=equal"];
    let mut child = scene.start("live", &sets);
    let run = scene.folder.path().join("live");
    let begun = std::time::Instant::now();
    let seen = loop {
        assert!(begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none());
        let output = admix().args(["inspect", "--json"]).arg(&run).output().unwrap();
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let writes = |table: usize| seen["memory"]["tables"][table]["writes"].as_u64().unwrap_or(0);
        if writes(0) > 0 && writes(1) > 0 {
            break seen;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let tables = seen["memory"]["tables"].as_array().unwrap();
    let writer = |table: usize| tables[table]["writer_pid"].as_u64().map(|pid| pid as i32);
    let named = |name: &str| pids(child.id(), name).first().copied();
    assert_eq!((writer(0), writer(1)), (named("admix-trainer"), named("admix-rank2")));
    assert!(tables.len() == 2 && tables[1]["capacity"] == 2000 && tables[1]["rows"].as_u64().unwrap() > 0);
    let text = |arguments: &[&str]| {
        let output = admix().args(arguments).arg(&run).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let inspected = text(&["inspect"]);
    assert!(
        ["table 0: ", "written by trainer", "table 1: ", "written by rank2"].iter().all(|s| inspected.contains(s)),
        "{inspected}"
    );
    assert!(text(&["watch", "--once"]).contains("table 1: "));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
