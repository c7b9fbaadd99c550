//! Where a trainer's batches come from: the readers' rings, in turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::run::value_cursor::Cursor;
use crate::run::value_run::ValueSegments;
use crate::shm::control::ProcessSlot;
use crate::shm::{Control, RingReader, SampleRing, ShmError};
use crate::values::Block;

const NAP: Duration = Duration::from_millis(100);

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
}

impl<'a> Blocks<'a> {
    /// Takes the reading roles of the rings.
    ///
    /// # Errors
    /// Another process has one of them.
    pub fn open(segments: &'a ValueSegments, slot: &'a ProcessSlot, fields: usize) -> Result<Self, ShmError> {
        let readers = segments.rings.iter().map(SampleRing::reader).collect::<Result<_, _>>()?;
        Ok(Self { control: &segments.control, slot, readers, fields, ahead: VecDeque::new(), waited: Duration::ZERO })
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
                guard.release();
                if block.ranks > 0 {
                    // The reader on this core may have waited for room. All ranks take their blocks at about the same time, so all readers work at the
                    // same time. Otherwise each of them makes all ranks wait in turn.
                    std::thread::yield_now();
                }
                self.control.learner.samples_consumed.add(block.len() as u64);
                Ok(Some(block))
            }
            Ok(None) => {
                if naps {
                    let begun = Instant::now();
                    self.control.data.wait(seen, NAP);
                    self.waited += begun.elapsed();
                    self.control.learner.wait_ns.add(begun.elapsed().as_nanos() as u64);
                }
                Ok(None)
            }
            Err(ShmError::Torn { .. }) => anyhow::bail!("a block of reader {reader} is damaged"),
            Err(e) => Err(e.into()),
        }
    }
}
