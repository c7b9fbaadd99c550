//! Layout of a ring's segment.
//!
//! ```text
//! | RingHead | RegionHead 0 .. R-1 | page | payload 0 | page | payload 1 | ...
//! ```
//!
//! Data written by different processes is on different cache lines (128 bytes: lines are fetched in pairs).

use std::mem::{offset_of, size_of};

use super::super::error::ShmError;
use super::super::pod::Shareable;
use super::super::segment::{Kind, layout_hash};
use super::super::sync::AtomicU64;
use super::super::wait::Doorbell;
use super::account::Account;

pub(super) const KIND: Kind = Kind(1);
/// First word of a block's header; anything else is not a block.
pub(super) const BLOCK_MAGIC: u64 = u64::from_le_bytes(*b"adxblock");
const MAX_REGIONS: usize = 64;
const PAGE: usize = 4096;

/// Size of a ring, fixed at its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingShape {
    /// Id of the actor that owns the ring; stored in every block.
    pub actor: u32,
    /// Number of regions; at least 2, so that both sides can work at once.
    pub regions: usize,
    /// Maximum payload of a block, bytes.
    pub capacity: usize,
}

impl RingShape {
    pub(super) fn check(self) -> Result<(), ShmError> {
        let fits =
            self.capacity.checked_next_multiple_of(PAGE).is_some_and(|c| c <= isize::MAX as usize / (MAX_REGIONS + 1));
        if !(2..=MAX_REGIONS).contains(&self.regions) || self.capacity == 0 || !fits {
            return Err(ShmError::BadShape {
                regions: self.regions as u64,
                capacity: self.capacity as u64,
                max: MAX_REGIONS as u64,
            });
        }
        Ok(())
    }

    pub(super) fn body_len(self) -> usize {
        payload_offset(self.regions, self.capacity, self.regions)
    }
}

/// Header of the ring.
#[repr(C)]
#[derive(Default)]
pub(super) struct RingHead {
    /// Constant after creation.
    pub actor: AtomicU64,
    pub regions: AtomicU64,
    pub capacity: AtomicU64,
    /// Processes that hold the roles, 0 for none.
    pub writer_pid: AtomicU64,
    pub reader_pid: AtomicU64,
    /// Samples of regions that died with their writer. Stored by main alone.
    pub lost: AtomicU64,
    pub writer: WriterHead,
    pub reader: Account,
    pub space: Doorbell,
}

/// Data that only the writer stores (and main in its place once it is dead).
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct WriterHead {
    /// Totals: [`PRODUCED`], [`OVERWRITTEN`], [`DISCARDED`].
    pub account: Account,
    /// Samples of the current claim, which are lost if the writer dies while *writing*.
    pub claim_samples: AtomicU64,
    /// Sequence number of the next block.
    pub next_seq: AtomicU64,
}

/// Indices into the writer's totals.
pub(super) const PRODUCED: usize = 0;
pub(super) const OVERWRITTEN: usize = 1;
pub(super) const DISCARDED: usize = 2;
/// Indices into the reader's totals.
pub(super) const CONSUMED: usize = 0;
pub(super) const TORN_SAMPLES: usize = 1;
pub(super) const TORN_BLOCKS: usize = 2;

/// One region: its phase and the header of the block in it.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct RegionHead {
    /// Only grows; its value modulo 4 is the [`State`].
    pub phase: AtomicU64,
    // The block's header, stored by the writer while *writing*, constant in *readable* and *reading*.
    pub magic: AtomicU64,
    pub actor: AtomicU64,
    pub param_version: AtomicU64,
    pub seq: AtomicU64,
    pub samples: AtomicU64,
    pub len: AtomicU64,
    /// Bytes of the payload, from its beginning, that the checksum is of.
    pub checked: AtomicU64,
    /// xxh3 of these bytes, seeded by the header, so that one block's header does not match another's payload.
    pub checksum: AtomicU64,
}

// SAFETY: repr(C), atomics and `Shareable` structs only.
unsafe impl Shareable for RingHead {}
// SAFETY: repr(C), atomics only.
unsafe impl Shareable for RegionHead {}

pub(super) const REGIONS: usize = size_of::<RingHead>();

pub(super) fn payload_offset(regions: usize, capacity: usize, index: usize) -> usize {
    let first = (REGIONS + regions * size_of::<RegionHead>()).next_multiple_of(PAGE);
    first + index * capacity.next_multiple_of(PAGE)
}

pub(super) fn hash() -> u64 {
    layout_hash(&[
        size_of::<RingHead>(),
        offset_of!(RingHead, writer),
        offset_of!(RingHead, reader),
        offset_of!(RingHead, space),
        size_of::<RegionHead>(),
        offset_of!(RegionHead, checksum),
        size_of::<Account>(),
        PAGE,
    ])
}

/// State that a region's phase encodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Free,
    Writing,
    Readable,
    Reading,
}

impl State {
    pub(super) fn of(phase: u64) -> Self {
        match phase % 4 {
            0 => Self::Free,
            1 => Self::Writing,
            2 => Self::Readable,
            _ => Self::Reading,
        }
    }
}

/// Step to the next state.
pub(super) const FORWARD: u64 = 1;
/// Step to the previous state, by way of the next cycle because phases only grow.
pub(super) const BACK: u64 = 3;
