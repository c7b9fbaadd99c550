//! Other users and other containers on the same machine: nobody's run is read, changed or stopped by a neighbour's.
//!
//! Where the tests run as root they become two unprivileged users, and start programs in pid namespaces of their own that share
//! `/dev/shm`; elsewhere they say that they were skipped.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use admix::run::RunDirectory;
use nix::sys::signal::Signal;

use crate::harness::{ENDLESS, PROGRAM, Run, children_of, config_in, copy_program, days, until_best};

const SHM: &str = "/dev/shm";
/// Users of this process alone: a start sweeps what dead runs of its own user left, and several suites may run at once.
fn user(number: u32) -> u32 {
    1_000_000 + 8 * std::process::id() + number
}

const ALICE: u32 = 1;
const BOB: u32 = 2;
const CAROL: u32 = 3;
// Each of one test alone.
const DAVE: u32 = 4;
const ERIN: u32 = 5;
const FRANK: u32 = 6;

/// Whether this is root; says so where it is not.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("{test}: skipped, only root can become other users");
    }
    root
}

/// A user's own world: a copy of the program, the small world's days, a configuration, a home.
struct Home {
    folder: tempfile::TempDir,
    user: u32,
}

impl Home {
    fn new(user: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        copy_program(&path.join("admix"));
        for day in ["day-0", "day-1", "day-2"] {
            let copy = path.join("days").join(day);
            std::fs::create_dir_all(&copy).unwrap();
            // The tables alone: other tests write what they compile beside them.
            for table in std::fs::read_dir(days().join(day)).unwrap().flatten().filter(|f| f.path().is_file()) {
                std::fs::copy(table.path(), copy.join(table.file_name())).unwrap();
            }
        }
        config_in(path, &path.join("days"));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        own(path, user);
        Self { folder, user }
    }

    /// This user's program.
    fn command(&self) -> Command {
        let mut command = Command::new(self.folder.path().join("admix"));
        command.uid(self.user).gid(self.user).env("HOME", self.folder.path()).env_remove("XDG_CACHE_HOME");
        command
    }

    fn train(self, sets: &[&str], arguments: &[&str]) -> Run {
        let (command, config) = (self.command(), self.folder.path().join("config.toml"));
        Run::start_program(command, self.folder, &config, sets, arguments, &[])
    }
}

fn own(path: &Path, user: u32) {
    let owner = format!("{user}:{user}");
    assert!(Command::new("chown").arg("-hR").arg(owner).arg(path).status().unwrap().success());
}

/// The files of a run in shared memory, whoever's.
fn segments(run_id: &str) -> Vec<PathBuf> {
    let prefix = format!("admix-{run_id}.");
    let names = std::fs::read_dir(SHM).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect();
    found.sort();
    found
}

fn run_id(run: &Run) -> String {
    RunDirectory::open(&run.dir()).unwrap().run_id()
}

/// Things in shared memory that somebody put there; removed when dropped.
struct Planted(Vec<PathBuf>);

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Any of these made every start fail with "cannot remove what a dead run left".
#[test]
fn what_another_user_left_in_shared_memory_stops_nobody() {
    if !is_root("what_another_user_left_in_shared_memory_stops_nobody") {
        return;
    }
    // Numbers that no process of this machine has: the largest pid is 2^22.
    let run = 4_200_000 + std::process::id();
    let names = ["control", "ring0", "control"].into_iter().enumerate();
    let planted =
        Planted(names.map(|(i, name)| Path::new(SHM).join(format!("admix-0000000{i}-{run}-1-{name}"))).collect());
    // Given to its owner before it has its name: another test's start would sweep what is root's.
    for (i, path) in planted.0.iter().enumerate() {
        let unnamed = Path::new(SHM).join(format!("planted-{}-{i}", std::process::id()));
        if i == 2 {
            std::fs::create_dir(&unnamed).unwrap()
        } else {
            std::fs::write(&unnamed, "left").unwrap()
        }
        own(&unnamed, user(DAVE));
        std::fs::rename(&unnamed, path).unwrap();
    }
    let sets = ["budget.max_updates=8", "data.test=[]"];
    Home::new(user(ERIN)).train(&sets, &[]).wait().expect(0);
    Run::start(&sets, &[]).wait().expect(0);
    assert!(planted.0.iter().all(|path| path.exists()), "another user's things are left alone, by root too");
}

#[test]
fn two_users_cannot_read_change_or_stop_each_others_runs() {
    if !is_root("two_users_cannot_read_change_or_stop_each_others_runs") {
        return;
    }
    let mut alices =
        Home::new(user(ALICE)).train(&[ENDLESS, &["checkpoint.every_s=0.1", "data.test=[]"]].concat(), &[]);
    until_best(&mut alices);
    let id = run_id(&alices);
    let hers = segments(&id);
    assert_eq!(hers.len(), 5, "{hers:?}");

    // A run of Bob's begins and ends meanwhile.
    let bob = Home::new(user(BOB));
    let bobs = bob.command().arg("--version").output().unwrap();
    assert!(bobs.status.success());
    for path in hers.iter().chain([&alices.dir().join("lock")]) {
        for flag in ["-r", "-w"] {
            let asked = Command::new("test").arg(flag).arg(path).uid(user(BOB)).gid(user(BOB)).status().unwrap();
            assert!(!asked.success(), "{} {flag}", path.display());
        }
    }
    let mut taking = bob.command();
    taking.args(["train", "--config", "config.toml", "--resume", "--run-dir"]).arg(alices.dir());
    let taken = taking.current_dir(bob.folder.path()).output().unwrap();
    assert!(!taken.status.success());
    // What somebody puts under names that could be hers.
    let planted = Planted(vec![Path::new(SHM).join(format!("admix-{id}.1-1-1-control"))]);
    std::fs::write(&planted.0[0], [0; 8192]).unwrap();
    own(&planted.0[0], user(CAROL));
    bob.train(&["budget.max_updates=8", "data.test=[]"], &[]).wait().expect(0);

    assert_eq!(segments(&id).len(), 6, "her segments and what was put there");
    let inspection = admix::inspect::inspect(&alices.dir(), 1).unwrap();
    assert_eq!(inspection.state, admix::inspect::State::Alive);
    assert!(inspection.memory.unwrap().control.is_some(), "{:?}", inspection.notes);
    let pid = alices.pid();
    let folder = alices.kill();
    assert!(children_of(pid).is_empty());

    // Dead, she is swept by nobody but herself.
    Home::new(user(BOB)).train(&["budget.max_updates=8", "data.test=[]"], &[]).wait().expect(0);
    assert_eq!(segments(&id).len(), 6);
    let sets = ["budget.max_updates=8", "data.test=[]"];
    Home { folder, user: user(ALICE) }.train(&sets, &["--resume"]).wait().expect(0);
    assert_eq!(segments(&id), planted.0, "only what was put there is left");
}

/// A run in a pid namespace of its own, as in a container that shares `/dev/shm`.
fn in_a_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", PROGRAM]);
    command
}

fn train_in_a_namespace(sets: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let config = config_in(folder.path(), days());
    Run::start_program(in_a_namespace(), folder, &config, sets, &[], &[])
}

/// The second one's start found no process of the first one's id, and removed its memory.
#[test]
fn runs_in_two_pid_namespaces_leave_each_other_alone() {
    let test = "runs_in_two_pid_namespaces_leave_each_other_alone";
    if !is_root(test) {
        return;
    }
    if !in_a_namespace().arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("{test}: skipped, no pid namespaces here");
        return;
    }
    let mut first = train_in_a_namespace(&[ENDLESS, &["checkpoint.every_s=0.1"]].concat());
    until_best(&mut first);
    let id = run_id(&first);
    let names = segments(&id);
    assert_eq!(names.len(), 5);
    let dir = first.dir();
    let updates = || admix::inspect::inspect(&dir, 1).unwrap().memory.unwrap().control.unwrap().learner.updates;
    let before = updates();
    // One in another namespace, one in none.
    let sets = ["budget.max_updates=8", "data.test=[]"];
    let ended = train_in_a_namespace(&sets).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    Run::start(&sets, &[]).wait().expect(0);
    assert_eq!(segments(&id), names, "the first run keeps its memory");
    first.until("progress", |_| (updates() > before).then_some(()));
    // Dead, it is swept by the next start of the same user, whatever namespace that is in.
    first.signal(Signal::SIGKILL);
    while admix::inspect::inspect(&first.dir(), 1).unwrap().state == admix::inspect::State::Alive {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let ended = train_in_a_namespace(&sets).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(segments(&id), Vec::<PathBuf>::new());
}

/// With `/proc` mounted so that users see their own processes alone, live runs of others looked dead.
#[test]
fn a_hidden_proc_changes_nothing() {
    let test = "a_hidden_proc_changes_nothing";
    if !is_root(test) {
        return;
    }
    let mut roots = Run::start(&[ENDLESS, &["checkpoint.every_s=0.1"]].concat(), &[]);
    until_best(&mut roots);
    let names = segments(&run_id(&roots));
    // A user of its own: a start sweeps what dead runs of its user left, which a test beside this counts.
    let frank = user(FRANK);
    let home = Home::new(frank);
    let script = format!(
        "mount -o remount,hidepid=2 /proc && exec setpriv --reuid {frank} --regid {frank} --clear-groups \
         ./admix train --config config.toml --run-dir run --set budget.max_updates=8 --set 'data.test=[]'"
    );
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", &script]);
    let output = command.current_dir(home.folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("mount:") {
        eprintln!("{test}: skipped, /proc cannot be mounted again here: {stderr}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(segments(&run_id(&roots)), names);
}

/// A planted file was believed, in a folder whose name anybody could compute.
#[test]
fn what_another_user_planted_as_a_compiled_log_is_not_believed() {
    if !is_root("what_another_user_planted_as_a_compiled_log_is_not_believed") {
        return;
    }
    let alice = Home::new(user(ALICE));
    let (path, day) = (alice.folder.path(), alice.folder.path().join("days/day-2"));
    let shares = |command: &mut Command| {
        let output =
            command.args(["eval", "--json", "--baselines", "static-prices", "--log"]).arg(&day).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let honest = shares(&mut alice.command());
    // Her log is read-only, and she has no home that she can write to.
    let _ = std::fs::remove_dir_all(day.join(".admix"));
    own(&day, 0);
    own(&path.join("days"), 0);
    let shared = tempfile::tempdir().unwrap();
    std::fs::set_permissions(shared.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let bereft = |name: &str| {
        let mut command = alice.command();
        command.env_remove("HOME").env("HOME", "/nonexistent").env("TMPDIR", shared.path()).env(name, shared.path());
        command
    };
    for cache in ["UNUSED", "XDG_CACHE_HOME"] {
        assert_eq!(shares(&mut bereft(cache)), honest, "all is made each time");
    }
    // Bob has compiled another log under the name that hers would have.
    let bobs = Home::new(user(BOB));
    let other = bobs.folder.path().join("days/day-0");
    let mut compiling = bobs.command();
    compiling.args(["eval", "--baselines", "none", "--log"]).arg(&other);
    assert!(compiling.output().unwrap().status.success());
    let compiled = other.join(".admix/compiled.log");
    for folder in [shared.path().join("admix"), day.join(".admix")] {
        let key = twox_hash::XxHash3_128::oneshot(day.canonicalize().unwrap().as_os_str().as_encoded_bytes());
        let folders = [folder.clone(), folder.join(format!("{key:032x}"))];
        for folder in folders {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(&compiled, folder.join("compiled.log")).unwrap();
        }
        own(&folder, user(BOB));
    }
    for cache in ["UNUSED", "XDG_CACHE_HOME"] {
        assert_eq!(shares(&mut bereft(cache)), honest, "{cache}");
    }
}
