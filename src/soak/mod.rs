//! Soaking: training under random kills, each followed by a look at whether everything recovered.
//!
//! A scheduled run dies in ways that no test enumerates. Here real runs are killed at random moments in every kind of process,
//! one kill after another has been recovered from (but for the double faults, which fall into a recovery), and after each one
//! the run must have replaced the process and got on; at the end of a session its ledger must be exact to the last sample and
//! nothing may be left in memory. Every kill is a line of the record, with the seed that it came from, so that kills add up over
//! sessions.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::bench::proc::usage;
use crate::bench::watched::{Task, train_command};
use crate::settings::Settings;
use crate::shm::names::is_alive;
use crate::shm::{Control, RunNames, SampleRing};
use crate::supervisor::children::Role;

/// How long a recovery may take before it counts as a hang.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(2);
/// Kills between two sessions, each with a run directory of its own and an orderly end.
const SESSION: usize = 60;

/// What to do.
#[derive(Debug, Clone)]
pub struct Soak {
    pub kills: usize,
    /// Of these, kills of two processes, the second while the first is being recovered from.
    pub double_faults: usize,
    pub seed: u64,
    /// Lines are appended here.
    pub record: Option<PathBuf>,
    /// Requests of a day of the generated world.
    pub requests: u32,
}

/// One kill and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KillRecord {
    pub seed: u64,
    pub kill: usize,
    pub victim: String,
    /// Killed while the first was being replaced.
    pub second: Option<String>,
    /// Seconds until another process was in its place, and until the run had got on since.
    pub replaced_s: f64,
    pub progress_s: f64,
}

/// Kills by victim, of this soak and of the record before it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SoakReport {
    pub kills: usize,
    pub double_faults: usize,
    pub seeds: Vec<u64>,
    pub victims: BTreeMap<String, Recovery>,
    /// Growth of main's resident memory from the first to the last kill of a session, at most; MB.
    pub growth_mb: f64,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Recovery {
    pub kills: usize,
    pub replaced_median_s: f64,
    pub replaced_max_s: f64,
    pub progress_median_s: f64,
    pub progress_max_s: f64,
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "killed          times  replaced after (median, max)  got on after (median, max)")?;
        for (victim, r) in &self.victims {
            writeln!(
                f,
                "{victim:14} {:>6}  {:>13.2} s {:>10.2} s  {:>12.2} s {:>9.2} s",
                r.kills, r.replaced_median_s, r.replaced_max_s, r.progress_median_s, r.progress_max_s
            )?;
        }
        write!(
            f,
            "{} kills, {} of them double faults, seeds {:?}: 0 hangs, every ledger exact, nothing left behind",
            self.kills, self.double_faults, self.seeds
        )
    }
}

impl SoakReport {
    fn of(records: &[KillRecord]) -> Self {
        let mut report = Self { kills: records.len(), ..Self::default() };
        let mut times = BTreeMap::<String, (Vec<f64>, Vec<f64>)>::new();
        for r in records {
            report.double_faults += usize::from(r.second.is_some());
            if !report.seeds.contains(&r.seed) {
                report.seeds.push(r.seed);
            }
            let kind = r.victim.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            let (replaced, progress) = times.entry(kind).or_default();
            replaced.push(r.replaced_s);
            progress.push(r.progress_s);
        }
        for (victim, (mut replaced, mut progress)) in times {
            replaced.sort_by(f64::total_cmp);
            progress.sort_by(f64::total_cmp);
            let last = replaced.len() - 1;
            let recovery = Recovery {
                kills: replaced.len(),
                replaced_median_s: replaced[last / 2],
                replaced_max_s: replaced[last],
                progress_median_s: progress[last / 2],
                progress_max_s: progress[last],
            };
            report.victims.insert(victim, recovery);
        }
        report
    }
}

/// A run under fire.
struct Victim<'a> {
    task: &'a Task,
    sets: Vec<String>,
    run_dir: PathBuf,
    main: Child,
    control: Control,
    rings: Vec<SampleRing>,
}

/// What must have grown when the run has got on after a kill of some process.
#[derive(Debug, Clone, Copy)]
struct Counters {
    updates: u64,
    samples: u64,
    evaluations: u64,
    snapshots: u64,
}

impl<'a> Victim<'a> {
    fn start(task: &'a Task, seed: u64, run_dir: PathBuf) -> anyhow::Result<Self> {
        let mut sets = task.sets().to_vec();
        for set in [
            "budget.max_updates=1000000000",
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
            "actors.write_every=256",
            "run.device=cpu",
        ] {
            sets.push(set.into());
        }
        sets.push(format!("run.seed={seed}"));
        let (main, control, rings) = spawn(task, &sets, &run_dir)?;
        Ok(Self { task, sets, run_dir, main, control, rings })
    }

    fn settings(&self) -> &Settings {
        &self.task.settings
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
        }
    }

    /// Waits until `done`; main must stay alive.
    fn wait(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) -> anyhow::Result<()> {
        let start = Instant::now();
        while !done(self) {
            if let Some(status) = self.main.try_wait()? {
                bail!("waiting for {what}: the run ended ({status}); see {}", self.run_dir.display());
            }
            ensure!(start.elapsed() < PATIENCE, "a hang: no {what}; see {}", self.run_dir.display());
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Everything is there and works.
    fn wait_until_sound(&mut self, roles: &[Role]) -> anyhow::Result<()> {
        for &role in roles {
            self.wait(&format!("{role}"), |v| v.pid_of(role).is_some())?;
        }
        let before = self.counters();
        self.wait("progress", |v| {
            let now = v.counters();
            now.updates > before.updates && now.samples > before.samples && now.snapshots > before.snapshots
        })
    }

    /// Kills main and goes on with the run; how long until the next one had its shared memory.
    fn kill_main(&mut self) -> anyhow::Result<f64> {
        let children: Vec<u32> = self.control.processes.iter().filter_map(|slot| slot.pid()).collect();
        let names = RunNames::of_process(self.main.id()).context("the run has no shared memory")?;
        self.main.kill()?;
        self.main.wait()?;
        let start = Instant::now();
        while children.iter().any(|&pid| is_alive(pid)) {
            ensure!(start.elapsed() < Duration::from_secs(1), "children live a second after main's death");
            std::thread::sleep(LOOK);
        }
        let (main, control, rings) = spawn(self.task, &self.sets, &self.run_dir)?;
        ensure!(control.resumed_from.get() > 0, "the run did not go on from a snapshot");
        ensure!(!RunNames::of_run(names.run_id())?.contains(&names), "the next start did not sweep {names}");
        (self.main, self.control, self.rings) = (main, control, rings);
        Ok(start.elapsed().as_secs_f64())
    }

    /// Whether what is in no account now is no more than what is being written or read.
    fn books_are_open_by_a_block_at_most(&self) -> bool {
        let settings = self.settings();
        let block = (settings.block_segments() * settings.learner.segment) as i64;
        self.rings.iter().all(|ring| {
            let l = ring.ledger();
            let open = l.produced as i64 - (l.consumed + l.overwritten + l.lost + l.unread + l.discarded) as i64;
            open.abs() <= 2 * block && l.torn_blocks == 0
        })
    }

    /// Ends the run in order and closes its books.
    fn end(mut self) -> anyhow::Result<()> {
        let names = RunNames::of_process(self.main.id()).context("the run has no shared memory")?;
        kill(Pid::from_raw(self.main.id().cast_signed()), Signal::SIGINT)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.main.try_wait()? {
                break status;
            }
            ensure!(start.elapsed() < PATIENCE, "a hang: the interrupted run does not end");
            std::thread::sleep(LOOK);
        };
        ensure!(status.code() == Some(130), "the interrupted run ended with {status}; see {}", self.run_dir.display());
        ensure!(RunNames::of_run(names.run_id())?.is_empty(), "shared memory is left behind");
        let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(self.run_dir.join("manifest.json"))?)?;
        let outcome = &manifest["outcome"];
        let count = |value: &serde_json::Value| value.as_u64().context("no count in the manifest");
        let part = |name: &str| count(&outcome["ledger"][name]);
        let parts = ["consumed", "overwritten", "lost", "unread", "discarded"];
        let accounted = parts.iter().map(|name| part(name)).sum::<anyhow::Result<u64>>()?;
        ensure!(part("produced")? == accounted, "the ledger does not balance: {}", outcome["ledger"]);
        let learned = count(&outcome["samples"])? + count(&outcome["rolled_back"])?;
        ensure!(part("consumed")? == learned, "consumed {} and learned from {learned}", part("consumed")?);
        Ok(())
    }
}

impl Drop for Victim<'_> {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.main.kill();
        let _ = self.main.wait();
    }
}

fn spawn(task: &Task, sets: &[String], run_dir: &Path) -> anyhow::Result<(Child, Control, Vec<SampleRing>)> {
    let log = OpenOptions::new().create(true).append(true).open(run_dir.with_extension("log"))?;
    let mut command = train_command(&task.config, sets, run_dir)?;
    command.arg("--resume=auto").arg("--parent").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut main = command.spawn().context("cannot start training")?;
    let start = Instant::now();
    loop {
        let open = || -> Option<(Control, Vec<SampleRing>)> {
            let names = RunNames::of_process(main.id())?;
            let control = Control::open(&names.part("control")).ok()?;
            let ring = |i| SampleRing::open(&names.part(&format!("ring{i}"))).ok();
            let rings = (0..task.settings.actors.count).map(ring).collect::<Option<_>>()?;
            // Main has filled in what it knows before it starts anybody.
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
            bail!("a hang: the run does not start");
        }
        std::thread::sleep(LOOK);
    }
}

/// Kills and watches.
///
/// # Errors
/// The first thing that went wrong; the run directory stays where it says.
pub fn run(soak: &Soak) -> anyhow::Result<SoakReport> {
    let mut records = soak.record.as_deref().map_or(Ok(vec![]), read_record)?;
    let task = Task::new(None, &[], soak.requests)?;
    let mut roles: Vec<Role> = (0..task.settings.actors.count).map(Role::Actor).collect();
    roles.extend([Role::Learner, Role::Evaluator, Role::Checkpointer]);
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?.keep();
    let mut rng = ChaCha8Rng::seed_from_u64(soak.seed);
    let (mut done, mut growth) = (0, 0f64);
    let mut session = 0;
    while done < soak.kills {
        let run_dir = folder.join(format!("session-{session}"));
        let mut victim = Victim::start(&task, soak.seed.wrapping_add(session), run_dir.clone())?;
        session += 1;
        victim.wait_until_sound(&roles)?;
        let mut memory = resident_mb(victim.main.id());
        for _ in 0..SESSION.min(soak.kills - done) {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..400)));
            let double = done < soak.double_faults;
            let record = one(&mut victim, &roles, &mut rng, double, soak.seed, done)?;
            if record.victim == "main" {
                memory = resident_mb(victim.main.id());
            }
            growth = growth.max(resident_mb(victim.main.id()) - memory);
            append(soak.record.as_deref(), &record)?;
            say!(
                "kill {done}: {}{} replaced after {:.2} s, got on after {:.2} s",
                record.victim,
                record.second.as_ref().map_or_else(String::new, |s| format!(" and {s}")),
                record.replaced_s,
                record.progress_s
            );
            records.push(record);
            done += 1;
        }
        victim.end()?;
        std::fs::remove_dir_all(&run_dir)?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(SoakReport { growth_mb: growth, ..SoakReport::of(&records) })
}

/// One kill, or two, and the recovery.
fn one(
    victim: &mut Victim,
    roles: &[Role],
    rng: &mut ChaCha8Rng,
    double: bool,
    seed: u64,
    number: usize,
) -> anyhow::Result<KillRecord> {
    let start = Instant::now();
    let (name, second, replaced_s);
    if rng.random_bool(0.12) {
        victim.kill_main()?;
        (name, second) = ("main".to_owned(), None);
        replaced_s = start.elapsed().as_secs_f64();
    } else {
        let role = roles[rng.random_range(0..roles.len())];
        let dead = send_kill(victim, role)?;
        let mut other = None;
        if double {
            std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
            let role = roles[rng.random_range(0..roles.len())];
            // The one that was just killed may have no successor yet.
            if victim.pid_of(role).is_some_and(|pid| Some(pid) != dead) {
                send_kill(victim, role)?;
                other = Some(role.to_string());
            }
        }
        victim.wait(&format!("successor of {role}"), |v| v.pid_of(role).is_some_and(|pid| Some(pid) != dead))?;
        replaced_s = start.elapsed().as_secs_f64();
        (name, second) = (role.to_string(), other);
    }
    let before = victim.counters();
    let steps = |v: &Victim| -> Vec<u64> { v.control.actors.iter().map(|a| a.steps.get()).collect() };
    let steps_before = steps(victim);
    let actors = victim.rings.len();
    victim.wait("progress of everybody", |v| {
        let now = v.counters();
        let acting = steps(v).iter().zip(&steps_before).take(actors).all(|(now, before)| now > before);
        acting
            && now.updates > before.updates
            && now.samples > before.samples
            && now.evaluations > before.evaluations
            && now.snapshots > before.snapshots
    })?;
    victim.wait("an account of every sample", Victim::books_are_open_by_a_block_at_most)?;
    Ok(KillRecord { seed, kill: number, victim: name, second, replaced_s, progress_s: start.elapsed().as_secs_f64() })
}

/// Kills the process in a role; which one that was.
fn send_kill(victim: &mut Victim, role: Role) -> anyhow::Result<Option<u32>> {
    victim.wait(&format!("{role}"), |v| v.pid_of(role).is_some())?;
    let pid = victim.pid_of(role);
    if let Some(pid) = pid {
        // It may have died by a kill that is being recovered from.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    Ok(pid)
}

fn resident_mb(pid: u32) -> f64 {
    usage(pid).map_or(0.0, |usage| usage.resident_mb)
}

fn read_record(path: &Path) -> anyhow::Result<Vec<KillRecord>> {
    let text = match std::fs::read_to_string(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let parse = |line: &str| serde_json::from_str(line).with_context(|| format!("{}: `{line}`", path.display()));
    text.lines().map(parse).collect()
}

fn append(path: Option<&Path>, record: &KillRecord) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{}", serde_json::to_string(record)?).with_context(|| format!("cannot write {}", path.display()))
}
