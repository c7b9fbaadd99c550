//! Signs of life of a process during work that gives none itself.

use std::cell::Cell;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::shm::Control;
use crate::shm::control::ProcessSlot;

/// Time between two signs.
const BEAT: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 500 });

/// Does some work while a thread beside it calls `beat`, now and then and once at the end. For work that is long because there is much of it, or
/// because a disk is slow: a process that is started in the place of this one would need as long.
pub fn while_alive<T>(mut beat: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|scope| {
        let (working, worked) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut goes_on = true;
            while goes_on {
                goes_on = worked.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout);
                beat();
            }
        });
        let result = work();
        drop(working);
        result
    })
}

/// Signs of life of a process that evaluates, while there are no updates. Main takes them for progress: the time is counted.
pub struct Pulse<'a> {
    control: &'a Control,
    slot: &'a ProcessSlot,
    last: Cell<Instant>,
}

impl<'a> Pulse<'a> {
    /// That of the process in `slot`.
    pub fn new(control: &'a Control, slot: &'a ProcessSlot) -> Self {
        Self { control, slot, last: Cell::new(Instant::now()) }
    }

    /// Begins a work of which the time counts.
    pub fn begin(&self) {
        self.last.set(Instant::now());
        self.slot.beat();
    }

    /// Says that the work goes on.
    pub fn beat(&self) {
        let now = Instant::now();
        self.control.evaluator.compute_ns.add((now - self.last.replace(now)).as_nanos() as u64);
        self.slot.beat();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// An evaluator that computed the bound of a large validation day was killed as silent, and so was each of its successors.
    #[test]
    fn long_work_is_done_with_signs_of_life() {
        let beats = AtomicU32::new(0);
        let beat = || _ = beats.fetch_add(1, Ordering::Relaxed);
        let during = while_alive(beat, || {
            let begun = Instant::now();
            while beats.load(Ordering::Relaxed) < 3 && begun.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
            beats.load(Ordering::Relaxed)
        });
        assert!(during >= 3 && beats.load(Ordering::Relaxed) > during, "{during}");
    }
}
