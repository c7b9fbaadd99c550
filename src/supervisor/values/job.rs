//! What the main processes of a job's nodes agree on: what they run, and the snapshot that they go on from.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::nodes::{Job, MOST_BYTES, Node};
use crate::run::value_run::{Prepared, exchange_bytes};
use crate::run::value_snapshot::ValueSnapshot;
use crate::run::{RunDirectory, beginning};
use crate::settings::{Configuration as _, RankSync, SettingsError, ValueSettings};
use crate::shm::MAX_RANKS;
use crate::supervisor::resume::Refused;
use crate::values::Fields;

/// Checks that a configuration can run on several nodes, where there are several.
///
/// # Errors
/// A key whose value is for one machine alone.
pub fn check_job(settings: &ValueSettings, fields: &Fields, node: Node) -> Result<(), SettingsError> {
    let bad = |key: &str, why: String| Err(SettingsError::Value { key: key.into(), why });
    if node.is_alone() {
        return Ok(());
    }
    let v = &settings.values;
    let ranks = node.world(v.ranks).ranks;
    if ranks > MAX_RANKS {
        return bad(
            "values.ranks",
            format!("is {} on each of {} nodes; a job has {MAX_RANKS} ranks at most", v.ranks, node.of),
        );
    }
    if settings.ranks.sync == RankSync::Overlap {
        return bad("ranks.sync", "= \"overlap\" is for one machine; several nodes train with \"step\"".into());
    }
    if settings.checkpoint.every_s > 0.0 && settings.checkpoint.keep < 2 {
        return bad(
            "checkpoint.keep",
            "must be at least 2 on several nodes: one may be a snapshot behind the others".into(),
        );
    }
    let bytes = exchange_bytes(settings, fields, node.world(v.ranks));
    if bytes > MOST_BYTES {
        let why = format!(
            "is {}; the {ranks} ranks may exchange {bytes} bytes at once, and MPI counts to {MOST_BYTES}: lower it, or values.dim",
            v.batch
        );
        return bad("values.batch", why);
    }
    settings.check_ranks(ranks)
}

/// What a node says of its run before it begins.
#[derive(Serialize, Deserialize)]
struct Standing {
    version: String,
    configuration: u64,
    inputs: BTreeMap<PathBuf, String>,
    /// Digest of `values.from`, where the node can read it.
    from: Option<u64>,
    folder: PathBuf,
    /// The name of the run that its directory is of.
    run: Option<String>,
}

/// Checks that all nodes run the same: configuration, logs, and the run itself, to which node 0 gives a name that no other run has.
/// Returns whether this node was part of the run before this start.
///
/// # Errors
/// [`Refused`], with the nodes that differ from the first.
pub fn agree_on_run(
    job: &Job,
    directory: &RunDirectory,
    settings: &ValueSettings,
    prepared: &Prepared,
) -> anyhow::Result<bool> {
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
        configuration: XxHash3_64::oneshot(settings.to_toml().as_bytes()),
        inputs: prepared.inputs.clone(),
        from: beginning::digest(settings),
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
        ("values.from", &|of: &Standing| of.from.is_some() && first.from.is_some() && of.from != first.from),
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

/// The newest snapshot that is whole on all nodes; those of each node lie in its own run directory. `None` where nothing was saved yet.
/// `known` says whether this node was part of the run before.
///
/// # Errors
/// [`Refused`], with the nodes whose snapshots are missing.
pub fn newest_of_all(job: &Job, directory: &RunDirectory, known: bool) -> anyhow::Result<Option<ValueSnapshot>> {
    let refused = |why: String| Refused { root: directory.root().to_owned(), why };
    let mut most = u64::MAX;
    let mut newest: Option<Vec<Has>> = None;
    loop {
        let mine = ValueSnapshot::newest_until(directory, most)?;
        let all: Vec<Has> = job.tell(&Has {
            number: mine.as_ref().map_or(0, |snapshot| snapshot.number),
            state: mine.as_ref().map_or(0, |snapshot| {
                let state = &snapshot.state;
                XxHash3_64::oneshot_with_seed(state.updates, bytemuck::cast_slice(&state.parameters))
            }),
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
        return match lacking(newest, least) {
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
/// A node that has no snapshot and must have lost its rows. A job may end before all have saved for the first time; but then a node
/// without a snapshot was part of the run, and the others have their first.
fn lacking(all: &[Has], least: u64) -> Result<Option<String>, String> {
    let newest = all.iter().map(|of| of.number).max().unwrap_or(0);
    let behind: Vec<_> = all.iter().enumerate().filter(|(_, of)| of.number < newest).collect();
    let named: Vec<String> = behind.iter().map(|(node, of)| format!("node {node} ({})", of.folder)).collect();
    let named = named.join(", ");
    if newest > 1 && least == 0 || behind.iter().any(|(_, of)| of.number == 0 && !of.known) {
        return Err(format!(
            "snapshot {newest} is not whole: {named} has lost its rows. All nodes hold the same: copy the checkpoints of another node \
             there, or start a new run in another --run-dir"
        ));
    }
    Ok((least < newest).then(|| format!("snapshot {newest} is not whole, {named} lacks it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::WhenFull;

    type Change = fn(&mut ValueSettings);

    /// Keys that several ranks must not have were ignored with one rank on each of several nodes, and with `oldest` all rows were
    /// saved as dropped ones.
    #[test]
    fn several_nodes_refuse_what_several_ranks_refuse() {
        let cases: [(&str, Change); 8] = [
            ("table.admit_after", |s| s.table.admit_after = 2),
            ("table.when_full", |s| s.table.when_full = WhenFull::Oldest),
            ("table.keep_days", |s| s.table.keep_days = 7),
            ("table.cache_rows", |s| s.table.cache_rows = 1 << 16),
            ("table.snapshot_rows", |s| s.table.snapshot_rows = 100_000),
            ("ranks.timeout_s", |s| (s.ranks.timeout_s, s.watchdog.silent_s) = (60.0, 30.0)),
            ("checkpoint.keep", |s| s.checkpoint.keep = 1),
            ("values.batch", |s| (s.values.batch, s.values.dim, s.checkpoint.every_s) = (1 << 20, 256, 0.0)),
        ];
        let mut good = ValueSettings::default();
        good.values.train = vec!["day".into()];
        let two = Node { index: 1, of: 2 };
        let fields = Fields::parse(&good.values.fields).unwrap();
        check_job(&good, &fields, two).unwrap();
        for (key, change) in cases {
            let mut settings = good.clone();
            change(&mut settings);
            check_job(&settings, &fields, Node::default()).unwrap();
            if key != "table.snapshot_rows" {
                settings.validate().unwrap();
            }
            let refused = check_job(&settings, &fields, two).unwrap_err().to_string();
            assert!(refused.contains(key), "{refused}");
        }
    }

    fn has(number: u64, known: bool) -> Has {
        Has { number, state: 7, folder: "checkpoints".into(), known }
    }

    /// A full disk leaves a node any number of snapshots behind; one without any has lost them, unless nobody has saved twice.
    #[test]
    fn a_node_that_lost_its_rows_is_told_from_one_that_had_none_yet() {
        assert_eq!(lacking(&[has(3, true), has(3, true)], 3), Ok(None));
        assert!(lacking(&[has(9, true), has(4, true)], 4).unwrap().unwrap().contains("node 1"));
        assert!(lacking(&[has(1, true), has(0, true)], 0).unwrap().unwrap().contains("node 1"));
        assert!(lacking(&[has(1, true), has(0, false)], 0).unwrap_err().contains("node 1"));
        assert!(lacking(&[has(0, false), has(2, true)], 0).unwrap_err().contains("node 0"));
        assert!(lacking(&[has(2, true), has(0, true)], 0).unwrap_err().contains("lost its rows"));
        assert_eq!(lacking(&[has(0, false), has(0, false)], 0), Ok(None));
    }

    #[test]
    fn nodes_of_different_runs_are_named() {
        let of = |run: Option<&str>, from| Standing {
            version: "1".into(),
            configuration: 1,
            inputs: BTreeMap::new(),
            from,
            folder: "run/node-1".into(),
            run: run.map(String::from),
        };
        assert_eq!(differs(&[of(Some("a"), Some(1)), of(None, Some(1)), of(Some("a"), None)]), None);
        assert!(differs(&[of(Some("a"), None), of(None, None), of(Some("b"), None)]).unwrap().contains("node 2"));
        assert!(differs(&[of(Some("a"), Some(1)), of(None, Some(2))]).unwrap().contains("values.from than node 1"));
    }
}
