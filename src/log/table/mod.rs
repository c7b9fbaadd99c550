//! Reads tables of named columns in any supported format.
//!
//! TSV, CSV, JSON lines (each plain, gzip, zstd) and Parquet, as one file or as a directory of parts, give the same rows of
//! text cells, so that values are parsed in one place with one set of error messages. Input is bounded: a row by
//! [`LONGEST_ROW`], a Parquet page by its own limits.

mod codec;
mod column;
mod find;
mod guard;
mod json;
mod lump;
mod missing;
mod page;
mod parquet;
mod row;
mod text;
mod value;

use std::collections::HashSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{BadValue, LogError, Result, printable};
use parquet::ParquetRows;
pub use parquet::PlainRow;
use row::split_tabs;
use text::CsvRows;

pub use column::{Column, List, optional, required};
pub use find::{TABLES, all, find, name_of_copy, parts};
pub use lump::{Lump, LumpReader, Lumps};
pub use missing::{elsewhere, require};
pub use row::{LONGEST_ROW, Place, Row, long_row, number};
pub use text::{Line, open, read_line};
pub use value::Plain;

/// Unknown columns that are named in warnings.
const MOST_NAMED: usize = 20;

enum Source {
    /// TSV with a buffer for the last line read.
    Tsv(Box<dyn BufRead + Send>, Vec<u8>),
    Csv(CsvRows),
    /// JSON lines with a buffer for the last line read, and whether it is the first line and not yet returned.
    Json(Box<dyn BufRead + Send>, Vec<u8>, bool),
    Parquet(Box<ParquetRows>),
}

/// A table opened for reading, with its header matched against the wanted columns.
pub struct Table {
    path: PathBuf,
    parts: Vec<PathBuf>,
    columns: &'static [Column],
    /// Index of the part that is being read.
    part: usize,
    source: Source,
    /// Position of each wanted column in a text row.
    positions: Vec<Option<usize>>,
    width: usize,
    line: u64,
    /// Names of columns in the header that were not asked for.
    pub unknown: Vec<String>,
    /// Bytes read from its files.
    read: Arc<AtomicU64>,
}

/// An opened part: its rows, its header, and the current line.
struct Part {
    source: Source,
    header: Vec<String>,
    line: u64,
}

impl Part {
    fn open(path: &Path, columns: &'static [Column], read: &Arc<AtomicU64>) -> Result<Self> {
        let open = |path| text::open_counted(path, read.clone());
        let mut line = 0;
        let (source, header) = match find::Kind::of(path) {
            Some(find::Kind::Parquet) => {
                let mut rows = Box::new(ParquetRows::open(path, columns)?);
                let header = std::mem::take(&mut rows.header);
                (Source::Parquet(rows), header)
            }
            Some(find::Kind::Csv) => {
                let mut rows = CsvRows::new(open(path)?);
                line = rows.read().map_err(|e| read_error(path, 0, e))?.unwrap_or(0);
                let header = rows.cells.iter().map(column_name).collect();
                (Source::Csv(rows), header)
            }
            Some(find::Kind::Jsonl) => {
                let mut reader = open(path)?;
                let text = first_line(path, &mut *reader, &mut line)?;
                let header = if text.is_empty() {
                    vec![]
                } else {
                    let object: json::Object = serde_json::from_slice(&text).map_err(|e| LogError::Format {
                        path: path.to_owned(),
                        reason: format!("line 1: not a JSON object: {e}"),
                    })?;
                    object.0.into_iter().map(|(key, _)| key).collect()
                };
                let pending = !text.is_empty();
                (Source::Json(reader, text, pending), header)
            }
            Some(find::Kind::Tsv) | None => return Self::of_text(path, open(path)?),
        };
        Ok(Self { source, header, line })
    }

    fn of_text(path: &Path, mut reader: Box<dyn BufRead + Send>) -> Result<Self> {
        let mut line = 0;
        let text = first_line(path, &mut *reader, &mut line)?;
        let header = text.split(|b| *b == b'\t').map(column_name).collect();
        Ok(Self { source: Source::Tsv(reader, text), header, line })
    }
}

/// Reads the header line; refuses one that is too long.
fn first_line(path: &Path, reader: &mut dyn BufRead, line: &mut u64) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    match read_line(reader, &mut text, line).map_err(|e| read_error(path, 0, e))? {
        Line::TooLong => Err(LogError::Format {
            path: path.to_owned(),
            reason: format!("line 1 is longer than {} MiB; is this a table?", LONGEST_ROW >> 20),
        }),
        _ => Ok(text),
    }
}

fn column_name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_start_matches('\u{feff}').trim().to_owned()
}

impl Table {
    /// Opens the file or the directory of part files at `path` and reads the header of the first. Warns of unknown columns.
    ///
    /// # Errors
    /// An unreadable file, a repeated column, or a missing required one.
    pub fn open(path: &Path, columns: &'static [Column]) -> Result<Self> {
        let parts = find::parts(path)?;
        let read = Arc::default();
        let part = Part::open(&parts[0], columns, &read)?;
        Self::begin(path, parts, part, columns, read)
    }

    /// Opens tab-separated text from a reader; errors name `path`.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn of_text(path: &Path, reader: Box<dyn BufRead + Send>, columns: &'static [Column]) -> Result<Self> {
        let part = Part::of_text(path, reader)?;
        Self::begin(path, vec![path.to_owned()], part, columns, Arc::default())
    }

    fn begin(
        path: &Path,
        parts: Vec<PathBuf>,
        part: Part,
        columns: &'static [Column],
        read: Arc<AtomicU64>,
    ) -> Result<Self> {
        let Part { source, header, line } = part;
        let mut table = Self {
            path: path.to_owned(),
            parts,
            columns,
            part: 0,
            source,
            positions: vec![],
            width: 0,
            line,
            unknown: vec![],
            read,
        };
        table.match_header(header)?;
        Ok(table)
    }

    fn match_header(&mut self, header: Vec<String>) -> Result<()> {
        let (columns, path) = (self.columns, self.here());
        let header: Vec<String> = header.iter().map(|name| printable(name)).collect();
        let mut names = HashSet::new();
        for name in &header {
            if !names.insert(name) {
                return Err(LogError::RepeatedColumn { path: path.to_owned(), column: name.clone() });
            }
        }
        let found: Vec<Option<usize>> = columns.iter().map(|c| header.iter().position(|h| h == c.name)).collect();
        // JSON lines without a line have no keys to look at, and no row that lacks one.
        let is_empty = matches!(&self.source, Source::Json(_, _, false)) && header.is_empty();
        if !is_empty
            && let Some(column) =
                columns.iter().zip(&found).find(|(c, at)| c.required && at.is_none()).map(|(c, _)| c.name)
        {
            let mut found = header.join(", ");
            if find::partitions(path).any(|partition| partition == column) {
                found += &format!(" (`{column}` is a partition of the path only; partitions are ignored)");
            }
            return Err(LogError::MissingColumn { path: path.to_owned(), column, found });
        }
        let wanted_order = matches!(self.source, Source::Json(..) | Source::Parquet(_));
        let unknown: Vec<String> = header.iter().filter(|h| columns.iter().all(|c| c.name != **h)).cloned().collect();
        self.positions = if wanted_order { (0..columns.len()).map(Some).collect() } else { found };
        self.width = header.len();
        let known: HashSet<&String> = self.unknown.iter().collect();
        let new: Vec<String> = unknown.into_iter().filter(|name| !known.contains(name)).collect();
        self.unknown.extend(new);
        Ok(())
    }

    /// Returns the path of the file, or of the directory of part files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file that is being read.
    pub fn here(&self) -> &Path {
        &self.parts[self.part]
    }

    /// Returns whether the table is a directory of part files.
    pub fn is_parted(&self) -> bool {
        self.parts.len() > 1 || self.parts[0] != self.path
    }

    /// Returns the total size of its files in bytes; a file of unknown size counts as 0.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.metadata().map_or(0, |m| m.len())).sum()
    }

    /// Returns the number of bytes that were read from its files so far.
    pub fn bytes_read(&self) -> u64 {
        // Relaxed: the value is for a message.
        self.read.load(Ordering::Relaxed)
    }

    /// Returns the names of its parts for lists.
    pub fn part_names(&self) -> Vec<String> {
        (0..self.parts.len() as u32).map(|part| self.part_name(part)).collect()
    }

    /// Returns the name of a part for lists: its path relative to the log directory.
    pub fn part_name(&self, part: u32) -> String {
        let path = &self.parts[part as usize];
        let from = self.path.parent().and_then(|dir| path.strip_prefix(dir).ok()).unwrap_or(path);
        from.to_string_lossy().into_owned()
    }

    /// Returns a row buffer for this table.
    pub fn row(&self) -> Row {
        Row::new(self.columns, self.positions.clone())
    }

    /// Reads the next row into `row`; returns false at the end of the table.
    ///
    /// # Errors
    /// A truncated or damaged file; a part that lacks a required column.
    pub fn read(&mut self, row: &mut Row) -> Result<bool> {
        while !self.read_part(row)? {
            if !self.next_part()? {
                return Ok(false);
            }
        }
        row.place = Place { part: self.part as u32, line: self.line };
        row.positions.clone_from(&self.positions);
        Ok(true)
    }

    /// Opens the next part; returns false where there is none.
    fn next_part(&mut self) -> Result<bool> {
        if self.part + 1 == self.parts.len() {
            return Ok(false);
        }
        self.part += 1;
        let Part { source, header, line } = Part::open(self.here(), self.columns, &self.read)?;
        (self.source, self.line) = (source, line);
        let known = self.unknown.len();
        self.match_header(header)?;
        self.warn_unknown(known);
        Ok(true)
    }

    /// Warns of the unknown columns from number `from` on.
    pub(super) fn warn_unknown(&self, from: usize) {
        let unknown = &self.unknown[from..];
        for column in unknown.iter().take(MOST_NAMED) {
            tracing::warn!("{}: column `{column}` is unknown and ignored", self.here().display());
        }
        if unknown.len() > MOST_NAMED {
            tracing::warn!("{}: {} more columns are unknown", self.here().display(), unknown.len() - MOST_NAMED);
        }
    }

    fn read_part(&mut self, row: &mut Row) -> Result<bool> {
        let path = &self.parts[self.part];
        row.cells.clear();
        row.fault = None;
        let mut too_long = false;
        match &mut self.source {
            Source::Tsv(reader, text) => {
                let line = read_line(&mut **reader, text, &mut self.line);
                match line.map_err(|e| read_error(path, self.line, e))? {
                    Line::End => return Ok(false),
                    Line::Whole => split_tabs(text, &mut row.cells),
                    Line::TooLong => too_long = true,
                }
            }
            Source::Csv(rows) => {
                let Some(line) = rows.read().map_err(|e| read_error(path, self.line, e))? else { return Ok(false) };
                self.line = line;
                std::mem::swap(&mut row.cells, &mut rows.cells);
            }
            Source::Json(reader, text, pending) => {
                if !std::mem::take(pending) {
                    let line = read_line(&mut **reader, text, &mut self.line);
                    match line.map_err(|e| read_error(path, self.line, e))? {
                        Line::End => return Ok(false),
                        Line::Whole => {}
                        Line::TooLong => too_long = true,
                    }
                }
                if !too_long {
                    row.fault = json::row(text, self.columns, &mut row.cells).err();
                }
            }
            Source::Parquet(rows) => {
                let more = rows.read(|cell| row.cells.push_field(cell));
                let more = more.map_err(|e| damaged_row(path, self.line + 1, &e))?;
                if !more {
                    return Ok(false);
                }
                self.line += 1;
            }
        }
        if too_long {
            row.fault = Some(long_row());
        } else if matches!(self.source, Source::Tsv(..) | Source::Csv(_)) {
            row.check_width(self.width);
        }
        Ok(true)
    }
}

fn damaged_row(path: &Path, row: u64, why: &str) -> LogError {
    LogError::Format { path: path.to_owned(), reason: format!("row {row}: {why}; write the file again") }
}

/// Reads a whole table; any bad row is an error, and `key` (its column name and value) must not repeat.
///
/// # Errors
/// An unreadable file, or the first row that breaks a rule, with its line, column and value.
pub fn read_strict<T>(
    path: &Path,
    columns: &'static [Column],
    parse: impl Fn(&Row) -> std::result::Result<T, BadValue>,
    key: (&'static str, fn(&T) -> u64),
) -> Result<Vec<T>> {
    let mut table = Table::open(path, columns)?;
    table.warn_unknown(0);
    let mut row = table.row();
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    while table.read(&mut row)? {
        let bad_row = |bad| LogError::BadRow { path: table.here().to_owned(), line: row.place.line, bad };
        let value = parse(&row).map_err(bad_row)?;
        let id = (key.1)(&value);
        if !seen.insert(id) {
            return Err(bad_row(BadValue::new(key.0, &id.to_string(), "repeated", "stands twice; keep one row")));
        }
        rows.push(value);
    }
    Ok(rows)
}

fn read_error(path: &Path, line: u64, source: std::io::Error) -> LogError {
    match source.kind() {
        std::io::ErrorKind::UnexpectedEof => LogError::Truncated { path: path.to_owned(), line, cause: source },
        std::io::ErrorKind::InvalidData => {
            LogError::Format { path: path.to_owned(), reason: format!("after line {line}: {source}") }
        }
        _ if line > 0 || path.extension().is_some_and(|e| e == "gz" || e == "zst") => {
            LogError::Format { path: path.to_owned(), reason: format!("cannot be read on after line {line}: {source}") }
        }
        _ => LogError::io(path, source),
    }
}
