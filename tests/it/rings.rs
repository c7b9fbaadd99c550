//! Rings whose writers and readers are processes that are killed at random: every sample is accounted for.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use admix::shm::{Control, Overflow, RingReader, RingShape, RunNames, SampleRing};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::harness::PATIENCE;

const RING: &str = "ADMIX_TEST_RING";
const OVERWRITE: &str = "ADMIX_TEST_OVERWRITE";
const CAPACITY: usize = 1 << 18;

fn pattern(seq: u64) -> u8 {
    (seq.wrapping_mul(31) % 251) as u8
}

fn samples_of(seq: u64) -> u32 {
    1 + (seq % 97) as u32
}

/// A process that uses a ring; killed if it is still there when dropped.
struct RingUser(Child);

impl RingUser {
    fn is_over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for RingUser {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one of the tests below in a process of its own, as the user of a ring.
fn ring_user(test: &str, ring: &SampleRing, overflow: Overflow) -> RingUser {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(RING, ring.name())
        .env(OVERWRITE, if overflow == Overflow::Overwrite { "1" } else { "0" })
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    RingUser(child)
}

/// The ring that this process was started for, and its run's bells; `None` if it was not.
fn given_ring() -> Option<(SampleRing, Control, RunNames)> {
    let name = std::env::var(RING).ok()?;
    let (names, _) = RunNames::parse(&name).unwrap();
    Some((SampleRing::open(&name).unwrap(), Control::open(&names.part("control")).unwrap(), names))
}

#[test]
#[ignore = "a process that the tests below start and kill"]
fn writes_to_a_ring_until_killed() {
    let Some((ring, control, names)) = given_ring() else { return };
    let overflow = if std::env::var(OVERWRITE).unwrap() == "1" { Overflow::Overwrite } else { Overflow::Wait };
    let mut writer = ring.writer().unwrap();
    // Numbers of this process alone; the ring's own go on from process to process.
    for block in 0.. {
        assert!(names.is_alive());
        let seen = ring.space().value();
        let Some(mut region) = writer.claim(samples_of(block), overflow) else {
            ring.space().wait(seen, Duration::from_millis(100));
            continue;
        };
        if block % 11 == 1 {
            drop(region);
            continue;
        }
        let len = CAPACITY - (block % 1000) as usize;
        region.payload()[..len / 2].fill(pattern(block));
        if block % 3 == 0 {
            // Long enough to be killed here now and then.
            std::thread::sleep(Duration::from_micros(300));
        }
        region.payload()[len / 2..len].fill(pattern(block));
        region.commit(len, block, &control.data);
    }
}

#[test]
#[ignore = "a process that the tests below start and kill"]
fn reads_from_a_ring_until_killed() {
    let Some((ring, control, names)) = given_ring() else { return };
    let mut reader = ring.reader().unwrap();
    while names.is_alive() {
        let seen = control.data.value();
        match reader.take().unwrap() {
            Some(block) => {
                let version = block.info().param_version;
                assert!(block.payload().iter().all(|&byte| byte == pattern(version)));
                std::thread::sleep(Duration::from_micros(200));
                block.release();
            }
            None => {
                control.data.wait(seen, Duration::from_millis(100));
            }
        }
    }
}

/// Takes a block, if there is one, and checks it; the samples in it.
///
/// On a busy machine blocks came out of order: the reader, interrupted on its way along the regions, did not see what
/// was written behind its back.
fn take(reader: &mut RingReader, next_seq: &mut u64) -> Option<u64> {
    let block = reader.take().unwrap()?;
    let info = block.info();
    assert!(info.seq >= *next_seq, "block {} after {next_seq}", info.seq);
    *next_seq = info.seq + 1;
    // The writer's own number of the block is where the version of the parameters would be.
    assert_eq!(info.samples, samples_of(info.param_version));
    assert_eq!(block.payload().len(), CAPACITY - (info.param_version % 1000) as usize);
    assert!(block.payload().iter().all(|&byte| byte == pattern(info.param_version)));
    block.release();
    Some(info.samples.into())
}

fn kill_writers(run_id: &str, overflow: Overflow) {
    const KILLS: usize = 40;
    let names = RunNames::for_this_process(run_id).unwrap();
    let control = Control::create(&names.part("control")).unwrap();
    let shape = RingShape { actor: 0, regions: 3, capacity: CAPACITY };
    let ring = SampleRing::create(&names.part("ring0"), shape).unwrap();
    let mut reader = ring.reader().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut next_seq, mut consumed, mut lost, mut losses) = (0, 0, 0, 0);
    for _ in 0..KILLS {
        let produced = ring.ledger().produced;
        let mut writer = ring_user("rings::writes_to_a_ring_until_killed", &ring, overflow);
        let start = Instant::now();
        while ring.ledger().produced == produced {
            assert!(start.elapsed() < PATIENCE && !writer.is_over(), "the writer does not write");
            // The ring may be full of what the last writer left.
            consumed += take(&mut reader, &mut next_seq).unwrap_or(0);
            std::thread::sleep(Duration::from_micros(100));
        }
        let death = Instant::now() + Duration::from_micros(rng.random_range(0..15_000));
        while Instant::now() < death {
            consumed += take(&mut reader, &mut next_seq).unwrap_or(0);
        }
        drop(writer);
        assert!(ring.writer().is_err(), "the dead process has the role until the ring is recovered");
        let before = ring.recover_writer(&control.data);
        assert_eq!(ring.recover_writer(&control.data), 0, "there is nothing to recover twice");
        assert!(before <= 97, "no more than one block dies with its writer");
        lost += before;
        losses += usize::from(before > 0);
        let ledger = ring.ledger();
        ledger.balance().unwrap();
        assert_eq!((ledger.consumed, ledger.lost, ledger.torn_blocks), (consumed, lost, 0));
        if rng.random_bool(0.5) {
            while let Some(samples) = take(&mut reader, &mut next_seq) {
                consumed += samples;
            }
            let ledger = ring.ledger();
            ledger.balance().unwrap();
            assert_eq!((ledger.unread, ledger.consumed), (0, consumed));
        }
    }
    assert!(losses > 0, "no writer was killed in the middle of a block; the test tests nothing");
    let ledger = ring.ledger();
    assert!(ledger.discarded > 0 && ledger.consumed > 0, "{ledger}");
    assert_eq!(ledger.overwritten > 0, overflow == Overflow::Overwrite, "{ledger}");
}

#[test]
fn a_ring_whose_writers_are_killed_accounts_for_every_sample() {
    kill_writers("kill-wait", Overflow::Wait);
}

#[test]
fn a_ring_whose_overwriting_writers_are_killed_accounts_for_every_sample() {
    kill_writers("kill-overwrite", Overflow::Overwrite);
}

#[test]
fn a_ring_whose_readers_are_killed_hands_each_block_to_the_next_one() {
    let names = RunNames::for_this_process("kill-reader").unwrap();
    let control = Control::create(&names.part("control")).unwrap();
    let shape = RingShape { actor: 0, regions: 3, capacity: CAPACITY };
    let ring = SampleRing::create(&names.part("ring0"), shape).unwrap();
    let mut writer = ring.writer().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let (mut block, mut produced, mut interrupted) = (0, 0, 0);
    for _ in 0..30 {
        let consumed = ring.ledger().consumed;
        let mut reader = ring_user("rings::reads_from_a_ring_until_killed", &ring, Overflow::Wait);
        let start = Instant::now();
        let mut death = None;
        while death.is_none_or(|death| Instant::now() < death) {
            assert!(start.elapsed() < PATIENCE && !reader.is_over(), "the reader does not read");
            if death.is_none() && ring.ledger().consumed > consumed {
                death = Some(Instant::now() + Duration::from_micros(rng.random_range(0..5_000)));
            }
            if let Some(mut region) = writer.claim(samples_of(block), Overflow::Wait) {
                region.payload().fill(pattern(block));
                region.commit(CAPACITY, block, &control.data);
                produced += u64::from(samples_of(block));
                block += 1;
            }
        }
        drop(reader);
        assert!(ring.reader().is_err(), "the dead process has the role until the ring is recovered");
        interrupted += usize::from(ring.recover_reader() > 0);
        assert_eq!(ring.recover_reader(), 0, "there is nothing to recover twice");
        let ledger = ring.ledger();
        ledger.balance().unwrap();
        assert_eq!((ledger.produced, ledger.lost, ledger.torn_blocks), (produced, 0, 0));
    }
    assert!(interrupted > 0, "no reader was killed in the middle of a block; the test tests nothing");
    let mut last = ring.reader().unwrap();
    while let Some(block) = last.take().unwrap() {
        let version = block.info().param_version;
        assert!(block.payload().iter().all(|&byte| byte == pattern(version)));
        block.release();
    }
    assert_eq!(ring.ledger().consumed, produced, "every block was read in the end, by somebody, once");
}
