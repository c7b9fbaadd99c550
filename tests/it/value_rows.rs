//! Rows of `admix values train` that come late and go again: `table.admit_after`, `table.when_full`, `table.keep_days`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use admix::log::CompileOptions;
use admix::sparse::file;
use admix::sparse::marks::LastUse;
use admix::values::join::{Share, join};
use admix::values::{Fields, ValueModel};

use super::values::{MANY_DEATHS, Scene, model};

const FIELDS: [&str; 3] = ["ad", "user", "user*slot"];

/// Far more ids than rows, and few rows may change between two snapshots: they follow one another whatever the clock says.
const LIMITED: [&str; 10] = [
    "values.fields=[\"ad\", \"user\", \"user*slot\"]",
    "values.batch=16",
    "values.epochs=2",
    "values.readers=2",
    "table.max_rows=500",
    "table.when_full=oldest",
    "table.admit_after=2",
    "table.keep_days=3",
    "table.snapshot_rows=480",
    "table.prefetch=1",
];

/// How often each id occurs among the exposures of days.
fn ids(days: &[PathBuf]) -> BTreeMap<u64, usize> {
    let fields = Fields::parse(&FIELDS.map(String::from)).unwrap();
    let mut counts = BTreeMap::new();
    for day in days {
        for id in join(day, CompileOptions::default(), &fields, Share::ALL).unwrap().ids {
            *counts.entry(id).or_default() += 1;
        }
    }
    counts
}

/// Ids that have a row in a run's model.
fn rows(run: &Path) -> BTreeSet<u64> {
    let table = file::read(ValueModel::read(run).unwrap().rows.path(), 0, 1).unwrap();
    table.sorted().into_iter().map(|(id, _)| id).collect()
}

fn said(command: &mut assert_cmd::Command, code: i32) -> String {
    String::from_utf8_lossy(&command.assert().code(code).get_output().stderr).into_owned()
}

#[test]
fn rows_come_and_go_in_the_same_way_whatever_is_ahead_and_whoever_dies() {
    let scene = Scene::of(super::values::WORLD);
    let plain = scene.train("plain", &[&LIMITED[..], &["checkpoint.every_s=0"]].concat());
    assert_eq!(rows(&plain).len(), 500, "the table is full");
    assert!(ids(&scene.days[..2]).values().filter(|n| **n >= 2).count() > 700, "and many rows have gone");
    let plain = model(&plain);
    for (name, failpoint, sets) in [
        ("cached", "", &["checkpoint.every_s=0", "table.cache_rows=60", "table.prefetch=3"][..]),
        ("arenas", "", &["checkpoint.every_s=0", "table.cache_rows=200", "table.devices=3"]),
        ("saved", "", &[]),
        ("update", "rank.update@150=kill", &["checkpoint.every_s=0.001"]),
        ("cached-update", "rank.update@150=kill", &["checkpoint.every_s=0.001", "table.cache_rows=60"]),
        ("copying", "rank.snapshot.copying@60=kill", &["table.cache_rows=60"]),
        ("rows", "rank.snapshot.rows@20=kill", &["table.cache_rows=60"]),
        ("dense", "rank.snapshot.dense@20=kill", &[]),
        ("committed", "checkpoint.committed@20=kill", &[]),
        ("base", "checkpoint.base@2=kill", &[]),
    ] {
        let mut command = scene.command(name, &[&LIMITED[..], &[MANY_DEATHS], sets].concat());
        if !failpoint.is_empty() {
            command.env("ADMIX_FAILPOINT", failpoint);
        }
        let output = said(&mut command, 0);
        let died = output.contains("rows restored") || output.contains("starting another");
        assert_eq!(died, !failpoint.is_empty(), "{name}: {output}");
        assert!(plain == model(&scene.folder.path().join(name)), "{name}");
    }
    // From disk: base and deltas hold what was dropped and what was counted.
    let sets = [&LIMITED[..], &["checkpoint.every_s=0.001", "watchdog.max_restarts=0"]].concat();
    said(scene.command("cut", &sets).env("ADMIX_FAILPOINT", "rank.update@150=kill"), 20);
    assert!(scene.folder.path().join("cut/checkpoints").read_dir().unwrap().count() > 0);
    said(scene.command("cut", &sets).arg("--resume"), 0);
    assert!(plain == model(&scene.folder.path().join("cut")), "cut");
}

/// Writes what a run began with as another file of rows: each with the mark that `mark` gives to the row of that number.
fn with_marks(run: &Path, out: &Path, mark: impl Fn(u64) -> LastUse) {
    let (from, mut row) = (ValueModel::read(run).unwrap().rows.path().to_owned(), 0);
    file::copy(&from, out, true, |_| {
        row += 1;
        Some(mark(row - 1))
    })
    .unwrap();
}

#[test]
fn rows_of_a_delta_that_were_dropped_are_refused_by_their_offset() {
    let scene = Scene::of(super::values::WORLD);
    let common = ["values.epochs=1", LIMITED[0], "values.validation=[]"];
    let first = scene.train("first", &common);
    let sets = [&common[..], &["table.when_full=oldest"]].concat();
    let from = |name: &str, mark: &dyn Fn(u64) -> LastUse, code: i32| {
        let rows = scene.folder.path().join(format!("{name}.bin"));
        with_marks(&first, &rows, mark);
        said(scene.command(name, &sets).arg("--from").arg(&rows), code)
    };
    // Use number 0 is a dropped row, which only a delta has.
    let output = from("dropped", &|row| LastUse { number: 5 * u64::from(row != 3), day: 0 }, 2);
    assert!(output.contains("values.from") && output.contains("offset"), "{output}");
}

#[test]
fn a_run_that_notes_no_days_hands_none_on() {
    let scene = Scene::of(super::values::WORLD);
    let day = |i: usize| format!("values.train={:?}", [scene.days[i].to_str().unwrap()]);
    let common = ["values.epochs=1", LIMITED[0], "values.validation=[]"];
    let [first, second, third] = [0, 1, 2].map(day);
    let first = scene.train("first", &[&common[..], &[&first, "table.keep_days=1"]].concat());
    let second = [&common[..], &[&second, "table.when_full=oldest"]].concat();
    said(scene.command("second", &second).arg("--from").arg(&first), 0);
    let third = [&common[..], &[&third, "table.keep_days=1"]].concat();
    let output = said(scene.command("third", &third).arg("--from").arg(scene.folder.path().join("second")), 0);
    assert!(output.contains("does not say when its rows were seen"), "{output}");
    assert!(rows(&scene.folder.path().join("third")) == ids(&scene.days[..3]).into_keys().collect());
}

/// The row thread is a batch ahead of the trainer when the run stops; what it has counted and freed must not be done again.
#[test]
fn a_run_that_is_interrupted_settles_no_batch_twice() {
    let scene = Scene::of(super::values::WORLD);
    let plain = model(&scene.train("plain", &[&LIMITED[..], &["checkpoint.every_s=0"]].concat()));
    let command = scene.command("cut", &LIMITED);
    let mut program = std::process::Command::new(command.get_program());
    // Slow updates: the run cannot end before it is interrupted, and the row thread is never behind.
    program.args(command.get_args()).env("ADMIX_FAILPOINT", "rank.update@1=20ms");
    let mut child = program.stderr(std::process::Stdio::null()).spawn().unwrap();
    let metrics = scene.folder.path().join("cut/metrics.jsonl");
    while !std::fs::read_to_string(&metrics).is_ok_and(|text| text.contains("\"kind\":\"values\"")) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before anything was learned");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    said(scene.command("cut", &LIMITED).arg("--resume"), 0);
    assert!(plain == model(&scene.folder.path().join("cut")));
}

/// Rows that were dropped came back where a snapshot of all rows had not become a base: the table had no room for them, and the run could not be
/// resumed.
#[test]
fn rows_that_were_dropped_stay_away_where_a_snapshot_of_all_rows_is_no_base() {
    let scene = Scene::of(super::values::WORLD);
    let sets = [
        "values.batch=16",
        "values.epochs=10",
        "values.weights=equal",
        "table.max_rows=260",
        "table.when_full=oldest",
        MANY_DEATHS,
    ];
    let plain = model(&scene.train("plain", &[&sets[..], &["checkpoint.every_s=0"]].concat()));
    let often = [&sets[..], &["checkpoint.every_s=0.05"]].concat();
    let command = scene.command("cut", &often);
    let mut program = std::process::Command::new(command.get_program());
    // Each checkpointer dies before it gives its first snapshot a second name.
    program.args(command.get_args()).env("ADMIX_FAILPOINT", "rank.update@1=2ms,checkpoint.committed@1=kill");
    let mut child = program.stderr(std::process::Stdio::null()).spawn().unwrap();
    let run = scene.folder.path().join("cut");
    while !run.join("checkpoints").read_dir().is_ok_and(|entries| entries.count() > 3) {
        assert!(child.try_wait().unwrap().is_none(), "it ended before there were snapshots");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    said(scene.command("cut", &often).arg("--resume"), 0);
    assert!(plain == model(&run));
}

#[test]
fn ids_get_a_row_once_they_were_seen_often_enough() {
    let scene = Scene::of(super::values::WORLD);
    for admit_after in [1, 3] {
        let sets = [LIMITED[0], "values.epochs=3", &format!("table.admit_after={admit_after}")];
        let expected = ids(&scene.days[..2]).into_iter().filter(|(_, n)| *n >= admit_after).map(|(id, _)| id);
        let run = scene.train(&format!("run-{admit_after}"), &sets);
        assert!(rows(&run) == expected.collect(), "{admit_after}");
    }
}

#[test]
fn rows_that_were_not_seen_in_the_last_days_stay_behind() {
    let scene = Scene::of(super::values::WORLD);
    let day = |i: usize| format!("values.train={:?}", [scene.days[i].to_str().unwrap()]);
    let of = |days: &[PathBuf]| ids(days).into_keys().collect::<BTreeSet<u64>>();
    let next = day(2);
    let common = ["values.epochs=1", LIMITED[0], "values.validation=[]"];
    for (first_keeps, second_keeps, expected) in [
        ("table.keep_days=1", "table.keep_days=1", of(&scene.days[1..3])),
        ("table.keep_days=1", "table.keep_days=2", of(&scene.days[..3])),
        ("table.keep_days=2", "table.keep_days=0", of(&scene.days[..3])),
        // The source does not say when its rows were seen.
        ("table.keep_days=0", "table.keep_days=1", of(&scene.days[..3])),
    ] {
        let name = format!("{first_keeps}-{second_keeps}");
        let first = scene.train(&format!("first-{name}"), &[&common[..], &[first_keeps]].concat());
        assert!(rows(&first) == of(&scene.days[..2]));
        let second = format!("second-{name}");
        let sets = [&common[..], &[&next, second_keeps]].concat();
        let output = said(scene.command(&second, &sets).arg("--from").arg(&first), 0);
        assert!(rows(&scene.folder.path().join(&second)) == expected, "{name}");
        let silent = first_keeps.ends_with('0') && !second_keeps.ends_with('0');
        assert_eq!(output.contains("does not say when its rows were seen"), silent, "{name}: {output}");
    }
}

#[test]
fn what_several_ranks_cannot_do_and_tables_that_are_too_small_are_refused_by_name() {
    let scene = Scene::of(super::values::WORLD);
    for set in ["table.admit_after=2", "table.when_full=oldest", "table.keep_days=1"] {
        let output = said(&mut scene.command("ranks", &["values.ranks=2", set]), 2);
        assert!(output.contains(set.split('=').next().unwrap()) && output.contains("values.ranks"), "{output}");
    }
    let output = said(&mut scene.command("small", &["table.max_rows=20", "table.when_full=oldest"]), 1);
    assert!(output.contains("table.max_rows") && output.contains("20 rows"), "{output}");
}
