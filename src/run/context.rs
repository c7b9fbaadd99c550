//! What a run trains on, loaded the same way by every process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use crate::env::{DayModel, Vocabulary};
use crate::log::{self, CompileOptions, CompiledLog};
use crate::plan::Plan;
use crate::policy::{PolicySpec, ReplayOptions};
use crate::settings::Settings;

use super::directory::RunDirectory;

/// Settings, plan and policy spec of a run.
#[derive(Debug, Clone)]
pub struct Context {
    pub settings: Settings,
    pub plan: Plan,
    pub spec: Arc<PolicySpec>,
}

impl Context {
    /// Loads what main wrote into the run directory.
    pub fn load(directory: &RunDirectory) -> anyhow::Result<Self> {
        let settings = Settings::read_resolved(&directory.config())?;
        let plan = Plan::read(&directory.plan())?;
        let path = directory.spec();
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let spec = serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))?;
        Ok(Self { settings, plan, spec: Arc::new(spec) })
    }

    /// Writes what [`Context::load`] reads.
    pub fn store(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        let config = directory.config();
        std::fs::write(&config, self.settings.to_toml())
            .with_context(|| format!("cannot write {}", config.display()))?;
        self.plan.write(&directory.plan())?;
        let spec = directory.spec();
        std::fs::write(&spec, serde_json::to_vec(&*self.spec)?)
            .with_context(|| format!("cannot write {}", spec.display()))
    }

    /// Opens log directories as days of this run.
    pub fn days(&self, dirs: &[PathBuf]) -> anyhow::Result<Vec<DayModel>> {
        open_days(dirs, compile_options(&self.settings), &self.plan, &self.spec.vocabulary)
    }

    /// The training days. What the others tell is all that a policy may expect of each: a day that is in its own
    /// sample looks too easy.
    pub fn training_days(&self) -> anyhow::Result<Vec<DayModel>> {
        let mut days = self.days(&self.settings.data.train)?;
        if days.len() > 1 {
            for (i, day) in days.iter_mut().enumerate() {
                day.sample = Arc::new(self.plan.sample.without(i));
            }
        }
        Ok(days)
    }

    pub fn replay_options(&self) -> ReplayOptions {
        ReplayOptions { rate_seed: self.settings.env.rate_seed, feedback_delay_s: self.settings.env.feedback_delay_s }
    }
}

pub fn compile_options(settings: &Settings) -> CompileOptions {
    CompileOptions { complete_queues: settings.env.complete_queues, max_bad_share: settings.data.max_bad_share }
}

/// Opens the compiled logs of directories.
pub fn open_logs(dirs: &[PathBuf], options: CompileOptions) -> Result<Vec<CompiledLog>, log::LogError> {
    dirs.iter().map(|dir| log::open(dir, options)).collect()
}

/// Opens log directories as days under a plan.
pub fn open_days(
    dirs: &[PathBuf],
    options: CompileOptions,
    plan: &Plan,
    vocabulary: &Vocabulary,
) -> anyhow::Result<Vec<DayModel>> {
    let vocabulary = Arc::new(vocabulary.clone());
    dirs.iter().map(|dir: &PathBuf| open_day(dir, options, plan, &vocabulary)).collect()
}

fn open_day(
    dir: &Path,
    options: CompileOptions,
    plan: &Plan,
    vocabulary: &Arc<Vocabulary>,
) -> anyhow::Result<DayModel> {
    let log = log::open(dir, options)?;
    Ok(DayModel::new(dir, log, plan, vocabulary.clone())?)
}
