//! Content of a snapshot besides the replay pool.

use std::collections::VecDeque;

use anyhow::ensure;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::policy::TrainerState;
use crate::shm::Ledger;

/// State of a run between two updates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Format number, [`RunState::FORMAT`].
    pub format: u32,
    /// Number of updates, of samples that the ranks of this node ingested, and of blocks that the first one ingested.
    pub updates: u64,
    pub samples: u64,
    pub blocks: u64,
    /// Seconds of learning, for a budget of wall time.
    pub elapsed_s: f64,
    /// Number of rollbacks to a snapshot because of a non-finite loss.
    pub rollbacks: u32,
    /// Samples that were consumed and are in no learner any more: ingested after the snapshot from which a later learner
    /// resumed.
    pub rolled_back: u64,
    pub trainer: TrainerState,
    /// Random stream that draws batches.
    pub rng: RngState,
    pub publications: Publications,
    pub evaluator: EvaluatorState,
    /// Sample ledger over all actors: of the processes that took the snapshot, and of the run's processes before them.
    pub ledger: Ledger,
    pub ledger_before: Ledger,
    /// Serialised state of each actor after its last block, in lock-step mode; else empty.
    pub explorers: Vec<Vec<u8>>,
}

/// A further rank's part of a state: what its pool, its random stream and its actors make different from the first rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankState {
    /// Format number, [`RankState::FORMAT`].
    pub format: u32,
    pub updates: u64,
    /// Samples and blocks that this rank has taken in.
    pub samples: u64,
    pub blocks: u64,
    /// Random stream that draws batches.
    pub rng: RngState,
    /// As in [`RunState`]: of its own actors, empty for the others.
    pub explorers: Vec<Vec<u8>>,
}

/// Returns the number of the random stream that draws a rank's batches after so many rollbacks.
pub fn batch_stream(rank: usize, rollbacks: u32) -> u64 {
    2 << 48 | (rank as u64) << 32 | u64::from(rollbacks)
}

/// Position of a random stream.
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

    /// Returns the same position in the stream that another rank draws its batches from.
    pub fn of_rank(&self, rank: usize) -> Self {
        // The low word counts rollbacks.
        Self { stream: batch_stream(rank, self.stream as u32), ..self.clone() }
    }

    /// Returns the rank that draws its batches from this stream.
    pub fn rank(&self) -> usize {
        (self.stream >> 32 & 0xffff) as usize
    }

    pub fn resume(&self) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::from_seed(self.seed);
        rng.set_stream(self.stream);
        rng.set_word_pos(self.position);
        rng
    }
}

/// Number of updates behind each published version of the parameters; versions count from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publications {
    /// Number of versions that are no longer stored.
    forgotten: u64,
    updates: VecDeque<u64>,
}

impl Publications {
    /// Number of versions stored: far more than any block can be behind.
    const KNOWN: usize = 1024;

    /// Returns the newest version, 0 for none.
    pub fn version(&self) -> u64 {
        self.forgotten + self.updates.len() as u64
    }

    /// Adds the next version and returns its number.
    pub fn push(&mut self, updates: u64) -> u64 {
        self.updates.push_back(updates);
        if self.updates.len() > Self::KNOWN {
            self.updates.pop_front();
            self.forgotten += 1;
        }
        self.version()
    }

    /// Returns the number of updates behind a version; 0 for an unknown one.
    pub fn updates_at(&self, version: u64) -> u64 {
        let index = version.checked_sub(self.forgotten + 1);
        index.and_then(|i| self.updates.get(i as usize)).copied().unwrap_or(0)
    }

    /// Marks the versions up to `version` as published, with the updates of the last known one: another learner published them,
    /// and their update counts are lost.
    pub fn skip_to(&mut self, version: u64) {
        let updates = self.updates.back().copied().unwrap_or(0);
        while self.version() < version {
            self.push(updates);
        }
    }
}

/// Best result so far, and the progress of the evaluator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatorState {
    pub evaluations: u64,
    pub without_improvement: u64,
    /// J in minor units, and shares of the bound.
    pub last_benefit: f64,
    pub last_share: f64,
    pub best_benefit: f64,
    pub highest_benefit: f64,
    pub best_share: f64,
    /// Version of the best; 0 where it was found on disk.
    pub best_version: u64,
    /// Version up to which everything is evaluated.
    pub progress: u64,
    /// Multiple of `evaluate.every` for which the last evaluation was made.
    pub due: u64,
}

impl RunState {
    /// Version of the serialised form.
    pub const FORMAT: u32 = 3;

    /// Returns the total ledger for processes that resume from here.
    pub fn ledger_so_far(&self) -> Ledger {
        Ledger::sum([self.ledger.closed(), self.ledger_before])
    }

    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// Malformed bytes, or a state of another format.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        decode(bytes, Self::FORMAT)
    }
}

impl RankState {
    /// Version of the serialised form.
    pub const FORMAT: u32 = 2;

    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// Decodes a rank's part of a state.
    ///
    /// # Errors
    /// Malformed bytes, or a part of another format.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        decode(bytes, Self::FORMAT)
    }
}

/// Decodes a state that begins with the number of its format. A length field that is wrong requests no more than a megabyte: serde lets lists
/// grow as their elements are read, and the bytes end before.
fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8], format: u32) -> anyhow::Result<T> {
    let config = bincode::config::standard();
    let (found, _): (u32, usize) = bincode::serde::decode_from_slice(bytes, config)?;
    ensure!(
        found == format,
        "it was written in format {found}, and this program reads {format}: resume with the program that began the run, or begin anew \
         from its policy with --from"
    );
    let (state, len) = bincode::serde::decode_from_slice(bytes, config)?;
    ensure!(len == bytes.len(), "a state of {len} bytes in {}", bytes.len());
    Ok(state)
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;

    use super::*;

    /// The rest of another format's bytes was read first, and the error said that they had ended.
    #[test]
    fn a_state_of_another_format_is_refused_by_its_number() {
        let old = bincode::serde::encode_to_vec((1u32, 20u64, 4096u64), bincode::config::standard()).unwrap();
        let error = RunState::decode(&old).unwrap_err().to_string();
        assert!(error.contains("format 1") && error.contains("reads 3") && error.contains("--from"), "{error}");
        let none = RankState::decode(&[]).unwrap_err().to_string();
        assert!(!none.contains("format"), "{none}");
    }

    /// A limit of 1 GiB stood in the way: of larger networks no snapshot could be written.
    #[test]
    fn a_state_may_be_of_any_size_and_a_length_without_its_bytes_is_refused() {
        for length in [1u64 << 20, 1 << 29, 1 << 40, u64::MAX] {
            let bytes = bincode::serde::encode_to_vec((3u32, length, 0.5f32), bincode::config::standard()).unwrap();
            let error = decode::<(u32, Vec<f32>)>(&bytes, 3).unwrap_err().to_string();
            assert!(error.contains("UnexpectedEnd"), "{length}: {error}");
        }
    }

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

    /// A node took the snapshots of another one for its own, and two ranks would have drawn the same batches.
    #[test]
    fn ranks_of_all_nodes_have_streams_of_their_own_that_name_them() {
        let mut streams = std::collections::BTreeSet::new();
        for rank in [0, 1, 7, 8, 63] {
            for rollbacks in [0, 1, u32::MAX] {
                let mut rng = ChaCha8Rng::seed_from_u64(5);
                rng.set_stream(batch_stream(rank, rollbacks));
                let state = RngState::of(&rng);
                assert_eq!((state.rank(), state.of_rank(9).rank()), (rank, 9));
                assert!(streams.insert(state.stream));
            }
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
