//! Makes a dictionary from options, and writes it: scored for the day to be served, measured on a held-out day.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use crate::env::{DayModel, Delay};
use crate::files::{self, replace};
use crate::log::day::Day;
use crate::log::schema::DAY_MS;
use crate::log::{self, CompileOptions, CompiledLog, table};
use crate::plan::{Forecast, Plan, Use};
use crate::policy::ReplayOptions;
use crate::run::leakage;
use crate::score::{self, DayFiles, ScoreOptions, Scorer, ServedDay, ServedPolicy};
use crate::values::Told;

use super::guard::{Guard, Held};
use super::table::{Key, Row, entries, write};

/// What to export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// A run directory (its best policy), a policy file, or `baseline:NAME`, which needs `plan`.
    pub policy: String,
    /// Plan of a baseline, and of the planned play probabilities to compare with. Default: the policy's.
    pub plan: Option<PathBuf>,
    /// Directory of the held-out day.
    pub log: PathBuf,
    /// File of the dictionary. The recorded state is written beside it.
    pub out: PathBuf,
    /// Contracts of the day to be served. Default: those of the held-out day, with its forecast.
    pub control: Option<PathBuf>,
    /// Forecast of the day to be served. Used only with `control`.
    pub inventory: Option<PathBuf>,
    /// A `day.toml` with the date of the day to be served. Default: that of the held-out day.
    pub day: Option<PathBuf>,
    /// Time of the state: `HH:MM` of the day, or Unix milliseconds. Default: midnight.
    pub at: Option<String>,
    /// Exposures of the day to be served; those before `at` count.
    pub delivered_from: Option<PathBuf>,
    /// Seconds until the dictionary is exported again.
    pub ttl_s: f64,
    /// Seconds until the policy observes a delivery.
    pub feedback_delay_s: f64,
    pub rate_seed: u64,
}

/// Options that cannot be exported with.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("cannot write {}: {why}; name another --out", path.display())]
    Place { path: PathBuf, why: std::io::Error },
    /// The policy or the plan cannot be opened.
    #[error("{0:#}")]
    Policy(anyhow::Error),
    #[error("--at {at} is not a time of {date}: use HH:MM or Unix milliseconds")]
    Time { at: String, date: String },
}

/// A dictionary that is not written yet.
#[derive(Debug)]
pub struct Dictionary {
    pub rows: Vec<Row>,
    /// Results on the held-out day.
    pub guard: Guard,
    /// Version of the policy.
    pub version: String,
    /// State that the entries were scored at, as [`Scorer::save`] returns it.
    state: Vec<u8>,
    out: PathBuf,
}

impl Dictionary {
    /// Scores the entries of the day to be served and measures them on the held-out day.
    ///
    /// # Errors
    /// [`ExportError`], [`super::Refusal`] of a policy or a score, a file that cannot be read.
    pub fn make(options: &ExportOptions) -> anyhow::Result<Self> {
        let source = Source::open(options)?;
        let (rows, state) = source.rows()?;
        let guard = source.measure(&source.held_keys()?)?;
        Ok(Self { rows, guard, version: source.policy.version, state, out: options.out.clone() })
    }

    /// Writes the dictionary, and the recorded state to `FILE.state` beside it.
    ///
    /// # Errors
    /// [`super::Refusal`] if the results on the held-out day are against the dictionary; a file that cannot be written.
    pub fn write(&self) -> anyhow::Result<()> {
        self.guard.check()?;
        let beside = state_path(&self.out);
        replace(&beside, &self.state).with_context(|| format!("cannot write {}", beside.display()))?;
        write(&self.out, &self.rows, self.guard.ttl_s, &self.version)
    }
}

/// What a dictionary is made from.
struct Source<'a> {
    options: &'a ExportOptions,
    policy: ServedPolicy,
    /// Plan of the planned play probabilities; `None`: the policy's.
    baseline_plan: Option<Plan>,
    /// The held-out day.
    log: Arc<CompiledLog>,
    /// Forecast of the held-out day; `None`: that of each plan.
    forecast: Option<Forecast>,
    held_files: DayFiles,
}

impl<'a> Source<'a> {
    /// Opens policy, plan and held-out day. Warns if the policy is told other values than it was made at, and if it has seen
    /// the day.
    fn open(options: &'a ExportOptions) -> anyhow::Result<Self> {
        let beside = state_path(&options.out);
        for path in [&options.out, &beside] {
            files::check_place(path).map_err(|why| ExportError::Place { path: path.clone(), why })?;
        }
        let policy = ServedPolicy::open(&options.policy, options.plan.as_deref()).map_err(ExportError::Policy)?;
        policy.log_values(&Told::Logged);
        let baseline_plan = options.plan.as_deref().map(Plan::read).transpose().map_err(ExportError::Policy)?;
        let log = log::open(&options.log, CompileOptions::default())?;
        let seen = &policy.plan().seen;
        leakage::warn_of_seen("the policy", seen, std::slice::from_ref(&log), "--log", Use::Validation);
        let forecast = Forecast::of_directory(&options.log)?;
        let held_files = held_files(&options.log)?;
        Ok(Self { options, policy, baseline_plan, log: Arc::new(log), forecast, held_files })
    }

    /// Scores the entries of the day to be served; returns the state that they were scored at, too.
    fn rows(&self) -> anyhow::Result<(Vec<Row>, Vec<u8>)> {
        let options = self.options;
        let served = ServedDay::read(&self.served_files(), self.log.day().start_ms)?;
        let at = time_of(options.at.as_deref(), &served.day)?;
        if options.control.is_some() && options.day.is_none() {
            tracing::warn!(
                "the dictionary is dated {}, the day of --log, though --control may be of another; --day FILE names its day.toml",
                served.day.date
            );
        }
        let mut scorer = Scorer::new(&served, &self.policy, self.score_options())?;
        self.begin(&mut scorer, &served.day, at)?;
        scorer.warm(at - served.day.start_ms);
        let state = scorer.save();
        let rows = entries(&mut scorer, &served, self.policy.plan(), at, options.ttl_s)?;
        Ok((rows, state))
    }

    /// Starts the scorer at the deliveries before `at`: at none where no exposures are given. Without `--at` it stays at midnight.
    fn begin(&self, scorer: &mut Scorer, day: &Day, at: u64) -> anyhow::Result<()> {
        if let Some(path) = &self.options.delivered_from {
            let (delivered, other_day) = score::delivered_by(path, day, at)?;
            if other_day > 0 {
                tracing::warn!(
                    "{other_day} exposures of {} are not of {} and were not counted; is it another day's file?",
                    path.display(),
                    day.date
                );
            }
            let unknown = scorer.begin_with(&delivered);
            if !unknown.is_empty() {
                tracing::info!("{} ads of {} have no control row and were not counted", unknown.len(), path.display());
            }
        } else if self.options.at.is_some() {
            scorer.begin_with(&score::Delivered::new());
        }
        Ok(())
    }

    /// Returns the keys of the held-out day's own contracts: coverage refers to that day's traffic.
    fn held_keys(&self) -> anyhow::Result<HashSet<Key>> {
        let day = ServedDay::read(&self.held_files, self.log.day().start_ms)?;
        let mut scorer = Scorer::new(&day, &self.policy, self.score_options())?;
        let whole = DAY_MS as f64 / 1000.0;
        let rows = entries(&mut scorer, &day, self.policy.plan(), day.day.start_ms, whole)?;
        Ok(rows.iter().map(|row| row.key).collect())
    }

    /// Replays the held-out day, with a dictionary that has these keys.
    fn measure(&self, keys: &HashSet<Key>) -> anyhow::Result<Guard> {
        let policy = &self.policy;
        let baseline_plan = self.baseline_plan.as_ref().unwrap_or_else(|| policy.plan());
        let model = |plan: &Plan, vocabulary| {
            let forecast = self.forecast.as_ref().unwrap_or(&plan.forecast);
            DayModel::with_forecast(self.log.clone(), forecast, plan, vocabulary)
        };
        let day = model(policy.plan(), policy.vocabulary()).seen_by(policy.predicts());
        let baseline_day = model(baseline_plan, Arc::default());
        let held = Held { policy, day: &day, baseline_day: &baseline_day, baseline_plan };
        let &ExportOptions { ttl_s, feedback_delay_s, rate_seed, .. } = self.options;
        let replay = ReplayOptions { rate_seed, delay: Delay::fixed(feedback_delay_s) };
        Guard::measure(&held, ttl_s, replay, |ad_id, slot, bucket| {
            keys.contains(&Key { ad_id, slot_id: Some(slot), pac_bucket: Some(bucket) })
        })
    }

    fn score_options(&self) -> ScoreOptions {
        ScoreOptions {
            rate_seed: self.options.rate_seed,
            feedback_delay_s: self.options.feedback_delay_s,
            stateless: true,
            ..ScoreOptions::default()
        }
    }

    /// Returns the files of the day to be served.
    fn served_files(&self) -> DayFiles {
        let ExportOptions { control, inventory, day, .. } = self.options;
        let day = day.clone().or_else(|| self.held_files.day.clone());
        match control {
            Some(control) => DayFiles { control: control.clone(), inventory: inventory.clone(), day },
            None => DayFiles { day, ..self.held_files.clone() },
        }
    }
}

/// Returns the files that say what was known of a log directory's day before it began.
fn held_files(dir: &Path) -> anyhow::Result<DayFiles> {
    let control = table::require(dir, "control", log::control::COLUMNS)?;
    let day = Some(dir.join("day.toml")).filter(|path| path.is_file());
    Ok(DayFiles { control, inventory: table::find(dir, "inventory")?, day })
}

/// Returns a time within a day as Unix milliseconds; the start of the day where none is given.
fn time_of(at: Option<&str>, day: &Day) -> Result<u64, ExportError> {
    let Some(text) = at else { return Ok(day.start_ms) };
    let clock = text.split_once(':').and_then(|(hours, minutes)| {
        let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
        (hours < 24 && minutes < 60).then(|| day.start_ms + (hours * 60 + minutes) * 60_000)
    });
    let time = clock.or_else(|| text.parse().ok()).filter(|&time| day.contains(time));
    time.ok_or_else(|| ExportError::Time { at: text.to_owned(), date: day.date.clone() })
}

/// Returns the path of the recorded state.
fn state_path(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".state");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_clock_time_of_the_day_or_milliseconds_within_it() {
        let start_ms = 1_767_571_200_000;
        let day = Day { date: "2026-01-05".into(), start_ms, length_ms: DAY_MS };
        let minute = 60_000;
        for (at, expected) in [
            (None, start_ms),
            (Some("00:00"), start_ms),
            (Some("14:30"), start_ms + (14 * 60 + 30) * minute),
            (Some("1767571260000"), start_ms + minute),
        ] {
            assert_eq!(time_of(at, &day).unwrap(), expected, "{at:?}");
        }
        for at in ["24:00", "12:60", "noon", "17", "1767657600000"] {
            let why = time_of(Some(at), &day).unwrap_err().to_string();
            assert_eq!(why, format!("--at {at} is not a time of 2026-01-05: use HH:MM or Unix milliseconds"));
        }
    }

    #[test]
    fn the_state_lies_beside_the_dictionary() {
        assert_eq!(state_path(Path::new("today/dictionary.tsv")), Path::new("today/dictionary.tsv.state"));
    }
}
