//! Training runs of a night: their settings, their directories, and the processes that they run in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::run::snapshot;
use crate::settings::{self, Settings};
use crate::study::jobs;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::manifest;

use super::config::Job;
use super::days::DayDir;
use super::roles::Roles;

/// Returns a `--set` argument that makes `key` the directories of these days.
pub fn list(key: &str, days: &[DayDir]) -> String {
    let dirs = Roles::dirs(days).into_iter().map(|dir| dir.canonicalize().unwrap_or(dir));
    let list = dirs.map(|dir| toml::Value::String(dir.to_string_lossy().into_owned())).collect();
    format!("{key}={}", toml::Value::Array(list))
}

/// Returns the job's settings, this night's days and its value model, if it has one, as `--set` arguments.
fn assigned(job: &Job, train: &[DayDir], validation: &[DayDir], model: Option<&Path>) -> Vec<String> {
    let days = [list("data.train", train), list("data.validation", validation), "data.test=[]".to_owned()];
    let values = model.map(|folder| {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        format!("data.values={}", toml::Value::String(folder.to_string_lossy().into_owned()))
    });
    job.set.iter().cloned().chain(days).chain(values).collect()
}

/// Loads the configuration of training with these days, at the values of a model if there is one. No days stand for days that are not known
/// yet.
///
/// # Errors
/// A configuration that cannot be read or used.
pub fn load(job: &Job, train: &[DayDir], validation: &[DayDir], model: Option<&Path>) -> anyhow::Result<Settings> {
    // Placeholders suffice because only the other settings are used.
    let unknown = ["data.train=[\"-\"]".to_owned(), "data.validation=[\"-\"]".to_owned()];
    let sets = match train {
        [] => job.set.iter().cloned().chain(unknown).collect(),
        _ => assigned(job, train, validation, model),
    };
    settings::load(&job.config, &sets).with_context(|| "the job's configuration of training")
}

/// Returns the directory in `folder` of a run with these settings: the same night with another configuration is another run, with the same
/// one it is resumed.
pub fn directory(folder: &Path, kind: &str, settings: &str) -> PathBuf {
    folder.join(format!("{kind}-{:08x}", twox_hash::XxHash3_64::oneshot(settings.as_bytes()) as u32))
}

/// Returns whether training in a run directory completed and was reported.
pub fn is_finished(run: &Path) -> bool {
    let text = std::fs::read(run.join("manifest.json")).unwrap_or_default();
    let manifest: Value = serde_json::from_slice(&text).unwrap_or_default();
    manifest::is_finished(&manifest) && run.join("report.json").is_file()
}

/// Trains a policy in the directory `run`, from the parameters of `from` and under `plan` where they are given.
///
/// # Errors
/// As [`execute`].
pub fn policy(
    job: &Job,
    roles: &Roles,
    run: &Path,
    (from, plan): (Option<&Path>, Option<&Path>),
    model: Option<&Path>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut arguments: Vec<OsString> = vec!["train".into(), "--config".into(), job.config.clone().into()];
    for set in assigned(job, &roles.train, &roles.validation, model) {
        arguments.extend(["--set".into(), set.into()]);
    }
    match plan {
        None => {
            discard_lost(run)?;
            arguments.push("--resume=auto".into());
        }
        Some(plan) => {
            // A refresh is short, so a killed one starts again.
            if run.exists() {
                std::fs::remove_dir_all(run).with_context(|| format!("cannot remove {}", run.display()))?;
            }
            arguments.extend(["--plan".into(), plan.into()]);
        }
    }
    if let Some(from) = from {
        arguments.extend(["--from".into(), from.into()]);
    }
    say!("training on {}; progress: admix watch {}", Roles::labels(&roles.train).join(", "), run.display());
    execute("training", arguments, run, interrupt)
}

/// Removes a run that cannot go on, because none of its snapshots can be read or its manifest is lost: the night begins its training anew.
fn discard_lost(run: &Path) -> anyhow::Result<()> {
    let snapshots = run.join("checkpoints");
    let has_some = snapshot::folder::numbers(&snapshots).is_ok_and(|numbers| !numbers.is_empty());
    if has_some && (!run.join("manifest.json").is_file() || snapshot::newest(&snapshots)?.is_none()) {
        tracing::warn!("{} has lost its snapshots or its manifest; training begins anew", run.display());
        std::fs::remove_dir_all(run).with_context(|| format!("cannot remove {}", run.display()))?;
    }
    Ok(())
}

/// Trains a value model in the directory `run`.
///
/// # Errors
/// As [`execute`].
pub fn values(job: &Job, sets: &[String], run: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut arguments: Vec<OsString> =
        vec!["values".into(), "train".into(), "--config".into(), job.values.train.clone().into()];
    for set in sets {
        arguments.extend(["--set".into(), set.into()]);
    }
    arguments.push("--resume=auto".into());
    say!("learning values; progress: admix watch {}", run.display());
    execute("value training", arguments, run, interrupt)
}

/// Runs this program with these arguments and the run directory `run`, and logs what it says beside that directory.
///
/// # Errors
/// A failure of the program; an interrupt.
fn execute(name: &str, mut arguments: Vec<OsString>, run: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    arguments.extend(["--run-dir".into(), run.into()]);
    arguments.extend(["--parent".into(), std::process::id().to_string().into()]);
    let job = jobs::Job { name: name.into(), arguments, log: run.with_extension("log") };
    let mut failure = None;
    // An interrupt is passed on to the run, which saves; the night's own work is cancelled.
    interrupt.supervise();
    let ran = jobs::run(&[job], 1, interrupt, &mut |ended| failure = ended.failure);
    if interrupt.count() > 0 {
        // Still supervised: after a second interrupt there is time to record the night.
        bail!("interrupted");
    }
    interrupt.leave();
    ran?;
    failure.map_or(Ok(()), |why| bail!("{name} failed: {why}"))
}
