//! Turn taking at a ring of slots that two parties work on.
//!
//! The trainer's dense products and its table of rows work on one batch after another, each batch in a slot. Four counters of
//! batches determine which party has a slot. Each counter only grows and is stored by one party, so no signal is lost:
//!
//! ```text
//! asked       the learner has put the batch into its slot          stored by the learner
//! looked up   the batch's rows are in the slot                     stored by the owner of the rows
//! ready       the gradients of the batch's rows are in the slot    stored by the learner
//! updated     they are in the table, the slot is free              stored by the owner of the rows
//!
//! the learner has the slot of batch n      while  ready < n <= looked up,  and before it asks
//! the owner of the rows has it             while  looked up < n <= asked   and  updated < n <= ready
//! the learner may put batch n into a slot  when   updated >= n - slots
//! rows of batch n may be gathered          when   updated >= n - 1
//! ```

use std::time::Duration;

use super::pod::Shareable;
use super::sync::{AtomicU32, AtomicU64, Ordering};
use super::wait::Doorbell;

/// One of the four counters of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Asked,
    LookedUp,
    Ready,
    Updated,
}

/// One of the two parties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    Learner,
    Rows,
}

impl Turn {
    /// Returns the party that stores the counter; the other one waits for it.
    fn of(self) -> Party {
        match self {
            Self::Asked | Self::Ready => Party::Learner,
            Self::LookedUp | Self::Updated => Party::Rows,
        }
    }
}

/// The counters, with a doorbell for each party.
#[repr(C)]
#[derive(Default)]
pub struct Turns {
    counters: [AtomicU64; 4],
    bells: [Doorbell; 2],
    /// By party: 1 after it has ended and passes no turn any more.
    ended: [AtomicU32; 2],
}

// SAFETY: repr(C), atomics only.
unsafe impl Shareable for Turns {}

impl Turns {
    /// Returns the number of the newest batch that has reached this turn, 0 for none.
    pub fn value(&self, turn: Turn) -> u64 {
        // Acquire: pairs with the Release in `pass`; a party that sees the number sees the slot as the other party left it.
        self.counters[turn as usize].load(Ordering::Acquire)
    }

    /// Declares that the next batch has reached this turn, and returns its number. Only the party that stores the counter calls
    /// it.
    pub fn pass(&self, turn: Turn) -> u64 {
        let counter = &self.counters[turn as usize];
        // Relaxed: only this party stores it.
        let next = counter.load(Ordering::Relaxed) + 1;
        // Release: pairs with the Acquire in `value`; this party's work on the slot is over.
        counter.store(next, Ordering::Release);
        self.bell(turn.of().other()).ring();
        next
    }

    /// Declares that a party has ended.
    pub fn end(&self, party: Party) {
        // Release: pairs with the Acquire in `ended`.
        self.ended[party as usize].store(1, Ordering::Release);
        self.bell(party.other()).ring();
    }

    /// Returns whether a party has ended.
    pub fn ended(&self, party: Party) -> bool {
        self.ended[party as usize].load(Ordering::Acquire) != 0
    }

    /// Waits until batch `n` has reached this turn; returns false if the party that passes it has ended before. Calls `look` at
    /// each wake-up.
    pub fn wait(&self, turn: Turn, n: u64, nap: Duration, mut look: impl FnMut()) -> bool {
        let bell = self.bell(turn.of().other());
        loop {
            let seen = bell.value();
            // First, so that turns passed before the end count.
            let ended = self.ended(turn.of());
            if self.value(turn) >= n {
                return true;
            }
            if ended {
                return false;
            }
            bell.wait(seen, nap);
            look();
        }
    }

    /// Returns the doorbell of a party.
    pub fn bell(&self, party: Party) -> &Doorbell {
        &self.bells[party as usize]
    }
}

impl Party {
    fn other(self) -> Self {
        match self {
            Self::Learner => Self::Rows,
            Self::Rows => Self::Learner,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAP: Duration = Duration::from_secs(60);

    #[test]
    fn who_waits_for_a_party_that_ends_is_told() {
        let turns = Turns::default();
        turns.pass(Turn::LookedUp);
        std::thread::scope(|s| {
            let waiting =
                s.spawn(|| (turns.wait(Turn::LookedUp, 1, NAP, || ()), turns.wait(Turn::LookedUp, 2, NAP, || ())));
            turns.end(Party::Rows);
            assert_eq!(waiting.join().unwrap(), (true, false));
        });
    }
}
