//! Names of segments, and what dead runs left behind.
//!
//! A segment is called `admix-<run id>-<pid>-<start time>-<part>`, pid and start time being those of the
//! run's main process. Both together name a process for ever (a pid alone is reused), so that whoever finds
//! the name can tell whether its run still lives. Names last as long as the run: a respawned child and
//! `inspect` open segments by them. A main process that is killed cannot remove its own, so the next start
//! sweeps. Processes are looked up in this pid namespace only: runs in containers that share `/dev/shm`
//! must share their pid namespace as well.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use super::error::ShmError;

/// Where the kernel shows POSIX shared memory as files.
pub(super) const SHM_DIR: &str = "/dev/shm";
const PREFIX: &str = "admix";

/// The names of one run's segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunNames {
    run_id: String,
    pid: u32,
    start_time: u64,
}

impl RunNames {
    /// Names for a run whose main process is the calling one.
    ///
    /// # Errors
    /// When `run_id` has characters that a file name should not have, or more than 128.
    pub fn for_this_process(run_id: &str) -> Result<Self, ShmError> {
        let bad = |c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c));
        if run_id.is_empty() || run_id.len() > 128 || run_id.contains(bad) {
            return Err(ShmError::BadName { text: run_id.to_owned(), also: ", and `-`; 1 to 128 of them" });
        }
        let pid = std::process::id();
        let start_time = start_time(pid).ok_or_else(|| ShmError::Os {
            name: run_id.to_owned(),
            what: "read the start time in /proc/self/stat",
            source: io::ErrorKind::NotFound.into(),
        })?;
        Ok(Self { run_id: run_id.to_owned(), pid, start_time })
    }

    /// The names of the run whose main process is `pid`; `None` while it has no control block, or when it is gone.
    pub fn of_process(pid: u32) -> Option<Self> {
        let files = fs::read_dir(SHM_DIR).ok()?;
        files.flatten().find_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (names, part) = Self::parse(&name)?;
            (names.pid == pid && part == "control" && names.is_alive()).then_some(names)
        })
    }

    /// The full name of one part, such as `control` or `ring3`.
    ///
    /// # Panics
    /// When `part` is not made of letters, digits, `.` and `_`: parts are chosen in the code.
    pub fn part(&self, part: &str) -> String {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        assert!(!part.is_empty() && part.chars().all(good), "part `{part}`");
        format!("{self}-{part}")
    }

    /// Takes a full name apart into the run's names and the part; `None` when it is not one of ours.
    pub fn parse(name: &str) -> Option<(Self, &str)> {
        // From the right: a run id may contain dashes, the others do not.
        let mut fields = name.rsplitn(4, '-');
        let part = fields.next()?;
        let start_time = fields.next()?.parse().ok()?;
        let pid = fields.next()?.parse().ok()?;
        let run_id = fields.next()?.strip_prefix(PREFIX)?.strip_prefix('-')?;
        let names = Self { run_id: run_id.to_owned(), pid, start_time };
        Some((names, part))
    }

    /// The names under which a run with this id has shared memory, or had it when its main process was killed; the living
    /// first.
    ///
    /// # Errors
    /// When `/dev/shm` cannot be listed.
    pub fn of_run(run_id: &str) -> Result<Vec<Self>, ShmError> {
        let failed = |source| ShmError::Os { name: SHM_DIR.to_owned(), what: "list it", source };
        let mut found = Vec::new();
        for entry in fs::read_dir(SHM_DIR).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let parsed = name.to_str().and_then(Self::parse);
            if let Some((names, _)) = parsed.filter(|(names, _)| names.run_id == run_id)
                && !found.contains(&names)
            {
                found.push(names);
            }
        }
        found.sort_by_key(|names| (!names.is_alive(), std::cmp::Reverse(names.start_time)));
        Ok(found)
    }

    /// Process id of the run's main process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Whether the main process of these names is still there.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

impl fmt::Display for RunNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_id, pid, start_time } = self;
        write!(f, "{PREFIX}-{run_id}-{pid}-{start_time}")
    }
}

/// Removes the segments of runs whose main process is dead; returns their names.
///
/// # Errors
/// When `/dev/shm` cannot be listed, or a dead run's segment cannot be removed (it is another user's).
pub fn sweep() -> Result<Vec<String>, ShmError> {
    let failed = |what, name: &str, source| ShmError::Os { name: name.to_owned(), what, source };
    let mut removed = Vec::new();
    for entry in fs::read_dir(SHM_DIR).map_err(|e| failed("list it", SHM_DIR, e))? {
        let entry = entry.map_err(|e| failed("list it", SHM_DIR, e))?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let Some((names, _)) = RunNames::parse(&name) else {
            continue;
        };
        if names.is_alive() {
            continue;
        }
        match fs::remove_file(entry.path()) {
            Ok(()) => removed.push(name),
            // Two starts may sweep at once.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed("remove what a dead run left", &name, e)),
        }
    }
    removed.sort();
    Ok(removed)
}

/// Whether process `pid` is there and not merely waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    start_time(pid).is_some()
}

/// When process `pid` started, in clock ticks since boot; `None` when it is gone or only waits to be reaped.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // Field 2 is the command in parentheses and may contain anything; field 3 follows its last `)`.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 3 is taken, so field 22 is 18 further on.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_again() {
        let names = RunNames::for_this_process("2026-01-02_a.b").unwrap();
        let name = names.part("ring3");
        assert_eq!(RunNames::parse(&name), Some((names, "ring3")));
        for foreign in ["admix", "other-x-1-2-ring", "admix-x-1-ring", "admix-x-y-2-ring", "sem.a-b-1-2-c"] {
            assert_eq!(RunNames::parse(foreign), None, "{foreign}");
        }
        for bad in ["", "a/b", "a b", &"x".repeat(129)] {
            assert!(RunNames::for_this_process(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_process_is_alive_until_it_is_over() {
        assert!(start_time(std::process::id()).is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }

    #[test]
    fn sweep_removes_the_dead_and_keeps_the_living() {
        let live = RunNames::for_this_process("sweep-test").unwrap();
        // The same pid with another start time: the pid was reused.
        let reused = RunNames { start_time: live.start_time + 1, ..live.clone() };
        let gone = RunNames { pid: u32::MAX, ..live.clone() };
        let foreign = format!("foreign-sweep-test-{}", std::process::id());
        let names = [live.part("a"), reused.part("a"), gone.part("b"), foreign.clone()];
        for name in &names {
            fs::write(Path::new(SHM_DIR).join(name), b"x").unwrap();
        }
        let removed = sweep().unwrap();
        let exists = |name: &String| Path::new(SHM_DIR).join(name).exists();
        let left: Vec<_> = names.iter().filter(|n| exists(n)).cloned().collect();
        for name in &left {
            fs::remove_file(Path::new(SHM_DIR).join(name)).unwrap();
        }
        assert_eq!(left, [live.part("a"), foreign]);
        assert!(removed.contains(&reused.part("a")) && removed.contains(&gone.part("b")));
    }
}
