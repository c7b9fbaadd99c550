//! Policies, which score the candidates of a request.
//!
//! Learned policies and baselines implement one trait and see the same information. [`net`] holds the
//! networks' shape, flat parameters and the small kernel for inference in actors and evaluation; the learner has
//! the same network in burn. [`PolicySpec`] describes a learned policy, [`Bids`] converts outputs to bids, [`start`] provides the
//! initial parameters. [`file`] is the policy file; [`stored`] is that or a baseline's. A learned bid is the sum of a start, which
//! [`Replanner`] solves repeatedly during the day, a pacing controller's term and the network's output; [`Controller`] is the
//! first two alone.
//!
//! [`informed`] is the reference that knows the process of a synthetic world.

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
pub use day_replay::{DayPass, ReplayOptions, Shown, Totals, replay_day, replay_episode};
pub use decide::Decider;
pub use hindsight::Teacher;
pub use learned::LearnedPolicy;
pub use replanner::{Replanner, ReplannerState};
pub use spec::PolicySpec;
pub use trainer_state::{AdamState, TrainerState};

use crate::env::{Choice, Replay};

/// A long computation of a policy, to be run on any thread.
pub type Work = Box<dyn FnOnce() -> Done + Send>;

/// Result of a [`Work`]; its type is known only to the policy that handed out the work.
pub type Done = Box<dyn std::any::Any + Send>;

/// Serialises a policy's own state.
fn pack(state: &impl serde::Serialize) -> Vec<u8> {
    bincode::serde::encode_to_vec(state, bincode::config::standard()).expect("plain values serialise")
}

/// Reads the bytes of [`pack`].
fn unpack<T: serde::de::DeserializeOwned>(saved: &[u8]) -> anyhow::Result<T> {
    const LIMIT: usize = 1 << 26;
    let config = bincode::config::standard().with_limit::<LIMIT>();
    let (state, read) = bincode::serde::decode_from_slice(saved, config)?;
    anyhow::ensure!(read == saved.len(), "bytes follow the saved state of the policy");
    Ok(state)
}

/// Whether `numbers` has one finite number per contract.
fn finite(numbers: &[f64], contracts: usize) -> bool {
    numbers.len() == contracts && numbers.iter().all(|v| v.is_finite())
}

/// Scores the candidates of a request; the highest score is shown.
pub trait Policy: Send {
    /// Begins a whole day.
    fn begin(&mut self, replay: &Replay);

    /// Scores the current request's candidates, minor units per impression.
    ///
    /// `contracts` has an entry for each of [`Replay::candidates`]. `auctions`, for the first
    /// [`Policy::auction_candidates`] of [`Replay::auctions`], holds their worth, which is their score unless the
    /// policy overwrites it. Boosts are multiplied afterwards.
    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]);

    /// Called at every request before it is scored; returns new additions to the logits of the contracts' bids
    /// ([`crate::env::State::replan`]) if they change.
    fn replan(&mut self, _: &Replay) -> Option<&[f32]> {
        None
    }

    /// Returns the policy's state in the middle of a day besides [`crate::env::State`]; empty if there is none.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Resumes from the bytes of [`Policy::save`], in a day that the policy has begun.
    ///
    /// # Errors
    /// If such a policy did not write the bytes for this day.
    fn load(&mut self, _: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        anyhow::ensure!(saved.is_empty(), "the saved state is another kind of policy's");
        Ok(())
    }

    /// Sets whether long computations are handed out as [`Work`] instead of being done within [`Policy::score`] and
    /// [`Policy::replan`]; the policy uses its last results until the work is finished.
    fn hand_out(&mut self, _: bool) {}

    /// Returns the work that came up since the last call, if any.
    fn take_work(&mut self) -> Option<Work> {
        None
    }

    /// Takes the result of its work.
    fn finish_work(&mut self, _: Done) {}

    /// Number of auction ads of a queue, best first, that are scored; the rest score less than these.
    fn auction_candidates(&self) -> usize {
        1
    }

    /// Returns the features of the last scored request, a row of [`crate::env::FEATURES`] for each of [`Replay::candidates`];
    /// empty for policies that compute none.
    fn features(&self) -> &[f32] {
        &[]
    }

    /// Whether the platform's boosts multiply the scores. The oracle serves by worth alone.
    fn boosted(&self) -> bool {
        true
    }
}

/// Chooses the ad with the highest score; ties go to the higher eCPM, then to the lower ad id.
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
