//! What the main processes of a job's nodes agree on: what they run, and the snapshot that they go on from.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::nodes::{Job, Node};
use crate::run::RunDirectory;
use crate::settings::{Checkpoint, SettingsError};
use crate::shm::MAX_RANKS;

use super::resume::Refused;

/// Checks what holds for every kind of run on several nodes, where there are several.
///
/// # Errors
/// Too many ranks, `local` on each node by the configuration key `ranks`; too few snapshots.
pub fn check(node: Node, (ranks, local): (&str, usize), checkpoint: &Checkpoint) -> Result<(), SettingsError> {
    let bad = |key: &str, why: String| Err(SettingsError::Value { key: key.into(), why });
    if node.is_alone() {
        return Ok(());
    }
    if node.world(local).ranks > MAX_RANKS {
        return bad(ranks, format!("is {local} on each of {} nodes; a job has {MAX_RANKS} ranks at most", node.of));
    }
    if checkpoint.every_s > 0.0 && checkpoint.keep < 2 {
        return bad(
            "checkpoint.keep",
            "must be at least 2 on several nodes: one may be a snapshot behind the others".into(),
        );
    }
    Ok(())
}

/// What the nodes of a job must have in common.
pub struct Common<'a> {
    /// The resolved configuration.
    pub configuration: String,
    /// Hashes of the logs.
    pub inputs: &'a BTreeMap<PathBuf, String>,
    /// The key of what else the run reads, with its digest where this node can read it.
    pub source: (&'a str, Option<u64>),
}

/// What a node says of its run before it begins.
#[derive(Serialize, Deserialize)]
struct Standing {
    version: String,
    configuration: u64,
    inputs: BTreeMap<PathBuf, String>,
    source: (String, Option<u64>),
    folder: PathBuf,
    /// The name of the run that its directory is of.
    run: Option<String>,
}

/// Checks that all nodes run the same: configuration, logs, and the run itself, to which node 0 gives a name that no other run has.
/// Returns whether this node was part of the run before this start.
///
/// # Errors
/// [`Refused`], with the nodes that differ from the first.
pub fn agree_on_run(job: &Job, directory: &RunDirectory, common: &Common<'_>) -> anyhow::Result<bool> {
    if job.node().is_alone() {
        return Ok(true);
    }
    let before = match std::fs::read_to_string(directory.job()) {
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        name => Some(name.with_context(|| format!("cannot read {}", directory.job().display()))?),
    };
    let mut run = before.clone();
    if job.node().is_first() && run.is_none() {
        let name = format!("{:016x}", RandomState::new().build_hasher().finish());
        directory.replace(&directory.job(), name.as_bytes())?;
        run = Some(name);
    }
    let all = job.tell(&Standing {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        configuration: XxHash3_64::oneshot(common.configuration.as_bytes()),
        inputs: common.inputs.clone(),
        source: (common.source.0.to_owned(), common.source.1),
        folder: directory.root().to_owned(),
        run,
    })?;
    if let Some(why) = differs(&all) {
        return Err(Refused { root: directory.root().to_owned(), why }.into());
    }
    if before.is_none()
        && let Some(name) = all[0].run.as_ref().filter(|_| !job.node().is_first())
    {
        directory.replace(&directory.job(), name.as_bytes())?;
    }
    Ok(before.is_some())
}

/// Why nodes that say this cannot run together, if they cannot.
fn differs(all: &[Standing]) -> Option<String> {
    let others = |differs: &dyn Fn(&Standing) -> bool| {
        let others = all.iter().enumerate().filter(|(_, of)| differs(of));
        Some(others.map(|(node, _)| node.to_string()).collect::<Vec<_>>().join(", ")).filter(|nodes| !nodes.is_empty())
    };
    let first = &all[0];
    for (what, differs) in [
        ("version of admix", &(|of: &Standing| of.version != first.version) as &dyn Fn(&Standing) -> bool),
        ("configuration", &|of: &Standing| of.configuration != first.configuration),
        ("log", &|of: &Standing| of.inputs != first.inputs),
        (&first.source.0, &|of: &Standing| {
            of.source.1.is_some() && first.source.1.is_some() && of.source != first.source
        }),
    ] {
        if let Some(nodes) = others(differs) {
            return Some(format!("node 0 has another {what} than node {nodes}"));
        }
    }
    let (node, of) = all.iter().enumerate().find(|(_, of)| of.run.is_some() && of.run != first.run)?;
    Some(format!(
        "node {node} has the files of another run in {}: remove that folder, or name another --run-dir",
        of.folder.display()
    ))
}

/// What a node has of snapshots.
#[derive(Clone, Serialize, Deserialize)]
struct Has {
    /// 0 for none.
    number: u64,
    /// Digest of the parameters, which are the same on all nodes.
    state: u64,
    folder: String,
    /// It was part of the run before this start.
    known: bool,
}

/// A snapshot on the disk of a node.
pub trait OnDisk: Sized {
    /// What a node without any has lost, and what can be done.
    const LOST: &'static str;

    /// Finds the newest whole one of a run that has no higher number than `most`.
    ///
    /// # Errors
    /// A folder that cannot be read.
    fn newest_until(directory: &RunDirectory, most: u64) -> anyhow::Result<Option<Self>>;

    fn number(&self) -> u64;

    /// Returns the updates and a digest of the parameters, which are the same on all nodes.
    fn digest(&self) -> u64;
}

/// The newest snapshot that is whole on all nodes; those of each node lie in its own run directory. `None` where nothing was saved yet.
/// `known` says whether this node was part of the run before.
///
/// # Errors
/// [`Refused`], with the nodes whose snapshots are missing.
pub fn newest_of_all<S: OnDisk>(job: &Job, directory: &RunDirectory, known: bool) -> anyhow::Result<Option<S>> {
    let refused = |why: String| Refused { root: directory.root().to_owned(), why };
    let mut most = u64::MAX;
    let mut newest: Option<Vec<Has>> = None;
    loop {
        let mine = S::newest_until(directory, most)?;
        let all: Vec<Has> = job.tell(&Has {
            number: mine.as_ref().map_or(0, S::number),
            state: mine.as_ref().map_or(0, S::digest),
            folder: directory.checkpoints().display().to_string(),
            known,
        })?;
        let newest = newest.get_or_insert_with(|| all.clone());
        let least = all.iter().map(|of| of.number).min().unwrap_or(0);
        if all.iter().any(|of| of.number != least) {
            most = least;
            continue;
        }
        if let Some((node, of)) = all.iter().enumerate().find(|(_, of)| of.state != all[0].state) {
            let why =
                format!("snapshot {least} of node {node} ({}) is not that of node 0, but another run's", of.folder);
            return Err(refused(why).into());
        }
        return match lacking(newest, least, S::LOST) {
            Err(why) => Err(refused(why).into()),
            Ok(lacking) => {
                if let Some(lacking) = lacking.filter(|_| job.node().is_first()) {
                    tracing::warn!("{lacking}: all go on from snapshot {least}");
                }
                Ok(mine)
            }
        };
    }
}

/// Says which nodes lack the newest snapshot that one of them has, where all go on from snapshot `least`.
///
/// # Errors
/// A node that has no snapshot and must have `lost` what it had. A job may end before all have saved for the first time; but then a node
/// without a snapshot was part of the run, and the others have their first.
fn lacking(all: &[Has], least: u64, lost: &str) -> Result<Option<String>, String> {
    let newest = all.iter().map(|of| of.number).max().unwrap_or(0);
    let behind: Vec<_> = all.iter().enumerate().filter(|(_, of)| of.number < newest).collect();
    let named: Vec<String> = behind.iter().map(|(node, of)| format!("node {node} ({})", of.folder)).collect();
    let named = named.join(", ");
    if newest > 1 && least == 0 || behind.iter().any(|(_, of)| of.number == 0 && !of.known) {
        return Err(format!("snapshot {newest} is not whole: {named} has lost {lost}"));
    }
    Ok((least < newest).then(|| format!("snapshot {newest} is not whole, {named} lacks it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn has(number: u64, known: bool) -> Has {
        Has { number, state: 7, folder: "checkpoints".into(), known }
    }

    /// A full disk leaves a node any number of snapshots behind; one without any has lost them, unless nobody has saved twice.
    #[test]
    fn a_node_that_lost_its_rows_is_told_from_one_that_had_none_yet() {
        let lacking_rows = |all: &[Has], least| lacking(all, least, "its rows");
        assert_eq!(lacking_rows(&[has(3, true), has(3, true)], 3), Ok(None));
        assert!(lacking_rows(&[has(9, true), has(4, true)], 4).unwrap().unwrap().contains("node 1"));
        assert!(lacking_rows(&[has(1, true), has(0, true)], 0).unwrap().unwrap().contains("node 1"));
        assert!(lacking_rows(&[has(1, true), has(0, false)], 0).unwrap_err().contains("node 1"));
        assert!(lacking_rows(&[has(0, false), has(2, true)], 0).unwrap_err().contains("node 0"));
        assert!(lacking_rows(&[has(2, true), has(0, true)], 0).unwrap_err().contains("lost its rows"));
        assert_eq!(lacking_rows(&[has(0, false), has(0, false)], 0), Ok(None));
    }

    #[test]
    fn nodes_of_different_runs_are_named() {
        let of = |run: Option<&str>, from| Standing {
            version: "1".into(),
            configuration: 1,
            inputs: BTreeMap::new(),
            source: ("values.from".into(), from),
            folder: "run/node-1".into(),
            run: run.map(String::from),
        };
        assert_eq!(differs(&[of(Some("a"), Some(1)), of(None, Some(1)), of(Some("a"), None)]), None);
        assert!(differs(&[of(Some("a"), None), of(None, None), of(Some("b"), None)]).unwrap().contains("node 2"));
        assert!(differs(&[of(Some("a"), Some(1)), of(None, Some(2))]).unwrap().contains("values.from than node 1"));
    }
}
