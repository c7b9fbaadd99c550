//! What ranks tell each other beside gradients.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::run::value_run::RANK_HEADER;
use crate::run::value_snapshot::ValueState;
use crate::sparse::{Counters, HostTable};

use super::saver::Wish;

/// What a rank says of itself in an exchange.
#[derive(Default)]
pub struct Said {
    /// It has no batch to compute, because the run stops: nobody makes this update.
    pub stops: bool,
    /// What the first rank of a machine says of its snapshots.
    pub wish: Wish,
    /// Of its parameters as all had them last.
    pub parameters: u64,
    pub click: f64,
    pub charge: f64,
    /// What its copies of rows have done so far.
    pub copies: Copied,
}

/// What copies of rows have done so far: rows asked for that were there, that were copied, and that were read without a copy; copies that
/// were dropped; bytes that were copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied([u64; 5]);

impl Copied {
    pub fn of(counters: Counters) -> Self {
        let Counters { hits, misses, absent, evictions, bytes_up, .. } = counters;
        Self([hits, misses, absent, evictions, bytes_up])
    }

    /// Of all ranks together.
    pub fn sum(all: &[Said]) -> Counters {
        let [hits, misses, absent, evictions, bytes_up] =
            std::array::from_fn(|i| all.iter().map(|said| said.copies.0[i]).sum());
        Counters { hits, misses, absent, evictions, bytes_up, ..Counters::default() }
    }
}

impl Said {
    pub fn encode(&self) -> [u8; RANK_HEADER] {
        let Wish { due, full, room } = self.wish;
        let flags = [self.stops, due, full, room].iter().rev().fold(0, |flags, flag| flags << 1 | u64::from(*flag));
        let own = [flags, self.parameters, self.click.to_bits(), self.charge.to_bits()];
        let mut out = [0; RANK_HEADER];
        let words = out.as_chunks_mut().0.iter_mut();
        words.zip(own.iter().chain(&self.copies.0)).for_each(|(to, word)| *to = word.to_le_bytes());
        out
    }

    pub fn decode(message: &[u8]) -> Option<Self> {
        let word =
            |i: usize| -> Option<u64> { Some(u64::from_le_bytes(message.get(8 * i..8 * i + 8)?.try_into().ok()?)) };
        let flags = word(0)?;
        let mut copies = [0; 5];
        for (i, counter) in copies.iter_mut().enumerate() {
            *counter = word(4 + i)?;
        }
        let flag = |bit: u32| flags >> bit & 1 == 1;
        Some(Self {
            stops: flag(0),
            wish: Wish { due: flag(1), full: flag(2), room: flag(3) },
            parameters: word(1)?,
            click: f64::from_bits(word(2)?),
            charge: f64::from_bits(word(3)?),
            copies: Copied(copies),
        })
    }

    /// Checks that all ranks had the same parameters.
    ///
    /// # Errors
    /// The first rank that had others than rank 0.
    pub fn agree(all: &[Self]) -> anyhow::Result<()> {
        match all.iter().position(|of| of.parameters != all[0].parameters) {
            Some(rank) => anyhow::bail!("the parameters of rank {rank} are not those of rank 0 any more"),
            None => Ok(()),
        }
    }
}

/// A hash of parameters, to compare them between ranks.
pub fn hash(parameters: &[f32]) -> u64 {
    XxHash3_64::oneshot(bytemuck::cast_slice(parameters))
}

/// What the end of a pass has come to, as the first rank of each table says. That of rank 0 counts for all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    finished: bool,
    evaluations: u64,
    without_improvement: u64,
    best: Option<f64>,
    /// Digest of the rows of its table, where there are several.
    rows: Option<u64>,
}

impl Verdict {
    /// Of `state`, and of the `rows` of a table; calls `beat` now and then.
    pub fn of(state: &ValueState, rows: Option<&HostTable>, beat: impl FnMut()) -> Self {
        let &ValueState { finished, evaluations, without_improvement, best, .. } = state;
        Self { finished, evaluations, without_improvement, best, rows: rows.map(|rows| rows.digest_with_beats(beat)) }
    }

    pub fn encode(&self) -> Vec<u8> {
        bincode::serde::encode_to_vec(self, bincode::config::standard()).expect("plain data")
    }

    /// # Errors
    /// Bytes that are no verdict.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        Ok(bincode::serde::decode_from_slice(bytes, bincode::config::standard())?.0)
    }

    /// Whether the rows of two tables are the same.
    pub fn same_rows(&self, other: &Self) -> bool {
        self.rows == other.rows
    }

    /// Takes the verdict over into `state`.
    pub fn apply(&self, state: &mut ValueState) {
        state.finished = self.finished;
        state.evaluations = self.evaluations;
        state.without_improvement = self.without_improvement;
        state.best = self.best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        for bits in 0..16u32 {
            let flag = |bit: u32| bits >> bit & 1 == 1;
            let wish = Wish { due: flag(1), full: flag(2), room: flag(3) };
            let copies = Copied::of(Counters { hits: 5, evictions: u64::from(bits), ..Counters::default() });
            let said = Said { stops: flag(0), wish, parameters: 7, click: 0.5, charge: f64::NAN, copies };
            let message = said.encode();
            let heard = Said::decode(&message).unwrap();
            assert_eq!((heard.stops, heard.wish, heard.parameters, heard.click), (flag(0), wish, 7, 0.5));
            assert!(heard.charge.is_nan() && Said::decode(&message[..RANK_HEADER - 1]).is_none());
            assert_eq!(heard.copies, copies);
            assert_eq!(Copied::sum(&[heard, said]).hits, 10);
        }
    }
}
