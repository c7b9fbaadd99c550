//! One decision: the policy scores the current request and one ad is chosen. Whole-day replay and serving share it.

use crate::env::{Choice, Replay};

use super::{Policy, choose};

/// Scores of the current request, minor units per impression before boosts; the buffers are reused.
#[derive(Debug, Default)]
pub struct Decider {
    /// Scores of [`Replay::candidates`].
    pub contracts: Vec<f64>,
    /// Scores of the first of [`Replay::auctions`]: [`Policy::auction_candidates`] of them, or all if the policy ignores
    /// boosts.
    pub auctions: Vec<f64>,
}

impl Decider {
    /// Lets the policy replan if it is due and score the current request, and chooses; counters do not change.
    pub fn decide(&mut self, replay: &mut Replay, policy: &mut dyn Policy) -> Choice {
        if let Some(offsets) = policy.replan(replay) {
            replay.state.replan(offsets);
        }
        let Self { contracts, auctions } = self;
        contracts.clear();
        contracts.resize(replay.candidates().len(), 0.0);
        auctions.clear();
        auctions.extend(replay.auctions().iter().take(policy.auction_candidates()).map(|a| replay.worth(a)));
        if !(contracts.is_empty() && auctions.is_empty()) {
            policy.score(replay, contracts, auctions);
        }
        let boosted = policy.boosted();
        if !boosted {
            // Any auction ad may be the best, not only the first by boosted score.
            auctions.clear();
            auctions.extend(replay.auctions().iter().map(|a| replay.worth(a)));
        }
        choose(replay, contracts, auctions, boosted)
    }
}
