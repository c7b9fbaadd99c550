//! Watches whether the run gets on.
//!
//! A process that dies is seen by its parent at once; one that hangs only shows by silence. Every process signs its slot of
//! the control block while it works and while it waits. And where all are awake and nothing moves, the rings and the
//! parameter cell tell who waits for whom.

use std::time::{Duration, Instant};

use crate::run::{RunDirectory, Segments};
use crate::settings::Watchdog as Limits;
use crate::shm::SampleRing;

use super::failure::RunFailure;

/// Notices when nothing moves.
pub struct Watchdog {
    limits: Limits,
    /// Updates and samples, and since when they are that.
    seen: (u64, u64),
    since: Instant,
}

impl Watchdog {
    pub fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), seen: (0, 0), since: Instant::now() }
    }

    /// Whether a process has been silent for too long.
    pub fn is_silent(&self, silent_ms: u64) -> bool {
        self.limits.silent_s > 0.0 && silent_ms as f64 > 1000.0 * self.limits.silent_s
    }

    /// # Errors
    /// Who starves, if nothing moved for too long.
    pub fn check(&mut self, segments: &Segments, directory: &RunDirectory) -> Result<(), RunFailure> {
        let learner = &segments.control.learner;
        let now = (learner.updates.get(), learner.samples_consumed.get());
        if now != self.seen {
            (self.seen, self.since) = (now, Instant::now());
            return Ok(());
        }
        let still = self.since.elapsed();
        if self.limits.stuck_s <= 0.0 || still < Duration::from_secs_f64(self.limits.stuck_s) {
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
