//! Sizes of a batch and of the pool.

use crate::env::DayModel;
use crate::policy::PolicySpec;
use crate::settings::{self, Critic, ScoreMode, Settings};

/// Sizes of a batch and of the pool it is drawn from, constant over a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    pub segments: usize,
    /// The most segments in the replay pool: a quarter more than its steps need where episodes are whole days.
    pub room: usize,
    /// Steps in a segment.
    pub steps: usize,
    /// The most contracts of a training day.
    pub contracts: usize,
    /// The most contracts that the requests of a step may show.
    pub eligible: usize,
    /// The most contracts that one request may show.
    pub offers: usize,
    /// Auction ads of a queue that take part in the choice.
    pub auctions: usize,
    pub score_auctions: bool,
    /// Outputs of the critic.
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
            outputs: outputs(&settings.learner),
        }
    }

    /// Rows of the actor for one step.
    pub fn actor_rows(&self) -> usize {
        self.eligible + if self.score_auctions { self.auctions } else { 0 }
    }
}

/// Segments that `learner.pool` steps come in, from the day with the shortest ones.
fn room(days: &[DayModel], settings: &Settings) -> usize {
    let l = &settings.learner;
    let segments = |day: &DayModel| {
        let steps = day.log.requests().len().div_ceil(settings.requests_per_step());
        let steps = steps.clamp(1, settings.episodes.steps.max(1));
        l.pool * steps.div_ceil(l.segment) / steps
    };
    (days.iter().map(segments).max().unwrap_or(0) * 5 / 4).max(1)
}

/// Outputs of the critic for one row: quantiles, atoms, or the mean alone.
pub fn outputs(settings: &settings::Learner) -> usize {
    match settings.critic {
        Critic::Quantile => settings.quantiles,
        Critic::Categorical => settings.atoms,
        Critic::Scalar => 1,
    }
}
