//! The shared memory of a run: control block, parameter cell, one sample ring per actor.

use crate::env::DayModel;
use crate::policy::PolicySpec;
use crate::settings::{self, Settings};
use crate::shm::{Control, ParamCell, RingShape, RunNames, SampleRing, ShmError, check_space};

/// Handles to all segments of a run.
pub struct Segments {
    pub control: Control,
    pub params: ParamCell,
    pub rings: Vec<SampleRing>,
}

/// Words before the parameters in a publication: the update count, low and high.
const HEAD_WORDS: usize = 2;

impl Segments {
    /// Creates the segments of a run, after checking that there is room for all of them.
    ///
    /// # Errors
    /// Too little shared memory, with what to change.
    pub fn create(
        names: &RunNames,
        settings: &Settings,
        spec: &PolicySpec,
        block_bytes: usize,
    ) -> Result<Self, ShmError> {
        let words = HEAD_WORDS + 2 * spec.actor_shape().len();
        let shape = |i: usize| RingShape { actor: i as u32, regions: settings.actors.regions, capacity: block_bytes };
        let total = Control::footprint()
            + ParamCell::footprint(words)
            + settings.actors.count as u64 * SampleRing::footprint(shape(0));
        check_space(total)?;
        Ok(Self {
            control: Control::create(&names.part("control"))?,
            params: ParamCell::create(&names.part("params"), words)?,
            rings: (0..settings.actors.count)
                .map(|i| SampleRing::create(&names.part(&format!("ring{i}")), shape(i)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Opens the segments that main created, with the rings of `actors`.
    pub fn open(prefix: &str, actors: std::ops::Range<usize>) -> Result<Self, ShmError> {
        Ok(Self {
            control: Control::open(&format!("{prefix}-control"))?,
            params: ParamCell::open(&format!("{prefix}-params"))?,
            rings: actors.map(|i| SampleRing::open(&format!("{prefix}-ring{i}"))).collect::<Result<_, _>>()?,
        })
    }
}

impl From<settings::Overflow> for crate::shm::Overflow {
    fn from(overflow: settings::Overflow) -> Self {
        match overflow {
            settings::Overflow::Wait => Self::Wait,
            settings::Overflow::Overwrite => Self::Overwrite,
        }
    }
}

/// Bytes that a block can take: every segment as long and as wide as it gets.
pub fn block_bytes(settings: &Settings, days: &[DayModel]) -> usize {
    let most = |f: &dyn Fn(&DayModel) -> usize| days.iter().map(f).max().unwrap_or(0);
    let contracts = most(&|d| d.contracts.len());
    // With delayed feedback the state carries the displays under way.
    let pending = most(&|d| most_within(d, settings.env.feedback_delay_s));
    let state = 160 + contracts * 4 * 9 + pending * 24;
    let replans = MOST_REPLANS * (contracts * 4 + 16);
    let segment = state + replans + 64 + settings.learner.segment * settings.requests_per_step() * (5 + 3 + 4);
    (settings.block_segments() * segment + 64).next_multiple_of(4096)
}

/// Actors plan anew no more often than each hour.
const MOST_REPLANS: usize = 26;

/// The most requests of a day that lie within `seconds`.
fn most_within(day: &DayModel, seconds: f64) -> usize {
    let window = (seconds * 1000.0) as u64;
    let (mut first, mut most) = (0, 0);
    for row in 0..day.log.requests().len() {
        while day.offset(first) + window < day.offset(row) {
            first += 1;
        }
        most = most.max(row - first + 1);
    }
    if window > 0 { most } else { 0 }
}

/// A publication as words: update count, raw actor, averaged actor.
pub fn pack(updates: u64, raw: &[f32], averaged: &[f32]) -> Vec<u32> {
    let mut words = vec![updates as u32, (updates >> 32) as u32];
    words.extend(raw.iter().chain(averaged).map(|w| w.to_bits()));
    words
}

/// The update count, the raw and the averaged actor of a publication; `None` if its length does not fit.
pub fn unpack(words: &[u32], actor_len: usize) -> Option<(u64, Vec<f32>, Vec<f32>)> {
    if words.len() != HEAD_WORDS + 2 * actor_len {
        return None;
    }
    let updates = u64::from(words[0]) | u64::from(words[1]) << 32;
    let floats = |w: &[u32]| w.iter().map(|&bits| f32::from_bits(bits)).collect();
    let (raw, averaged) = words[HEAD_WORDS..].split_at(actor_len);
    Some((updates, floats(raw), floats(averaged)))
}
