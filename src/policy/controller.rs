//! The learned policy before it has learned: its starting bids under the pacing controller alone, and the tuning of
//! that controller on the training days.

use crate::env::{DayModel, Replay};
use crate::plan::PacingGains;
use crate::settings;

use super::learned::{Bids, lift};
use super::{LearnedPolicy, Policy, ReplayOptions, replay_day};

/// Bids of the learned policy with a network whose output is 0.
pub struct Controller {
    settings: settings::Policy,
    /// Error of every starting bid, in its logit, for tuning.
    start_error: f64,
    bids: Option<Bids>,
}

impl Controller {
    pub fn new(settings: settings::Policy) -> Self {
        Self { settings, start_error: 0.0, bids: None }
    }
}

impl Policy for Controller {
    fn begin(&mut self, replay: &Replay) {
        self.bids = Some(Bids::new(replay.day, &self.settings));
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        let bids = self.bids.as_ref().expect("begin() came first");
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let output = self.start_error + lift(&self.settings, replay, j);
            *score = c.click + bids.contract(j, output, LearnedPolicy::unit_owed(replay, &replay.state, j)).0;
        }
    }
}

/// Errors of the starting bids under which gains are judged: on the days that the prices come from, a controller that does
/// nothing would look best.
const START_ERRORS: [f64; 2] = [-0.25, 0.25];

/// The gains with the highest summed J over the training days; costs at most `budget` replays (but one setting is
/// always tried).
pub fn tune(days: &mut [DayModel], settings: &settings::Policy, options: ReplayOptions, budget: usize) -> PacingGains {
    let cost = days.len() * START_ERRORS.len();
    let mut left = (budget / cost.max(1)).max(1);
    let mut judge = |gains: PacingGains| -> f64 {
        let mut sum = 0.0;
        for day in &mut *days {
            day.pacing = gains;
            for start_error in START_ERRORS {
                let mut controller = Controller { start_error, ..Controller::new(settings.clone()) };
                sum += replay_day(day, &mut controller, options, &mut |_| {}).j;
            }
        }
        sum
    };
    let mut best = PacingGains::default();
    let mut best_j = judge(best);
    left -= 1;
    // Pattern search: one gain at a time, up or down, in ever smaller steps.
    let mut factor = 2.5;
    'search: while factor > 1.15 {
        let mut improved = false;
        for candidate in [
            PacingGains { proportional: best.proportional * factor, ..best },
            PacingGains { proportional: best.proportional / factor, ..best },
            PacingGains { integral: best.integral * factor, ..best },
            PacingGains { integral: best.integral / factor, ..best },
            PacingGains { market: best.market + 0.3 * (factor - 1.0), ..best },
            PacingGains { market: (best.market - 0.3 * (factor - 1.0)).max(0.0), ..best },
        ] {
            if left == 0 {
                break 'search;
            }
            left -= 1;
            let j = judge(candidate);
            if j > best_j {
                (best, best_j) = (candidate, j);
                improved = true;
            }
        }
        if !improved {
            factor = factor.sqrt();
        }
    }
    best
}
