//! A logged day as it is evaluated: the log and its own forecast, before any plan's knowledge is joined to it.
//!
//! Baselines and trained policies may come with different plans; all of them are judged on this one day.

use std::path::Path;
use std::sync::Arc;

use crate::env::{DayModel, Vocabulary};
use crate::log::{self, CompileOptions, CompiledLog, inventory, table};
use crate::plan::{Forecast, Plan};

/// A day that policies are compared on.
#[derive(Debug)]
pub struct TestDay {
    log: Arc<CompiledLog>,
    /// The day's own forecast; plans have another for days without one.
    forecast: Option<Forecast>,
}

impl TestDay {
    /// Opens a log directory.
    ///
    /// # Errors
    /// A log or an inventory that cannot be used.
    pub fn open(dir: &Path, options: CompileOptions) -> Result<Self, log::LogError> {
        let forecast = match table::find(dir, "inventory")? {
            Some(path) => Some(Forecast::from_inventory(&inventory::read(&path)?)),
            None => None,
        };
        Ok(Self { log: Arc::new(log::open(dir, options)?), forecast })
    }

    pub fn log(&self) -> &CompiledLog {
        &self.log
    }

    /// The day as a policy that was planned with `plan` may know it.
    pub fn model(&self, plan: &Plan, vocabulary: Arc<Vocabulary>) -> DayModel {
        let forecast = self.forecast.as_ref().unwrap_or(&plan.forecast);
        DayModel::with_forecast(self.log.clone(), forecast, plan, vocabulary)
    }
}
