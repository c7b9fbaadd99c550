//! Tunes the baselines, and the controller under the learned bids, within a stated budget of replays.
//!
//! They get the same data as the learner: the training days and the validation days, which choose its parameters, each as one
//! jittered episode with the learner's own jumps, shocks, feedback delays and errors of demand, price and volume. On the days
//! that prices come from, a controller that does nothing would look best. So each training day is judged with the sample of the
//! other days, and baselines that start from the training days' prices are judged with these 20 % too low on some days and 25 %
//! too high on others. A baseline with one parameter needs half of the budget; so does the receding horizon, because one of its
//! replays costs as much as ten others. These costs grow with the contracts: beyond [`USUAL_CONTRACTS`] baselines that solve
//! prices repeatedly get fewer replays in proportion.
//!
//! A single training day follows its own forecast exactly, and a controller that trusts it would look best. In that case, only
//! the validation days judge, if there are any.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use rayon::prelude::*;

use crate::env::{DayModel, Episode};
use crate::plan::{Horizon, PacingGains, PidGains, Sample, Tuned};
use crate::settings;

use super::baselines::{DualDescent, PassRate, Pid, Receding};
use super::{Controller, Policy, ReplayOptions, replay_episode};

const START_FACTORS: [f64; 2] = [0.8, 1.25];

/// Number of contracts up to which solving a day's prices repeatedly costs no more than the other replays together.
pub const USUAL_CONTRACTS: usize = 500;

/// Replays of a day that tuning one baseline may cost, and the number that all of them have cost so far.
#[derive(Debug)]
pub struct Budget {
    replays: usize,
    /// Budget of baselines that solve prices repeatedly.
    solving: usize,
    done: AtomicUsize,
}

impl Budget {
    /// Creates the budget for days with at most `contracts` contracts.
    pub fn of(replays: usize, contracts: usize) -> Self {
        let solving = replays * USUAL_CONTRACTS / contracts.max(USUAL_CONTRACTS);
        Self { replays, solving, done: AtomicUsize::new(0) }
    }

    /// Returns the number of replays done, for progress displays.
    pub fn done(&self) -> &AtomicUsize {
        &self.done
    }

    /// Returns the maximum number of replays of [`all`]; searches without improvement end earlier.
    pub fn most(&self) -> usize {
        SEARCHES.iter().map(|search| (search.cost)(self)).sum()
    }
}

/// A search for the parameters of a baseline.
struct Search {
    /// Returns the number of replays that it may cost.
    cost: fn(&Budget) -> usize,
    /// Runs it with so many replays.
    run: fn(&Bench, usize) -> Found,
}

/// Puts the result of a search in its place.
type Found = Box<dyn FnOnce(&mut Tuned) + Send>;

/// All searches, the longest first. They are independent of each other and run in parallel: a search over few days leaves cores
/// idle.
const SEARCHES: [Search; 5] = [
    Search { cost: |b| b.solving / 2 + b.solving, run: |bench, replays| bench.planned(replays) },
    Search { cost: |b| b.replays, run: |bench, replays| bench.pid(replays) },
    Search { cost: |b| b.replays / 2, run: |bench, replays| bench.pass_rate(replays) },
    Search { cost: |b| b.replays / 2, run: |bench, replays| bench.dual_cold(replays) },
    Search { cost: |b| b.replays / 2, run: |bench, replays| bench.dual_warm(replays) },
];

/// Settings of tuning besides the days.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    pub options: ReplayOptions,
    /// Seconds of log time between two steps of a controller.
    pub interval_s: f64,
    pub budget: &'a Budget,
    /// Jitter of the days, and the requests per step, which determine the thinning.
    pub episodes: &'a settings::Episodes,
    pub per_step: usize,
    pub policy: &'a settings::Policy,
}

/// Tunes all baselines on training `days` and on `judges`, the validation days, which may be empty. `sample` is that of the
/// training days, in their order.
///
/// # Errors
/// If threads cannot be started.
pub fn all(days: &[DayModel], judges: &[DayModel], sample: &Sample, terms: Terms) -> anyhow::Result<Tuned> {
    // A pool of its own: the global one belongs to the learner, which sets its size.
    let pool = rayon::ThreadPoolBuilder::new().build().context("cannot start threads to tune the baselines")?;
    let whole = Arc::new(sample.clone());
    // A single day has no others to plan from.
    let without = |d| if days.len() > 1 { Arc::new(sample.without(d)) } else { whole.clone() };
    let trained = days.iter().enumerate().map(|(d, day)| (day, without(d)));
    let judging = judges.iter().map(|day| (day, whole.clone()));
    let judged: Vec<(&DayModel, Arc<Sample>)> = match (days.len(), judges.len()) {
        (1, 1..) => judging.collect(),
        _ => trained.chain(judging).collect(),
    };
    // Whole days without an error of the start: `START_FACTORS` tests such errors.
    let jitter = settings::Episodes { mid_day_share: 0.0, start_error: 0.0, ..terms.episodes.clone() };
    let draw = |(i, (day, sample)): (usize, (_, Arc<Sample>))| {
        let episode = Episode::draw(day, &jitter, terms.per_step, SEED + i as u64);
        Judge { day, sample, episode }
    };
    let judges: Vec<Judge> = judged.into_iter().enumerate().map(draw).collect();
    let plain = (0..judges.len()).map(|d| (d, 1.0)).collect();
    let off = (0..judges.len()).map(|d| (d, START_FACTORS[d % START_FACTORS.len()])).collect();
    let bench = Bench { judges, terms, several: days.len() > 1, plain, off };
    Ok(pool.install(|| bench.tune()))
}

/// Seed of the first day's episode; differs from any seed in training.
const SEED: u64 = 0x7A3E_0000_0000_0001;

/// An episode that settings are evaluated on, and the sample to plan it from.
struct Judge<'a> {
    day: &'a DayModel,
    sample: Arc<Sample>,
    episode: Episode,
}

/// Index of a judge, and a factor on the starting prices.
type Trial = (usize, f64);

struct Bench<'a> {
    judges: Vec<Judge<'a>>,
    terms: Terms<'a>,
    /// Whether starting prices come from several training days.
    several: bool,
    /// Every judge with right starting prices, and with wrong ones.
    plain: Vec<Trial>,
    off: Vec<Trial>,
}

impl Bench<'_> {
    fn tune(&self) -> Tuned {
        let run = |search: &Search| (search.run)(self, (search.cost)(self.terms.budget));
        let found: Vec<Found> = SEARCHES.par_iter().map(run).collect();
        let mut tuned = Tuned { interval_s: self.terms.interval_s, ..Tuned::default() };
        found.into_iter().for_each(|put| put(&mut tuned));
        tuned
    }

    fn sample(&self, day: usize) -> Arc<Sample> {
        self.judges[day].sample.clone()
    }

    /// The receding horizon, then the controller over it, which gets twice as many replays.
    fn planned(&self, budget: usize) -> Found {
        let Terms { interval_s: interval, policy, .. } = self.terms;
        let receding = self.climb(
            Horizon::default(),
            budget / 3,
            &self.off,
            |horizon, factor| {
                let mut near = horizon_neighbours(horizon, factor);
                near.retain(|h| h.interval_s >= interval);
                near
            },
            |horizon, (day, factor)| Box::new(Receding::new(self.sample(day), horizon).expecting_prices_off_by(factor)),
        );
        let controlled = |gains, (day, factor): Trial| -> Box<dyn Policy> {
            let controller = Controller::new(policy, gains, receding).starting_off_by(factor);
            Box::new(controller.expecting(self.sample(day)))
        };
        // The error of replanned prices is only what the other days do not predict; they may need no controller at all.
        let (start, trials) = if policy.replans() && self.several {
            (PacingGains::NONE, &self.plain)
        } else {
            (PacingGains::default(), &self.off)
        };
        let pacing = self.climb(start, budget - budget / 3, trials, pacing_neighbours, controlled);
        Box::new(move |tuned| (tuned.receding, tuned.pacing) = (receding, pacing))
    }

    fn pid(&self, budget: usize) -> Found {
        let gains = self.climb(PidGains::default(), budget, &self.off, pid_neighbours, |gains, (_, factor)| {
            Box::new(Pid::new(gains, self.terms.interval_s).starting_off_by(factor))
        });
        Box::new(move |tuned| tuned.pid = gains)
    }

    fn pass_rate(&self, budget: usize) -> Found {
        // Above one half a rate would jump between its bounds.
        let steps = |s, factor| step_neighbours(s, factor).into_iter().filter(|s| *s <= 0.5).collect();
        let step = self.climb(Tuned::default().pass_rate_step, budget, &self.plain, steps, |s, _| {
            Box::new(PassRate::new(s, self.terms.interval_s))
        });
        Box::new(move |tuned| tuned.pass_rate_step = step)
    }

    fn dual_cold(&self, budget: usize) -> Found {
        let step = self.climb(Tuned::default().dual_cold_step, budget, &self.plain, step_neighbours, |s, _| {
            Box::new(DualDescent::cold(s, self.terms.interval_s))
        });
        Box::new(move |tuned| tuned.dual_cold_step = step)
    }

    fn dual_warm(&self, budget: usize) -> Found {
        let step = self.climb(Tuned::default().dual_warm_step, budget, &self.off, step_neighbours, |s, (_, factor)| {
            Box::new(DualDescent::warm(s, self.terms.interval_s).starting_off_by(factor))
        });
        Box::new(move |tuned| tuned.dual_warm_step = step)
    }

    /// Returns the setting with the highest J summed over the trials: a pattern search from a robust start, which moves to a
    /// neighbour at some factor while that improves J, then reduces the factor.
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
                let Judge { day, episode, .. } = &self.judges[trial.0];
                let delay_s = self.terms.options.delay.in_episode(episode.seed);
                let j = replay_episode(day, episode.clone(), delay_s, &mut *make(setting, trial), &mut |_| {}).j;
                // Relaxed: a counter that orders nothing else.
                self.terms.budget.done.fetch_add(1, Ordering::Relaxed);
                j
            };
            // Summed in order, so that the sum does not depend on the schedule of the threads.
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

fn step_neighbours(best: f64, factor: f64) -> Vec<f64> {
    vec![best * factor, best / factor]
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

/// A gain of 0 cannot be multiplied, so it starts at a small one.
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

#[cfg(test)]
mod tests {
    use crate::policy::baselines::NAMES;

    use super::*;

    /// With 5,000 contracts tuning took minutes: each replay of the receding horizon solves thousands of prices 144 times.
    #[test]
    fn replays_that_solve_prices_are_fewer_with_many_contracts() {
        let most = |contracts| Budget::of(48, contracts).most();
        assert_eq!(most(0), most(500));
        // Half of the planner's 24 replays and of the controller's 48.
        assert_eq!(most(500) - most(1000), 36);
        assert_eq!(Budget::of(48, 5000).solving, 4);
    }

    /// `admix plan` prints them by these names.
    #[test]
    fn tuned_parameters_are_called_like_their_baselines() {
        for (name, parameters) in Tuned::default().parameters() {
            assert!(NAMES.contains(&name), "{name}: {parameters}");
        }
    }
}
