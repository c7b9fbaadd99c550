//! What records held before they were changed, so that a table returns to its newest snapshot when its writer dies.
//!
//! Before a record changes for the first time since a snapshot, its writer puts the old words here. There are two logs: a snapshot
//! may be begun only when the one before it is on disk, so whoever goes back has at most the changes since the newest snapshot and
//! those since the one before to undo. An entry counts once it is whole, and the record changes only after that: a record that was
//! half written when its writer died has its old words here.

use std::mem::size_of;

use super::error::ShmError;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU64, Ordering};

const KIND: Kind = Kind(8);
/// Words of an entry beside the record's: id, record number, whether it was inserted. They stand apart, so that whoever goes through the
/// records that have changed does not load what they held.
const FRONT: usize = 4;

/// How much there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoShape {
    /// Words of a record.
    pub words: usize,
    /// Records that may change between two snapshots.
    pub entries: usize,
}

impl UndoShape {
    fn fronts_len(self) -> usize {
        2 * self.entries * FRONT * size_of::<u32>()
    }

    fn words_len(self) -> usize {
        self.words * size_of::<u32>()
    }

    fn body_len(self) -> usize {
        size_of::<Head>() + self.fronts_len() + 2 * self.entries * self.words_len()
    }
}

#[repr(C, align(128))]
#[derive(Default)]
struct Head {
    /// Constant after creation.
    words: AtomicU64,
    entries: AtomicU64,
    /// The snapshot since which the newest log holds the changes; it is log `since` mod 2.
    since: AtomicU64,
    lens: [AtomicU64; 2],
}

// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Head {}

/// A change that can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undo<'a> {
    pub id: u64,
    pub record: u32,
    /// The record was handed out then; `words` mean nothing.
    pub inserted: bool,
    pub words: &'a [u32],
}

/// The two logs. One process at a time writes them.
pub struct UndoLog {
    segment: Segment,
    shape: UndoShape,
}

impl UndoLog {
    /// Creates the segment `name` with an empty log of the changes since snapshot `since`. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    pub fn create(name: &str, shape: UndoShape, since: u64) -> Result<Self, ShmError> {
        let log = Self { segment: Segment::create(name, KIND, layout(), shape.body_len())?, shape };
        let head = log.head();
        // Relaxed: other processes are spawned later.
        head.words.store(shape.words as u64, Ordering::Relaxed);
        head.entries.store(shape.entries as u64, Ordering::Relaxed);
        head.since.store(since, Ordering::Relaxed);
        Ok(log)
    }

    /// Opens what main created.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let segment = Segment::open(name, KIND, layout(), size_of::<Head>())?;
        let head = segment.at::<Head>(0);
        // Relaxed: constant since creation.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed) as usize;
        let shape = UndoShape { words: load(&head.words), entries: load(&head.entries) };
        let found = segment.body_len() as u64;
        let fits = shape.words.max(shape.entries) <= segment.body_len();
        let expected = if fits { shape.body_len() as u64 } else { u64::MAX };
        if expected > found {
            return Err(ShmError::Truncated { name: segment.name().into(), expected, found });
        }
        Ok(Self { segment, shape })
    }

    /// How much of `/dev/shm` such logs take.
    pub fn footprint(shape: UndoShape) -> u64 {
        Segment::footprint(shape.body_len())
    }

    pub fn shape(&self) -> UndoShape {
        self.shape
    }

    /// The snapshot since which the newest log holds the changes.
    pub fn since(&self) -> u64 {
        // Acquire: pairs with the Release in `begin`.
        self.head().since.load(Ordering::Acquire)
    }

    /// Begins the log of the changes since snapshot `since`, which overwrites that of two snapshots before.
    pub fn begin(&mut self, since: u64) {
        let head = self.head();
        // Release, in this order: whoever looks after a death in between finds the newest log as it was.
        head.lens[(since % 2) as usize].store(0, Ordering::Release);
        head.since.store(since, Ordering::Release);
    }

    /// Entries of the newest log.
    pub fn len(&self) -> usize {
        self.len_of(self.since())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries of the log of the changes since a snapshot.
    pub fn len_of(&self, since: u64) -> usize {
        // Acquire: pairs with the Release in `push`.
        (self.head().lens[(since % 2) as usize].load(Ordering::Acquire) as usize).min(self.shape.entries)
    }

    /// Adds what a record holds to the newest log, before it changes.
    ///
    /// # Panics
    /// When the log is full: whoever changes records begins a snapshot before that.
    pub fn push(&mut self, id: u64, record: u32, inserted: bool, words: &[u32]) {
        let since = self.since();
        let len = self.len_of(since);
        assert!(len < self.shape.entries, "the log of changes is full at {len} records");
        let (front, at) = self.offsets(since, len);
        // SAFETY: both in bounds and aligned; this process alone writes, and it writes through `&mut self`.
        let bytes = unsafe { self.segment.slice_mut(front, FRONT * size_of::<u32>()) };
        bytemuck::cast_slice_mut(bytes).copy_from_slice(&[id as u32, (id >> 32) as u32, record, inserted.into()]);
        // SAFETY: as above.
        let bytes = unsafe { self.segment.slice_mut(at, self.shape.words_len()) };
        bytemuck::cast_slice_mut(bytes).copy_from_slice(words);
        // Release: pairs with the Acquire in `len_of`; the entry is whole before it counts.
        self.head().lens[(since % 2) as usize].store(len as u64 + 1, Ordering::Release);
    }

    /// The entries of the log of the changes since a snapshot, oldest first.
    pub fn entries(&self, since: u64) -> impl Iterator<Item = Undo<'_>> {
        (0..self.len_of(since)).map(move |number| self.entry(since, number))
    }

    /// An entry of the log of the changes since a snapshot, which has more entries than `number`.
    pub fn entry(&self, since: u64, number: usize) -> Undo<'_> {
        let (front, at) = self.offsets(since, number);
        // SAFETY: the entry is whole; its writer is dead, or is the caller.
        let front: &[u32] = bytemuck::cast_slice(unsafe { self.segment.slice(front, FRONT * size_of::<u32>()) });
        // SAFETY: as above.
        let words = unsafe { self.segment.slice(at, self.shape.words_len()) };
        Undo {
            id: u64::from(front[0]) | u64::from(front[1]) << 32,
            record: front[2],
            inserted: front[3] != 0,
            words: bytemuck::cast_slice(words),
        }
    }

    /// Where the two pieces of an entry are.
    fn offsets(&self, since: u64, number: usize) -> (usize, usize) {
        let entry = (since % 2) as usize * self.shape.entries + number;
        let front = size_of::<Head>() + entry * FRONT * size_of::<u32>();
        (front, size_of::<Head>() + self.shape.fronts_len() + entry * self.shape.words_len())
    }

    fn head(&self) -> &Head {
        self.segment.at::<Head>(0)
    }
}

fn layout() -> u64 {
    layout_hash(&[size_of::<Head>(), FRONT])
}

#[cfg(test)]
mod tests {
    use super::super::crash::kill_after;
    use super::super::segment::tests::unique_name;
    use super::*;

    const SHAPE: UndoShape = UndoShape { words: 2, entries: 3 };

    fn ids(log: &UndoLog, since: u64) -> Vec<u64> {
        log.entries(since).map(|undo| undo.id).collect()
    }

    #[test]
    fn another_process_reads_the_changes_since_the_last_two_snapshots() {
        let name = unique_name("undo");
        let mut log = UndoLog::create(&name, SHAPE, 7).unwrap();
        log.push(u64::MAX - 1, 3, false, &[1, 2]);
        log.push(5, 4, true, &[0, 0]);
        log.begin(8);
        log.push(6, 4, false, &[8, 9]);
        let other = UndoLog::open(&name).unwrap();
        assert_eq!((other.since(), other.len()), (8, 1));
        let first = Undo { id: u64::MAX - 1, record: 3, inserted: false, words: &[1, 2] };
        assert_eq!(other.entries(7).next(), Some(first));
        assert_eq!((ids(&other, 7), ids(&other, 8)), (vec![u64::MAX - 1, 5], vec![6]));
        log.begin(9);
        assert_eq!((ids(&other, 8), ids(&other, 9)), (vec![6], vec![]));
    }

    /// Whenever the writer dies, the newest log holds what was pushed, and the one before it what it held.
    #[test]
    fn a_writer_killed_at_any_store_leaves_whole_entries() {
        for step in 0.. {
            let mut log = UndoLog::create(&unique_name("undo"), SHAPE, 0).unwrap();
            log.push(1, 0, false, &[1, 1]);
            let done = kill_after(step, || {
                log.push(2, 1, false, &[2, 2]);
                log.begin(1);
                log.push(3, 2, false, &[3, 3]);
            });
            match log.since() {
                0 => assert!([vec![1], vec![1, 2]].contains(&ids(&log, 0))),
                _ => assert!(ids(&log, 0) == [1, 2] && [vec![], vec![3]].contains(&ids(&log, 1))),
            }
            if done.is_some() {
                assert!(step >= 4, "every store was a step");
                break;
            }
        }
    }
}
