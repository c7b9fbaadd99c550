//! The options that select the values that policies see.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
