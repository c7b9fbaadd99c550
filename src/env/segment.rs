//! What an actor hands over: runs of consecutive steps, compact.
//!
//! A segment names rows of the compiled log, which both sides map, and the seed of its episode; it carries the
//! counters at its first step and what was done. The learner replays it to rebuild every state.

use serde::{Deserialize, Serialize};

use super::lesson::Lesson;
use super::state::State;

/// Least seconds of log time between two plans of a training episode: solving costs as much as a thousand requests.
pub const REPLAN_INTERVAL_S: f64 = 3600.0;

/// Version of the serialised form.
pub const BLOCK_FORMAT: u32 = 4;

/// Consecutive steps of one episode; a step is [`Segment::per_step`] requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Index of the training day.
    pub day: u16,
    /// Seed of the episode.
    pub episode: u64,
    /// Counters before the first row arrives.
    pub start: State,
    /// Requests of a step; the last step of an episode may have fewer.
    pub per_step: u16,
    /// Rows of the compiled log, in order.
    pub rows: Vec<u32>,
    /// What was shown on each: index of the candidate, then of the scored auction ads; [`Segment::NOTHING`] if nothing.
    pub actions: Vec<u16>,
    /// Where [`State::replan`] changed, as an index into `rows`, and to what.
    pub replans: Vec<(u32, Vec<f32>)>,
    /// Probability with which it was chosen; empty for steps of more than one request, which are not corrected for
    /// what another policy would have done.
    pub probabilities: Vec<f32>,
    /// What hindsight teaches about states of the segment; empty where the learner's target is the return alone.
    pub lessons: Vec<Lesson>,
    /// The row after the last one; `None` where the episode ended.
    pub next: Option<u32>,
}

impl Segment {
    /// The action where nothing could be shown.
    pub const NOTHING: u16 = u16::MAX;

    /// Steps.
    pub fn len(&self) -> usize {
        self.rows.len().div_ceil(usize::from(self.per_step.max(1)))
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// One write of an actor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    pub format: u32,
    pub segments: Vec<Segment>,
    /// In lock-step, the actor as it is after this block, serialised: a run goes on from there. Else empty.
    pub explorer: Vec<u8>,
}

impl Block {
    pub fn samples(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }

    /// The serialised block.
    pub fn to_bytes(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// Serialises into `out` and returns the length.
    ///
    /// # Errors
    /// A block that does not fit.
    pub fn encode(&self, out: &mut [u8]) -> anyhow::Result<usize> {
        Ok(bincode::serde::encode_into_slice(self, out, bincode::config::standard())?)
    }

    /// Reads a serialised block.
    ///
    /// # Errors
    /// Bytes that are no block, that go on after it, or a block of another format.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        // Whatever a length field says, serde reserves no more than a mebibyte ahead of what it has read.
        const LIMIT: usize = 1 << 28;
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (block, read): (Self, usize) = bincode::serde::decode_from_slice(bytes, config)?;
        anyhow::ensure!(block.format == BLOCK_FORMAT, "block format {}, expected {BLOCK_FORMAT}", block.format);
        anyhow::ensure!(read == bytes.len(), "{} bytes follow the block", bytes.len() - read);
        Ok(block)
    }
}
