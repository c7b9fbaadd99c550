//! The seats of the ranks of other machines.

use std::sync::Arc;

use super::super::sync::Ordering;
use super::{Broken, Exchange, LOOK};

/// The seats of all ranks of other machines, in the hands of whoever carries messages between machines.
///
/// Every exchange goes through [`collect`](Self::collect), [`deliver`](Self::deliver) for each rank of another machine, and
/// [`proceed`](Self::proceed).
pub struct Remote {
    exchange: Arc<Exchange>,
    /// Exchanges that are over.
    done: u64,
}

/// What a rank gave to an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given<'a> {
    /// Its floats, in the order of this machine's bytes.
    pub floats: &'a [u8],
    /// Its bytes, without those for the ranks of its machine alone.
    pub bytes: &'a [u8],
}

impl Remote {
    /// Takes these seats. Only one process may do this, once for an exchange that begins.
    pub fn new(exchange: Arc<Exchange>) -> Self {
        Self { exchange, done: 0 }
    }

    /// Number of the exchange under way, from 0.
    pub fn number(&self) -> u64 {
        self.done
    }

    /// Waits until every rank of this machine has given its part, and hands each to `take`, in the order of the ranks. Looks at `ends`
    /// several times a second; false, and nothing was taken, when it says so.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn collect(&self, ends: impl Fn() -> bool, mut take: impl FnMut(Given<'_>)) -> Result<bool, Broken> {
        let shape = self.exchange.shape;
        for rank in shape.here() {
            let line = self.exchange.line(rank);
            loop {
                let seen = line.bell.value();
                // Acquire: pairs with the Release in `reach`.
                if line.step.load(Ordering::Acquire) > 3 * self.done {
                    break;
                }
                if let Some(broken) = self.exchange.broken() {
                    return Err(broken);
                }
                if ends() {
                    return Ok(false);
                }
                line.bell.wait(seen, LOOK);
            }
        }
        for rank in shape.here() {
            let line = self.exchange.line(rank);
            // Relaxed: acquired with the rank's step.
            let [words, bytes, here] =
                [&line.words, &line.bytes, &line.here].map(|len| len.load(Ordering::Relaxed) as usize);
            let (words, bytes) = (words.min(shape.words), bytes.min(shape.bytes).saturating_sub(here));
            let segment = &self.exchange.segment;
            // SAFETY: the rank reached 3e + 1, seen above, and writes there again only when all others, those of these seats among
            // them, have reached 3e + 3.
            let given = unsafe {
                Given {
                    floats: segment.slice(shape.inputs_at(rank), words * size_of::<f32>()),
                    bytes: segment.slice(shape.bytes_at(rank), bytes),
                }
            };
            take(given);
        }
        Ok(true)
    }

    /// Puts what `rank`, one of another machine, gave into its seat.
    ///
    /// # Errors
    /// [`Broken::TooLong`], for more than the exchange was made for.
    ///
    /// # Panics
    /// When the rank is one of this machine.
    pub fn deliver(&self, rank: usize, given: Given<'_>) -> Result<(), Broken> {
        let shape = self.exchange.shape;
        assert!(rank < shape.ranks && !shape.here().contains(&rank), "rank {rank} is no remote one");
        let (words, bytes) = (given.floats.len() / size_of::<f32>(), given.bytes.len());
        if words > shape.words || bytes > shape.bytes {
            return Err(Broken::TooLong { words, bytes, most_words: shape.words, most_bytes: shape.bytes });
        }
        // SAFETY: the seat is this one's; the ranks here have reached 3e + 1, seen by `collect`: they are through with what was there,
        // and read it again only when it has reached 3e + 3.
        unsafe {
            let segment = &self.exchange.segment;
            segment.slice_mut(shape.inputs_at(rank), given.floats.len()).copy_from_slice(given.floats);
            segment.slice_mut(shape.bytes_at(rank), bytes).copy_from_slice(given.bytes);
        }
        let line = self.exchange.line(rank);
        // Relaxed: published by the step.
        line.words.store(words as u64, Ordering::Relaxed);
        line.bytes.store(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Says that every seat has what its rank gave: the ranks of this machine go on.
    pub fn proceed(&mut self) {
        self.done += 1;
        let shape = self.exchange.shape;
        for rank in (0..shape.ranks).filter(|rank| !shape.here().contains(rank)) {
            let line = self.exchange.line(rank);
            // Release: pairs with the Acquire in `Seat::wait`; what was delivered comes before the step. These ranks average nothing here,
            // and have read what they need.
            line.step.store(3 * self.done, Ordering::Release);
            line.bell.ring();
        }
    }

    /// Says that `rank`, one of another machine, is out of reach: an error in all ranks of this one.
    pub fn lost(&self, rank: usize) {
        self.exchange.died(rank);
    }

    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }
}
