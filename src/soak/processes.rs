//! Processes of a run, observed from outside.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shm::names::is_alive;

/// Time after which a missing recovery counts as a hang; on a machine loaded with ten times its cores, recovery takes minutes.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Polling interval.
pub const LOOK: Duration = Duration::from_millis(2);

/// A process of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// `learner`, `evaluator`, `actor0`, ..
    pub role: String,
    pub pid: u32,
    /// Common prefix of the names of the run's segments, from a child's command line; empty for main.
    pub names: String,
}

impl Member {
    /// Returns the main process of a run.
    pub fn main(pid: u32) -> Self {
        Self { role: "main".into(), pid, names: String::new() }
    }
}

/// Returns the living children of the run whose main process is, or was, `main`, by their command lines.
pub fn children_of(main: u32) -> Vec<Member> {
    let parent = main.to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            // A process that has ended and is not yet reaped has an empty command line.
            let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let words: Vec<&str> = line.split('\0').collect();
            let after = |option: &str| words.iter().position(|w| *w == option).and_then(|i| words.get(i + 1)).copied();
            (words.get(1) == Some(&"child") && after("--parent") == Some(&parent)).then_some(())?;
            let role = format!("{}{}", words.get(2)?, after("--id").unwrap_or(""));
            Some(Member { role, pid, names: after("--names")?.to_owned() })
        })
        .collect()
}

/// Sends a signal to a process, which may have ended a moment ago.
pub fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// Waits until the children of a dead main process are gone; returns the seconds that took.
///
/// # Errors
/// Children that stay alive.
pub fn await_orphans(children: &[Member]) -> anyhow::Result<f64> {
    let start = Instant::now();
    for child in children {
        while is_alive(child.pid) {
            ensure!(start.elapsed() < PATIENCE, "the {} lives on after main's death", child.role);
            std::thread::sleep(LOOK);
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Waits until `done`; returns the seconds that took.
///
/// # Errors
/// If it takes longer than [`PATIENCE`].
pub fn wait_until(what: &str, run_dir: &Path, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<f64> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < PATIENCE, "a hang: no {what}; see {}", run_dir.display());
        std::thread::sleep(LOOK);
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Sleeps for a moment between `from` and `to` milliseconds.
pub fn nap(rng: &mut impl rand::Rng, from: u64, to: u64) {
    use rand::RngExt as _;
    std::thread::sleep(Duration::from_millis(rng.random_range(from..=to)));
}
