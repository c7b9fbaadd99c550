//! The learner's side of a ring.

use twox_hash::XxHash3_64;

use super::super::error::ShmError;
use super::super::sync::Ordering;
use super::SampleRing;
use super::account::TOTALS;
use super::layout::{BACK, BLOCK_MAGIC, FORWARD};

/// The reading role of a ring, held by one process at a time.
pub struct RingReader {
    ring: SampleRing,
    kept: Vec<Kept>,
}

/// The region of a block that was read.
struct Kept {
    index: usize,
    phase: u64,
    samples: u64,
}

/// Contents of a block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    pub actor: u32,
    /// Version of the parameters that generated the samples.
    pub param_version: u64,
    /// Sequence number; grows by one from block to block of a ring.
    pub seq: u64,
    pub samples: u32,
}

impl SampleRing {
    /// Takes the reading role.
    ///
    /// # Errors
    /// When another process has it, or had it when it died and main has not recovered the ring yet.
    pub fn reader(&self) -> Result<RingReader, ShmError> {
        let me = u64::from(std::process::id());
        // AcqRel: pairs with the Release stores that give the role back, in `drop` and in `recover_reader`; everything that the
        // last holder stored is visible.
        match self.head().reader_pid.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(RingReader { ring: self.clone(), kept: vec![] }),
            Err(pid) => Err(ShmError::RoleTaken { name: self.name().into(), role: "reading", pid }),
        }
    }
}

impl RingReader {
    /// Whether no block can be taken now. A writer that overwrites may take one away before [`take`](Self::take).
    pub fn is_empty(&self) -> bool {
        self.ring.oldest_readable().is_none()
    }

    /// Takes the oldest readable block; `None` if there is none, and the caller waits on the data doorbell.
    ///
    /// # Errors
    /// [`ShmError::Torn`] if the block is damaged. It has been counted and its region is free again; the caller logs it and
    /// goes on.
    pub fn take(&mut self) -> Result<Option<ReadGuard<'_>>, ShmError> {
        let (index, phase) = loop {
            let Some((index, readable)) = self.ring.oldest_readable() else {
                return Ok(None);
            };
            let region = &self.ring.regions()[index];
            let phase = readable + FORWARD;
            // Acquire: pairs with the Release in `commit`; header and payload are those of this phase. Release: our stores for
            // the last block stay before this move. It fails if the writer overwrites the block.
            let moved = region.phase.compare_exchange(readable, phase, Ordering::AcqRel, Ordering::Relaxed);
            if moved.is_ok() {
                break (index, phase);
            }
        };
        let (info, len, damage) = self.inspect(index);
        let mut guard = ReadGuard { reader: self, index, phase, len, info, open: true };
        let Some(what) = damage else {
            return Ok(Some(guard));
        };
        let samples = info.samples.into();
        guard.free([0, samples, 1]);
        Err(ShmError::Torn { actor: info.actor.into(), seq: info.seq, samples, what })
    }

    /// Returns header and length of a block that is *reading*, and the reason why it is damaged, if it is.
    fn inspect(&self, index: usize) -> (BlockInfo, usize, Option<&'static str>) {
        let ring = &self.ring;
        let region = &ring.regions()[index];
        // Relaxed throughout: acquired with the phase in `take`.
        let info = BlockInfo {
            actor: region.actor.load(Ordering::Relaxed) as u32,
            param_version: region.param_version.load(Ordering::Relaxed),
            seq: region.seq.load(Ordering::Relaxed),
            samples: region.samples.load(Ordering::Relaxed) as u32,
        };
        let len = region.len.load(Ordering::Relaxed);
        if u32::try_from(region.samples.load(Ordering::Relaxed)).is_err() {
            return (info, 0, Some("impossible number of samples"));
        }
        if region.magic.load(Ordering::Relaxed) != BLOCK_MAGIC {
            return (info, 0, Some("no block header"));
        }
        if len > ring.capacity as u64 {
            return (info, 0, Some("impossible length"));
        }
        let len = len as usize;
        // SAFETY: the region is *reading* and ours; nobody writes to it until we free it.
        let payload = unsafe { ring.payload(index, len) };
        let Some(checked) = payload.get(..region.checked.load(Ordering::Relaxed) as usize) else {
            return (info, 0, Some("impossible length"));
        };
        let intact = checksum(info, len, checked) == region.checksum.load(Ordering::Relaxed);
        (info, len, (!intact).then_some("wrong checksum"))
    }

    /// Gives the regions of all [kept](ReadGuard::keep) blocks back to the writer.
    pub fn release_kept(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let mut kept = std::mem::take(&mut self.kept);
        for Kept { index, phase, samples } in kept.drain(..) {
            self.free(index, phase, [samples, 0, 0]);
        }
        self.kept = kept;
        self.ring.head().space.ring();
    }

    pub fn ring(&self) -> &SampleRing {
        &self.ring
    }

    /// Gives a region back, which had this phase. The caller rings.
    fn free(&self, index: usize, phase: u64, added: [u64; TOTALS]) {
        let head = self.ring.head();
        // Identified by the phase that it leaves: once free, the writer may move the region on before we come to `finish`.
        head.reader.begin(index, phase, added);
        // Release: our reads of the payload, and the announcement, come before the move. Partners: the Acquire
        // in `find_free` and of the exchange in `claim`; for the announcement, that in `recover_reader`.
        self.ring.regions()[index].phase.store(phase + FORWARD, Ordering::Release);
        head.reader.finish();
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        self.release_kept();
        // Release: pairs with the Acquire of the next holder in `reader`.
        self.ring.head().reader_pid.store(0, Ordering::Release);
    }
}

/// A block being read in place. If it is dropped without [`release`](Self::release) or [`keep`](Self::keep), it is put back unread.
pub struct ReadGuard<'a> {
    reader: &'a mut RingReader,
    index: usize,
    /// The region's phase while this guard holds it.
    phase: u64,
    len: usize,
    info: BlockInfo,
    open: bool,
}

impl ReadGuard<'_> {
    pub fn info(&self) -> BlockInfo {
        self.info
    }

    pub fn payload(&self) -> &[u8] {
        let ring = &self.reader.ring;
        // SAFETY: the region is *reading*, taken by this guard; nobody writes to it until the guard frees it,
        // and the slice cannot outlive the guard. `len` was checked against the capacity.
        unsafe { ring.payload(self.index, self.len) }
    }

    /// Counts the block's samples as consumed and gives the region back to the writer.
    pub fn release(mut self) {
        self.free([self.info.samples.into(), 0, 0]);
    }

    /// Keeps the region until [`RingReader::release_kept`], when the block's samples count as consumed.
    pub fn keep(mut self) {
        self.open = false;
        let kept = Kept { index: self.index, phase: self.phase, samples: self.info.samples.into() };
        self.reader.kept.push(kept);
    }

    fn free(&mut self, added: [u64; TOTALS]) {
        self.open = false;
        self.reader.free(self.index, self.phase, added);
        self.reader.ring.head().space.ring();
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        if self.open {
            // Release: our reads of the payload come before the move; an overwriting writer may be next.
            // Partners: the Acquire in `oldest_readable` and of the exchanges in `claim` and `take`.
            self.reader.ring.regions()[self.index].phase.store(self.phase + BACK, Ordering::Release);
        }
    }
}

/// Returns the xxh3 of those bytes of a payload of `len` that are checked, seeded by the header.
pub(super) fn checksum(info: BlockInfo, len: usize, checked: &[u8]) -> u64 {
    let header =
        [info.actor.into(), info.param_version, info.seq, info.samples.into(), len as u64, checked.len() as u64];
    let seed = XxHash3_64::oneshot(bytemuck::cast_slice(&header));
    XxHash3_64::oneshot_with_seed(seed, checked)
}
