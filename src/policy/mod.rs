//! Policies: whoever scores the candidates of a request.
//!
//! Learned policies and baselines stand behind one trait and see the same information. [`net`] holds the
//! networks' shape, flat parameters and the small kernel that actors and evaluation infer with; the learner has
//! the same network in burn. [`PolicySpec`] says what a learned policy is made of, [`Bids`] turns outputs into bids; [`start`] is where
//! training starts. [`file`] is the policy file; [`stored`] is that or a baseline's. A learned bid is a start, which [`Replanner`] solves anew during
//! the day, plus a pacing controller's term, plus the network's output; [`Controller`] is the first two alone.
//!
//! [`informed`] is the reference that knows the process of a synthetic world.
//!
//! May import: `env`, `plan`, `log`, `synth`, `formulas`, `settings`.

pub mod baselines;
mod bids;
mod controller;
pub mod day_replay;
mod decide;
pub mod file;
pub mod hindsight;
pub mod informed;
pub mod learned;
pub mod net;
mod replanner;
mod spec;
pub mod start;
pub mod stored;
mod trainer_state;
pub mod tune;
pub mod witness;

pub use bids::{Bids, lift};
pub use controller::Controller;
pub use day_replay::{ReplayOptions, Shown, Totals, replay_day, replay_episode};
pub use decide::Decider;
pub use hindsight::Teacher;
pub use learned::LearnedPolicy;
pub use replanner::{Replanner, ReplannerState};
pub use spec::PolicySpec;
pub use trainer_state::{AdamState, TrainerState};

use crate::env::{Choice, Replay};

/// A long computation of a policy, to be done anywhere.
pub type Work = Box<dyn FnOnce() -> Done + Send>;

/// What a [`Work`] comes to; only the policy that handed it out knows what it is.
pub type Done = Box<dyn std::any::Any + Send>;

/// A policy's own state in serialised form.
fn pack(state: &impl serde::Serialize) -> Vec<u8> {
    bincode::serde::encode_to_vec(state, bincode::config::standard()).expect("plain values serialise")
}

/// Reads what [`pack`] wrote.
fn unpack<T: serde::de::DeserializeOwned>(saved: &[u8]) -> anyhow::Result<T> {
    const LIMIT: usize = 1 << 26;
    let config = bincode::config::standard().with_limit::<LIMIT>();
    let (state, read) = bincode::serde::decode_from_slice(saved, config)?;
    anyhow::ensure!(read == saved.len(), "bytes follow the saved state of the policy");
    Ok(state)
}

/// Whether so many finite numbers are there.
fn finite(numbers: &[f64], contracts: usize) -> bool {
    numbers.len() == contracts && numbers.iter().all(|v| v.is_finite())
}

/// Scores the candidates of a request; the highest score is shown.
pub trait Policy: Send {
    /// A whole day begins.
    fn begin(&mut self, replay: &Replay);

    /// Scores the current request's candidates, minor units per impression.
    ///
    /// `contracts` has a place for each of [`Replay::candidates`]; `auctions`, for the first
    /// [`Policy::auction_candidates`] of [`Replay::auctions`], holds their worth, which is their score unless the
    /// policy writes another. Boosts are multiplied on afterwards.
    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]);

    /// Called at every request before it is scored: what is to be added to the logits of the contracts' bids from now on
    /// ([`crate::env::State::replan`]), where that changes.
    fn replan(&mut self, _: &Replay) -> Option<&[f32]> {
        None
    }

    /// What the policy goes on from in the middle of a day beside [`crate::env::State`]; empty where it keeps nothing.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on from what [`Policy::save`] gave, in a day that it has begun.
    ///
    /// # Errors
    /// Bytes that such a policy did not write for this day.
    fn load(&mut self, _: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        anyhow::ensure!(saved.is_empty(), "the saved state is another kind of policy's");
        Ok(())
    }

    /// Whether long computations are handed out as [`Work`] from now on instead of being done within [`Policy::score`] and
    /// [`Policy::replan`]; the policy decides by its last results until the work comes back.
    fn hand_out(&mut self, _: bool) {}

    /// The work that came up since the last call, if any.
    fn take_work(&mut self) -> Option<Work> {
        None
    }

    /// Takes the result of its work.
    fn finish_work(&mut self, _: Done) {}

    /// Auction ads of a queue, best first, that are scored; the rest score less than these.
    fn auction_candidates(&self) -> usize {
        1
    }

    /// Features of the request that was scored last, a row of [`crate::env::FEATURES`] for each of [`Replay::candidates`]; empty for
    /// policies that compute none.
    fn features(&self) -> &[f32] {
        &[]
    }

    /// Whether the platform's boosts multiply the scores. The oracle serves by worth alone.
    fn boosted(&self) -> bool {
        true
    }
}

/// Chooses what is shown from the scores: the highest; of equal ones the higher eCPM, then the lower ad id.
///
/// Candidates of a kind are taken in their order in `contracts` and `auctions`; slices may be shorter than the queue.
pub fn choose(replay: &Replay, contracts: &[f64], auctions: &[f64], boosted: bool) -> Choice {
    let mut best: Option<(f64, f64, u64, Choice)> = None;
    let mut offer = |score: f64, boost: f64, ecpm: f64, ad_id: u64, choice: Choice| {
        let score = if boosted { score * boost } else { score };
        let better = match &best {
            None => true,
            Some((s, e, id, _)) => score.total_cmp(s).then(ecpm.total_cmp(e)).then(id.cmp(&ad_id)).is_gt(),
        };
        if better {
            best = Some((score, ecpm, ad_id, choice));
        }
    };
    for (i, (&score, a)) in auctions.iter().zip(replay.auctions()).enumerate() {
        offer(score, a.boost, a.ecpm, a.ad_id, Choice::Auction(i));
    }
    for (i, (&score, c)) in contracts.iter().zip(replay.candidates()).enumerate() {
        let ad_id = replay.day.contracts[c.contract as usize].ad_id;
        offer(score, c.boost, c.ecpm, ad_id, Choice::Contract(i));
    }
    best.map_or(Choice::Nothing, |(.., choice)| choice)
}
