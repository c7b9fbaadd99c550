//! Feedback delay: the time until a delivery is observed. It is the same for all displays of a day and can vary from day to day.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use crate::log::draw;
use crate::settings::{Env, FeedbackDelay, Policy};

/// Hash keys of the draws, so that days and episodes do not share them.
const DAY: u64 = 1;
const EPISODE: u64 = 2;

/// The feedback delay of days and episodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Delay {
    fixed_s: f64,
    drawn: FeedbackDelay,
    seed: u64,
}

impl From<&Env> for Delay {
    fn from(env: &Env) -> Self {
        Self { fixed_s: env.feedback_delay_s, drawn: env.feedback_delay, seed: env.delay_seed }
    }
}

impl Delay {
    /// Returns a delay of `seconds` on every day.
    pub const fn fixed(seconds: f64) -> Self {
        Self { fixed_s: seconds, drawn: FeedbackDelay::NONE, seed: 0 }
    }

    /// Returns the delay that a learned policy of these settings sees: none where it predicts deliveries.
    pub fn of_policy(policy: &Policy, env: &Env) -> Self {
        if policy.predicts() { Self::fixed(0.0) } else { Self::from(env) }
    }

    /// Returns the delay of a whole day that is replayed, seconds; `start_ms` is the start of the day, Unix milliseconds.
    pub fn on_day(&self, start_ms: u64) -> f64 {
        self.draw(DAY, start_ms)
    }

    /// Returns the delay of a training episode, seconds.
    pub fn in_episode(&self, seed: u64) -> f64 {
        self.draw(EPISODE, seed)
    }

    /// Returns the longest possible delay, seconds.
    pub fn most_s(&self) -> f64 {
        if self.drawn.is_drawn() { self.drawn.max_s } else { self.fixed_s }
    }

    fn draw(&self, purpose: u64, of: u64) -> f64 {
        if !self.drawn.is_drawn() {
            return self.fixed_s;
        }
        let mut rng = ChaCha8Rng::seed_from_u64(draw::hash64(self.seed, purpose, of));
        let normal: f64 = StandardNormal.sample(&mut rng);
        (self.drawn.median_s * (self.drawn.log_sd * normal).exp()).min(self.drawn.max_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Delay {
        let feedback_delay = FeedbackDelay { median_s: 600.0, log_sd: 1.0, max_s: 2700.0 };
        Delay::from(&Env { feedback_delay, delay_seed: seed, ..Env::default() })
    }

    #[test]
    fn draws_have_their_median_and_their_bound() {
        let delay = drawn(1);
        let mut seconds: Vec<f64> = (0..20_001).map(|i| delay.in_episode(i)).collect();
        seconds.sort_by(f64::total_cmp);
        assert!((seconds[10_000] / 600.0 - 1.0).abs() < 0.05, "{}", seconds[10_000]);
        assert!(seconds[0] > 0.0 && seconds[20_000] == 2700.0);
        assert_eq!(delay.most_s(), 2700.0);
    }

    #[test]
    fn days_and_episodes_draw_apart_and_by_the_seed() {
        assert_eq!(drawn(1).on_day(5), drawn(1).on_day(5));
        assert!(drawn(1).on_day(5) != drawn(1).on_day(6));
        assert!(drawn(1).on_day(5) != drawn(2).on_day(5));
        assert!(drawn(1).on_day(5) != drawn(1).in_episode(5));
    }

    #[test]
    fn without_a_median_the_scalar_key_rules() {
        let delay = Delay::from(&Env { feedback_delay_s: 90.0, ..Env::default() });
        assert_eq!((delay.on_day(1), delay.in_episode(2), delay.most_s()), (90.0, 90.0, 90.0));
        assert_eq!(Delay::fixed(7.0).on_day(1), 7.0);
    }
}
