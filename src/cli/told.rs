//! The two switches of every command that judges policies: which values they are told, and which ones they are judged by.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::Data;
use crate::values::{Table, Told};

use super::exit::UsageError;

/// What plan and policies see.
#[derive(Debug, Args)]
pub struct ToldArguments {
    /// Values that plan and policies see: those of the log, the truth of a synthetic world, or what its exposures tell at best
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
    /// The values that are told; those of `data` where no argument says.
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
