//! Scores parameters on the validation days and tracks the best.

use std::sync::Arc;

use serde::Serialize;

use crate::env::DayModel;
use crate::plan::{Bound, hindsight_bound};
use crate::policy::{LearnedPolicy, PolicySpec, ReplayOptions, replay_day};
use crate::run::flight;

/// The validation days with their bounds.
pub struct Judge {
    days: Vec<(DayModel, Bound)>,
    policy: LearnedPolicy,
    options: ReplayOptions,
    best: Option<f64>,
    without_improvement: u64,
}

/// Sums over all validation days.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    j: f64,
    stake: f64,
    upper: f64,
    missing: f64,
    owed: f64,
    revenue: f64,
}

impl Sums {
    fn share(&self) -> Option<f64> {
        let reachable = self.upper + self.stake;
        (reachable != 0.0).then(|| (self.j + self.stake) / reachable)
    }
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Number of learner updates behind the parameters.
    pub updates: u64,
    /// Total benefit over all validation days, minor units.
    pub j: f64,
    /// Share of the bound over all validation days; `None` if nothing was at stake.
    pub share: Option<f64>,
    pub shortage_rate: f64,
    pub auction_revenue: f64,
    /// Whether it is the best so far.
    pub improved: bool,
    /// Evaluations in a row that did not improve.
    pub without_improvement: u64,
}

impl Judge {
    /// `alive` is called from time to time.
    pub fn new(days: Vec<DayModel>, spec: Arc<PolicySpec>, options: ReplayOptions, alive: &mut impl FnMut()) -> Self {
        let actor = vec![0.0; spec.actor_shape().len()];
        let days = days
            .into_iter()
            .map(|day| {
                alive();
                let bound = hindsight_bound(&day.log, options.rate_seed);
                (day, bound)
            })
            .collect();
        Self { days, policy: LearnedPolicy::new(spec, actor), options, best: None, without_improvement: 0 }
    }

    /// Resumes after a restart with the best benefit and the number of evaluations since.
    pub fn resume(&mut self, best: f64, without_improvement: u64) {
        self.best = Some(best);
        self.without_improvement = without_improvement;
    }

    /// Makes a policy of the run the best so far if its benefit is higher; returns its J and share in that case.
    pub fn adopt(&mut self, actor: &[f32]) -> Option<(f64, Option<f64>)> {
        if actor.len() != self.policy.spec().actor_shape().len() {
            return None;
        }
        let sums = self.replay(actor, &mut || {});
        let better = self.best.is_none_or(|best| sums.j > best);
        better.then(|| {
            self.best = Some(sums.j);
            (sums.j, sums.share())
        })
    }

    fn replay(&mut self, actor: &[f32], alive: &mut impl FnMut()) -> Sums {
        self.policy.set_params(actor);
        let mut sums = Sums::default();
        for (day, bound) in &self.days {
            let mut shown = 0u32;
            let totals = replay_day(day, &mut self.policy, self.options, &mut |_| {
                shown += 1;
                if shown.is_multiple_of(4096) {
                    alive();
                }
            });
            sums.j += totals.j;
            sums.stake += bound.stake;
            sums.upper += bound.upper;
            sums.missing += totals.missing;
            sums.owed += totals.owed;
            sums.revenue += totals.auction_revenue;
        }
        sums
    }

    /// Evaluates the averaged actor of an update; one that is not `counted` towards convergence can still be the best.
    /// `alive` is called from time to time.
    pub fn evaluate(&mut self, updates: u64, actor: &[f32], counted: bool, alive: &mut impl FnMut()) -> Evaluation {
        let sums = self.replay(actor, alive);
        let j = sums.j;
        let improved = self.best.is_none_or(|best| j > best);
        if improved {
            self.best = Some(j);
            self.without_improvement = 0;
        } else if counted {
            self.without_improvement += 1;
        }
        let share = sums.share();
        flight::evaluated(updates, j, share.unwrap_or(f64::NAN), improved);
        Evaluation {
            updates,
            j,
            share,
            shortage_rate: if sums.owed > 0.0 { sums.missing / sums.owed } else { 0.0 },
            auction_revenue: sums.revenue,
            improved,
            without_improvement: self.without_improvement,
        }
    }
}
