//! Sleeping until another process has news.
//!
//! Two cores may serve eight processes, so waiting does not spin: a process without work sleeps in a futex on a [`Doorbell`].
//! The pattern is always the same, and it is correct because of the order of its lines:
//!
//! ```text
//! let seen = bell.value();          // 1. before looking
//! if !look_for_work() {             // 2.
//!     bell.wait(seen, timeout);     // 3. returns at once if the bell was rung since 1.
//! }
//! ```
//!
//! Nothing depends on being woken: every wait has a timeout, after which the caller looks again. A process killed just before
//! it rings delays the others by at most that time.

use std::io;
use std::time::{Duration, Instant};

use super::futex;
use super::pod::Shareable;
use super::sync::{AtomicU32, Ordering};

/// How a wait ended. In every case the caller checks again for what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The bell was rung since the value was read.
    Rung,
    TimedOut,
    /// A signal was handled; there may be a stop request.
    Interrupted,
}

/// A doorbell that any process may ring and any number may wait for.
///
/// One word: bit 0 says that a process may be asleep, the bits above count the rings. Ringing adds one to the count and clears
/// the bit in the same instruction, so the two cannot disagree, and the wake system call is made only if the bit was set. The
/// word only grows (modulo 2^32: it is compared for equality only, and a sleeper would have to miss 2^31 rings between reading
/// and sleeping). A waiter that is killed leaves the bit set, which only costs the next ring one needless system call; a count
/// of waiters would stay wrong for ever.
#[repr(transparent)]
#[derive(Default)]
pub struct Doorbell {
    word: AtomicU32,
}

// SAFETY: one atomic, transparent.
unsafe impl Shareable for Doorbell {}

/// Bit that says that a process may be asleep.
const ASLEEP: u32 = 1;

impl Doorbell {
    /// Announces news: everything stored before is visible to a process that reads a new [`value`](Self::value).
    pub fn ring(&self) {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = (word | ASLEEP).wrapping_add(1);
            // Release: pairs with the Acquire in `value`, so that a process that sees this ring sees the news.
            match self.word.compare_exchange(word, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word & ASLEEP != 0 {
            futex::wake_all(&self.word);
        }
    }

    /// Returns the value to pass to [`wait`](Self::wait); read it before looking for work.
    pub fn value(&self) -> u32 {
        // Acquire: pairs with the Release in `ring`.
        self.word.load(Ordering::Acquire) & !ASLEEP
    }

    /// Sleeps until the bell is rung after `seen` was read, at most `timeout`.
    pub fn wait(&self, seen: u32, timeout: Duration) -> Woken {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            // Relaxed here and below: only the comparison matters; the caller reads its news after `value`.
            let word = self.word.load(Ordering::Relaxed);
            if word & !ASLEEP != seen {
                return Woken::Rung;
            }
            let asleep = word | ASLEEP;
            if word != asleep && self.word.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                continue;
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Woken::TimedOut;
            }
            // The kernel compares the word again under its own lock, so a ring in between is not missed.
            match futex::sleep(&self.word, asleep, left) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => return Woken::Interrupted,
                // Woken, timed out, or the word had changed: the loop finds out which.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    /// Returns a doorbell outside shared memory.
    fn bell() -> Doorbell {
        Doorbell::default()
    }

    #[test]
    fn a_silent_bell_times_out_without_burning_time() {
        let bell = bell();
        let start = Instant::now();
        let woken = bell.wait(bell.value(), Duration::from_millis(50));
        assert_eq!(woken, Woken::TimedOut);
        assert!(start.elapsed() >= Duration::from_millis(50));
    }

    #[test]
    fn a_ring_since_the_value_was_read_is_not_missed() {
        let bell = bell();
        let seen = bell.value();
        bell.ring();
        assert_eq!(bell.wait(seen, Duration::from_secs(60)), Woken::Rung);
    }

    #[test]
    fn the_value_grows_also_over_the_asleep_bit() {
        let bell = bell();
        let before = bell.value();
        bell.wait(before, Duration::from_millis(1));
        assert_eq!(bell.value(), before, "going to sleep is not a ring");
        bell.ring();
        bell.ring();
        assert!(bell.value() > before);
    }

    #[test]
    fn a_ring_wakes_every_sleeper() {
        let bell = bell();
        thread::scope(|s| {
            let sleepers: Vec<_> = (0..4).map(|_| s.spawn(|| bell.wait(0, Duration::from_secs(60)))).collect();
            thread::sleep(Duration::from_millis(20));
            bell.ring();
            for sleeper in sleepers {
                assert_eq!(sleeper.join().unwrap(), Woken::Rung);
            }
        });
    }

    #[test]
    fn ping_pong_loses_no_wake_up() {
        const ROUNDS: u64 = 20_000;
        let (ping, pong, ball) = (bell(), bell(), AtomicU64::new(0));
        // Each side waits for its turn with a timeout so long that one lost wake-up fails the test.
        let play = |mine: &Doorbell, theirs: &Doorbell, parity: u64| {
            loop {
                let seen = mine.value();
                let now = ball.load(Ordering::Relaxed);
                if now >= ROUNDS {
                    theirs.ring();
                    return;
                }
                if now % 2 == parity {
                    ball.store(now + 1, Ordering::Relaxed);
                    theirs.ring();
                } else {
                    assert_eq!(mine.wait(seen, Duration::from_secs(30)), Woken::Rung);
                }
            }
        };
        thread::scope(|s| {
            s.spawn(|| play(&ping, &pong, 0));
            s.spawn(|| play(&pong, &ping, 1));
        });
    }
}
