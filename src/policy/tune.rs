//! Tunes the baselines, and the controller under the learned bids, on the training days, within a stated budget of replays.
//!
//! What starts from the training days' prices is judged with them 20 % too low and 25 % too high: on the days that the prices come
//! from, a controller that does nothing would look best. What has one parameter needs half of the budget. The receding horizon is
//! judged on each day with the sample of the other ones and one of the two factors, and has a quarter of it, because one of its
//! replays costs as much as ten others.
//!
//! A single training day follows its own forecast to the request, and a controller that trusts it would look best. The learned
//! policy's controller is then judged on the validation days, which choose its other parameters too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use rayon::prelude::*;

use crate::env::DayModel;
use crate::plan::{Horizon, PacingGains, PidGains, Sample, Tuned};
use crate::settings;

use super::baselines::{DualDescent, PassRate, Pid, Receding};
use super::{Controller, Policy, ReplayOptions, replay_day};

const START_FACTORS: [f64; 2] = [0.8, 1.25];

/// Replays of a training day that tuning one baseline may cost, and how many all of them have cost so far.
#[derive(Debug)]
pub struct Budget {
    replays: usize,
    done: AtomicUsize,
}

impl Budget {
    pub fn of(replays: usize) -> Self {
        Self { replays, done: AtomicUsize::new(0) }
    }

    /// Replays done, for whoever shows progress.
    pub fn done(&self) -> &AtomicUsize {
        &self.done
    }

    /// The most replays that [`all`] makes; searches that find nothing better end earlier. `again`: the controller is tuned on
    /// the validation days too.
    pub fn most(&self, again: bool) -> usize {
        let once = self.replays;
        2 * once + 3 * (once / 2) + once / 4 + if again { once } else { 0 }
    }
}

/// Tunes all baselines, each within a budget of replays of a training day. `sample` is that of the same
/// days, in their order. `judges`: validation days, asked about the controller if there is one training day; may be empty.
///
/// # Errors
/// No threads to work with.
pub fn all(
    days: &[DayModel],
    judges: &[DayModel],
    sample: &Sample,
    options: ReplayOptions,
    interval_s: f64,
    budget: &Budget,
    policy: &settings::Policy,
) -> anyhow::Result<Tuned> {
    // A pool of its own: the process's common one is for the learner, which sets its size.
    let pool = rayon::ThreadPoolBuilder::new().build().context("cannot start threads to tune the baselines")?;
    let bench = Bench { days, options, interval_s, budget: budget.replays, done: &budget.done };
    Ok(pool.install(|| {
        let mut tuned = bench.tune(sample, policy);
        if days.len() == 1 && !judges.is_empty() {
            tuned.pacing = Bench { days: judges, ..bench }.pacing(sample, policy, tuned.receding);
        }
        tuned
    }))
}

/// A day, as an index, and a factor on the starting prices.
type Trial = (usize, f64);

struct Bench<'a> {
    days: &'a [DayModel],
    options: ReplayOptions,
    interval_s: f64,
    budget: usize,
    done: &'a AtomicUsize,
}

impl Bench<'_> {
    fn tune(&self, sample: &Sample, policy: &settings::Policy) -> Tuned {
        let start = Tuned::default();
        let days = 0..self.days.len();
        let plain: Vec<Trial> = days.clone().map(|d| (d, 1.0)).collect();
        let off: Vec<Trial> = days.clone().flat_map(|d| START_FACTORS.map(|f| (d, f))).collect();
        let alternating: Vec<Trial> = days.clone().map(|d| (d, START_FACTORS[d % START_FACTORS.len()])).collect();
        let several = self.days.len() > 1;
        // Of an only day there are no others.
        let without = |d| if several { sample.without(d) } else { sample.clone() };
        let others: Vec<Arc<Sample>> = days.map(|d| Arc::new(without(d))).collect();
        let interval = self.interval_s;
        let step = |s: f64, factor: f64| vec![s * factor, s / factor];
        let receding = self.climb(
            start.receding,
            self.budget / 4,
            &alternating,
            |horizon, factor| {
                let mut near = horizon_neighbours(horizon, factor);
                near.retain(|h| h.interval_s >= interval);
                near
            },
            |horizon, (day, factor)| {
                Box::new(Receding::new(others[day].clone(), horizon).expecting_prices_off_by(factor))
            },
        );
        let controlled = |gains, (day, factor): Trial| -> Box<dyn Policy> {
            let controller = Controller::new(policy, gains, receding).starting_off_by(factor);
            Box::new(controller.expecting(others[day].clone()))
        };
        // Replanned prices are off by what the other days do not tell, no more, and may need no controller at all.
        let pacing = if policy.replans() && several {
            self.climb(PacingGains::NONE, self.budget, &plain, pacing_neighbours, controlled)
        } else {
            self.climb(start.pacing, self.budget, &off, pacing_neighbours, controlled)
        };
        Tuned {
            pid: self.climb(start.pid, self.budget, &off, pid_neighbours, |gains, (_, factor)| {
                Box::new(Pid::new(gains, interval).starting_off_by(factor))
            }),
            // Above one half a rate would jump between its bounds.
            pass_rate_step: self.climb(
                start.pass_rate_step,
                self.budget / 2,
                &plain,
                |s, factor| step(s, factor).into_iter().filter(|s| *s <= 0.5).collect(),
                |s, _| Box::new(PassRate::new(s, interval)),
            ),
            dual_cold_step: self.climb(start.dual_cold_step, self.budget / 2, &plain, step, |s, _| {
                Box::new(DualDescent::cold(s, interval))
            }),
            dual_warm_step: self.climb(start.dual_warm_step, self.budget / 2, &off, step, |s, (_, factor)| {
                Box::new(DualDescent::warm(s, interval).starting_off_by(factor))
            }),
            receding,
            pacing,
        }
    }

    /// Gains of the controller on days that `sample` was not taken from.
    fn pacing(&self, sample: &Sample, policy: &settings::Policy, horizon: Horizon) -> PacingGains {
        let sample = Arc::new(sample.clone());
        let days: Vec<Trial> = (0..self.days.len()).map(|d| (d, 1.0)).collect();
        self.climb(PacingGains::default(), self.budget, &days, pacing_neighbours, |gains, _| {
            Box::new(Controller::new(policy, gains, horizon).expecting(sample.clone()))
        })
    }

    /// The setting with the highest J summed over the trials: a pattern search from a sound start, which moves to a neighbour at
    /// some factor while that helps and then comes closer.
    fn climb<S: Copy + Sync>(
        &self,
        start: S,
        budget: usize,
        trials: &[Trial],
        neighbours: impl Fn(S, f64) -> Vec<S>,
        make: impl Fn(S, Trial) -> Box<dyn Policy> + Sync,
    ) -> S {
        let judge = |setting: S| -> f64 {
            let replay = |&trial: &Trial| {
                let j = replay_day(&self.days[trial.0], &mut *make(setting, trial), self.options, &mut |_| {}).j;
                // Relaxed: a lone counter.
                self.done.fetch_add(1, Ordering::Relaxed);
                j
            };
            // Summed in order, so that the sum is the same however the threads ran.
            trials.par_iter().map(replay).collect::<Vec<f64>>().iter().sum()
        };
        let mut left = (budget / trials.len().max(1)).max(1) - 1;
        if left == 0 {
            return start;
        }
        let (mut best, mut best_j) = (start, judge(start));
        let mut factor = 3.0;
        while factor > 1.2 {
            let mut improved = false;
            for candidate in neighbours(best, factor) {
                if left == 0 {
                    return best;
                }
                left -= 1;
                let j = judge(candidate);
                if j > best_j {
                    (best, best_j, improved) = (candidate, j, true);
                    break;
                }
            }
            if !improved {
                factor = factor.sqrt();
            }
        }
        best
    }
}

fn pid_neighbours(best: PidGains, factor: f64) -> Vec<PidGains> {
    let gains = |proportional, integral, derivative| PidGains { proportional, integral, derivative };
    vec![
        gains(best.proportional * factor, best.integral, best.derivative),
        gains(best.proportional / factor, best.integral, best.derivative),
        gains(best.proportional, best.integral * factor, best.derivative),
        gains(best.proportional, best.integral / factor, best.derivative),
        gains(best.proportional, best.integral, best.derivative + 0.05 * factor),
    ]
}

/// A gain of 0 cannot be multiplied: it starts at a small one.
fn pacing_neighbours(best: PacingGains, factor: f64) -> Vec<PacingGains> {
    let more = |gain: f64, least: f64| (gain * factor).max(least);
    let less = |gain: f64, least: f64| if gain > least { gain / factor } else { 0.0 };
    let market = 0.25 * (factor - 1.0);
    vec![
        PacingGains { proportional: more(best.proportional, 2.0), ..best },
        PacingGains { integral: more(best.integral, 4.0), ..best },
        PacingGains { market: best.market + market, ..best },
        PacingGains { proportional: less(best.proportional, 2.0), ..best },
        PacingGains { integral: less(best.integral, 4.0), ..best },
        PacingGains { market: (best.market - market).max(0.0), ..best },
    ]
}

fn horizon_neighbours(best: Horizon, factor: f64) -> Vec<Horizon> {
    vec![
        Horizon { memory_s: best.memory_s * factor, ..best },
        Horizon { memory_s: best.memory_s / factor, ..best },
        Horizon { interval_s: best.interval_s / factor, ..best },
        Horizon { interval_s: best.interval_s * factor, ..best },
    ]
}
