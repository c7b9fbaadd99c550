//! Memory through which the ranks of one machine exchange gradients: a mean of floats, and bytes of any length from each to all.
//!
//! Every rank has an area of its own and one counter, which it alone stores and which only grows. An exchange has three steps, and
//! the counters say how far everybody is:
//!
//! ```text
//! 3e      all are through with exchange e - 1: areas may be overwritten
//! 3e + 1  my floats and bytes are in my area
//! 3e + 2  my share of the floats is averaged, in the order of the ranks
//! 3e + 3  I have read all that I need from the others
//! ```
//!
//! Each rank averages an equal share of the floats and the others copy the result, so every rank gets the same bytes. A rank's own
//! share never leaves its private memory.
//!
//! **Groups.** Beside this, ranks read rows that one of them writes. The ranks of a machine are split evenly into groups, each with rows of
//! its own: the first rank of a group publishes how far they are written, and the others of the group wait for it: for all rows, or for
//! those that they want. Ranks that do not wait for each other's updates read rows while none is written: a rank says that it reads and then
//! looks whether the first one writes, which says that it writes and then waits for those who read.
//!
//! **Several machines.** Ranks of other machines have areas here, too. [`Remote`] fills them: it hands what the ranks of this machine
//! gave to whoever carries messages between machines, and brings what the others gave. The ranks here average all floats among
//! themselves, in the order of all ranks. So the result has the same bytes as between ranks of one machine.
//!
//! **A dead rank is an error, not a hang.** Whoever learns that a rank is gone poisons the exchange with its number and wakes
//! everybody: main when it reaps the process, a waiting rank when it sees that the process is no more or when the time is up. The
//! poison stays; main makes a new exchange for the ranks that follow.

use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::ShmError;
use super::names::start_time;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use super::wait::{Doorbell, Woken};

pub use remote::{Given, Remote};
pub use seat::{Seat, Written};

#[path = "exchange/remote.rs"]
mod remote;
#[path = "exchange/seat.rs"]
mod seat;
#[path = "exchange/sums.rs"]
mod sums;

const KIND: Kind = Kind(7);
const PAGE: usize = 4096;
/// Most ranks of a run.
pub const MAX_RANKS: usize = 64;
/// How often a waiting rank looks whether the one it waits for is alive.
const LOOK: Duration = Duration::from_millis(200);

/// Why an exchange failed, in every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("rank {rank} died")]
    Died { rank: usize },
    #[error("rank {rank} did not take part in time (ranks.timeout_s)")]
    Late { rank: usize },
    #[error("rank {rank} called for an exchange of another size than the others")]
    Differs { rank: usize },
    #[error("{words} floats and {bytes} bytes do not fit into an exchange for {most_words} and {most_bytes}")]
    TooLong { words: usize, bytes: usize, most_words: usize, most_bytes: usize },
}

impl Broken {
    fn encode(self) -> u64 {
        let (cause, rank) = match self {
            Self::Died { rank } => (1, rank),
            Self::Late { rank } => (2, rank),
            Self::Differs { rank } => (3, rank),
            Self::TooLong { .. } => unreachable!("told to the caller alone"),
        };
        cause << 32 | rank as u64
    }

    fn decode(word: u64) -> Option<Self> {
        let rank = (word & u64::from(u32::MAX)) as usize;
        match word >> 32 {
            0 => None,
            1 => Some(Self::Died { rank }),
            2 => Some(Self::Late { rank }),
            _ => Some(Self::Differs { rank }),
        }
    }
}

/// Sizes of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExchangeShape {
    /// Ranks of all machines.
    pub ranks: usize,
    /// The first rank of this machine, and how many it has.
    pub first: usize,
    pub local: usize,
    /// Groups of this machine's ranks, of equal size.
    pub groups: usize,
    /// Most floats that are averaged at a time.
    pub words: usize,
    /// Most bytes that a rank gives to the others at a time.
    pub bytes: usize,
}

impl ExchangeShape {
    /// Sizes of an exchange between `ranks` of one machine.
    pub fn of_one_machine(ranks: usize, words: usize, bytes: usize) -> Self {
        Self { ranks, first: 0, local: ranks, groups: 1, words, bytes }
    }

    /// The ranks of this machine.
    pub fn here(self) -> Range<usize> {
        self.first..self.first + self.local
    }

    /// Ranks of a group.
    fn group_len(self) -> usize {
        self.local / self.groups
    }

    /// The group of `rank`, one of this machine.
    fn group_of(self, rank: usize) -> usize {
        (rank - self.first) / self.group_len()
    }

    /// The rank that publishes for a group.
    pub fn publisher(self, group: usize) -> usize {
        self.first + group * self.group_len()
    }

    /// Floats that each rank of this machine averages of `words`.
    fn share(self, words: usize) -> usize {
        words.div_ceil(self.local)
    }

    /// The floats that `rank`, one of this machine, averages of `words`.
    fn range(self, rank: usize, words: usize) -> Range<usize> {
        let (share, place) = (self.share(words), rank - self.first);
        (place * share).min(words)..((place + 1) * share).min(words)
    }

    fn lines_at() -> usize {
        size_of::<Head>()
    }

    fn publications_at(self) -> usize {
        Self::lines_at() + self.ranks * size_of::<Line>()
    }

    /// Every part begins on a page of its own.
    fn areas_at(self) -> usize {
        (self.publications_at() + self.groups * size_of::<Publication>()).next_multiple_of(PAGE)
    }

    fn inputs_len(self) -> usize {
        (self.words * size_of::<f32>()).next_multiple_of(PAGE)
    }

    fn result_len(self) -> usize {
        (self.share(self.words) * size_of::<f32>()).next_multiple_of(PAGE)
    }

    fn area_len(self) -> usize {
        self.inputs_len() + self.result_len() + self.bytes.next_multiple_of(PAGE)
    }

    fn body_len(self) -> usize {
        self.areas_at() + self.ranks * self.area_len()
    }

    fn inputs_at(self, rank: usize) -> usize {
        self.areas_at() + rank * self.area_len()
    }

    fn result_at(self, rank: usize) -> usize {
        self.inputs_at(rank) + self.inputs_len()
    }

    fn bytes_at(self, rank: usize) -> usize {
        self.result_at(rank) + self.result_len()
    }
}

#[repr(C, align(128))]
#[derive(Default)]
struct Head {
    /// Constant after creation.
    ranks: AtomicU64,
    first: AtomicU64,
    local: AtomicU64,
    groups: AtomicU64,
    words: AtomicU64,
    bytes: AtomicU64,
    /// Why the exchange is broken; 0 = it is not. The first cause stays.
    poison: AtomicU64,
    /// Rung when a group's rows are published, when a rank has read some, and by whoever poisons the exchange.
    news: Doorbell,
}

/// The rows of a group; stored by its first rank.
#[repr(C, align(128))]
#[derive(Default)]
struct Publication {
    /// Twice the number of the newest rows that are written for all of the group. One more than that while the next ones are being written:
    /// from the first one on where the ranks overlap, else as soon as the others of the group may read all that they want.
    published: AtomicU64,
}

/// One rank; stored by itself.
#[repr(C, align(128))]
#[derive(Default)]
struct Line {
    /// How far the rank is.
    step: AtomicU64,
    /// What it called for in the exchange under way.
    words: AtomicU64,
    bytes: AtomicU64,
    /// Bytes at the end that stay on this machine.
    here: AtomicU64,
    /// Of overlapping ranks: twice the newest iteration whose rows it has read, or will not read before it has met the others. One more than
    /// that while it reads rows, or looks whether it may.
    read: AtomicU64,
    /// Start time of its process; 0 where `/proc` does not tell.
    start_time: AtomicU64,
    pid: AtomicU32,
    /// Rung whenever `step` grows, and by whoever poisons the exchange.
    bell: Doorbell,
}

// SAFETY: repr(C), atomics and structs of atomics only.
unsafe impl Shareable for Head {}
// SAFETY: as above.
unsafe impl Shareable for Publication {}
// SAFETY: as above.
unsafe impl Shareable for Line {}

/// The exchange of a run, as main and every rank map it.
pub struct Exchange {
    segment: Segment,
    shape: ExchangeShape,
}

impl Exchange {
    /// Creates the segment `name`. Only main does this.
    ///
    /// # Errors
    /// When the name is taken or `/dev/shm` has no room.
    ///
    /// # Panics
    /// Without ranks, with more than [`MAX_RANKS`], or with groups of different size.
    pub fn create(name: &str, shape: ExchangeShape) -> Result<Self, ShmError> {
        assert!((1..=MAX_RANKS).contains(&shape.ranks), "{} ranks", shape.ranks);
        assert!(shape.local > 0 && shape.here().end <= shape.ranks, "ranks {:?} of {}", shape.here(), shape.ranks);
        assert!(shape.groups > 0 && shape.local.is_multiple_of(shape.groups), "{} groups", shape.groups);
        let segment = Segment::create(name, KIND, layout(), shape.body_len())?;
        let head = segment.at::<Head>(0);
        // Relaxed: the ranks are spawned later.
        for (word, value) in [
            (&head.ranks, shape.ranks),
            (&head.first, shape.first),
            (&head.local, shape.local),
            (&head.groups, shape.groups),
            (&head.words, shape.words),
            (&head.bytes, shape.bytes),
        ] {
            word.store(value as u64, Ordering::Relaxed);
        }
        Ok(Self { segment, shape })
    }

    /// Opens the exchange that main created.
    ///
    /// # Errors
    /// When the segment is missing, damaged or of another build.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        let segment = Segment::open(name, KIND, layout(), size_of::<Head>())?;
        let head = segment.at::<Head>(0);
        // Relaxed: constant since creation.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed) as usize;
        let shape = ExchangeShape {
            ranks: load(&head.ranks),
            first: load(&head.first),
            local: load(&head.local),
            groups: load(&head.groups),
            words: load(&head.words),
            bytes: load(&head.bytes),
        };
        let found = segment.body_len();
        let fits = (1..=MAX_RANKS).contains(&shape.ranks)
            && (1..=MAX_RANKS).contains(&shape.local)
            && shape.first <= shape.ranks - shape.local.min(shape.ranks)
            && shape.local <= shape.ranks
            && shape.groups > 0
            && shape.local.is_multiple_of(shape.groups)
            && shape.words.max(shape.bytes) <= found;
        let expected = if fits { shape.body_len() } else { usize::MAX };
        if expected > found {
            let (expected, found) = (expected as u64, found as u64);
            return Err(ShmError::Truncated { name: segment.name().into(), expected, found });
        }
        Ok(Self { segment, shape })
    }

    /// How much of `/dev/shm` such an exchange takes.
    pub fn footprint(shape: ExchangeShape) -> u64 {
        Segment::footprint(shape.body_len())
    }

    pub fn shape(&self) -> ExchangeShape {
        self.shape
    }

    /// Says that a process is gone: main, when it has reaped a rank.
    pub fn died(&self, rank: usize) {
        self.break_off(Broken::Died { rank });
    }

    /// Says that a rank has not given in time what another process waits for.
    pub fn late(&self, rank: usize) {
        self.break_off(Broken::Late { rank });
    }

    /// Says that what a group of ranks shares is written up to `generation`. Its first rank does this.
    pub fn publish(&self, group: usize, generation: u64) {
        // Release: pairs with the Acquire in `wait_publication` and `read_shared`; what was written comes before the number.
        self.publication(group).published.store(2 * generation, Ordering::Release);
        self.head().news.ring();
    }

    /// Says that those rows of `generation` are written that the others of the group read next. Its first rank does this.
    pub fn publish_wanted(&self, group: usize, generation: u64) {
        // Release: pairs with the Acquire in `wait_wanted`; what was written comes before the number.
        self.publication(group).published.store(2 * generation - 1, Ordering::Release);
        self.head().news.ring();
    }

    /// Waits until all ranks of a group have read the rows of `iteration`, as they say by [`Seat::read_shared`] and [`Seat::has_read`], or `ends`
    /// says so. A rank that does not come for `timeout` breaks the exchange.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn wait_read(
        &self,
        group: usize,
        iteration: u64,
        timeout: Duration,
        ends: impl Fn() -> bool,
    ) -> Result<(), Broken> {
        self.wait_for_readers(group, timeout, |read| read / 2 >= iteration || ends())
    }

    /// Says that the first rank of a group begins to change what the group shares, and waits until nobody reads it any more. A rank that reads for
    /// `timeout` breaks the exchange.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn begin_write(&self, group: usize, timeout: Duration) -> Result<(), Broken> {
        let word = &self.publication(group).published;
        // Relaxed: the first rank's own store.
        let published = word.load(Ordering::Relaxed);
        word.store(published | 1, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `Reading::begin`. A rank that reads sees the odd number, or its own is seen here.
        fence(Ordering::SeqCst);
        self.wait_for_readers(group, timeout, |read| read % 2 == 0)
    }

    /// Waits until what each rank of a group says of its reading is enough.
    fn wait_for_readers(&self, group: usize, timeout: Duration, is_enough: impl Fn(u64) -> bool) -> Result<(), Broken> {
        let begun = Instant::now();
        let first = self.shape.publisher(group);
        for rank in first..first + self.shape.group_len() {
            loop {
                let seen = self.news().value();
                // Acquire: pairs with the Release in `has_read`; what is written comes after the reads.
                if is_enough(self.line(rank).read.load(Ordering::Acquire)) {
                    break;
                }
                if let Some(broken) = self.broken() {
                    return Err(broken);
                }
                let left = timeout.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    self.break_off(Broken::Late { rank });
                } else if self.news().wait(seen, left.min(LOOK)) == Woken::TimedOut && self.is_gone(rank) {
                    self.break_off(Broken::Died { rank });
                }
            }
        }
        Ok(())
    }

    /// The newest generation that is published in a group.
    pub fn published(&self, group: usize) -> u64 {
        // Acquire: pairs with the Release in `publish`.
        self.publication(group).published.load(Ordering::Acquire) / 2
    }

    /// Rung at every publication, and when a rank has read; other news of the ranks may ring it as well.
    pub fn news(&self) -> &Doorbell {
        &self.head().news
    }

    /// Why the exchange is broken, if it is.
    pub fn broken(&self) -> Option<Broken> {
        // Acquire: pairs with the Release in `break_off`.
        Broken::decode(self.head().poison.load(Ordering::Acquire))
    }

    /// Poisons the exchange, unless it is broken already, and wakes everybody.
    fn break_off(&self, cause: Broken) {
        // Release: pairs with the Acquire in `broken`. The first cause stays.
        let _ = self.head().poison.compare_exchange(0, cause.encode(), Ordering::Release, Ordering::Relaxed);
        for rank in 0..self.shape.ranks {
            self.line(rank).bell.ring();
        }
        self.head().news.ring();
    }

    /// Whether the process of a rank that signed in is no more.
    fn is_gone(&self, rank: usize) -> bool {
        let line = self.line(rank);
        // Acquire: pairs with the Release in `join`.
        let pid = line.pid.load(Ordering::Acquire);
        // Relaxed: acquired with the pid.
        let started = line.start_time.load(Ordering::Relaxed);
        pid != 0 && started != 0 && start_time(pid) != Some(started)
    }

    fn head(&self) -> &Head {
        self.segment.at::<Head>(0)
    }

    fn publication(&self, group: usize) -> &Publication {
        &self.segment.array::<Publication>(self.shape.publications_at(), self.shape.groups)[group]
    }

    fn line(&self, rank: usize) -> &Line {
        &self.segment.array::<Line>(ExchangeShape::lines_at(), self.shape.ranks)[rank]
    }
}

fn layout() -> u64 {
    layout_hash(&[
        size_of::<Head>(),
        offset_of!(Head, news),
        size_of::<Line>(),
        offset_of!(Line, here),
        offset_of!(Line, read),
        offset_of!(Line, pid),
        offset_of!(Line, bell),
        size_of::<Publication>(),
    ])
}

#[cfg(test)]
#[path = "exchange/tests.rs"]
mod tests;
