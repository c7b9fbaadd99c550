//! Child processes of a study: executions of this program, a limited number at a time.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::supervisor::children::this_program;
use crate::supervisor::interrupt::Interrupt;

const POLL: Duration = Duration::from_millis(50);
/// Time between two interrupts that are passed on. Jobs take two within a quarter of a second for one ([`crate::supervisor::interrupt`]), and
/// those that the study got further apart may be noticed closer together.
const APART: Duration = Duration::from_millis(500);

/// One execution of this program.
#[derive(Debug)]
pub struct Job {
    /// Name for messages.
    pub name: String,
    pub arguments: Vec<OsString>,
    /// File for its output.
    pub log: PathBuf,
}

/// How a job ended.
#[derive(Debug)]
pub struct Ended {
    /// Index among the jobs.
    pub job: usize,
    pub seconds: f64,
    /// Reason of the failure, if it failed.
    pub failure: Option<String>,
}

struct Running {
    job: usize,
    child: Child,
    started: Instant,
}

impl Running {
    fn start(index: usize, job: &Job) -> anyhow::Result<Self> {
        let log = File::create(&job.log).with_context(|| format!("cannot write {}", job.log.display()))?;
        let mut command = this_program();
        // A separate process group: a Ctrl-C reaches only the study, which passes it on.
        command.args(&job.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", job.name))?;
        Ok(Self { job: index, child, started: Instant::now() })
    }

    fn signal(&self) {
        // It may have ended by itself, so errors are ignored.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only an error path leaves one alive.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The interrupts that were passed on.
#[derive(Default)]
struct PassedOn {
    count: usize,
    last: Option<Instant>,
}

impl PassedOn {
    /// Returns whether another one of `interrupts` is to be passed on `now`, and counts it.
    fn another(&mut self, interrupts: usize, now: Instant) -> bool {
        let due = interrupts > self.count && self.last.is_none_or(|last| now.duration_since(last) >= APART);
        if due {
            (self.count, self.last) = (self.count + 1, Some(now));
        }
        due
    }
}

/// Runs the jobs in order, `at_once` at a time, and calls `ended` for each. Each interrupt is passed on to those that run, and no
/// more are started: a run saves at the first one, for which it has a grace period of its own, and ends at once at the second.
///
/// Children that were given `--parent` die with this process, and with the thread that started them, so this must not run on a thread that ends
/// before them.
///
/// # Errors
/// A process that cannot be started or waited for.
pub fn run(jobs: &[Job], at_once: usize, interrupt: &Interrupt, ended: &mut dyn FnMut(Ended)) -> anyhow::Result<()> {
    let mut waiting = jobs.iter().enumerate();
    let mut running: Vec<Running> = Vec::new();
    let mut passed_on = PassedOn::default();
    loop {
        let interrupts = interrupt.count();
        while interrupts == 0 && running.len() < at_once.max(1) {
            let Some((index, job)) = waiting.next() else { break };
            running.push(Running::start(index, job)?);
        }
        if running.is_empty() {
            return Ok(());
        }
        if passed_on.another(interrupts, Instant::now()) {
            running.iter().for_each(Running::signal);
        }
        let mut still = Vec::new();
        for mut run in running {
            match run.child.try_wait()? {
                Some(status) => {
                    let failure = (!status.success()).then(|| failure(&jobs[run.job], status));
                    ended(Ended { job: run.job, seconds: run.started.elapsed().as_secs_f64(), failure });
                }
                None => still.push(run),
            }
        }
        running = still;
        std::thread::sleep(POLL);
    }
}

/// Returns the last error in a job's log, or its exit status.
fn failure(job: &Job, status: ExitStatus) -> String {
    let text = std::fs::read_to_string(&job.log).unwrap_or_default();
    let said = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let why = said.map_or_else(|| status.to_string(), ToOwned::to_owned);
    format!("{why} (see {})", job.log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two that a study noticed closely behind each other counted as one with its jobs, which then ran on until their grace period was over.
    #[test]
    fn interrupts_are_passed_on_so_far_apart_that_jobs_count_them() {
        let begun = Instant::now();
        let mut passed_on = PassedOn::default();
        let mut at = |interrupts, ms| passed_on.another(interrupts, begun + Duration::from_millis(ms));
        assert!(!at(0, 0) && at(1, 50) && !at(1, 100));
        assert!(!at(2, 150) && !at(2, 500) && at(2, 550) && !at(2, 2000));
    }
}
