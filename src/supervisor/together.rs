//! What a training of a policy does together with the other nodes of its job; with one node each of these does nothing.
//!
//! The first node plans, and hands what it has found to the others. All go on from the same snapshot, of which each has a part of its own,
//! end for the same reason, and add up their results.

use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::nodes::{Job, Node};
use crate::run::RunDirectory;
use crate::run::context::Context;
use crate::run::snapshot::{Snapshot, folder};
use crate::settings::{Settings, SettingsError};
use crate::shm::Ledger;

use super::job::{self, OnDisk};
use super::resume::Refused;
use super::{ExitReason, Outcome};

/// Checks that a configuration can train a policy on several nodes, where there are several.
///
/// # Errors
/// A key whose value is for one node, or cannot be dealt to the ranks of all.
pub fn check_job(settings: &Settings, node: Node) -> Result<(), SettingsError> {
    if node.is_alone() {
        return Ok(());
    }
    if settings.run.device != "cpu" {
        let why = format!("is \"{}\"; several nodes learn on the CPU alone: --device cpu", settings.run.device);
        return Err(SettingsError::Value { key: "run.device".into(), why });
    }
    job::check(node, ("learner.ranks", settings.learner.ranks), &settings.checkpoint)?;
    settings.learner.check_ranks(node.of)
}

/// Hands plan, inputs and start of the run from the first node, where they are `stored` in its directory, to the others. All nodes call it.
/// Returns the context of this one.
///
/// # Errors
/// A log of this node that is not that of the first one ([`Refused`]); a directory that cannot be written.
pub fn hand_over(
    job: &Job,
    directory: &RunDirectory,
    settings: &Settings,
    stored: Option<Context>,
) -> anyhow::Result<Context> {
    let node = job.node();
    let files = [directory.plan(), directory.spec(), directory.inputs(), directory.start()];
    let config = bincode::config::standard();
    let mut mine = vec![];
    if stored.is_some() && !node.is_alone() {
        let contents = files.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
        mine = bincode::serde::encode_to_vec(contents, config)?;
    }
    let all = job.tell_bytes(mine)?;
    if let Some(context) = stored {
        return Ok(context);
    }
    let (contents, _): (Vec<Vec<u8>>, usize) = bincode::serde::decode_from_slice(&all[0], config)?;
    for (path, content) in files.iter().zip(contents) {
        directory.replace(path, &content)?;
    }
    directory.replace(&directory.config(), settings.to_toml().as_bytes())?;
    directory.replace(&directory.node(), &serde_json::to_vec(&node)?)?;
    let context = Context::load(directory)?;
    if let Some(dir) = context.changed_log()? {
        let why = format!("the log {} of node {} is not that of node 0", dir.display(), node.index);
        return Err(Refused { root: directory.root().to_owned(), why }.into());
    }
    Ok(context)
}

impl OnDisk for Snapshot {
    const LOST: &'static str = "its snapshots. Put them back from a copy, or start the run over with --resume=restart";

    fn newest_until(directory: &RunDirectory, most: u64) -> anyhow::Result<Option<Self>> {
        folder::newest_until(&directory.checkpoints(), most)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn digest(&self) -> u64 {
        let mut hasher = XxHash3_64::with_seed(self.state.updates);
        let trainer = &self.state.trainer;
        [&trainer.actor, &trainer.critic].into_iter().for_each(|weights| hasher.write(bytemuck::cast_slice(weights)));
        hasher.finish()
    }
}

/// Finds the newest snapshot that is whole on all nodes, and removes what is behind it where there are several.
///
/// # Errors
/// [`Refused`], with the nodes whose snapshots are missing or another node's.
pub fn newest(job: &Job, directory: &RunDirectory, known: bool) -> anyhow::Result<Option<Snapshot>> {
    let newest: Option<Snapshot> = job::newest_of_all(job, directory, known)?;
    let node = job.node();
    if node.is_alone() {
        return Ok(newest);
    }
    let root = directory.checkpoints();
    // Each node has pools and random streams of its own.
    if newest.as_ref().is_some_and(|of| of.state.rng.rank() != node.first_of(of.ranks.len() + 1)) {
        let why = format!("the snapshots in {} are of another node: put its own back", root.display());
        return Err(Refused { root: directory.root().to_owned(), why }.into());
    }
    folder::remove_behind(&root, newest.as_ref().map_or(0, |of| of.number))?;
    Ok(newest)
}

/// Returns why the run of all nodes ends: one was interrupted, or what the first one says, which alone sees convergence.
///
/// # Errors
/// A lost node.
pub fn reason(job: &Job, mine: ExitReason) -> anyhow::Result<ExitReason> {
    let all = job.tell(&mine)?;
    Ok(if all.contains(&ExitReason::Interrupted) { ExitReason::Interrupted } else { all[0] })
}

/// What a node adds to the results of a job.
#[derive(Serialize, Deserialize)]
struct Part {
    ledger: Ledger,
    rolled_back: u64,
    actor_restarts: u32,
    other_restarts: u32,
}

/// Returns the results of all nodes; figures of the learner, which are the same on all, and of the evaluator are those of this one.
///
/// # Errors
/// A lost node.
pub fn outcome(job: &Job, mine: Outcome) -> anyhow::Result<Outcome> {
    let Outcome { ledger, rolled_back, actor_restarts, other_restarts, .. } = mine;
    let all = job.tell(&Part { ledger: ledger.unwrap_or_default(), rolled_back, actor_restarts, other_restarts })?;
    Ok(Outcome {
        ledger: Some(Ledger::sum(all.iter().map(|of| of.ledger))),
        rolled_back: all.iter().map(|of| of.rolled_back).sum(),
        actor_restarts: all.iter().map(|of| of.actor_restarts).sum(),
        other_restarts: all.iter().map(|of| of.other_restarts).sum(),
        ..mine
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Settings);

    /// Batch and pool were dealt to the ranks of one node alone.
    #[test]
    fn several_nodes_refuse_what_cannot_be_dealt_to_the_ranks_of_all() {
        let mut good = Settings::default();
        good.run.device = "cpu".into();
        let two = Node { index: 1, of: 2 };
        check_job(&good, two).unwrap();
        let cases: [(&str, Change); 5] = [
            ("run.device", |s| s.run.device = "cuda:1".into()),
            ("learner.batch", |s| s.learner.batch = 3 * s.learner.segment),
            ("learner.pool", |s| s.learner.pool = 4001),
            ("checkpoint.keep", |s| s.checkpoint.keep = 1),
            ("learner.ranks", |s| s.learner.ranks = 64),
        ];
        for (key, change) in cases {
            let mut settings = good.clone();
            change(&mut settings);
            check_job(&settings, Node::default()).unwrap();
            let refused = check_job(&settings, two).unwrap_err().to_string();
            assert!(refused.contains(&format!("`{key}`")), "{refused}");
        }
    }

    #[test]
    fn a_rank_has_its_part_of_the_batch_of_all_nodes_and_of_the_threads_of_its_own() {
        let mut settings = Settings::default();
        (settings.learner.ranks, settings.learner.threads) = (2, 6);
        let whole = settings.learner.clone();
        let part = settings.of_rank(Node { index: 1, of: 4 }.world(2).ranks).learner;
        assert_eq!((part.batch * 8, part.pool * 8, part.threads), (whole.batch, whole.pool, 3));
    }
}
