//! Time in which this process was awake.
//!
//! A machine that sleeps, a container that is frozen and a debugger that holds everything stop all processes of a run alike.
//! Whoever measures the silence of others by a clock that went on meanwhile kills healthy processes on waking.

use std::time::{Duration, Instant};

/// The most that counts between two looks: who looks often and sees more than this was not awake.
const STEP: Duration = Duration::from_millis(500);

/// A clock that stands still while its process does. It has to be looked at several times a second.
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
    /// Time awake since the clock was made.
    pub fn now(&mut self) -> Duration {
        self.at(Instant::now())
    }

    fn at(&mut self, now: Instant) -> Duration {
        self.awake += now.saturating_duration_since(self.last).min(STEP);
        self.last = now;
        self.awake
    }
}

/// A moment that is so much time awake away. It has to be looked at several times a second.
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
        // A clock that went back, which this one does not, would not count either.
        assert_eq!(clock.at(now - Duration::from_secs(9)), Duration::from_millis(2500));
    }
}
