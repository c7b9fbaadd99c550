//! Policies: whoever scores the candidates of a request.
//!
//! Learned policies and baselines stand behind one trait and see the same information. [`net`] holds the
//! networks' shape, flat parameters and the small kernel that actors and evaluation infer with; [`tensor_net`] is
//! the same network in burn, for the learner. [`file`] is the policy file; [`stored`] is that or a baseline's. A learned bid is a start, which [`Replanner`] solves anew during
//! the day, plus a pacing controller's term, plus the network's output; [`Controller`] is the first two alone.
//!
//! [`informed`] is the reference that knows the process of a synthetic world.
//!
//! May import: `env`, `plan`, `log`, `synth`, `settings`.

pub mod baselines;
mod controller;
pub mod day_replay;
pub mod file;
pub mod informed;
pub mod learned;
pub mod net;
mod replanner;
pub mod stored;
pub mod tensor_net;
pub mod tune;

pub use controller::Controller;
pub use day_replay::{ReplayOptions, Shown, Totals, replay_day, replay_episode};
pub use learned::{Bids, LearnedPolicy, PolicySpec, lift};
pub use replanner::{Replanner, ReplannerState};

use crate::env::{Choice, Replay};

/// Scores the candidates of a request; the highest score is shown.
pub trait Policy {
    /// A whole day begins.
    fn begin(&mut self, replay: &Replay);

    /// Scores the current request's candidates, minor units per impression.
    ///
    /// `contracts` has a place for each of [`Replay::candidates`]; `auctions`, for the first
    /// [`Policy::auction_candidates`] of [`Replay::auctions`], holds their worth, which is their score unless the
    /// policy writes another. Boosts are multiplied on afterwards.
    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]);

    /// Called at every request before it is scored: what is to be added to the logits of the contracts' bids from now on
    /// ([`crate::env::State::replanned`]), where that changes.
    fn replan(&mut self, _: &Replay) -> Option<&[f32]> {
        None
    }

    /// Auction ads of a queue, best first, that are scored; the rest score less than these.
    fn auction_candidates(&self) -> usize {
        1
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
