//! A logged day for evaluation: the log and its own forecast, without any plan's knowledge.
//!
//! Baselines and trained policies may have different plans; all of them are evaluated on this one day, with or without
//! a [`Stress`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::{DayModel, Delay, Vocabulary};
use crate::log::{self, CompileOptions, CompiledLog, RawDay, inventory, table};
use crate::plan::{Forecast, Plan};
use crate::policy::ReplayOptions;
use crate::policy::informed::Known;
use crate::settings::Env;
use crate::synth::Truth;
use crate::values::Told;

use super::logged::Logged;
use super::stress::Stress;

/// A day that policies are compared on.
#[derive(Debug)]
pub struct TestDay {
    dir: PathBuf,
    /// The log at the values that plan and policies see.
    log: Arc<CompiledLog>,
    /// The log at the values that J, S, the bound and shares are counted with.
    judged: Arc<CompiledLog>,
    told: Told,
    judge: Told,
    /// Content of the day as it was logged.
    content: Option<String>,
    /// The day's own forecast; plans provide another for days without one.
    forecast: Option<Forecast>,
    stress: Option<Stress>,
    known: Option<Arc<Known>>,
    /// Share of bad rows above which a table is not used.
    max_bad_share: f64,
}

impl TestDay {
    /// Opens a log directory, under `stress` if there is one. Policies are told the values of `told`; J, S, the bound and shares are
    /// counted with those of `judge`. A stress that alters the log can only be used with logged values.
    ///
    /// # Errors
    /// If a log or an inventory cannot be used.
    pub fn open(
        dir: &Path,
        options: CompileOptions,
        (told, judge): (&Told, &Told),
        stress: Option<&Stress>,
    ) -> Result<Self, log::LogError> {
        let mut nodes = match table::find(dir, "inventory")? {
            Some(path) => Some(inventory::read(&path)?),
            None => None,
        };
        let as_logged = Arc::new(log::open(dir, options)?);
        let content = as_logged.content();
        let log = match stress.filter(|stress| stress.alters_log()) {
            None if told.is_logged() => as_logged.clone(),
            None => Arc::new(told.open(dir, options)?),
            Some(_) if !(told.is_logged() && judge.is_logged()) => {
                let reason = "a stress alters the logged day: --stress goes with logged values alone".into();
                return Err(log::LogError::Format { path: dir.to_owned(), reason });
            }
            Some(stress) => {
                let mut raw = RawDay::read(dir, options)?;
                stress.alter(&mut raw, nodes.as_mut());
                Arc::new(raw.compile_altered(options, &stress.identity())?)
            }
        };
        let forecast = nodes.map(|nodes| Forecast::from_inventory(&nodes));
        let judged = match judge {
            _ if judge.is_same(told) => log.clone(),
            Told::Logged => as_logged,
            judge => Arc::new(judge.open(dir, options)?),
        };
        let stress = stress.cloned();
        let dir = dir.to_owned();
        let max_bad_share = options.max_bad_share;
        let (told, judge) = (told.clone(), judge.clone());
        Ok(Self { dir, log, judged, told, judge, content, forecast, stress, known: None, max_bad_share })
    }

    /// Returns the log directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn log(&self) -> &CompiledLog {
        &self.log
    }

    /// Returns the log at the values that J is counted with; the same log if policies see those values.
    pub fn judged(&self) -> &Arc<CompiledLog> {
        &self.judged
    }

    pub fn told(&self) -> &Told {
        &self.told
    }

    pub fn judge(&self) -> &Told {
        &self.judge
    }

    /// Returns the identity of the day as it was logged: [`CompiledLog::content`].
    pub fn content(&self) -> Option<&str> {
        self.content.as_deref()
    }

    pub fn stress(&self) -> Option<&Stress> {
        self.stress.as_ref()
    }

    /// Returns the ads that the live system showed; `None` without `joined_exposure`, or if the stress alters the log.
    ///
    /// # Errors
    /// If the table is unreadable.
    pub fn logged(&self) -> anyhow::Result<Option<Logged>> {
        match &self.stress {
            Some(stress) if stress.alters_log() => Ok(None),
            _ => Logged::read(&self.dir, &self.log, self.max_bad_share),
        }
    }

    /// Returns the day at the values that J is counted with, with `plan`'s knowledge.
    pub fn judged_model(&self, plan: &Plan) -> DayModel {
        let forecast = self.forecast.as_ref().unwrap_or(&plan.forecast);
        DayModel::with_forecast(self.judged.clone(), forecast, plan, Arc::default())
    }

    /// Returns the truth of the synthetic world of the day; `None` if there is no world file beside it, or if the log is
    /// altered.
    ///
    /// # Errors
    /// If a world file cannot be used.
    pub fn known(&self) -> anyhow::Result<Option<Arc<Known>>> {
        if let Some(known) = &self.known {
            return Ok(Some(known.clone()));
        }
        if self.stress.as_ref().is_some_and(Stress::alters_log) {
            return Ok(None);
        }
        Truth::beside(&self.dir)?.map(|truth| Known::of(truth).map(Arc::new)).transpose()
    }

    /// Reuses the truth that was loaded for another day of the same world.
    pub fn sharing(self, known: Option<Arc<Known>>) -> Self {
        Self { known, ..self }
    }

    /// Returns the day as a policy that was planned with `plan` may know it.
    pub fn model(&self, plan: &Plan, vocabulary: Arc<Vocabulary>) -> DayModel {
        let forecast = self.forecast.as_ref().unwrap_or(&plan.forecast);
        let wrong = self.stress.as_ref().map(|stress| stress.forecast(forecast));
        DayModel::with_forecast(self.log.clone(), wrong.as_ref().unwrap_or(forecast), plan, vocabulary)
    }

    /// Returns the options for replaying the day.
    pub fn options(&self, env: &Env) -> ReplayOptions {
        let told = self.stress.as_ref().and_then(Stress::feedback_delay_s);
        ReplayOptions { rate_seed: env.rate_seed, delay: told.map_or_else(|| Delay::from(env), Delay::fixed) }
    }
}
