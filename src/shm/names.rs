//! Names of segments, and removal of those of dead runs.
//!
//! A segment is called `admix-<run id>.<draw>-<pid>-<start time>-<part>`. The draw is a random number, drawn whenever segments
//! are created, so that no name is ever used twice or can be foreseen. Pid and start time of the run's main process are for
//! human readers and for versions of this program without locks. Names last as long as the run: a respawned child and `inspect`
//! open segments by them.
//!
//! A run is alive if its main process holds a lock on the control segment ([`super::lock`]); its pid does not matter. The lock
//! works across pid namespaces that share `/dev/shm`, and where `/proc` is hidden. The control segment is created first and
//! removed last, so segments without one are left over from a dead run. A main process that is killed cannot remove its
//! segments; the next start of the same user does ([`sweep`]).

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::error::ShmError;
use super::lock;

/// Folder in which the kernel shows POSIX shared memory as files.
pub(super) const SHM_DIR: &str = "/dev/shm";
const PREFIX: &str = "admix";
/// The part that is created first, removed last, and locked by main.
pub const CONTROL: &str = "control";

/// The names of one run's segments.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunNames {
    run_id: String,
    draw: u64,
    pid: u32,
    start_time: u64,
}

impl RunNames {
    /// Draws names for a run whose main process is the calling one.
    ///
    /// # Errors
    /// If `run_id` has characters that a file name should not have, or more than 128.
    pub fn for_this_process(run_id: &str) -> Result<Self, ShmError> {
        let bad = |c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c));
        if run_id.is_empty() || run_id.len() > 128 || run_id.contains(bad) {
            return Err(ShmError::BadName { text: run_id.to_owned(), also: ", and `-`; 1 to 128 of them" });
        }
        // The standard library seeds it from the system's random source, differently each time.
        let draw = RandomState::new().build_hasher().finish().max(1);
        let pid = std::process::id();
        // Where /proc is not mounted, the lock still works.
        let start_time = start_time(pid).unwrap_or(0);
        Ok(Self { run_id: run_id.to_owned(), draw, pid, start_time })
    }

    /// Returns the names of the run whose main process is `pid`; `None` while it has no control block, or when it is gone.
    pub fn of_process(pid: u32) -> Option<Self> {
        let files = fs::read_dir(SHM_DIR).ok()?;
        files.flatten().find_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (names, part) = Self::parse(&name)?;
            (names.pid == pid && part == CONTROL && names.is_alive()).then_some(names)
        })
    }

    /// Returns the full name of one part, such as `control` or `ring3`.
    ///
    /// # Panics
    /// If `part` does not consist of letters, digits, `.` and `_`: parts are chosen in the code.
    pub fn part(&self, part: &str) -> String {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        assert!(!part.is_empty() && part.chars().all(good), "part `{part}`");
        format!("{self}-{part}")
    }

    /// Splits a full name into the run's names and the part; `None` if it is not a name of this program.
    pub fn parse(name: &str) -> Option<(Self, &str)> {
        // From the right: a run id may contain dashes, the other fields do not.
        let mut fields = name.rsplitn(4, '-');
        let part = fields.next()?;
        let start_time = fields.next()?.parse().ok()?;
        let pid = fields.next()?.parse().ok()?;
        let run = fields.next()?.strip_prefix(PREFIX)?.strip_prefix('-')?;
        // Versions without locks had no draw.
        let drawn = run.rsplit_once('.').and_then(|(run_id, draw)| Some((run_id, u64::from_str_radix(draw, 16).ok()?)));
        let (run_id, draw) = drawn.unwrap_or((run, 0));
        let names = Self { run_id: run_id.to_owned(), draw, pid, start_time };
        Some((names, part))
    }

    /// Returns the names under which `user` has shared memory of a run with this id, or left it when its main process was
    /// killed; live runs first. Files of other users under such names are ignored.
    ///
    /// # Errors
    /// If `/dev/shm` cannot be listed.
    pub fn of_run(run_id: &str, user: u32) -> Result<Vec<Self>, ShmError> {
        let runs =
            runs_of(user).map_err(|source| ShmError::Os { name: SHM_DIR.to_owned(), what: "list it", source })?;
        let mut found: Vec<Self> = runs.into_keys().filter(|names| names.run_id == run_id).collect();
        found.sort_by_key(|names| !names.is_alive());
        Ok(found)
    }

    /// Returns the process id of the run's main process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns whether the main process of these names is alive: it holds the lock on its control segment.
    pub fn is_alive(&self) -> bool {
        let control = lock::open(&self.path(CONTROL), OpenOptions::new().read(true));
        control.and_then(|file| lock::is_held(&file)).unwrap_or(false)
    }

    /// Returns the file of one part.
    pub(super) fn path(&self, part: &str) -> PathBuf {
        Path::new(SHM_DIR).join(self.part(part))
    }
}

impl fmt::Display for RunNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run_id, draw, pid, start_time } = self;
        // A draw is never 0: see `parse`.
        let draw = if *draw == 0 { String::new() } else { format!(".{draw:016x}") };
        write!(f, "{PREFIX}-{run_id}{draw}-{pid}-{start_time}")
    }
}

/// Lists the segments of a user by run: regular files with names of this program.
fn runs_of(user: u32) -> io::Result<BTreeMap<RunNames, Vec<String>>> {
    let mut runs = BTreeMap::<RunNames, Vec<String>>::new();
    for entry in fs::read_dir(SHM_DIR)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Metadata of the entry itself: a link is not followed. It may have gone by now.
        let ours = entry.metadata().is_ok_and(|meta| meta.is_file() && meta.uid() == user);
        if let Some((names, part)) = RunNames::parse(&name).filter(|_| ours) {
            runs.entry(names).or_default().push(part.to_owned());
        }
    }
    Ok(runs)
}

/// Removes the segments that dead runs of this user left; returns their names.
///
/// Ignores everything else: other users' files, anything that is not a regular file, and files that cannot be removed. No
/// content of `/dev/shm` keeps a run from starting.
pub fn sweep() -> Vec<String> {
    let runs = runs_of(geteuid().as_raw()).unwrap_or_else(|e| {
        tracing::debug!("{SHM_DIR} cannot be swept: {e}");
        BTreeMap::new()
    });
    let mut removed: Vec<String> = runs.iter().flat_map(|(names, parts)| sweep_run(names, parts)).collect();
    removed.sort();
    removed
}

/// Removes the parts of one run if it is dead.
fn sweep_run(names: &RunNames, parts: &[String]) -> Vec<String> {
    // It may be of a version without locks.
    if start_time(names.pid) == Some(names.start_time) {
        return vec![];
    }
    // Held until all parts are gone. If main has just created the segment and wants the lock, it sees that the name is lost.
    let control = match lock::open(&names.path(CONTROL), OpenOptions::new().read(true).write(true)) {
        Ok(file) if lock::try_take(&file).unwrap_or(false) => Some(file),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        _ => return vec![],
    };
    let mut removed = Vec::new();
    let others = parts.iter().map(String::as_str).filter(|part| *part != CONTROL);
    for part in others.chain(control.is_some().then_some(CONTROL)) {
        match fs::remove_file(names.path(part)) {
            Ok(()) => removed.push(names.part(part)),
            // Two starts may sweep at once.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                tracing::debug!("{}, left by a dead run, stays: {e}", names.part(part));
                break;
            }
        }
    }
    removed
}

/// Returns whether process `pid` exists and is not just waiting to be reaped.
pub fn is_alive(pid: u32) -> bool {
    start_time(pid).is_some()
}

/// Returns when process `pid` started, in clock ticks since boot; `None` if it is gone or only waits to be reaped.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // Field 2 is the command in parentheses and may contain anything; field 3 follows the last `)`.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 3 has been consumed, so field 22 is the 19th from here.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

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

    /// Held by the tests that sweep: each would remove what another put there.
    static ALONE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(name: &str) {
        fs::write(Path::new(SHM_DIR).join(name), b"x").unwrap();
    }

    fn exists(name: &str) -> bool {
        Path::new(SHM_DIR).join(name).exists()
    }

    #[test]
    fn sweep_removes_the_dead_and_keeps_the_living() {
        let _alone = alone();
        // As for a process that is gone, or whose id was reused: only the lock decides.
        let draw = || RunNames { start_time: 1, ..RunNames::for_this_process("sweep-test").unwrap() };
        let (live, dead, headless) = (draw(), draw(), draw());
        assert!(live != dead, "no name is drawn twice");
        let foreign = format!("foreign-sweep-test-{}", std::process::id());
        for name in
            [&live.part(CONTROL), &live.part("a"), &dead.part(CONTROL), &dead.part("a"), &headless.part("b"), &foreign]
        {
            put(name);
        }
        let main = lock::open(&live.path(CONTROL), OpenOptions::new().write(true)).unwrap();
        assert!(lock::try_take(&main).unwrap());
        assert!(live.is_alive() && !dead.is_alive() && !headless.is_alive());
        let removed = sweep();
        let kept = [live.part(CONTROL), live.part("a"), foreign];
        assert!(kept.iter().all(|name| exists(name)));
        for name in [dead.part(CONTROL), dead.part("a"), headless.part("b")] {
            assert!(removed.contains(&name) && !exists(&name), "{name}");
        }
        drop(main);
        assert!(!live.is_alive());
        assert!(sweep().contains(&live.part("a")));
        fs::remove_file(Path::new(SHM_DIR).join(&kept[2])).unwrap();
    }

    #[test]
    fn names_of_versions_without_locks_are_known_and_their_live_runs_are_left_alone() {
        let _alone = alone();
        let old = format!("admix-abc.def-1-2-{}-{}-ring3", std::process::id(), start_time(std::process::id()).unwrap());
        let (names, part) = RunNames::parse(&old).unwrap();
        assert_eq!((names.part(part), part), (old.clone(), "ring3"));
        put(&old);
        sweep();
        let left = exists(&old);
        fs::remove_file(Path::new(SHM_DIR).join(&old)).unwrap();
        assert!(left);
    }

    /// A folder of such a name, or a file of another user, made every start fail.
    #[test]
    fn what_cannot_or_should_not_be_removed_is_passed_over() {
        let _alone = alone();
        let names = RunNames { start_time: 1, ..RunNames::for_this_process("sweep-passes").unwrap() };
        fs::create_dir(names.path(CONTROL)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", names.path("a")).unwrap();
        nix::unistd::mkfifo(&names.path("b"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        sweep();
        let left = [names.path(CONTROL), names.path("a"), names.path("b")].map(|p| fs::symlink_metadata(p).is_ok());
        fs::remove_dir(names.path(CONTROL)).unwrap();
        for part in ["a", "b"] {
            fs::remove_file(names.path(part)).unwrap();
        }
        assert_eq!(left, [true; 3]);
    }
}
