//! Log directories of a few rows, written by hand, and what the program says of them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use admix::log::write::TableWriter;
use serde_json::Value;

use crate::harness::PROGRAM;

/// 2026-01-01.
pub const MIDNIGHT: u64 = 1_767_225_600_000;
pub const HEADER: &str = "request_id\tts_ms\tslot_id\tregion\tgender\tage\tqueue";
pub const CONTROL: &str =
    "ad_id\trequired\tcap\tdelivered0\tstart_ms\tend_ms\ttargeting\ttheta\trate\tpenalty\tclick_value\tpctr\n";
pub const CONTRACT: &str = "1\t10\t\t\t\t\t\t\t\t5\t1\t\n";

/// A log directory.
pub struct Log {
    folder: tempfile::TempDir,
}

/// How the program ended.
pub struct Said {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program.
pub fn admix(arguments: &[&str]) -> Said {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Said {
    /// Checks the exit code and that stderr has all of `words`.
    pub fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in {}", self.stderr);
        }
        self
    }

    /// The only object on stdout.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", self.stdout, self.stderr))
    }
}

impl Log {
    /// One contract, and `rows` below the usual header.
    pub fn new(rows: &[String]) -> Self {
        Self::of(&format!("{HEADER}\n{}", rows.concat()), &format!("{CONTROL}{CONTRACT}"))
    }

    pub fn of(track: &str, control: &str) -> Self {
        let log = Self { folder: tempfile::tempdir().unwrap() };
        log.write("track_log.tsv", track);
        log.write("control.tsv", control);
        log
    }

    /// Contracts of these rows, and one good request.
    pub fn with_control(rows: &str) -> Self {
        Self::of(&format!("{HEADER}\n{}", request(0)), &format!("{CONTROL}{rows}"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn dir(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// Writes a table, compressed if its ending says so.
    pub fn write(&self, name: &str, text: &str) {
        let mut table = TableWriter::create(&self.path(name)).unwrap();
        table.write_all(text.as_bytes()).unwrap();
        table.finish().unwrap();
    }

    pub fn check(&self, arguments: &[&str]) -> Said {
        admix(&[&["data", "check", "--json", self.dir()], arguments].concat())
    }

    /// Checks with any number of bad rows allowed: the report.
    pub fn report(&self) -> Value {
        self.check(&["--max-bad-share", "1"]).expect(0, &[]).json()
    }

    pub fn compiled(&self) -> PathBuf {
        self.path(".admix/compiled.log")
    }
}

/// The good request number `i`.
pub fn request(i: u64) -> String {
    row(i, MIDNIGHT + 1000 * i, "1,C,0,0.02,0;7,A,2000,0.01,0")
}

/// A request at `ts` with a queue.
pub fn row(id: u64, ts: u64, queue: &str) -> String {
    format!("{id}\t{ts}\t3\t1\t0\t0\t{queue}\n")
}
