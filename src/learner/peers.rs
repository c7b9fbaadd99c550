//! Exchanges between the ranks of a learner.
//!
//! Beside gradients, every exchange carries the state of each rank ([`Said`]). All ranks read the same states in the same order, so they
//! take the same decisions: whether the next update is due, a snapshot begins, or the run stops.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::collective::{self, Transport};
use crate::run::{failpoint, flight};
use crate::shm::Exchange;

use super::share::{GradientShare, Tally};

/// Maximum size of an encoded [`Said`], bytes.
pub const SAID_BYTES: usize = 512;

/// State of a rank that it sends with an exchange.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// It stops before the next update or round. Rank 0 also says so when the policy has converged.
    pub stops: bool,
    /// The run ends at once.
    pub at_once: bool,
    /// It has taken a block in since the exchange before.
    pub took: bool,
    /// Its pool is full enough to learn from.
    pub ready: bool,
    /// A snapshot is due; rank 0 alone decides.
    pub due: bool,
    /// Its snapshot before is on disk.
    pub room: bool,
    /// Samples that it has taken in.
    pub samples: u64,
    /// Seconds of learning; those of rank 0 count.
    pub elapsed_s: f64,
    /// Hash of its parameters after the update before.
    pub parameters: u64,
    /// A number that rank 0 gives to all, or that all must share: of a snapshot, of a publication.
    pub number: u64,
    /// Of its batch, if this exchange is of an update.
    pub tally: Tally,
}

/// Decisions that follow from the states of all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Agreed {
    pub stops: bool,
    pub at_once: bool,
    pub took: bool,
    pub ready: bool,
    /// A snapshot begins now.
    pub saves: bool,
    /// Whether all had room.
    pub room: bool,
    pub samples: u64,
    /// Of the ranks of this node.
    pub samples_of_node: u64,
    pub elapsed_s: f64,
    /// The number of rank 0, and whether all gave the same.
    pub number: u64,
    pub one_number: bool,
    pub tally: Tally,
}

impl Agreed {
    /// Decides by what all ranks say, for those of the node that has the ranks `here`.
    ///
    /// # Errors
    /// The first rank whose parameters are not those of rank 0.
    fn of(all: &[Said], here: Range<usize>) -> anyhow::Result<Self> {
        let first = all.first().context("an exchange without ranks")?;
        if let Some(rank) = all.iter().position(|said| said.parameters != first.parameters) {
            anyhow::bail!("the parameters of rank {rank} are not those of rank 0 any more");
        }
        let any = |of: fn(&Said) -> bool| all.iter().any(of);
        let room = all.iter().all(|said| said.room);
        let samples = |of: &[Said]| of.iter().map(|said| said.samples).sum();
        Ok(Self {
            stops: any(|said| said.stops),
            at_once: any(|said| said.at_once),
            took: any(|said| said.took),
            ready: all.iter().all(|said| said.ready),
            saves: first.due && room,
            room,
            samples: samples(all),
            samples_of_node: samples(&all[here]),
            elapsed_s: first.elapsed_s,
            number: first.number,
            one_number: all.iter().all(|said| said.number == first.number),
            tally: Tally::sum(all.iter().map(|said| &said.tally)),
        })
    }
}

/// A rank's seat among the others.
pub struct Peers {
    transport: Box<dyn Transport>,
    /// Result of the last exchange.
    pub agreed: Agreed,
    /// Time spent in exchanges.
    pub waited: Duration,
}

impl Peers {
    /// Takes the seat of `rank`, one of this node. With GPU `nccl`, each rank's own, NCCL averages gradients. A rank that hangs is main's to
    /// find: another may wait for the disk or for the evaluator.
    ///
    /// # Errors
    /// A seat that is taken; [`Broken`](crate::shm::Broken); or NCCL's.
    pub fn join(exchange: Exchange, rank: usize, nccl: Option<usize>) -> anyhow::Result<Self> {
        let seat = Arc::new(exchange).join(rank, Duration::MAX)?;
        Ok(Self { transport: collective::open(seat, nccl)?, agreed: Agreed::default(), waited: Duration::ZERO })
    }

    pub fn rank(&self) -> usize {
        self.transport.seat().rank()
    }

    pub fn ranks(&self) -> usize {
        self.transport.seat().ranks()
    }

    /// Exchanges states with all ranks; `beat` is called now and then while it waits.
    ///
    /// # Errors
    /// [`Broken`](crate::shm::Broken); or ranks that have drifted apart.
    pub fn agree(&mut self, said: Said, beat: impl Fn()) -> anyhow::Result<Agreed> {
        self.exchange(&mut [], said, beat)
    }

    /// Replaces a rank's part of an update by the mean of all gradients and the sum of all tallies.
    ///
    /// # Errors
    /// As [`Peers::agree`].
    pub fn average(&mut self, share: &mut GradientShare, said: Said, beat: impl Fn()) -> anyhow::Result<()> {
        failpoint::reached(if self.rank() == 0 { "learner.exchange" } else { "peer.exchange" });
        failpoint::reached("exchange.latency");
        let said = Said { tally: share.tally, ..said };
        share.tally = self.exchange(&mut share.gradients, said, beat)?.tally;
        Ok(())
    }

    fn exchange(&mut self, values: &mut [f32], said: Said, beat: impl Fn()) -> anyhow::Result<Agreed> {
        let begun = Instant::now();
        let message = bincode::serde::encode_to_vec(said, bincode::config::standard())?;
        let mut all = Vec::with_capacity(self.ranks());
        let mut failed = None;
        let mut hear = |messages: &[&[u8]]| {
            for (rank, bytes) in messages.iter().enumerate() {
                match decode(bytes) {
                    Ok(said) => all.push(said),
                    Err(e) => failed = Some(e.context(format!("rank {rank} said what cannot be read"))),
                }
            }
        };
        let exchanged = self.transport.exchange_all(values, &message, &mut hear, &|| wait(&beat));
        self.waited += begun.elapsed();
        exchanged?;
        failed.map_or(Ok(()), Err)?;
        self.agreed = Agreed::of(&all, self.transport.seat().here())?;
        Ok(self.agreed)
    }
}

/// Says that this rank waits for others and is alive.
fn wait(beat: &impl Fn()) {
    flight::waiting("other ranks");
    beat();
}

fn decode(bytes: &[u8]) -> anyhow::Result<Said> {
    let (said, len) = bincode::serde::decode_from_slice(bytes, bincode::config::standard())?;
    ensure!(len == bytes.len(), "{} bytes too many", bytes.len() - len);
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_fits_and_is_heard() {
        let tally = Tally { pairs: u64::MAX, requests: u64::MAX, lessons: u64::MAX, ..Tally::default() };
        let said =
            Said { samples: u64::MAX, parameters: u64::MAX, number: u64::MAX, took: true, tally, ..Said::default() };
        let message = bincode::serde::encode_to_vec(said, bincode::config::standard()).unwrap();
        assert_eq!(decode(&message).unwrap(), said);
        // The rest is the counts of the calibration, ten of five bytes at most.
        assert!(message.len() + 60 < SAID_BYTES, "{}", message.len());
        assert!(decode(&message[1..]).is_err());
    }

    #[test]
    fn all_must_have_room_for_a_snapshot_that_rank_0_asks_for_and_one_can_stop_all() {
        let [first, second] = [
            Said { due: true, room: true, elapsed_s: 2.0, samples: 5, ..Said::default() },
            Said { samples: 7, ..Said::default() },
        ];
        let agreed = Agreed::of(&[first, second], 1..2).unwrap();
        assert!(!agreed.saves && !agreed.stops && !agreed.ready && agreed.samples == 12 && agreed.elapsed_s == 2.0);
        assert_eq!(agreed.samples_of_node, 7);
        let agreed = Agreed::of(&[first, Said { room: true, stops: true, number: 1, ..second }], 0..2).unwrap();
        assert!(agreed.saves && agreed.stops && !agreed.one_number);
        let error = Agreed::of(&[first, Said { parameters: 9, ..second }], 0..1).unwrap_err();
        assert!(error.to_string().contains("parameters of rank 1"));
    }
}
