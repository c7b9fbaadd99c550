//! Two halves of shared memory through which the learner hands over snapshots without waiting for the disk.
//!
//! The learner puts snapshot s into half s mod 2 and goes on; the checkpointer copies complete halves to disk. A snapshot has
//! two parts with separate owners, the dense state (networks, optimisers, counters) and the sparse one (the changes since the
//! previous snapshot: blocks of the replay pool, rows of a table), and is complete when both are there.
//!
//! Flags that two parties set and clear lose signals. Here there are counters that only grow, each stored by one party, and the
//! flags follow from them:
//!
//! ```text
//! dense ready for s    dense_ready  >= s     stored by the owner of the dense part
//! sparse ready for s   sparse_ready >= s     stored by the owner of the sparse part
//! complete             both
//! on disk              committed    >= s     stored by the checkpointer
//! may be begun         committed    >= s-1   then the other half is on disk, and half s mod 2 is unused
//! ```
//!
//! Therefore base (the newest snapshot on disk) + a complete half is always a whole snapshot. As s is begun only when s-1 is on
//! disk, its sparse part holds the changes since exactly that base. A party that is killed at any point leaves a half that is
//! either complete or will be begun again; no process waits for a dead one.
//!
//! An owner that does not want to stop for its part writes it piece by piece beside its other work ([`PartWriter`]): the part is ready when the
//! last piece is there.

use std::hash::Hasher as _;
use std::mem::{offset_of, size_of};
use std::ops::Deref;

use serde::Serialize;
use twox_hash::XxHash3_64;

use super::error::ShmError;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU64, Ordering};
use super::wait::Doorbell;

const KIND: Kind = Kind(4);
const PAGE: usize = 4096;

/// Capacity for the parts of a snapshot, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfShape {
    pub dense: usize,
    pub sparse: usize,
}

#[repr(C, align(128))]
#[derive(Default)]
struct Head {
    /// Constant after creation.
    dense_capacity: AtomicU64,
    sparse_capacity: AtomicU64,
    dense_ready: Line,
    sparse_ready: Line,
    committed: Line,
    /// Rung when a part becomes ready and when a snapshot is committed.
    news: BellLine,
    /// Headers of the parts: by half, then dense, sparse.
    parts: [[PartHead; 2]; 2],
}

/// A counter on its own cache line, because each is stored by another party.
#[repr(C, align(128))]
#[derive(Default)]
struct Line(AtomicU64);

#[repr(C, align(128))]
#[derive(Default)]
struct BellLine(Doorbell);

/// Header of a part. Stored by the part's owner while the half is open to it; constant while the part is ready and not
/// committed.
#[repr(C, align(128))]
#[derive(Default)]
struct PartHead {
    snapshot: AtomicU64,
    /// Update count of the state.
    update: AtomicU64,
    len: AtomicU64,
    /// xxh3 of the bytes, seeded by snapshot and update.
    checksum: AtomicU64,
}

// SAFETY: repr(C), atomics and structs of atomics only.
unsafe impl Shareable for Head {}

/// A part of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Dense,
    Sparse,
}

impl Part {
    fn index(self) -> usize {
        match self {
            Self::Dense => 0,
            Self::Sparse => 1,
        }
    }
}

/// A complete snapshot in shared memory that is not on disk yet. It does not change until it is committed.
#[derive(Debug, Clone, Copy)]
pub struct Complete<'a> {
    pub snapshot: u64,
    pub update: u64,
    pub dense: &'a [u8],
    pub sparse: &'a [u8],
}

/// State of the halves at one moment, derived from the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HalvesView {
    /// Newest snapshot for which each part is ready.
    pub dense_ready: u64,
    pub sparse_ready: u64,
    /// Newest snapshot on disk.
    pub committed: u64,
    pub halves: [HalfView; 2],
}

/// State of one half at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HalfView {
    pub state: HalfState,
    /// Contents of its part headers; those of a snapshot on disk stay until they are overwritten.
    pub snapshot: u64,
    pub update: u64,
    pub dense_bytes: u64,
    pub sparse_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HalfState {
    /// The content is not needed any more; it may be being overwritten.
    Free,
    /// One part of a snapshot is ready.
    Begun,
    /// A complete snapshot that is not on disk yet.
    Complete,
}

/// A part that is being written piece by piece, over a while if its owner has other things to do. Nobody sees it before it is finished; if it
/// never is, the snapshot is begun again.
pub struct PartWriter<H> {
    halves: H,
    part: Part,
    snapshot: u64,
    update: u64,
    len: usize,
    /// Of the bytes before `hashed`.
    hasher: XxHash3_64,
    hashed: usize,
}

/// Bytes that are hashed together, while they are in the processor's cache.
const HASHED: usize = 1 << 16;

impl<H: Deref<Target = Halves>> PartWriter<H> {
    /// Begins a part of `snapshot`, the state after `update`; as [`Halves::write`].
    ///
    /// # Panics
    /// When the snapshot may not be begun.
    pub fn begin(halves: H, part: Part, snapshot: u64, update: u64) -> Self {
        assert!(halves.next() == Some(snapshot), "snapshot {snapshot} may not be begun");
        let hasher = XxHash3_64::with_seed(seed(snapshot, update));
        Self { halves, part, snapshot, update, len: 0, hasher, hashed: 0 }
    }

    /// Number of the snapshot.
    pub fn snapshot(&self) -> u64 {
        self.snapshot
    }

    /// Checks that so many more bytes fit.
    ///
    /// # Errors
    /// They do not.
    pub fn check_room(&self, bytes: usize) -> Result<(), ShmError> {
        let capacity = self.halves.capacity(self.part);
        if bytes > capacity - self.len {
            return Err(ShmError::SnapshotTooLarge { needed: (self.len + bytes) as u64, capacity: capacity as u64 });
        }
        Ok(())
    }

    /// Adds a piece.
    ///
    /// # Errors
    /// It does not fit.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), ShmError> {
        self.check_room(piece.len())?;
        let at = self.halves.offset(self.part, self.snapshot);
        // SAFETY: these bytes are this part's; until it is declared ready below only its one owner touches them: the
        // checkpointer reads complete halves only, and this half's last snapshot is two behind, hence committed.
        let room = unsafe { self.halves.segment.slice_mut(at + self.len, piece.len()) };
        room.copy_from_slice(piece);
        self.len += piece.len();
        if self.len - self.hashed >= HASHED {
            self.hash();
        }
        Ok(())
    }

    fn hash(&mut self) {
        let at = self.halves.offset(self.part, self.snapshot) + self.hashed;
        // SAFETY: as above, and the writer alone has these bytes.
        let bytes = unsafe { self.halves.segment.slice(at, self.len - self.hashed) };
        self.hasher.write(bytes);
        self.hashed = self.len;
    }

    /// Declares the part ready.
    pub fn finish(mut self) {
        self.hash();
        let head = self.halves.part(self.part, self.snapshot);
        // Relaxed: made visible by the counter below.
        head.snapshot.store(self.snapshot, Ordering::Relaxed);
        head.update.store(self.update, Ordering::Relaxed);
        head.len.store(self.len as u64, Ordering::Relaxed);
        head.checksum.store(self.hasher.finish(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `complete`; bytes and header come before the number.
        self.halves.ready(self.part).store(self.snapshot, Ordering::Release);
        self.halves.news().ring();
    }
}

/// A handle to the halves of a run.
pub struct Halves {
    segment: Segment,
    shape: HalfShape,
}

impl Halves {
    /// Creates the segment `name`. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` is too small.
    pub fn create(name: &str, shape: HalfShape) -> Result<Self, ShmError> {
        let segment = Segment::create(name, KIND, layout(), body_len(shape))?;
        let head = segment.at::<Head>(0);
        // Relaxed: children that open the halves are spawned later.
        head.dense_capacity.store(shape.dense as u64, Ordering::Relaxed);
        head.sparse_capacity.store(shape.sparse as u64, Ordering::Relaxed);
        Ok(Self { segment, shape })
    }

    /// Opens the halves that main created.
    ///
    /// # Errors
    /// When the segment is missing or does not hold halves of this build.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::open(name, KIND, layout(), size_of::<Head>())?)
    }

    /// Opens the halves for observation: the map is private, so that stores through it have no effect on the run.
    ///
    /// # Errors
    /// As [`Halves::open`].
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::observe(name, KIND, layout(), size_of::<Head>())?)
    }

    fn of(segment: Segment) -> Result<Self, ShmError> {
        let head = segment.at::<Head>(0);
        // Relaxed: constant since creation.
        let claimed = [&head.dense_capacity, &head.sparse_capacity].map(|c| c.load(Ordering::Relaxed));
        let room = segment.body_len() as u64;
        let shape = HalfShape { dense: claimed[0] as usize, sparse: claimed[1] as usize };
        if claimed.iter().any(|c| *c > room) || body_len(shape) as u64 > room {
            let expected = claimed[0].saturating_add(claimed[1]).saturating_mul(2);
            return Err(ShmError::Truncated { name: segment.name().into(), expected, found: room });
        }
        Ok(Self { segment, shape })
    }

    /// Returns the bytes of `/dev/shm` that halves of this shape take.
    pub fn footprint(shape: HalfShape) -> u64 {
        Segment::footprint(body_len(shape))
    }

    /// Returns the doorbell that is rung when a part becomes ready and when a snapshot is committed.
    pub fn news(&self) -> &Doorbell {
        &self.head().news.0
    }

    /// Returns the number of the newest snapshot on disk, 0 for none.
    pub fn committed(&self) -> u64 {
        // Acquire: pairs with the Release in `commit`; the checkpointer's reads of the half are over.
        self.head().committed.0.load(Ordering::Acquire)
    }

    /// Returns the number of the newest complete snapshot, on disk or not; 0 for none.
    pub fn complete(&self) -> u64 {
        let head = self.head();
        // Acquire: pairs with the Release in `write`; a process that sees the number sees the part.
        head.dense_ready.0.load(Ordering::Acquire).min(head.sparse_ready.0.load(Ordering::Acquire))
    }

    /// Reads the counters. [`Halves::pending`] also checks the bytes.
    pub fn view(&self) -> HalvesView {
        loop {
            let seen = self.look();
            // Otherwise a snapshot was committed meanwhile, and the numbers may be of different moments.
            if seen.committed == self.committed() {
                return seen;
            }
        }
    }

    fn look(&self) -> HalvesView {
        let head = self.head();
        // First, so that the ready counters are at least as new.
        let committed = self.committed();
        // Acquire: pairs with the Release in `write`; headers are those of the snapshot or of a later one.
        let [dense_ready, sparse_ready] =
            [Part::Dense, Part::Sparse].map(|part| self.ready(part).load(Ordering::Acquire));
        let halves = [0, 1].map(|half| {
            let ready = |newest: u64| newest > committed && newest % 2 == half;
            let [dense, sparse] = &head.parts[half as usize];
            // Relaxed: numbers for display.
            let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
            HalfView {
                state: match (ready(dense_ready), ready(sparse_ready)) {
                    (true, true) => HalfState::Complete,
                    (false, false) => HalfState::Free,
                    _ => HalfState::Begun,
                },
                snapshot: load(&dense.snapshot),
                update: load(&dense.update),
                dense_bytes: load(&dense.len),
                sparse_bytes: load(&sparse.len),
            }
        });
        HalvesView { dense_ready, sparse_ready, committed, halves }
    }

    /// Returns the snapshot that may be begun now; `None` while the previous one is not on disk.
    pub fn next(&self) -> Option<u64> {
        let committed = self.committed();
        // From its owner's view a snapshot is complete or not begun; a dead owner's partial snapshot is begun again.
        (self.complete() <= committed).then_some(committed + 1)
    }

    /// Writes a part of `snapshot`, the state after `update`, and declares it ready. The `pieces` are stored one after another.
    /// Each part has one owner, which writes it when [`Halves::next`] allows the snapshot. A process that owns both parts
    /// always writes them in the same order: if it is killed in between, the part that its successor overwrites counts as ready
    /// all the time, and only the missing other part keeps the checkpointer from reading it.
    ///
    /// # Errors
    /// A part that does not fit; it is then not declared ready.
    pub fn write<'a>(
        &self,
        part: Part,
        snapshot: u64,
        update: u64,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), ShmError> {
        let mut writer = PartWriter::begin(self, part, snapshot, update);
        for piece in pieces {
            writer.push(piece)?;
        }
        writer.finish();
        Ok(())
    }

    /// Returns the complete snapshot that is not on disk yet, if there is one.
    ///
    /// # Errors
    /// [`ShmError::DamagedSnapshot`]: its parts do not belong together or differ from what their owners wrote.
    pub fn pending(&self) -> Result<Option<Complete<'_>>, ShmError> {
        let snapshot = self.complete();
        if snapshot <= self.committed() {
            return Ok(None);
        }
        let damaged = |what| ShmError::DamagedSnapshot { snapshot, what };
        let read = |part| {
            let head = self.part(part, snapshot);
            // Relaxed: acquired with the counters in `complete`.
            let update = head.update.load(Ordering::Relaxed);
            let len = head.len.load(Ordering::Relaxed);
            if head.snapshot.load(Ordering::Relaxed) != snapshot {
                return Err(damaged("a part of another snapshot"));
            }
            if len > self.capacity(part) as u64 {
                return Err(damaged("an impossible length"));
            }
            // SAFETY: the part is ready and not committed: nobody writes to it until `committed` reaches its number, which the
            // one checkpointer stores, and the returned value borrows `self` here.
            let bytes = unsafe { self.segment.slice(self.offset(part, snapshot), len as usize) };
            if checksum(snapshot, update, bytes) != head.checksum.load(Ordering::Relaxed) {
                return Err(damaged("a wrong checksum"));
            }
            Ok((update, bytes))
        };
        let (update, dense) = read(Part::Dense)?;
        let (other, sparse) = read(Part::Sparse)?;
        if update != other {
            return Err(damaged("parts of different updates"));
        }
        Ok(Some(Complete { snapshot, update, dense, sparse }))
    }

    /// Takes back what was declared ready of snapshots after `snapshot`, which was the newest one that came about. Called by the one
    /// owner of both parts before it writes again, where another process decides whether a snapshot is whole.
    pub fn give_up_after(&self, snapshot: u64) {
        for part in [Part::Dense, Part::Sparse] {
            let (ready, whole) = (self.ready(part), snapshot.max(self.committed()));
            // Relaxed: the owner alone stores it.
            if ready.load(Ordering::Relaxed) > whole {
                // Release: as in `write`.
                ready.store(whole, Ordering::Release);
            }
        }
    }

    /// Marks everything up to `snapshot` as committed. Called by the checkpointer once the snapshot is on disk, and by main,
    /// before there are other processes, when a run resumes from a snapshot.
    pub fn commit(&self, snapshot: u64) {
        let head = self.head();
        // Release: pairs with the Acquire in `committed`; our reads of the half come before it may be overwritten.
        head.committed.0.fetch_max(snapshot, Ordering::Release);
        self.news().ring();
    }

    fn head(&self) -> &Head {
        self.segment.at::<Head>(0)
    }

    fn part(&self, part: Part, snapshot: u64) -> &PartHead {
        &self.head().parts[(snapshot % 2) as usize][part.index()]
    }

    fn ready(&self, part: Part) -> &AtomicU64 {
        match part {
            Part::Dense => &self.head().dense_ready.0,
            Part::Sparse => &self.head().sparse_ready.0,
        }
    }

    fn capacity(&self, part: Part) -> usize {
        match part {
            Part::Dense => self.shape.dense,
            Part::Sparse => self.shape.sparse,
        }
    }

    /// Returns the offset of a part's bytes in the segment.
    fn offset(&self, part: Part, snapshot: u64) -> usize {
        let half = (snapshot % 2) as usize * half_len(self.shape);
        let offset = match part {
            Part::Dense => 0,
            Part::Sparse => self.shape.dense.next_multiple_of(PAGE),
        };
        first_half() + half + offset
    }
}

fn first_half() -> usize {
    size_of::<Head>().next_multiple_of(PAGE)
}

fn half_len(shape: HalfShape) -> usize {
    shape.dense.next_multiple_of(PAGE) + shape.sparse.next_multiple_of(PAGE)
}

fn body_len(shape: HalfShape) -> usize {
    first_half() + 2 * half_len(shape)
}

fn layout() -> u64 {
    layout_hash(&[size_of::<Head>(), offset_of!(Head, news), offset_of!(Head, parts), size_of::<PartHead>(), PAGE])
}

/// Seed of the checksum of a part.
fn seed(snapshot: u64, update: u64) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(&[snapshot, update]))
}

fn checksum(snapshot: u64, update: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed(snapshot, update), bytes)
}

#[cfg(test)]
mod tests {
    use super::super::crash::kill_after;
    use super::super::segment::tests::unique_name;
    use super::*;

    const SHAPE: HalfShape = HalfShape { dense: 5000, sparse: 300 };

    fn halves() -> Halves {
        Halves::create(&unique_name("halves"), SHAPE).unwrap()
    }

    fn dense(update: u64) -> Vec<u8> {
        vec![update as u8; 4000 + update as usize]
    }

    fn sparse(update: u64) -> Vec<u8> {
        vec![!update as u8; 100 + update as usize]
    }

    fn snapshot(halves: &Halves, update: u64) {
        let n = halves.next().unwrap();
        halves.write(Part::Dense, n, update, [&dense(update)[..]]).unwrap();
        let rows = sparse(update);
        let (a, b) = rows.split_at(7);
        halves.write(Part::Sparse, n, update, [a, b]).unwrap();
    }

    fn check(complete: &Complete<'_>) {
        assert_eq!(complete.dense, dense(complete.update));
        assert_eq!(complete.sparse, sparse(complete.update));
    }

    #[test]
    fn a_part_of_a_snapshot_that_never_came_about_is_begun_again() {
        let (first, other) = (halves(), halves());
        for update in 1..4 {
            // The other one's is there, the first one's is not.
            snapshot(&other, update);
            assert_eq!(other.next(), None);
            other.give_up_after(first.complete());
            assert_eq!((other.next(), other.complete()), (Some(update), update - 1));
            // Now both are, and it stays.
            snapshot(&other, update);
            snapshot(&first, update);
            other.give_up_after(first.complete());
            check(&other.pending().unwrap().unwrap());
            first.commit(update);
            other.commit(update);
            // What is on disk is never given up.
            other.give_up_after(0);
            assert_eq!(other.next(), Some(update + 1));
        }
    }

    #[test]
    fn a_part_that_is_written_over_a_while_is_not_seen_before_it_is_finished() {
        let shape = HalfShape { dense: 1, sparse: 3 * HASHED };
        let halves = Halves::create(&unique_name("halves"), shape).unwrap();
        halves.write(Part::Dense, 1, 5, []).unwrap();
        let bytes: Vec<u8> = (0..2 * HASHED as u32 + 999).map(|i| (i >> 3) as u8).collect();
        let mut writer = PartWriter::begin(&halves, Part::Sparse, 1, 5);
        for piece in bytes.chunks(777) {
            writer.push(piece).unwrap();
            assert!(halves.pending().unwrap().is_none() && halves.next() == Some(1));
        }
        assert!(matches!(writer.push(&bytes), Err(ShmError::SnapshotTooLarge { .. })));
        writer.finish();
        assert_eq!(halves.pending().unwrap().expect("complete").sparse, bytes);
    }

    #[test]
    fn a_half_is_overwritten_only_when_the_other_is_on_disk() {
        let name = unique_name("halves");
        let learner = Halves::create(&name, SHAPE).unwrap();
        let checkpointer = Halves::open(&name).unwrap();
        assert!(checkpointer.pending().unwrap().is_none());
        for update in 1..6 {
            assert_eq!(learner.next(), Some(update));
            snapshot(&learner, update);
            assert_eq!(learner.next(), None, "the last one is not on disk");
            let complete = checkpointer.pending().unwrap().expect("complete");
            assert_eq!((complete.snapshot, complete.update), (update, update));
            check(&complete);
            checkpointer.commit(complete.snapshot);
            assert!(checkpointer.pending().unwrap().is_none());
        }
    }

    #[test]
    fn a_look_tells_the_state_of_each_half() {
        let name = unique_name("halves");
        let halves = Halves::create(&name, SHAPE).unwrap();
        let states = || Halves::observe(&name).unwrap().view().halves.map(|half| half.state);
        assert_eq!(states(), [HalfState::Free; 2]);
        halves.write(Part::Dense, 1, 5, [&dense(5)[..]]).unwrap();
        assert_eq!(states(), [HalfState::Free, HalfState::Begun]);
        halves.write(Part::Sparse, 1, 5, [&sparse(5)[..]]).unwrap();
        assert_eq!(states(), [HalfState::Free, HalfState::Complete]);
        halves.commit(1);
        assert_eq!(states(), [HalfState::Free; 2]);
        snapshot(&halves, 6);
        let view = halves.view();
        assert_eq!((view.dense_ready, view.sparse_ready, view.committed), (2, 2, 1));
        assert_eq!(view.halves.map(|half| half.state), [HalfState::Complete, HalfState::Free]);
        let half = view.halves[0];
        assert_eq!((half.snapshot, half.update, half.dense_bytes, half.sparse_bytes), (2, 6, 4006, 106));
    }

    #[test]
    fn half_a_snapshot_is_none() {
        let halves = halves();
        halves.write(Part::Dense, 1, 5, [&dense(5)[..]]).unwrap();
        assert!(halves.pending().unwrap().is_none());
        assert_eq!(halves.next(), Some(1), "begun anew by whoever follows a dead owner");
        snapshot(&halves, 6);
        check(&halves.pending().unwrap().expect("complete"));
    }

    #[test]
    fn parts_of_different_updates_are_refused() {
        let halves = halves();
        halves.write(Part::Dense, 1, 5, [&dense(5)[..]]).unwrap();
        halves.write(Part::Sparse, 1, 6, [&sparse(6)[..]]).unwrap();
        assert!(matches!(halves.pending(), Err(ShmError::DamagedSnapshot { .. })));
    }

    #[test]
    fn damage_and_lack_of_room_are_told() {
        let halves = halves();
        let large = vec![0; SHAPE.sparse + 1];
        let refused = halves.write(Part::Sparse, 1, 1, [&large[..]]);
        assert!(matches!(refused, Err(ShmError::SnapshotTooLarge { needed: 301, capacity: 300 })));
        snapshot(&halves, 3);
        // SAFETY: a byte of the dense part; nobody else accesses it.
        unsafe { halves.segment.slice_mut(halves.offset(Part::Dense, 1), 18)[17] ^= 1 };
        assert!(matches!(halves.pending(), Err(ShmError::DamagedSnapshot { .. })));
    }

    #[test]
    fn an_owner_killed_at_any_store_leaves_the_last_snapshot_and_a_successor_goes_on() {
        for step in 0.. {
            let halves = halves();
            snapshot(&halves, 1);
            halves.commit(1);
            let done = kill_after(step, || snapshot(&halves, 2));
            if let Some(complete) = halves.pending().unwrap() {
                assert_eq!(complete.update, 2);
                check(&complete);
                halves.commit(complete.snapshot);
            }
            snapshot(&halves, 3);
            check(&halves.pending().unwrap().expect("complete"));
            if done.is_some() {
                assert!(step >= 10, "every store was a step");
                break;
            }
        }
    }

    #[test]
    fn a_checkpointer_killed_at_any_store_commits_again() {
        for step in 0..4 {
            let halves = halves();
            snapshot(&halves, 1);
            kill_after(step, || halves.commit(1));
            // Its successor finds snapshot 1 on disk or not, and commits it.
            halves.commit(1);
            assert_eq!(halves.next(), Some(2));
        }
    }
}
