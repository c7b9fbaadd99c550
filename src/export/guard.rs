//! Check of a dictionary by its benefit on a held-out day.

use std::collections::HashMap;

use serde::Serialize;

use crate::env::{DayModel, Replay};
use crate::log::{Auction, CompiledLog};
use crate::plan::{Plan, hindsight_bound};
use crate::policy::{Policy, ReplayOptions, baselines, replay_day};
use crate::score::{Scorer, ServedPolicy};

use super::bucket::{bucket_of, pctr_of};

/// Minimum share of a held-out day's contract entries whose exact key a dictionary must contain.
const LEAST_COVERAGE: f64 = 0.95;

/// A held-out day, with the knowledge of the exported policy and of the baseline.
pub struct Held<'a> {
    pub policy: &'a ServedPolicy,
    pub day: &'a DayModel,
    pub baseline_day: &'a DayModel,
    pub baseline_plan: &'a Plan,
}

/// Results on the held-out day. J in minor units, shares in 0..=1, losses in points of share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Guard {
    pub log: String,
    pub ttl_s: f64,
    pub j_policy: f64,
    /// J with current scores by bucket.
    pub j_bucketed: f64,
    /// J with scores by bucket that are as old as in a dictionary that is exported every `ttl_s`.
    pub j_dictionary: f64,
    /// J of serving the planned play probabilities.
    pub j_theta: f64,
    pub share_policy: Option<f64>,
    pub loss_bucketing: Option<f64>,
    pub loss_dictionary: Option<f64>,
    /// Share of the day's contract entries whose exact key the dictionary contains.
    pub coverage: f64,
}

/// Reason why a dictionary is not written.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "refused: on {log} the dictionary would earn J = {dictionary:.2}, serving the planned play probabilities {theta:.2}; \
         export more often (--ttl), or another policy"
    )]
    Worse { log: String, dictionary: f64, theta: f64 },
    #[error("refused: {name} draws on each request; a dictionary would repeat one draw")]
    Draws { name: String },
    #[error("refused: the score of ad {ad_id} is {score}, a feature server needs a number")]
    NotFinite { ad_id: u64, score: f64 },
    #[error(
        "refused: the dictionary has the key of {:.1} % of the contract entries of {log}, less than 95 %; plan from days that are \
         like the one to be served", 100.0 * coverage
    )]
    Uncovered { log: String, coverage: f64 },
}

impl Refusal {
    /// Refuses a policy whose score of a request says nothing of the next one.
    pub(super) fn of_draws(scorer: &Scorer) -> Result<(), Self> {
        scorer.draws().map_or(Ok(()), |name| Err(Self::Draws { name: name.to_owned() }))
    }
}

impl Guard {
    /// Replays the held-out day under the policy, its dictionary and the planned play probabilities.
    ///
    /// # Errors
    /// If the plan lacks a part that the baseline needs.
    pub fn measure(
        held: &Held,
        ttl_s: f64,
        options: ReplayOptions,
        has: impl Fn(u64, u32, u32) -> bool,
    ) -> anyhow::Result<Self> {
        let log = &*held.day.log;
        let bound = hindsight_bound(log, options.rate_seed);
        let own = options.seen_by(held.policy.predicts());
        let j = |policy: &mut dyn Policy| replay_day(held.day, policy, own, &mut |_| {}).j;
        let j_policy = j(&mut *held.policy.policy());
        let j_bucketed = j(&mut Bucketed::new(held.policy.policy(), 0.0));
        let j_dictionary = j(&mut Bucketed::new(held.policy.policy(), ttl_s));
        let mut theta = baselines::named("theta-lottery", Some(held.baseline_plan)).map_err(anyhow::Error::msg)?;
        let j_theta = replay_day(held.baseline_day, &mut *theta, options, &mut |_| {}).j;
        let whole = bound.upper + bound.stake;
        let share = |j: f64| (whole > 0.0).then(|| (j + bound.stake) / whole);
        let loss = |j: f64| Some(100.0 * (share(j_policy)? - share(j)?));
        Ok(Self {
            log: log.name().to_owned(),
            ttl_s,
            j_policy,
            j_bucketed,
            j_dictionary,
            j_theta,
            share_policy: share(j_policy),
            loss_bucketing: loss(j_bucketed),
            loss_dictionary: loss(j_dictionary),
            coverage: coverage(log, has),
        })
    }

    /// # Errors
    /// The reason against the dictionary.
    pub fn check(&self) -> Result<(), Refusal> {
        let log = self.log.clone();
        if self.coverage < LEAST_COVERAGE {
            return Err(Refusal::Uncovered { log, coverage: self.coverage });
        }
        if self.j_dictionary < self.j_theta {
            return Err(Refusal::Worse { log, dictionary: self.j_dictionary, theta: self.j_theta });
        }
        Ok(())
    }
}

/// Returns the share of a log's contract entries whose ad, slot and bucket are keys; 1 if it has none.
fn coverage(log: &CompiledLog, has: impl Fn(u64, u32, u32) -> bool) -> f64 {
    let (mut entries, mut covered) = (0u64, 0u64);
    for r in log.requests() {
        for e in log.entries(&r) {
            entries += 1;
            let ad_id = log.contracts()[e.contract as usize].ad_id;
            covered += u64::from(has(ad_id, r.slot_id, bucket_of(e.pctr)));
        }
    }
    if entries == 0 { 1.0 } else { covered as f64 / entries as f64 }
}

/// A policy whose contract scores depend on the bucket of the click probability and stay constant for a time, as in a dictionary.
struct Bucketed {
    policy: Box<dyn Policy>,
    ttl_ms: u64,
    until: u64,
    /// Scores by contract, slot index and bucket.
    scores: HashMap<(u32, u16, u32), f64>,
}

impl Bucketed {
    fn new(policy: Box<dyn Policy>, ttl_s: f64) -> Self {
        Self { policy, ttl_ms: (ttl_s * 1000.0) as u64, until: 0, scores: HashMap::new() }
    }
}

impl Policy for Bucketed {
    fn begin(&mut self, replay: &Replay) {
        self.policy.begin(replay);
        (self.until, self.scores) = (0, HashMap::new());
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        // A dictionary has no scores of auction ads, so they keep their worth.
        let mut live = auctions.to_vec();
        self.policy.score(replay, contracts, &mut live);
        if replay.offset() >= self.until {
            self.scores.clear();
            self.until = replay.offset() + self.ttl_ms;
        }
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let bucket = bucket_of(c.pctr);
            // Scores are computed at the middle of the bucket, where the click has another worth.
            let click = replay.day.contracts[c.contract as usize].click_value * pctr_of(bucket);
            let at_middle = *score - c.click + click;
            *score = *self.scores.entry((c.contract, replay.visit().place[0], bucket)).or_insert(at_middle);
        }
    }

    fn replan(&mut self, replay: &Replay) -> Option<&[f32]> {
        self.policy.replan(replay)
    }

    fn auction_candidates(&self) -> usize {
        1
    }
}

/// Returns an auction ad at the price that the plan expects, which leaves the price level unchanged.
pub(super) fn at_expected_price(worth: f64) -> Auction {
    Auction { ad_id: u64::MAX, ecpm: 1000.0 * worth, pctr: 0.0, boost: 1.0 }
}
