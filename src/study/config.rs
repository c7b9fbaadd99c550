//! The study file: which policies are trained on which days, and what is reported.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::env::Delay;
use crate::evaluate::Stress;
use crate::policy::baselines;
use crate::settings;
use crate::synth::{self, WorldSettings};

/// Indices into a world's days; no day is in two of the lists.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Days {
    /// Days for planning, tuning and training.
    pub train: Vec<usize>,
    /// Days that select the best parameters of a run.
    pub validation: Vec<usize>,
    /// Reported days; nothing is chosen on them.
    pub report: Vec<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorldEntry {
    name: Option<String>,
    /// A world file; `seeds` gives one world each.
    synth: Option<PathBuf>,
    #[serde(default)]
    seeds: Vec<u64>,
    /// Log directories, instead of `synth`.
    #[serde(default)]
    logs: Vec<PathBuf>,
    /// Overrides the study's days.
    days: Option<Days>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantEntry {
    name: String,
    config: Option<PathBuf>,
    #[serde(default)]
    set: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Names {
    /// `all`, `none` or the name of one baseline.
    One(String),
    List(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyFile {
    config: PathBuf,
    #[serde(default)]
    set: Vec<String>,
    seeds: Vec<u64>,
    #[serde(default = "all")]
    baselines: Names,
    data: Option<PathBuf>,
    /// Stresses as for `eval --stress`.
    #[serde(default)]
    stresses: Vec<String>,
    #[serde(default)]
    stress_seed: u64,
    #[serde(default)]
    frontier: Vec<f64>,
    days: Option<Days>,
    #[serde(default)]
    world: Vec<WorldEntry>,
    #[serde(default)]
    variant: Vec<VariantEntry>,
    #[serde(default)]
    choose: bool,
    #[serde(default)]
    informed: bool,
}

fn all() -> Names {
    Names::One("all".into())
}

/// Source of a world's days.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Generated under the study's folder.
    Synth(Box<WorldSettings>),
    Logs(Vec<PathBuf>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct World {
    pub name: String,
    pub source: Source,
    pub days: Days,
}

/// A training configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    pub name: String,
    pub config: PathBuf,
    /// `key=value` settings as for `train --set`; the study's own come first.
    pub sets: Vec<String>,
}

/// Keys that a study sets for each run.
pub const OWN: [&str; 4] = ["data.train", "data.validation", "data.test", "run.seed"];
/// Why variants do not set keys that [`is_of_the_problem`] names, and what to do.
pub const FOR_ALL: &str = "which changes the days themselves: policies could not be compared with each other, nor with the baselines; \
                           set it for all in the study's own `set`";

/// Whether a key, other than the study's [`OWN`], determines what policies are evaluated on: the days, or the terms on which they are
/// replayed.
pub fn is_of_the_problem(key: &str) -> bool {
    !OWN.contains(&key) && ["env", "data"].contains(&key.split('.').next().unwrap_or(key))
}

/// Returns the key of `key=value`.
fn key_of(set: &str) -> &str {
    set.split('=').next().unwrap_or(set).trim()
}

/// Name of the policy of [`Study::choose`].
pub const CHOSEN: &str = "chosen";

/// A validated study.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// Settings of evaluation, planning and the tuning of baselines.
    pub base: Variant,
    pub seeds: Vec<u64>,
    pub baselines: Vec<String>,
    pub worlds: Vec<World>,
    pub variants: Vec<Variant>,
    /// Stresses under each of which policies are evaluated, besides none.
    pub stresses: Vec<Stress>,
    /// Delivery weights of the hindsight frontier.
    pub frontier: Vec<f64>,
    /// Whether to report, besides the variants, the policy that a user would choose: for each world and seed the variant that is
    /// best on the validation days.
    pub choose: bool,
    /// Whether to replay the reference policy that knows a synthetic world's process.
    pub informed: bool,
}

impl Study {
    /// Reads a study file. Relative paths are resolved beside the file first, then in the current directory; relative log
    /// directories are resolved under `data`, or under the file's `data` key, where one is given.
    ///
    /// # Errors
    /// An unreadable file, a key or value that cannot be used, or a day that is in two of train, validation and report.
    pub fn load(path: &Path, data: Option<&Path>) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: StudyFile = toml::from_str(&text).with_context(|| format!("{}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::resolve(file, folder, data).with_context(|| format!("{}", path.display()))
    }

    /// Builds a study from a study file's content; relative paths are resolved as in [`Study::load`], with `folder` as the file's
    /// folder.
    ///
    /// # Errors
    /// As [`Study::load`].
    pub fn of_table(file: toml::Table, folder: &Path, data: Option<&Path>) -> Result<Self> {
        Self::resolve(file.try_into()?, folder, data)
    }

    fn resolve(file: StudyFile, folder: &Path, data: Option<&Path>) -> Result<Self> {
        let base = Variant { name: "base".into(), config: beside(folder, &file.config)?, sets: file.set.clone() };
        ensure!(!file.seeds.is_empty(), "`seeds` names no seed; give at least one");
        ensure!(distinct(&file.seeds), "`seeds` names a seed twice");
        let mut variants = Vec::new();
        for entry in file.variant {
            let config = entry.config.map_or_else(|| Ok(base.config.clone()), |c| beside(folder, &c))?;
            if let Some(key) = entry.set.iter().map(|set| key_of(set)).find(|key| is_of_the_problem(key)) {
                bail!("variant `{}` sets `{key}`, {FOR_ALL}", entry.name);
            }
            let sets = base.sets.iter().cloned().chain(entry.set).collect();
            variants.push(Variant { name: check_name("variant", entry.name)?, config, sets });
        }
        let problem = base.check()?;
        for variant in &variants {
            let its = variant.check()?;
            for (section, differs) in [("env", its.env != problem.env), ("data", its.data != problem.data)] {
                ensure!(!differs, "variant `{}` has a configuration with another `{section}`, {FOR_ALL}", variant.name);
            }
        }
        let known = baselines::known();
        let taken: HashSet<&str> = known.iter().map(String::as_str).chain(["oracle", "informed", CHOSEN]).collect();
        if let Some(v) = variants.iter().find(|v| taken.contains(v.name.as_str())) {
            bail!("variant `{}` is called like a baseline, the oracle or `chosen`; give it another name", v.name);
        }
        ensure!(
            distinct(&variants.iter().map(|v| &v.name).collect::<Vec<_>>()),
            "two variants have the same name; rename one"
        );
        let data = match (data, &file.data) {
            (Some(data), _) => Some(data.to_owned()),
            (None, Some(data)) => Some(beside(folder, data)?),
            (None, None) => None,
        };
        let mut worlds = Vec::new();
        for entry in file.world {
            worlds.extend(World::of(entry, file.days.as_ref(), folder, data.as_deref())?);
        }
        ensure!(!worlds.is_empty(), "the study has no [[world]]; give at least one");
        ensure!(
            distinct(&worlds.iter().map(|w| &w.name).collect::<Vec<_>>()),
            "two worlds have the same name; give each a `name` of its own"
        );
        ensure!(distinct(&file.stresses), "`stresses` names one twice");
        let seeded = |text: &String| Ok(text.parse::<Stress>().map_err(anyhow::Error::msg)?.seeded(file.stress_seed));
        let stresses = file.stresses.iter().map(seeded).collect::<Result<Vec<_>>>()?;
        let late = |stress: &Stress| stress.feedback_delay_s().is_some_and(|seconds| seconds > 0.0);
        let delayed = Delay::from(&problem.env).most_s() > 0.0 || stresses.iter().any(late);
        if let Some(weight) = file.frontier.iter().find(|w| !(0.0..=1e6).contains(*w)) {
            bail!("`frontier` has the weight {weight}; weights lie within 0..=1e6");
        }
        Ok(Self {
            base,
            seeds: file.seeds,
            baselines: baseline_names(file.baselines, delayed)?,
            worlds,
            variants,
            stresses,
            frontier: file.frontier,
            choose: file.choose,
            informed: file.informed,
        })
    }
}

impl Variant {
    /// Loads the settings together with `assigned`, the study's own settings: the days and the seed.
    ///
    /// # Errors
    /// A configuration that cannot be used.
    pub fn settings(&self, assigned: &[String]) -> Result<settings::Settings, settings::SettingsError> {
        let sets: Vec<String> = self.sets.iter().chain(assigned).cloned().collect();
        settings::load(&self.config, &sets)
    }

    /// Returns its settings without a world's days.
    fn check(&self) -> Result<settings::Settings> {
        for key in self.sets.iter().map(|set| key_of(set)) {
            ensure!(!OWN.contains(&key), "variant `{}` sets `{key}`, which is the study's own to set", self.name);
        }
        let assigned = ["data.train=[\"train\"]", "data.validation=[\"validation\"]", "data.test=[]"].map(String::from);
        self.settings(&assigned).with_context(|| format!("variant `{}`", self.name))
    }
}

impl World {
    fn of(entry: WorldEntry, common: Option<&Days>, folder: &Path, data: Option<&Path>) -> Result<Vec<Self>> {
        let label = entry.name.clone().or_else(|| Some(entry.synth.as_ref()?.file_stem()?.to_str()?.to_owned()));
        let label = check_name("world", label.context("a [[world]] of `logs` needs a `name`")?)?;
        let days = entry.days.or_else(|| common.cloned());
        let days = days.with_context(|| format!("world `{label}` has no `days`, and neither has the study"))?;
        days.check().with_context(|| format!("world `{label}`"))?;
        let last = days.all().max().unwrap_or(0);
        let worlds = match (&entry.synth, entry.logs.is_empty()) {
            (Some(synth), true) => {
                let path = beside(folder, synth)?;
                let settings = synth::load(&path)?;
                let seeds = if entry.seeds.is_empty() { vec![settings.seed] } else { entry.seeds };
                let several = seeds.len() > 1 || entry.name.is_none();
                let world = |seed| {
                    let name = if several { format!("{label}-{seed}") } else { label.clone() };
                    let settings = WorldSettings { seed, days: last as u32 + 1, ..settings.clone() };
                    Self { name, source: Source::Synth(Box::new(settings)), days: days.clone() }
                };
                seeds.into_iter().map(world).collect()
            }
            (None, false) => {
                ensure!(entry.seeds.is_empty(), "world `{label}`: `seeds` are those of a synthetic world");
                let find = |log: &PathBuf| match data {
                    Some(data) => Ok(data.join(log)),
                    None => beside(folder, log),
                };
                let logs = entry.logs.iter().map(find).collect::<Result<Vec<_>>>()?;
                let logs = logs
                    .into_iter()
                    .map(|dir| dir.canonicalize().with_context(|| format!("no log directory {}", dir.display())))
                    .collect::<Result<Vec<_>>>()
                    .with_context(|| format!("world `{label}`"))?;
                ensure!(distinct(&logs), "world `{label}` names a log directory twice");
                ensure!(last < logs.len(), "world `{label}` has {} days, `days` names day {last}", logs.len());
                vec![Self { name: label, source: Source::Logs(logs), days }]
            }
            _ => bail!("world `{label}` needs either `synth` or `logs`"),
        };
        Ok(worlds)
    }

    /// Returns the log directories; generated ones are under `out`.
    pub fn dirs(&self, out: &Path) -> Vec<PathBuf> {
        match &self.source {
            Source::Logs(dirs) => dirs.clone(),
            Source::Synth(settings) => (0..settings.days).map(|i| self.folder(out).join(format!("day-{i}"))).collect(),
        }
    }

    /// Returns the folder of a generated world.
    pub fn folder(&self, out: &Path) -> PathBuf {
        out.join("worlds").join(&self.name)
    }
}

impl Days {
    fn all(&self) -> impl Iterator<Item = usize> {
        self.train.iter().chain(&self.validation).chain(&self.report).copied()
    }

    fn check(&self) -> Result<()> {
        let lists = [("train", &self.train), ("validation", &self.validation), ("report", &self.report)];
        let mut seen: Vec<(usize, &str)> = Vec::new();
        for (role, days) in lists {
            ensure!(!days.is_empty(), "days.{role} names no day");
            for &day in days {
                if let Some((_, other)) = seen.iter().find(|(d, _)| *d == day) {
                    bail!(
                        "day {day} is in days.{role} and in days.{other}: what is reported must not have been trained or \
                         chosen on; take each day once"
                    );
                }
                seen.push((day, role));
            }
        }
        Ok(())
    }
}

/// Resolves the names of baselines; `all` includes those that predict deliveries if feedback is delayed.
fn baseline_names(names: Names, delayed: bool) -> Result<Vec<String>> {
    let names = match names {
        Names::One(one) if one == "all" => {
            return Ok(if delayed { baselines::known() } else { baselines::NAMES.map(String::from).to_vec() });
        }
        Names::One(one) if one == "none" => return Ok(vec![]),
        Names::One(one) => vec![one],
        Names::List(list) => list,
    };
    if let Some(unknown) = names.iter().find(|n| !baselines::known().contains(n)) {
        bail!("no baseline `{unknown}`; there are {}", baselines::known().join(", "));
    }
    ensure!(distinct(&names), "`baselines` names one twice");
    Ok(names)
}

/// Checks a name, which becomes a folder and a column.
fn check_name(what: &str, name: String) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    ensure!(
        !name.is_empty() && name.chars().all(plain) && !name.starts_with('.'),
        "{what} `{name}`: use letters, digits, `-`, `_`, `+` and `.`"
    );
    Ok(name)
}

fn distinct<T: std::hash::Hash + Eq>(items: &[T]) -> bool {
    items.iter().collect::<HashSet<_>>().len() == items.len()
}

/// Resolves a path beside the study file, or else in the current directory.
pub fn beside(folder: &Path, path: &Path) -> Result<PathBuf> {
    let found = [folder.join(path), path.to_owned()].into_iter().find_map(|p| p.canonicalize().ok());
    found.with_context(|| format!("there is no {} beside the study file or in the current directory", path.display()))
}
