//! First steps of main, before training: open the logs, plan, fix the policy's vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use crate::env::{DayModel, Delay, Vocabulary};
use crate::log::{CompileOptions, CompiledLog, table};
use crate::nodes::Node;
use crate::plan::cache::{Key, Place};
use crate::plan::{DayAhead, DayVolume, Plan, Seen, Use, VolumeModel};
use crate::policy::file::PolicyFile;
use crate::policy::start::initial_actor;
use crate::policy::{PolicySpec, ReplayOptions, tune};
use crate::run::context::{Context, compile_options, inputs_hash, open_logs};
use crate::run::leakage::{self, Roles};
use crate::settings::{Baselines, Env, Episodes, Policy, ScoreMode, Settings};
use crate::values::Told;

use super::progress;

/// Inputs of a plan.
pub struct Planning<'a> {
    /// Directories of the training days, and their compiled logs.
    pub dirs: &'a [PathBuf],
    pub logs: Vec<CompiledLog>,
    /// Directory of the day to be served; `None`: the contracts of the last training day under the plan's forecast.
    pub served: Option<&'a Path>,
    /// Days that baselines are also tuned on, as they select the learner's parameters; may be empty.
    pub validation: &'a [PathBuf],
    pub options: CompileOptions,
    pub told: &'a Told,
    pub env: &'a Env,
    pub episodes: &'a Episodes,
    /// Requests per step of an episode.
    pub per_step: usize,
    pub baselines: &'a Baselines,
    pub policy: &'a Policy,
}

impl Planning<'_> {
    /// Returns the stored plan of the same inputs if there is one, else makes a new one.
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
        // The state before the baselines are tuned, from which an interrupted start continues.
        let untuned = place.as_ref().map(|place| place.stage("untuned"));
        let plan = keep(self.make_from(untuned.as_ref())?, place.as_ref())?;
        if let Some(untuned) = untuned {
            untuned.remove();
        }
        Ok(plan)
    }

    /// Plans and tunes the baselines on the training days; then plans the day to be served.
    ///
    /// # Errors
    /// No training day, or a directory that cannot be used.
    pub fn make(self) -> anyhow::Result<Plan> {
        self.make_from(None)
    }

    fn make_from(self, untuned: Option<&Place>) -> anyhow::Result<Plan> {
        let judges = open_logs(self.validation, self.options, self.told)?;
        let Self { dirs, logs, served, told, env, episodes, per_step, baselines, policy, .. } = self;
        let references: Vec<&CompiledLog> = logs.iter().collect();
        say!("planning: forecast, supply and prices of {} days", references.len());
        let mut plan = match untuned.and_then(Place::read) {
            Some(plan) => plan,
            None => {
                let mut plan = Plan::from_days(&references, env.rate_seed)?;
                (plan.told, plan.feedback_delay_s) = (told.to_string(), Delay::from(env).most_s());
                if let Some(last) = logs.last() {
                    let ahead = match served {
                        Some(dir) => DayAhead::read(dir, last.day())?,
                        None => DayAhead::again(last),
                    };
                    plan.serve(&ahead);
                }
                keep(plan, untuned)?
            }
        };
        plan.volume = Some(Arc::new(VolumeModel::fit(&DayVolume::of_days(
            &[dirs, self.validation].concat(),
            &references.iter().copied().chain(&judges).collect::<Vec<_>>(),
        )?)));
        let vocabulary = Arc::new(Vocabulary::default());
        let models = |dirs: &[PathBuf], logs: Vec<CompiledLog>| {
            let days = dirs.iter().zip(logs).map(|(dir, log)| DayModel::new(dir, log, &plan, vocabulary.clone()));
            days.collect::<Result<Vec<_>, _>>()
        };
        let (days, judges) = (models(dirs, logs)?, models(self.validation, judges)?);
        let options = ReplayOptions { rate_seed: env.rate_seed, delay: Delay::from(env) };
        let contracts = days.iter().chain(&judges).map(|day| day.contracts.len()).max().unwrap_or(0);
        let budget = tune::Budget::of(baselines.tuning_replays, contracts);
        if contracts > tune::USUAL_CONTRACTS {
            let share = 100 * tune::USUAL_CONTRACTS / contracts;
            say!(
                "planning: {contracts} contracts: receding horizon and controller are tuned with {share} % of their replays"
            );
        }
        let terms =
            tune::Terms { options, interval_s: baselines.interval_s, budget: &budget, episodes, per_step, policy };
        let delayed = options.delay.most_s() > 0.0;
        let most = budget.most() * if delayed { 2 } else { 1 };
        let tuned = progress::while_counting("planning: tuning baselines", "replays", budget.done(), most, || {
            let usual = tune::all(&days, &judges, &plan.sample, terms)?;
            // A policy that predicts deliveries sees no delay.
            let prompt = tune::Terms { options: ReplayOptions { delay: Delay::fixed(0.0), ..options }, ..terms };
            let predicting = delayed.then(|| tune::all(&days, &judges, &plan.sample, prompt)).transpose()?;
            anyhow::Ok((usual, predicting))
        });
        let (usual, predicting) = tuned?;
        (plan.tuned, plan.tuned_predicting) = (Some(usual), predicting);
        judges.iter().for_each(|day| plan.seen.add(&day.log, Use::Validation));
        Ok(plan)
    }

    /// Returns the place where this plan is stored; `None` where none is possible.
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
        for (dir, log) in self.validation.iter().zip(&open_logs(self.validation, self.options, self.told).ok()?) {
            key.log(log);
            key.file(table::find(dir, "inventory").ok()?.as_deref()).ok()?;
        }
        // Whole sections, so that a new key is included too, except for the keys that affect only the network.
        let Policy { hidden, ad_embedding, traffic_embedding, temperature, auction_candidates, .. } = Policy::default();
        let policy =
            Policy { hidden, ad_embedding, traffic_embedding, temperature, auction_candidates, ..self.policy.clone() };
        key.text(&serde_json::to_string(&(self.env, self.episodes, self.per_step, self.baselines, policy)).ok()?);
        Place::beside(self.dirs.last()?, &key)
    }
}

/// Stores a plan, where possible, and returns it as it would be read back: JSON digits may stand for a neighbouring number.
fn keep(plan: Plan, place: Option<&Place>) -> anyhow::Result<Plan> {
    let json = plan.to_json();
    if let Some(place) = place {
        place.write(&json);
    }
    serde_json::from_slice(&json).context("the plan holds a number that is not finite")
}

/// Opens every log of the run (so that a bad one is found now), plans unless a plan is `given`, and fixes the inputs of the
/// policy. The run starts from the parameters of `from` if there is one.
///
/// # Errors
/// A log that cannot be used; [`Unfit`]; [`leakage::Leak`].
pub fn prepare(settings: &Settings, given: Option<Plan>, from: Option<&Origin>) -> anyhow::Result<Context> {
    let options = compile_options(settings);
    let told = Told::of(&settings.data)?;
    let logs = open_logs(&settings.data.train, options, &told)?;
    let validation = open_logs(&settings.data.validation, options, &told)?;
    let test = open_logs(&settings.data.test, options, &told)?;
    let mut inputs = BTreeMap::new();
    let mut roles = Roles::default();
    let data = &settings.data;
    for (role, dirs, logs) in [
        ("data.train", &data.train, &logs),
        ("data.validation", &data.validation, &validation),
        ("data.test", &data.test, &test),
    ] {
        for (dir, log) in dirs.iter().zip(logs) {
            inputs.insert(dir.clone(), inputs_hash(dir, log)?);
            roles.add(role, dir, log)?;
        }
    }
    let references: Vec<&CompiledLog> = logs.iter().collect();
    let vocabulary = Vocabulary::of_days(&references, settings.score_mode == ScoreMode::All);
    let mut seen = Seen::default();
    logs.iter().for_each(|log| seen.add(log, Use::Train));
    validation.iter().for_each(|log| seen.add(log, Use::Validation));
    announce_samples(settings, &logs);
    let mut plan = match given {
        Some(plan) => {
            if plan.told != told.to_string() {
                tracing::warn!("the plan was made at {} values and training sees {told} ones", plan.told);
            }
            plan
        }
        None => {
            let Settings { data, env, episodes, baselines, policy, .. } = settings;
            let per_step = settings.requests_per_step();
            let (dirs, validation) = (&data.train, &data.validation);
            let (served, told) = (None, &told);
            Planning { dirs, logs, served, validation, options, told, env, episodes, per_step, baselines, policy }
                .plan()?
        }
    };
    let earlier = from.map(|origin| (origin.path.display().to_string(), &origin.policy.plan.seen));
    for (whose, before) in earlier.into_iter().chain([("the plan".to_owned(), &plan.seen)]) {
        leakage::warn_of_seen(&whose, before, &validation, "data.validation", Use::Train);
        leakage::warn_of_seen(&whose, before, &test, "data.test", Use::Validation);
    }
    plan.seen.extend(&seen);
    if let Some(origin) = from {
        plan.seen.extend(&origin.policy.plan.seen);
    }
    let spec = PolicySpec { score_mode: settings.score_mode, policy: settings.policy.clone(), vocabulary };
    let initial = initial_actor(&spec, settings.run.seed);
    let start = match from {
        None => initial,
        Some(Origin { path, policy }) => {
            let unfit = |e: anyhow::Error| Unfit { path: path.clone(), why: format!("{e:#}") };
            policy.start_for(&spec, initial).map_err(unfit)?
        }
    };
    Ok(Context { settings: settings.clone(), plan, spec: Arc::new(spec), inputs, start, told, node: Node::default() })
}

/// Reports which training days are replayed in part.
fn announce_samples(settings: &Settings, logs: &[CompiledLog]) {
    for (dir, log) in settings.data.train.iter().zip(logs) {
        let requests = log.requests().len();
        let share = settings.episodes.share_of(requests, settings.requests_per_step());
        if share < 1.0 {
            say!(
                "training: an episode replays a random {:.1} % of {} ({:.0} of {requests} requests), with demands scaled alike; \
                 episodes.steps sets how many",
                100.0 * share,
                dir.display(),
                share * requests as f64
            );
        }
    }
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
