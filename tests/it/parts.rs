//! Savepoints of a compilation: a killed one goes on, and ends with the bytes of one that was not killed.

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use admix::log::write;
use tempfile::TempDir;

use super::large_days::{MIDNIGHT, compiled, forget, said};
use super::support::admix;

/// A part is 32,768 rows with this much memory, and the rest of its last megabyte of text: at least three parts and a rest.
const REQUESTS: u64 = 150_000;
const MEMORY: &str = "16";

/// A day of short queues.
fn day() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("day.toml"), "date = \"2026-01-05\"\n").unwrap();
    let control = "ad_id\trequired\tpenalty\tclick_value\n9001\t300\t4\t10\n9002\t2\t5\t0\n";
    std::fs::write(dir.path().join("control.tsv"), control).unwrap();
    let mut text = write::TRACK_HEADER.to_owned() + "\n";
    for i in 0..REQUESTS {
        let (id, ms) = (i * 7919 % 999_983 + 1, MIDNIGHT + i * 86_400_000 / REQUESTS);
        let (slot, region, user, ecpm, pctr) = (i % 3, i % 5, i % 977, 1 + i * 31 % 90_000, 1 + i * 17 % 500);
        write!(text, "{id}\t{ms}\t{slot}\t{region}\t1\t2\t{user}\t").unwrap();
        writeln!(text, "9001,C,1,0.{pctr:04},0;{},A,{}.{:02},0.1,0", i % 400, ecpm / 100, ecpm % 100).unwrap();
    }
    std::fs::write(dir.path().join("track_log.tsv"), text).unwrap();
    dir
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    dir.join(format!(".admix/compiled.log.{ending}"))
}

/// Waits until the tables are so old that parts of them are kept.
fn settle() {
    std::thread::sleep(Duration::from_millis(3_100));
}

fn check(dir: &Path, failpoint: &str, args: &[&str]) -> Output {
    let mut command = admix();
    command.env("ADMIX_FAILPOINT", failpoint).args(["data", "check", "--json", "--memory", MEMORY]).args(args).arg(dir);
    command.output().unwrap()
}

/// Compiles until a kill after `parts` parts; returns whether it came to that.
fn killed(dir: &Path, parts: u32, args: &[&str]) -> bool {
    let output = check(dir, &format!("compile.part@{parts}=kill"), args);
    assert!(output.status.success() || output.status.signal() == Some(9), "{}", said(&output));
    !output.status.success()
}

/// Compiles to the end and returns the compiled log and what was said.
fn finished(dir: &Path, args: &[&str]) -> (Vec<u8>, String) {
    let output = check(dir, "", args);
    assert!(output.status.success(), "{}", said(&output));
    for ending in ["part", "ids", "state"] {
        assert!(!beside(dir, ending).exists(), "{ending} is left");
    }
    (std::fs::read(compiled(dir)).unwrap(), said(&output))
}

#[test]
fn a_compilation_that_is_killed_after_each_part_goes_on_from_there() {
    let dir = day();
    settle();
    let (expected, told) = finished(dir.path(), &[]);
    assert!(!told.contains("going on"), "{told}");
    forget(dir.path());
    let mut starts = 0;
    while killed(dir.path(), 1, &[]) {
        starts += 1;
        assert!(!compiled(dir.path()).exists() && beside(dir.path(), "state").exists());
    }
    assert!(starts >= 3, "{starts} parts");
    assert!(std::fs::read(compiled(dir.path())).unwrap() == expected);

    forget(dir.path());
    assert!(killed(dir.path(), 3, &[]));
    let (bytes, told) = finished(dir.path(), &[]);
    assert!(bytes == expected && told.contains("going on after them"), "{told}");
}

/// Changes rows of the track log, numbered from 0.
fn edit(dir: &Path, mut row: impl FnMut(usize, &str) -> Option<String>) {
    let path = dir.join("track_log.tsv");
    let text = std::fs::read_to_string(&path).unwrap();
    let (header, rows) = text.split_once('\n').unwrap();
    let rows: Vec<String> = rows.lines().enumerate().map(|(i, line)| row(i, line).unwrap_or(line.to_owned())).collect();
    std::fs::write(&path, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
}

/// Bad rows, a contract without a control row, rows that are a little late, and an id that repeats one of the first part.
#[test]
fn what_the_first_parts_found_is_known_in_the_last() {
    for repeats in [false, true] {
        let dir = day();
        let first = std::fs::read_to_string(dir.path().join("track_log.tsv")).unwrap();
        let fifth = first.lines().nth(5).unwrap().split_once('\t').unwrap().0.to_owned();
        edit(dir.path(), |i, line| match i {
            100 | 70_000 | 149_000 => Some(line.replacen("\t1\t2\t", "\t1\t77\t", 1)),
            200 | 90_000 => Some(line.replacen("9001,C", "9009,C", 1)),
            140_000 if repeats => Some(format!("{fifth}\t{}", line.split_once('\t').unwrap().1)),
            _ => None,
        });
        let path = dir.path().join("track_log.tsv");
        let mut lines: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
        [300, 40_000, 145_000].into_iter().for_each(|i| lines.swap(i, i + 3));
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        settle();
        let list = dir.path().join(".admix/quarantine.tsv");
        let (expected, _) = finished(dir.path(), &[]);
        let listed = std::fs::read(&list).unwrap();
        for parts in [1, 2, 3] {
            forget(dir.path());
            assert!(killed(dir.path(), parts, &[]));
            let (bytes, told) = finished(dir.path(), &[]);
            assert!(told.contains("going on after them"), "{told}");
            assert!(bytes == expected && std::fs::read(&list).unwrap() == listed, "{parts} parts, {repeats}");
        }
    }
}

#[test]
fn parts_of_other_inputs_and_damaged_parts_are_not_used() {
    let dir = day();
    settle();
    let (expected, _) = finished(dir.path(), &[]);
    let flip = |path: &Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let cut = |path: &Path| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    let damages: [&dyn Fn(); 7] = [
        &|| flip(&beside(dir.path(), "part"), 5_000),
        &|| cut(&beside(dir.path(), "part")),
        &|| flip(&beside(dir.path(), "state"), 70),
        &|| cut(&beside(dir.path(), "state")),
        &|| cut(&beside(dir.path(), "ids")),
        // Without a checksum two rows would have one id, and one of them would be lost.
        &|| std::fs::write(beside(dir.path(), "ids"), vec![0; 8 * REQUESTS as usize]).unwrap(),
        &|| std::fs::remove_file(beside(dir.path(), "ids")).unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        forget(dir.path());
        assert!(killed(dir.path(), 3, &[]));
        damage();
        let (bytes, told) = finished(dir.path(), &[]);
        assert!(bytes == expected && !told.contains("going on after them"), "damage {number}: {told}");
    }
    // --verify reads everything again.
    forget(dir.path());
    assert!(killed(dir.path(), 3, &[]));
    let (bytes, told) = finished(dir.path(), &["--verify"]);
    assert!(bytes == expected && !told.contains("going on after them"), "{told}");

    forget(dir.path());
    assert!(killed(dir.path(), 3, &[]));
    let control = dir.path().join("control.tsv");
    let text = std::fs::read_to_string(&control).unwrap();
    std::fs::write(&control, text.replace("\t300\t", "\t301\t")).unwrap();
    let (other, told) = finished(dir.path(), &[]);
    assert!(other != expected && !told.contains("going on after them"), "{told}");
    forget(dir.path());
    assert!(finished(dir.path(), &[]).0 == other);
}

/// Files that were changed a moment ago might change again within the same tick of the clock.
#[test]
fn tables_that_may_still_change_are_compiled_without_parts() {
    let dir = day();
    let track = std::fs::File::options().write(true).open(dir.path().join("track_log.tsv")).unwrap();
    track.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    assert!(!killed(dir.path(), 1, &[]), "a part was kept");
    assert!(compiled(dir.path()).exists());
}
