//! Time in which this process was awake.
//!
//! A sleeping machine, a frozen container and a debugger stop all processes of a run alike. A process that measured the silence
//! of others by a clock that went on meanwhile would kill healthy processes on waking.

use std::time::{Duration, Instant};

/// Maximum time that counts between two readings: a larger step between frequent readings means that the process was not awake.
const STEP: Duration = Duration::from_millis(500);

/// A clock that stops while its process does. It has to be read several times a second.
#[derive(Debug)]
pub struct AwakeClock {
    last: Instant,
    awake: Duration,
}

impl Default for AwakeClock {
    fn default() -> Self {
        Self { last: Instant::now(), awake: Duration::ZERO }
    }
}

impl AwakeClock {
    /// Returns the awake time since the clock was made.
    pub fn now(&mut self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Duration {
        self.awake += now.saturating_duration_since(self.last).min(STEP);
        self.last = now;
        self.awake
    }
}

/// A deadline in awake time. It has to be polled several times a second.
#[derive(Debug)]
pub struct Deadline {
    clock: AwakeClock,
    after: Duration,
}

impl Deadline {
    pub fn after(time: Duration) -> Self {
        Self { clock: AwakeClock::default(), after: time }
    }

    pub fn is_over(&mut self) -> bool {
        self.clock.now() >= self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_does_not_count_and_everything_else_does() {
        let mut clock = AwakeClock::default();
        let mut now = clock.last;
        for _ in 0..100 {
            now += Duration::from_millis(20);
            clock.at(now);
        }
        assert_eq!(clock.at(now), Duration::from_secs(2));
        now += Duration::from_secs(3600);
        assert_eq!(clock.at(now), Duration::from_millis(2500));
        // A clock that goes back, which this one does not, would not count either.
        assert_eq!(clock.at(now - Duration::from_secs(9)), Duration::from_millis(2500));
    }
}
