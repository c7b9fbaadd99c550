//! Errors in the files of a log directory, worded for the person who has to fix them.

use std::path::{Path, PathBuf};

/// One value that breaks a rule of the input contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadValue {
    pub column: &'static str,
    pub value: String,
    /// Short machine-readable name by which bad rows are counted.
    pub reason: &'static str,
    /// Text of the rule.
    pub rule: String,
}

impl BadValue {
    pub fn new(column: &'static str, value: &str, reason: &'static str, rule: impl Into<String>) -> Self {
        let mut value = value.to_owned();
        if value.len() > 120 {
            let cut = (0..=117).rev().find(|&i| value.is_char_boundary(i)).unwrap_or(0);
            value.truncate(cut);
            value.push_str("...");
        }
        Self { column, value: printable(&value), reason, rule: printable(&rule.into()) }
    }
}

/// Returns input text safe for a terminal: escape sequences and other control characters are escaped.
pub fn printable(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Says which columns a header has.
fn header(found: &str) -> String {
    if found.trim().is_empty() {
        "the file has no header, it is empty".into()
    } else {
        format!("the header has: {found}")
    }
}

/// Says what to do about a column that stands twice.
fn twice(column: &str) -> &'static str {
    match column.parse::<f64>() {
        Ok(_) => "these are values: the line with the names of the columns is missing",
        Err(_) => "keep one",
    }
}

/// Whether a path is wrong, or not for this user.
fn cannot_be_opened(cause: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    matches!(cause.kind(), NotFound | PermissionDenied)
}

/// Names a file that an operation failed on, and the operation where it is known.
fn place(path: &Path, cause: &std::io::Error) -> String {
    let what = if cannot_be_opened(cause) { "cannot open " } else { "" };
    format!("{what}{}", path.display())
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{}: {cause}", place(path, cause))]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("{path}: the file ends in the middle (after line {line}): {cause}; fetch or write it again", path = path.display())]
    Truncated { path: PathBuf, line: u64, cause: std::io::Error },
    #[error("{dir}: no {name}.tsv (or .csv, .jsonl, each also .gz or .zst; or .parquet; or a directory {name}/ of part files); a log directory needs one{hint}", dir = dir.display())]
    MissingFile { dir: PathBuf, name: &'static str, hint: String },
    #[error("{dir}: both {first} and {second} are there; keep one of them", dir = dir.display())]
    Ambiguous { dir: PathBuf, first: String, second: String },
    #[error("{path}: line 1: no column `{column}`; {}. Add the column or rename it", header(found), path = path.display())]
    MissingColumn { path: PathBuf, column: &'static str, found: String },
    #[error("{path}: line 1: column `{column}` stands twice; {}", twice(column), path = path.display())]
    RepeatedColumn { path: PathBuf, column: String },
    #[error("{path}: line {line}, column `{column}`: `{value}`: {rule}", path = path.display(), column = bad.column, value = bad.value, rule = bad.rule)]
    BadRow { path: PathBuf, line: u64, bad: BadValue },
    #[error("{path}: {bad} of {rows} rows are bad, more than --max-bad-share {max} allows; the first: {first}. They are listed in {quarantine}: mend them, or raise --max-bad-share where that many may be missing", path = path.display(), quarantine = quarantine.display())]
    TooManyBad { path: PathBuf, bad: u64, rows: u64, max: f64, first: String, quarantine: PathBuf },
    #[error("{path}: {bad} of {rows} rows are bad, more than max_bad_share {max} allows; the first: {first}. Mend the export, or raise the share where that many may be missing", path = path.display())]
    TooManyBadExposures { path: PathBuf, bad: u64, rows: u64, max: f64, first: String },
    #[error("{dir}: the compiled log can be neither written nor held: {cause}. Make room where {dir}/.admix lies, or set XDG_CACHE_HOME to a folder that has it", dir = dir.display())]
    NotKept { dir: PathBuf, cause: std::io::Error },
    #[error("{path}: no usable request; an empty day cannot be replayed. Leave this directory out", path = path.display())]
    Empty { path: PathBuf },
    #[error("{path}: {reason}", path = path.display())]
    Format { path: PathBuf, reason: String },
    #[error("{path}: not a usable compiled log: {reason}. Delete it: it is rebuilt from the log directory", path = path.display())]
    Compiled { path: PathBuf, reason: String },
}

impl LogError {
    pub fn io(path: &Path, cause: std::io::Error) -> Self {
        if cause.kind() == std::io::ErrorKind::UnexpectedEof {
            return Self::Truncated { path: path.to_owned(), line: 0, cause };
        }
        Self::Io { path: path.to_owned(), cause }
    }

    /// Whether the user has to change a path or a file. Other failures may pass.
    pub fn is_of_input(&self) -> bool {
        match self {
            Self::Io { cause, .. } => cannot_be_opened(cause),
            Self::NotKept { .. } => false,
            _ => true,
        }
    }
}

pub type Result<T> = std::result::Result<T, LogError>;
