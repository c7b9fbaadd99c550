//! What main does before anything is trained: open the logs, plan, fix the policy's vocabulary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::env::Vocabulary;
use crate::log::CompiledLog;
use crate::plan::{DayAhead, Plan};
use crate::policy::{PolicySpec, ReplayOptions, baselines};
use crate::run::context::{Context, compile_options, open_logs};
use crate::settings::{Baselines, Env, Policy, ScoreMode, Settings};

/// Plans from training days and tunes the baselines on them; then plans the day that is to be served: `served`, else the
/// contracts of the last training day under the plan's forecast.
///
/// # Errors
/// No training day, or a directory that cannot be used.
pub fn plan_days(
    dirs: &[PathBuf],
    served: Option<&Path>,
    logs: Vec<CompiledLog>,
    env: &Env,
    baselines: &Baselines,
    policy: &Policy,
) -> anyhow::Result<Plan> {
    let references: Vec<&CompiledLog> = logs.iter().collect();
    let mut plan = Plan::from_days(&references, env.rate_seed)?;
    if let Some(last) = logs.last() {
        let ahead = match served {
            Some(dir) => DayAhead::read(dir, last.day())?,
            None => DayAhead::again(last),
        };
        plan.serve(&ahead);
    }
    let vocabulary = Arc::new(Vocabulary::default());
    let days = dirs
        .iter()
        .zip(logs)
        .map(|(dir, log)| crate::env::DayModel::new(dir, log, &plan, vocabulary.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let options = ReplayOptions { rate_seed: env.rate_seed, feedback_delay_s: env.feedback_delay_s };
    let (interval, budget) = (baselines.interval_s, baselines.tuning_replays);
    plan.tuned = Some(baselines::tune::all(&days, &plan.sample, options, interval, budget, policy)?);
    Ok(plan)
}

/// Opens every log of the run (so that a bad one is met now), plans unless a plan is `given`, and fixes what the policy is made
/// of.
pub fn prepare(settings: &Settings, given: Option<Plan>) -> anyhow::Result<Context> {
    let options = compile_options(settings);
    let logs = open_logs(&settings.data.train, options)?;
    open_logs(&settings.data.validation, options)?;
    open_logs(&settings.data.test, options)?;
    let references: Vec<&CompiledLog> = logs.iter().collect();
    let vocabulary = Vocabulary::of_days(&references, settings.score_mode == ScoreMode::All);
    let plan = match given {
        Some(plan) => plan,
        None => plan_days(&settings.data.train, None, logs, &settings.env, &settings.baselines, &settings.policy)?,
    };
    let spec = PolicySpec { score_mode: settings.score_mode, policy: settings.policy.clone(), vocabulary };
    Ok(Context { settings: settings.clone(), plan, spec: Arc::new(spec) })
}
