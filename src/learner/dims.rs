//! Sizes of a batch and of the pool.

use crate::env::DayModel;
use crate::policy::PolicySpec;
use crate::settings::{ScoreMode, Settings};

/// Sizes of a batch and of the pool it is drawn from, constant over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    pub segments: usize,
    /// Maximum number of segments in the replay pool: a quarter more than its steps need if episodes are whole days.
    pub room: usize,
    /// Steps in a segment.
    pub steps: usize,
    /// Maximum number of contracts of a training day.
    pub contracts: usize,
    /// Maximum number of contracts that the requests of a step may show.
    pub eligible: usize,
    /// Maximum number of contracts that one request may show.
    pub offers: usize,
    /// Number of auction ads of a queue that are part of the choice.
    pub auctions: usize,
    pub score_auctions: bool,
    /// Number of outputs of the critic.
    pub outputs: usize,
}

impl Dims {
    pub fn of(days: &[DayModel], spec: &PolicySpec, settings: &Settings) -> Self {
        let most = |f: &dyn Fn(&DayModel) -> usize| days.iter().map(f).max().unwrap_or(0).max(1);
        let contracts = most(&|d| d.contracts.len());
        let offers = most(&|d| d.log.widest());
        Self {
            segments: settings.batch_segments(),
            room: room(days, settings),
            steps: settings.learner.segment,
            contracts,
            eligible: if settings.requests_per_step() == 1 { offers } else { contracts },
            offers,
            auctions: spec.auction_candidates(),
            score_auctions: spec.score_mode == ScoreMode::All,
            outputs: settings.learner.critic_outputs(),
        }
    }

    /// Returns the number of the actor's rows per step.
    pub fn actor_rows(&self) -> usize {
        self.eligible + if self.score_auctions { self.auctions } else { 0 }
    }
}

/// Returns the number of segments that hold `learner.pool` steps, for the day with the shortest ones.
fn room(days: &[DayModel], settings: &Settings) -> usize {
    let l = &settings.learner;
    let segments = |day: &DayModel| {
        let steps = day.log.requests().len().div_ceil(settings.requests_per_step());
        let steps = steps.clamp(1, settings.episodes.steps.max(1));
        l.pool * steps.div_ceil(l.segment) / steps
    };
    (days.iter().map(segments).max().unwrap_or(0) * 5 / 4).max(1)
}
