//! The study's plans and training runs: which exist already, and how to make the others.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use crate::log;
use crate::run::context::{compile_options, inputs_hash};
use crate::run::leakage::Roles;
use crate::settings::{Data, Settings};
use crate::supervisor::manifest;

use super::config::{Study, Variant, World};
use super::jobs::Job;

/// A plan or a training run under the study's folder.
#[derive(Debug, Clone)]
pub struct Product {
    pub world: usize,
    pub kind: Kind,
    settings: Settings,
    /// Whether the number of actors is chosen by the machine, so that a run with another number is the same run.
    auto_actors: bool,
    /// Content hashes of the days that it is made from.
    inputs: Vec<String>,
    arguments: Vec<OsString>,
}

#[derive(Debug, Clone)]
pub enum Kind {
    /// File with the plan of a world's training days, for the baselines.
    Plan { file: PathBuf },
    /// A run directory.
    Run { variant: usize, seed: u64, dir: PathBuf },
}

fn path_list(key: &str, dirs: &[PathBuf], days: &[usize]) -> String {
    let list = days.iter().map(|&d| toml::Value::String(dirs[d].to_string_lossy().into_owned())).collect();
    format!("data.{key}={}", toml::Value::Array(list))
}

/// Returns the hashes of the inputs of some of a world's days; compiles them where necessary.
fn inputs(dirs: &[PathBuf], days: &[usize], settings: &Settings) -> anyhow::Result<Vec<String>> {
    let options = compile_options(settings);
    days.iter().map(|&d| Ok(inputs_hash(&dirs[d], &log::open(&dirs[d], options)?)?)).collect()
}

/// Refuses a world that has the same day in two roles: reported days must be new.
fn refuse_leaks(study: &Study, w: &World, dirs: &[PathBuf]) -> anyhow::Result<()> {
    let settings = study
        .base
        .settings(&[path_list("train", dirs, &w.days.train), path_list("validation", dirs, &w.days.validation)])?;
    let mut roles = Roles::default();
    let lists =
        [("days.train", &w.days.train), ("days.validation", &w.days.validation), ("days.report", &w.days.report)];
    for (role, days) in lists {
        for &day in days {
            let log = log::open(&dirs[day], compile_options(&settings))?;
            roles.add(role, &dirs[day], &log).with_context(|| format!("world `{}`", w.name))?;
        }
    }
    Ok(())
}

impl Product {
    /// Returns the plan of a world and its training runs.
    ///
    /// # Errors
    /// Days that cannot be used.
    pub fn of_world(study: &Study, world: usize, out: &Path) -> anyhow::Result<Vec<Self>> {
        let w = &study.worlds[world];
        let dirs = w.dirs(out);
        refuse_leaks(study, w, &dirs)?;
        let mut products = vec![Self::plan(study, world, w, &dirs, out)?];
        for (i, variant) in study.variants.iter().enumerate() {
            for &seed in &study.seeds {
                products.push(Self::training(world, w, &dirs, (i, variant), seed, out)?);
            }
        }
        Ok(products)
    }

    fn plan(study: &Study, world: usize, w: &World, dirs: &[PathBuf], out: &Path) -> anyhow::Result<Self> {
        let assigned = [path_list("train", dirs, &w.days.train), path_list("validation", dirs, &w.days.validation)];
        let settings = study.base.settings(&assigned)?;
        let file = out.join("plans").join(format!("{}.json", w.name));
        let mut arguments: Vec<OsString> = vec!["plan".into()];
        arguments.extend(w.days.train.iter().map(|&d| dirs[d].clone().into_os_string()));
        arguments.push("--validation".into());
        arguments.extend(w.days.validation.iter().map(|&d| dirs[d].clone().into_os_string()));
        arguments.extend(["--config".into(), config_of(&file).into(), "--out".into(), file.clone().into()]);
        arguments.extend(["--parent".into(), std::process::id().to_string().into()]);
        let days: Vec<usize> = w.days.train.iter().chain(&w.days.validation).copied().collect();
        let inputs = inputs(dirs, &days, &settings)?;
        Ok(Self { world, kind: Kind::Plan { file }, settings, auto_actors: false, inputs, arguments })
    }

    fn training(
        world: usize,
        w: &World,
        dirs: &[PathBuf],
        (index, variant): (usize, &Variant),
        seed: u64,
        out: &Path,
    ) -> anyhow::Result<Self> {
        let assigned = [
            path_list("train", dirs, &w.days.train),
            path_list("validation", dirs, &w.days.validation),
            // Only the study evaluates the reported days.
            "data.test=[]".to_owned(),
            format!("run.seed={seed}"),
        ];
        let settings = variant.settings(&assigned)?;
        let automatic = [&assigned[..], &["actors.count=\"auto\"".to_owned()]].concat();
        let auto_actors = variant.settings(&automatic)?.actors.count == settings.actors.count;
        let dir = out.join("runs").join(&w.name).join(format!("{}-{seed}", variant.name));
        let mut arguments: Vec<OsString> = vec!["train".into(), "--config".into(), variant.config.clone().into()];
        for set in variant.sets.iter().chain(&assigned) {
            arguments.extend(["--set".into(), set.into()]);
        }
        arguments.extend(["--run-dir".into(), dir.clone().into()]);
        arguments.extend(["--parent".into(), std::process::id().to_string().into()]);
        let days: Vec<usize> = w.days.train.iter().chain(&w.days.validation).copied().collect();
        let inputs = inputs(dirs, &days, &settings)?;
        Ok(Self { world, kind: Kind::Run { variant: index, seed, dir }, settings, auto_actors, inputs, arguments })
    }

    /// Returns its name for progress messages and errors.
    pub fn name(&self, study: &Study) -> String {
        let world = &study.worlds[self.world].name;
        match &self.kind {
            Kind::Plan { .. } => format!("{world} plan"),
            Kind::Run { variant, seed, .. } => format!("{world} {} seed {seed}", study.variants[*variant].name),
        }
    }

    /// Returns whether a run has planned the days of `plan` with its settings, so that the run's plan can take its place.
    pub fn can_replace(&self, plan: &Self) -> bool {
        let planned = |settings: &Settings| {
            let Settings { data, env, episodes, baselines, policy, .. } = settings.clone();
            (Data { test: vec![], ..data }, env, episodes, baselines, policy, settings.requests_per_step())
        };
        matches!(plan.kind, Kind::Plan { .. })
            && plan.world == self.world
            && planned(&plan.settings) == planned(&self.settings)
    }

    /// Returns whether it exists, is finished, and was made from the same settings and days.
    pub fn is_there(&self) -> bool {
        match &self.kind {
            Kind::Plan { file } => {
                file.is_file() && std::fs::read_to_string(stamp_of(file)).is_ok_and(|text| text == self.stamp())
            }
            Kind::Run { dir, .. } => self.run_is_there(dir).unwrap_or(false),
        }
    }

    fn run_is_there(&self, dir: &Path) -> Option<bool> {
        let path = dir.join("config.toml");
        let mut config = std::fs::read_to_string(&path).ok()?;
        if self.auto_actors && config != self.settings.to_toml() {
            let mut settings = Settings::read_resolved(&path).ok()?;
            settings.actors.count = self.settings.actors.count;
            config = settings.to_toml();
        }
        let manifest: Value = serde_json::from_slice(&std::fs::read(dir.join("manifest.json")).ok()?).ok()?;
        let finished = manifest::is_finished(&manifest);
        let data = manifest["data"].as_array()?;
        let inputs: Vec<&str> = data.iter().filter_map(|d| d["inputs"].as_str()).collect();
        let best = dir.join("policy").join("best.safetensors").is_file();
        Some(finished && best && config == self.settings.to_toml() && inputs == self.inputs)
    }

    /// Clears the target and returns the job to execute.
    ///
    /// # Errors
    /// A folder that cannot be cleared or made.
    pub fn job(&self, study: &Study) -> anyhow::Result<Job> {
        let log = match &self.kind {
            Kind::Plan { file } => {
                make_parent(file)?;
                for old in [stamp_of(file), file.clone()] {
                    remove_file(&old)?;
                }
                let config = config_of(file);
                std::fs::write(&config, self.settings.to_toml())
                    .with_context(|| format!("cannot write {}", config.display()))?;
                file.with_extension("log")
            }
            Kind::Run { dir, .. } => {
                make_parent(dir)?;
                if dir.exists() {
                    std::fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
                }
                // A variant's name may contain dots that are not an extension.
                let mut log = dir.clone().into_os_string();
                log.push(".log");
                log.into()
            }
        };
        Ok(Job { name: self.name(study), arguments: self.arguments.clone(), log })
    }

    /// Marks a plan's file as complete; a run directory records that itself.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn complete(&self) -> anyhow::Result<()> {
        if let Kind::Plan { file } = &self.kind {
            std::fs::write(stamp_of(file), self.stamp())
                .with_context(|| format!("cannot write beside {}", file.display()))?;
        }
        Ok(())
    }

    fn stamp(&self) -> String {
        format!("{}\n# {}\n", self.settings.to_toml(), self.inputs.join(" "))
    }
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn config_of(plan: &Path) -> PathBuf {
    plan.with_extension("config.toml")
}

fn stamp_of(plan: &Path) -> PathBuf {
    plan.with_extension("stamp")
}

fn make_parent(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}
