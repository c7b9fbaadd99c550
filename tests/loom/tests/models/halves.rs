//! The halves: the checkpointer gets whole snapshots, each once, and nothing changes under it.

use std::sync::Arc;

use admix_loom::halves::{HalfShape, Halves, Part};
use admix_loom::plant::{Plant, Site};
use admix_loom::sync::Ordering;
use loom::thread;

use super::support::{FOREVER, caught, explore, refuted};

const LEN: usize = 4;

fn halves() -> Arc<Halves> {
    Arc::new(Halves::create("halves", HalfShape { dense: LEN, sparse: LEN }).unwrap())
}

fn content(part: Part, update: u64) -> [u8; LEN] {
    [update as u8 * 2 + u8::from(part == Part::Sparse); LEN]
}

fn put(halves: &Halves, part: Part, snapshot: u64, update: u64) {
    halves.write(part, snapshot, update, [&content(part, update)[..]]).unwrap();
}

/// Puts `parts` of snapshots 1 to `last` there, each as soon as it may; snapshot n is of update n + 10.
fn own(halves: &Halves, parts: &[Part], last: u64) {
    for snapshot in 1..=last {
        loop {
            let seen = halves.news().value();
            if halves.next() == Some(snapshot) {
                break;
            }
            halves.news().wait(seen, FOREVER);
        }
        parts.iter().for_each(|part| put(halves, *part, snapshot, snapshot + 10));
    }
}

/// Checks and commits the pending snapshot, if there is one; the update that it is of.
fn check(halves: &Halves) -> Option<u64> {
    let complete = halves.pending().expect("an intact snapshot")?;
    let expected = [Part::Dense, Part::Sparse].map(|part| content(part, complete.update));
    assert_eq!([complete.dense, complete.sparse], [&expected[0][..], &expected[1][..]], "a mixture");
    assert_eq!(complete.snapshot, halves.committed() + 1, "a snapshot was left out");
    halves.commit(complete.snapshot);
    Some(complete.update)
}

/// Commits snapshots up to `last` and returns of which updates they were.
fn commit(halves: &Halves, last: u64) -> Vec<u64> {
    let mut updates = Vec::new();
    while halves.committed() < last {
        let seen = halves.news().value();
        match check(halves) {
            Some(update) => updates.push(update),
            None => _ = halves.news().wait(seen, FOREVER),
        }
    }
    updates
}

fn one_owner_of_both_parts() {
    let halves = halves();
    let learning = halves.clone();
    let learner = thread::spawn(move || own(&learning, &[Part::Dense, Part::Sparse], 3));
    assert_eq!(commit(&halves, 3), [11, 12, 13]);
    learner.join().unwrap();
}

fn an_owner_for_each_part() {
    let halves = halves();
    let owners = [Part::Dense, Part::Sparse].map(|part| {
        let halves = halves.clone();
        thread::spawn(move || own(&halves, &[part], 1))
    });
    assert_eq!(commit(&halves, 1), [11]);
    for owner in owners {
        owner.join().unwrap();
    }
}

/// The learner goes on when it may not begin a snapshot, and the checkpointer when there is none.
fn nobody_waits() {
    let halves = halves();
    put(&halves, Part::Dense, 1, 11);
    put(&halves, Part::Sparse, 1, 11);
    let learning = halves.clone();
    let learner = thread::spawn(move || {
        for update in 12..14 {
            if let Some(snapshot) = learning.next() {
                put(&learning, Part::Dense, snapshot, update);
                put(&learning, Part::Sparse, snapshot, update);
            }
        }
    });
    for _ in 0..2 {
        check(&halves);
    }
    learner.join().unwrap();
    check(&halves);
    assert_eq!(halves.committed(), halves.complete());
}

/// The learner is killed between the parts, and its successor begins the snapshot anew from another state.
fn begun_anew(order: [Part; 2]) {
    let halves = halves();
    let learning = halves.clone();
    let learner = thread::spawn(move || {
        put(&learning, Part::Dense, 1, 5);
        order.into_iter().for_each(|part| put(&learning, part, 1, 6));
    });
    assert_eq!(commit(&halves, 1), [6]);
    learner.join().unwrap();
}

fn begun_anew_in_the_same_order() {
    begun_anew([Part::Dense, Part::Sparse]);
}

fn begun_anew_in_another_order() {
    begun_anew([Part::Sparse, Part::Dense]);
}

#[test]
fn every_snapshot_arrives_whole_and_once() {
    explore(2, one_owner_of_both_parts);
    explore(2, an_owner_for_each_part);
    explore(2, nobody_waits);
    explore(2, begun_anew_in_the_same_order);
}

const DAMAGE: &[&str] = &["Causality violation", "an intact snapshot", "a mixture"];

#[test]
fn the_order_of_the_parts_matters_to_a_successor() {
    refuted(2, begun_anew_in_another_order, &["snapshot 1 may not be begun"]);
}

#[test]
fn planted_bugs_are_found() {
    let site = |code| Site::find("halves.rs", code);
    let ready = site("self.halves.ready(self.part).store(self.snapshot, Ordering::Release)");
    for bug in [
        // The flag is early.
        Plant::Weaken(vec![ready], Ordering::Relaxed),
        Plant::Weaken(vec![site("head.dense_ready.0.load(Ordering::Acquire)")], Ordering::Relaxed),
        Plant::Late(site("head.update.store(self.update, Ordering::Relaxed)"), ready),
        // The half is overwritten while it is read.
        Plant::Weaken(vec![site("head.committed.0.fetch_max(snapshot, Ordering::Release)")], Ordering::Relaxed),
        Plant::Weaken(vec![site("self.head().committed.0.load(Ordering::Acquire)")], Ordering::Relaxed),
        Plant::OneBuffer,
    ] {
        caught(bug, 2, nobody_waits, DAMAGE);
    }
}
