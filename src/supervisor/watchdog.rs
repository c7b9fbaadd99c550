//! Detects whether the run makes progress.
//!
//! If all heartbeats are recent ([`super::heartbeats`]) and nothing moves, the rings and the parameter cell show who waits for
//! whom.

use std::time::Duration;

use crate::run::{RunDirectory, Segments};
use crate::settings::Settings;
use crate::shm::{ControlBlock, SampleRing};

use super::failure::RunFailure;
use super::heartbeats::Still;

/// Detects stalls. Times are those in which main was awake.
pub struct Watchdog {
    /// Seconds without progress after which the run ends; 0 = never.
    stuck_s: f64,
    progress: Still<[u64; 3]>,
    snapshots: Still<u64>,
    /// Time limit for a snapshot to reach the disk.
    snapshot_limit: Duration,
    warned: bool,
}

/// What grows while a run makes progress: updates; samples consumed; time of replays of validation days, for which the learner waits in
/// lock-step.
fn done(control: &ControlBlock) -> [u64; 3] {
    [control.learner.updates.get(), control.learner.samples_consumed.get(), control.evaluator.compute_ns.get()]
}

impl Watchdog {
    pub fn new(settings: &Settings) -> Self {
        Self {
            stuck_s: settings.watchdog.stuck_s,
            progress: Still::new([0; 3]),
            snapshots: Still::new(0),
            snapshot_limit: Duration::from_secs_f64(60.0 + 4.0 * settings.checkpoint.every_s.max(0.0)),
            warned: false,
        }
    }

    /// Warns once when snapshots have stopped reaching the disk.
    pub fn check_snapshots(&mut self, segments: &Segments, directory: &RunDirectory, now: Duration) {
        if segments.halves.is_none() {
            return;
        }
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
    pub fn check(&mut self, segments: &Segments, directory: &RunDirectory, now: Duration) -> Result<(), RunFailure> {
        let still = self.progress.look(done(&segments.control), now);
        if self.stuck_s <= 0.0 || still.as_secs_f64() < self.stuck_s {
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
    use crate::shm::{Control, RunNames};

    /// A lock-step run whose evaluation took longer than `watchdog.stuck_s` ended for lack of progress.
    #[test]
    fn an_evaluation_is_progress() {
        let names = RunNames::for_this_process("evaluation").unwrap();
        let control = Control::create(&names.part("control")).unwrap();
        let mut seen = vec![done(&control)];
        control.evaluator.compute_ns.add(1);
        seen.push(done(&control));
        control.learner.samples_consumed.add(1);
        seen.push(done(&control));
        control.learner.updates.add(1);
        seen.push(done(&control));
        assert!(seen.windows(2).all(|w| w[0] != w[1]), "{seen:?}");
    }

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
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
