//! A learner process: what it holds, and what it tells the other ranks.

use std::time::Duration;

use anyhow::Context as _;

use crate::nodes::World;
use crate::run::snapshot::{Snapshot, folder};
use crate::run::{Metrics, RunDirectory, Segments};
use crate::settings::Settings;
use crate::shm::Halves;
use crate::shm::control::STOP_NOW;

use super::core::Learner;
use super::peers::{Agreed, Peers, Said};
use super::rings::Rings;
use super::trainer::UpdateStats;

/// Warning of a run whose last snapshot could not be taken.
pub(super) const NOT_SAVED: &str = "the last snapshot is not on disk; a resumed run goes on from the one before";

/// A learner process that runs alone, or as one of several ranks.
pub(super) struct LearnerProcess<'a> {
    /// Those of this rank: its part of the batch and of the pool.
    pub settings: &'a Settings,
    pub directory: &'a RunDirectory,
    pub segments: &'a Segments,
    /// Buffer for this rank's part of snapshots.
    pub halves: Option<&'a Halves>,
    /// Whether the statistics of every update are read.
    pub always_read: bool,
    pub metrics: Metrics,
    pub rings: Rings<'a>,
    /// `None` for a learner that learns alone.
    pub peers: Option<Peers>,
    pub world: World,
    /// Number of this rank on its node.
    pub rank: usize,
    /// Number of rollbacks ([`super::NotFinite`]).
    pub rollbacks: u32,
}

impl LearnerProcess<'_> {
    /// Whether it is the only rank or the first one of all nodes, beside the evaluator.
    pub fn leads(&self) -> bool {
        self.world.first + self.rank == 0
    }

    /// Whether the evaluator sees no improvement any more.
    pub fn converged(&self) -> bool {
        let patience = self.settings.stop.patience;
        patience > 0 && self.segments.control.evaluator.without_improvement.get() >= patience
    }

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

    /// Returns the result of the last exchange.
    pub fn agreed(&self) -> Agreed {
        self.peers.as_ref().map_or(Agreed::default(), |peers| peers.agreed)
    }

    /// Exchanges with all ranks what each says of itself, after `change`.
    pub fn agree(&mut self, learner: &mut Learner, change: impl FnOnce(&mut Said)) -> anyhow::Result<Agreed> {
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
