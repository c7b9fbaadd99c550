//! A training run in real processes, watched from outside: through its control block and `/proc`.
//!
//! The benchmarks of whole runs start `train` as anyone would and add nothing to it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::settings::Settings;
use crate::shm::{Control, Role, RunNames, SampleRing, sweep};
use crate::supervisor::children::this_program;
use crate::synth::{self, WorldSettings};

/// The command that trains a configuration with settings changed.
pub fn train_command(config: &Path, sets: &[String], run_dir: &Path) -> anyhow::Result<Command> {
    let mut command = this_program();
    command.arg("train").arg("--config").arg(config).arg("--run-dir").arg(run_dir);
    for set in sets {
        command.arg("--set").arg(set);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Ok(command)
}

/// A configuration to train, in a folder that is removed with it where the world was generated for it.
pub struct Task {
    pub config: PathBuf,
    pub settings: Settings,
    sets: Vec<String>,
    folder: tempfile::TempDir,
}

impl Task {
    /// The given configuration, or three training days and a validation day of the default world with `requests` requests each.
    /// Nothing is reported at the end of the run.
    ///
    /// # Errors
    /// A configuration that cannot be used, or a full disk.
    pub fn new(config: Option<&Path>, sets: &[String], requests: u32) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
        let config = match config {
            Some(path) => path.to_owned(),
            None => {
                let world = WorldSettings { requests, days: 4, ..WorldSettings::default() };
                say!("generating four days of {requests} requests");
                synth::generate(&world, &folder.path().join("world"), world.days, world.seed, &|_| ())?;
                let path = folder.path().join("config.toml");
                let text = "[data]\ntrain = [\"world/day-0\", \"world/day-1\", \"world/day-2\"]\nvalidation = [\"world/day-3\"]\n";
                std::fs::write(&path, text)?;
                path
            }
        };
        let mut sets = sets.to_vec();
        sets.push("data.test=[]".into());
        let settings = crate::settings::load(&config, &sets)?;
        Ok(Self { config, settings, sets, folder })
    }

    /// What its settings change in the configuration.
    pub fn sets(&self) -> &[String] {
        &self.sets
    }

    /// Starts training, with more settings changed.
    pub fn start(&self, more: &[String]) -> anyhow::Result<Watched> {
        let run_dir = tempfile::tempdir_in(self.folder.path())?;
        let sets = [&self.sets, more].concat();
        let mut command = train_command(&self.config, &sets, &run_dir.path().join("run"))?;
        // A file, because nobody reads along: a pipe would fill up.
        let stderr = std::fs::File::create(run_dir.path().join("stderr"))?;
        command.arg("--parent").arg(std::process::id().to_string()).stderr(stderr);
        let started = Instant::now();
        let child = command.spawn().context("cannot start training")?;
        Ok(Watched { child, started, folder: run_dir })
    }
}

/// A run under way; killed if it is still there when dropped.
pub struct Watched {
    child: Child,
    pub started: Instant,
    folder: tempfile::TempDir,
}

/// The shared memory of a run.
pub struct Inside {
    pub control: Control,
    pub rings: Vec<SampleRing>,
}

impl Watched {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The run's shared memory; `None` until it is all there.
    pub fn inside(&self, actors: usize) -> Option<Inside> {
        let names = RunNames::of_process(self.pid())?;
        let control = Control::open(&names.part("control")).ok()?;
        let rings =
            (0..actors).map(|i| SampleRing::open(&names.part(&format!("ring{i}"))).ok()).collect::<Option<_>>()?;
        Some(Inside { control, rings })
    }

    /// The exit status, once it has ended.
    ///
    /// # Errors
    /// The run failed; with its own words.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if let Some(status) = status {
            let words = std::fs::read_to_string(self.folder.path().join("stderr"))?;
            ensure!(status.success(), "training failed: {}", words.trim());
        }
        Ok(status)
    }

    /// Ends it at once. Its children die with it.
    ///
    /// # Errors
    /// A process that cannot be killed.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        sweep();
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processes of a run that have signed in: what they are called, and their ids.
pub fn processes(control: &Control) -> Vec<(String, u32)> {
    let slots = control.processes.iter().enumerate();
    slots.filter_map(|(i, slot)| Some((Role::of(slot.kind()?, i).to_string(), slot.pid()?))).collect()
}

/// Whether the learner of a run has signed in.
pub fn learner_is_there(control: &Control) -> bool {
    control.processes[Role::Learner.slot()].pid().is_some()
}
