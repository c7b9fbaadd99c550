//! Settings of the planted errors of the logged predictions.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

/// Event that an auction ad is charged for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Billing {
    /// Each impression: the true expected charge times log-normal noise of mean 1.
    #[default]
    Impressions,
    /// Each click, so that the mean over all impressions is the true expected charge.
    Clicks,
}

/// Standard deviations of the log errors, the same for charges and click odds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ErrorSettings {
    /// Effect of each ad; default 0.18.
    pub ad: f64,
    /// Effect of each slot; default 0.08.
    pub slot: f64,
    /// Effect of each ad in each region; default 0.14.
    pub ad_region: f64,
    /// Effect of each day, drawn for every day; default 0.05.
    pub day: f64,
    /// Standard deviation of the logarithm of one charge about its expectation; default 0.5.
    pub charge_noise: f64,
    /// `impressions` (default) or `clicks`.
    pub billing: Billing,
    /// Days whose exposures may be learned from; the following days are reported. Default 3.
    pub train_days: u32,
}

impl Default for ErrorSettings {
    fn default() -> Self {
        Self {
            ad: 0.18,
            slot: 0.08,
            ad_region: 0.14,
            day: 0.05,
            charge_noise: 0.5,
            billing: Billing::Impressions,
            train_days: 3,
        }
    }
}

impl ErrorSettings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// A value out of range, with its key and the range.
    pub fn validate(&self) -> Result<()> {
        for (name, value) in [
            ("ad", self.ad),
            ("slot", self.slot),
            ("ad_region", self.ad_region),
            ("day", self.day),
            ("charge_noise", self.charge_noise),
        ] {
            ensure!((0.0..=2.0).contains(&value), "`errors.{name} = {value}` must lie in 0..=2");
        }
        Ok(())
    }
}
