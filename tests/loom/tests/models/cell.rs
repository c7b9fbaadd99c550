//! The parameter cell: readers get whole publications, in order, whatever the writer does meanwhile.

use std::sync::Arc;

use admix_loom::cell::ParamCell;
use admix_loom::plant::{Plant, Site};
use admix_loom::sync::Ordering;
use admix_loom::wait::Doorbell;
use loom::thread;

use super::support::{caught, explore};

const WORDS: usize = 2;

fn content(version: u64) -> [u32; WORDS] {
    [version as u32 * 7, version as u32 * 11]
}

fn publish(cell: &ParamCell, versions: impl IntoIterator<Item = u64>, bell: &Doorbell) {
    versions.into_iter().for_each(|version| cell.publish(version, &content(version), bell).unwrap());
}

/// A cell whose both slots were used.
fn cell() -> (Arc<ParamCell>, Doorbell) {
    let (cell, bell) = (ParamCell::create("cell", WORDS).unwrap(), Doorbell::default());
    publish(&cell, 1..=2, &bell);
    (Arc::new(cell), bell)
}

/// Reads `times`; the last version.
fn read(cell: &ParamCell, times: usize) -> u64 {
    let (mut last, mut out) = (0, Vec::new());
    for _ in 0..times {
        let version = cell.read(&mut out);
        assert_eq!(cell.torn(), 0, "the protocol let a torn copy through");
        let version = version.expect("there is always a publication");
        assert_eq!(out, content(version), "a mixture");
        assert!(version >= last, "{version} after {last}");
        last = version;
    }
    last
}

/// `reader`s beside a writer of versions 3 to `last`.
fn check(readers: &[fn(&ParamCell)], last: u64) {
    let (cell, bell) = cell();
    let start = |reader: &fn(&ParamCell)| {
        let (cell, reader) = (cell.clone(), *reader);
        thread::spawn(move || reader(&cell))
    };
    let readers: Vec<_> = readers.iter().map(start).collect();
    publish(&cell, 3..=last, &bell);
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!((cell.version(), read(&cell, 1)), (last, last));
}

fn read_once(cell: &ParamCell) {
    read(cell, 1);
}

fn read_twice(cell: &ParamCell) {
    read(cell, 2);
}

fn read_what_is_announced(cell: &ParamCell) {
    let announced = cell.version();
    let version = read(cell, 1);
    assert!(announced >= 2 && version >= announced, "{version} after {announced}");
}

fn one_read_and_three_publications() {
    check(&[read_once], 5);
}

fn two_reads_and_two_publications() {
    check(&[read_twice], 4);
}

fn two_readers_and_two_publications() {
    check(&[read_once, read_once], 4);
}

fn a_version_and_two_publications() {
    check(&[read_what_is_announced], 4);
}

#[test]
fn a_reader_gets_a_whole_publication() {
    explore(2, one_read_and_three_publications);
}

#[test]
fn versions_only_grow() {
    explore(2, two_reads_and_two_publications);
    explore(2, a_version_and_two_publications);
}

#[test]
fn readers_do_not_disturb_each_other() {
    // Three threads: one preemption less than elsewhere.
    explore(1, two_readers_and_two_publications);
}

#[test]
fn planted_bugs_are_found() {
    let site = |code| Site::find("cell.rs", code);
    let announce = site("head.published.store(next, Ordering::Release)");
    let begun = site("slot.begun.store(next, Ordering::Release)");
    for bug in [
        // The flag is early: the words follow it.
        Plant::Weaken(vec![announce], Ordering::Relaxed),
        Plant::Late(site("shared.store(*word, Ordering::Relaxed)"), announce),
        // The reader's second look comes before its copy, or the writer's warning too late for it.
        Plant::Weaken(
            vec![site("keeps the check after the copy.\n        fence(Ordering::Acquire)")],
            Ordering::Relaxed,
        ),
        Plant::Weaken(vec![site("fence(Ordering::Release)")], Ordering::Relaxed),
        Plant::Late(begun, site("slot.checksum.store(checksum(version, words), Ordering::Relaxed)")),
        // The buffer that is being read is the one written next.
        Plant::OneBuffer,
    ] {
        caught(bug, 2, one_read_and_three_publications, &["a mixture", "a torn copy"]);
    }
    // A reader that sees itself overtaken, but not by what, tries the same publication again until it gives up.
    caught(
        Plant::Weaken(vec![begun], Ordering::Relaxed),
        2,
        one_read_and_three_publications,
        &["always a publication"],
    );
}
