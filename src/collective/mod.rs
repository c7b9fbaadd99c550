//! What the ranks of a training do together: means of gradients, rows that each rank gives to all, and who waits for whom.
//!
//! A [`Transport`] carries the exchange; the mathematics above it do not know which one. Every transport sums in the order of the
//! ranks, so that all ranks get the same bytes, and the same bytes over any transport. A rank that dies is an error in all others,
//! never a wait without end.
//!
//! | file | what it is |
//! |---|---|
//! | `mod` | [`Transport`]; [`Alone`], one rank; the ranks of one machine over [`Seat`]; [`Delayed`], a slow network |
//! | [`rows`] | gradients of embedding rows: merged, encoded, summed over ranks, divided |
//! | [`overlap`] | the overlapped mode: which global gradient is used when, and how |
//!
//! May import: `sparse`, `shm`, `settings`.

pub mod overlap;
pub mod rows;

use std::time::Duration;

use crate::shm::{Broken, Seat};

/// The exchange between the ranks of a training. All ranks make the same calls in the same order.
pub trait Transport: Send {
    fn rank(&self) -> usize;

    fn ranks(&self) -> usize;

    /// Replaces `values` by their mean over the ranks and hands the bytes that each rank gave, `mine` among them, to `read`, in the
    /// order of the ranks. All ranks give as many values; either part may be empty.
    ///
    /// # Errors
    /// [`Broken`], with the rank that is to blame, here and in every later call of every rank.
    fn exchange(&mut self, values: &mut [f32], mine: &[u8], read: &mut dyn FnMut(usize, &[u8])) -> Result<(), Broken>;

    /// Replaces `values` by their mean over the ranks.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn mean(&mut self, values: &mut [f32]) -> Result<(), Broken> {
        self.exchange(values, &[], &mut |_, _| {})
    }

    /// Hands the bytes that each rank gave to `read`, in the order of the ranks.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn gather(&mut self, mine: &[u8], read: &mut dyn FnMut(usize, &[u8])) -> Result<(), Broken> {
        self.exchange(&mut [], mine, read)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn barrier(&mut self) -> Result<(), Broken> {
        self.exchange(&mut [], &[], &mut |_, _| {})
    }
}

/// A training with one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn exchange(&mut self, _: &mut [f32], mine: &[u8], read: &mut dyn FnMut(usize, &[u8])) -> Result<(), Broken> {
        read(0, mine);
        Ok(())
    }
}

impl Transport for Seat {
    fn rank(&self) -> usize {
        Seat::rank(self)
    }

    fn ranks(&self) -> usize {
        Seat::ranks(self)
    }

    fn exchange(&mut self, values: &mut [f32], mine: &[u8], read: &mut dyn FnMut(usize, &[u8])) -> Result<(), Broken> {
        Seat::exchange(self, values, mine, read)
    }
}

/// A transport whose every exchange takes longer, as over a network: for measurements.
pub struct Delayed<T> {
    pub transport: T,
    pub latency: Duration,
}

impl<T: Transport> Transport for Delayed<T> {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn ranks(&self) -> usize {
        self.transport.ranks()
    }

    fn exchange(&mut self, values: &mut [f32], mine: &[u8], read: &mut dyn FnMut(usize, &[u8])) -> Result<(), Broken> {
        std::thread::sleep(self.latency);
        self.transport.exchange(values, mine, read)
    }
}
