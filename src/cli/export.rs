//! `admix export`: writes the dictionary of a feature server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use crate::env::{DayModel, Delay};
use crate::export::{self, Guard, Held, Key, Refusal};
use crate::files::{self, replace};
use crate::log::schema::DAY_MS;
use crate::log::{self, CompileOptions, table};
use crate::plan::{Forecast, Plan, Use};
use crate::policy::ReplayOptions;
use crate::run::leakage;
use crate::score::{self, DayFiles, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use crate::values::Told;

use super::exit::{Exit, UsageError};
use super::numbers::{seconds, some_seconds};
use super::output::{print_json, print_text};
use super::told::warn_of_logged;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 written, 12 refused (nothing is written).\n\n\
    Examples, before the day and during it:\n\n    \
    admix export --policy runs/default-1 --log day-4 --control today/control.tsv \\\n        --out dictionary.tsv\n    \
    admix export --policy runs/default-1 --log day-4 --control today/control.tsv \\\n        --day today/day.toml --at 14:30 \\\n        \
    --delivered-from today/joined_exposure.tsv --out dictionary.tsv")]
pub struct Export {
    /// A run directory (its best policy), a policy file, or baseline:NAME, which needs --plan
    #[arg(long, value_name = "RUN_DIR|FILE|baseline:NAME")]
    policy: String,
    /// Plan of a baseline, and of the planned play probabilities that the dictionary is compared with; default: the policy's
    #[arg(long, value_name = "RUN_DIR|FILE")]
    plan: Option<PathBuf>,
    /// Held-out log directory that the dictionary is judged on before it is written
    #[arg(long, value_name = "DIR")]
    log: PathBuf,
    /// Dictionary to write; FILE.state beside it is the state that its entries were scored at
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Contracts of the day to be served; default: those of --log
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,
    /// Supply forecast of the day to be served
    #[arg(long, value_name = "FILE", requires = "control")]
    inventory: Option<PathBuf>,
    /// Date of the day to be served; default: that of --log
    #[arg(long, value_name = "DAY.TOML")]
    day: Option<PathBuf>,
    /// Time of the state: HH:MM of the day, or Unix milliseconds; default: midnight
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Impressions shown since the start of the day (request_id, ad_id, ts_ms); those before --at count
    #[arg(long, value_name = "EXPOSURE", requires = "at")]
    delivered_from: Option<PathBuf>,
    /// Seconds until the dictionary is exported again
    #[arg(long, value_name = "SECONDS", default_value_t = 900.0, value_parser = some_seconds)]
    ttl: f64,
    /// Seconds until the policy observes a delivery
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    feedback_delay: f64,
    /// Seed of the rate draws
    #[arg(long, value_name = "S", default_value_t = 0)]
    rate_seed: u64,
    /// Print the results on the held-out day as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    guard: &'a Guard,
    entries: usize,
    model_version: &'a str,
    written: bool,
}

impl Export {
    pub fn run(self) -> anyhow::Result<Exit> {
        let usage = |e: anyhow::Error| UsageError(format!("{e:#}"));
        let beside = state_path(&self.out);
        for path in [&self.out, &beside] {
            files::check_place(path)
                .map_err(|e| UsageError(format!("cannot write {}: {e}; name another --out", path.display())))?;
        }
        let policy = ServedPolicy::open(&self.policy, self.plan.as_deref()).map_err(usage)?;
        warn_of_logged("the policy", policy.plan(), &Told::Logged);
        let base = self.plan.as_deref().map(Plan::read).transpose().map_err(usage)?;
        let base = base.as_ref().unwrap_or_else(|| policy.plan());
        let compiled = log::open(&self.log, CompileOptions::default())?;
        leakage::warn_of_seen(
            "the policy",
            &policy.plan().seen,
            std::slice::from_ref(&compiled),
            "--log",
            Use::Validation,
        );
        let compiled = Arc::new(compiled);
        let own = Forecast::of_directory(&self.log)?;
        let model = |plan: &Plan, vocabulary| {
            DayModel::with_forecast(compiled.clone(), own.as_ref().unwrap_or(&plan.forecast), plan, vocabulary)
        };
        let held_day = model(policy.plan(), policy.vocabulary()).seen_by(policy.predicts());
        let baseline_day = model(base, Arc::default());

        let files = self.files()?;
        let served = ServedDay::read(&files, compiled.day().start_ms)?;
        let at = self.time(&served)?;
        if self.control.is_some() && self.day.is_none() {
            tracing::warn!(
                "the dictionary is dated {}, the day of --log, though --control may be of another; --day FILE names its day.toml",
                served.day.date
            );
        }
        let options = ScoreOptions {
            rate_seed: self.rate_seed,
            feedback_delay_s: self.feedback_delay,
            stateless: true,
            ..ScoreOptions::default()
        };
        let mut scorer = Scorer::new(&served, &policy, options)?;
        if let Some(path) = &self.delivered_from {
            let (delivered, other_day) = score::delivered_by(path, &served.day, at)?;
            if other_day > 0 {
                tracing::warn!(
                    "{other_day} exposures of {} are not of {} and were not counted; is it another day's file?",
                    path.display(),
                    served.day.date
                );
            }
            let unknown = scorer.begin_with(&delivered);
            if !unknown.is_empty() {
                tracing::info!("{} ads of {} have no control row and were not counted", unknown.len(), path.display());
            }
        } else if self.at.is_some() {
            scorer.begin_with(&score::Delivered::new());
        }
        scorer.warm(at - served.day.start_ms);
        let state = scorer.save();
        let refused = |e: &anyhow::Error| e.downcast_ref::<Refusal>().is_some();
        let rows = match export::entries(&mut scorer, &served, policy.plan(), at, self.ttl) {
            Ok(rows) => rows,
            Err(e) if refused(&e) => return refuse(&e),
            Err(e) => return Err(e),
        };
        // Coverage refers to the held-out day's traffic, with the keys of its own contracts.
        let mut held_scorer = {
            let day = ServedDay::read(&self.log_files()?, compiled.day().start_ms)?;
            (Scorer::new(&day, &policy, options)?, day)
        };
        let whole = DAY_MS as f64 / 1000.0;
        let start = held_scorer.1.day.start_ms;
        let held_rows = export::entries(&mut held_scorer.0, &held_scorer.1, policy.plan(), start, whole);
        let keys: std::collections::HashSet<Key> = match held_rows {
            Ok(rows) => rows.iter().map(|row| row.key).collect(),
            Err(e) if refused(&e) => return refuse(&e),
            Err(e) => return Err(e),
        };
        let held = Held { policy: &policy, day: &held_day, baseline_day: &baseline_day, baseline_plan: base };
        let replay = ReplayOptions { rate_seed: self.rate_seed, delay: Delay::fixed(self.feedback_delay) };
        let guard = Guard::measure(&held, self.ttl, replay, |ad_id, slot, bucket| {
            keys.contains(&Key { ad_id, slot_id: Some(slot), pac_bucket: Some(bucket) })
        })?;
        let verdict = guard.check();
        let report =
            Written { guard: &guard, entries: rows.len(), model_version: &policy.version, written: verdict.is_ok() };
        if self.json {
            print_json(&report)?;
        } else {
            print_text(&text(&report))?;
        }
        if let Err(why) = verdict {
            return refuse(&why.into());
        }
        replace(&beside, &state).map_err(|e| anyhow::anyhow!("cannot write {}: {e}", beside.display()))?;
        export::write(&self.out, &rows, self.ttl, &policy.version)?;
        Ok(Exit::Done)
    }

    fn files(&self) -> anyhow::Result<DayFiles> {
        let own = self.log_files()?;
        Ok(match &self.control {
            Some(control) => DayFiles {
                control: control.clone(),
                inventory: self.inventory.clone(),
                day: self.day.clone().or(own.day),
            },
            None => DayFiles { day: self.day.clone().or(own.day), ..own },
        })
    }

    /// Returns the files of the held-out day.
    fn log_files(&self) -> anyhow::Result<DayFiles> {
        let control = table::require(&self.log, "control", log::control::COLUMNS)?;
        let day = Some(self.log.join("day.toml")).filter(|path| path.is_file());
        Ok(DayFiles { control, inventory: table::find(&self.log, "inventory")?, day })
    }

    /// Returns `--at` as Unix milliseconds within the day.
    fn time(&self, day: &ServedDay) -> anyhow::Result<u64> {
        let Some(text) = &self.at else { return Ok(day.day.start_ms) };
        let clock = text.split_once(':').and_then(|(hours, minutes)| {
            let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then(|| day.day.start_ms + (hours * 60 + minutes) * 60_000)
        });
        match clock.or_else(|| text.parse().ok()).filter(|&at| day.day.contains(at)) {
            Some(at) => Ok(at),
            None => {
                let why = format!("--at {text} is not a time of {}: use HH:MM or Unix milliseconds", day.day.date);
                Err(UsageError(why).into())
            }
        }
    }
}

/// Returns the path of the recorded state.
fn state_path(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".state");
    name.into()
}

fn refuse(why: &anyhow::Error) -> anyhow::Result<Exit> {
    say!("{why:#}");
    Ok(Exit::VerdictNotReached)
}

fn text(report: &Written) -> String {
    let guard = report.guard;
    let points = |loss: Option<f64>| loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.2}"));
    format!(
        "{} entries of {}; on {}: J {:.2} by the policy, {:.2} by a dictionary exported every {:.0} s, {:.2} by planned play \
         probabilities\nloss in share: {} points from bucketing, {} with the age of entries; {:.1} % of the traffic covered\n",
        report.entries,
        report.model_version,
        guard.log,
        guard.j_policy,
        guard.j_dictionary,
        guard.ttl_s,
        guard.j_theta,
        points(guard.loss_bucketing),
        points(guard.loss_dictionary),
        100.0 * guard.coverage
    )
}
