//! Child processes: fresh executions of this program with a hidden subcommand.
//!
//! Each is in a process group of its own (a Ctrl-C reaches main alone), dies with its parent, and logs to its own file. A
//! SIGTERM that a supervisor sends to all processes of the run means main, too: children ignore it, save what main asks for,
//! and end when main says so or dies.

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
use crate::{checkpoint, evaluator, learner, rank};

use super::interrupt::Interrupt;

/// What a child process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Actor(usize),
    Learner,
    Evaluator,
    Checkpointer,
    /// Of a run of `admix values train`, like those below.
    Reader(usize),
    Trainer,
    /// A trainer beside it, from 1.
    Rank(usize),
    ValueCheckpointer,
}

impl Role {
    /// The hidden subcommand.
    fn subcommand(self) -> &'static str {
        match self {
            Self::Actor(_) => "actor",
            Self::Learner => "learner",
            Self::Evaluator => "evaluator",
            Self::Checkpointer => "checkpointer",
            Self::Reader(_) => "reader",
            Self::Trainer => "trainer",
            Self::Rank(_) => "rank",
            Self::ValueCheckpointer => "value-checkpointer",
        }
    }

    /// Where it signs in ([`crate::shm::ControlBlock::processes`]).
    pub fn slot(self) -> usize {
        match self {
            Self::Actor(id) | Self::Reader(id) => id,
            Self::Trainer => rank::SLOT,
            Self::Rank(id) => rank::slot(id),
            Self::Learner => learner::process::SLOT,
            Self::Evaluator => evaluator::process::SLOT,
            Self::Checkpointer | Self::ValueCheckpointer => checkpoint::SLOT,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Actor(id) => write!(f, "actor{id}"),
            Self::Reader(id) => write!(f, "reader{id}"),
            Self::Rank(id) => write!(f, "rank{id}"),
            Self::ValueCheckpointer => f.write_str("checkpointer"),
            other => f.write_str(other.subcommand()),
        }
    }
}

/// A child process under watch.
#[derive(Debug)]
pub struct Process {
    pub role: Role,
    child: Child,
    started: Instant,
    /// Starts after the first.
    pub restarts: u32,
    /// Deaths in a row within a second of the start.
    quick_deaths: u32,
    /// When to start it again.
    pub due: Option<Instant>,
}

/// This program, also after its file was replaced or removed: a build must not end a training run under way.
///
/// `admix` is what it is called where processes are listed.
pub fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("admix");
    command
}

/// Where a child logs to; nowhere, with a warning, where that cannot be written: a run must not end for want of a log.
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

/// The signals that end a run, which main alone heeds.
const MEANT_FOR_MAIN: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn spawn(role: Role, directory: &RunDirectory, prefix: &str) -> anyhow::Result<Child> {
    let log = log_of(role, directory)?;
    let mut command = this_program();
    command.arg("child").arg(role.subcommand());
    if let Role::Actor(id) | Role::Reader(id) | Role::Rank(id) = role {
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

    /// The exit status, once.
    pub fn reap(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.due.is_some() {
            return Ok(None);
        }
        Ok(self.child.try_wait()?)
    }

    /// Plans the next start: at once, later if it keeps dying as soon as it is started.
    pub fn schedule_restart(&mut self) {
        self.quick_deaths = if self.started.elapsed() < Duration::from_secs(1) { self.quick_deaths + 1 } else { 0 };
        self.due = Some(Instant::now() + pause_before_restart(self.quick_deaths));
    }

    /// Starts it again if that is due.
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

    /// Kills it; it is reaped like one that died by itself.
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

/// How long a process that died so often in a row soon after its start has to wait for the next one.
fn pause_before_restart(quick_deaths: u32) -> Duration {
    match quick_deaths {
        0 | 1 => Duration::ZERO,
        // Short of a second, in which an actor is promised to be replaced; `actors.max_restarts` ends a hopeless run.
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

/// Called by main before it spawns anybody: the kernel gathers no memory into huge pages, neither main's nor, as they inherit it, its
/// children's.
///
/// What was freed leaves holes, and a huge page gathered around them fills them again: main grew by a fifth while it did nothing but watch, the
/// learner went up and down by a tenth. They speed nothing up here (`BENCHMARKS.md`).
pub fn without_huge_pages() {
    if let Err(e) = prctl::set_thp_disable(true) {
        tracing::debug!("huge pages stay on: {e}");
    }
}

/// What all but the learner stand behind it in the queue for cores: they get a tenth of its share where both want the same one.
const NICENESS: i32 = 10;

/// Called in a child: where cores are fewer than those who want them, the learner comes first.
///
/// Its threads share the work of an update, and all wait for the last of them: with an actor in its place for a while, one of them costs the update
/// that while, and the other's core as well. Actors have time: what they are ahead is bounded by their rings.
pub fn queue_for_cores(role: Role) {
    if !matches!(role, Role::Learner | Role::Trainer | Role::Rank(_))
        && let Err(e) = rustix::process::nice(NICENESS)
    {
        tracing::debug!("priority stays as it is: {e}");
    }
}

/// Called in a child: what it is called where processes are listed by their short names, 15 characters at most.
pub fn name_this_process(role: Role) {
    let name = std::ffi::CString::new(format!("admix-{role}")).unwrap_or_default();
    if let Err(e) = prctl::set_name(&name) {
        tracing::debug!("no name for this process: {e}");
    }
}

/// Called first in a child: die when the parent dies, and notice if it is dead already.
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
