//! An exposure as the model sees it, and the blocks that readers hand to the trainer.

use std::f32::consts::TAU;

use serde::{Deserialize, Serialize};

use crate::log::Request;
use crate::log::corrected::Asked;
use crate::log::schema::{AdType, DAY_MS};

use super::Fields;

/// Dense features of an impression.
pub const DENSE: usize = 12;
/// Predicted click probabilities are kept away from 0 and 1 by this.
pub const LEAST_PCTR: f64 = 1e-6;

/// What the model sees of an ad on a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    pub dense: [f32; DENSE],
    /// Logged prediction: minor units per impression, 0 for a contract, and the logit of the click probability.
    pub charge: f32,
    pub logit: f32,
}

impl Seen {
    /// `day_start` is the day's local midnight in Unix milliseconds.
    pub fn of(request: &Request, asked: &Asked, day_start: u64) -> Self {
        let auction = asked.ad_type == AdType::Auction;
        let pctr = asked.pctr.clamp(LEAST_PCTR, 1.0 - LEAST_PCTR);
        let logit = (pctr / (1.0 - pctr)).ln() as f32;
        let angle = (request.ts_ms.saturating_sub(day_start) % DAY_MS) as f32 / DAY_MS as f32 * TAU;
        let flag = f32::from;
        let dense = [
            (1.0 + asked.ecpm).ln() as f32 / 8.0,
            flag(asked.ecpm > 0.0),
            logit / 4.0,
            (1.0 + asked.position as f32).ln() / 3.0,
            (asked.length as f32).ln() / 3.0,
            angle.sin(),
            angle.cos(),
            flag(request.gender == 1),
            flag(request.gender == 2),
            f32::from(request.age) / 9.0,
            flag(request.age > 0),
            flag(auction),
        ];
        Self { dense, charge: if auction { (asked.ecpm / 1000.0) as f32 } else { 0.0 }, logit }
    }
}

/// An exposure: what was seen, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub seen: Seen,
    pub auction: bool,
    /// What was charged, minor units per impression.
    pub charged: f32,
    pub clicked: bool,
    pub weight: f32,
}

impl Sample {
    /// Inverse propensity; 1 where none is logged.
    pub fn weight(propensity: Option<f64>) -> f32 {
        propensity.map_or(1.0, |p| (1.0 / p).min(f64::from(f32::MAX)) as f32)
    }
}

/// A batch of samples, as one write of a reader: column by column.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Number among its reader's blocks, from 0.
    pub number: u64,
    /// Pass over the exposures, from 0.
    pub epoch: u64,
    /// Whether it is its reader's last of the pass.
    pub ends_epoch: bool,
    /// Where it is a rank's shard: samples of the whole batch, and ranks that share them. 0 where it is the whole batch.
    pub whole: u64,
    pub ranks: u64,
    /// `fields` ids of each sample.
    #[serde(with = "column")]
    pub ids: Vec<u64>,
    /// `DENSE` features of each sample.
    #[serde(with = "column")]
    pub dense: Vec<f32>,
    #[serde(with = "column")]
    pub predicted: Vec<f32>,
    #[serde(with = "column")]
    pub logit: Vec<f32>,
    pub auction: Vec<bool>,
    #[serde(with = "column")]
    pub charged: Vec<f32>,
    pub clicked: Vec<bool>,
    #[serde(with = "column")]
    pub weight: Vec<f32>,
    /// Training day of each sample, as its number in the list of days; empty where nobody asks.
    #[serde(with = "column")]
    pub day: Vec<u16>,
}

impl Block {
    /// Samples in the block.
    pub fn len(&self) -> usize {
        self.weight.len()
    }

    pub fn is_empty(&self) -> bool {
        self.weight.is_empty()
    }

    /// Samples of the whole batch.
    pub fn whole(&self) -> u64 {
        if self.ranks > 0 { self.whole } else { self.len() as u64 }
    }

    /// What sums over the samples are multiplied by, so that the mean over all shards is the mean over the whole batch.
    pub fn scale(&self) -> f32 {
        if self.ranks > 0 { self.ranks as f32 / self.whole.max(1) as f32 } else { 1.0 / self.len().max(1) as f32 }
    }

    /// Removes all samples; keeps their memory.
    pub fn clear(&mut self) {
        let Self { ids, dense, predicted, logit, auction, charged, clicked, weight, day, .. } = self;
        ids.clear();
        [dense, predicted, logit, charged, weight].into_iter().for_each(Vec::clear);
        [auction, clicked].into_iter().for_each(Vec::clear);
        day.clear();
    }

    /// Appends a sample with its ids; it weighs `most_weight` at most.
    pub fn push(&mut self, sample: &Sample, ids: &[u64], most_weight: f64) {
        self.ids.extend_from_slice(ids);
        self.dense.extend_from_slice(&sample.seen.dense);
        self.predicted.push(sample.seen.charge);
        self.logit.push(sample.seen.logit);
        self.auction.push(sample.auction);
        self.charged.push(sample.charged);
        self.clicked.push(sample.clicked);
        self.weight.push(sample.weight.min(most_weight as f32));
    }

    /// Bytes that a block of so many samples takes at most.
    pub fn capacity(samples: usize, fields: &Fields) -> usize {
        samples * (8 * fields.len() + 4 * DENSE + 3 * 4 + 2 + 4 + 2) + 256
    }

    /// Serialises into `out`; returns the length.
    ///
    /// # Errors
    /// A block that does not fit.
    pub fn encode(&self, out: &mut [u8]) -> anyhow::Result<usize> {
        Ok(bincode::serde::encode_into_slice(self, out, Self::coding())?)
    }

    /// Reads a block of a model with so many fields back.
    ///
    /// # Errors
    /// Bytes that are no block, or columns of different lengths.
    pub fn decode(bytes: &[u8], fields: usize) -> anyhow::Result<Self> {
        let (block, read): (Self, usize) = bincode::serde::borrow_decode_from_slice(bytes, Self::coding())?;
        anyhow::ensure!(read == bytes.len(), "{} bytes are left over", bytes.len() - read);
        let n = block.len();
        let columns = [
            block.ids.len() == n * fields,
            block.dense.len() == n * DENSE,
            [block.predicted.len(), block.logit.len(), block.auction.len(), block.charged.len(), block.clicked.len()]
                .iter()
                .all(|len| *len == n),
            block.day.is_empty() || block.day.len() == n,
        ];
        anyhow::ensure!(columns.iter().all(|fits| *fits), "its columns differ in length");
        Ok(block)
    }

    fn coding() -> impl bincode::config::Config {
        bincode::config::standard().with_fixed_int_encoding().with_limit::<{ 1 << 30 }>()
    }
}

/// Encodes a column of numbers as its bytes in memory, in one copy. Blocks do not leave their machine.
mod column {
    use std::fmt;
    use std::marker::PhantomData;

    use bytemuck::{AnyBitPattern, NoUninit};
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub fn serialize<T: NoUninit, S: Serializer>(column: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytemuck::cast_slice(column))
    }

    pub fn deserialize<'de, T: NoUninit + AnyBitPattern, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_bytes(Column(PhantomData))
    }

    struct Column<T>(PhantomData<T>);

    impl<T: NoUninit + AnyBitPattern> Visitor<'_> for Column<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "bytes of numbers of {}", size_of::<T>())
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<T>, E> {
            if bytes.len().is_multiple_of(size_of::<T>()) {
                Ok(bytemuck::pod_collect_to_vec(bytes))
            } else {
                Err(E::invalid_length(bytes.len(), &self))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_and_a_damaged_one_is_refused() {
        let seen = Seen { dense: [0.5; DENSE], charge: 2.0, logit: -3.0 };
        let sample = Sample { seen, auction: true, charged: 1.5, clicked: false, weight: 2.0 };
        let mut block = Block { number: 3, epoch: 1, ends_epoch: true, ..Block::default() };
        for id in 0..5 {
            block.push(&sample, &[id, id + 10], 10.0);
        }
        let fields = Fields::parse(&["ad".into(), "slot".into()]).unwrap();
        let mut bytes = vec![0; Block::capacity(5, &fields)];
        let len = block.encode(&mut bytes).unwrap();
        assert_eq!(Block::decode(&bytes[..len], 2).unwrap(), block);
        assert!(Block::decode(&bytes[..len], 3).is_err());
        assert!(Block::decode(&bytes[..len - 1], 2).is_err());
        // The length of the ids in bytes stands behind four numbers and a flag. Now the last id lacks a byte.
        bytes[4 * 8 + 1] -= 1;
        assert!(Block::decode(&bytes[..len], 2).unwrap_err().to_string().contains("invalid length 79"));
    }

    #[test]
    fn weights_are_inverse_propensities_up_to_the_most() {
        let seen = Seen { dense: [0.0; DENSE], charge: 0.0, logit: 0.0 };
        let mut block = Block::default();
        for propensity in [None, Some(0.5), Some(0.001), Some(1e-300)] {
            let weight = Sample::weight(propensity);
            block.push(&Sample { seen, auction: true, charged: 0.0, clicked: false, weight }, &[], 10.0);
        }
        assert_eq!(block.weight, [1.0, 2.0, 10.0, 10.0]);
    }
}
