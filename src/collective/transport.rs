//! How a rank exchanges with the others, whatever carries it.

use crate::shm::{Seat, Written};

/// What carries the exchanges of a rank.
pub trait Transport {
    /// The rank's seat among the others.
    fn seat(&self) -> &Seat;

    /// Replaces `values` by their mean over the ranks, and hands the bytes that each rank gave, `mine` among them, to `read`, in the order
    /// of the ranks. All ranks call it with as many values; either part may be empty. `look` is called now and then while it waits.
    ///
    /// # Errors
    /// [`Broken`](crate::shm::Broken), or the engine's own, in this and all later calls of every rank; `values` are worth nothing then.
    fn exchange_all(
        &mut self,
        values: &mut [f32],
        mine: &[u8],
        read: &mut dyn FnMut(&[&[u8]]),
        look: &dyn Fn(),
    ) -> anyhow::Result<()>;
}

impl Transport for Seat {
    fn seat(&self) -> &Seat {
        self
    }

    fn exchange_all(
        &mut self,
        values: &mut [f32],
        mine: &[u8],
        read: &mut dyn FnMut(&[&[u8]]),
        look: &dyn Fn(),
    ) -> anyhow::Result<()> {
        Ok(self.exchange_while(values, &mut |area| Written::copy(mine, area), read, look)?)
    }
}
