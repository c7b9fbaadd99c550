//! Where a trainer's batches come from: the readers' rings, in turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::run::value_cursor::Cursor;
use crate::run::value_run::ValueSegments;
use crate::settings::{RankSync, ValueSettings};
use crate::shm::control::ProcessSlot;
use crate::shm::{Control, RingReader, SampleRing, ShmError, Woken};
use crate::values::Block;

const NAP: Duration = Duration::from_millis(100);
/// The longest time without a new block of any reader, after which a rank that waits for full rings goes on.
const PATIENCE: Duration = Duration::from_millis(5);

/// A batch that was taken, and where training stands behind it.
pub struct Batch {
    pub block: Arc<Block>,
    pub after: Cursor,
}

/// The batches that come next.
pub struct Blocks<'a> {
    control: &'a Control,
    slot: &'a ProcessSlot,
    readers: Vec<RingReader>,
    /// Ids of a sample.
    fields: usize,
    /// Batches that were taken and are not learned yet, the next one first.
    ahead: VecDeque<Batch>,
    waited: Duration,
    /// How regions are given back; `None` for a single rank, which does so at once.
    giving: Option<Giving>,
}

/// How one of several ranks gives regions back.
struct Giving {
    /// After so many blocks, those of all readers together.
    every: usize,
    /// Readers that it waits for then.
    waits_for: Vec<usize>,
}

impl<'a> Blocks<'a> {
    /// Takes the reading roles of the rings.
    ///
    /// # Errors
    /// Another process has one of them.
    pub fn open(segments: &'a ValueSegments, slot: &'a ProcessSlot, fields: usize) -> Result<Self, ShmError> {
        let readers = segments.rings.iter().map(SampleRing::reader).collect::<Result<_, _>>()?;
        let control = &segments.control;
        let (ahead, waited) = (VecDeque::new(), Duration::ZERO);
        Ok(Self { control, slot, readers, fields, ahead, waited, giving: None })
    }

    /// Makes this the blocks of one of several ranks: regions are kept until [`give_back`](Self::give_back). `cores` are those of the machine.
    pub fn of_rank(self, rank: usize, settings: &ValueSettings, cores: usize) -> Self {
        let (ranks, readers) = (settings.ranks_here(), self.readers.len());
        let in_step = settings.ranks.sync == RankSync::Step;
        let of_bursts = self.readers.iter().map(|reader| reader.ring().burst()).sum();
        let waits = in_step && cores < ranks + readers;
        let giving = Giving {
            every: if in_step { of_bursts } else { readers },
            waits_for: if waits { (rank..readers).step_by(ranks).collect() } else { vec![] },
        };
        Self { giving: Some(giving), ..self }
    }

    /// Gives the regions of the blocks that were taken back to the readers, if it is time for that; `after` is the cursor behind the batch of
    /// this update. Returns how long it has waited.
    ///
    /// A reader that shares a core with a rank slows all ranks, because they wait for each other. So all readers work at the same time: ranks in
    /// step give regions back in the same update, after as many blocks as the readers write in a burst. Where there are fewer cores than ranks
    /// and readers, each of these ranks then waits until its share of the readers have filled their rings, or no reader has given a block for
    /// [`PATIENCE`]. A rank that finds a ring empty gives its regions back at once.
    pub fn give_back(&mut self, after: &Cursor) -> Duration {
        let Some(Giving { every, .. }) = &self.giving else { return Duration::ZERO };
        if !after.blocks().is_multiple_of(*every as u64) {
            return Duration::ZERO;
        }
        self.release_kept();
        let begun = Instant::now();
        loop {
            let seen = self.control.data.value();
            self.slot.beat();
            if self.rings_are_filled() || self.control.data.wait(seen, PATIENCE) == Woken::TimedOut {
                break;
            }
        }
        self.count_waiting(begun)
    }

    /// Whether the readers that this rank waits for have filled their rings, or the run stops.
    fn rings_are_filled(&self) -> bool {
        let mut waits_for = self.giving.iter().flat_map(|giving| &giving.waits_for);
        waits_for.all(|reader| self.readers[*reader].ring().is_full()) || self.control.stop_level() > 0
    }

    /// Gives the regions of all blocks that were taken back, whether it is time for that or not.
    pub fn release_kept(&mut self) {
        self.readers.iter_mut().for_each(RingReader::release_kept);
    }

    fn count_waiting(&mut self, begun: Instant) -> Duration {
        let waited = begun.elapsed();
        self.waited += waited;
        self.control.learner.wait_ns.add(waited.as_nanos() as u64);
        waited
    }

    /// Takes another batch of this pass; `cursor` says where training stands. `None` at the end of the pass, and where there is none
    /// yet: after a nap then, if no batch is at hand.
    ///
    /// # Errors
    /// A damaged ring, or a block that is not the next one.
    pub fn take(&mut self, cursor: &Cursor) -> anyhow::Result<Option<Arc<Block>>> {
        let naps = self.ahead.is_empty();
        self.take_one(cursor, naps)
    }

    /// The next batch, if it is at hand.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn peek(&mut self, cursor: &Cursor) -> anyhow::Result<Option<&Batch>> {
        if self.ahead.is_empty() {
            self.take_one(cursor, false)?;
        }
        Ok(self.ahead.front())
    }

    fn take_one(&mut self, cursor: &Cursor, naps: bool) -> anyhow::Result<Option<Arc<Block>>> {
        let mut after = self.ahead.back().map_or(cursor, |batch| &batch.after).clone();
        while !after.pass_ended() {
            let Some(block) = self.read(after.reader(), naps)? else { break };
            // Else made again by a reader that died between handing it over and saying so.
            if after.advance(&block)? {
                let block = Arc::new(block);
                self.ahead.push_back(Batch { block: block.clone(), after });
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// The next batch that was taken.
    pub fn next(&mut self) -> Option<Batch> {
        self.ahead.pop_front()
    }

    /// How long the trainer has waited for the readers.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    fn read(&mut self, reader: usize, naps: bool) -> anyhow::Result<Option<Block>> {
        self.slot.beat();
        let seen = self.control.data.value();
        match self.readers[reader].take() {
            Ok(Some(guard)) => {
                let block = Block::decode(guard.payload(), self.fields)?;
                if self.giving.is_some() {
                    guard.keep()
                } else {
                    guard.release()
                }
                return Ok(Some(block));
            }
            Ok(None) => {}
            Err(ShmError::Torn { .. }) => anyhow::bail!("a block of reader {reader} is damaged"),
            Err(e) => return Err(e.into()),
        }
        // The reader may have no free region left.
        self.readers[reader].release_kept();
        if naps {
            let begun = Instant::now();
            self.control.data.wait(seen, NAP);
            self.count_waiting(begun);
        }
        Ok(None)
    }
}
