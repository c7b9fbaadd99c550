//! Scores parameters on the validation days and keeps the best.

use std::sync::Arc;

use serde::Serialize;

use crate::env::DayModel;
use crate::plan::{Bound, hindsight_bound};
use crate::policy::{LearnedPolicy, PolicySpec, ReplayOptions, replay_day};

/// The validation days with their bounds.
pub struct Judge {
    days: Vec<(DayModel, Bound)>,
    policy: LearnedPolicy,
    options: ReplayOptions,
    best: Option<f64>,
    without_improvement: u64,
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Updates of the learner that the parameters come from.
    pub updates: u64,
    /// Total benefit over all validation days, minor units.
    pub j: f64,
    /// Share of the bound that is reached, over all validation days; `None` where nothing was at stake.
    pub share: Option<f64>,
    pub shortage_rate: f64,
    pub auction_revenue: f64,
    /// Whether it is the best so far.
    pub improved: bool,
    /// Evaluations in a row that did not improve.
    pub without_improvement: u64,
}

impl Judge {
    pub fn new(days: Vec<DayModel>, spec: Arc<PolicySpec>, options: ReplayOptions) -> Self {
        let actor = vec![0.0; spec.actor_shape().len()];
        let days = days
            .into_iter()
            .map(|day| {
                let bound = hindsight_bound(&day.log, options.rate_seed);
                (day, bound)
            })
            .collect();
        Self { days, policy: LearnedPolicy::new(spec, actor), options, best: None, without_improvement: 0 }
    }

    /// Continues after a restart: what was best, and for how long.
    pub fn resume(&mut self, best: f64, without_improvement: u64) {
        self.best = Some(best);
        self.without_improvement = without_improvement;
    }

    /// Evaluates the averaged actor of an update; one that is not `counted` towards convergence can still be the best.
    pub fn evaluate(&mut self, updates: u64, actor: &[f32], counted: bool) -> Evaluation {
        self.policy.set_params(actor);
        let (mut j, mut stake, mut upper, mut missing, mut owed, mut revenue) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
        for (day, bound) in &self.days {
            let totals = replay_day(day, &mut self.policy, self.options, &mut |_| {});
            j += totals.j;
            stake += bound.stake;
            upper += bound.upper;
            missing += totals.missing;
            owed += totals.owed;
            revenue += totals.auction_revenue;
        }
        let improved = self.best.is_none_or(|best| j > best);
        if improved {
            self.best = Some(j);
            self.without_improvement = 0;
        } else if counted {
            self.without_improvement += 1;
        }
        Evaluation {
            updates,
            j,
            share: (upper + stake != 0.0).then(|| (j + stake) / (upper + stake)),
            shortage_rate: if owed > 0.0 { missing / owed } else { 0.0 },
            auction_revenue: revenue,
            improved,
            without_improvement: self.without_improvement,
        }
    }
}
