//! Options of replaying and serving a day that several commands share.

use clap::Args;

use crate::score::ScoreOptions;
use crate::settings::Settings;

use super::numbers::seconds;

#[derive(Debug, Clone, Copy, Args)]
pub struct Replayed {
    /// Seconds until a policy observes a delivery
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub feedback_delay: f64,
    /// Seed of the rate draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub rate_seed: u64,
    /// Add to each queue the eligible contracts missing from it
    #[arg(long)]
    pub complete_queues: bool,
}

impl Replayed {
    /// Returns the default settings with these options.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.env.feedback_delay_s = self.feedback_delay;
        settings.env.rate_seed = self.rate_seed;
        settings.env.complete_queues = self.complete_queues;
        settings
    }

    /// Returns the options for a scorer.
    pub fn score(&self) -> ScoreOptions {
        ScoreOptions {
            rate_seed: self.rate_seed,
            feedback_delay_s: self.feedback_delay,
            complete_queues: self.complete_queues,
            ..ScoreOptions::default()
        }
    }
}
