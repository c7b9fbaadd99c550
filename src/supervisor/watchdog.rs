//! Detects whether the run makes progress.
//!
//! The parent sees at once that a process died. A process that hangs shows only by a missing heartbeat, and one that hangs
//! before it registers by an empty slot. Every process updates the heartbeat in its slot of the control block while it works
//! and while it waits. If all heartbeats are recent and nothing moves, the rings and the parameter cell show who waits for
//! whom. Time in which main itself was stopped does not count: the other processes were most likely stopped with it.

use std::collections::HashMap;
use std::time::Duration;

use crate::awake::AwakeClock;
use crate::run::{RunDirectory, Segments};
use crate::settings::Settings;
use crate::settings::Watchdog as Limits;
use crate::shm::SampleRing;
use crate::shm::control::ProcessSlot;

use super::failure::RunFailure;

/// A value that should change, and the time since when it has not.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Still<T> {
    seen: T,
    since: Duration,
}

impl<T: PartialEq> Still<T> {
    /// Records a new value and returns for how long it has been unchanged.
    fn look(&mut self, value: T, now: Duration) -> Duration {
        if value != self.seen {
            (self.seen, self.since) = (value, now);
        }
        now.saturating_sub(self.since)
    }
}

/// Detects stalls.
pub struct Watchdog {
    limits: Limits,
    clock: AwakeClock,
    /// Updates and samples consumed.
    progress: Still<(u64, u64)>,
    /// By slot: pid of the expected process, and its last heartbeat, 0 before it has registered.
    beats: HashMap<usize, Still<(u32, u64)>>,
    snapshots: Still<u64>,
    /// Time limit for a snapshot to reach the disk.
    snapshot_limit: Duration,
    warned: bool,
}

impl Watchdog {
    pub fn new(settings: &Settings) -> Self {
        let at_start = Duration::ZERO;
        Self {
            limits: settings.watchdog.clone(),
            clock: AwakeClock::default(),
            progress: Still { seen: (0, 0), since: at_start },
            beats: HashMap::new(),
            snapshots: Still { seen: 0, since: at_start },
            snapshot_limit: Duration::from_secs_f64(60.0 + 4.0 * settings.checkpoint.every_s.max(0.0)),
            warned: false,
        }
    }

    /// Updates the clock of awake time; to be called several times a second.
    pub fn tick(&mut self) {
        self.clock.now();
    }

    /// Returns how long process `pid`, which belongs to `slot`, has had no heartbeat, if that is too long.
    pub fn silence(&mut self, index: usize, slot: &ProcessSlot, pid: u32) -> Option<Duration> {
        let now = self.clock.now();
        let beat = if slot.pid() == Some(pid) { slot.last_beat_ms() } else { 0 };
        self.silence_of(index, (pid, beat), now)
    }

    fn silence_of(&mut self, index: usize, seen: (u32, u64), now: Duration) -> Option<Duration> {
        let silent = self.beats.entry(index).or_insert(Still { seen, since: now }).look(seen, now);
        (self.limits.silent_s > 0.0 && silent.as_secs_f64() > self.limits.silent_s).then_some(silent)
    }

    /// Warns once when snapshots have stopped reaching the disk.
    pub fn check_snapshots(&mut self, segments: &Segments, directory: &RunDirectory) {
        if segments.halves.is_none() {
            return;
        }
        let now = self.clock.now();
        if let Some(still) = self.snapshots_overdue(segments.control.checkpoint.snapshots.get(), now) {
            tracing::warn!(
                "no snapshot has reached the disk for {:.0} s: a run that dies now loses what it has learned since; see {}",
                still.as_secs_f64(),
                directory.log("checkpointer").display()
            );
        }
    }

    /// Returns how long the number of snapshots has been the same, the first time that this is too long.
    fn snapshots_overdue(&mut self, snapshots: u64, now: Duration) -> Option<Duration> {
        let still = self.snapshots.look(snapshots, now);
        let overdue = still > self.snapshot_limit;
        let first = overdue && !self.warned;
        self.warned = overdue;
        first.then_some(still)
    }

    /// Checks for progress.
    ///
    /// # Errors
    /// The kind of starvation, if nothing moved for too long.
    pub fn check(&mut self, segments: &Segments, directory: &RunDirectory) -> Result<(), RunFailure> {
        let learner = &segments.control.learner;
        let now = self.clock.now();
        let still = self.progress.look((learner.updates.get(), learner.samples_consumed.get()), now);
        if self.limits.stuck_s <= 0.0 || still.as_secs_f64() < self.limits.stuck_s {
            return Ok(());
        }
        let (seconds, logs) = (still.as_secs_f64(), directory.logs());
        let unread: u64 = segments.rings.iter().map(|ring| SampleRing::ledger(ring).unread).sum();
        Err(if segments.params.version() == 0 {
            RunFailure::NoParameters { seconds, logs }
        } else if unread == 0 {
            RunFailure::NoSamples { seconds, logs }
        } else {
            RunFailure::NoProgress { seconds, logs }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn silence_counts_from_the_last_beat_or_from_the_start_of_a_process_that_has_not_signed_in() {
        let mut watchdog = Watchdog::new(&Settings::default());
        let limit = watchdog.limits.silent_s as u64;
        // Not registered, so silent until it is.
        assert_eq!(watchdog.silence_of(3, (77, 0), seconds(10)), None);
        assert_eq!(watchdog.silence_of(3, (77, 0), seconds(10 + limit)), None);
        assert_eq!(watchdog.silence_of(3, (77, 0), seconds(11 + limit)), Some(seconds(1 + limit)));
        // Its successor, which registers and then falls silent.
        assert_eq!(watchdog.silence_of(3, (78, 0), seconds(200)), None);
        assert_eq!(watchdog.silence_of(3, (78, 5000), seconds(300)), None);
        assert_eq!(watchdog.silence_of(3, (78, 5000), seconds(301 + limit)), Some(seconds(1 + limit)));
        assert_eq!(watchdog.silence_of(3, (78, 5001), seconds(302 + limit)), None);
        watchdog.limits.silent_s = 0.0;
        assert_eq!(watchdog.silence_of(3, (78, 5001), seconds(9000)), None);
    }

    #[test]
    fn a_lack_of_snapshots_is_told_once_each_time() {
        let mut watchdog = Watchdog::new(&Settings::default());
        let limit = watchdog.snapshot_limit;
        assert_eq!(watchdog.snapshots_overdue(0, limit), None);
        assert!(watchdog.snapshots_overdue(0, limit + seconds(1)).is_some());
        assert_eq!(watchdog.snapshots_overdue(0, limit + seconds(2)), None);
        assert_eq!(watchdog.snapshots_overdue(1, limit + seconds(3)), None);
        assert!(watchdog.snapshots_overdue(1, limit + limit + seconds(4)).is_some());
    }
}
