//! What a snapshot holds besides the replay pool.

use std::collections::VecDeque;

use anyhow::ensure;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::policy::TrainerState;
use crate::shm::Ledger;

/// A run between two updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// [`RunState::FORMAT`].
    pub format: u32,
    /// Updates done, samples and blocks taken in.
    pub updates: u64,
    pub samples: u64,
    pub blocks: u64,
    /// Seconds of learning, for a budget of wall time.
    pub elapsed_s: f64,
    /// Times that training went back to a snapshot because a loss was not finite.
    pub rollbacks: u32,
    /// Samples that were consumed and are in no learner any more: taken in after the snapshot that a later one went on from.
    pub rolled_back: u64,
    pub trainer: TrainerState,
    /// Draws batches.
    pub rng: RngState,
    pub publications: Publications,
    pub evaluator: EvaluatorState,
    /// Where the samples went, over all actors: of the processes that took the snapshot, and of those of the run before they
    /// were started.
    pub ledger: Ledger,
    pub ledger_before: Ledger,
    /// In lock-step, each actor as it was after its last block, serialised; else empty.
    pub explorers: Vec<Vec<u8>>,
}

/// Where a random stream is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngState {
    seed: [u8; 32],
    stream: u64,
    position: u128,
}

impl RngState {
    pub fn of(rng: &ChaCha8Rng) -> Self {
        Self { seed: rng.get_seed(), stream: rng.get_stream(), position: rng.get_word_pos() }
    }

    pub fn resume(&self) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::from_seed(self.seed);
        rng.set_stream(self.stream);
        rng.set_word_pos(self.position);
        rng
    }
}

/// Updates behind each published version of the parameters; versions count from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publications {
    /// Versions that are known no more.
    forgotten: u64,
    updates: VecDeque<u64>,
}

impl Publications {
    /// Versions that are remembered: far more than any block can be behind.
    const KNOWN: usize = 1024;

    /// The newest version, 0 for none.
    pub fn version(&self) -> u64 {
        self.forgotten + self.updates.len() as u64
    }

    /// Notes the next version; returns its number.
    pub fn push(&mut self, updates: u64) -> u64 {
        self.updates.push_back(updates);
        if self.updates.len() > Self::KNOWN {
            self.updates.pop_front();
            self.forgotten += 1;
        }
        self.version()
    }

    /// Updates behind a version; 0 for one that is not known.
    pub fn updates_at(&self, version: u64) -> u64 {
        let index = version.checked_sub(self.forgotten + 1);
        index.and_then(|i| self.updates.get(i as usize)).copied().unwrap_or(0)
    }

    /// Takes the versions up to `version` as published, with the updates of the last one known: another learner got that far
    /// with what is lost now.
    pub fn skip_to(&mut self, version: u64) {
        let updates = self.updates.back().copied().unwrap_or(0);
        while self.version() < version {
            self.push(updates);
        }
    }
}

/// What was best so far, and what the evaluator has looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatorState {
    pub evaluations: u64,
    pub without_improvement: u64,
    /// J in minor units, and shares of the bound.
    pub last_benefit: f64,
    pub last_share: f64,
    pub best_benefit: f64,
    pub best_share: f64,
    pub best_version: u64,
    /// Version up to which everything is evaluated.
    pub progress: u64,
    /// Multiple of `evaluate.every` that the last evaluation was for.
    pub due: u64,
}

impl RunState {
    /// Version of the serialised form.
    pub const FORMAT: u32 = 1;

    /// Where the samples went, for processes that go on from here.
    pub fn ledger_so_far(&self) -> Ledger {
        Ledger::sum([self.ledger.closed(), self.ledger_before])
    }

    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// # Errors
    /// Bytes that are no state, or one of another version's form.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        // A length field can ask for no more than this.
        const LIMIT: usize = 1 << 30;
        let config = bincode::config::standard().with_limit::<LIMIT>();
        let (state, len): (Self, usize) = bincode::serde::decode_from_slice(bytes, config)?;
        ensure!(state.format == Self::FORMAT, "a state of form {}, this program reads {}", state.format, Self::FORMAT);
        ensure!(len == bytes.len(), "a state of {len} bytes in {}", bytes.len());
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;

    use super::*;

    #[test]
    fn a_random_stream_goes_on_where_it_was() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        rng.set_stream(77);
        for i in 0..100 {
            let _: u32 = rng.random();
            let mut again = RngState::of(&rng).resume();
            let (a, b): (Vec<u64>, Vec<u64>) = (0..i % 7).map(|_| (rng.random::<u64>(), again.random::<u64>())).unzip();
            assert_eq!(a, b);
        }
    }

    #[test]
    fn publications_forget_only_the_oldest() {
        let mut known = Publications::default();
        assert_eq!((known.version(), known.updates_at(0), known.updates_at(1)), (0, 0, 0));
        for i in 1..3000u64 {
            assert_eq!(known.push(i * 8), i);
            assert_eq!(known.updates_at(i), i * 8);
        }
        assert_eq!(known.updates_at(2999 - 1000), (2999 - 1000) * 8);
        assert_eq!(known.updates_at(5), 0);
        known.skip_to(3010);
        assert_eq!((known.version(), known.updates_at(3005)), (3010, 2999 * 8));
    }
}
