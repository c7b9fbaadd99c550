//! Rows of a Parquet file: only the wanted columns are read, in batches.
//!
//! A column of lists, of numbers or of structs, becomes the same text as in a TSV file, so that there is one grammar and one
//! set of checks. Whatever the file holds, the result is rows or an error that names the file.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::{SchemaDescriptor, Type};

use super::column::{Column, List, keep_apart};
use super::guard::guarded;
use super::page::Chunks;
use super::row::LONGEST_ROW;
use super::value::{Leaf, Plain};
use crate::log::error::{LogError, printable};

/// Rows decoded at a time.
const BATCH: usize = 256;

/// A Parquet file opened for reading.
pub struct ParquetRows {
    chunks: Arc<Chunks>,
    meta: ParquetMetaData,
    /// Names of the file's top-level columns.
    pub header: Vec<String>,
    /// One cell reader for each wanted column; `None` where the file lacks it.
    cells: Vec<Option<Cell>>,
    group: usize,
    /// Row group at which reading ends, exclusive.
    end: usize,
    /// Rows of the current row group that are not decoded yet, and decoded rows that are not returned yet.
    left: (usize, usize),
}

/// Values of a row without text conversion.
#[derive(Debug, Default)]
pub struct PlainRow {
    /// One value for each wanted column; null for a column that the file lacks, and for the list.
    pub cells: Vec<Plain>,
    /// Fields of each entry of the list in text order; null beyond the last field.
    pub list: Vec<[Plain; FIELDS]>,
}

/// Maximum number of fields of an entry.
const FIELDS: usize = 6;
/// Maximum number of entries of a list that is read as plain values: enough for any queue.
const MOST_PLAIN: usize = 512;

/// Result of reading a row as plain values.
pub enum Outcome {
    End,
    Plain,
    /// A value needs conversion to text: call [`ParquetRows::again`], then [`ParquetRows::read`].
    Text,
}

/// A wanted column of the file.
enum Cell {
    One(Box<Leaf>),
    List(ListCell),
}

/// A column of lists: the leaves of its fields, `None` for a field that the file lacks; a single leaf for a list of plain
/// values.
struct ListCell {
    leaves: Vec<Option<Leaf>>,
    /// Least definition level of an entry.
    slot: i16,
    list: List,
}

impl ParquetRows {
    /// Opens a file and finds the wanted columns.
    ///
    /// # Errors
    /// A file that is damaged or not Parquet, or a wanted column of a type that cannot be read.
    pub fn open(path: &Path, columns: &'static [Column]) -> Result<Self, LogError> {
        let broken = |reason: String| LogError::Format { path: path.to_owned(), reason };
        let file = File::open(path).map_err(|e| LogError::io(path, e))?;
        let chunks = Arc::new(Chunks::open(file).map_err(|e| LogError::io(path, e))?);
        let unreadable = |e| broken(format!("not a readable Parquet file: {e}"));
        let meta = guarded(|| ParquetMetaDataReader::new().parse_and_finish(&*chunks)).map_err(unreadable)?;
        let schema = meta.file_metadata().schema_descr_ptr();
        let header: Vec<String> = schema.root_schema().get_fields().iter().map(|f| f.name().to_owned()).collect();
        let cells = guarded(|| columns.iter().map(|column| cell(&schema, column)).collect::<Result<_, _>>());
        let cells = cells.map_err(broken)?;
        let end = meta.num_row_groups();
        Ok(Self { chunks, meta, header, cells, group: 0, end, left: (0, 0) })
    }

    /// Returns the number of rows of a row group and its compressed size in bytes; `None` beyond the last one.
    pub fn group(&self, group: usize) -> Option<(u64, u64)> {
        let group = (group < self.meta.num_row_groups()).then(|| self.meta.row_group(group))?;
        Some((group.num_rows().max(0) as u64, group.compressed_size().max(0) as u64))
    }

    /// Restricts reading to one row group.
    pub fn enter(&mut self, group: usize) {
        (self.group, self.end, self.left) = (group, group + 1, (0, 0));
    }

    /// Passes the next row's cells to `cell`, in the order of the wanted columns; returns false at the end of the file.
    ///
    /// # Errors
    /// A damaged file.
    pub fn read(&mut self, mut cell: impl FnMut(&[u8])) -> Result<bool, String> {
        if self.left.1 == 0 && guarded(|| self.fill())?.is_break() {
            return Ok(false);
        }
        self.left.1 -= 1;
        let cells = &mut self.cells;
        guarded(|| {
            let mut text = Vec::new();
            for column in cells {
                text.clear();
                match column {
                    None => {}
                    Some(Cell::One(leaf)) => leaf.next(&mut text)?,
                    Some(Cell::List(list)) => list.next(&mut text)?,
                }
                cell(&text);
            }
            Ok::<_, ParquetError>(true)
        })
    }

    /// Reads the next row into `row`, if all its values are plain.
    ///
    /// # Errors
    /// A damaged file.
    pub fn read_plain(&mut self, row: &mut PlainRow) -> Result<Outcome, String> {
        if self.left.1 == 0 && guarded(|| self.fill())?.is_break() {
            return Ok(Outcome::End);
        }
        let cells = &mut self.cells;
        row.cells.clear();
        row.list.clear();
        let plain = guarded(|| {
            let mut all = true;
            // A row is given back as a whole, so every column notes where the row begins, even after another column failed.
            for column in &mut *cells {
                let (value, good) = match column {
                    None => (Plain::Null, true),
                    Some(Cell::One(leaf)) => {
                        leaf.begin_row();
                        leaf.plain()?.map_or((Plain::Null, false), |value| (value, true))
                    }
                    Some(Cell::List(list)) => (Plain::Null, list.next_plain(&mut row.list)?),
                };
                row.cells.push(value);
                all &= good;
            }
            Ok::<_, ParquetError>(all)
        })?;
        self.left.1 -= 1;
        Ok(if plain { Outcome::Plain } else { Outcome::Text })
    }

    /// Goes back to the start of the row that [`ParquetRows::read_plain`] read last, so that [`ParquetRows::read`] returns it
    /// as text.
    pub fn again(&mut self) {
        self.left.1 += 1;
        for column in self.cells.iter_mut().flatten() {
            match column {
                Cell::One(leaf) => leaf.rewind(),
                Cell::List(list) => list.leaves.iter_mut().flatten().for_each(Leaf::rewind),
            }
        }
    }

    /// Decodes the next batch; breaks at the end of the file.
    fn fill(&mut self) -> Result<ControlFlow<()>> {
        let mut leaves: Vec<&mut Leaf> = Vec::new();
        for cell in self.cells.iter_mut().flatten() {
            match cell {
                Cell::One(leaf) => leaves.push(leaf),
                Cell::List(list) => leaves.extend(list.leaves.iter_mut().flatten()),
            }
        }
        while self.left.0 == 0 {
            if self.group == self.end {
                return Ok(ControlFlow::Break(()));
            }
            let group = self.meta.row_group(self.group);
            self.group += 1;
            self.left.0 = usize::try_from(group.num_rows())?;
            leaves.iter_mut().try_for_each(|leaf| leaf.enter(&self.chunks, group))?;
        }
        let wanted = self.left.0.min(BATCH);
        for leaf in leaves {
            let rows = leaf.fill(wanted)?;
            if rows != wanted {
                return Err(ParquetError::EOF(format!("a column of row group {} ends before its rows do", self.group)));
            }
        }
        self.left = (self.left.0 - wanted, wanted);
        Ok(ControlFlow::Continue(()))
    }
}

/// Finds a wanted column in the file; `None` where it is missing.
fn cell(schema: &SchemaDescriptor, column: &Column) -> Result<Option<Cell>, String> {
    let root = schema.root_schema();
    let Some(at) = root.get_fields().iter().position(|field| field.name() == column.name) else { return Ok(None) };
    let field = &root.get_fields()[at];
    let unusable = |why: &str| format!("column `{}` {why}", column.name);
    let of_field: Vec<usize> = (0..schema.num_columns()).filter(|&i| schema.get_column_root_idx(i) == at).collect();
    let leaf = |i: usize| Leaf::of(schema, i).map_err(|why| unusable(&why));
    let plain = field.is_primitive() && schema.column(of_field[0]).max_rep_level() == 0;
    if plain {
        return Ok(Some(Cell::One(Box::new(leaf(of_field[0])?))));
    }
    let Some(list) = column.list else { return Err(unusable("is nested; this one has to be a plain value")) };
    if of_field.is_empty() || of_field.iter().any(|&i| schema.column(i).max_rep_level() != 1) {
        return Err(unusable("is nested in another way than a list of values, or of structs of values"));
    }
    let slot = slot(field);
    if list.fields.is_empty() {
        let [one] = of_field[..] else { return Err(unusable("has to be a list of plain values or a text")) };
        return Ok(Some(Cell::List(ListCell { leaves: vec![Some(leaf(one)?)], slot, list })));
    }
    let name = |i: usize| schema.column(i).self_type().name().to_owned();
    // A struct within the entries may have fields of the same names.
    let depth = |i: usize| schema.column(i).path().parts().len();
    let shallowest = of_field.iter().map(|&i| depth(i)).min().unwrap_or_default();
    let mut leaves = Vec::new();
    for (f, wanted) in list.fields.iter().enumerate() {
        match of_field.iter().find(|&&i| depth(i) == shallowest && name(i) == *wanted) {
            Some(&i) => leaves.push(Some(leaf(i)?)),
            None if f >= list.required => leaves.push(None),
            None => {
                let found: Vec<String> = of_field.iter().map(|&i| printable(&name(i))).collect();
                return Err(unusable(&format!("has no field `{wanted}`; its fields are {}", found.join(", "))));
            }
        }
    }
    Ok(Some(Cell::List(ListCell { leaves, slot, list })))
}

/// Returns the definition level from which on a list has an entry: that of the repeated node.
fn slot(field: &Type) -> i16 {
    use parquet::basic::Repetition;
    let mut level = 0;
    let mut node = field;
    loop {
        let info = node.get_basic_info();
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        level += i16::from(repetition != Repetition::REQUIRED);
        if repetition == Repetition::REPEATED || node.is_primitive() || node.get_fields().is_empty() {
            return level;
        }
        node = &node.get_fields()[0];
    }
}

impl ListCell {
    /// Reads the next row's list; returns false where a value needs conversion to text, or where the text parser has to judge
    /// the list.
    fn next_plain(&mut self, list: &mut Vec<[Plain; FIELDS]>) -> Result<bool> {
        self.leaves.iter_mut().flatten().for_each(Leaf::begin_row);
        let mut leaves = self.leaves.iter().flatten();
        let n = leaves.next().map_or(0, |first| first.entries(self.slot));
        if n == 0 || n > MOST_PLAIN || self.leaves.len() > FIELDS || !leaves.all(|leaf| leaf.has_entries(n, self.slot))
        {
            return Ok(false);
        }
        list.resize(n, [Plain::Null; FIELDS]);
        for (f, leaf) in self.leaves.iter_mut().enumerate() {
            let Some(leaf) = leaf else { continue };
            if !leaf.plain_values(list.iter_mut().map(|entry| &mut entry[f]))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the next row's list as text: fields joined by commas, entries by the column's separator.
    fn next(&mut self, text: &mut Vec<u8>) -> Result<()> {
        let mut lengths = self.leaves.iter().flatten().map(|leaf| leaf.entries(self.slot));
        let n = lengths.next().unwrap_or(0);
        if lengths.any(|other| other != n) {
            return Err(ParquetError::General("the fields of a list have different lengths".into()));
        }
        for i in 0..n {
            if text.len() > LONGEST_ROW {
                return Err(ParquetError::General(format!("a list of {n} entries")));
            }
            if i > 0 {
                text.push(self.list.separator);
            }
            for (f, leaf) in self.leaves.iter_mut().enumerate() {
                if f > 0 {
                    text.push(b',');
                }
                if let Some(leaf) = leaf {
                    let from = text.len();
                    leaf.next(text)?;
                    keep_apart(&mut text[from..]);
                }
            }
        }
        if n == 0 {
            self.leaves.iter_mut().flatten().for_each(Leaf::pass);
        }
        Ok(())
    }
}
