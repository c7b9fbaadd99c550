//! Inputs of training, loaded in the same way by every process of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use twox_hash::XxHash3_128;

use crate::env::{DayModel, Delay, Vocabulary};
use crate::files;
use crate::log::{self, CompileOptions, CompiledLog};
use crate::nodes::{Node, World};
use crate::plan::{Plan, Sample};
use crate::policy::file::PolicyFile;
use crate::policy::{PolicySpec, ReplayOptions};
use crate::settings::Settings;
use crate::shm::MAX_RANKS;
use crate::values::Told;

use super::directory::RunDirectory;

/// Number of requests of the plan's sample from which training episodes compute their prices. There are many episodes; the
/// error of a small sample is one more difference between them.
const EPISODE_SAMPLE: usize = 4000;

/// Settings, plan and policy spec of a run.
#[derive(Debug, Clone)]
pub struct Context {
    pub settings: Settings,
    pub plan: Plan,
    pub spec: Arc<PolicySpec>,
    /// [`inputs_hash`] of each day when the run began.
    pub inputs: BTreeMap<PathBuf, String>,
    /// Actor parameters before the run's first update.
    pub start: Vec<f32>,
    /// The values (logged or corrected) that planning, training and policies see.
    pub told: Told,
    /// The node that this is.
    pub node: Node,
}

impl Context {
    /// Loads the files that main wrote into the run directory.
    pub fn load(directory: &RunDirectory) -> anyhow::Result<Self> {
        let settings = Settings::read_resolved(&directory.config())?;
        let plan = Plan::read(&directory.plan())?;
        let path = directory.spec();
        let text = files::read(&path, files::MOST).with_context(|| format!("cannot read {}", path.display()))?;
        let spec: PolicySpec =
            serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))?;
        spec.check().with_context(|| format!("{} cannot be used", path.display()))?;
        let path = directory.inputs();
        let text = files::read(&path, files::MOST).with_context(|| format!("cannot read {}", path.display()))?;
        let inputs = serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))?;
        let start = PolicyFile::read_actor(&directory.start(), &spec)?;
        let told = Told::of(&settings.data)?;
        let node = read_node(directory)?;
        Ok(Self { settings, plan, spec: Arc::new(spec), inputs, start, told, node })
    }

    /// Writes the files that [`Context::load`] reads.
    pub fn store(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        self.store_settings(directory)?;
        directory.replace(&directory.plan(), &self.plan.to_json())?;
        for (path, text) in [
            (directory.spec(), serde_json::to_vec(&*self.spec)?),
            (directory.inputs(), serde_json::to_vec(&self.inputs)?),
        ] {
            directory.replace(&path, &text)?;
        }
        let (spec, plan, actor) = (self.spec.clone(), self.plan.clone(), self.start.clone());
        PolicyFile { spec, plan, actor, updates: 0 }.write(&directory.start())
    }

    /// Writes only the settings and the node, for a resumed run.
    pub fn store_settings(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        directory.replace(&directory.config(), self.settings.to_toml().as_bytes())?;
        directory.replace(&directory.node(), &serde_json::to_vec(&self.node)?)
    }

    /// Returns the ranks of the learner on all nodes.
    pub fn world(&self) -> World {
        self.node.world(self.settings.learner.ranks)
    }

    /// Returns the first log that is not the one that the run was begun with.
    ///
    /// # Errors
    /// A log that cannot be used.
    pub fn changed_log(&self) -> anyhow::Result<Option<&Path>> {
        let data = &self.settings.data;
        for dirs in [&data.train, &data.validation, &data.test] {
            for (dir, log) in dirs.iter().zip(open_logs(dirs, compile_options(&self.settings), &self.told)?) {
                let now = inputs_hash(dir, &log)?;
                if self.inputs.get(dir).is_some_and(|then| *then != now) {
                    return Ok(Some(dir));
                }
            }
        }
        Ok(None)
    }

    /// Opens log directories as days of this run.
    ///
    /// # Errors
    /// A log that cannot be used, or that has changed since the run began: samples refer to its rows.
    pub fn days(&self, dirs: &[PathBuf]) -> anyhow::Result<Vec<DayModel>> {
        let days = open_days(dirs, compile_options(&self.settings), &self.told, &self.plan, &self.spec.vocabulary)?;
        for (dir, day) in dirs.iter().zip(&days) {
            let now = inputs_hash(dir, &day.log)?;
            anyhow::ensure!(
                self.inputs.get(dir).is_none_or(|then| *then == now),
                "the log {} has changed under the run; put it back, or start a new run",
                dir.display()
            );
        }
        Ok(days)
    }

    /// Opens the training days, each with the sample from which its episodes plan.
    pub fn training_days(&self) -> anyhow::Result<Vec<DayModel>> {
        let mut days = self.days(&self.settings.data.train)?;
        for day in &mut days {
            day.sample = episode_sample(&self.plan, &day.log);
        }
        Ok(days)
    }

    pub fn replay_options(&self) -> ReplayOptions {
        let Settings { policy, env, .. } = &self.settings;
        ReplayOptions { rate_seed: env.rate_seed, delay: Delay::of_policy(policy, env) }
    }
}

/// Reads which node the run in a directory is of: the only one, in directories of earlier versions.
///
/// # Errors
/// A file that is malformed.
pub fn read_node(directory: &RunDirectory) -> anyhow::Result<Node> {
    let path = directory.node();
    let text = match files::read(&path, files::MOST) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Node::default()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let node = serde_json::from_slice(&text).ok().filter(|node: &Node| node.index < node.of && node.of <= MAX_RANKS);
    node.with_context(|| format!("{} is malformed", path.display()))
}

/// Hashes the inputs of a day: the files that its log was compiled from, and its forecast.
///
/// # Errors
/// A forecast that cannot be read.
pub fn inputs_hash(dir: &Path, log: &CompiledLog) -> Result<String, log::LogError> {
    let mut hasher = XxHash3_128::new();
    hasher.write(&log.inputs().to_le_bytes());
    if let Some(inventory) = log::table::find(dir, "inventory")? {
        log::inputs::hash_table(&mut hasher, &inventory)?;
    }
    Ok(format!("{:032x}", hasher.finish_128()))
}

/// Returns the sample from which episodes on a training day plan. It comes from the other days, as a policy may expect no more:
/// a day in its own sample looks too easy.
pub fn episode_sample(plan: &Plan, log: &CompiledLog) -> Arc<Sample> {
    Arc::new(plan.sample_without(log).at_most(EPISODE_SAMPLE))
}

pub fn compile_options(settings: &Settings) -> CompileOptions {
    CompileOptions {
        complete_queues: settings.env.complete_queues,
        max_bad_share: settings.data.max_bad_share,
        memory: settings.data.memory_mb << 20,
        verify: false,
    }
}

/// Opens the compiled logs of directories at the values of `told`.
pub fn open_logs(dirs: &[PathBuf], options: CompileOptions, told: &Told) -> Result<Vec<CompiledLog>, log::LogError> {
    dirs.iter().map(|dir| told.open(dir, options)).collect()
}

/// Opens log directories as days under a plan.
pub fn open_days(
    dirs: &[PathBuf],
    options: CompileOptions,
    told: &Told,
    plan: &Plan,
    vocabulary: &Vocabulary,
) -> anyhow::Result<Vec<DayModel>> {
    let vocabulary = Arc::new(vocabulary.clone());
    dirs.iter().map(|dir: &PathBuf| open_day(dir, options, told, plan, &vocabulary)).collect()
}

fn open_day(
    dir: &Path,
    options: CompileOptions,
    told: &Told,
    plan: &Plan,
    vocabulary: &Arc<Vocabulary>,
) -> anyhow::Result<DayModel> {
    let log = told.open(dir, options)?;
    Ok(DayModel::new(dir, log, plan, vocabulary.clone())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job ends with the bytes of one node that has all ranks and actors only where both deal actors alike.
    #[test]
    fn nodes_deal_their_actors_to_ranks_as_one_node_deals_all_of_them() {
        let with = |ranks, actors| {
            let mut settings = Settings::default();
            (settings.learner.ranks, settings.actors.count) = (ranks, actors);
            settings
        };
        for (nodes, ranks, actors) in [(2, 1, 1), (2, 1, 3), (2, 2, 3), (4, 2, 5), (3, 2, 7), (5, 3, 4)] {
            let (of_node, of_one) = (with(ranks, actors), with(nodes * ranks, nodes * actors));
            for index in 0..nodes {
                let node = Node { index, of: nodes };
                let first = node.first_of(actors);
                for rank in 0..ranks {
                    let own = of_node.actors_of(rank);
                    let own = first + own.start..first + own.end;
                    assert_eq!(own, of_one.actors_of(node.world(ranks).first + rank), "{nodes} x {ranks} x {actors}");
                }
            }
        }
    }

    #[test]
    fn a_node_is_read_back_and_an_impossible_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::lock(folder.path()).unwrap();
        assert_eq!(read_node(&directory).unwrap(), Node::default());
        let node = Node { index: 2, of: 3 };
        std::fs::write(directory.node(), serde_json::to_vec(&node).unwrap()).unwrap();
        assert_eq!(read_node(&directory).unwrap(), node);
        for wrong in [r#"{"index":3,"of":3}"#, r#"{"index":0,"of":0}"#, r#"{"index":0,"of":1000}"#, "x"] {
            std::fs::write(directory.node(), wrong).unwrap();
            assert!(read_node(&directory).is_err(), "{wrong}");
        }
    }
}
