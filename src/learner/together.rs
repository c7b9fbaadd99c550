//! The steps that the ranks of a learner take together: learning, updates, snapshots, the end.
//!
//! All make the same updates, each with gradients of its own part of the batch. Each takes its own actors' blocks in, keeps its own
//! pool and its own random stream, and steps its own copy of the networks; the copies stay equal to the last bit, which every
//! exchange checks. The first rank of each node publishes; a snapshot has a part of every rank of a node. The first of all nodes asks for
//! snapshots, waits for evaluations and sees when the policy has converged.

use anyhow::{Context as _, ensure};

use crate::run::failpoint;

use super::core::Learner;
use super::member::{LearnerProcess, NOT_SAVED};
use super::saver::Surroundings;
use super::trainer::NotFinite;

impl LearnerProcess<'_> {
    /// Learns until the run ends.
    pub fn learn_together(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let lock_step = self.settings.run.deterministic;
        let mut evaluated = control.evaluator.due.get();
        // All ranks have the same result of the last exchange and have made the same updates: all end here, or none.
        while !self.agreed().stops && learner.progress() < 1.0 {
            if lock_step {
                let whole = self.rings.await_round();
                if self.agree(learner, |said| said.stops |= !whole)?.stops {
                    break;
                }
                self.rings.take_all(learner)?;
                self.agree(learner, |_| {})?;
                while learner.updates_due() > 0 && learner.progress() < 1.0 {
                    self.update_or_roll_back(learner)?;
                }
                self.rings.publish(learner)?;
                let due = learner.updates() / self.settings.evaluate.every;
                if due > evaluated {
                    evaluated = due;
                    if self.leads() {
                        self.rings.await_evaluation();
                    }
                }
            } else if learner.updates_due() > 0 {
                self.update_or_roll_back(learner)?;
            } else {
                let seen = self.segments.control.data.value();
                let took = self.rings.take_readable(learner)?;
                let agreed = self.agree(learner, |said| said.took = took)?;
                if !agreed.took && !agreed.stops && !agreed.saves {
                    self.rings.wait_for_data(seen);
                }
            }
            if self.agreed().saves
                && let Err(e) = self.save_together(learner)
            {
                self.roll_back(learner, &e.downcast::<NotFinite>()?)?;
            }
        }
        Ok(())
    }

    fn update_or_roll_back(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        match self.update(learner) {
            // All ranks see the same figures, so all go back.
            Err(e) => self.roll_back(learner, &e.downcast::<NotFinite>()?),
            Ok(()) => Ok(()),
        }
    }

    /// Saves and publishes the final state.
    pub fn end_together(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        if !self.agree(learner, |_| {})?.at_once {
            if !self.settings.run.deterministic {
                self.rings.drain(learner, self.settings.actors.regions)?;
                self.agree(learner, |_| {})?;
            }
            if !self.save_finally(learner)? {
                tracing::warn!("{NOT_SAVED}");
            }
        }
        self.rings.publish(learner)
    }

    /// Takes the last snapshot; returns false if it is not on disk although snapshots are taken.
    fn save_finally(&mut self, learner: &mut Learner) -> anyhow::Result<bool> {
        let Some(saver) = &self.rings.saver else { return Ok(true) };
        let room = saver.wait_for_room();
        if !self.agree(learner, |said| said.room = room)?.room {
            return Ok(false);
        }
        let number = self.save_together(learner)?;
        // A snapshot is whole with the first rank's part, and that one sees it committed.
        Ok(!self.rings.is_first || self.rings.saver.as_ref().is_none_or(|saver| saver.wait_until_on_disk(number)))
    }

    /// Puts every rank's part of a snapshot into shared memory, that of a node's first rank last: it makes the node's snapshot whole.
    fn save_together(&mut self, learner: &mut Learner) -> anyhow::Result<u64> {
        let (publications, explorers) = (&self.rings.publications, &self.rings.explorers[..]);
        let around = Surroundings { publications, explorers, rollbacks: self.rollbacks };
        let saver = self.rings.saver.as_mut().context("the run takes no snapshots")?;
        let number = saver.next().context("a snapshot begins before the one before is on disk")?;
        let state = if self.rings.is_first {
            Some(saver.state(learner, around)?)
        } else {
            saver.save_part(number, learner, explorers)?;
            failpoint::reached("peer.snapshot");
            None
        };
        let agreed = self.agree(learner, |said| (said.number, said.due) = (number, false))?;
        ensure!(agreed.one_number, "the ranks are at different snapshots");
        if let (Some(state), Some(saver)) = (state, &mut self.rings.saver) {
            failpoint::reached("learner.snapshot");
            saver.write(number, &state)?;
        }
        Ok(number)
    }
}
