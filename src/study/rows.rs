//! Measurements of a study's evaluation: a row for each policy, day and stress, and the volatility of each day.

use serde::Serialize;

use crate::evaluate::PolicyReport;

/// Result of one policy on one day of one world. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub world: String,
    /// Index of the day in its world.
    pub day: usize,
    pub log: String,
    pub stress: String,
    /// Seed of the training run; `null` for policies that are not trained.
    pub seed: Option<u64>,
    /// Results, under the name of the variant, the baseline, or `oracle`.
    #[serde(flatten)]
    pub report: PolicyReport,
    pub ub: f64,
    pub stake: f64,
    /// Values that plan and policies saw, and values that everything is counted with.
    pub told: String,
    pub judged: String,
    pub contracts_declared: bool,
}

/// Deviation of a day's hours from the other days of its world.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Volatility {
    pub world: String,
    pub day: usize,
    /// Root mean square over the hours of the deviation of the logarithm of the volume.
    pub volatility: f64,
}

/// Name for no stress.
pub const CALM: &str = "none";
