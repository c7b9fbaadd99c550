//! Child processes: new executions of this program with a hidden subcommand.
//!
//! Each is in its own process group (so that Ctrl-C reaches only main), dies with its parent, and logs to its own file. A
//! SIGTERM sent to all processes of the run is meant for main: children ignore it, save when main asks for it, and end when
//! main tells them to or dies.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::awake::Deadline;
use crate::files;
use crate::run::RunDirectory;
use crate::shm::Role;

use super::interrupt::Interrupt;

/// A supervised child process.
#[derive(Debug)]
pub struct Process {
    pub role: Role,
    child: Child,
    started: Instant,
    /// Number of starts after the first.
    pub restarts: u32,
    /// Consecutive deaths within a second of the start.
    quick_deaths: u32,
    /// Time of the next start.
    pub due: Option<Instant>,
}

/// Returns a command that runs this program, even after its file was replaced or removed: a build must not end a running
/// training.
///
/// Its name in process lists is `admix`.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("admix");
    command
}

/// Opens the log of a child; `/dev/null`, with a warning, where it cannot be written: a missing log must not end a run.
fn log_of(role: Role, directory: &RunDirectory) -> anyhow::Result<File> {
    let path = directory.log(&role.to_string());
    let open = || {
        std::fs::create_dir_all(directory.logs())?;
        files::open_no_follow(&path, OpenOptions::new().create(true).append(true))
    };
    open().or_else(|e| {
        tracing::warn!("{} cannot be written, the {role} process has no log: {e}", path.display());
        OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null")
    })
}

/// Signals that end a run; only main handles them.
const MEANT_FOR_MAIN: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn spawn(role: Role, directory: &RunDirectory, prefix: &str) -> anyhow::Result<Child> {
    let log = log_of(role, directory)?;
    let mut command = this_program();
    command.arg("child").arg(role.name());
    if let Some(id) = role.id() {
        command.arg("--id").arg(id.to_string());
    }
    command
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--run-dir")
        .arg(directory.root())
        .arg("--names")
        .arg(prefix)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    // SAFETY: `signal` may be called between fork and exec; nothing is allocated or locked. Ignored signals stay ignored in the
    // new program, so that there is no moment at which they would end it.
    unsafe {
        command.pre_exec(|| {
            for signal in MEANT_FOR_MAIN {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("cannot start the {role} process"))
}

impl Process {
    pub fn start(role: Role, directory: &RunDirectory, prefix: &str) -> anyhow::Result<Self> {
        Ok(Self {
            role,
            child: spawn(role, directory, prefix)?,
            started: Instant::now(),
            restarts: 0,
            quick_deaths: 0,
            due: None,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status, once.
    pub fn reap(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.due.is_some() {
            return Ok(None);
        }
        Ok(self.child.try_wait()?)
    }

    /// Schedules the next start: at once, or later if the process keeps dying right after its start.
    pub fn schedule_restart(&mut self) {
        self.quick_deaths = if self.started.elapsed() < Duration::from_secs(1) { self.quick_deaths + 1 } else { 0 };
        self.due = Some(Instant::now() + pause_before_restart(self.quick_deaths));
    }

    /// Starts the process again if that is due.
    pub fn restart_if_due(&mut self, directory: &RunDirectory, prefix: &str) -> anyhow::Result<bool> {
        if self.due.is_none_or(|due| Instant::now() < due) {
            return Ok(false);
        }
        self.child = spawn(self.role, directory, prefix)?;
        self.started = Instant::now();
        self.due = None;
        self.restarts += 1;
        Ok(true)
    }

    /// Kills the process; it is reaped like one that died by itself.
    pub fn kill(&mut self) {
        // It may have ended a moment ago.
        let _ = self.child.kill();
    }

    /// Waits for the end until `deadline` or a pressing interrupt, then kills.
    pub fn finish(&mut self, deadline: &mut Deadline, interrupt: &Interrupt) -> anyhow::Result<Option<ExitStatus>> {
        if self.due.is_some() {
            return Ok(None);
        }
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if deadline.is_over() || interrupt.is_pressing() {
                tracing::warn!("{} has not ended, killing it", self.role);
                self.child.kill()?;
                return Ok(Some(self.child.wait()?));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the pause before the next start of a process with this many consecutive quick deaths.
fn pause_before_restart(quick_deaths: u32) -> Duration {
    match quick_deaths {
        0 | 1 => Duration::ZERO,
        // Less than a second, within which an actor is promised to be replaced; `actors.max_restarts` ends a hopeless run.
        n => Duration::from_millis(50 << n.min(3)),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only an error path leaves one alive.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Disables huge pages for main and, by inheritance, its children; main calls it before it spawns them.
///
/// Freed memory leaves holes, and the kernel fills them again when it builds a huge page around them: main grew by a fifth while it only
/// watched, and the learner's memory varied by a tenth. Huge pages bring no speed there (`BENCHMARKS.md`). Trainers, ranks and the checkpointer of values use
/// them ([`with_huge_pages`]).
pub fn without_huge_pages() {
    if let Err(e) = prctl::set_thp_disable(true) {
        tracing::debug!("huge pages stay on: {e}");
    }
}

/// Enables huge pages for this child if it works with rows, which lie in them: those of the table, and of snapshots in shared memory.
pub fn with_huge_pages(role: Role) {
    if matches!(role, Role::Trainer | Role::Rank(_) | Role::ValueCheckpointer)
        && let Err(e) = prctl::set_thp_disable(false)
    {
        tracing::debug!("huge pages stay off: {e}");
    }
}

/// Niceness of all processes but learner, trainer and ranks: they get a tenth of the share of those where both want the same
/// core.
const NICENESS: i32 = 10;

/// Lowers the priority of this child unless it is a learner, trainer or rank, so that these come first where cores are scarce.
///
/// The learner's threads share the work of an update and all wait for the last one: an actor that takes a core from one of them delays
/// the update by that time and idles the other cores. Actors are not urgent: their rings bound how far they run ahead.
pub fn queue_for_cores(role: Role) {
    if !matches!(role, Role::Learner | Role::LearnerRank(_) | Role::Trainer | Role::Rank(_))
        && let Err(e) = rustix::process::nice(NICENESS)
    {
        tracing::debug!("priority stays as it is: {e}");
    }
}

/// Sets this child's short name in process lists, at most 15 characters.
pub fn name_this_process(role: Role) {
    let name = std::ffi::CString::new(format!("admix-{role}")).unwrap_or_default();
    if let Err(e) = prctl::set_name(&name) {
        tracing::debug!("no name for this process: {e}");
    }
}

/// Makes a child die with its parent, and detects a parent that is already dead; to be called first.
///
/// # Errors
/// The parent is gone.
pub fn bind_to_parent(parent: i32) -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot ask to die with the parent")?;
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the main process is gone");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause doubled with every quick death, up to six seconds.
    #[test]
    fn the_pause_before_a_restart_stays_well_below_a_second() {
        let pauses: Vec<Duration> = (0..40).map(pause_before_restart).collect();
        assert_eq!(pauses[..2], [Duration::ZERO; 2]);
        assert!(pauses.is_sorted() && pauses[39] == Duration::from_millis(400), "{pauses:?}");
    }
}
