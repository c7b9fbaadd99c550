//! The bad rows of a log: their list in a file, and the limit of their share.
//!
//! If its columns change, adapt [`check_share`], which reads the first row back, and count up [`super::compiled::VERSION`], because a
//! savepoint continues a list.

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::compiled::Counts;
use super::error::{BadValue, LogError, Result};
use super::keep;
use super::options::CompileOptions;
use super::parts::SetAside;
use super::table::{self, Table};
use super::track;

/// Maximum number of bad rows in the list; all are counted. A few kilobytes of Parquet can hold a hundred million of them.
const LISTED: u64 = 10_000;

/// The bad rows of one pass.
pub struct Quarantine {
    path: PathBuf,
    file: Option<std::io::BufWriter<File>>,
    /// Whether the list can be written.
    lists: bool,
    pub counts: Counts,
    first: Option<String>,
}

impl Quarantine {
    /// Begins a list for the log directory `dir`. The list of an earlier compilation is removed because its rows may have been fixed
    /// since.
    pub fn begin(dir: &Path) -> Self {
        let path = quarantine_path(dir);
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
        Self { path, file: None, lists: true, counts: Counts::default(), first: None }
    }

    /// Continues the list of an earlier process; `None` if it is not there.
    pub fn resume(dir: &Path, set_aside: SetAside) -> Option<Self> {
        let SetAside { counts, first, listed } = set_aside;
        let path = quarantine_path(dir);
        let mut file = None;
        if listed > 0 {
            let mut list = OpenOptions::new().write(true).open(&path).ok()?;
            if list.metadata().ok()?.len() < listed {
                return None;
            }
            list.set_len(listed).ok()?;
            list.seek(SeekFrom::Start(listed)).ok()?;
            file = Some(std::io::BufWriter::new(list));
        } else if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
        Some(Self { path, file, lists: true, counts, first })
    }

    /// Flushes the list and returns what [`Quarantine::resume`] needs; `None` if the list cannot be written.
    pub fn set_aside_so_far(&mut self) -> Option<SetAside> {
        self.finish();
        let listed = match &mut self.file {
            Some(file) => file.stream_position().ok()?,
            None => 0,
        };
        self.lists.then(|| SetAside { counts: self.counts.clone(), first: self.first.clone(), listed })
    }

    /// Sets a row aside; `name` is the name of its file, with whether its table has several files.
    pub fn set_aside(&mut self, (name, parted): (&str, bool), line: u64, bad: &BadValue) {
        if self.lists && self.counts.quarantined <= LISTED {
            let listed = self.list(name, line, bad);
            self.told(listed);
        }
        if self.first.is_none() {
            let part = if parted { format!("{name}: ") } else { String::new() };
            let BadValue { column, value, rule, .. } = bad;
            self.first = Some(format!("{part}line {line}, column `{column}`: `{value}`: {rule}"));
        }
        self.counts.quarantined += 1;
        *self.counts.reasons.entry(bad.reason.to_owned()).or_default() += 1;
    }

    fn list(&mut self, name: &str, line: u64, bad: &BadValue) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut file = std::io::BufWriter::new(keep::create_private(&self.path)?);
                writeln!(file, "file\tline\tcolumn\tvalue\treason\trule")?;
                self.file.insert(file)
            }
        };
        let clean = |s: &str| s.replace(['\t', '\n', '\r'], " ");
        let (value, rule) = (clean(&bad.value), clean(&bad.rule));
        match self.counts.quarantined {
            LISTED => writeln!(file, "{name}\t{line}\t\t\tand_more\tthe first {LISTED} bad rows are listed"),
            _ => writeln!(file, "{name}\t{line}\t{}\t{value}\t{}\t{rule}", bad.column, bad.reason),
        }
    }

    /// Warns once that the list cannot be written. A full disk does not make a day unusable.
    fn told(&mut self, written: std::io::Result<()>) {
        if let Err(e) = written {
            tracing::warn!("{}: bad rows are counted and not listed: {e}", self.path.display());
            self.lists = false;
        }
    }

    /// Returns the path of the list.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the first bad row as text for a message.
    pub fn first(&self) -> Option<&str> {
        self.first.as_deref()
    }

    /// Flushes the list.
    pub fn finish(&mut self) {
        if let Some(file) = self.file.as_mut().filter(|_| self.lists) {
            let written = file.flush();
            self.told(written);
        }
    }
}

/// Returns the path of the list of bad rows of a log; `/dev/null` where nothing can be stored.
pub fn quarantine_path(dir: &Path) -> PathBuf {
    keep::folder(dir).map_or_else(|| "/dev/null".into(), |folder| folder.join("quarantine.tsv"))
}

/// Returns an error if the share of bad rows is above `options.max_bad_share`.
pub fn check_share(counts: &Counts, options: CompileOptions, dir: &Path) -> Result<()> {
    if counts.quarantined as f64 <= options.max_bad_share * counts.rows as f64 {
        return Ok(());
    }
    let listed = std::fs::read_to_string(quarantine_path(dir)).unwrap_or_default();
    let first = match listed.lines().nth(1).map(|line| line.split('\t').collect::<Vec<_>>()).as_deref() {
        Some([file, line, column, value, reason, rule]) => {
            let listed = || format!("column `{column}`: `{value}`: {rule} ({reason})");
            format!("{file}: line {line}, {}", problems_of(dir, line).unwrap_or_else(listed))
        }
        _ => String::new(),
    };
    Err(LogError::TooManyBad {
        path: dir.to_owned(),
        bad: counts.quarantined,
        rows: counts.rows,
        max: options.max_bad_share,
        first,
        quarantine: quarantine_path(dir),
    })
}

/// Rows among which the first bad one is looked for.
const LOOKED_AT: usize = 10_000;

/// Returns a description of every bad column in one line of the track log, because a log of texts would otherwise cost an attempt
/// for each column.
///
/// Returns `None` if the row breaks a rule only beside other rows (a repeated id), or comes after the first [`LOOKED_AT`] rows.
fn problems_of(dir: &Path, line: &str) -> Option<String> {
    let path = table::find(dir, "track_log").ok()??;
    let mut table = Table::open(&path, track::COLUMNS).ok()?;
    let mut row = table.row();
    for _ in 0..LOOKED_AT {
        if !table.read(&mut row).ok()? {
            return None;
        }
        let problems = track::problems(&row);
        if !problems.is_empty() {
            let column = |BadValue { column, value, reason, rule }: &BadValue| {
                format!("column `{column}`: `{value}`: {rule} ({reason})")
            };
            let columns: Vec<String> = problems.iter().map(column).collect();
            return (row.place.line.to_string() == line).then(|| columns.join("; "));
        }
    }
    None
}
