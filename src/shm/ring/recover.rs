//! Repairs a ring after one of its users died. Main calls this once it has reaped the process: a dead process stores nothing
//! any more, so main is alone on that side, while the other side goes on as usual.

use super::super::sync::Ordering;
use super::super::wait::Doorbell;
use super::SampleRing;
use super::layout::{BACK, State};

impl SampleRing {
    /// Completes the work of a dead writer: settles its account, frees the region that it was writing and gives its role back.
    /// Returns the samples lost with it. Harmless if there is nothing to do.
    pub fn recover_writer(&self, data: &Doorbell) -> u64 {
        let head = self.head();
        // Acquire here and below: pairs with the Release by which the writer moved the phase. Only the writer makes a region
        // *writing* or leaves that state, so the phase that it announced is there if and only if it made the move: it makes no
        // other move while one is announced.
        head.writer.account.settle(|region, to| {
            let region = self.regions().get(region);
            region.is_some_and(|r| r.phase.load(Ordering::Acquire) == to)
        });
        let mut lost = 0;
        for region in self.regions() {
            let phase = region.phase.load(Ordering::Acquire);
            if State::of(phase) == State::Writing {
                // Relaxed: stored before the move to *writing* that was just acquired.
                lost += head.writer.claim_samples.load(Ordering::Relaxed);
                // Release: the next writer acquires the role below.
                region.phase.store(phase + BACK, Ordering::Release);
            }
        }
        let total = head.lost.load(Ordering::Relaxed) + lost;
        // Release: pairs with the Acquire in `ledger`.
        head.lost.store(total, Ordering::Release);
        // Release: pairs with the Acquire in `writer`.
        head.writer_pid.store(0, Ordering::Release);
        // It may have died between making a block readable and ringing.
        data.ring();
        lost
    }

    /// Completes the work of a dead reader: settles its account, makes the blocks that it was reading or kept readable
    /// again and gives its role back. Returns the samples that will be read a second time.
    pub fn recover_reader(&self) -> u64 {
        let head = self.head();
        // Acquire here and below: pairs with the Release by which the reader moved the phase. Only the reader leaves *reading*,
        // so any phase other than the announced one means that it did; the writer may have moved the region on since.
        head.reader.settle(|region, from| {
            let region = self.regions().get(region);
            region.is_some_and(|r| r.phase.load(Ordering::Acquire) != from)
        });
        let mut again = 0;
        for region in self.regions() {
            let phase = region.phase.load(Ordering::Acquire);
            if State::of(phase) == State::Reading {
                // Relaxed: constant while *reading*, stored before the phase that was just acquired.
                again += region.samples.load(Ordering::Relaxed);
                // Release: as the put-back in `ReadGuard::drop`.
                region.phase.store(phase + BACK, Ordering::Release);
            }
        }
        // Release: pairs with the Acquire in `reader`.
        head.reader_pid.store(0, Ordering::Release);
        // It may have died between freeing a region and ringing.
        head.space.ring();
        again
    }
}
