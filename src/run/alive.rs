//! Signs of life of a process during work that gives none itself.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

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
