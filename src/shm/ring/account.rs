//! Sums that survive a kill.
//!
//! A party's move has two parts, the region's phase and the party's totals, and the party may be killed between any two stores.
//! So it first records the move and the totals after it (**begin**), then moves the phase, then stores the totals (**finish**).
//! Whether the move took place is decided by the phase alone, in one instruction. Recovery of a dead party looks at the phase
//! and, if it moved, stores the recorded totals. They are absolute values, not increments, so doing it twice is harmless.

use super::super::sync::{AtomicU64, Ordering};

/// Totals of one party (the writer or the reader), which is the only one that stores here while it lives.
///
/// All stores are Release, so that they become visible in program order: after a kill at any point, only a tail of the sequence
/// is missing. They pair with the Acquire loads in `settle` and `total`.
#[repr(C, align(128))]
#[derive(Default)]
pub(super) struct Account {
    totals: [AtomicU64; TOTALS],
    /// 1 while a move is in progress.
    armed: AtomicU64,
    /// The move: the region, and the phase that shows whether it took place.
    region: AtomicU64,
    phase: AtomicU64,
    /// Totals after the move.
    after: [AtomicU64; TOTALS],
}

pub(super) const TOTALS: usize = 3;
/// Marks a move that changes only the totals.
const NO_REGION: u64 = u64::MAX;

impl Account {
    pub fn total(&self, index: usize) -> u64 {
        self.totals[index].load(Ordering::Acquire)
    }

    /// Records a move of region `region`, identified by `phase`, that adds `added` to the totals.
    pub fn begin(&self, region: usize, phase: u64, added: [u64; TOTALS]) {
        self.arm(region as u64, phase, added);
    }

    /// Stores the totals after the move.
    pub fn finish(&self) {
        for (total, after) in self.totals.iter().zip(&self.after) {
            // Relaxed load: stored by this thread in `begin`, or acquired with `armed` in `settle`.
            total.store(after.load(Ordering::Relaxed), Ordering::Release);
        }
        self.armed.store(0, Ordering::Release);
    }

    /// Returns whether a move is in progress.
    pub fn is_armed(&self) -> bool {
        // Acquire: as in `settle`.
        self.armed.load(Ordering::Acquire) != 0
    }

    /// Cancels the move, which did not take place.
    pub fn cancel(&self) {
        self.armed.store(0, Ordering::Release);
    }

    /// Adds to the totals without a region; it counts as done once it is recorded.
    pub fn add(&self, added: [u64; TOTALS]) {
        self.arm(NO_REGION, 0, added);
        self.finish();
    }

    /// Completes the move of a dead party. `happened` decides by the recorded region and phase whether the move took place.
    pub fn settle(&self, happened: impl FnOnce(usize, u64) -> bool) {
        // Acquire: pairs with the Release store in `arm`; the loads below see the move that it announces.
        if self.armed.load(Ordering::Acquire) == 0 {
            return;
        }
        let region = self.region.load(Ordering::Relaxed);
        let phase = self.phase.load(Ordering::Relaxed);
        if region == NO_REGION || happened(region as usize, phase) {
            self.finish();
        } else {
            self.cancel();
        }
    }

    fn arm(&self, region: u64, phase: u64, added: [u64; TOTALS]) {
        self.region.store(region, Ordering::Release);
        self.phase.store(phase, Ordering::Release);
        for ((after, total), added) in self.after.iter().zip(&self.totals).zip(added) {
            // Relaxed load: stored by this thread.
            after.store(total.load(Ordering::Relaxed).wrapping_add(added), Ordering::Release);
        }
        self.armed.store(1, Ordering::Release);
    }
}
