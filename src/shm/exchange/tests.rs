use std::thread;

use std::sync::Arc;

use super::super::crash::{abandon, kill_after};
use super::super::segment::tests::unique_name;
use super::*;

const PATIENT: Duration = Duration::from_secs(300);

fn exchange(ranks: usize, words: usize, bytes: usize) -> Arc<Exchange> {
    Arc::new(Exchange::create(&unique_name("exchange"), ExchangeShape::of_one_machine(ranks, words, bytes)).unwrap())
}

/// What a rank gives: floats whose sum depends on the order of its terms, and bytes of its own length.
fn floats(rank: usize, round: usize, words: usize) -> Vec<f32> {
    (0..words).map(|i| ((i * 7 + rank * 13 + round) as f32).sin() * 10f32.powi((rank * 3 + i % 5) as i32)).collect()
}

fn bytes(rank: usize, round: usize) -> Vec<u8> {
    vec![(rank * 16 + round) as u8; (rank * 5 + round * 3) % 40]
}

fn reference(ranks: usize, round: usize, words: usize) -> Vec<f32> {
    let all: Vec<Vec<f32>> = (0..ranks).map(|rank| floats(rank, round, words)).collect();
    let sum = |i: usize| all[1..].iter().fold(all[0][i], |sum, floats| sum + floats[i]);
    (0..words).map(|i| sum(i) / ranks as f32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_rank_gets_the_same_mean_in_the_order_of_the_ranks_and_all_bytes() {
    for (ranks, words) in [(1, 5), (2, 1), (2, 4099), (3, 2), (3, 5000), (4, 0), (5, 1024)] {
        let exchange = exchange(ranks, words, 64);
        thread::scope(|s| {
            for rank in 0..ranks {
                let mut seat = exchange.join(rank, PATIENT).unwrap();
                s.spawn(move || {
                    for round in 0..20 {
                        let mut values = floats(rank, round, words);
                        let mut read = Vec::new();
                        let mine = bytes(rank, round);
                        seat.exchange(&mut values, &mine, &mut |from, bytes| read.push((from, bytes.to_vec())))
                            .unwrap();
                        assert_eq!(
                            bits(&values),
                            bits(&reference(ranks, round, words)),
                            "{ranks} ranks, {words} words"
                        );
                        let expected: Vec<_> = (0..ranks).map(|from| (from, bytes(from, round))).collect();
                        assert_eq!(read, expected);
                    }
                });
            }
        });
    }
}

#[test]
fn a_rank_that_stops_at_any_store_is_an_error_in_all_others() {
    const RANKS: usize = 3;
    for step in 0.. {
        let exchange = exchange(RANKS, 8, 8);
        let over = thread::scope(|s| {
            let victim = s.spawn(|| {
                let mut seat = exchange.join(1, PATIENT).unwrap();
                let done = kill_after(step, || {
                    (0..2).for_each(|round| {
                        seat.exchange(&mut floats(1, round, 8), &[1], &mut |_, _| {}).unwrap();
                    });
                });
                abandon(seat);
                // Main reaps it.
                exchange.died(1);
                done.is_some()
            });
            let others = [0, 2].map(|rank| {
                let mut seat = exchange.join(rank, PATIENT).unwrap();
                s.spawn(move || {
                    for round in 0..3 {
                        let mut values = floats(rank, round, 8);
                        match seat.exchange(&mut values, &[rank as u8], &mut |_, _| {}) {
                            Ok(()) => assert_eq!(bits(&values), bits(&reference(RANKS, round, 8))),
                            Err(broken) => return (round, broken),
                        }
                    }
                    panic!("three exchanges of a rank that makes two");
                })
            });
            for other in others {
                let (_, broken) = other.join().unwrap();
                assert_eq!(broken, Broken::Died { rank: 1 }, "step {step}");
            }
            victim.join().unwrap()
        });
        if over {
            assert!(step > 10, "every store was a step");
            break;
        }
    }
}

#[test]
fn who_does_not_come_in_time_is_named_and_the_exchange_stays_broken() {
    let exchange = exchange(2, 8, 8);
    let mut seat = exchange.join(0, Duration::from_millis(20)).unwrap();
    let call = |seat: &mut Seat| seat.exchange(&mut [1.0], &[], &mut |_, _| {});
    assert_eq!(call(&mut seat), Err(Broken::Late { rank: 1 }));
    exchange.died(0);
    assert_eq!(call(&mut seat), Err(Broken::Late { rank: 1 }), "the first cause stays");
    let mut late = exchange.join(1, PATIENT).unwrap();
    assert_eq!(call(&mut late), Err(Broken::Late { rank: 1 }));
}

#[test]
fn calls_that_differ_and_calls_that_do_not_fit_are_refused() {
    let exchange = exchange(2, 8, 8);
    thread::scope(|s| {
        let calls = [3, 4].map(|words| {
            let mut seat = exchange.join(words - 3, PATIENT).unwrap();
            s.spawn(move || seat.exchange(&mut vec![1.0; words], &[], &mut |_, _| {}))
        });
        for call in calls {
            assert_eq!(call.join().unwrap(), Err(Broken::Differs { rank: 1 }));
        }
    });
    let exchange = self::exchange(2, 8, 8);
    let mut seat = exchange.join(0, PATIENT).unwrap();
    assert!(matches!(seat.exchange(&mut [0.0; 9], &[], &mut |_, _| {}), Err(Broken::TooLong { words: 9, .. })));
    assert!(matches!(seat.exchange(&mut [], &[0; 9], &mut |_, _| {}), Err(Broken::TooLong { bytes: 9, .. })));
    assert_eq!(exchange.broken(), None, "the others may go on with a call that fits");
}

#[test]
fn a_seat_has_one_process() {
    let exchange = exchange(2, 8, 8);
    let _seat = exchange.join(1, PATIENT).unwrap();
    assert!(matches!(exchange.join(1, PATIENT), Err(ShmError::RoleTaken { .. })));
}

#[test]
fn nobody_goes_on_before_rank_0_has_published() {
    let exchange = exchange(2, 8, 8);
    let second = exchange.join(1, PATIENT).unwrap();
    let written = std::sync::atomic::AtomicU64::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            for generation in 1..=500 {
                written.store(generation, Ordering::Relaxed);
                exchange.publish(0, generation);
            }
        });
        for generation in 1..=500 {
            second.wait_published(generation).unwrap();
            assert!(written.load(Ordering::Relaxed) >= generation);
        }
    });
    exchange.died(0);
    assert_eq!(second.wait_published(501), Err(Broken::Died { rank: 0 }));
    assert_eq!(second.wait_published(500), Ok(()), "what is published stays");
}

/// What a rank wants is written before the rest, and no later.
#[test]
fn whoever_has_told_what_it_wants_goes_on_before_all_is_written() {
    let exchange = exchange(2, 8, 8);
    let second = exchange.join(1, PATIENT).unwrap();
    second.wait_wanted(0).unwrap();
    let [wanted, rest] = [0, 1].map(|_| std::sync::atomic::AtomicU64::new(0));
    thread::scope(|s| {
        s.spawn(|| {
            for generation in 1..=500 {
                wanted.store(generation, Ordering::Relaxed);
                exchange.publish_wanted(0, generation);
                assert_eq!(exchange.published(0), generation - 1);
                rest.store(generation, Ordering::Relaxed);
                exchange.publish(0, generation);
            }
        });
        for generation in 1..=500 {
            second.wait_wanted(generation).unwrap();
            assert!(wanted.load(Ordering::Relaxed) >= generation);
            if generation % 3 == 0 {
                second.wait_published(generation).unwrap();
                assert!(rest.load(Ordering::Relaxed) >= generation);
            }
        }
    });
    exchange.publish_wanted(0, 501);
    exchange.died(0);
    assert_eq!(second.wait_wanted(501), Ok(()), "the rest is not waited for");
    assert_eq!(second.wait_published(501), Err(Broken::Died { rank: 0 }));
}

#[test]
fn each_group_waits_for_its_own_first_rank() {
    let shape = ExchangeShape { groups: 2, ..ExchangeShape::of_one_machine(6, 8, 8) };
    let exchange = Arc::new(Exchange::create(&unique_name("exchange"), shape).unwrap());
    let seats: Vec<Seat> = (0..6).map(|rank| exchange.join(rank, PATIENT).unwrap()).collect();
    assert_eq!(seats.iter().map(Seat::group).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
    assert_eq!(seats.iter().map(Seat::publishes).collect::<Vec<_>>(), [true, false, false, true, false, false]);
    exchange.publish(1, 3);
    assert_eq!((exchange.published(0), exchange.published(1)), (0, 3));
    assert_eq!((seats[0].read_shared(1, || {}), seats[5].read_shared(4, || {})), (Ok(0), Ok(3)));
    seats[4].wait_published(3).unwrap();
    [3, 2, 5].into_iter().zip(&seats).for_each(|(iteration, seat)| seat.has_read(iteration));
    let is_waited_for = |group, iteration| {
        let asked = std::cell::Cell::new(false);
        exchange
            .wait_read(group, iteration, PATIENT, || {
                asked.set(true);
                true
            })
            .unwrap();
        asked.get()
    };
    assert_eq!([2, 3].map(|iteration| is_waited_for(0, iteration)), [false, true], "the slowest rank counts");
    assert_eq!([0, 1].map(|iteration| is_waited_for(1, iteration)), [false, true]);
    exchange.died(3);
    assert_eq!(seats[4].wait_published(4), Err(Broken::Died { rank: 3 }));
    assert_eq!(seats[1].wait_published(1), Err(Broken::Died { rank: 3 }), "they exchange gradients");
}

#[test]
fn nobody_reads_while_rows_are_written() {
    let exchange = exchange(3, 8, 8);
    let words: [AtomicU64; 64] = std::array::from_fn(|_| AtomicU64::default());
    thread::scope(|s| {
        s.spawn(|| {
            for generation in 1..=20_000 {
                exchange.begin_write(0, PATIENT).unwrap();
                words.iter().for_each(|word| word.store(generation, Ordering::Relaxed));
                exchange.publish(0, generation);
            }
        });
        for rank in 1..3 {
            let reader = exchange.join(rank, PATIENT).unwrap();
            let words = &words;
            s.spawn(move || {
                for iteration in 1.. {
                    let mut seen = [0; 64];
                    let read =
                        || words.iter().zip(&mut seen).for_each(|(word, seen)| *seen = word.load(Ordering::Relaxed));
                    let generation = reader.read_shared(iteration, read).unwrap();
                    assert_eq!(seen, [generation; 64]);
                    if generation == 20_000 {
                        break;
                    }
                }
            });
        }
    });
}

#[test]
fn whoever_writes_waits_for_those_who_read_and_no_longer() {
    let exchange = exchange(2, 8, 8);
    let [first, reader] = [0, 1].map(|rank| exchange.join(rank, PATIENT).unwrap());
    let soon = Duration::from_millis(20);
    let writing = AtomicU64::default();
    let write = || {
        exchange.begin_write(0, PATIENT).unwrap();
        writing.store(1, Ordering::Relaxed);
        exchange.publish(0, 1);
    };
    first.has_read(9);
    thread::scope(|s| {
        let read = || {
            s.spawn(write);
            thread::sleep(Duration::from_millis(50));
            assert_eq!(writing.load(Ordering::Relaxed), 0, "somebody reads");
        };
        assert_eq!(reader.read_shared(1, read), Ok(0));
    });
    exchange.wait_read(0, 1, PATIENT, || false).unwrap();
    // A rank that panics while it reads does not read any more, and has not read.
    let panics = std::panic::AssertUnwindSafe(|| reader.read_shared(2, || panic!("while it reads")));
    assert!(std::panic::catch_unwind(panics).is_err());
    exchange.begin_write(0, soon).unwrap();
    exchange.publish(0, 2);
    assert_eq!(exchange.wait_read(0, 2, soon, || false), Err(Broken::Late { rank: 1 }));
}

#[test]
fn a_rank_that_hangs_or_dies_while_it_reads_breaks_the_exchange() {
    let soon = Duration::from_millis(20);
    for dies in [false, true] {
        let exchange = exchange(3, 8, 8);
        let reader = exchange.join(1, PATIENT).unwrap();
        let read = || {
            let write = || exchange.begin_write(0, if dies { PATIENT } else { soon });
            let expected = if dies { Broken::Died { rank: 1 } } else { Broken::Late { rank: 1 } };
            thread::scope(|s| {
                let writer = s.spawn(write);
                if dies {
                    exchange.died(1);
                }
                assert_eq!(writer.join().unwrap(), Err(expected));
            });
        };
        reader.read_shared(1, read).unwrap();
    }
}

/// The exchanges of `nodes` machines with `local` ranks each.
fn machines(nodes: usize, local: usize, words: usize) -> Vec<Arc<Exchange>> {
    let shape = |node| ExchangeShape { ranks: nodes * local, first: node * local, local, groups: 1, words, bytes: 64 };
    (0..nodes).map(|node| Arc::new(Exchange::create(&unique_name("machine"), shape(node)).unwrap())).collect()
}

/// Carries what the ranks of all machines give, as MPI does; what `change` makes of it, when it is given.
fn carry(machines: &[Arc<Exchange>], rounds: usize, mut change: impl FnMut(usize, &mut Vec<u8>)) {
    let mut remotes: Vec<Remote> = machines.iter().map(|exchange| Remote::new(exchange.clone())).collect();
    for round in 0..rounds {
        let mut given = Vec::new();
        for remote in &remotes {
            let take = |of: Given<'_>| given.push((of.floats.to_vec(), of.bytes.to_vec()));
            assert!(remote.collect(|| false, take).unwrap());
        }
        for (_, bytes) in &mut given {
            change(round, bytes);
        }
        for remote in &mut remotes {
            let shape = remote.exchange().shape();
            for rank in (0..shape.ranks).filter(|rank| !shape.here().contains(rank)) {
                let (floats, bytes) = &given[rank];
                remote.deliver(rank, Given { floats, bytes }).unwrap();
            }
            remote.proceed();
        }
    }
}

#[test]
fn ranks_of_several_machines_get_the_bytes_of_one_machine() {
    const ROUNDS: usize = 20;
    for (nodes, local, words) in [(2, 1, 5), (2, 2, 4099), (3, 1, 7), (2, 3, 0), (4, 2, 1024)] {
        let (machines, ranks) = (machines(nodes, local, words), nodes * local);
        thread::scope(|s| {
            for rank in 0..ranks {
                let mut seat = machines[rank / local].join(rank, PATIENT).unwrap();
                s.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut values = floats(rank, round, words);
                        let mut read = Vec::new();
                        let mine = bytes(rank, round);
                        seat.exchange(&mut values, &mine, &mut |from, bytes| read.push((from, bytes.to_vec())))
                            .unwrap();
                        assert_eq!(bits(&values), bits(&reference(ranks, round, words)), "{nodes} x {local} ranks");
                        let expected: Vec<_> = (0..ranks).map(|from| (from, bytes(from, round))).collect();
                        assert_eq!(read, expected);
                    }
                });
            }
            s.spawn(|| carry(&machines, ROUNDS, |_, _| {}));
        });
    }
}

#[test]
fn a_machine_that_is_out_of_reach_or_calls_for_something_else_is_an_error() {
    // Nobody carries.
    let alone = machines(2, 2, 8);
    let [mut first, mut second] = [0, 1].map(|rank| alone[0].join(rank, Duration::from_millis(20)).unwrap());
    thread::scope(|s| {
        s.spawn(|| second.exchange(&mut [1.0], &[], &mut |_, _| {}).unwrap_err());
        let broken = first.exchange(&mut [1.0], &[], &mut |_, _| {}).unwrap_err();
        assert!(matches!(broken, Broken::Late { .. }), "{broken}");
    });
    // The carrier says so.
    let lost = machines(2, 1, 8);
    let mut seat = lost[1].join(1, PATIENT).unwrap();
    Remote::new(lost[1].clone()).lost(0);
    assert_eq!(seat.exchange(&mut [1.0], &[], &mut |_, _| {}), Err(Broken::Died { rank: 0 }));
    // Another number of floats.
    let differing = machines(2, 1, 8);
    thread::scope(|s| {
        let calls = [0, 1].map(|rank| {
            let mut seat = differing[rank].join(rank, PATIENT).unwrap();
            s.spawn(move || seat.exchange(&mut vec![1.0; rank + 3], &[], &mut |_, _| {}))
        });
        s.spawn(|| carry(&differing, 1, |_, _| {}));
        for call in calls {
            assert_eq!(call.join().unwrap(), Err(Broken::Differs { rank: 1 }));
        }
    });
    // More than there is room for, and an end before anything is given.
    let remote = Remote::new(machines(2, 1, 8)[0].clone());
    let long = remote.deliver(1, Given { floats: &[0; 36], bytes: &[] });
    assert!(matches!(long, Err(Broken::TooLong { words: 9, .. })));
    assert_eq!(remote.collect(|| true, |_| {}), Ok(false));
}

#[test]
fn bytes_for_this_machine_stay_there() {
    let machines = machines(2, 2, 0);
    let read = thread::scope(|s| {
        let calls = [0, 1, 2, 3].map(|rank| {
            let mut seat = machines[rank / 2].join(rank, PATIENT).unwrap();
            s.spawn(move || {
                let (mut read, bytes) = (vec![], [rank as u8; 5]);
                let mut write = |area: &mut [u8]| Written { here: rank, ..Written::copy(&bytes, area) };
                seat.exchange_while(&mut [], &mut write, &mut |all| read.extend(all.iter().map(|of| of.len())), &|| {})
                    .unwrap();
                read
            })
        });
        s.spawn(|| carry(&machines, 1, |_, _| {}));
        calls.map(|call| call.join().unwrap())
    });
    assert_eq!(read, [[5, 5, 3, 2], [5, 5, 3, 2], [5, 4, 5, 5], [5, 4, 5, 5]]);
}

/// The comparison above finds a message that was changed on its way.
#[test]
fn a_message_that_arrives_with_other_bytes_is_seen() {
    let machines = machines(2, 1, 0);
    let read = thread::scope(|s| {
        let calls = [0, 1].map(|rank| {
            let mut seat = machines[rank].join(rank, PATIENT).unwrap();
            s.spawn(move || {
                let mut read = Vec::new();
                seat.exchange(&mut [], &[rank as u8 + 1], &mut |_, bytes| read.extend_from_slice(bytes)).unwrap();
                read
            })
        });
        s.spawn(|| carry(&machines, 1, |_, bytes| bytes[0] ^= 0x80));
        calls.map(|call| call.join().unwrap())
    });
    assert_eq!(read, [[1, 0x82], [0x81, 2]], "its own it has from nobody");
}
