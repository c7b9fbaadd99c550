//! Reads tables of named columns, whatever they are stored in.
//!
//! TSV (plain, gzip, zstd) and Parquet give the same rows of text cells, so that there is one place
//! where values are parsed and one set of error messages.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, reader::RowIter};

use super::error::{BadValue, LogError, Result};

/// A column that a table may or must have.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub required: bool,
}

pub const fn required(name: &'static str) -> Column {
    Column { name, required: true }
}

pub const fn optional(name: &'static str) -> Column {
    Column { name, required: false }
}

const ENDINGS: [&str; 4] = ["tsv", "tsv.gz", "tsv.zst", "parquet"];

/// The file of `dir` that holds table `name`, or `None`.
///
/// # Errors
/// Two files that hold the same table.
pub fn find(dir: &Path, name: &str) -> Result<Option<PathBuf>> {
    let mut found: Option<PathBuf> = None;
    for ending in ENDINGS {
        let path = dir.join(format!("{name}.{ending}"));
        if path.is_file() {
            if let Some(first) = found {
                return Err(LogError::Ambiguous {
                    dir: dir.to_owned(),
                    first: first.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                    second: format!("{name}.{ending}"),
                });
            }
            found = Some(path);
        }
    }
    Ok(found)
}

/// Opens a text file, decompressing by its ending (`.gz`, `.zst`).
pub fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let file = File::open(path).map_err(|e| LogError::io(path, e))?;
    let raw: Box<dyn Read + Send> = match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(file))),
        Some("zst") => Box::new(zstd::stream::read::Decoder::new(file).map_err(|e| LogError::io(path, e))?),
        _ => Box::new(file),
    };
    Ok(Box::new(BufReader::with_capacity(1 << 18, raw)))
}

enum Source {
    /// With the line that was read last.
    Text(Box<dyn BufRead + Send>, Vec<u8>),
    Parquet(RowIter<'static>),
}

/// A table opened for reading, its header already matched against the wanted columns.
pub struct Table {
    path: PathBuf,
    source: Source,
    /// Position in the file of each wanted column.
    positions: Vec<Option<usize>>,
    columns: &'static [Column],
    width: usize,
    line: u64,
    /// Header names that nobody asked for.
    pub unknown: Vec<String>,
}

/// One row; cells are addressed by the index of the wanted column.
pub struct Row {
    pub line: u64,
    cells: csv::ByteRecord,
    positions: Vec<Option<usize>>,
    columns: &'static [Column],
    /// Cells that the row has and cells that the header promises.
    widths: (usize, usize),
}

impl Table {
    /// Opens `path` and reads its header.
    ///
    /// # Errors
    /// An unreadable file, a repeated column, or a missing required one.
    pub fn open(path: &Path, columns: &'static [Column]) -> Result<Self> {
        let line = 0;
        let (source, header) = if path.extension().is_some_and(|e| e == "parquet") {
            let broken = |e: parquet::errors::ParquetError| LogError::Format {
                path: path.to_owned(),
                reason: format!("not a readable Parquet file: {e}"),
            };
            let file = File::open(path).map_err(|e| LogError::io(path, e))?;
            let reader = SerializedFileReader::new(file).map_err(broken)?;
            let schema = reader.metadata().file_metadata().schema_descr_ptr();
            let header: Vec<String> = schema.root_schema().get_fields().iter().map(|f| f.name().to_owned()).collect();
            (Source::Parquet(RowIter::from_file_into(Box::new(reader))), header)
        } else {
            return Self::of_text(path, open(path)?, columns);
        };
        Self::of_source(path, source, header, columns, line)
    }

    /// Reads tab-separated text and its header; `path` stands for it in errors.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn of_text(path: &Path, mut reader: Box<dyn BufRead + Send>, columns: &'static [Column]) -> Result<Self> {
        let (mut text, mut line) = (Vec::new(), 0);
        read_line(&mut *reader, &mut text, &mut line).map_err(|e| read_error(path, 0, e))?;
        let header = text
            .split(|b| *b == b'\t')
            .map(|c| String::from_utf8_lossy(c).trim_start_matches('\u{feff}').trim().to_owned())
            .collect();
        Self::of_source(path, Source::Text(reader, text), header, columns, line)
    }

    fn of_source(
        path: &Path,
        source: Source,
        header: Vec<String>,
        columns: &'static [Column],
        line: u64,
    ) -> Result<Self> {
        for (i, name) in header.iter().enumerate() {
            if header[..i].contains(name) {
                return Err(LogError::RepeatedColumn { path: path.to_owned(), column: name.clone() });
            }
        }
        let positions: Vec<Option<usize>> = columns.iter().map(|c| header.iter().position(|h| h == c.name)).collect();
        if let Some(i) = (0..columns.len()).find(|&i| columns[i].required && positions[i].is_none()) {
            return Err(LogError::MissingColumn {
                path: path.to_owned(),
                column: columns[i].name,
                found: header.join(", "),
            });
        }
        let unknown = header.iter().filter(|h| columns.iter().all(|c| c.name != **h)).cloned().collect();
        Ok(Self { path: path.to_owned(), source, positions, columns, width: header.len(), line, unknown })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A row buffer that fits this table.
    pub fn row(&self) -> Row {
        Row {
            line: 0,
            cells: csv::ByteRecord::new(),
            positions: self.positions.clone(),
            columns: self.columns,
            widths: (0, self.width),
        }
    }

    /// Reads the next row into `row`; false at the end of the table.
    ///
    /// # Errors
    /// A file that cannot be read on: truncated or damaged.
    pub fn read(&mut self, row: &mut Row) -> Result<bool> {
        match &mut self.source {
            Source::Text(reader, text) => {
                let more = read_line(&mut **reader, text, &mut self.line);
                if !more.map_err(|e| read_error(&self.path, self.line, e))? {
                    return Ok(false);
                }
                row.cells.clear();
                for cell in text.split(|b| *b == b'\t') {
                    row.cells.push_field(cell);
                }
            }
            Source::Parquet(rows) => {
                let Some(next) = rows.next() else { return Ok(false) };
                let next = next.map_err(|e| LogError::Format {
                    path: self.path.clone(),
                    reason: format!("row {}: {e}", self.line + 1),
                })?;
                row.cells.clear();
                for (_, field) in next.get_column_iter() {
                    match field {
                        Field::Null => row.cells.push_field(b""),
                        Field::Str(s) => row.cells.push_field(s.as_bytes()),
                        Field::Bool(b) => row.cells.push_field(if *b { b"1" } else { b"0" }),
                        Field::Double(v) => row.cells.push_field(v.to_string().as_bytes()),
                        Field::Float(v) => row.cells.push_field(v.to_string().as_bytes()),
                        other => row.cells.push_field(other.to_string().as_bytes()),
                    }
                }
                self.line += 1;
            }
        }
        row.line = self.line;
        row.widths.0 = row.cells.len();
        Ok(true)
    }
}

/// Reads the next line that is not empty, without its end; `line` counts all of them, as an editor does. False at the
/// end of the file.
fn read_line(reader: &mut dyn BufRead, text: &mut Vec<u8>, line: &mut u64) -> std::io::Result<bool> {
    loop {
        text.clear();
        if reader.read_until(b'\n', text)? == 0 {
            return Ok(false);
        }
        *line += 1;
        text.pop_if(|end| *end == b'\n');
        text.pop_if(|end| *end == b'\r');
        if !text.is_empty() {
            return Ok(true);
        }
    }
}

/// Reads a whole table in which any bad row is an error and `key` (its column name and value) may not repeat.
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
    super::warn_unknown(&table);
    let mut row = table.row();
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    while table.read(&mut row)? {
        let bad_row = |bad| LogError::BadRow { path: path.to_owned(), line: row.line, bad };
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
        _ if line > 0 || path.extension().is_some_and(|e| e == "gz" || e == "zst") => {
            LogError::Format { path: path.to_owned(), reason: format!("cannot be read on after line {line}: {source}") }
        }
        _ => LogError::io(path, source),
    }
}

impl Row {
    /// The row's cells joined again, for the quarantine file.
    pub fn text(&self) -> String {
        let cells: Vec<_> = self.cells.iter().map(String::from_utf8_lossy).collect();
        cells.join("\t")
    }

    /// # Errors
    /// A row that is shorter or longer than the header.
    pub fn check_width(&self) -> std::result::Result<(), BadValue> {
        let (has, wants) = self.widths;
        if has == wants {
            return Ok(());
        }
        Err(BadValue::new("", &has.to_string(), "wrong_width", format!("the row has {has} cells, the header {wants}")))
    }

    /// The text of column `i`; empty where the table lacks the column.
    ///
    /// # Errors
    /// Bytes that are not UTF-8.
    pub fn text_of(&self, i: usize) -> std::result::Result<&str, BadValue> {
        let Some(bytes) = self.positions[i].and_then(|p| self.cells.get(p)) else { return Ok("") };
        std::str::from_utf8(bytes).map_err(|_| {
            BadValue::new(self.columns[i].name, &String::from_utf8_lossy(bytes), "not_utf8", "is not UTF-8")
        })
    }

    /// Column `i` as a whole number; `None` where it is empty.
    pub fn integer<T: std::str::FromStr>(&self, i: usize) -> std::result::Result<Option<T>, BadValue> {
        let text = self.text_of(i)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| {
            BadValue::new(
                self.columns[i].name,
                text,
                "not_an_integer",
                format!("is not a whole number that fits {}", std::any::type_name::<T>()),
            )
        })
    }

    /// Column `i` as a number within `low..=high`; `None` where it is empty.
    pub fn number(&self, i: usize, low: f64, high: f64) -> std::result::Result<Option<f64>, BadValue> {
        let text = self.text_of(i)?;
        if text.is_empty() {
            return Ok(None);
        }
        number(self.columns[i].name, text, low, high).map(Some)
    }

    /// The error for an empty cell that must not be empty.
    pub fn empty(&self, i: usize) -> BadValue {
        BadValue::new(self.columns[i].name, "", "empty", "must not be empty")
    }
}

/// Parses a finite number within `low..=high`.
pub fn number(column: &'static str, text: &str, low: f64, high: f64) -> std::result::Result<f64, BadValue> {
    let value: f64 = text.parse().map_err(|_| BadValue::new(column, text, "not_a_number", "is not a number"))?;
    if !value.is_finite() {
        return Err(BadValue::new(column, text, "not_finite", "must be finite"));
    }
    if value < low {
        let reason = if low == 0.0 { "negative" } else { "out_of_range" };
        return Err(BadValue::new(column, text, reason, format!("must be at least {low}")));
    }
    if value > high {
        return Err(BadValue::new(column, text, "out_of_range", format!("must be at most {high}")));
    }
    Ok(value)
}
