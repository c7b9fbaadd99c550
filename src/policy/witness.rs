//! Observation of a policy: the scores of every candidate of a request, and the ad shown.
//!
//! A witness wraps the policy in a replay and changes nothing. `eval --decisions` uses it to record the bid and the runner-up
//! of every request, `explain` the whole queue of one.

use crate::env::{FEATURE_NAMES, FEATURES, Replay};
use crate::log::schema::AdType;

use super::Policy;

/// A candidate as it was scored. Money in minor units per impression.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    pub ad_id: u64,
    pub kind: AdType,
    /// Index into the day's contracts, if it is one.
    pub contract: Option<usize>,
    /// Score before the platform's boost.
    pub score: f64,
    pub boost: f64,
    pub ecpm: f64,
    /// Immediate earnings of showing it: the auction's worth, or the predicted click's.
    pub worth: f64,
}

impl Scored {
    /// Returns the value that the ranking is sorted by.
    pub fn rank(&self) -> f64 {
        self.score * self.boost
    }
}

/// Bid of the shown candidate, and the runner-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    /// Score with boost, minor units per impression.
    pub bid: f64,
    /// Worth of the best auction ad of the request.
    pub price: f64,
    /// Runner-up and its score with boost.
    pub runner_up: Option<(u64, AdType, f64)>,
}

/// Receiver of the scores.
pub trait Watcher: Send {
    /// Called after a request was scored, with its candidates, best first. `features` has a row of [`FEATURE_NAMES`] for each
    /// contract candidate of [`Replay::candidates`], if the policy computes features.
    fn see(&mut self, replay: &Replay, ranked: &[Scored], features: &[f32]);

    /// Whether it wants to see a request.
    fn wants(&self, _: &Replay) -> bool {
        true
    }
}

/// A policy whose scores go to a watcher.
pub struct Witness<'a> {
    pub policy: &'a mut dyn Policy,
    pub watcher: &'a mut dyn Watcher,
    ranked: Vec<Scored>,
}

impl<'a> Witness<'a> {
    pub fn new(policy: &'a mut dyn Policy, watcher: &'a mut dyn Watcher) -> Self {
        Self { policy, watcher, ranked: vec![] }
    }
}

impl Policy for Witness<'_> {
    fn begin(&mut self, replay: &Replay) {
        self.policy.begin(replay);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        self.policy.score(replay, contracts, auctions);
        if !self.watcher.wants(replay) {
            return;
        }
        rank(replay, contracts, auctions, &*self.policy, &mut self.ranked);
        self.watcher.see(replay, &self.ranked, self.policy.features());
    }

    fn replan(&mut self, replay: &Replay) -> Option<&[f32]> {
        self.policy.replan(replay)
    }

    fn auction_candidates(&self) -> usize {
        self.policy.auction_candidates()
    }

    fn boosted(&self) -> bool {
        self.policy.boosted()
    }

    fn features(&self) -> &[f32] {
        self.policy.features()
    }
}

/// Ranks a queue as [`super::choose`] does. Auction ads that the policy does not score count with their worth.
fn rank(replay: &Replay, contracts: &[f64], auctions: &[f64], policy: &dyn Policy, ranked: &mut Vec<Scored>) {
    ranked.clear();
    let boosted = policy.boosted();
    let boost = |boost: f64| if boosted { boost } else { 1.0 };
    // If a policy writes its own scores, the ads beyond them score less by [`Policy::auction_candidates`], whatever their worth.
    let own = auctions.iter().zip(replay.auctions()).any(|(&score, a)| score != replay.worth(a));
    let all = if own && boosted { auctions.len() } else { usize::MAX };
    for (i, a) in replay.auctions().iter().enumerate().take(all) {
        let worth = replay.worth(a);
        let score = if boosted { auctions.get(i).copied().unwrap_or(worth) } else { worth };
        let (ad_id, kind) = (a.ad_id, AdType::Auction);
        ranked.push(Scored { ad_id, kind, contract: None, score, boost: boost(a.boost), ecpm: a.ecpm, worth });
    }
    for (&score, c) in contracts.iter().zip(replay.candidates()) {
        let j = c.contract as usize;
        let (ad_id, kind) = (replay.day.contracts[j].ad_id, AdType::Contract);
        ranked.push(Scored {
            ad_id,
            kind,
            contract: Some(j),
            score,
            boost: boost(c.boost),
            ecpm: c.ecpm,
            worth: c.click,
        });
    }
    let order = |a: &Scored, b: &Scored| {
        b.rank().total_cmp(&a.rank()).then(b.ecpm.total_cmp(&a.ecpm)).then(a.ad_id.cmp(&b.ad_id))
    };
    ranked.sort_by(order);
}

/// Keeps the ranking of the newest request.
#[derive(Debug, Default)]
pub struct Newest {
    request_id: u64,
    ranking: Option<Ranking>,
}

impl Newest {
    /// Returns the ranking of a request that was just scored; `None` if nothing was scored.
    pub fn of(&self, request_id: u64) -> Option<Ranking> {
        self.ranking.filter(|_| self.request_id == request_id)
    }
}

impl Watcher for Newest {
    fn see(&mut self, replay: &Replay, ranked: &[Scored], _: &[f32]) {
        self.request_id = replay.visit().request_id;
        self.ranking = ranked.first().map(|best| Ranking {
            bid: best.rank(),
            price: replay.best(),
            runner_up: ranked.get(1).map(|next| (next.ad_id, next.kind, next.rank())),
        });
    }
}

/// Pairs the features of a row with their names.
pub fn named_features(row: &[f32]) -> impl Iterator<Item = (&'static str, f32)> {
    FEATURE_NAMES.into_iter().zip(row.iter().copied()).take(FEATURES)
}
