//! The options that select the values that policies see, and warnings of policies that were made under other conditions.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::plan::Plan;
use crate::settings::Data;
use crate::values::{Table, Told};

use super::exit::UsageError;

/// Options for the values that plan and policies see.
#[derive(Debug, Args)]
pub struct ToldArguments {
    /// Values that plan and policies see: those of the log, the truth of a synthetic world, or the best estimate from its
    /// exposures
    #[arg(long, value_name = "logged|truth|posterior", conflicts_with = "values")]
    told: Option<Source>,
    /// Plan and policies see the values of this run of `admix values train`
    #[arg(long, value_name = "DIR")]
    values: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    Logged,
    Truth,
    Posterior,
}

impl ToldArguments {
    /// Returns the selected values; those of `data` if no argument is given.
    pub fn resolve(&self, data: &Data) -> anyhow::Result<Told> {
        let told = match (&self.values, self.told) {
            (Some(dir), _) => Told::model(dir),
            (None, Some(Source::Logged)) => Ok(Told::Logged),
            (None, Some(Source::Truth)) => Ok(Told::Table(Table::Truth)),
            (None, Some(Source::Posterior)) => Ok(Told::Table(Table::Posterior)),
            (None, None) => Told::of(data),
        };
        told.map_err(|e| UsageError(format!("{e:#}")).into())
    }
}

/// Warns of a policy that observes deliveries at once although it was tuned for late ones.
pub fn warn_of_delay(name: &str, plan: &Plan, feedback_delay_s: f64) {
    if feedback_delay_s == 0.0 && plan.feedback_delay_s > 0.0 {
        tracing::warn!(
            "{name} was tuned for deliveries that are observed up to {:.0} s late, and observes them at once here; \
             --feedback-delay SECONDS delays them",
            plan.feedback_delay_s
        );
    }
}

/// Warns of a policy that is told the logged values although it was made at others.
pub fn warn_of_logged(name: &str, plan: &Plan, told: &Told) {
    if told.is_logged() && plan.told != told.to_string() {
        tracing::warn!("{name} was made at other values ({}) than it is told now ({told})", plan.told);
    }
}
