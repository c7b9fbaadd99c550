//! Decides whether a run may be resumed with the present configuration, data and program, and from which snapshot.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use crate::files;
use crate::nodes::Node;
use crate::policy::file::PolicyFile;
use crate::run::RunDirectory;
use crate::run::context::Context;
use crate::run::snapshot::{self, Snapshot};
use crate::settings::Settings;

use super::manifest;

/// Key prefixes that may differ: they determine when a run ends, how it is watched and how much memory it may take, but not its
/// results.
const MAY_DIFFER: [&str; 5] = ["budget.", "stop.", "checkpoint.", "watchdog.", "data.memory_mb"];

/// Free runs may also go on with another number of ranks: all have the same networks, and their pools are dealt anew.
const MAY_DIFFER_IN_FREE_RUNS: &str = "learner.ranks";
/// Why lock-step runs may not.
const SAME_RANKS: &str = " (in lock-step, another number of ranks would draw other batches)";

/// The run that is to be resumed.
#[derive(Debug)]
pub struct Earlier {
    pub context: Context,
    manifest: serde_json::Value,
    seconds: f64,
}

/// A run that cannot be resumed as requested.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", root.display())]
pub struct Refused {
    pub root: PathBuf,
    pub why: String,
}

impl Earlier {
    /// Examines the run in a directory, which is to go on on this `node`; `None` where there is none yet.
    ///
    /// # Errors
    /// A run of another program, configuration or data ([`Refused`]), or one that cannot be read.
    pub fn find(directory: &RunDirectory, settings: &Settings, mode: &str, node: Node) -> anyhow::Result<Option<Self>> {
        let refused = |why: String| Refused { root: directory.root().to_owned(), why };
        let text = match files::read(&directory.manifest(), files::MOST) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", directory.manifest().display()))?,
        };
        let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        check_version(directory, &manifest)?;
        if manifest["mode"] != mode {
            let [was, is] = [manifest["mode"].as_str().unwrap_or("unknown"), mode].map(kind);
            let why = format!("it is {was}, not {is}: go on the same way, or start a new run in another --run-dir");
            return Err(refused(why).into());
        }
        let mut context = Context::load(directory)?;
        let differing = differences(&context.settings, settings);
        if !differing.is_empty() {
            let why = format!(
                "the run has another configuration: {}. Set these back, or start a new run in another --run-dir",
                differing.join("; ")
            );
            return Err(refused(why).into());
        }
        let (before, now) = (context.node.of, node.of);
        if before != now {
            return Err(refused(format!(
                "the run has {before} nodes, and there are {now} now: go on with as many, or start a new run in another --run-dir"
            ))
            .into());
        }
        context.settings = settings.clone();
        if let Some(dir) = context.changed_log()? {
            let why = format!(
                "the log {} has changed since the run began: put it back, or start a new run in another --run-dir",
                dir.display()
            );
            return Err(refused(why).into());
        }
        let seconds = manifest::seconds_before(&manifest, &directory.metrics());
        Ok(Some(Self { context, manifest, seconds }))
    }

    /// Returns the times at which the run was started and resumed, for its manifest.
    pub fn starts(&self) -> Vec<String> {
        manifest::starts(&self.manifest)
    }

    /// Returns the seconds that its sessions took, for its manifest; 0 once it is settled that the run begins again.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }
}

/// Checks that a run was begun by this version of the program: another one may read what it wrote differently, be it only its plan.
///
/// # Errors
/// [`Refused`]: another version, or a manifest that does not say which.
pub fn check_version(directory: &RunDirectory, manifest: &serde_json::Value) -> Result<(), Refused> {
    let version = env!("CARGO_PKG_VERSION");
    let why = match manifest["admix"].as_str() {
        Some(then) if then == version => return Ok(()),
        Some(then) => format!(
            "the run was made by admix {then}, this is {version}: go on with that one, or start a new run in another \
             --run-dir"
        ),
        None => {
            "its manifest.json is malformed; put it back from a copy, or start a new run in another --run-dir".into()
        }
    };
    Err(Refused { root: directory.root().to_owned(), why })
}

/// Says what a run of a mode is.
fn kind(mode: &str) -> String {
    match mode {
        "values" => "a run of `admix values train`".to_owned(),
        "parallel" => "a run of several processes".to_owned(),
        "lock-step" => "a run in lock-step (--deterministic)".to_owned(),
        "serial" => "a run in one process (--serial)".to_owned(),
        other => format!("a run of mode \"{other}\""),
    }
}

/// Returns the keys in which two configurations differ, with both values, except those that may.
fn differences(then: &Settings, now: &Settings) -> Vec<String> {
    let table =
        |settings: &Settings| -> Table { toml::from_str(&settings.to_toml()).expect("a resolved configuration") };
    let mut differing = Vec::new();
    compare(&table(then), &table(now), "", &mut differing);
    if !now.run.deterministic {
        differing.retain(|(key, _)| key != MAY_DIFFER_IN_FREE_RUNS);
    }
    let told = |(key, what): (String, String)| {
        let why = if key == MAY_DIFFER_IN_FREE_RUNS { SAME_RANKS } else { "" };
        format!("{key} {what}{why}")
    };
    differing.into_iter().map(told).collect()
}

fn compare(then: &Table, now: &Table, prefix: &str, differing: &mut Vec<(String, String)>) {
    for (key, value) in now {
        let path = format!("{prefix}{key}");
        if MAY_DIFFER.iter().any(|free| path.starts_with(free)) {
            continue;
        }
        match (then.get(key), value) {
            (Some(Value::Table(then)), Value::Table(now)) => compare(then, now, &format!("{path}."), differing),
            (Some(then), now) if then == now => {}
            (then, now) => {
                let then = then.map_or_else(|| "unset".to_owned(), Value::to_string);
                differing.push((path, format!("was {then}, is {now}")));
            }
        }
    }
}

/// Action of a start with `--resume`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Resume from the newest snapshot, which must exist.
    Must,
    /// Resume if there is a run with a snapshot; begin where there is no run, or where it ended before its first snapshot.
    Auto,
    /// Begin the run in this directory again, whatever snapshots there are.
    Restart,
}

/// Opens the run directory for a start with `--resume`.
///
/// # Errors
/// No run to resume where there must be one; a directory in use.
pub fn open(root: &Path, how: Resume) -> anyhow::Result<RunDirectory> {
    if how != Resume::Auto && !root.join("manifest.json").is_file() {
        bail!(Refused {
            root: root.to_owned(),
            why: "there is no run to go on with, for it has no manifest.json: name the run's --run-dir, or use --resume=auto to start one there"
                .into()
        });
    }
    RunDirectory::lock(root)
}

impl Earlier {
    /// Determines where the run resumes and returns that in words. If the run is to be started over, moves its snapshots aside. In lock-step
    /// the best policy goes with them before a run begins anew.
    ///
    /// # Errors
    /// [`Refused`]: no snapshot can be read, and the run was not allowed to begin again.
    pub fn settle(&mut self, directory: &RunDirectory, how: Resume) -> anyhow::Result<String> {
        // Its best policy is a function of the configuration: one that was found before is none to beat, and is replaced.
        let lock_step = self.context.settings.run.deterministic;
        if how == Resume::Restart {
            // First: a run of which `auto` finds neither an outcome nor a snapshot is one that has just begun.
            self.manifest["outcome"] = serde_json::Value::Null;
            directory.replace(&directory.manifest(), &serde_json::to_vec_pretty(&self.manifest)?)?;
            self.seconds = 0.0;
            let aside = set_aside(directory)?;
            if lock_step {
                remove_best(directory)?;
            }
            let best =
                if lock_step { "this run chooses its own best" } else { "the best so far stays the one to beat" };
            return Ok(format!(
                "starting the run over; its earlier snapshots and policies are in {}, and {best}",
                aside.display()
            ));
        }
        let root = directory.checkpoints();
        if let Some(snapshot) = snapshot::newest(&root)? {
            return Ok(format!(
                "going on with the run that was begun here, from snapshot {} at update {}",
                snapshot.number, snapshot.state.updates
            ));
        }
        let damaged = snapshot::folder::numbers(&root)?.len();
        let had_some = self.manifest["outcome"]["checkpoints"]["snapshots"].as_u64() > Some(0);
        if how == Resume::Auto && damaged == 0 && !had_some && !directory.last().exists() {
            self.seconds = 0.0;
            let best = match (lock_step, directory.best().is_file()) {
                (false, _) => ", with the best policy so far as the one to beat".to_owned(),
                (true, true) => {
                    let aside = set_aside(directory)?;
                    remove_best(directory)?;
                    format!("; its best policy is in {}", aside.display())
                }
                (true, false) => String::new(),
            };
            return Ok(format!("the run that was begun here ended before its first snapshot; beginning again{best}"));
        }
        let why = match damaged {
            0 => "there is no snapshot to go on from".to_owned(),
            n => format!("none of its {n} snapshots in {} can be read", root.display()),
        };
        let best = if lock_step { "sets its best policy aside" } else { "keeps its best policy as the one to beat" };
        let why = format!("{why}. Put one back from a copy, or start the run over with --resume=restart, which {best}");
        Err(Refused { root: directory.root().to_owned(), why }.into())
    }
}

/// Moves the snapshots and the last policy of a run, and copies its best policy, to a separate folder in the run directory.
pub fn set_aside(directory: &RunDirectory) -> anyhow::Result<PathBuf> {
    let failed = || format!("cannot set aside the snapshots in {}", directory.root().display());
    let free = (1..).map(|n| directory.root().join(format!("set-aside-{n}"))).find(|folder| !folder.exists());
    let folder = free.expect("there are more names than folders");
    std::fs::create_dir(&folder).with_context(failed)?;
    if directory.last().is_file() {
        // Before the snapshots: `auto` does not begin again where there are last parameters without a snapshot.
        std::fs::rename(directory.last(), folder.join("last.safetensors")).with_context(failed)?;
    }
    std::fs::rename(directory.checkpoints(), folder.join("checkpoints")).with_context(failed)?;
    std::fs::create_dir(directory.checkpoints()).with_context(failed)?;
    if directory.best().is_file() {
        std::fs::copy(directory.best(), folder.join("best.safetensors")).with_context(failed)?;
    }
    Ok(folder)
}

/// Removes the best policy of a run that was set aside: until the run has one of its own, it has none.
fn remove_best(directory: &RunDirectory) -> anyhow::Result<()> {
    match std::fs::remove_file(directory.best()) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", directory.best().display()))
        }
        _ => Ok(()),
    }
}

/// Restores the best policy from a snapshot's copy if it is missing or damaged.
///
/// # Errors
/// A run directory that cannot be written.
pub fn restore_best(directory: &RunDirectory, snapshot: &Snapshot) -> anyhow::Result<()> {
    let Some(copy) = snapshot.best() else { return Ok(()) };
    if let Err(e) = PolicyFile::read(&directory.best()) {
        tracing::warn!("{e:#}; it is put back from snapshot {}", snapshot.number);
        directory.replace(&directory.best(), &files::read(&copy, files::MOST)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_keys_are_named_with_both_values_and_those_that_may_differ_are_not() {
        let then = Settings::default();
        let mut now = then.clone();
        now.budget.max_updates = 7;
        now.checkpoint.every_s = 1.0;
        now.learner.ranks = 2;
        assert_eq!(differences(&then, &now), Vec::<String>::new());
        now.run.deterministic = true;
        let mut lock_step = then.clone();
        lock_step.run.deterministic = true;
        let differing = differences(&lock_step, &now);
        assert!(differing.len() == 1 && differing[0].starts_with("learner.ranks was 1, is 2 (in"), "{differing:?}");
        (now.run.deterministic, now.learner.ranks) = (false, 1);
        now.learner.batch = 64;
        now.policy.replan = false;
        now.data.train = vec!["a".into()];
        let mut differing = differences(&then, &now);
        differing.sort();
        assert_eq!(
            differing,
            ["data.train was [], is [\"a\"]", "learner.batch was 512, is 64", "policy.replan was true, is false"]
        );
    }
}
