//! The actor's side of a ring.

use super::super::error::ShmError;
use super::super::sync::Ordering;
use super::super::wait::Doorbell;
use super::layout::{BACK, BLOCK_MAGIC, FORWARD, RegionHead};
use super::reader::checksum;
use super::{BlockInfo, SampleRing};

/// Action of the writer when no region is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Fails; the caller waits on [`SampleRing::space`].
    Wait,
    /// Takes the oldest readable block, never one being read, and counts its samples as overwritten.
    Overwrite,
}

/// The writing role of a ring, held by one process at a time.
pub struct RingWriter {
    ring: SampleRing,
}

impl SampleRing {
    /// Takes the writing role.
    ///
    /// # Errors
    /// When another process has it, or had it when it died and main has not recovered the ring yet.
    pub fn writer(&self) -> Result<RingWriter, ShmError> {
        let me = u64::from(std::process::id());
        // AcqRel: pairs with the Release stores that give the role back, in `drop` and in `recover_writer`; everything that the
        // last holder stored is visible.
        match self.head().writer_pid.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(RingWriter { ring: self.clone() }),
            Err(pid) => Err(ShmError::RoleTaken { name: self.name().into(), role: "writing", pid }),
        }
    }
}

impl RingWriter {
    /// Claims a region for a block of `samples`, which count as produced from now on. `None` if no region is available.
    pub fn claim(&mut self, samples: u32, overflow: Overflow) -> Option<WriteGuard<'_>> {
        let samples = u64::from(samples);
        let head = self.ring.head();
        loop {
            let (index, from, to, overwritten) = if let Some((i, phase)) = self.ring.find_free() {
                (i, phase, phase + FORWARD, 0)
            } else if overflow == Overflow::Overwrite {
                let (i, phase) = self.ring.oldest_readable()?;
                // Relaxed: stored before the phase just acquired. If the reader is faster, the exchange fails.
                let old = self.ring.regions()[i].samples.load(Ordering::Relaxed);
                (i, phase, phase + BACK, old)
            } else {
                return None;
            };
            // Release: visible before the move that `begin` announces, for `recover_writer`.
            head.writer.claim_samples.store(samples, Ordering::Release);
            head.writer.account.begin(index, to, [samples, overwritten, 0]);
            // Acquire: pairs with the reader's Release in `release`, so that its reads of the payload are over.
            // Release: keeps the announcement before the move. Partner: the Acquire in `recover_writer`.
            let region = &self.ring.regions()[index];
            let moved = region.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            if moved.is_err() {
                // The reader took it first; look again.
                head.writer.account.cancel();
                continue;
            }
            head.writer.account.finish();
            return Some(WriteGuard { writer: self, index, phase: to, samples, checked: usize::MAX, open: true });
        }
    }

    /// Counts samples that the actor made but will never put into a block (an unfinished segment at its end) as both produced
    /// and discarded.
    pub fn discard(&mut self, samples: u32) {
        let samples = u64::from(samples);
        self.ring.head().writer.account.add([samples, 0, samples]);
    }

    pub fn ring(&self) -> &SampleRing {
        &self.ring
    }
}

impl Drop for RingWriter {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next holder in `writer`.
        self.ring.head().writer_pid.store(0, Ordering::Release);
    }
}

/// A claimed region. Dropped without [`commit`](Self::commit), its samples count as discarded.
pub struct WriteGuard<'a> {
    writer: &'a mut RingWriter,
    index: usize,
    /// The region's phase while this guard holds it.
    phase: u64,
    samples: u64,
    /// Bytes of the payload that get a checksum, at most.
    checked: usize,
    open: bool,
}

impl WriteGuard<'_> {
    /// Has only the first `bytes` of the payload checked: for a reader that does not go on when the writer dies.
    pub fn check_only(&mut self, bytes: usize) {
        self.checked = bytes;
    }

    /// Returns the payload buffer of the region, which still has the contents of older blocks.
    pub fn payload(&mut self) -> &mut [u8] {
        let ring = &self.writer.ring;
        // SAFETY: the region is *writing*, claimed by this guard, and only its claimant touches the payload of
        // such a region; there is one writer per ring, and the returned slice borrows the guard mutably.
        unsafe { ring.payload_mut(self.index) }
    }

    /// Makes the first `len` bytes of the payload readable and rings `data`, the doorbell on which the learner waits for all
    /// its rings.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn commit(mut self, len: usize, param_version: u64, data: &Doorbell) {
        let ring = &self.writer.ring;
        assert!(len <= ring.capacity, "{len} bytes in a smaller region");
        let head = ring.head();
        // Relaxed: stored by this process, or acquired with the role in `writer`; the actor is constant.
        let seq = head.writer.next_seq.load(Ordering::Relaxed);
        let info = BlockInfo {
            actor: head.actor.load(Ordering::Relaxed) as u32,
            param_version,
            seq,
            samples: self.samples as u32,
        };
        // SAFETY: as in `payload`; shared here, and `len` is at most the capacity.
        let checked = unsafe { ring.payload(self.index, len.min(self.checked)) };
        let region = &ring.regions()[self.index];
        store_header(region, info, len, checked);
        // Release: a killed writer may have used up a number without a block, never the reverse.
        head.writer.next_seq.store(seq + 1, Ordering::Release);
        // Release: header and payload come before the phase. Partners: the Acquire in `oldest_readable` and of
        // the exchange in `take`. From here on the block counts as unread; until here it would be lost.
        region.phase.store(self.phase + FORWARD, Ordering::Release);
        self.open = false;
        data.ring();
    }
}

/// Stores the header of a block of `len` bytes, of which these are `checked`. Relaxed throughout: made visible by the phase.
fn store_header(region: &RegionHead, info: BlockInfo, len: usize, checked: &[u8]) {
    region.magic.store(BLOCK_MAGIC, Ordering::Relaxed);
    region.actor.store(info.actor.into(), Ordering::Relaxed);
    region.param_version.store(info.param_version, Ordering::Relaxed);
    region.seq.store(info.seq, Ordering::Relaxed);
    region.samples.store(info.samples.into(), Ordering::Relaxed);
    region.len.store(len as u64, Ordering::Relaxed);
    region.checked.store(checked.len() as u64, Ordering::Relaxed);
    region.checksum.store(checksum(info, len, checked), Ordering::Relaxed);
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let ring = &self.writer.ring;
        let account = &ring.head().writer.account;
        let free = self.phase + BACK;
        account.begin(self.index, free, [0, 0, self.samples]);
        // Release: keeps the announcement before the move. Partner: the Acquire in `recover_writer`.
        ring.regions()[self.index].phase.store(free, Ordering::Release);
        account.finish();
    }
}
