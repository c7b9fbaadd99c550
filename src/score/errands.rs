//! What happens beside scoring: long computations on other threads, and a policy put in another's place.

use crate::policy::{Done, Work};

use super::scorer::Scorer;

/// A policy's long computation, handed out by a [`Scorer`].
pub struct Errand {
    generation: u64,
    work: Work,
}

/// A finished [`Errand`].
pub struct Finished {
    generation: u64,
    done: Done,
}

impl Errand {
    /// Does the work.
    pub fn run(self) -> Finished {
        Finished { generation: self.generation, done: (self.work)() }
    }
}

impl Scorer {
    /// Whether the policy's long computations are handed out ([`Scorer::take_errand`]) instead of being done in line.
    pub fn hand_out(&mut self, on: bool) {
        self.hands_out = on;
        self.policy.hand_out(on);
    }

    /// A long computation that came up, to be run anywhere and brought back.
    pub fn take_errand(&mut self) -> Option<Errand> {
        let work = self.policy.take_work()?;
        Some(Errand { generation: self.generation, work })
    }

    /// Takes in the result of an errand; one of a policy that was replaced since is dropped.
    pub fn finish_errand(&mut self, done: Finished) {
        if done.generation == self.generation {
            self.policy.finish_work(done.done);
        }
    }

    /// Puts a successor in this one's place: a scorer of the same day that was restored from this one's counts, with another
    /// policy. It is given everything that was counted meanwhile; the old one is returned.
    pub fn swap(&mut self, mut next: Self) -> Self {
        // The counters change places; each policy keeps its own plan.
        std::mem::swap(&mut next.replay.state, &mut self.replay.state);
        next.replay.state.swap_plan(&mut self.replay.state);
        std::mem::swap(&mut next.claims, &mut self.claims);
        next.now = self.now;
        next.generation = self.generation + 1;
        std::mem::replace(self, next)
    }
}
