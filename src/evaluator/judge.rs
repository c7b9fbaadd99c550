//! Scores parameters on the validation days and tracks the best.

use std::sync::Arc;

use serde::Serialize;

use crate::env::DayModel;
use crate::evaluate::bootstrap::{Block, difference_interval};
use crate::evaluate::measure::DayMeasure;
use crate::evaluate::verdict::{self, Decision, Paired};
use crate::plan::{Bound, hindsight_bound};
use crate::policy::{LearnedPolicy, PolicySpec, ReplayOptions, replay_day};
use crate::run::flight;

/// Requests of a replay between two signs of life.
pub const ALIVE_EVERY: u32 = 1024;

/// A validation day with its bound.
struct Day {
    model: DayModel,
    bound: Bound,
    measure: DayMeasure,
}

/// The validation days, and what has been seen on them.
pub struct Judge {
    days: Vec<Day>,
    policy: LearnedPolicy,
    options: ReplayOptions,
    start: Start,
    /// Its replay, once it was needed.
    of_start: Option<Replayed>,
    /// J of the best, and the highest J.
    best: Option<f64>,
    highest: Option<f64>,
    without_improvement: u64,
}

/// The parameters that a run began with.
pub struct Start {
    pub actor: Vec<f32>,
    /// Whether it stays the best until others beat it by the interval.
    pub kept: bool,
}

/// Replays of all validation days: their hours, and sums over all of them.
#[derive(Debug, Clone, Default)]
struct Replayed {
    /// The hours of each day.
    hours: Vec<Vec<Block>>,
    j: f64,
    stake: f64,
    upper: f64,
    missing: f64,
    owed: f64,
    revenue: f64,
}

impl Replayed {
    fn share(&self) -> Option<f64> {
        let reachable = self.upper + self.stake;
        (reachable != 0.0).then(|| (self.j + self.stake) / reachable)
    }

    /// Returns the difference of the mean share from that of `other`; `None` where a day has nothing at stake.
    fn over(&self, other: &Self) -> Option<Paired> {
        let days: Vec<(&[Block], &[Block])> =
            self.hours.iter().zip(&other.hours).map(|(a, b)| (&a[..], &b[..])).collect();
        let interval = difference_interval(&days)?.map(|bound| 100.0 * bound);
        let share =
            |hours: &[Block]| hours.iter().map(|h| h.earned).sum::<f64>() / hours.iter().map(|h| h.bound).sum::<f64>();
        let difference = days.iter().map(|(a, b)| share(a) - share(b)).sum::<f64>() / days.len() as f64;
        Some(Paired { difference: 100.0 * difference, interval, hours: verdict::hours(&days) })
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
    /// Difference of the mean share from that of the run's start, in points; its interval is that within these days.
    pub over_start: Option<Paired>,
    /// Whether it is the best so far. Where the start is kept, it has to beat the start by the interval, too.
    pub improved: bool,
    /// The highest J so far.
    #[serde(skip)]
    pub highest: f64,
    /// Evaluations in a row in which J did not rise.
    pub without_improvement: u64,
}

/// Results of a policy that was found and is the best so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adopted {
    pub j: f64,
    /// Share of the bound over all validation days; `None` if nothing was at stake.
    pub share: Option<f64>,
    /// The highest J so far.
    pub highest: f64,
}

impl Judge {
    /// Computes the bound of each day, which takes long where days are large.
    pub fn new(days: Vec<DayModel>, spec: Arc<PolicySpec>, options: ReplayOptions, start: Start) -> Self {
        let actor = vec![0.0; spec.actor_shape().len()];
        let days = days
            .into_iter()
            .map(|model| {
                let bound = hindsight_bound(&model.log, options.rate_seed);
                let measure = DayMeasure::new(&model, &bound, options.rate_seed);
                Day { model, bound, measure }
            })
            .collect();
        let policy = LearnedPolicy::new(spec, actor);
        Self { days, policy, options, start, of_start: None, best: None, highest: None, without_improvement: 0 }
    }

    /// Resumes after a restart with the J of the best, the highest J, and the number of evaluations since that.
    pub fn resume(&mut self, best: f64, highest: f64, without_improvement: u64) {
        self.best = Some(best);
        self.highest = Some(highest);
        self.without_improvement = without_improvement;
    }

    /// Makes a policy of the run the best so far if its benefit is higher; returns its results in that case. `alive` is called from
    /// time to time.
    pub fn adopt(&mut self, actor: &[f32], alive: &mut impl FnMut()) -> Option<Adopted> {
        if actor.len() != self.policy.spec().actor_shape().len() {
            return None;
        }
        let sums = self.replay(actor, alive);
        if self.best.is_some_and(|best| sums.j <= best) {
            return None;
        }
        let highest = self.highest.map_or(sums.j, |highest| highest.max(sums.j));
        (self.best, self.highest) = (Some(sums.j), Some(highest));
        Some(Adopted { j: sums.j, share: sums.share(), highest })
    }

    fn replay(&mut self, actor: &[f32], alive: &mut impl FnMut()) -> Replayed {
        self.policy.set_params(actor);
        let mut sums = Replayed::default();
        for Day { model, bound, measure } in &self.days {
            let mut meter = measure.meter();
            let mut shown = 0u32;
            let totals = replay_day(model, &mut self.policy, self.options, &mut |decision| {
                meter.see(&decision);
                shown += 1;
                if shown.is_multiple_of(ALIVE_EVERY) {
                    alive();
                }
            });
            sums.j += totals.j;
            sums.stake += bound.stake;
            sums.upper += bound.upper;
            sums.missing += totals.missing;
            sums.owed += totals.owed;
            sums.revenue += totals.auction_revenue;
            sums.hours.push(meter.blocks());
        }
        sums
    }

    /// Whether nothing was evaluated yet, and `actor` is not the start, which comes first.
    pub fn lacks_start(&self, actor: &[f32]) -> bool {
        self.best.is_none() && actor != self.start.actor
    }

    /// Evaluates the averaged actor of an update; one that is not `counted` towards convergence can still be the best.
    /// `alive` is called from time to time.
    pub fn evaluate(&mut self, updates: u64, actor: &[f32], counted: bool, alive: &mut impl FnMut()) -> Evaluation {
        let is_start = actor == self.start.actor;
        let sums = self.replay(actor, alive);
        if self.of_start.is_none() {
            let start = std::mem::take(&mut self.start.actor);
            self.of_start = Some(if is_start { sums.clone() } else { self.replay(&start, alive) });
            self.start.actor = start;
        }
        let over_start = self.of_start.as_ref().and_then(|start| sums.over(start));
        let j = sums.j;
        let beats_start = over_start.is_none_or(|over| over.decision() == Decision::Better);
        let may_be_best = is_start || beats_start || !self.start.kept;
        let improved = may_be_best && self.best.is_none_or(|best| j > best);
        if improved {
            self.best = Some(j);
        }
        if self.highest.is_none_or(|highest| j > highest) {
            self.highest = Some(j);
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
            over_start,
            improved,
            highest: self.highest.unwrap_or(j),
            without_improvement: self.without_improvement,
        }
    }
}
