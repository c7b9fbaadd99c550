//! The exchange: every rank gets the same mean and all bytes, and nothing is overwritten while somebody reads it.

use std::sync::Arc;

use admix_loom::exchange::{Broken, Exchange, ExchangeShape, Given, Remote, Seat};
use admix_loom::plant::{Plant, Site};
use admix_loom::sync::Ordering;
use loom::thread;

use super::support::{FOREVER, caught, explore};

const WORDS: usize = 2;

fn exchange() -> (Arc<Exchange>, [Seat; 2]) {
    let exchange = Arc::new(Exchange::create("exchange", ExchangeShape::of_one_machine(2, WORDS, 4)).unwrap());
    let seats = [0, 1].map(|rank| exchange.join(rank, FOREVER).unwrap());
    // The main thread makes loom's atomics before any other uses them.
    assert_eq!(exchange.published(0), 0);
    (exchange, seats)
}

fn take_part(mut seat: Seat, rounds: u8) {
    let rank = seat.rank() as u8;
    for round in 0..rounds {
        let mut values = [f32::from(round * 10 + rank); WORDS];
        let mut read = Vec::new();
        seat.exchange(&mut values, &[round * 2 + rank], &mut |_, bytes| read.extend_from_slice(bytes)).unwrap();
        assert_eq!(values, [f32::from(round * 10) + 0.5; WORDS], "a wrong mean");
        assert_eq!(read, [round * 2, round * 2 + 1], "wrong bytes");
    }
}

fn two_rounds() {
    let (_exchange, [first, second]) = exchange();
    let other = thread::spawn(move || take_part(second, 2));
    take_part(first, 2);
    other.join().unwrap();
}

/// Bytes alone: the ranks do not wait for each other at the end of a round.
fn gathers() {
    let (_exchange, [mut first, mut second]) = exchange();
    let gather = |seat: &mut Seat| {
        for round in 0..2u8 {
            let mut read = Vec::new();
            let mine = [round * 2 + seat.rank() as u8];
            seat.exchange(&mut [], &mine, &mut |_, bytes| read.extend_from_slice(bytes)).unwrap();
            assert_eq!(read, [round * 2, round * 2 + 1], "wrong bytes");
        }
    };
    let other = thread::spawn(move || gather(&mut second));
    gather(&mut first);
    other.join().unwrap();
}

/// Rank 0 of this machine, and who brings what rank 1 of another one gave.
fn another_machine() {
    let shape = ExchangeShape { ranks: 2, first: 0, local: 1, groups: 1, words: WORDS, bytes: 4 };
    let exchange = Arc::new(Exchange::create("exchange", shape).unwrap());
    let seat = exchange.join(0, FOREVER).unwrap();
    let mut remote = Remote::new(exchange);
    let carrier = thread::spawn(move || {
        for round in 0..2u8 {
            let mut given = Vec::new();
            assert!(remote.collect(|| false, |of| given.extend_from_slice(of.bytes)).unwrap());
            assert_eq!(given, [round * 2], "wrong bytes");
            let floats = [f32::from(round * 10 + 1); WORDS];
            remote.deliver(1, Given { floats: bytemuck::cast_slice(&floats), bytes: &[round * 2 + 1] }).unwrap();
            remote.proceed();
        }
    });
    take_part(seat, 2);
    carrier.join().unwrap();
}

/// Rank 0 writes what the other one reads behind the publication.
fn publication() {
    let (exchange, [_, second]) = exchange();
    let written = Written(Arc::new(loom::cell::UnsafeCell::new(0)));
    let shared = Written(written.0.clone());
    let publishing = exchange.clone();
    let writer = thread::spawn(move || {
        let shared = shared;
        // SAFETY: the other rank reads behind the publication; loom checks it.
        shared.0.with_mut(|written| unsafe { *written = 7 });
        publishing.publish(0, 1);
    });
    second.wait_published(1).unwrap();
    // SAFETY: as above.
    assert_eq!(written.0.with(|written| unsafe { *written }), 7);
    writer.join().unwrap();
}

/// Rank 0 writes what the other one wants, and then more, which the other one does not read.
fn wanted() {
    let (exchange, [_, second]) = exchange();
    let [written, rest] = [0, 1].map(|_| Written(Arc::new(loom::cell::UnsafeCell::new(0))));
    let (shared, publishing) = (Written(written.0.clone()), exchange.clone());
    let writer = thread::spawn(move || {
        let (shared, rest) = (shared, rest);
        // SAFETY: the other rank reads behind the publication of what it wants; loom checks it.
        shared.0.with_mut(|written| unsafe { *written = 7 });
        publishing.publish_wanted(0, 1);
        // SAFETY: nobody else has it.
        rest.0.with_mut(|rest| unsafe { *rest = 7 });
        publishing.publish(0, 1);
    });
    second.wait_wanted(1).unwrap();
    // SAFETY: as above.
    assert_eq!(written.0.with(|written| unsafe { *written }), 7);
    writer.join().unwrap();
}

struct Written(Arc<loom::cell::UnsafeCell<u32>>);

// SAFETY: what the model is about.
unsafe impl Send for Written {}

/// Rank 0 changes rows that the other one reads whenever it likes.
fn writing() {
    let (exchange, [_, second]) = exchange();
    let rows = Written(Arc::new(loom::cell::UnsafeCell::new(0)));
    let (shared, publishing) = (Written(rows.0.clone()), exchange.clone());
    let writer = thread::spawn(move || {
        let shared = shared;
        publishing.begin_write(0, FOREVER).unwrap();
        // SAFETY: the other rank does not read meanwhile; loom checks it.
        shared.0.with_mut(|written| unsafe { *written = 1 });
        publishing.publish(0, 1);
    });
    let mut read = 0;
    // SAFETY: as above.
    let generation = second.read_shared(1, || read = rows.0.with(|written| unsafe { *written })).unwrap();
    assert_eq!(u64::from(read), generation, "wrong rows");
    writer.join().unwrap();
}

/// Main reaps a rank that never took part.
fn a_dead_rank() {
    let (exchange, [mut first, _dead]) = exchange();
    let main = thread::spawn(move || exchange.died(1));
    let broken = first.exchange(&mut [1.0; WORDS], &[], &mut |_, _| {});
    assert_eq!(broken, Err(Broken::Died { rank: 1 }));
    main.join().unwrap();
}

#[test]
fn all_ranks_get_the_same() {
    explore(1, two_rounds);
    explore(2, gathers);
    explore(1, another_machine);
    explore(2, publication);
    explore(2, wanted);
    explore(2, writing);
}

#[test]
fn nobody_waits_for_the_dead() {
    explore(3, a_dead_rank);
}

#[test]
fn planted_bugs_are_found() {
    const DAMAGE: &[&str] = &["Causality violation", "a wrong mean", "wrong bytes", "Differs"];
    let site = |code| Site::find("exchange.rs", code);
    let seat = |code| Site::find("exchange/seat.rs", code);
    let step = seat("line.step.store(step, Ordering::Release)");
    let seen = seat("line.step.load(Ordering::Acquire)");
    // The bell orders as well, as far as nobody saw the step before it was rung.
    for bug in [Plant::Weaken(vec![step], Ordering::Relaxed), Plant::Weaken(vec![seen], Ordering::Relaxed)] {
        caught(bug, 2, two_rounds, DAMAGE);
    }
    let remote = |code| Site::find("exchange/remote.rs", code);
    let delivered = remote("line.step.store(3 * self.done, Ordering::Release)");
    let collected = remote("line.step.load(Ordering::Acquire)");
    for bug in [Plant::Weaken(vec![delivered], Ordering::Relaxed), Plant::Weaken(vec![collected], Ordering::Relaxed)] {
        caught(bug, 2, another_machine, DAMAGE);
    }
    let published = site("published.store(2 * generation, Ordering::Release)");
    caught(Plant::Weaken(vec![published], Ordering::Relaxed), 2, publication, DAMAGE);
    let published = site("published.store(2 * generation - 1, Ordering::Release)");
    caught(Plant::Weaken(vec![published], Ordering::Relaxed), 2, wanted, DAMAGE);
    const AT_ONCE: &[&str] = &["Causality violation", "wrong rows"];
    for fence in [site("fence(Ordering::SeqCst);"), seat("fence(Ordering::SeqCst);")] {
        caught(Plant::Weaken(vec![fence], Ordering::AcqRel), 2, writing, AT_ONCE);
    }
    for end in [site("read.load(Ordering::Acquire)"), seat("read.store(2 * iteration, Ordering::Release)")] {
        caught(Plant::Weaken(vec![end], Ordering::Relaxed), 2, writing, AT_ONCE);
    }
    // Nobody is told that rows are written, or read.
    for said in [site("word.store(published | 1, Ordering::Relaxed)"), seat("word.store(read | 1, Ordering::Relaxed)")] {
        caught(Plant::Skip(said), 2, writing, AT_ONCE);
    }
    caught(Plant::OneBuffer, 2, two_rounds, DAMAGE);
    let poison = site("compare_exchange(0, cause.encode(), Ordering::Release, Ordering::Relaxed)");
    caught(Plant::Skip(poison), 2, a_dead_rank, &["deadlock", "Deadlock"]);
}
