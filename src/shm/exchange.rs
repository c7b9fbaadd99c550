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
//! **Several machines.** Ranks of other machines have areas here, too. [`Remote`] fills them: it hands what the ranks of this machine
//! gave to whoever carries messages between machines, and brings what the others gave. The ranks here average all floats among
//! themselves, in the order of all ranks. So the result has the same bytes as between ranks of one machine.
//!
//! **A dead rank is an error, not a hang.** Whoever learns that a rank is gone poisons the exchange with its number and wakes
//! everybody: main when it reaps the process, a waiting rank when it sees that the process is no more or when the time is up. The
//! poison stays; main makes a new exchange for the ranks that follow.

use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::ShmError;
use super::futex::Patience;
use super::names::start_time;
use super::pod::Shareable;
use super::segment::{Kind, Segment, layout_hash};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use super::wait::{Doorbell, Woken};
use sums::{average_all, average_two};

pub use remote::{Given, Remote};

#[path = "exchange/remote.rs"]
mod remote;
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
    /// Most floats that are averaged at a time.
    pub words: usize,
    /// Most bytes that a rank gives to the others at a time.
    pub bytes: usize,
}

impl ExchangeShape {
    /// Sizes of an exchange between `ranks` of one machine.
    pub fn of_one_machine(ranks: usize, words: usize, bytes: usize) -> Self {
        Self { ranks, first: 0, local: ranks, words, bytes }
    }

    /// The ranks of this machine.
    pub fn here(self) -> Range<usize> {
        self.first..self.first + self.local
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

    /// Every part begins on a page of its own.
    fn areas_at(self) -> usize {
        (Self::lines_at() + self.ranks * size_of::<Line>()).next_multiple_of(PAGE)
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
    words: AtomicU64,
    bytes: AtomicU64,
    /// Why the exchange is broken; 0 = it is not. The first cause stays.
    poison: AtomicU64,
    /// Twice the number of the newest rows that this machine's first rank has written for all; odd while it writes the next ones.
    published: AtomicU64,
    /// Rung when `published` grows, and by whoever poisons the exchange.
    news: Doorbell,
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
    /// Start time of its process; 0 where `/proc` does not tell.
    start_time: AtomicU64,
    pid: AtomicU32,
    /// Rung whenever `step` grows, and by whoever poisons the exchange.
    bell: Doorbell,
}

// SAFETY: repr(C), atomics and structs of atomics only.
unsafe impl Shareable for Head {}
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
    /// Without ranks, or with more than [`MAX_RANKS`].
    pub fn create(name: &str, shape: ExchangeShape) -> Result<Self, ShmError> {
        assert!((1..=MAX_RANKS).contains(&shape.ranks), "{} ranks", shape.ranks);
        assert!(shape.local > 0 && shape.here().end <= shape.ranks, "ranks {:?} of {}", shape.here(), shape.ranks);
        let segment = Segment::create(name, KIND, layout(), shape.body_len())?;
        let head = segment.at::<Head>(0);
        // Relaxed: the ranks are spawned later.
        for (word, value) in [
            (&head.ranks, shape.ranks),
            (&head.first, shape.first),
            (&head.local, shape.local),
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
            words: load(&head.words),
            bytes: load(&head.bytes),
        };
        let found = segment.body_len();
        let fits = (1..=MAX_RANKS).contains(&shape.ranks)
            && (1..=MAX_RANKS).contains(&shape.local)
            && shape.first <= shape.ranks - shape.local.min(shape.ranks)
            && shape.local <= shape.ranks
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

    /// Takes the seat of `rank`, one of this machine. An exchange in which somebody does not take part for `timeout` is broken.
    ///
    /// # Errors
    /// When another process has the seat.
    pub fn join(self: &Arc<Self>, rank: usize, timeout: Duration) -> Result<Seat, ShmError> {
        let line = self.line(rank);
        let me = std::process::id();
        // Relaxed: published by the pid below.
        line.start_time.store(start_time(me).unwrap_or(0), Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_gone`.
        match line.pid.compare_exchange(0, me, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                let crowded = Patience::is_crowded(self.shape.local);
                Ok(Seat { exchange: Arc::clone(self), rank, done: 0, timeout, crowded })
            }
            Err(pid) => {
                Err(ShmError::RoleTaken { name: self.segment.name().into(), role: "exchanging", pid: pid.into() })
            }
        }
    }

    /// Says that a process is gone: main, when it has reaped a rank.
    pub fn died(&self, rank: usize) {
        self.break_off(Broken::Died { rank });
    }

    /// Says that what the ranks of this machine share is written up to `generation`. The first of them does this.
    pub fn publish(&self, generation: u64) {
        let head = self.head();
        // Release: pairs with the Acquire in `wait_published` and `read_shared`; what was written comes before the number.
        head.published.store(2 * generation, Ordering::Release);
        head.news.ring();
    }

    /// Says that the first rank begins to change what the ranks of this machine share, by atomic words: who reads meanwhile reads again.
    pub fn begin_write(&self) {
        let head = self.head();
        // Relaxed: the first rank's own store.
        let published = head.published.load(Ordering::Relaxed);
        head.published.store(published | 1, Ordering::Relaxed);
        // Release fence: pairs with the Acquire fence in `read_shared`. Who reads any of what is written sees the odd number.
        fence(Ordering::Release);
    }

    /// The newest generation that is published.
    pub fn published(&self) -> u64 {
        // Acquire: pairs with the Release in `publish`.
        self.head().published.load(Ordering::Acquire) / 2
    }

    /// Rung at every publication; other news of the ranks may ring it as well.
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

    fn line(&self, rank: usize) -> &Line {
        &self.segment.array::<Line>(ExchangeShape::lines_at(), self.shape.ranks)[rank]
    }
}

/// A rank's part in the exchanges of a run.
pub struct Seat {
    exchange: Arc<Exchange>,
    rank: usize,
    /// Exchanges that are over.
    done: u64,
    timeout: Duration,
    /// Whether the ranks share cores.
    crowded: bool,
}

impl Seat {
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.exchange.shape.ranks
    }

    /// Replaces `values` by their mean over the ranks, summed in the order of the ranks, and hands the bytes that each rank gave,
    /// `mine` among them, to `read`, in the same order. All ranks call it with as many values; either part may be empty.
    ///
    /// # Errors
    /// [`Broken`], in this and all later calls of every rank; `values` are worth nothing then.
    pub fn exchange(
        &mut self,
        values: &mut [f32],
        mine: &[u8],
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), Broken> {
        self.exchange_while(values, mine, read, &|| {})
    }

    /// Does the same, and calls `look` now and then while it waits.
    ///
    /// # Errors
    /// As [`Seat::exchange`].
    pub fn exchange_while(
        &mut self,
        values: &mut [f32],
        mine: &[u8],
        read: &mut dyn FnMut(usize, &[u8]),
        look: &dyn Fn(),
    ) -> Result<(), Broken> {
        let shape = self.exchange.shape;
        if values.len() > shape.words || mine.len() > shape.bytes {
            let (words, bytes, most_words, most_bytes) = (values.len(), mine.len(), shape.words, shape.bytes);
            return Err(Broken::TooLong { words, bytes, most_words, most_bytes });
        }
        if let Some(broken) = self.exchange.broken() {
            return Err(broken);
        }
        let begin = 3 * self.done;
        self.wait(begin, look)?;
        self.put(values, mine);
        self.reach(begin + 1);
        self.wait(begin + 1, look)?;
        self.compare_calls(values.len())?;
        if !values.is_empty() {
            self.average(values);
            self.reach(begin + 2);
        }
        for rank in 0..shape.ranks {
            if rank == self.rank {
                read(rank, mine);
            } else {
                // Relaxed: acquired with the rank's step.
                let len = self.exchange.line(rank).bytes.load(Ordering::Relaxed) as usize;
                // SAFETY: the rank reached step 3e + 1, seen by `wait`, and writes there again only when this one has
                // reached 3e + 3.
                read(rank, unsafe { self.exchange.segment.slice(shape.bytes_at(rank), len.min(shape.bytes)) });
            }
        }
        if !values.is_empty() {
            self.wait(begin + 2, look)?;
            self.collect(values);
        }
        self.reach(begin + 3);
        self.done += 1;
        Ok(())
    }

    /// Waits until the first rank of this machine has published `generation`.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn wait_published(&self, generation: u64) -> Result<(), Broken> {
        let head = self.exchange.head();
        // Acquire: pairs with the Release in `publish`.
        self.wait_for(self.exchange.shape.first, &head.news, Instant::now(), &|| {}, || {
            head.published.load(Ordering::Acquire) >= 2 * generation
        })
    }

    /// Reads what the ranks share, by atomic words: again where the first one wrote meanwhile. Returns the generation that was read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read_shared(&self, mut read: impl FnMut()) -> Result<u64, Broken> {
        let head = self.exchange.head();
        let begun = Instant::now();
        let mut seen = 0;
        loop {
            self.wait_for(self.exchange.shape.first, &head.news, begun, &|| {}, || {
                // Acquire: pairs with the Release in `publish`.
                seen = head.published.load(Ordering::Acquire);
                seen % 2 == 0
            })?;
            read();
            // Acquire fence: pairs with the Release fence in `begin_write`; keeps the check after the reads.
            fence(Ordering::Acquire);
            if head.published.load(Ordering::Relaxed) == seen {
                return Ok(seen / 2);
            }
        }
    }

    /// Puts what the others need into this rank's area.
    fn put(&self, values: &[f32], mine: &[u8]) {
        let (shape, segment) = (self.exchange.shape, &self.exchange.segment);
        // Ranks of other machines need all of it.
        let own = if shape.local == shape.ranks { shape.range(self.rank, values.len()) } else { 0..0 };
        // SAFETY: the area is this rank's; all others have reached 3e, seen by `wait`, and read it again only when this one
        // has reached 3e + 1.
        let area = unsafe { segment.slice_mut(shape.inputs_at(self.rank), size_of_val(values)) };
        let area: &mut [f32] = bytemuck::cast_slice_mut(area);
        area[..own.start].copy_from_slice(&values[..own.start]);
        area[own.end..].copy_from_slice(&values[own.end..]);
        // SAFETY: as above.
        unsafe { segment.slice_mut(shape.bytes_at(self.rank), mine.len()) }.copy_from_slice(mine);
        let line = self.exchange.line(self.rank);
        // Relaxed: published by the step.
        line.words.store(values.len() as u64, Ordering::Relaxed);
        line.bytes.store(mine.len() as u64, Ordering::Relaxed);
    }

    /// Checks that all ranks called for the same.
    fn compare_calls(&self, words: usize) -> Result<(), Broken> {
        for rank in 0..self.ranks() {
            // Relaxed: acquired with the rank's step.
            if self.exchange.line(rank).words.load(Ordering::Relaxed) != words as u64 {
                // The first rank is right, by definition.
                let rank = if rank == 0 { self.rank } else { rank };
                self.exchange.break_off(Broken::Differs { rank });
            }
        }
        self.exchange.broken().map_or(Ok(()), Err)
    }

    /// Averages this rank's share, into `values` and into its area.
    fn average(&self, values: &mut [f32]) {
        let (shape, segment) = (self.exchange.shape, &self.exchange.segment);
        let (words, own) = (values.len(), shape.range(self.rank, values.len()));
        // SAFETY: this rank's area; others read it only when this one has reached 3e + 2.
        let result = unsafe { segment.slice_mut(shape.result_at(self.rank), own.len() * size_of::<f32>()) };
        let result: &mut [f32] = bytemuck::cast_slice_mut(result);
        let inputs = |rank: usize| -> &[f32] {
            // SAFETY: the rank reached 3e + 1, seen by `wait`, and writes there again only when this one has reached 3e + 3.
            bytemuck::cast_slice(unsafe { segment.slice(shape.inputs_at(rank), words * size_of::<f32>()) })
        };
        let mine = &mut values[own.clone()];
        let others: Vec<&[f32]> =
            (0..shape.ranks).filter(|rank| *rank != self.rank).map(|rank| &inputs(rank)[own.clone()]).collect();
        match others[..] {
            [] => result.copy_from_slice(mine),
            [other] => average_two(mine, other, result),
            _ => average_all(self.rank, mine, &others, result),
        }
    }

    /// Copies the shares of the others.
    fn collect(&self, values: &mut [f32]) {
        let (shape, segment) = (self.exchange.shape, &self.exchange.segment);
        for rank in shape.here().filter(|rank| *rank != self.rank) {
            let range = shape.range(rank, values.len());
            // SAFETY: the rank reached 3e + 2, seen by `wait`, and writes there again only when this one has reached 3e + 3.
            let result = unsafe { segment.slice(shape.result_at(rank), range.len() * size_of::<f32>()) };
            values[range].copy_from_slice(bytemuck::cast_slice(result));
        }
    }

    fn reach(&self, step: u64) {
        let line = self.exchange.line(self.rank);
        // Release: pairs with the Acquire in `wait`; what this rank wrote and read comes before the step.
        line.step.store(step, Ordering::Release);
        line.bell.ring();
    }

    /// Waits until all others have reached `step`.
    fn wait(&self, step: u64, look: &dyn Fn()) -> Result<(), Broken> {
        let begun = Instant::now();
        for rank in (0..self.ranks()).filter(|rank| *rank != self.rank) {
            let line = self.exchange.line(rank);
            // Acquire: pairs with the Release in `reach`.
            self.wait_for(rank, &line.bell, begun, look, || line.step.load(Ordering::Acquire) >= step)?;
        }
        Ok(())
    }

    /// Waits since `begun` for what `rank` is to do, which rings `bell`; calls `look` now and then.
    fn wait_for(
        &self,
        rank: usize,
        bell: &Doorbell,
        begun: Instant,
        look: &dyn Fn(),
        mut is_done: impl FnMut() -> bool,
    ) -> Result<(), Broken> {
        let mut patience = Patience::new(self.crowded);
        loop {
            let seen = bell.value();
            if is_done() {
                return Ok(());
            }
            if let Some(broken) = self.exchange.broken() {
                return Err(broken);
            }
            if patience.look_again() {
                continue;
            }
            let left = self.timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.exchange.break_off(Broken::Late { rank });
            } else if bell.wait(seen, left.min(LOOK)) == Woken::TimedOut {
                look();
                // A rank may have done its part and ended while this one had no core.
                if self.exchange.is_gone(rank) && !is_done() {
                    self.exchange.break_off(Broken::Died { rank });
                }
            }
        }
    }
}

fn layout() -> u64 {
    layout_hash(&[
        size_of::<Head>(),
        offset_of!(Head, news),
        size_of::<Line>(),
        offset_of!(Line, pid),
        offset_of!(Line, bell),
    ])
}

#[cfg(test)]
#[path = "exchange/tests.rs"]
mod tests;
