//! The small world that all training tests share, and [`Run`]: the real program at work on it, under watch.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use admix::shm::FlightLog;
pub use admix::soak::processes::{Member as Kin, children_of};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_admix");
/// Longer than anything here takes, even where the machine is very busy: what takes longer hangs. No test asserts any other
/// duration.
pub const PATIENCE: Duration = Duration::from_secs(600);

const WORLD: &str = "\
seed = 11
requests = 1500
contracts = 5
contracts_per_queue = 2.0
queue = 8
auction_ads = 60
users = 500
regions = 4
ages = 3
slots = 2
";

pub const CONFIG: &str = r#"
[data]
train = ["DAYS/day-0"]
validation = ["DAYS/day-1"]
test = ["DAYS/day-2"]
[run]
device = "cpu"
[policy]
hidden = 16
[learner]
batch = 128
samples_per_update = 128
pool = 4000
critic_head_start = 10
critic_hidden = 16
quantiles = 8
atoms = 11
[actors]
count = 2
write_every = 256
[evaluate]
every = 16
[budget]
max_updates = 64
[stop]
patience = 0
[baselines]
tuning_replays = 8
[watchdog]
grace_s = 500
silent_s = 600
stuck_s = 600
"#;

/// Three days of about 1,500 requests and five contracts, generated once.
pub fn days() -> &'static Path {
    static DAYS: OnceLock<PathBuf> = OnceLock::new();
    DAYS.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // A static is never dropped: remove what earlier executions left.
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let owner = name.strip_prefix("training-world-");
            if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let folder = root.join(format!("training-world-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let world = folder.join("world.toml");
        std::fs::write(&world, WORLD).unwrap();
        let made = Command::new(PROGRAM)
            .args(["data", "synth", "--days", "3", "--config"])
            .arg(&world)
            .arg("--out")
            .arg(&folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        folder
    })
}

/// `admix train` under way in a folder of its own; killed if it is still there when dropped.
pub struct Run {
    folder: tempfile::TempDir,
    child: Child,
}

/// A run that is over.
pub struct Ended {
    folder: tempfile::TempDir,
    pub pid: u32,
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// Starts training on the small world, with `--set` for each of `sets`.
    pub fn start(sets: &[&str], arguments: &[&str]) -> Self {
        Self::start_on(days(), sets, arguments)
    }

    /// The same on another world: `day-0`, `day-1` and `day-2` of `days`.
    pub fn start_on(days: &Path, sets: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config_in(folder.path(), days);
        Self::start_from(folder, &config, sets, arguments)
    }

    /// On the small world with a failpoint (`ADMIX_FAILPOINT`).
    pub fn start_failing(failpoint: &str, sets: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = config_in(folder.path(), days());
        Self::start_under(folder, &config, sets, &[], &[("ADMIX_FAILPOINT", failpoint)])
    }

    /// Goes on in the folder of a run that is over.
    pub fn resume(folder: tempfile::TempDir, sets: &[&str], arguments: &[&str]) -> Self {
        let config = folder.path().join("config.toml");
        Self::start_from(folder, &config, sets, arguments)
    }

    /// Kills main; its folder, once nothing of the run is left in it.
    pub fn kill(mut self) -> tempfile::TempDir {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
        let start = Instant::now();
        while !children_of(self.pid()).is_empty() {
            assert!(start.elapsed() < PATIENCE, "children live without their parent");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    /// Starts training from a configuration; the run directory is `folder/run`.
    pub fn start_from(folder: tempfile::TempDir, config: &Path, sets: &[&str], arguments: &[&str]) -> Self {
        Self::start_under(folder, config, sets, arguments, &[])
    }

    /// The same under environment variables.
    pub fn start_under(
        folder: tempfile::TempDir,
        config: &Path,
        sets: &[&str],
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_program(Command::new(PROGRAM), folder, config, sets, arguments, environment)
    }

    /// The same by another command for the program: a copy of it, or another user's.
    pub fn start_program(
        mut command: Command,
        folder: tempfile::TempDir,
        config: &Path,
        sets: &[&str],
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
        command.args(["train", "--config"]).arg(config).arg("--run-dir").arg(folder.path().join("run"));
        for set in sets {
            command.arg("--set").arg(set);
        }
        command
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child = command.spawn().unwrap();
        Self { folder, child }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The run directory.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Polls until `found` finds something; panics when the run ends before.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = found(self) {
                return value;
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some()
                && let Some(value) = found(self)
            {
                return value;
            }
            let stderr = || std::fs::read_to_string(self.folder.path().join("stderr")).unwrap();
            assert!(ended.is_none(), "the run ended before {what}: {}", stderr());
            assert!(start.elapsed() < PATIENCE, "no {what}: {}", stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end.
    pub fn wait(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the run does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap();
        let (stdout, stderr) = (text("stdout"), text("stderr"));
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Ended { folder, pid: self.child.id(), code: status.code(), stdout, stderr }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Both fail when it is over already, as they should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the small world's configuration.
pub fn config_in(folder: &Path, days: &Path) -> PathBuf {
    let config = folder.join("config.toml");
    std::fs::write(&config, CONFIG.replace("DAYS", days.to_str().unwrap())).unwrap();
    config
}

impl Ended {
    /// The folder that the run lies in, to go on in.
    pub fn into_folder(self) -> tempfile::TempDir {
        self.folder
    }

    /// Its exit code must be `code`, and nothing of it may be left in the machine.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert_eq!(segments_of(self.pid), Vec::<String>::new());
        assert_eq!(children_of(self.pid), []);
        self
    }

    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn best(&self) -> PathBuf {
        self.dir().join("policy/best.safetensors")
    }

    pub fn last(&self) -> PathBuf {
        self.dir().join("policy/last.safetensors")
    }

    pub fn manifest(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir().join("manifest.json")).unwrap()).unwrap()
    }

    /// What the manifest says of the end.
    pub fn outcome(&self) -> Value {
        self.manifest()["outcome"].clone()
    }

    /// The lines of `metrics.jsonl`, each of which must be a record.
    pub fn metrics(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir().join("metrics.jsonl")).unwrap();
        assert!(text.ends_with('\n'));
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        for line in &lines {
            assert!(line["time"].as_f64().is_some_and(|t| t > 1.7e9), "{line}");
            assert!(line["kind"].is_string(), "{line}");
        }
        lines
    }

    /// Field `name` of the ledger in the manifest, which must balance to the last sample.
    pub fn ledger(&self, name: &str) -> u64 {
        let ledger = &self.outcome()["ledger"];
        let of = |name: &str| ledger[name].as_u64().unwrap_or_else(|| panic!("no `{name}` in {ledger}"));
        let parts: u64 = ["consumed", "overwritten", "lost", "unread", "discarded"].map(of).iter().sum();
        assert_eq!(of("produced"), parts, "{ledger}");
        assert_eq!(of("torn_blocks"), 0, "{ledger}");
        of(name)
    }
}

/// Trains to the end; it must succeed.
pub fn train(sets: &[&str], arguments: &[&str]) -> Ended {
    Run::start(sets, arguments).wait().expect(0)
}

pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// Sends a signal to a process that may have ended a moment ago.
pub fn send_if_there(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

/// The names in /dev/shm of segments whose main process is `pid`.
pub fn segments_of(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| {
            // admix-<run id>.<draw>-<pid>-<start time>-<part>
            name.starts_with("admix-") && name.rsplit('-').nth(2) == Some(&pid.to_string())
        })
        .collect()
}

/// The living child of `run` in `role`.
pub fn child(run: &Run, role: &str) -> Option<Kin> {
    children_of(run.pid()).into_iter().find(|kin| kin.role == role)
}

/// `admix eval --json` with `arguments`: one report a log, without the verdicts at the end.
pub fn eval(arguments: &[&str]) -> Vec<Value> {
    let mut lines = eval_lines(arguments);
    lines.retain(|line| line["verdict"].is_null());
    lines
}

/// All that `admix eval --json` prints.
pub fn eval_lines(arguments: &[&str]) -> Vec<Value> {
    let output = Command::new(PROGRAM).arg("eval").arg("--json").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits until something was evaluated, so that there is a best policy.
pub fn until_best(run: &mut Run) {
    run.until("best policy", |run| run.dir().join("policy/best.safetensors").is_file().then_some(()));
}

/// Waits until every process of two actors' run has done its work once: actors hand over before and after there is a best policy,
/// and a busy machine may start them long after the others.
pub fn until_working(run: &mut Run) {
    until_best(run);
    run.until("everybody at work", |run| {
        let control = admix::inspect::inspect(&run.dir(), 1).unwrap().memory?.control?;
        let handed_over = |id| {
            let log = FlightLog::read(&run.dir().join(format!("flight/actor{id}.bin")));
            log.is_ok_and(|log| log.records.iter().any(|record| record.kind == HAND_OVER))
        };
        let signed_in = control.processes.len() == 5 && children_of(run.pid()).len() == 5;
        (signed_in && control.evaluator.evaluations > 0 && handed_over(0) && handed_over(1)).then_some(())
    });
}

/// The kind of a flight record of a block that an actor hands over.
pub const HAND_OVER: u32 = 4;

/// Settings of a run whose main gives up early on a silent process. On a busy machine that may be one that only starts slowly.
pub const HASTY: [&str; 4] =
    ["watchdog.silent_s=8", "watchdog.max_restarts=1000", "actors.max_restarts=1000", "checkpoint.every_s=0.1"];

/// Copies the program by another process: while this one has the copy open for writing, a test beside that forks would keep it
/// open in its child, and nobody could execute it ("text file busy").
pub fn copy_program(to: &Path) {
    assert!(Command::new("cp").arg(PROGRAM).arg(to).status().unwrap().success());
}

pub const ENDLESS: &[&str] = &["budget.max_updates=10000000"];
