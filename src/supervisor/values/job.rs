//! What the main processes of a job's nodes agree on: what they run, and the snapshot that they go on from.

use anyhow::ensure;

use crate::nodes::{Job, Node};
use crate::run::RunDirectory;
use crate::run::value_run::Prepared;
use crate::run::value_snapshot::ValueSnapshot;
use crate::settings::{Configuration as _, RankSync, SettingsError, ValueSettings};
use crate::shm::MAX_RANKS;
use crate::supervisor::resume::Refused;

/// Checks that a configuration can run on several nodes, where there are several.
///
/// # Errors
/// A key whose value is for one machine alone.
pub fn check_job(settings: &ValueSettings, node: Node) -> Result<(), SettingsError> {
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
    settings.check_ranks(ranks)
}

/// Checks that all nodes run the same: configuration and logs.
///
/// # Errors
/// [`Refused`], with the nodes that differ from the first.
pub fn agree_on_run(
    job: &Job,
    directory: &RunDirectory,
    settings: &ValueSettings,
    prepared: &Prepared,
) -> anyhow::Result<()> {
    let config = twox_hash::XxHash3_64::oneshot(settings.to_toml().as_bytes());
    let all = job.tell(&(env!("CARGO_PKG_VERSION").to_owned(), config, prepared.inputs.clone()))?;
    for (what, differs) in [
        ("version of admix", &(|i: usize| all[i].0 != all[0].0) as &dyn Fn(usize) -> bool),
        ("configuration", &|i: usize| all[i].1 != all[0].1),
        ("log", &|i: usize| all[i].2 != all[0].2),
    ] {
        let others: Vec<String> = (0..all.len()).filter(|i| differs(*i)).map(|i| i.to_string()).collect();
        if !others.is_empty() {
            let why = format!("node 0 has another {what} than node {}", others.join(", "));
            return Err(Refused { root: directory.root().to_owned(), why }.into());
        }
    }
    Ok(())
}

/// The newest snapshot that is whole on all nodes; those of each node lie in its own run directory. `None` where nothing was saved yet.
///
/// # Errors
/// [`Refused`], with the nodes whose snapshots are missing.
pub fn newest_of_all(job: &Job, directory: &RunDirectory) -> anyhow::Result<Option<ValueSnapshot>> {
    let mut most = u64::MAX;
    let mut behind = String::new();
    let mut newest = 0;
    loop {
        let mine = ValueSnapshot::newest_until(directory, most)?;
        let number = |snapshot: &Option<ValueSnapshot>| snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
        let all: Vec<(u64, String)> = job.tell(&(number(&mine), directory.checkpoints().display().to_string()))?;
        let greatest = all.iter().map(|(number, _)| *number).max().unwrap_or(0);
        let least = all.iter().map(|(number, _)| *number).min().unwrap_or(0);
        if newest == 0 {
            newest = greatest;
            let lack = all.iter().enumerate().filter(|(_, (number, _))| *number < greatest);
            let named = lack.map(|(node, (_, folder))| format!("node {node} ({folder})"));
            behind = named.collect::<Vec<_>>().join(", ");
        }
        if least == greatest {
            // A node without any has lost its rows, unless the job ended before it had saved for the first time.
            ensure!(
                least > 0 || newest <= 1,
                Refused {
                    root: directory.root().to_owned(),
                    why: format!(
                        "snapshot {newest} is not whole: {behind} has lost its rows. All nodes hold the same: copy the checkpoints of \
                         another node there, or start a new run in another --run-dir"
                    )
                }
            );
            if least < newest && job.node().is_first() {
                tracing::warn!("snapshot {newest} is not whole, {behind} lacks it: all go on from snapshot {least}");
            }
            return Ok(mine);
        }
        most = least;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::WhenFull;

    /// Keys that several ranks must not have were ignored with one rank on each of several nodes, and with `oldest` all rows were
    /// saved as dropped ones.
    #[test]
    fn several_nodes_refuse_what_several_ranks_refuse() {
        let cases: [(&str, fn(&mut ValueSettings)); 7] = [
            ("table.admit_after", |s| s.table.admit_after = 2),
            ("table.when_full", |s| s.table.when_full = WhenFull::Oldest),
            ("table.keep_days", |s| s.table.keep_days = 7),
            ("table.cache_rows", |s| s.table.cache_rows = 1 << 16),
            ("table.snapshot_rows", |s| s.table.snapshot_rows = 100_000),
            ("ranks.timeout_s", |s| (s.ranks.timeout_s, s.watchdog.silent_s) = (60.0, 30.0)),
            ("checkpoint.keep", |s| s.checkpoint.keep = 1),
        ];
        let mut good = ValueSettings::default();
        good.values.train = vec!["day".into()];
        let two = Node { index: 1, of: 2 };
        check_job(&good, two).unwrap();
        for (key, change) in cases {
            let mut settings = good.clone();
            change(&mut settings);
            check_job(&settings, Node::default()).unwrap();
            if key != "table.snapshot_rows" {
                settings.validate().unwrap();
            }
            let refused = check_job(&settings, two).unwrap_err().to_string();
            assert!(refused.contains(key), "{refused}");
        }
    }
}
