//! The sample ring: a block is its writer's until it is committed and its reader's until it is released, and every
//! sample is accounted for.

use std::sync::Arc;

use admix_loom::plant::{Plant, Site};
use admix_loom::ring::{Ledger, Overflow, ReadGuard, RingReader, RingShape, RingWriter, SampleRing};
use admix_loom::sync::Ordering;
use admix_loom::wait::Doorbell;
use loom::thread;

use super::support::{FOREVER, caught, explore};

const ACTOR: u32 = 3;
const CAPACITY: usize = 4;

/// A ring of two regions, all of it made.
fn ring() -> (SampleRing, Arc<Doorbell>) {
    let shape = RingShape { actor: ACTOR, regions: 2, capacity: CAPACITY };
    let ring = SampleRing::create("ring", shape).unwrap();
    assert_eq!(ring.ledger(), Ledger::default());
    (ring, Arc::default())
}

/// The block with number `seq` has so many samples: sums tell which blocks they are of.
fn samples(seq: u64) -> u32 {
    1 << (4 * seq)
}

fn total(seqs: impl IntoIterator<Item = u64>) -> u64 {
    seqs.into_iter().map(|seq| u64::from(samples(seq))).sum()
}

/// Writes block `seq`, whose parameter version and bytes follow from it; false when there was no room.
fn write(writer: &mut RingWriter, seq: u64, policy: Overflow, data: &Doorbell) -> bool {
    let Some(mut block) = writer.claim(samples(seq), policy) else {
        return false;
    };
    block.payload().fill(seq as u8 + 1);
    block.commit(CAPACITY, seq + 10, data);
    true
}

/// Writes blocks, waiting where there is no room; an overwriter waits when both regions change hands while it looks.
fn write_all(ring: &SampleRing, seqs: impl IntoIterator<Item = u64>, policy: Overflow, data: &Doorbell) {
    let mut writer = ring.writer().unwrap();
    for seq in seqs {
        loop {
            let seen = ring.space().value();
            if write(&mut writer, seq, policy, data) {
                break;
            }
            ring.space().wait(seen, FOREVER);
        }
    }
}

fn overwrite_all(ring: &SampleRing, seqs: impl IntoIterator<Item = u64>, data: &Doorbell) {
    write_all(ring, seqs, Overflow::Overwrite, data);
}

/// Number of a block whose header and payload belong together.
fn check(block: &ReadGuard<'_>) -> u64 {
    let info = block.info();
    let expected = (ACTOR, info.seq + 10, samples(info.seq));
    assert_eq!((info.actor, info.param_version, info.samples), expected, "a mixed header");
    assert_eq!(block.payload(), [info.seq as u8 + 1; CAPACITY], "another block's payload");
    info.seq
}

/// Takes and releases up to `blocks`, without waiting; their numbers, which have to grow.
fn drain(reader: &mut RingReader, blocks: usize) -> Vec<u64> {
    let mut seqs: Vec<u64> = Vec::new();
    while seqs.len() < blocks {
        let Some(block) = reader.take().expect("no block is damaged") else {
            break;
        };
        let seq = check(&block);
        assert!(seqs.last() < Some(&seq), "{seq} after {seqs:?}");
        seqs.push(seq);
        block.release();
    }
    seqs
}

/// Reads what is left, alone, and checks the ledger, in which `lost` died with a writer.
fn settle(ring: &SampleRing, read: &[u64], written: u64, lost: u64) {
    let mut all = read.to_vec();
    all.extend(drain(&mut ring.reader().unwrap(), usize::MAX));
    let consumed = total(all);
    let produced = total(0..written);
    let expected = Ledger { produced, consumed, overwritten: produced - consumed - lost, lost, ..Ledger::default() };
    assert_eq!(ring.ledger(), expected, "the ledger");
}

/// The writer waits for room, the reader for blocks; nothing is overwritten and nobody stays asleep.
fn waiting() {
    let (ring, data) = ring();
    write_all(&ring, 0..1, Overflow::Wait, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || write_all(&writing, 1..3, Overflow::Wait, &bell));
    let mut read = Vec::new();
    let mut reader = ring.reader().unwrap();
    while read.len() < 3 {
        let seen = data.value();
        let new = drain(&mut reader, 1);
        if new.is_empty() {
            data.wait(seen, FOREVER);
        }
        read.extend(new);
    }
    drop(reader);
    writer.join().unwrap();
    assert_eq!(read, [0, 1, 2]);
    settle(&ring, &read, 3, 0);
}

/// The reader keeps what it has read and gives the regions back when there is nothing to read; the writer waits for room.
fn keeping() {
    let (ring, data) = ring();
    write_all(&ring, 0..2, Overflow::Wait, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || write_all(&writing, 2..4, Overflow::Wait, &bell));
    let mut read = Vec::new();
    let mut reader = ring.reader().unwrap();
    while read.len() < 4 {
        let seen = data.value();
        if let Some(block) = reader.take().expect("no block is damaged") {
            read.push(check(&block));
            block.keep();
            continue;
        }
        reader.release_kept();
        data.wait(seen, FOREVER);
    }
    drop(reader);
    writer.join().unwrap();
    assert_eq!(read, [0, 1, 2, 3]);
    settle(&ring, &read, 4, 0);
}

/// The writer overwrites what is not read in time.
fn overwriting() {
    let (ring, data) = ring();
    let (reading, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || overwrite_all(&reading, 0..3, &bell));
    let read = drain(&mut ring.reader().unwrap(), 2);
    writer.join().unwrap();
    settle(&ring, &read, 3, 0);
}

/// A ring that has gone round once, full again: what is old has been read and what is new may be overwritten.
fn overwriting_a_used_ring() {
    let (ring, data) = ring();
    overwrite_all(&ring, 0..2, &data);
    let mut read = drain(&mut ring.reader().unwrap(), 1);
    overwrite_all(&ring, 2..3, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || overwrite_all(&writing, 3..5, &bell));
    read.extend(drain(&mut ring.reader().unwrap(), 2));
    writer.join().unwrap();
    settle(&ring, &read, 5, 0);
}

/// The reader puts a block back, which the writer may then overwrite.
fn putting_back() {
    let (ring, data) = ring();
    overwrite_all(&ring, 0..2, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || overwrite_all(&writing, 2..4, &bell));
    let mut reader = ring.reader().unwrap();
    if let Some(block) = reader.take().expect("no block is damaged") {
        check(&block);
    }
    let read = drain(&mut reader, 1);
    drop(reader);
    writer.join().unwrap();
    settle(&ring, &read, 4, 0);
}

/// A writer dies while it holds a region, main recovers and a new one goes on, all under a reader at work.
fn recovering_the_writer() {
    let (ring, data) = ring();
    overwrite_all(&ring, 0..2, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let supervisor = thread::spawn(move || {
        let mut writer = writing.writer().unwrap();
        let claimed = writer.claim(samples(2), Overflow::Overwrite).map(|mut block| {
            block.payload().fill(0);
            std::mem::forget(block);
        });
        let lost = writing.recover_writer(&bell);
        assert_eq!(lost, claimed.map_or(0, |()| total([2])));
        // Its last store, the role, does no harm: nobody has taken that yet.
        drop(writer);
        let mut writer = writing.writer().unwrap();
        write(&mut writer, 3, Overflow::Overwrite, &bell);
        lost
    });
    let mut reader = ring.reader().unwrap();
    let mut seqs = Vec::new();
    for _ in 0..2 {
        let Some(block) = reader.take().expect("no block is damaged") else {
            break;
        };
        // The second writer numbers on from the first one's committed blocks.
        let (info, payload) = (block.info(), block.payload()[0]);
        assert_eq!(info.samples, samples(u64::from(payload) - 1), "another block's payload");
        seqs.push(u64::from(payload) - 1);
        block.release();
    }
    drop(reader);
    let lost = supervisor.join().unwrap();
    let ledger = ring.ledger();
    ledger.balance().unwrap();
    assert_eq!((ledger.lost, ledger.consumed), (lost, total(seqs)), "the ledger");
}

/// A reader dies while it holds a block, main recovers and a new one goes on, all under an overwriting writer.
fn recovering_the_reader() {
    let (ring, data) = ring();
    overwrite_all(&ring, 0..2, &data);
    let (writing, bell) = (ring.clone(), data.clone());
    let writer = thread::spawn(move || overwrite_all(&writing, 2..4, &bell));
    let mut reader = ring.reader().unwrap();
    let held = reader.take().expect("no block is damaged").map(|block| {
        let seq = check(&block);
        std::mem::forget(block);
        seq
    });
    assert_eq!(ring.recover_reader(), held.map_or(0, |seq| total([seq])));
    drop(reader);
    let read = drain(&mut ring.reader().unwrap(), 1);
    writer.join().unwrap();
    settle(&ring, &read, 4, 0);
}

/// Takes the writer's role, if it is to be had, for one block of a sample with `tag` all over it.
fn write_as_one_of_many(ring: &SampleRing, tag: u8, data: &Doorbell) {
    if let Ok(mut writer) = ring.writer() {
        let mut block = writer.claim(1, Overflow::Overwrite).expect("a region");
        block.payload().fill(tag);
        block.commit(CAPACITY, tag.into(), data);
    }
}

/// Takes the reader's role, if it is to be had, for one block.
fn read_as_one_of_many(ring: &SampleRing) {
    if let Ok(mut reader) = ring.reader()
        && let Some(block) = reader.take().expect("no block is damaged")
    {
        assert_eq!(block.payload(), [block.info().param_version as u8; CAPACITY], "another block's payload");
        block.release();
    }
}

/// Starts two threads on the ring and waits for them.
fn both(ring: &SampleRing, data: &Arc<Doorbell>, doing: [fn(&SampleRing, &Doorbell); 2]) {
    let threads = doing.map(|act| {
        let (ring, data) = (ring.clone(), data.clone());
        thread::spawn(move || act(&ring, &data))
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Reads what is left; everything written was read, in blocks of a sample, but for `lost`.
fn settle_ones(ring: &SampleRing, written: u64, lost: u64) {
    while ring.ledger().unread > 0 {
        read_as_one_of_many(ring);
    }
    let expected = Ledger { produced: written + lost, consumed: written, lost, ..Ledger::default() };
    assert_eq!(ring.ledger(), expected, "the ledger");
}

/// The writer's role passes from one process to another.
fn handing_the_writing_on() {
    let (ring, data) = ring();
    both(
        &ring,
        &data,
        [
            |ring, data| write_as_one_of_many(ring, 1, data),
            |ring, data| {
                write_as_one_of_many(ring, 2, data);
            },
        ],
    );
    // The second one found the role taken, or free again.
    let written = ring.ledger().unread;
    assert!((1..=2).contains(&written));
    settle_ones(&ring, written, 0);
}

/// The reader's role passes from one process to another.
fn handing_the_reading_on() {
    let (ring, data) = ring();
    write_as_one_of_many(&ring, 1, &data);
    write_as_one_of_many(&ring, 2, &data);
    both(&ring, &data, [|ring, _| read_as_one_of_many(ring), |ring, _| read_as_one_of_many(ring)]);
    settle_ones(&ring, 2, 0);
}

/// A dead writer's role passes to another process as soon as main has recovered the ring.
fn inheriting_the_writing() {
    let (ring, data) = ring();
    let mut writer = ring.writer().unwrap();
    let mut block = writer.claim(1, Overflow::Overwrite).expect("a region");
    block.payload().fill(9);
    std::mem::forget(block);
    // The role is given back by its recovery alone; dropping it last, when nobody looks any more, frees its memory.
    both(
        &ring,
        &data,
        [
            |ring, data| assert_eq!(ring.recover_writer(data), 1),
            |ring, data| {
                write_as_one_of_many(ring, 1, data);
            },
        ],
    );
    let written = ring.ledger().unread;
    assert!(written <= 1);
    settle_ones(&ring, written, 1);
    drop(writer);
}

#[test]
fn waiting_loses_and_repeats_nothing() {
    explore(2, waiting);
    explore(2, keeping);
}

#[test]
fn overwriting_never_touches_a_block_in_use() {
    explore(2, overwriting);
    explore(2, overwriting_a_used_ring);
}

#[test]
fn a_block_put_back_is_read_or_overwritten() {
    explore(2, putting_back);
}

#[test]
fn roles_are_handed_on_and_inherited() {
    explore(2, handing_the_writing_on);
    explore(2, handing_the_reading_on);
    explore(2, inheriting_the_writing);
}

#[test]
fn one_side_recovers_under_the_other() {
    explore(2, recovering_the_writer);
    explore(2, recovering_the_reader);
}

const RACE: &str = "Causality violation";
const DAMAGE: &[&str] = &[RACE, "no block is damaged", "a mixed header", "another block's payload", " after ["];

#[test]
fn orderings_that_are_too_weak_are_found() {
    let commit = Site::find("ring/writer.rs", "region.phase.store(self.phase + FORWARD, Ordering::Release)");
    let claim = Site::find("ring/writer.rs", "region.phase.compare_exchange(from, to, Ordering::AcqRel");
    let load = "\n            let phase = region.phase.load(Ordering::Acquire)";
    let find_free = Site::find("ring/mod.rs", &format!("payload are over before we write.{load}"));
    let scan = Site::find("ring/mod.rs", &format!("belongs to this phase or a later one.{load}"));
    let take = Site::find("ring/reader.rs", "region.phase.compare_exchange(readable, phase, Ordering::AcqRel");
    let release = Site::find("ring/reader.rs", "regions()[index].phase.store(phase + FORWARD, Ordering::Release)");
    let put_back =
        Site::find("ring/reader.rs", "regions()[self.index].phase.store(self.phase + BACK, Ordering::Release)");
    // Whoever moves a phase has found it by an Acquire load of the same value: one of the two may be spared.
    for (sites, model) in [
        (vec![commit], overwriting as fn()),
        (vec![find_free, claim], waiting),
        (vec![scan, claim], putting_back),
        (vec![scan, take], overwriting),
        (vec![release], waiting),
        (vec![release], keeping),
        (vec![put_back], putting_back),
    ] {
        caught(Plant::Weaken(sites, Ordering::Relaxed), 2, model, DAMAGE);
    }
}

#[test]
fn roles_handed_on_without_what_was_done_in_them_are_found() {
    let take = "compare_exchange(0, me, Ordering::AcqRel";
    let [wrote, read] = ["ring/writer.rs", "ring/reader.rs"].map(|file| Site::find(file, take));
    let gave = Site::find("ring/writer.rs", "writer_pid.store(0, Ordering::Release)");
    let gave_back = Site::find("ring/reader.rs", "reader_pid.store(0, Ordering::Release)");
    for (site, model) in [
        (wrote, handing_the_writing_on as fn()),
        (gave, handing_the_writing_on),
        (read, handing_the_reading_on),
        (gave_back, handing_the_reading_on),
    ] {
        caught(Plant::Weaken(vec![site], Ordering::Relaxed), 2, model, &[RACE, "the ledger", "damaged", "a region"]);
    }
}

#[test]
fn early_flags_and_reused_buffers_are_found() {
    let site = |code| Site::find("ring/writer.rs", code);
    let commit = site("region.phase.store(self.phase + FORWARD, Ordering::Release)");
    for late in ["region.seq.store(info.seq", "region.checked.store(checked", "region.checksum.store(checksum"] {
        caught(Plant::Late(site(late), commit), 2, overwriting, DAMAGE);
    }
    caught(Plant::OneBuffer, 2, overwriting, DAMAGE);
    // Takes what the reader may have taken first.
    caught(Plant::Skip(site("region.phase.compare_exchange(from, to")), 2, overwriting_a_used_ring, DAMAGE);
    let skip = Plant::Skip(Site::find("ring/reader.rs", "region.phase.compare_exchange(readable, phase"));
    caught(skip, 2, overwriting_a_used_ring, DAMAGE);
}

#[test]
fn wrong_sums_and_missed_wake_ups_are_found() {
    let total = Site::find("ring/account.rs", "total.store(after.load(Ordering::Relaxed), Ordering::Release)");
    caught(Plant::Skip(total), 2, overwriting, &["the ledger"]);
    // A bell rung before the region is free.
    let free = Site::find("ring/reader.rs", "regions()[index].phase.store(phase + FORWARD, Ordering::Release)");
    caught(Plant::Skip(free), 2, waiting, &["deadlock"]);
    caught(Plant::Skip(free), 2, keeping, &["deadlock"]);
}
