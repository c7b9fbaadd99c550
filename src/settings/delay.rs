//! A feedback delay that is drawn.

use serde::{Deserialize, Serialize};

/// A delay drawn for every episode and every replayed day: log-normal, cut at a maximum. Seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackDelay {
    /// 0 = not drawn; `env.feedback_delay_s` is the delay then.
    pub median_s: f64,
    /// Standard deviation of its logarithm.
    pub log_sd: f64,
    /// The most that it can be.
    pub max_s: f64,
}

impl FeedbackDelay {
    /// Not drawn.
    pub const NONE: Self = Self { median_s: 0.0, log_sd: 0.0, max_s: 0.0 };

    pub fn is_drawn(&self) -> bool {
        self.median_s > 0.0
    }
}
