//! Tests of everything that breaks rings: abandonment in every state, overwriting under a reader, damage, and random schedules.

use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::super::crash::{abandon, kill_after};
use super::super::segment::tests::unique_name;
use super::*;

const CAPACITY: usize = 5_000;

fn bell() -> Doorbell {
    Doorbell::default()
}

fn ring(regions: usize) -> SampleRing {
    let shape = RingShape { actor: 3, regions, capacity: CAPACITY };
    SampleRing::create(&unique_name("ring"), shape).unwrap()
}

/// Writes a block whose bytes follow from its tag; returns false if there was no room.
fn write(writer: &mut RingWriter, tag: u8, samples: u32, policy: Overflow, data: &Doorbell) -> bool {
    let Some(mut block) = writer.claim(samples, policy) else {
        return false;
    };
    let len = 16 + tag as usize;
    block.payload()[..len].fill(tag);
    block.commit(len, u64::from(tag) * 10, data);
    true
}

fn check(block: &ReadGuard<'_>) -> u8 {
    let tag = block.payload()[0];
    assert_eq!(block.payload(), vec![tag; 16 + tag as usize]);
    assert_eq!(block.info().param_version, u64::from(tag) * 10);
    assert_eq!(block.info().actor, 3);
    tag
}

/// Reads and releases everything; returns the tags in order.
fn drain(reader: &mut RingReader) -> Vec<u8> {
    let mut tags = Vec::new();
    while let Some(block) = reader.take().unwrap() {
        tags.push(check(&block));
        block.release();
    }
    tags
}

#[test]
fn a_ring_is_mostly_free_where_one_block_less_than_a_burst_has_room() {
    for (regions, burst) in [(2, 1), (3, 2), (5, 4), (6, 4), (12, 8)] {
        let (ring, data) = (ring(regions), bell());
        let mut writer = ring.writer().unwrap();
        assert_eq!(ring.burst(), burst);
        for taken in 0..=regions {
            let free = regions - taken;
            assert_eq!(
                (ring.is_full(), ring.is_mostly_free()),
                (free == 0, free >= (burst - 1).max(1)),
                "{taken} of {regions}"
            );
            assert_eq!(write(&mut writer, taken as u8, 1, Overflow::Wait, &data), free > 0);
        }
    }
}

#[test]
fn regions_that_are_kept_are_not_written_until_they_are_released() {
    let (ring, data) = (ring(3), bell());
    let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
    for round in 0..4 {
        (0..3).for_each(|i| assert!(write(&mut writer, i, 1, Overflow::Wait, &data)));
        assert!(ring.is_full());
        for i in 0..2 {
            let guard = reader.take().unwrap().unwrap();
            assert_eq!(guard.payload()[0], i);
            guard.keep();
        }
        assert!(ring.is_full() && !write(&mut writer, 9, 1, Overflow::Wait, &data));
        let before = ring.space().value();
        reader.release_kept();
        assert!(!ring.is_full() && ring.space().value() != before);
        assert_eq!((drain(&mut reader).len(), ring.ledger().consumed), (1, 3 * (round + 1)));
    }
}

#[test]
fn blocks_arrive_in_order_with_their_headers() {
    let name = unique_name("ring");
    let shape = RingShape { actor: 3, regions: 2, capacity: CAPACITY };
    let main = SampleRing::create(&name, shape).unwrap();
    let data = bell();
    let mut writer = SampleRing::open(&name).unwrap().writer().unwrap();
    let mut reader = SampleRing::open(&name).unwrap().reader().unwrap();
    assert!(reader.take().unwrap().is_none());
    for round in 0..10 {
        assert!(write(&mut writer, 2 * round, 100, Overflow::Wait, &data));
        assert!(write(&mut writer, 2 * round + 1, 7, Overflow::Wait, &data));
        assert!(!write(&mut writer, 99, 1, Overflow::Wait, &data), "full");
        assert_eq!(main.ledger().unread, 107);
        assert_eq!(drain(&mut reader), [2 * round, 2 * round + 1]);
    }
    let ledger = main.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.produced, ledger.consumed), (1070, 1070));
}

/// A payload of which the first bytes alone are checked.
#[test]
fn damage_is_found_in_what_is_checked() {
    let (ring, data) = (ring(2), bell());
    let mut writer = ring.writer().unwrap();
    let mut reader = ring.reader().unwrap();
    let mut arrives = |damaged: usize, checked: u64| {
        let mut region = writer.claim(1, Overflow::Wait).unwrap();
        region.payload()[..8].fill(1);
        region.check_only(4);
        region.commit(8, 0, &data);
        let phase = |index: usize| ring.regions()[index].phase.load(Ordering::Relaxed);
        let index = (0..2).find(|index| State::of(phase(*index)) == State::Readable).unwrap();
        // SAFETY: nobody else has the region.
        let payload = unsafe { ring.payload_mut(index) };
        payload[damaged] ^= 1;
        ring.regions()[index].checked.store(checked, Ordering::Relaxed);
        reader.take().map(|block| block.unwrap().release()).is_ok()
    };
    assert!(arrives(4, 4) && arrives(7, 4), "behind what is checked");
    assert!(!arrives(0, 4) && !arrives(3, 4), "in what is checked");
    assert!(!arrives(8, 3) && !arrives(8, 8) && !arrives(8, 9) && !arrives(8, u64::MAX), "another length");
    assert!(arrives(8, 4));
}

#[test]
fn impossible_shapes_are_refused() {
    for (regions, capacity) in [(0, 10), (1, 10), (2, 0), (65, 10), (2, usize::MAX)] {
        let shape = RingShape { actor: 0, regions, capacity };
        let refused = SampleRing::create(&unique_name("ring"), shape);
        assert!(matches!(refused, Err(ShmError::BadShape { .. })));
    }
}

#[test]
fn a_role_is_held_once_and_handed_on() {
    let ring = ring(2);
    let writer = ring.writer().unwrap();
    assert!(matches!(ring.writer(), Err(ShmError::RoleTaken { .. })));
    drop(writer);
    abandon(ring.writer().unwrap());
    assert!(ring.writer().is_err(), "its holder died");
    ring.recover_writer(&bell());
    ring.writer().unwrap();
}

#[test]
fn an_unfinished_block_is_discarded_and_its_region_free() {
    let (ring, data) = (ring(2), bell());
    let mut writer = ring.writer().unwrap();
    for _ in 0..5 {
        drop(writer.claim(10, Overflow::Wait).unwrap());
    }
    writer.discard(3);
    assert!(write(&mut writer, 1, 4, Overflow::Wait, &data));
    let ledger = ring.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.produced, ledger.discarded, ledger.unread), (57, 53, 4));
}

#[test]
fn a_block_put_back_is_read_again_in_its_turn() {
    let (ring, data) = (ring(3), bell());
    let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
    for tag in 1..=3 {
        write(&mut writer, tag, 1, Overflow::Wait, &data);
    }
    drop(reader.take().unwrap().unwrap());
    assert_eq!(drain(&mut reader), [1, 2, 3]);
    ring.ledger().balance().unwrap();
}

#[test]
fn overwriting_takes_the_oldest_but_never_one_being_read() {
    let (ring, data) = (ring(2), bell());
    let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
    write(&mut writer, 1, 10, Overflow::Overwrite, &data);
    let held = reader.take().unwrap().unwrap();
    for tag in 2..=20 {
        assert!(write(&mut writer, tag, 10, Overflow::Overwrite, &data));
        assert_eq!(check(&held), 1, "the block being read is untouched");
    }
    held.release();
    assert_eq!(drain(&mut reader), [20]);
    for tag in 21..=25 {
        write(&mut writer, tag, 10, Overflow::Overwrite, &data);
    }
    assert_eq!(drain(&mut reader), [24, 25], "the oldest went first");
    let ledger = ring.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.overwritten, ledger.consumed), (210, 40));
}

#[test]
fn damage_is_found_counted_and_passed_over() {
    let (ring, data) = (ring(2), bell());
    let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
    let damage: [fn(&SampleRing); 4] = [
        // SAFETY (both): nobody else touches the ring now.
        |r| unsafe { r.payload_mut(0)[5] ^= 1 },
        |r| r.regions()[0].magic.store(0, Ordering::Relaxed),
        |r| r.regions()[0].len.store(1 << 40, Ordering::Relaxed),
        |r| r.regions()[0].param_version.store(9, Ordering::Relaxed),
    ];
    for (n, damage) in damage.iter().enumerate() {
        write(&mut writer, 1, 10, Overflow::Wait, &data);
        damage(&ring);
        let taken = reader.take();
        assert!(matches!(taken, Err(ShmError::Torn { samples: 10, .. })));
        assert_eq!(ring.ledger().torn_blocks, n as u64 + 1);
    }
    write(&mut writer, 2, 10, Overflow::Wait, &data);
    assert_eq!(drain(&mut reader), [2]);
    let ledger = ring.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.lost, ledger.consumed), (40, 10));
}

/// Kills a writer at its every store during `life`, on a ring that holds `unread` blocks of 100 samples, and
/// checks that the ring recovers exactly.
fn kill_writer_everywhere(unread: u8, life: fn(&mut RingWriter, &Doorbell)) {
    for step in 0.. {
        let (ring, data) = (ring(2), bell());
        let mut writer = ring.writer().unwrap();
        for tag in 1..=unread {
            write(&mut writer, tag, 100, Overflow::Wait, &data);
        }
        let done = kill_after(step, || life(&mut writer, &data)).is_some();
        abandon(writer);
        let lost = ring.recover_writer(&data);
        let ledger = ring.ledger();
        ledger.balance().unwrap_or_else(|e| panic!("step {step}: {e}"));
        assert_eq!(ledger.lost, lost);
        assert_eq!(ring.recover_writer(&data), 0, "once is enough");
        assert_eq!(ring.ledger(), ledger);

        // Everything still works, with every region.
        let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
        drain(&mut reader);
        assert!(write(&mut writer, 7, 10, Overflow::Wait, &data));
        assert!(write(&mut writer, 8, 10, Overflow::Wait, &data));
        assert_eq!(drain(&mut reader), [7, 8]);
        let end = ring.ledger();
        end.balance().unwrap();
        assert_eq!(end.consumed, ledger.consumed + ledger.unread + 20);
        if done {
            assert!(step > 5, "the life had stores");
            break;
        }
    }
}

#[test]
fn a_writer_may_die_anywhere_in_claim_and_commit() {
    kill_writer_everywhere(1, |writer, data| {
        assert!(write(writer, 5, 10, Overflow::Wait, data));
    });
}

#[test]
fn a_writer_may_die_anywhere_in_overwriting() {
    kill_writer_everywhere(2, |writer, data| {
        assert!(write(writer, 5, 10, Overflow::Overwrite, data));
        assert!(write(writer, 6, 20, Overflow::Overwrite, data));
    });
}

#[test]
fn a_writer_may_die_anywhere_in_discarding() {
    kill_writer_everywhere(1, |writer, _| {
        drop(writer.claim(10, Overflow::Wait).unwrap());
        writer.discard(3);
    });
}

#[test]
fn a_reader_may_die_anywhere() {
    for step in 0.. {
        let (ring, data) = (ring(3), bell());
        let (mut writer, mut reader) = (ring.writer().unwrap(), ring.reader().unwrap());
        for tag in 1..=3 {
            write(&mut writer, tag, 100, Overflow::Wait, &data);
        }
        // The last block is damaged; one is released, one put back and released, one counted as torn.
        // SAFETY: nobody else touches the ring now.
        unsafe { ring.payload_mut(2)[0] ^= 1 };
        let done = kill_after(step, || {
            reader.take().unwrap().unwrap().release();
            drop(reader.take().unwrap().unwrap());
            reader.take().unwrap().unwrap().release();
            assert!(reader.take().is_err());
        });
        abandon(reader);
        // The writer does not wait for the recovery, and may reuse what the reader freed.
        write(&mut writer, 4, 1, Overflow::Wait, &data);
        let before = ring.ledger();
        let again = ring.recover_reader();
        let ledger = ring.ledger();
        ledger.balance().unwrap_or_else(|e| panic!("step {step}: {e}"));
        assert!(again <= before.unread);
        assert_eq!(ring.recover_reader(), 0, "once is enough");

        let mut reader = ring.reader().unwrap();
        while let Some(block) = reader.take().transpose() {
            block.into_iter().for_each(ReadGuard::release);
        }
        let end = ring.ledger();
        end.balance().unwrap();
        assert_eq!((end.unread, end.lost, end.torn_blocks), (0, 100, 1));
        if done.is_some() {
            break;
        }
    }
}

/// Runs a writer and a reader thread with occasional pauses; every block is checked and the ledger is exact.
fn stress(regions: usize, policy: Overflow, blocks: u64) {
    let (ring, data) = (ring(regions), bell());
    thread::scope(|s| {
        let (writing, reading, data) = (ring.clone(), ring.clone(), &data);
        s.spawn(move || {
            let mut writer = writing.writer().unwrap();
            let mut n = 0;
            while n < blocks {
                let seen = writing.space().value();
                if write(&mut writer, n as u8, 1 + n as u32 % 5, policy, data) {
                    n += 1;
                } else {
                    writing.space().wait(seen, Duration::from_secs(1));
                }
                pause(n.wrapping_mul(0x9E37_79B9));
            }
        });
        s.spawn(move || {
            let mut reader = reading.reader().unwrap();
            let mut next = 0;
            while next < blocks {
                let seen = data.value();
                match reader.take().unwrap() {
                    Some(block) => {
                        let seq = block.info().seq;
                        assert_eq!(check(&block), seq as u8);
                        assert!(seq == next || policy == Overflow::Overwrite && seq > next);
                        next = seq + 1;
                        pause(seq.wrapping_mul(0x85EB_CA6B));
                        assert_eq!(check(&block), seq as u8, "untouched to the end");
                        block.release();
                    }
                    None => {
                        data.wait(seen, Duration::from_secs(1));
                    }
                }
            }
        });
    });
    let ledger = ring.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.torn_blocks, ledger.lost, ledger.unread), (0, 0, 0));
    let produced: u64 = (0..blocks).map(|n| 1 + n % 5).sum();
    assert_eq!(ledger.produced, produced);
    assert!(policy == Overflow::Overwrite || ledger.consumed == produced);
}

fn pause(dice: u64) {
    match dice % 101 {
        0 => thread::sleep(Duration::from_micros(dice % 300)),
        1..20 => thread::yield_now(),
        _ => {}
    }
}

#[test]
fn nothing_is_torn_or_miscounted_while_waiting() {
    stress(2, Overflow::Wait, 100_000);
}

#[test]
fn nothing_is_torn_or_miscounted_while_overwriting() {
    stress(2, Overflow::Overwrite, 200_000);
    stress(3, Overflow::Overwrite, 200_000);
}

/// An operation on a ring.
#[derive(Debug, Clone)]
enum Op {
    Write {
        samples: u32,
        policy: Overflow,
    },
    Abort {
        samples: u32,
    },
    Discard {
        samples: u32,
    },
    Read,
    PutBack,
    /// Other operations while a block is being read.
    HoldRead(Vec<Op>),
    WriterDies {
        at: u32,
        samples: u32,
        policy: Overflow,
    },
    ReaderDies {
        at: u32,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let samples = 1..50u32;
    let policy = || prop_oneof![Just(Overflow::Wait), Just(Overflow::Overwrite)];
    let op = prop_oneof![
        4 => (samples.clone(), policy()).prop_map(|(samples, policy)| Op::Write { samples, policy }),
        1 => samples.clone().prop_map(|samples| Op::Abort { samples }),
        1 => samples.clone().prop_map(|samples| Op::Discard { samples }),
        3 => Just(Op::Read),
        1 => Just(Op::PutBack),
        1 => (0..25u32, samples, policy())
            .prop_map(|(at, samples, policy)| Op::WriterDies { at, samples, policy }),
        1 => (0..12u32).prop_map(|at| Op::ReaderDies { at }),
    ];
    let op = op.prop_recursive(1, 8, 4, |inner| prop::collection::vec(inner, 1..4).prop_map(Op::HoldRead));
    prop::collection::vec(op, 1..40)
}

/// A model of the ring as a list, oldest block first, with the expected sums.
#[derive(Default)]
struct Model {
    regions: usize,
    tag: u8,
    blocks: Vec<(u8, u32)>,
    held: usize,
    sums: Ledger,
}

impl Model {
    /// Returns whether a claim would find a region; drops the block that it overwrites.
    fn claim(&mut self, policy: Overflow) -> bool {
        if self.blocks.len() + self.held < self.regions {
            return true;
        }
        if policy == Overflow::Wait || self.blocks.is_empty() {
            return false;
        }
        self.sums.overwritten += u64::from(self.blocks.remove(0).1);
        true
    }

    fn expected(&self, held: u64) -> Ledger {
        let unread: u64 = self.blocks.iter().map(|(_, s)| u64::from(*s)).sum();
        Ledger { unread: unread + held, ..self.sums }
    }
}

fn live(model: &mut Model, ring: &SampleRing, data: &Doorbell, ops: &[Op], held: u64) {
    for op in ops {
        match op {
            Op::Write { samples, policy } => {
                model.tag = model.tag.wrapping_add(1);
                let mut writer = ring.writer().unwrap();
                let written = write(&mut writer, model.tag, *samples, *policy, data);
                assert_eq!(written, model.claim(*policy));
                if written {
                    model.blocks.push((model.tag, *samples));
                    model.sums.produced += u64::from(*samples);
                }
            }
            Op::Abort { samples } => {
                let mut writer = ring.writer().unwrap();
                let claimed = writer.claim(*samples, Overflow::Wait).is_some();
                assert_eq!(claimed, model.claim(Overflow::Wait));
                if claimed {
                    model.sums.produced += u64::from(*samples);
                    model.sums.discarded += u64::from(*samples);
                }
            }
            Op::Discard { samples } => {
                ring.writer().unwrap().discard(*samples);
                model.sums.produced += u64::from(*samples);
                model.sums.discarded += u64::from(*samples);
            }
            // While a block is held the reading role is taken.
            Op::Read | Op::PutBack | Op::HoldRead(_) | Op::ReaderDies { .. } if held > 0 => {}
            Op::Read | Op::PutBack | Op::HoldRead(_) => {
                let mut reader = ring.reader().unwrap();
                assert_eq!(reader.is_empty(), model.blocks.is_empty());
                let block = reader.take().unwrap();
                assert_eq!(block.is_none(), model.blocks.is_empty());
                let Some(block) = block else { continue };
                assert_eq!(check(&block), model.blocks[0].0);
                if matches!(op, Op::PutBack) {
                    continue;
                }
                let (tag, samples) = model.blocks.remove(0);
                if let Op::HoldRead(meanwhile) = op {
                    model.held = 1;
                    live(model, ring, data, meanwhile, samples.into());
                    model.held = 0;
                    assert_eq!(check(&block), tag);
                }
                block.release();
                model.sums.consumed += u64::from(samples);
            }
            Op::WriterDies { at, samples, policy } => {
                model.tag = model.tag.wrapping_add(1);
                let mut writer = ring.writer().unwrap();
                let write = || write(&mut writer, model.tag, *samples, *policy, data);
                let finished = kill_after(*at, write);
                abandon(writer);
                let before = model.expected(held);
                let lost = ring.recover_writer(data);
                let now = ring.ledger();
                // It either never claimed, or lost the block, or had committed it.
                if now.produced == before.produced {
                    assert_eq!((now, lost), (before, 0));
                    assert!(finished != Some(true));
                } else {
                    assert!(model.claim(*policy));
                    model.sums.produced += u64::from(*samples);
                    model.sums.lost += lost;
                    if lost == 0 {
                        model.blocks.push((model.tag, *samples));
                    } else {
                        assert_eq!(lost, u64::from(*samples));
                        assert_eq!(finished, None);
                    }
                }
            }
            Op::ReaderDies { at } => {
                let mut reader = ring.reader().unwrap();
                kill_after(*at, || reader.take().unwrap().map(ReadGuard::release));
                abandon(reader);
                ring.recover_reader();
                // Either consumed or still there.
                if ring.ledger().consumed > model.sums.consumed {
                    model.sums.consumed += u64::from(model.blocks.remove(0).1);
                }
            }
        }
        assert_eq!(ring.ledger(), model.expected(held), "after {op:?}");
        ring.ledger().balance().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_behaves_like_its_model(regions in 2usize..4, ops in ops()) {
        let mut model = Model { regions, ..Model::default() };
        live(&mut model, &ring(regions), &bell(), &ops, 0);
    }
}
