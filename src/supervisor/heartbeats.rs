//! Detects processes that hang, in every kind of run.
//!
//! The parent sees at once that a process died. A process that hangs shows only by a missing heartbeat, and one that hangs
//! before it registers by an empty slot. Every process updates the heartbeat in its slot of the control block while it works
//! and while it waits. Time in which main itself was stopped does not count: the other processes were most likely stopped with it.

use std::collections::HashMap;
use std::time::Duration;

use crate::awake::AwakeClock;
use crate::shm::Control;
use crate::shm::control::ProcessSlot;

use super::children::Process;

/// A value that should change, and the time since when it has not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Still<T> {
    seen: T,
    since: Duration,
}

impl<T: PartialEq> Still<T> {
    pub fn new(seen: T) -> Self {
        Self { seen, since: Duration::ZERO }
    }

    /// Records a new value and returns for how long it has been unchanged.
    pub fn look(&mut self, value: T, now: Duration) -> Duration {
        if value != self.seen {
            (self.seen, self.since) = (value, now);
        }
        now.saturating_sub(self.since)
    }
}

/// Heartbeats of the processes that are expected.
pub struct Heartbeats {
    /// Seconds without a heartbeat after which a process is killed; 0 = never.
    limit_s: f64,
    clock: AwakeClock,
    /// By slot: pid of the expected process, and its last heartbeat, 0 before it has registered.
    beats: HashMap<usize, Still<(u32, u64)>>,
}

impl Heartbeats {
    /// Starts to watch. `limit_s` is `watchdog.silent_s`.
    pub fn new(limit_s: f64) -> Self {
        Self { limit_s, clock: AwakeClock::default(), beats: HashMap::new() }
    }

    /// Returns the time in which main was awake; to be called several times a second.
    pub fn tick(&mut self) -> Duration {
        self.clock.now()
    }

    /// Kills processes without a heartbeat; they are replaced like others that died.
    pub fn kill_the_silent<'a>(&mut self, control: &Control, processes: impl Iterator<Item = &'a mut Process>) {
        for process in processes.filter(|process| process.due.is_none()) {
            let index = process.role.slot();
            if let Some(silence) = self.silence(index, &control.processes[index], process.pid()) {
                tracing::warn!(
                    "{} has given no sign of life for {:.0} s (watchdog.silent_s), killing it",
                    process.role,
                    silence.as_secs_f64()
                );
                process.kill();
            }
        }
    }

    /// Returns how long process `pid`, which belongs to `slot`, has had no heartbeat, if that is too long.
    fn silence(&mut self, index: usize, slot: &ProcessSlot, pid: u32) -> Option<Duration> {
        let now = self.clock.now();
        let beat = if slot.pid() == Some(pid) { slot.last_beat_ms() } else { 0 };
        self.silence_of(index, (pid, beat), now)
    }

    fn silence_of(&mut self, index: usize, seen: (u32, u64), now: Duration) -> Option<Duration> {
        let silent = self.beats.entry(index).or_insert(Still { seen, since: now }).look(seen, now);
        (self.limit_s > 0.0 && silent.as_secs_f64() > self.limit_s).then_some(silent)
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
        let limit = 120;
        let mut heartbeats = Heartbeats::new(limit as f64);
        // Not registered, so silent until it is.
        assert_eq!(heartbeats.silence_of(3, (77, 0), seconds(10)), None);
        assert_eq!(heartbeats.silence_of(3, (77, 0), seconds(10 + limit)), None);
        assert_eq!(heartbeats.silence_of(3, (77, 0), seconds(11 + limit)), Some(seconds(1 + limit)));
        // Its successor, which registers and then falls silent.
        assert_eq!(heartbeats.silence_of(3, (78, 0), seconds(200)), None);
        assert_eq!(heartbeats.silence_of(3, (78, 5000), seconds(300)), None);
        assert_eq!(heartbeats.silence_of(3, (78, 5000), seconds(301 + limit)), Some(seconds(1 + limit)));
        assert_eq!(heartbeats.silence_of(3, (78, 5001), seconds(302 + limit)), None);
        heartbeats.limit_s = 0.0;
        assert_eq!(heartbeats.silence_of(3, (78, 5001), seconds(9000)), None);
    }
}
