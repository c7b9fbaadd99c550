//! What a study's evaluation measures: a row for each policy, day and stress, and how volatile each day was.

use serde::Serialize;

use crate::evaluate::PolicyReport;

/// One policy on one day of one world. Money in minor units.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub world: String,
    /// Index of the day in its world.
    pub day: usize,
    pub log: String,
    pub stress: String,
    /// Of the training run; `null` for those that are not trained.
    pub seed: Option<u64>,
    /// Under the name of the variant, the baseline, or `oracle`.
    #[serde(flatten)]
    pub report: PolicyReport,
    pub ub: f64,
    pub stake: f64,
}

/// How far a day's hours stray from the other days of its world.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Volatility {
    pub world: String,
    pub day: usize,
    /// Root mean square over the hours, of the logarithm of the volume.
    pub volatility: f64,
}

/// No stress.
pub const CALM: &str = "none";
