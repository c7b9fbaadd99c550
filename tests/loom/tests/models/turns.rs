//! The turns of learner and row thread at their slots: nobody works on a slot that is the other's, and nobody sleeps for ever.

use std::sync::Arc;

use admix_loom::plant::{Plant, Site};
use admix_loom::sync::Ordering;
use admix_loom::turns::{Party, Turn, Turns};
use loom::cell::UnsafeCell;
use loom::thread;

use super::support::{FOREVER, caught, explore, refuted};

const SLOTS: u64 = 2;

/// What goes wrong on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    InteractsBeforeLookedUp,
    UpdatesBeforeReady,
    AsksWithoutRoom,
}

/// A row as it was gathered, and its gradient.
#[derive(Default)]
struct Slot {
    row: u64,
    gradient: u64,
}

struct Scene {
    turns: Turns,
    slots: [UnsafeCell<Slot>; SLOTS as usize],
}

// SAFETY: loom checks that the turns order all accesses.
unsafe impl Sync for Scene {}
// SAFETY: as above.
unsafe impl Send for Scene {}

impl Scene {
    fn with<R>(&self, n: u64, act: impl FnOnce(&mut Slot) -> R) -> R {
        // SAFETY: loom refutes a race.
        self.slots[(n % SLOTS) as usize].with_mut(|slot| act(unsafe { &mut *slot }))
    }

    fn wait(&self, turn: Turn, n: u64) {
        assert!(self.turns.wait(turn, n, FOREVER, || ()), "the other party has ended");
    }
}

/// One batch is computed while the next one is asked for.
fn learn(scene: &Scene, batches: u64, bug: Bug) {
    let ask = |n: u64| {
        if n > batches {
            return;
        }
        if bug != Bug::AsksWithoutRoom {
            scene.wait(Turn::Updated, n.saturating_sub(SLOTS));
        }
        scene.with(n, |slot| *slot = Slot::default());
        scene.turns.pass(Turn::Asked);
    };
    ask(1);
    for n in 1..=batches {
        ask(n + 1);
        if bug != Bug::InteractsBeforeLookedUp {
            scene.wait(Turn::LookedUp, n);
        }
        scene.with(n, |slot| {
            assert_eq!(slot.row, n - 1, "the row of another update");
            slot.gradient = n;
        });
        scene.turns.pass(Turn::Ready);
    }
    scene.wait(Turn::Updated, batches);
    scene.turns.end(Party::Learner);
}

/// The table is one row, which counts its updates.
fn look_up(scene: &Scene, batches: u64, bug: Bug) {
    let mut row = 0;
    for n in 1..=batches {
        scene.wait(Turn::Asked, n);
        scene.with(n, |slot| slot.row = row);
        scene.turns.pass(Turn::LookedUp);
        if bug != Bug::UpdatesBeforeReady {
            scene.wait(Turn::Ready, n);
        }
        scene.with(n, |slot| assert_eq!(slot.gradient, n, "the gradient of another update"));
        row = n;
        scene.turns.pass(Turn::Updated);
    }
    scene.turns.end(Party::Rows);
}

fn scene(batches: u64, bug: Bug) {
    let slots = [(); SLOTS as usize].map(|()| UnsafeCell::new(Slot::default()));
    let scene = Arc::new(Scene { turns: Turns::default(), slots });
    let of_rows = scene.clone();
    let rows = thread::spawn(move || look_up(&of_rows, batches, bug));
    learn(&scene, batches, bug);
    rows.join().unwrap();
}

fn in_turn() {
    scene(2, Bug::None);
}

/// The third batch takes the slot of the first.
fn a_slot_used_twice() {
    scene(3, Bug::None);
}

#[test]
fn a_slot_has_one_user_at_a_time_and_nobody_sleeps_for_ever() {
    explore(2, in_turn);
    explore(1, a_slot_used_twice);
}

const DAMAGE: &[&str] = &["Causality violation", "of another update", "oncurrent"];

#[test]
fn who_does_not_wait_is_found() {
    refuted(2, || scene(3, Bug::InteractsBeforeLookedUp), DAMAGE);
    refuted(2, || scene(3, Bug::UpdatesBeforeReady), DAMAGE);
    refuted(2, || scene(3, Bug::AsksWithoutRoom), DAMAGE);
}

#[test]
fn planted_bugs_are_found() {
    let site = |code| Site::find("turns.rs", code);
    let pass = site("counter.store(next, Ordering::Release)");
    for bug in [
        Plant::Weaken(vec![pass], Ordering::Relaxed),
        Plant::Weaken(vec![site("self.counters[turn as usize].load(Ordering::Acquire)")], Ordering::Relaxed),
    ] {
        caught(bug, 2, in_turn, DAMAGE);
    }
    caught(Plant::Skip(pass), 2, in_turn, &["deadlock"]);
}
