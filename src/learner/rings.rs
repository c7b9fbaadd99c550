//! The learner's side of shared memory: blocks come in, parameters go out, snapshots are taken.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::env::Block;
use crate::run::snapshot::Publications;
use crate::run::{Segments, flight, pack};
use crate::shm::control::{LearnerStats, ProcessSlot};
use crate::shm::{RingReader, ShmError};

use super::core::Learner;
use super::saver::{Saver, Surroundings};

const NAP: Duration = Duration::from_millis(50);

/// The shared-memory side of a learner, or of one of several ranks.
pub struct Rings<'a> {
    pub segments: &'a Segments,
    /// This process's heartbeat and statistics.
    pub slot: &'a ProcessSlot,
    pub stats: &'a LearnerStats,
    /// Whether it is the only rank or the first one of its node, which publishes.
    pub is_first: bool,
    /// Actors whose blocks it takes in.
    actors: Range<usize>,
    readers: Vec<RingReader>,
    next: usize,
    pub publications: Publications,
    /// `None` if no snapshots are taken.
    pub saver: Option<Saver<'a>>,
    /// In lock-step, the state of each of its actors after its last block, by actor.
    pub explorers: Vec<Vec<u8>>,
}

/// Reason why a block could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Damaged in shared memory; its region is free again.
    #[error(transparent)]
    Torn(ShmError),
    /// Whole, but not a block of this program.
    #[error("{0:#}")]
    Malformed(anyhow::Error),
}

/// A block taken from a ring.
pub struct Taken {
    pub block: Block,
    /// Serialised form; empty unless requested.
    pub bytes: Vec<u8>,
    /// Version of the parameters that played it.
    pub version: u64,
}

/// Takes the oldest block from a ring; `None` if there is none.
pub fn take_block(reader: &mut RingReader, with_bytes: bool) -> Result<Option<Taken>, TakeError> {
    let Some(guard) = reader.take().map_err(TakeError::Torn)? else { return Ok(None) };
    let block = Block::decode(guard.payload()).context("a block of samples cannot be read");
    let bytes = if with_bytes { guard.payload().to_vec() } else { vec![] };
    let version = guard.info().param_version;
    guard.release();
    Ok(Some(Taken { block: block.map_err(TakeError::Malformed)?, bytes, version }))
}

impl<'a> Rings<'a> {
    /// Takes the readers of the rings of `actors`.
    ///
    /// # Errors
    /// If another process reads one of them.
    pub fn open(
        segments: &'a Segments,
        (slot, stats): (&'a ProcessSlot, &'a LearnerStats),
        is_first: bool,
        actors: Range<usize>,
    ) -> anyhow::Result<Self> {
        let readers = segments.rings[actors.clone()].iter().map(crate::shm::SampleRing::reader);
        Ok(Self {
            segments,
            slot,
            stats,
            is_first,
            readers: readers.collect::<Result<_, _>>()?,
            actors,
            next: 0,
            publications: Publications::default(),
            saver: None,
            explorers: vec![],
        })
    }

    /// Publishes both actors.
    pub fn publish(&mut self, learner: &Learner) -> anyhow::Result<()> {
        self.publications.push(learner.updates());
        self.publish_again(learner)
    }

    /// Publishes both actors again as the newest version, which readers of this shared memory have not seen. Ranks other than the
    /// first have the same parameters, and only check them.
    pub fn publish_again(&mut self, learner: &Learner) -> anyhow::Result<()> {
        let stats = self.stats;
        let working = Instant::now();
        learner.wait();
        stats.compute_ns.add(working.elapsed().as_nanos() as u64);
        let copying = Instant::now();
        let publication = learner.publication()?;
        if !self.is_first {
            return Ok(());
        }
        let version = self.publications.version();
        let words = pack(publication.updates, &publication.raw, &publication.averaged);
        self.segments.params.publish(version, &words, &self.segments.control.params)?;
        stats.param_version.set(version);
        flight::published(version, publication.updates);
        stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
        Ok(())
    }

    pub fn save_if_due(&mut self, learner: &Learner, rollbacks: u32) -> anyhow::Result<()> {
        let (publications, explorers) = (&self.publications, &self.explorers[..]);
        let around = Surroundings { publications, explorers, rollbacks };
        self.saver.as_mut().map_or(Ok(()), |saver| saver.save_if_due(learner, around))
    }

    /// Takes the last snapshot; returns false if it is not on disk although snapshots are taken.
    pub fn save_finally(&mut self, learner: &Learner, rollbacks: u32) -> anyhow::Result<bool> {
        let (publications, explorers) = (&self.publications, &self.explorers[..]);
        let around = Surroundings { publications, explorers, rollbacks };
        self.saver.as_mut().map_or(Ok(true), |saver| saver.save_finally(learner, around))
    }

    /// Takes the blocks that are readable now.
    pub fn drain(&mut self, learner: &mut Learner, regions: usize) -> anyhow::Result<()> {
        for ring in 0..self.readers.len() {
            for _ in 0..regions {
                self.take_from(ring, learner)?;
            }
        }
        Ok(())
    }

    /// Takes one readable block, from the rings in rotation, or waits a little.
    pub fn take_one(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        let seen = self.segments.control.data.value();
        if !self.take_readable(learner)? {
            self.wait_for_data(seen);
        }
        Ok(())
    }

    /// Takes one readable block, from the rings in rotation; returns false if there is none.
    pub fn take_readable(&mut self, learner: &mut Learner) -> anyhow::Result<bool> {
        for _ in 0..self.readers.len() {
            let ring = self.next;
            self.next = (ring + 1) % self.readers.len();
            if self.take_from(ring, learner)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits a little for a block of any actor after the bell's value `seen`.
    pub fn wait_for_data(&self, seen: u32) {
        let waiting = Instant::now();
        self.segments.control.data.wait(seen, NAP);
        flight::waiting("samples");
        self.stats.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        self.slot.beat();
    }

    /// Takes exactly one block of every actor, in order; returns false if the run was stopped before all were there.
    pub fn take_round(&mut self, learner: &mut Learner) -> anyhow::Result<bool> {
        let whole = self.await_round();
        if whole {
            self.take_all(learner)?;
        }
        Ok(whole)
    }

    /// Waits for a block of every actor; returns false if the run is stopped before all are there. All are taken or none: a run cannot
    /// resume within a round.
    pub fn await_round(&self) -> bool {
        let control = &self.segments.control;
        let waiting = Instant::now();
        loop {
            let seen = control.data.value();
            if self.segments.rings[self.actors.clone()].iter().all(|ring| ring.ledger().unread > 0) {
                break;
            }
            if control.stop_level() > 0 {
                return false;
            }
            control.data.wait(seen, NAP);
            self.slot.beat();
        }
        self.stats.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        true
    }

    /// Takes one block of every actor, in order.
    ///
    /// # Errors
    /// If one was damaged.
    pub fn take_all(&mut self, learner: &mut Learner) -> anyhow::Result<()> {
        for ring in 0..self.readers.len() {
            let actor = self.actors.start + ring;
            anyhow::ensure!(self.take_from(ring, learner)?, "the block of actor {actor} was damaged");
        }
        Ok(())
    }

    fn take_from(&mut self, ring: usize, learner: &mut Learner) -> anyhow::Result<bool> {
        let copying = Instant::now();
        let actor = self.actors.start + ring;
        let Taken { block, bytes, version } = match take_block(&mut self.readers[ring], self.saver.is_some()) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Ok(false),
            Err(TakeError::Torn(e)) => {
                // The ring counts it in the ledger; the samples are lost, and the run continues.
                tracing::error!("actor {actor}: {e}");
                return Ok(false);
            }
            Err(e @ TakeError::Malformed(_)) => return Err(e.into()),
        };
        let stats = self.stats;
        let behind = self.publications.updates_at(version);
        stats.lag.record(learner.updates() - behind.min(learner.updates()));
        let samples = block.samples() as u32;
        if !block.explorer.is_empty() {
            self.explorers.resize(self.segments.rings.len(), vec![]);
            self.explorers[actor] = block.explorer;
        }
        learner.ingest(block.segments)?;
        if let Some(saver) = &mut self.saver {
            saver.note(samples, bytes)?;
        }
        stats.samples_consumed.set(if self.is_first { learner.samples_of_all() } else { learner.samples() });
        stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
        Ok(true)
    }

    /// Waits until the evaluator has evaluated everything published.
    pub fn await_evaluation(&self) {
        let control = &self.segments.control;
        let version = self.publications.version();
        while control.evaluator.progress() < version && control.stop_level() == 0 {
            let seen = control.progress.value();
            if control.evaluator.progress() >= version {
                break;
            }
            control.progress.wait(seen, NAP);
            flight::waiting("the evaluator");
            self.slot.beat();
        }
    }
}
