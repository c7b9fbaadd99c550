//! Compact runs of consecutive steps that an actor sends to the learner.
//!
//! A segment names rows of the compiled log, which both processes map, and the seed of its episode. It carries the
//! counters at its first step and the actions. The learner replays it to rebuild every state.

use serde::{Deserialize, Serialize};

use super::lesson::Lesson;
use super::state::State;

/// Minimum seconds of log time between two plans of a training episode: solving costs as much as a thousand requests.
pub const REPLAN_INTERVAL_S: f64 = 3600.0;

/// Version of the serialised form.
pub const BLOCK_FORMAT: u32 = 5;

/// Consecutive steps of one episode; a step is [`Segment::per_step`] requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Index of the training day.
    pub day: u16,
    /// Seed of the episode.
    pub episode: u64,
    /// Counters before the first row arrives.
    pub start: State,
    /// Requests per step; the last step of an episode may have fewer.
    pub per_step: u16,
    /// Rows of the compiled log, in order.
    pub rows: Vec<u32>,
    /// Action on each row: index of the candidate or, after the candidates, of the scored auction ad; [`Segment::NOTHING`] if
    /// nothing was shown.
    pub actions: Vec<u16>,
    /// Changes of the plan: an index into `rows` and the columns for [`State::replan`].
    pub replans: Vec<(u32, Vec<f32>)>,
    /// Probability of each action; empty for steps of more than one request, which have no off-policy
    /// correction.
    pub probabilities: Vec<f32>,
    /// Hindsight labels for states of the segment; empty if the learner's target is the return alone.
    pub lessons: Vec<Lesson>,
    /// Row after the last one; `None` if the episode ended.
    pub next: Option<u32>,
}

impl Segment {
    /// Action of a row on which nothing could be shown.
    pub const NOTHING: u16 = u16::MAX;

    /// Returns the number of steps.
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
    /// In lock-step, the serialised actor after this block, from which a run resumes; empty otherwise.
    pub explorer: Vec<u8>,
}

impl Block {
    pub fn samples(&self) -> usize {
        self.segments.iter().map(Segment::len).sum()
    }

    /// Serialises the block.
    pub fn to_bytes(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// Serialises into `out` and returns the length.
    ///
    /// # Errors
    /// If the block does not fit.
    pub fn encode(&self, out: &mut [u8]) -> anyhow::Result<usize> {
        Ok(bincode::serde::encode_into_slice(self, out, bincode::config::standard())?)
    }

    /// Reads a serialised block.
    ///
    /// # Errors
    /// If the bytes are not a block, if bytes follow it, or if the format differs.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        // Whatever a length field says, serde reserves at most a mebibyte ahead of what it has read.
        const LIMIT: usize = 1 << 28;
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (block, read): (Self, usize) = bincode::serde::decode_from_slice(bytes, config)?;
        anyhow::ensure!(block.format == BLOCK_FORMAT, "block format {}, expected {BLOCK_FORMAT}", block.format);
        anyhow::ensure!(read == bytes.len(), "{} bytes follow the block", bytes.len() - read);
        Ok(block)
    }
}
