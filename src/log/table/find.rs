//! Finds the file or files of a log directory that hold a table; a directory of part files is one table.
//!
//! Endings of tables are in [`TEXTS`] and [`PARQUET`]; messages here, in [`super::missing`] and of [`LogError::MissingFile`] repeat them.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::log::error::{LogError, Result};

/// Tables that a log directory may have.
pub const TABLES: [&str; 4] = ["track_log", "control", "inventory", "joined_exposure"];
/// Endings of text tables.
pub const TEXTS: [&str; 9] = ["tsv", "tsv.gz", "tsv.zst", "csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "jsonl.zst"];
/// Ending of Parquet tables.
pub const PARQUET: &str = "parquet";
/// Maximum depth of folders with part files below a table.
const DEEPEST: usize = 16;

/// Format of a part file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tsv,
    Csv,
    Jsonl,
    Parquet,
}

impl Kind {
    /// Returns the format by the file extension; Parquet is also recognised by its first bytes, because Flink and Hive name
    /// parts without an extension.
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy();
        let ends = |kind: &str| TEXTS.iter().any(|t| t.starts_with(kind) && name.ends_with(&format!(".{t}")));
        if ends("tsv") {
            return Some(Self::Tsv);
        }
        if ends("csv") {
            return Some(Self::Csv);
        }
        if ends("jsonl") {
            return Some(Self::Jsonl);
        }
        let mut magic = [0; 4];
        let parquet = name.ends_with(".parquet")
            || path.is_file()
                && File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok()
                && magic == *b"PAR1";
        parquet.then_some(Self::Parquet)
    }
}

/// Returns the files and directories in `dir` that could hold table `name`; there should be one at most.
pub fn all(dir: &Path, name: &str) -> impl Iterator<Item = PathBuf> {
    let whole = Some(dir.join(name)).filter(|path| path.is_dir());
    let endings = TEXTS.iter().chain([&PARQUET]).map(|ending| dir.join(format!("{name}.{ending}")));
    whole.into_iter().chain(endings.collect::<Vec<_>>().into_iter().filter(|path| path.is_file() || path.is_dir()))
}

/// Returns the name under which [`find`] finds a copy of the table at `path` as the table `name`.
pub fn name_of_copy(path: &Path, name: &str) -> String {
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |ending: &&&str| own.strip_suffix(**ending).is_some_and(|rest| rest.ends_with('.'));
    let ending = match (TEXTS.iter().chain([&PARQUET]).find(ends), Kind::of(path)) {
        (Some(ending), _) => ending,
        (None, _) if path.is_dir() => return name.to_owned(),
        (None, Some(Kind::Parquet)) => PARQUET,
        // Read as text, whatever it is called.
        (None, _) if own.ends_with(".gz") => "tsv.gz",
        (None, _) if own.ends_with(".zst") => "tsv.zst",
        (None, _) => "tsv",
    };
    format!("{name}.{ending}")
}

/// Returns the file or the directory of part files in `dir` that holds table `name`; `None` where there is none.
///
/// # Errors
/// Two files or directories that hold the same table.
pub fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let mut found: Option<PathBuf> = None;
    for path in all(dir, name) {
        let text = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(first) = found {
            return Err(LogError::Ambiguous { dir: dir.to_owned(), first: text(&first), second: text(&path) });
        }
        found = Some(path);
    }
    Ok(found)
}

/// Returns the part files of the table at `path` in byte order of their paths, or the file itself. Names that begin with `_` or
/// `.` are internal to the writer and are skipped, as in Spark, Hive and DuckDB.
///
/// # Errors
/// A directory that cannot be read, that has no part files, or that has a file that cannot be one.
pub fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut parts = Vec::new();
    collect(path, 0, &mut parts)?;
    if parts.is_empty() {
        let reason = "this directory holds no part files (.parquet, .tsv, .csv, .jsonl)".into();
        return Err(LogError::Format { path: path.to_owned(), reason });
    }
    parts.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(parts)
}

fn collect(dir: &Path, depth: usize, parts: &mut Vec<PathBuf>) -> Result<()> {
    let broken = |path: &Path, reason: &str| LogError::Format { path: path.to_owned(), reason: reason.into() };
    if depth > DEEPEST {
        return Err(broken(dir, "lies too deep below its table; does a link lead back?"));
    }
    for entry in std::fs::read_dir(dir).map_err(|e| LogError::io(dir, e))? {
        let path = entry.map_err(|e| LogError::io(dir, e))?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(b"_") || name.starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            collect(&path, depth + 1, parts)?;
        } else if path.is_file() && Kind::of(&path).is_some() {
            parts.push(path);
        } else {
            let why = "is no part file (.parquet, .tsv, .csv, .jsonl; texts also .gz, .zst); move it away, or let its name \
                       begin with `_`";
            return Err(broken(&path, why));
        }
    }
    Ok(())
}

/// Returns the partition columns in a part's path: `hour` for `track_log/hour=07/part-0.parquet`.
pub fn partitions(part: &Path) -> impl Iterator<Item = &str> {
    part.iter().filter_map(|name| name.to_str()?.split_once('=').map(|(column, _)| column))
}
