//! A rank's seat: it carries out the steps of an exchange, and waits for the other ranks.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::error::ShmError;
use super::super::futex::Patience;
use super::super::names::start_time;
use super::super::sync::{Ordering, fence};
use super::super::wait::{Doorbell, Woken};
use super::sums::{average_all, average_two};
use super::{Broken, Exchange, LOOK, Line};

impl Exchange {
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
}

/// What a rank has written into its area, from the first byte on.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// If it is more than there is room for, nothing was written.
    pub bytes: usize,
    /// So many of them, at the end, are for the ranks of this machine alone.
    pub here: usize,
}

impl Written {
    /// Copies bytes for all ranks into an area.
    pub fn copy(from: &[u8], area: &mut [u8]) -> Self {
        if let Some(area) = area.get_mut(..from.len()) {
            area.copy_from_slice(from);
        }
        Self { bytes: from.len(), here: 0 }
    }
}

/// Says that a rank reads, until it is dropped: the first rank of its group begins no write meanwhile.
struct Reading<'s> {
    seat: &'s Seat,
    /// The newest iteration whose rows it has read by the end.
    iteration: u64,
}

impl<'s> Reading<'s> {
    fn begin(seat: &'s Seat) -> Self {
        let word = &seat.line().read;
        // Relaxed: this rank's own stores, ordered by the fence.
        let read = word.load(Ordering::Relaxed);
        word.store(read | 1, Ordering::Relaxed);
        // SeqCst fence: pairs with the one in `begin_write`. Who writes sees the odd number, or this rank sees that it writes.
        fence(Ordering::SeqCst);
        Self { seat, iteration: read / 2 }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.seat.has_read(self.iteration);
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

    /// This rank's group.
    pub fn group(&self) -> usize {
        self.exchange.shape.group_of(self.rank)
    }

    /// The ranks of this one's group.
    pub fn members(&self) -> Range<usize> {
        let first = self.publisher();
        first..first + self.exchange.shape.group_len()
    }

    /// Whether this rank writes the rows of its group.
    pub fn publishes(&self) -> bool {
        self.publisher() == self.rank
    }

    /// The rank that writes the rows of this one's group.
    fn publisher(&self) -> usize {
        self.exchange.shape.publisher(self.group())
    }

    /// Returns the most values that can be averaged at a time.
    pub fn room(&self) -> usize {
        self.exchange.shape.words
    }

    /// Returns an error if the exchange is broken: for a rank that waits for the others elsewhere.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn check(&self) -> Result<(), Broken> {
        self.exchange.broken().map_or(Ok(()), Err)
    }

    /// From now on, an exchange in which somebody does not take part for `timeout` is broken.
    pub fn limit(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The ranks of this machine.
    pub fn here(&self) -> Range<usize> {
        self.exchange.shape.here()
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
        let mut each = |all: &[&[u8]]| all.iter().enumerate().for_each(|(rank, bytes)| read(rank, bytes));
        self.exchange_while(values, &mut |area| Written::copy(mine, area), &mut each, &|| {})
    }

    /// Does the same, but lets `write` put this rank's bytes where the others read them, hands the bytes of all ranks to `read` at once, and
    /// calls `look` now and then while it waits. Others wait for a long `read` only in the next exchange.
    ///
    /// # Errors
    /// As [`Seat::exchange`].
    pub fn exchange_while(
        &mut self,
        values: &mut [f32],
        write: &mut dyn FnMut(&mut [u8]) -> Written,
        read: &mut dyn FnMut(&[&[u8]]),
        look: &dyn Fn(),
    ) -> Result<(), Broken> {
        let shape = self.exchange.shape;
        if let Some(broken) = self.exchange.broken() {
            return Err(broken);
        }
        let begin = 3 * self.done;
        self.wait(begin, look)?;
        self.put(values, write)?;
        self.reach(begin + 1);
        self.wait(begin + 1, look)?;
        self.compare_calls(values.len())?;
        if !values.is_empty() {
            self.average(values);
            self.reach(begin + 2);
        }
        let given = |rank: usize| -> &[u8] {
            // Relaxed: acquired with the rank's step.
            let len = self.exchange.line(rank).bytes.load(Ordering::Relaxed) as usize;
            // SAFETY: the rank reached 3e + 1, seen by `wait`, and writes there again only when this one has reached 3e + 3.
            unsafe { self.exchange.segment.slice(shape.bytes_at(rank), len.min(shape.bytes)) }
        };
        read(&(0..shape.ranks).map(given).collect::<Vec<_>>());
        if !values.is_empty() {
            self.wait(begin + 2, look)?;
            self.collect(values);
        }
        self.reach(begin + 3);
        self.done += 1;
        Ok(())
    }

    /// Waits until the first rank of this one's group has published `generation`.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn wait_published(&self, generation: u64) -> Result<(), Broken> {
        self.wait_publication(2 * generation)
    }

    /// Waits until the first rank of this one's group has published those rows of `generation` that this one has said it wants.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn wait_wanted(&self, generation: u64) -> Result<(), Broken> {
        self.wait_publication((2 * generation).saturating_sub(1))
    }

    fn wait_publication(&self, number: u64) -> Result<(), Broken> {
        let publication = self.exchange.publication(self.group());
        // Acquire: pairs with the Release in `publish` and `publish_wanted`.
        self.wait_for(self.publisher(), self.exchange.news(), Instant::now(), &|| {}, || {
            publication.published.load(Ordering::Acquire) >= number
        })
    }

    /// Reads what the group shares for `iteration`, while the first rank does not write. Returns the generation that was read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read_shared(&self, iteration: u64, read: impl FnOnce()) -> Result<u64, Broken> {
        let publication = self.exchange.publication(self.group());
        let begun = Instant::now();
        loop {
            // Acquire: pairs with the Release in `publish`.
            let published = || publication.published.load(Ordering::Acquire);
            self.wait_for(self.publisher(), self.exchange.news(), begun, &|| {}, || published() % 2 == 0)?;
            let mut reading = Reading::begin(self);
            let seen = published();
            if seen % 2 == 0 {
                read();
                reading.iteration = iteration;
                return Ok(seen / 2);
            }
        }
    }

    /// Says that this rank has read the rows of `iteration`, or will not before it has met the others.
    pub fn has_read(&self, iteration: u64) {
        // Release: pairs with the Acquire in `begin_write`; what this rank has read comes before.
        self.line().read.store(2 * iteration, Ordering::Release);
        self.exchange.news().ring();
    }

    fn line(&self) -> &Line {
        self.exchange.line(self.rank)
    }

    /// Puts what the others need into this rank's area.
    fn put(&self, values: &[f32], write: &mut dyn FnMut(&mut [u8]) -> Written) -> Result<(), Broken> {
        let (shape, segment) = (self.exchange.shape, &self.exchange.segment);
        let too_long = |bytes| {
            let (words, most_words, most_bytes) = (values.len(), shape.words, shape.bytes);
            Broken::TooLong { words, bytes, most_words, most_bytes }
        };
        if values.len() > shape.words {
            return Err(too_long(0));
        }
        // Ranks of other machines need all of it.
        let own = if shape.local == shape.ranks { shape.range(self.rank, values.len()) } else { 0..0 };
        // SAFETY: the area is this rank's; all others have reached 3e, seen by `wait`, and read it again only when this one
        // has reached 3e + 1.
        let area = unsafe { segment.slice_mut(shape.inputs_at(self.rank), size_of_val(values)) };
        let area: &mut [f32] = bytemuck::cast_slice_mut(area);
        area[..own.start].copy_from_slice(&values[..own.start]);
        area[own.end..].copy_from_slice(&values[own.end..]);
        // SAFETY: as above.
        let Written { bytes, here } = write(unsafe { segment.slice_mut(shape.bytes_at(self.rank), shape.bytes) });
        if bytes > shape.bytes {
            return Err(too_long(bytes));
        }
        let line = self.line();
        // Relaxed: published by the step.
        line.words.store(values.len() as u64, Ordering::Relaxed);
        line.bytes.store(bytes as u64, Ordering::Relaxed);
        line.here.store(here as u64, Ordering::Relaxed);
        Ok(())
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
        let line = self.line();
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
