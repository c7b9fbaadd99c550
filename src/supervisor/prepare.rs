//! What main does before anything is trained: open the logs, plan, fix the policy's vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use crate::env::{DayModel, Vocabulary};
use crate::log::{CompileOptions, CompiledLog, table};
use crate::plan::cache::{Key, Place};
use crate::plan::{DayAhead, Plan};
use crate::policy::file::PolicyFile;
use crate::policy::{PolicySpec, ReplayOptions, tune};
use crate::run::context::{Context, compile_options, inputs_hash, open_logs};
use crate::settings::{Baselines, Env, Policy, ScoreMode, Settings};
use crate::values::Told;

use super::progress;

/// What a plan is made from.
pub struct Planning<'a> {
    /// Training days: directories, and what is compiled from them.
    pub dirs: &'a [PathBuf],
    pub logs: Vec<CompiledLog>,
    /// Directory of the day that is to be served; `None`: the contracts of the last training day under the plan's forecast.
    pub served: Option<&'a Path>,
    /// Days that tell, where there is a single training day, what a controller is worth on another one; may be empty.
    pub validation: &'a [PathBuf],
    pub options: CompileOptions,
    pub told: &'a Told,
    pub env: &'a Env,
    pub baselines: &'a Baselines,
    pub policy: &'a Policy,
}

impl Planning<'_> {
    /// The plan: the one that was kept when the same was planned before, else a new one.
    ///
    /// # Errors
    /// No training day, or a directory that cannot be used.
    pub fn plan(self) -> anyhow::Result<Plan> {
        let place = self.place();
        if let Some(place) = &place
            && let Some(plan) = place.read()
        {
            tracing::info!("the plan of {} training days is taken from {}", self.logs.len(), place.path().display());
            return Ok(plan);
        }
        tracing::info!("planning from {} training days", self.logs.len());
        let json = self.make()?.to_json();
        if let Some(place) = place {
            place.write(&json);
        }
        // As it would be read from there: the digits of JSON may stand for a neighbouring number.
        serde_json::from_slice(&json).context("the plan holds a number that is not finite")
    }

    /// Plans and tunes the baselines on the training days; then plans the day that is to be served.
    ///
    /// # Errors
    /// No training day, or a directory that cannot be used.
    pub fn make(self) -> anyhow::Result<Plan> {
        let judges = self.judges()?;
        let Self { dirs, logs, served, env, baselines, policy, .. } = self;
        let references: Vec<&CompiledLog> = logs.iter().collect();
        say!("planning: forecast, supply and prices of {} days", references.len());
        let mut plan = Plan::from_days(&references, env.rate_seed)?;
        if let Some(last) = logs.last() {
            let ahead = match served {
                Some(dir) => DayAhead::read(dir, last.day())?,
                None => DayAhead::again(last),
            };
            plan.serve(&ahead);
        }
        let vocabulary = Arc::new(Vocabulary::default());
        let models = |dirs: &[PathBuf], logs: Vec<CompiledLog>| {
            let days = dirs.iter().zip(logs).map(|(dir, log)| DayModel::new(dir, log, &plan, vocabulary.clone()));
            days.collect::<Result<Vec<_>, _>>()
        };
        let (days, judges) = (models(dirs, logs)?, models(self.validation, judges)?);
        let options = ReplayOptions { rate_seed: env.rate_seed, feedback_delay_s: env.feedback_delay_s };
        let (interval, budget) = (baselines.interval_s, baselines.tuning_replays);
        let budget = tune::Budget::of(budget);
        let most = budget.most(days.len() == 1 && !judges.is_empty());
        let tuned = progress::while_counting("planning: tuning baselines", "replays", budget.done(), most, || {
            tune::all(&days, &judges, &plan.sample, options, interval, &budget, policy)
        })?;
        plan.tuned = Some(tuned);
        Ok(plan)
    }

    /// The logs of the validation days where they are needed.
    fn judges(&self) -> anyhow::Result<Vec<CompiledLog>> {
        if self.logs.len() > 1 { Ok(vec![]) } else { Ok(open_logs(self.validation, self.options, self.told)?) }
    }

    /// Where this plan is kept; `None` where none can be.
    fn place(&self) -> Option<Place> {
        let mut key = Key::of_this_program()?;
        for (dir, log) in self.dirs.iter().zip(&self.logs) {
            key.log(log);
            key.file(table::find(dir, "inventory").ok()?.as_deref()).ok()?;
        }
        if let Some(dir) = self.served {
            key.text(&dir.canonicalize().ok()?.file_name()?.to_string_lossy());
            key.file(Some(&dir.join("day.toml"))).ok()?;
            for name in ["control", "inventory"] {
                key.file(table::find(dir, name).ok()?.as_deref()).ok()?;
            }
        }
        for (dir, log) in self.validation.iter().zip(&self.judges().ok()?) {
            key.log(log);
            key.file(table::find(dir, "inventory").ok()?.as_deref()).ok()?;
        }
        // Whole sections, so that a key that is added enters too; but for what the network alone is made of.
        let Policy { hidden, ad_embedding, traffic_embedding, temperature, auction_candidates, .. } = Policy::default();
        let policy =
            Policy { hidden, ad_embedding, traffic_embedding, temperature, auction_candidates, ..self.policy.clone() };
        key.text(&serde_json::to_string(&(self.env, self.baselines, policy)).ok()?);
        Place::beside(self.dirs.last()?, &key)
    }
}

/// Opens every log of the run (so that a bad one is met now), plans unless a plan is `given`, and fixes what the policy is made
/// of. The run starts from the parameters of `from` if there is one.
///
/// # Errors
/// A log that cannot be used; [`Unfit`].
pub fn prepare(settings: &Settings, given: Option<Plan>, from: Option<&Origin>) -> anyhow::Result<Context> {
    let options = compile_options(settings);
    let told = Told::of(&settings.data)?;
    let logs = open_logs(&settings.data.train, options, &told)?;
    let mut inputs = BTreeMap::new();
    for (dir, log) in settings.data.train.iter().zip(&logs) {
        inputs.insert(dir.clone(), inputs_hash(dir, log)?);
    }
    for dirs in [&settings.data.validation, &settings.data.test] {
        for (dir, log) in dirs.iter().zip(open_logs(dirs, options, &told)?) {
            inputs.insert(dir.clone(), inputs_hash(dir, &log)?);
        }
    }
    let references: Vec<&CompiledLog> = logs.iter().collect();
    let vocabulary = Vocabulary::of_days(&references, settings.score_mode == ScoreMode::All);
    let plan = match given {
        Some(plan) => plan,
        None => {
            let Settings { data, env, baselines, policy, .. } = settings;
            let (dirs, validation) = (&data.train, &data.validation);
            Planning { dirs, logs, served: None, validation, options, told: &told, env, baselines, policy }.plan()?
        }
    };
    let spec = PolicySpec { score_mode: settings.score_mode, policy: settings.policy.clone(), vocabulary };
    let initial = spec.initial_actor(settings.run.seed);
    let start = match from {
        None => initial,
        Some(Origin { path, policy }) => {
            let unfit = |e: anyhow::Error| Unfit { path: path.clone(), why: format!("{e:#}") };
            policy.start_for(&spec, initial).map_err(unfit)?
        }
    };
    Ok(Context { settings: settings.clone(), plan, spec: Arc::new(spec), inputs, start, told })
}

/// A policy that a run starts from.
#[derive(Debug)]
pub struct Origin {
    pub path: PathBuf,
    pub policy: PolicyFile,
}

/// A policy that the configured run cannot start from.
#[derive(Debug, thiserror::Error)]
#[error("cannot start from {}: {why}", path.display())]
pub struct Unfit {
    path: PathBuf,
    why: String,
}
