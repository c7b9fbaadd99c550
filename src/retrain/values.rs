//! Values of a night: a model is trained on the night's exposures, and used only if it predicts the held-out ones better.
//!
//! Policies see the values that they are served at, so the served file names the model, which lies beside it. A night plans, trains
//! and counts at one set of values: the new model's if its losses on the held-out exposures are lower than those of the values
//! served now by their paired interval, else the latter. The incumbent still sees its own values, as it does when it serves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::log::CompileOptions;
use crate::policy::stored::Stored;
use crate::settings::{self, Configuration as _, ValueSettings};
use crate::supervisor::interrupt::Interrupt;
use crate::values::join::{Share, join};
use crate::values::report::{self, LossDifference};
use crate::values::{Fields, Told, ratios, store};

use super::config::Job;
use super::days::DayDir;
use super::history::History;
use super::judge::ValueComparison;
use super::roles::Roles;
use super::training::{self, list};

/// Values of a night.
pub struct NightValues {
    /// Values that the night plans, trains and counts at.
    pub told: Told,
    /// Values that the incumbent is served at.
    pub incumbent: Told,
    pub comparison: Option<ValueComparison>,
    /// Why there is no new model, if one was wanted.
    pub note: Option<String>,
}

impl NightValues {
    /// Returns the night's values where no model is wanted: `told` for everybody.
    pub fn all_at(told: Told, incumbent: Told) -> Self {
        Self { told, incumbent, comparison: None, note: None }
    }
}

/// Returns the values that a promoted policy is served at.
///
/// # Errors
/// If its model is gone.
pub fn of_incumbent(history: &History, incumbent: &Stored) -> anyhow::Result<Told> {
    store::of_policy(&history.current(), &incumbent.plan().told).context("the promoted policy cannot be served")
}

/// Checks the configuration of value training before anything is written.
///
/// # Errors
/// If it cannot be read.
pub fn ready(job: &Job) -> anyhow::Result<()> {
    if job.values.train.as_os_str().is_empty() {
        return Ok(());
    }
    // Placeholders for the days, which are not known yet.
    let unknown = ["values.train=[\"-\"]".to_owned(), "values.validation=[\"-\"]".to_owned()];
    let sets: Vec<String> = job.values.set.iter().cloned().chain(unknown).collect();
    let settings: ValueSettings = settings::load(&job.values.train, &sets)
        .context("the job's configuration of value training, `values.train`")?;
    Fields::parse(&settings.values.fields)?;
    Ok(())
}

/// Trains a model in `folder` and compares it with the values of the incumbent on the held-out exposures.
///
/// # Errors
/// An interrupt. Where training fails, for example because there are no exposures, the incumbent's values are used and the reason is
/// noted.
pub fn of_night(
    job: &Job,
    folder: &Path,
    roles: &Roles,
    incumbent: Told,
    options: CompileOptions,
    interrupt: &Interrupt,
) -> anyhow::Result<NightValues> {
    let found = train(job, folder, roles, interrupt).and_then(|run| {
        let model = Told::model(&run)?;
        let comparison = compare(&model, &incumbent, &roles.heldout, options)?;
        Ok((model, comparison))
    });
    if interrupt.count() > 0 {
        bail!("interrupted");
    }
    let (model, mut comparison) = match found {
        Ok(found) => found,
        Err(why) => {
            let note = format!("no value model tonight, {incumbent} values are used: {why:#}");
            say!("{note}");
            return Ok(NightValues { note: Some(note), ..NightValues::all_at(incumbent.clone(), incumbent) });
        }
    };
    let told = if comparison.losses.is_better() { model } else { incumbent.clone() };
    comparison.used = told.to_string();
    say!("{}", comparison.sentence());
    Ok(NightValues { told, incumbent, comparison: Some(comparison), note: None })
}

/// Trains on the night's training and validation days; returns the run directory.
fn train(job: &Job, folder: &Path, roles: &Roles, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    let days = [list("values.train", &roles.train), list("values.validation", &roles.validation)];
    let sets: Vec<String> = job.values.set.iter().cloned().chain(days).collect();
    let settings: ValueSettings = settings::load(&job.values.train, &sets)?;
    let run = training::directory(folder, "values", &settings.to_toml());
    training::values(job, &sets, &run, interrupt)?;
    Ok(run)
}

/// Compares two sets of values on the exposures of days.
///
/// # Errors
/// If a day has no exposures that can be used.
fn compare(model: &Told, against: &Told, days: &[DayDir], options: CompileOptions) -> anyhow::Result<ValueComparison> {
    let Told::Model(own) = model else { bail!("{model} values are no model's") };
    let dispersion = f64::from(own.meta.dispersion);
    let (mut new, mut old) = (Vec::new(), Vec::new());
    for day in days {
        for (told, all) in [(model, &mut new), (against, &mut old)] {
            let logged = ratios::fields();
            let (fields, mut predictor) = match told {
                Told::Model(model) => (&model.fields, Some(model.predictor())),
                Told::Logged | Told::Table(_) => (&logged, None),
            };
            let joined = join(&day.dir, options, fields, Share::ALL)?;
            all.extend(report::losses(&joined, fields.len(), predictor.as_mut(), dispersion));
        }
    }
    Ok(ValueComparison {
        used: String::new(),
        model: model.to_string(),
        against: against.to_string(),
        losses: LossDifference::of(&new, &old).context("too few held-out exposures")?,
    })
}

/// Removes the models that no archived policy was made at.
///
/// # Errors
/// If the archive cannot be read; all models stay then.
pub fn prune(history: &History) -> anyhow::Result<()> {
    let mut named = BTreeSet::new();
    for n in history.archive()? {
        let told = Stored::read(&history.archived(n))?.plan().told.clone();
        named.extend(Told::model_name(&told).map(str::to_owned));
    }
    store::retain(history.root(), &named)
}
