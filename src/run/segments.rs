//! The shared memory of a run: control block, parameter cell, one sample ring per actor, and the two halves for snapshots.

use crate::env::{ADVICE_COLUMNS, DayModel, Delay, REPLAN_INTERVAL_S};
use crate::log::schema::DAY_MS;
use crate::policy::PolicySpec;
use crate::settings::{self, Settings, Target};
use crate::shm::control::MAX_LEARNER_RANKS;
use crate::shm::names::CONTROL;
use crate::shm::{
    Control, Exchange, ExchangeShape, HalfShape, Halves, ParamCell, RingShape, RunNames, SampleRing, ShmError,
    check_space,
};

/// Handles to all segments of a run.
pub struct Segments {
    pub params: ParamCell,
    pub rings: Vec<SampleRing>,
    /// Buffer in which snapshots are taken; of several ranks of the learner, the first one's.
    pub halves: Option<Halves>,
    /// Buffers for the parts of the other ranks, from rank 1; only for main and the checkpointer.
    pub rank_halves: Vec<Halves>,
    /// Dropped last: while it exists and is locked, nobody sweeps the others.
    pub control: Control,
}

/// Names drawn before a start gives up; each can be taken only by chance.
const DRAWS: usize = 8;

// The settings must not allow more actors and ranks than the control block has slots.
const _: () = assert!(settings::MOST_ACTORS == crate::shm::MAX_ACTORS);
const _: () = assert!(settings::MOST_RANKS == MAX_LEARNER_RANKS);

/// Returns the name of the exchange between the ranks of the learner.
pub fn exchange_name(prefix: &str) -> String {
    format!("{prefix}-exchange")
}

/// Returns the name of the buffer for a further rank's part of snapshots.
pub fn rank_halves_name(prefix: &str, rank: usize) -> String {
    format!("{prefix}-halves{rank}")
}

/// Words before the parameters in a publication: the update count, low word and high word.
const HEAD_WORDS: usize = 2;

/// Draws the names of a run and creates its control block, which marks them as those of a live run. It comes before all other segments, which
/// would be swept without it.
///
/// # Errors
/// Too little shared memory.
pub fn create_control(run_id: &str) -> Result<(RunNames, Control), ShmError> {
    let mut draws = 1;
    loop {
        let names = RunNames::for_this_process(run_id)?;
        match Control::create(&names.part(CONTROL)) {
            Err(ShmError::Exists { .. }) if draws < DRAWS => draws += 1,
            created => return Ok((names, created?)),
        }
    }
}

impl Segments {
    /// Creates the segments of a run under new names, after checking that there is room for all of them.
    ///
    /// # Errors
    /// Too little shared memory, with what to change.
    pub fn create(
        run_id: &str,
        settings: &Settings,
        spec: &PolicySpec,
        block_bytes: usize,
        half: Option<HalfShape>,
        exchange: Option<ExchangeShape>,
    ) -> Result<(RunNames, Self), ShmError> {
        let words = HEAD_WORDS + 2 * spec.actor_shape().len();
        let shape = |i: usize| RingShape { actor: i as u32, regions: settings.actors.regions, capacity: block_bytes };
        let total = Control::footprint()
            + ParamCell::footprint(words)
            + settings.actors.count as u64 * SampleRing::footprint(shape(0))
            + half.map_or(0, Halves::footprint) * settings.learner.ranks as u64
            + exchange.map_or(0, Exchange::footprint);
        check_space(total)?;
        let (names, control) = create_control(run_id)?;
        let segments = Self {
            params: ParamCell::create(&names.part("params"), words)?,
            rings: (0..settings.actors.count)
                .map(|i| SampleRing::create(&names.part(&format!("ring{i}")), shape(i)))
                .collect::<Result<_, _>>()?,
            halves: half.map(|shape| Halves::create(&names.part("halves"), shape)).transpose()?,
            rank_halves: match half {
                None => vec![],
                Some(shape) => (1..settings.learner.ranks)
                    .map(|rank| Halves::create(&rank_halves_name(&names.to_string(), rank), shape))
                    .collect::<Result<_, _>>()?,
            },
            control,
        };
        Ok((names, segments))
    }

    /// Opens the segments that main created, with the rings of `actors` and, if `halves`, the halves for snapshots.
    pub fn open(prefix: &str, actors: std::ops::Range<usize>, halves: bool) -> Result<Self, ShmError> {
        Ok(Self {
            control: Control::open(&format!("{prefix}-control"))?,
            params: ParamCell::open(&format!("{prefix}-params"))?,
            rings: actors.map(|i| SampleRing::open(&format!("{prefix}-ring{i}"))).collect::<Result<_, _>>()?,
            halves: halves.then(|| Halves::open(&format!("{prefix}-halves"))).transpose()?,
            rank_halves: vec![],
        })
    }

    /// Opens the segments that the checkpointer needs.
    pub fn open_for_checkpointer(prefix: &str, ranks: usize) -> Result<Self, ShmError> {
        let others = (1..ranks).map(|rank| Halves::open(&rank_halves_name(prefix, rank)));
        Ok(Self { rank_halves: others.collect::<Result<_, _>>()?, ..Self::open(prefix, 0..0, true)? })
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

/// Maximum size of a serialised state of a replay.
fn state_bytes(contracts: usize, pending: usize) -> usize {
    // Counters, observed and expected traffic over several memories, and the replanner's columns.
    let per_contract = 8 * 8 + 4 * (1 + 6 + ADVICE_COLUMNS);
    320 + contracts * per_contract + pending * 24
}

/// Maximum sizes of serialised data, in bytes: every segment as long and as wide as it can get.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Size of an actor's block.
    pub block: usize,
    /// Size of an actor's state between two blocks in lock-step mode; else 0.
    pub explorer: usize,
}

impl Sizes {
    pub fn of(settings: &Settings, spec: &PolicySpec, days: &[DayModel]) -> Self {
        let most = |f: &dyn Fn(&DayModel) -> usize| days.iter().map(f).max().unwrap_or(0);
        let contracts = most(&|d| d.contracts.len());
        // With a feedback delay the state carries the pending displays.
        let pending = most(&|d| most_within(d, Delay::of_policy(&settings.policy, &settings.env).most_s()));
        let state = state_bytes(contracts, pending);
        let replans = (DAY_MS as f64 / 1000.0 / REPLAN_INTERVAL_S) as usize + 2;
        // A step may span any part of the day.
        let lessons = match settings.learner.target {
            Target::Return => 0,
            _ => {
                ((DAY_MS as f64 / 1000.0 / settings.learner.lesson_every_s) as usize + 2).min(settings.learner.segment)
            }
        };
        let segment = state
            + replans * (contracts * 4 * ADVICE_COLUMNS + 16)
            + lessons * (48 + contracts * 4 * (spec.features() + 5 + 3))
            + 64
            + settings.learner.segment * settings.requests_per_step() * (5 + 3 + 4);
        let runner = state + contracts * (8 + 8 + 8 + 4 * ADVICE_COLUMNS) + 192;
        let explorer = if settings.run.deterministic { 128 + settings.actors.episodes * runner } else { 0 };
        let block = (settings.block_segments() * segment + explorer + 64).next_multiple_of(4096);
        Self { block, explorer }
    }

    /// Returns the size of a rank's part of a snapshot where all nodes have `ranks`: the state with `parameters` parameters of both
    /// networks, and the replay pool in blocks.
    pub fn half(&self, settings: &Settings, parameters: usize, ranks: usize) -> HalfShape {
        // Weights, their average or target, and two moments.
        let networks = 4 * 4 * parameters;
        let publications = 10 * 1024;
        let steps = settings.block_segments() * settings.learner.segment;
        // Blocks of shorter episodes hold fewer steps in more bytes; blocks that do not fit are left out of the snapshot's
        // pool.
        let blocks = (settings.learner.pool / ranks / steps + 2) * 5 / 4 + 1;
        HalfShape {
            dense: networks + publications + settings.actors.count * (self.explorer + 16) + (1 << 14),
            sparse: blocks * (self.block + 16),
        }
    }
}

/// Returns the maximum number of requests of a day within `seconds`.
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

/// Packs a publication into words: update count, raw actor, averaged actor.
pub fn pack(updates: u64, raw: &[f32], averaged: &[f32]) -> Vec<u32> {
    let mut words = vec![updates as u32, (updates >> 32) as u32];
    words.extend(raw.iter().chain(averaged).map(|w| w.to_bits()));
    words
}

/// Unpacks the update count, the raw and the averaged actor of a publication; `None` if its length does not fit.
pub fn unpack(words: &[u32], actor_len: usize) -> Option<(u64, Vec<f32>, Vec<f32>)> {
    if words.len() != HEAD_WORDS + 2 * actor_len {
        return None;
    }
    let updates = u64::from(words[0]) | u64::from(words[1]) << 32;
    let floats = |w: &[u32]| w.iter().map(|&bits| f32::from_bits(bits)).collect();
    let (raw, averaged) = words[HEAD_WORDS..].split_at(actor_len);
    Some((updates, floats(raw), floats(averaged)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::State;

    #[test]
    fn a_state_fits_into_what_is_reserved_for_it() {
        for contracts in [0, 1, 7, 300] {
            let mut state = State::new(vec![1e9; contracts]);
            state.replan(&vec![0.5; ADVICE_COLUMNS * contracts]);
            let bytes = bincode::serde::encode_to_vec(&state, bincode::config::standard()).unwrap();
            assert!(bytes.len() <= state_bytes(contracts, 0), "{contracts} contracts: {} bytes", bytes.len());
        }
    }
}
