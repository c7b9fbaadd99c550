//! Finds the file or files of a log directory that hold a table; a directory of part files is one table.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{Column, Table};
use crate::log::error::{LogError, Result};

/// Tables that a log directory may have.
const TABLES: [&str; 4] = ["track_log", "control", "inventory", "joined_exposure"];
const TEXTS: [&str; 9] = ["tsv", "tsv.gz", "tsv.zst", "csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "jsonl.zst"];
const PARQUET: &str = "parquet";
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

/// Returns the file or the directory of part files in `dir` that holds table `name`; `None` where there is none.
///
/// # Errors
/// Two files or directories that hold the same table.
pub fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let mut found: Option<PathBuf> = None;
    let whole = Some(dir.join(name)).filter(|path| path.is_dir());
    let endings = TEXTS.iter().chain([&PARQUET]).map(|ending| dir.join(format!("{name}.{ending}")));
    for path in whole.into_iter().chain(endings.filter(|path| path.is_file() || path.is_dir())) {
        let text = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(first) = found {
            return Err(LogError::Ambiguous { dir: dir.to_owned(), first: text(&first), second: text(&path) });
        }
        found = Some(path);
    }
    Ok(found)
}

/// Finds a table that must exist.
///
/// # Errors
/// As [`find`]; a missing table, with a hint at files that may be it under another name.
pub fn require(dir: &Path, name: &'static str, columns: &'static [Column]) -> Result<PathBuf> {
    find(dir, name)?.ok_or_else(|| {
        let hint = elsewhere(dir, name, columns).map_or_else(String::new, |hint| format!(". {hint}"));
        LogError::MissingFile { dir: dir.to_owned(), name, hint }
    })
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

/// Returns a hint at entries of `dir` that may be table `name` under another name.
pub fn elsewhere(dir: &Path, name: &str, columns: &'static [Column]) -> Option<String> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    let text = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let others = entries.iter().filter(|path| {
        let text = text(path);
        let of_a_table = TABLES.iter().any(|table| {
            text.strip_prefix(table).is_some_and(|rest| {
                rest.is_empty() && path.is_dir()
                    || TEXTS.iter().chain([&PARQUET]).any(|t| rest.strip_prefix('.') == Some(t))
            })
        });
        !of_a_table && !text.starts_with(['.', '_'])
    });
    let plain = |name: &str| {
        name.split('.').next().unwrap_or("").chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase()
    };
    let alike = |path: &Path| {
        let (there, wanted) = (plain(&text(path)), plain(name));
        there.len() > 2 && (there.contains(&wanted) || wanted.contains(&there))
            || strsim::jaro_winkler(&there, &wanted) > 0.85
    };
    let log_directory = |path: &Path| path.is_dir() && matches!(find(path, name), Ok(Some(_)));
    let holds = |path: &Path| {
        (path.is_dir() && !log_directory(path) || Kind::of(path).is_some()) && Table::open(path, columns).is_ok()
    };
    let mut named: Vec<&PathBuf> = others.clone().filter(|path| holds(path)).collect();
    if named.is_empty() {
        named = others.clone().filter(|path| alike(path)).collect();
    }
    if let Some(first) = named.first() {
        let there: Vec<String> = named.iter().map(|path| format!("`{}`", text(path))).collect();
        let ending = match Kind::of(first) {
            _ if first.is_dir() => "/",
            Some(Kind::Csv) => ".csv",
            Some(Kind::Jsonl) => ".jsonl",
            Some(Kind::Parquet) => ".parquet",
            Some(Kind::Tsv) | None => ".tsv",
        };
        return Some(format!("{} is there: if that is it, rename it to {name}{ending}", there.join(", ")));
    }
    let below: Vec<String> = others.filter(|path| log_directory(path)).map(|path| text(path)).collect();
    (!below.is_empty()).then(|| format!("Log directories lie in it: name {}", below.join(", ")))
}
