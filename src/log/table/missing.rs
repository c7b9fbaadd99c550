//! Errors for a missing table, with a hint at files that may be it under another name.

use std::path::{Path, PathBuf};

use super::Table;
use super::column::Column;
use super::find::{Kind, PARQUET, TABLES, TEXTS, find};
use crate::log::error::{LogError, Result};

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
