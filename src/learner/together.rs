//! The steps that the ranks of a learner take together: learning, updates, snapshots, the end.
//!
//! All make the same updates, each with gradients of its own part of the batch. Each takes its own actors' blocks in, keeps its own
//! pool and its own random stream, and steps its own copy of the networks; the copies stay equal to the last bit, which every
//! exchange checks. The first rank of each node publishes; a snapshot has a part of every rank of a node. The first of all nodes asks for
//! snapshots, waits for evaluations and sees when the policy has converged.

use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::run::failpoint;
use crate::run::snapshot::{Snapshot, folder};
use crate::shm::control::STOP_NOW;

use super::core::Learner;
use super::peers::{Agreed, Said};
use super::process::{LearnerProcess, NOT_SAVED};
use super::saver::Surroundings;
use super::trainer::{NotFinite, UpdateStats};

impl LearnerProcess<'_> {
    /// Returns the snapshot that the first rank finds, for all ranks.
    pub fn newest_of_all(
        &mut self,
        learner: &mut Learner,
        find: impl FnOnce(&Self) -> anyhow::Result<Option<Snapshot>>,
    ) -> anyhow::Result<Option<Snapshot>> {
        let found = if self.leads() { find(self)? } else { None };
        let number = found.as_ref().map_or(0, |snapshot| snapshot.number);
        let agreed = self.agree(learner, |said| said.number = number)?;
        if self.leads() || agreed.number == 0 {
            return Ok(found);
        }
        folder::numbered(&self.directory.checkpoints(), agreed.number).map(Some)
    }

    /// Begins when all ranks are there, with the version that the first one has published.
    pub fn begin_together(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let version = self.rings.publications.version();
        let agreed = self.agree(learner, |said| said.number = version)?;
        let known = &mut self.rings.publications;
        if known.version() < agreed.number {
            known.skip_to(agreed.number - 1);
            known.push(learner.updates());
        }
        Ok(())
    }

    /// Learns until the run ends.
    pub fn learn_together(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let control = &self.segments.control;
        let lock_step = self.settings.run.deterministic;
        let mut evaluated = control.evaluator.due.get();
        loop {
            if lock_step {
                let whole = self.rings.await_round();
                self.agree(learner, |said| said.stops |= !whole)?;
            }
            if self.agreed().stops || learner.progress() >= 1.0 {
                return Ok(());
            }
            if lock_step {
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
    }

    fn update_or_roll_back(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        match self.update(learner) {
            // All ranks see the same figures, so all go back.
            Err(e) => self.roll_back(learner, &e.downcast::<NotFinite>()?),
            Ok(()) => Ok(()),
        }
    }

    /// Does one update with all ranks; returns its statistics and the time spent in the exchange.
    pub fn update_together(
        &mut self,
        learner: &mut Learner,
        read: bool,
    ) -> anyhow::Result<(Option<UpdateStats>, Duration)> {
        let (said, slot) = (self.said(learner), self.rings.slot);
        let peers = self.peers.as_mut().context("a learner that learns alone")?;
        let (before, ranks) = (peers.waited, peers.ranks());
        let stats = learner.update_together(read, ranks, |share| peers.average(share, said, || slot.beat()))?;
        let (agreed, waited) = (peers.agreed, peers.waited - before);
        self.heed(learner, &agreed);
        Ok((stats, waited))
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

    fn agreed(&self) -> Agreed {
        self.peers.as_ref().map_or(Agreed::default(), |peers| peers.agreed)
    }

    /// Exchanges with all ranks what each says of itself, after `change`.
    fn agree(&mut self, learner: &mut Learner, change: impl FnOnce(&mut Said)) -> anyhow::Result<Agreed> {
        let mut said = self.said(learner);
        change(&mut said);
        let slot = self.rings.slot;
        let peers = self.peers.as_mut().context("a learner that learns alone")?;
        let before = peers.waited;
        let agreed = peers.agree(said, || slot.beat())?;
        self.rings.stats.wait_ns.add((peers.waited - before).as_nanos() as u64);
        self.rings.slot.beat();
        self.heed(learner, &agreed);
        Ok(agreed)
    }

    fn heed(&self, learner: &mut Learner, agreed: &Agreed) {
        learner.heed(agreed);
        if self.rings.is_first {
            self.rings.stats.samples_consumed.set(agreed.samples);
        }
    }

    fn said(&self, learner: &Learner) -> Said {
        let level = self.segments.control.stop_level();
        let saver = self.rings.saver.as_ref();
        Said {
            stops: level > 0 || self.leads() && self.converged(),
            at_once: level >= STOP_NOW,
            ready: learner.ready(),
            due: self.leads() && saver.is_some_and(|saver| saver.is_due()),
            room: saver.is_none_or(|saver| saver.next().is_some()),
            samples: learner.samples(),
            elapsed_s: learner.elapsed_s(),
            parameters: learner.digest(),
            ..Said::default()
        }
    }
}
