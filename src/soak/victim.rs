//! A free run under a soak, observed from outside through its shared memory.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;

use crate::bench::proc::usage;
use crate::bench::watched::{Task, train_command};
use crate::run::RunDirectory;
use crate::shm::names::is_alive;
use crate::shm::{Control, Role, RunNames, SampleRing};

use super::processes::{LOOK, Member, PATIENCE, await_orphans, children_of, send, wait_until};

/// Settings of every soaked run: small networks and frequent events.
pub const SETS: [&str; 15] = [
    "checkpoint.every_s=0.1",
    "watchdog.max_restarts=1000000",
    "actors.max_restarts=1000000",
    "evaluate.every=8",
    "baselines.tuning_replays=8",
    "policy.hidden=16",
    "learner.critic_hidden=16",
    "learner.quantiles=8",
    "learner.batch=128",
    "learner.samples_per_update=128",
    "learner.pool=4000",
    "learner.critic_head_start=10",
    "learner.threads=1",
    "actors.write_every=256",
    "run.device=cpu",
];

/// A free run under a soak.
pub struct Victim<'a> {
    task: &'a Task,
    sets: Vec<String>,
    pub run_dir: PathBuf,
    pub main: Child,
    pub control: Control,
    pub rings: Vec<SampleRing>,
    roles: Vec<Role>,
}

/// Counters that must grow when the run makes progress after a blow.
#[derive(Debug, Clone)]
pub struct Counters {
    updates: u64,
    samples: u64,
    evaluations: u64,
    snapshots: u64,
    steps: Vec<u64>,
}

impl<'a> Victim<'a> {
    pub fn start(task: &'a Task, seed: u64, run_dir: PathBuf) -> anyhow::Result<Self> {
        let mut sets = task.sets().to_vec();
        sets.extend(SETS.map(str::to_owned));
        sets.push("budget.max_updates=1000000000".into());
        sets.push("stop.patience=0".into());
        sets.push(format!("run.seed={seed}"));
        let mut roles: Vec<Role> = (0..task.settings.actors.count).map(Role::Actor).collect();
        roles.extend((0..task.settings.learner.ranks).map(Role::learner));
        roles.extend(Role::helpers(true, true));
        let main = launch(task, &sets, &run_dir, &[])?;
        let (main, control, rings) = opened(task, main, &run_dir)?;
        let mut victim = Self { task, sets, run_dir, main, control, rings, roles };
        victim.wait_until_sound()?;
        Ok(victim)
    }

    /// Starts a main process that resumes the run.
    pub fn launch(&self) -> anyhow::Result<Child> {
        launch(self.task, &self.sets, &self.run_dir, &[])
    }

    /// Makes a process of [`launch`](Self::launch) the run's main process, once its shared memory exists.
    ///
    /// # Errors
    /// A run that does not start, that starts anew, or that leaves shared memory of an earlier main process.
    pub fn adopt(&mut self, main: Child) -> anyhow::Result<()> {
        let (main, control, rings) = opened(self.task, main, &self.run_dir)?;
        ensure!(control.resumed_from.get() > 0, "the run did not go on from a snapshot");
        (self.main, self.control, self.rings) = (main, control, rings);
        let names = self.names()?;
        ensure!(names.len() == 1, "the next start did not sweep: {names:?}");
        Ok(())
    }

    /// Returns the names under which this run has shared memory or has left some.
    pub fn names(&self) -> anyhow::Result<Vec<RunNames>> {
        let directory = RunDirectory::open(&self.run_dir)?;
        Ok(RunNames::of_run(&directory.run_id(), directory.owner()?)?)
    }

    pub fn children(&self) -> Vec<Member> {
        children_of(self.main.id())
    }

    fn pid_of(&self, role: Role) -> Option<u32> {
        self.control.processes[role.slot()].pid()
    }

    fn counters(&self) -> Counters {
        Counters {
            updates: self.control.learner.updates.get(),
            samples: self.control.learner.samples_consumed.get() + self.control.learner.rolled_back.get(),
            evaluations: self.control.evaluator.evaluations.get(),
            snapshots: self.control.checkpoint.snapshots.get(),
            steps: self.control.actors[..self.rings.len()].iter().map(|actor| actor.steps.get()).collect(),
        }
    }

    /// Waits until `done`; main must stay alive.
    fn wait(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) -> anyhow::Result<f64> {
        let run_dir = self.run_dir.clone();
        wait_until(what, &run_dir, || {
            if let Some(status) = self.main.try_wait()? {
                bail!("waiting for {what}: the run ended ({status}); see {}", run_dir.display());
            }
            Ok(done(self))
        })
    }

    /// Waits until every role has a living process that is not among the `dead`; returns the seconds that took.
    pub fn wait_until_complete(&mut self, dead: &[u32]) -> anyhow::Result<f64> {
        let roles = self.roles.clone();
        self.wait("complete set of processes", |v| {
            let there = |role| v.pid_of(role).is_some_and(|pid| !dead.contains(&pid) && is_alive(pid));
            roles.iter().all(|&role| there(role))
        })
    }

    /// Waits until all processes have made progress and every sample is accounted for; returns the seconds that took.
    pub fn wait_for_progress(&mut self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let before = self.counters();
        self.wait("progress of everybody", |v| {
            let now = v.counters();
            now.updates > before.updates
                && now.samples > before.samples
                && now.evaluations > before.evaluations
                && now.snapshots > before.snapshots
                && now.steps.iter().zip(&before.steps).all(|(now, before)| now > before)
        })?;
        self.wait("account of every sample", Self::books_are_open_by_a_block_at_most)?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn wait_until_sound(&mut self) -> anyhow::Result<()> {
        self.wait_until_complete(&[])?;
        self.wait_for_progress()?;
        Ok(())
    }

    /// Returns whether the unaccounted samples are at most those of blocks being written or read.
    fn books_are_open_by_a_block_at_most(&self) -> bool {
        let settings = &self.task.settings;
        let block = (settings.block_segments() * settings.learner.segment) as i64;
        self.rings.iter().all(|ring| {
            let l = ring.ledger();
            let open = l.produced as i64 - l.accounted() as i64;
            open.abs() <= 2 * block && l.torn_blocks == 0
        })
    }

    /// Waits for main's death by a signal and for its children's; returns the seconds by which they outlived it.
    pub fn bury(&mut self, children: &[Member]) -> anyhow::Result<f64> {
        self.main.wait()?;
        await_orphans(children)
    }

    /// Waits for a requested end, which must be orderly: exit code 130, no process left, nothing in memory. Its ledger must
    /// balance, unless the end was `hurried`.
    pub fn wait_for_end(&mut self, children: &[Member], hurried: bool) -> anyhow::Result<()> {
        let run_dir = self.run_dir.clone();
        let mut status: Option<ExitStatus> = None;
        wait_until("end of the interrupted run", &run_dir, || {
            status = self.main.try_wait()?;
            Ok(status.is_some())
        })?;
        let status = status.context("it has ended")?;
        ensure!(status.code() == Some(130), "the interrupted run ended with {status}; see {}", run_dir.display());
        await_orphans(children)?;
        let left = self.names()?;
        ensure!(left.is_empty(), "shared memory is left behind: {left:?}");
        if hurried { Ok(()) } else { check_books(&run_dir) }
    }

    /// Ends the run in order and checks its ledger.
    pub fn end(mut self) -> anyhow::Result<()> {
        let children = self.children();
        send(self.main.id(), Signal::SIGINT);
        self.wait_for_end(&children, false)
    }

    /// Returns the resident memory of main and of the learner, MB.
    pub fn memory(&self) -> (f64, f64) {
        let of = |pid: Option<u32>| pid.and_then(usage).map_or(0.0, |usage| usage.resident_mb);
        (of(Some(self.main.id())), of(self.pid_of(Role::Learner)))
    }
}

/// Checks that the ledger that a run wrote at its end is exact.
///
/// # Errors
/// Samples that are unaccounted for.
pub fn check_books(run_dir: &Path) -> anyhow::Result<()> {
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(run_dir.join("manifest.json"))?)?;
    let outcome = &manifest["outcome"];
    let count = |value: &serde_json::Value| value.as_u64().with_context(|| format!("no count in {outcome}"));
    let part = |name: &str| count(&outcome["ledger"][name]);
    let parts = ["consumed", "overwritten", "lost", "unread", "discarded"];
    let accounted = parts.iter().map(|name| part(name)).sum::<anyhow::Result<u64>>()?;
    ensure!(part("produced")? == accounted, "the ledger does not balance: {}", outcome["ledger"]);
    let learned = count(&outcome["samples"])? + count(&outcome["rolled_back"])?;
    ensure!(part("consumed")? == learned, "consumed {}, learned from {learned}: {outcome}", part("consumed")?);
    Ok(())
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        // Both fail if it is over already, which is fine.
        let _ = self.main.kill();
        let _ = self.main.wait();
    }
}

/// Starts or resumes training; its output goes to a file beside the run directory.
pub fn launch(task: &Task, sets: &[String], run_dir: &Path, arguments: &[&str]) -> anyhow::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(run_dir.with_extension("log"))?;
    let mut command = train_command(&task.config, sets, run_dir)?;
    command.arg("--resume=auto").args(arguments).arg("--parent").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().context("cannot start training")
}

fn opened(task: &Task, mut main: Child, run_dir: &Path) -> anyhow::Result<(Child, Control, Vec<SampleRing>)> {
    let start = Instant::now();
    loop {
        let open = || -> Option<(Control, Vec<SampleRing>)> {
            let names = RunNames::of_process(main.id())?;
            let control = Control::open(&names.part("control")).ok()?;
            let ring = |i| SampleRing::open(&names.part(&format!("ring{i}"))).ok();
            let rings = (0..task.settings.actors.count).map(ring).collect::<Option<_>>()?;
            // Main initialises the shared memory before it starts any child.
            control.processes.iter().any(|slot| slot.pid().is_some()).then_some((control, rings))
        };
        if let Some((control, rings)) = open() {
            return Ok((main, control, rings));
        }
        if let Some(status) = main.try_wait()? {
            bail!("the run ended at its start ({status}); see {}", run_dir.with_extension("log").display());
        }
        if start.elapsed() > PATIENCE {
            let _ = main.kill();
            bail!("a hang: the run does not start; see {}", run_dir.with_extension("log").display());
        }
        std::thread::sleep(LOOK);
    }
}
