//! Blocks of samples, from one actor to one learner.
//!
//! A ring has R regions. Each has a **phase**, a counter that only grows; its value modulo 4 is the state:
//!
//! ```text
//!            claim            commit            take              release
//! 0 free ----------> 1 writing -----> 2 readable ----> 3 reading ----------> 4 = 0 free
//!                        |                |  ^             |
//!                        |  +3 abort,     |  |  +3 put     |
//!                        |  writer died   |  |  back,      |
//!                        v                |  |  reader     |
//!                     4 = 0 free          |  |  died       v
//!                                         |  +------- 6 = 2 readable
//!                                         +-- +3 overwritten --> 5 = 1 writing
//! ```
//!
//! Only the writer leaves *free* and *writing*, and only the reader leaves *reading*. Both may leave *readable*, so they do so
//! by compare-exchange. As the counter never repeats, an exchange cannot succeed on a state that has come round again. The
//! payload belongs to the writer while *writing*, and only readers access it while *reading*: an overwriting writer can never
//! touch a block in use.
//!
//! Every change of the ledger goes with a move of a phase, and a kill may fall between the two: [`account`] describes how the
//! sums stay exact. After a process died, main calls [`SampleRing::recover_writer`] or [`SampleRing::recover_reader`], and a
//! new process may take the role.
//!
//! Files: `layout` of the segment, `account` for sums that survive a kill, `writer`, `reader`, `recover`, `ledger`, `view` for
//! observers.

mod account;
mod layout;
mod ledger;
mod reader;
mod recover;
#[cfg(test)]
mod tests;
mod view;
mod writer;

use std::sync::Arc;

use super::error::ShmError;
use super::segment::Segment;
use super::sync::Ordering;
use super::wait::Doorbell;
use layout::{RegionHead, RingHead};

pub use layout::{RingShape, State};
pub use ledger::{Ledger, Unbalanced};
pub use reader::{BlockInfo, ReadGuard, RingReader};
pub use view::{Balance, RegionView, RingView};
pub use writer::{Overflow, RingWriter, WriteGuard};

/// A handle to one ring in shared memory; clones refer to the same ring. Take a role with
/// [`writer`](Self::writer) or [`reader`](Self::reader).
#[derive(Clone)]
pub struct SampleRing {
    segment: Arc<Segment>,
    regions: usize,
    /// Payload capacity of a region, bytes.
    capacity: usize,
}

impl SampleRing {
    /// Creates the segment `name` with an empty ring in it. Only main does this.
    ///
    /// # Errors
    /// When the shape is impossible, the name taken, or `/dev/shm` too small.
    pub fn create(name: &str, shape: RingShape) -> Result<Self, ShmError> {
        shape.check()?;
        let segment = Segment::create(name, layout::KIND, layout::hash(), shape.body_len())?;
        let ring = Self { segment: Arc::new(segment), regions: shape.regions, capacity: shape.capacity };
        let head = ring.head();
        // Relaxed: children that open the ring are spawned later.
        head.actor.store(shape.actor.into(), Ordering::Relaxed);
        head.regions.store(shape.regions as u64, Ordering::Relaxed);
        head.capacity.store(shape.capacity as u64, Ordering::Relaxed);
        Ok(ring)
    }

    /// Opens the ring that main created.
    ///
    /// # Errors
    /// When the segment is missing or does not hold a ring of this build.
    pub fn open(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::open(name, layout::KIND, layout::hash(), layout::REGIONS)?)
    }

    /// Opens the ring for observation: a private map through which the run cannot be changed.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn observe(name: &str) -> Result<Self, ShmError> {
        Self::of(Segment::observe(name, layout::KIND, layout::hash(), layout::REGIONS)?)
    }

    fn of(segment: Segment) -> Result<Self, ShmError> {
        let shape = {
            let head = segment.at::<RingHead>(0);
            // Relaxed: constant since creation.
            RingShape {
                actor: head.actor.load(Ordering::Relaxed) as u32,
                regions: head.regions.load(Ordering::Relaxed) as usize,
                capacity: head.capacity.load(Ordering::Relaxed) as usize,
            }
        };
        shape.check()?;
        if shape.body_len() > segment.body_len() {
            return Err(ShmError::Truncated {
                name: segment.name().into(),
                expected: shape.body_len() as u64,
                found: segment.body_len() as u64,
            });
        }
        Ok(Self { segment: Arc::new(segment), regions: shape.regions, capacity: shape.capacity })
    }

    /// Returns the bytes of `/dev/shm` that a ring of this shape takes.
    pub fn footprint(shape: RingShape) -> u64 {
        Segment::footprint(shape.body_len())
    }

    pub fn name(&self) -> &str {
        self.segment.name()
    }

    /// Returns the maximum payload of a block, bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the doorbell that is rung whenever a region becomes free; a writer that found none waits on it.
    pub fn space(&self) -> &Doorbell {
        &self.head().space
    }

    fn head(&self) -> &RingHead {
        self.segment.at::<RingHead>(0)
    }

    fn regions(&self) -> &[RegionHead] {
        self.segment.array::<RegionHead>(layout::REGIONS, self.regions)
    }

    /// Returns the first `len` bytes of the payload of region `index`.
    ///
    /// # Safety
    /// Nobody writes to that payload while the slice lives.
    unsafe fn payload(&self, index: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.segment.slice(layout::payload_offset(self.regions, self.capacity, index), len) }
    }

    /// Returns the whole payload of region `index`.
    ///
    /// # Safety
    /// Nobody else reads or writes that payload while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "the caller owns the region, not the ring")]
    unsafe fn payload_mut(&self, index: usize) -> &mut [u8] {
        let offset = layout::payload_offset(self.regions, self.capacity, index);
        // SAFETY: the caller's promise.
        unsafe { self.segment.slice_mut(offset, self.capacity) }
    }

    /// Returns whether no region is free.
    pub fn is_full(&self) -> bool {
        self.find_free().is_none()
    }

    /// Returns how many blocks a writer writes one after another, if it has found the ring full and begins when the ring is mostly free.
    pub fn burst(&self) -> usize {
        self.regions - (self.regions / 3).max(1)
    }

    /// Returns whether there is room for a [burst](Self::burst), or for one block less: a reader of several rings may have read one block more from
    /// another one.
    pub fn is_mostly_free(&self) -> bool {
        // Acquire: as in `find_free`.
        let free = |region: &&RegionHead| State::of(region.phase.load(Ordering::Acquire)) == State::Free;
        self.regions().iter().filter(free).count() >= (self.burst() - 1).max(1)
    }

    fn find_free(&self) -> Option<(usize, u64)> {
        self.regions().iter().enumerate().find_map(|(i, region)| {
            // Acquire: pairs with the Release by which the reader freed the region, so that its reads of the
            // payload are over before we write.
            let phase = region.phase.load(Ordering::Acquire);
            (State::of(phase) == State::Free).then_some((i, phase))
        })
    }

    /// Returns the readable region with the smallest sequence number. It may be gone when the caller gets to it: leave
    /// *readable* by compare-exchange from the phase returned here.
    fn oldest_readable(&self) -> Option<(usize, u64)> {
        // One scan is not enough: meanwhile the writer may fill regions that the scan has passed and then one that is still
        // ahead of it. But any block older than one that the first scan saw was readable before the second scan began.
        let mut before = self.scan_readable()?;
        loop {
            let (seq, i, phase) = self.scan_readable()?;
            if seq <= before.0 {
                return Some((i, phase));
            }
            // Overwritten or taken in between.
            before = (seq, i, phase);
        }
    }

    /// Returns sequence number, index and phase of the oldest block that one pass over the regions meets.
    fn scan_readable(&self) -> Option<(u64, usize, u64)> {
        let readable = self.regions().iter().enumerate().filter_map(|(i, region)| {
            // Acquire: pairs with the Release in `commit`, so that `seq` belongs to this phase or a later one.
            let phase = region.phase.load(Ordering::Acquire);
            let seq = region.seq.load(Ordering::Relaxed);
            (State::of(phase) == State::Readable).then_some((seq, i, phase))
        });
        readable.min()
    }
}
