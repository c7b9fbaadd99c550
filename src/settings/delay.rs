//! A random feedback delay.

use serde::{Deserialize, Serialize};

/// A delay drawn for every episode and every replayed day: log-normal, capped at a maximum. Seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedbackDelay {
    /// 0 = not drawn; `env.feedback_delay_s` applies then.
    pub median_s: f64,
    /// Standard deviation of the delay's logarithm.
    pub log_sd: f64,
    /// Longest possible delay.
    pub max_s: f64,
}

impl FeedbackDelay {
    /// No drawn delay.
    pub const NONE: Self = Self { median_s: 0.0, log_sd: 0.0, max_s: 0.0 };

    pub fn is_drawn(&self) -> bool {
        self.median_s > 0.0
    }
}
