//! Tunes the PID gains on the training days, within a stated budget of replays.
//!
//! Every setting is judged with the starting prices 20 % too low and 25 % too high: on the days that the prices come
//! from, a controller that does nothing would look best.

use crate::env::DayModel;
use crate::plan::PidGains;
use crate::policy::{ReplayOptions, replay_day};

use super::Pid;

const START_FACTORS: [f64; 2] = [0.8, 1.25];

/// The gains with the highest summed J over the training days; costs at most `budget` replays (but one setting is always
/// tried).
pub fn pid(days: &[DayModel], options: ReplayOptions, interval_s: f64, budget: usize) -> PidGains {
    let cost = days.len() * START_FACTORS.len();
    let tries = (budget / cost.max(1)).max(1);
    let judge = |gains: PidGains| -> f64 {
        let mut sum = 0.0;
        for day in days {
            for factor in START_FACTORS {
                let mut pid = Pid::new(gains, interval_s).starting_off_by(factor);
                sum += replay_day(day, &mut pid, options, &mut |_| {}).j;
            }
        }
        sum
    };
    let gains = |proportional: f64, integral: f64, derivative: f64| PidGains { proportional, integral, derivative };
    let mut best = PidGains::default();
    let mut best_j = judge(best);
    let mut left = tries - 1;
    // Pattern search from a sound start: halve or double one gain at a time while it helps.
    let mut factor = 3.0;
    'search: while factor > 1.2 {
        let mut improved = false;
        let candidates = [
            gains(best.proportional * factor, best.integral, best.derivative),
            gains(best.proportional / factor, best.integral, best.derivative),
            gains(best.proportional, best.integral * factor, best.derivative),
            gains(best.proportional, best.integral / factor, best.derivative),
            gains(best.proportional, best.integral, best.derivative + 0.05 * factor),
        ];
        for candidate in candidates {
            if left == 0 {
                break 'search;
            }
            left -= 1;
            let j = judge(candidate);
            if j > best_j {
                (best, best_j) = (candidate, j);
                improved = true;
                break;
            }
        }
        if !improved {
            factor = factor.sqrt();
        }
    }
    best
}
