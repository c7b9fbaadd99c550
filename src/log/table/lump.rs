//! Rows of a table in lumps that any thread can parse. One thread decompresses the text and finds the ends of lines, or hands
//! out row groups; the expensive rest runs on any free core.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::column::Column;
use super::json;
use super::parquet::{Outcome, ParquetRows, PlainRow};
use super::row::{Place, Row, long_row, split_tabs};
use super::text::{Line, read_line};
use super::{Source, Table, damaged_row, read_error};
use crate::log::error::{BadValue, Result};

/// Bytes of text in a lump, approximate.
const LUMP: usize = 1 << 20;
/// Maximum number of comma-separated rows in a lump.
const RECORDS: usize = 1024;

/// Consecutive rows of one part of a table.
pub struct Lump {
    part: u32,
    /// Number of rows before it in its part for Parquet, 0 for other formats.
    before: u64,
    layout: Arc<Layout>,
    content: Content,
    bytes: u64,
}

impl Lump {
    /// Returns the number of its part.
    pub fn part(&self) -> u32 {
        self.part
    }

    /// Returns the bytes of the table's files that were read for it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Layout of the rows of a part.
struct Layout {
    path: PathBuf,
    columns: &'static [Column],
    positions: Vec<Option<usize>>,
    width: usize,
}

enum Content {
    /// Text of all lines; for each its end offset in the text, its number, and whether it was cut.
    Lines {
        json: bool,
        text: Vec<u8>,
        lines: Vec<(usize, u64, bool)>,
    },
    Records(Vec<(u64, csv::ByteRecord)>),
    /// Number of a row group.
    Group(usize),
}

/// Iterator over the lumps of a table in order.
pub struct Lumps {
    table: Table,
    layout: Arc<Layout>,
    /// Next row group, and the number of rows before it.
    group: (usize, u64),
    /// Bytes read for earlier lumps.
    read: u64,
}

impl Table {
    /// Converts the rest of the table to lumps.
    pub fn into_lumps(self) -> Lumps {
        let layout = self.layout();
        Lumps { table: self, layout, group: (0, 0), read: 0 }
    }

    fn layout(&self) -> Arc<Layout> {
        let (path, positions) = (self.here().to_owned(), self.positions.clone());
        Arc::new(Layout { path, columns: self.columns, positions, width: self.width })
    }
}

impl Lumps {
    /// Returns the next lump; `None` at the end of the table.
    ///
    /// # Errors
    /// A file that cannot be read further; a part that lacks a required column.
    pub fn take(&mut self) -> Result<Option<Lump>> {
        loop {
            if let Some((content, before)) = self.content()? {
                let (part, layout) = (self.table.part as u32, self.layout.clone());
                // Relaxed: only this thread uses the counter.
                let read = self.table.read.load(Ordering::Relaxed);
                let bytes = read - std::mem::replace(&mut self.read, read);
                return Ok(Some(Lump { part, before, layout, content, bytes }));
            }
            if !self.table.next_part()? {
                return Ok(None);
            }
            self.layout = self.table.layout();
            self.group = (0, 0);
        }
    }

    fn content(&mut self) -> Result<Option<(Content, u64)>> {
        let Table { source, parts, part, line: number, read, .. } = &mut self.table;
        let path = &parts[*part];
        let (reader, line, json, mut pending) = match source {
            Source::Tsv(reader, line) => (reader, line, false, false),
            Source::Json(reader, line, pending) => (reader, line, true, std::mem::take(pending)),
            Source::Csv(rows) => {
                let (mut records, mut bytes) = (Vec::new(), 0);
                while records.len() < RECORDS
                    && bytes < LUMP
                    && let Some(line) = rows.read().map_err(|e| read_error(path, *number, e))?
                {
                    *number = line;
                    bytes += rows.cells.as_slice().len();
                    records.push((line, std::mem::take(&mut rows.cells)));
                }
                return Ok((!records.is_empty()).then_some((Content::Records(records), 0)));
            }
            Source::Parquet(rows) => {
                let (group, before) = self.group;
                let Some((held, bytes)) = rows.group(group) else { return Ok(None) };
                self.group = (group + 1, before + held);
                read.fetch_add(bytes, Ordering::Relaxed);
                return Ok(Some((Content::Group(group), before)));
            }
        };
        let (mut text, mut lines) = (Vec::with_capacity(LUMP + (LUMP >> 4)), Vec::new());
        while text.len() < LUMP {
            let cut = if std::mem::take(&mut pending) {
                false
            } else {
                match read_line(&mut **reader, line, number).map_err(|e| read_error(path, *number, e))? {
                    Line::End => break,
                    Line::Whole => false,
                    Line::TooLong => true,
                }
            };
            if !cut {
                text.extend_from_slice(line);
            }
            lines.push((text.len(), *number, cut));
        }
        Ok((!lines.is_empty()).then_some((Content::Lines { json, text, lines }, 0)))
    }
}

/// Reads the rows of lumps. It keeps the last Parquet file open.
#[derive(Default)]
pub struct LumpReader {
    parquet: Option<(PathBuf, Box<ParquetRows>)>,
}

impl LumpReader {
    /// Parses each row of a lump and passes the result to `each` until that returns false. Rows of a Parquet file go to `plain` first,
    /// as values; rows that it does not accept, and all other rows, go to `parse` as text.
    ///
    /// # Errors
    /// A damaged Parquet file.
    pub fn read<T>(
        &mut self,
        lump: Lump,
        plain: impl Fn(&PlainRow) -> Option<T>,
        parse: impl Fn(&Row) -> Parsed<T>,
        mut each: impl FnMut(Place, Parsed<T>) -> bool,
    ) -> Result<()> {
        let Lump { part, before, layout, content, .. } = lump;
        let mut row = Row::new(layout.columns, layout.positions.clone());
        let place = |line| Place { part, line };
        match content {
            Content::Lines { json, text, lines } => {
                let mut from = 0;
                for (end, number, cut) in lines {
                    let line = &text[from..end];
                    from = end;
                    row.cells.clear();
                    row.fault = None;
                    row.place = place(number);
                    if cut {
                        row.fault = Some(long_row());
                    } else if json {
                        row.fault = json::row(line, layout.columns, &mut row.cells).err();
                    } else {
                        split_tabs(line, &mut row.cells);
                        row.check_width(layout.width);
                    }
                    if !each(row.place, parse(&row)) {
                        break;
                    }
                }
            }
            Content::Records(records) => {
                for (number, cells) in records {
                    row.cells = cells;
                    row.fault = None;
                    row.place = place(number);
                    row.check_width(layout.width);
                    if !each(row.place, parse(&row)) {
                        break;
                    }
                }
            }
            Content::Group(group) => {
                let rows = match &mut self.parquet {
                    Some((path, rows)) if *path == layout.path => rows,
                    other => {
                        let rows = Box::new(ParquetRows::open(&layout.path, layout.columns)?);
                        &mut other.insert((layout.path.clone(), rows)).1
                    }
                };
                let mut number = before;
                let mut values = PlainRow::default();
                rows.enter(group);
                loop {
                    let damaged = |why: String| damaged_row(&layout.path, number + 1, &why);
                    let taken = match rows.read_plain(&mut values).map_err(damaged)? {
                        Outcome::End => break,
                        Outcome::Plain => plain(&values),
                        Outcome::Text => None,
                    };
                    row.place = place(number + 1);
                    let outcome = match taken {
                        Some(value) => Ok(value),
                        None => {
                            rows.again();
                            row.cells.clear();
                            rows.read(|cell| row.cells.push_field(cell)).map_err(damaged)?;
                            parse(&row)
                        }
                    };
                    number += 1;
                    if !each(row.place, outcome) {
                        // The reader is in the middle of a group.
                        self.parquet = None;
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A parsed row, or the reason why it is bad.
type Parsed<T> = std::result::Result<T, BadValue>;
