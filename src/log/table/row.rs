//! A row of a table: its text cells, and parsing them as numbers.

use super::column::Column;
use crate::log::error::BadValue;

/// Maximum bytes of a row; a queue of 512 entries takes 60 KB at most.
pub const LONGEST_ROW: usize = 4 << 20;

/// Place of a row: number of the part file, and line, or row for Parquet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    pub part: u32,
    pub line: u64,
}

/// One row; cells are addressed by the index of the wanted column.
pub struct Row {
    pub place: Place,
    pub(super) cells: csv::ByteRecord,
    pub(super) positions: Vec<Option<usize>>,
    pub(super) columns: &'static [Column],
    /// Error of the row as a whole.
    pub(super) fault: Option<BadValue>,
}

impl Row {
    pub(super) fn new(columns: &'static [Column], positions: Vec<Option<usize>>) -> Self {
        Self { place: Place::default(), cells: csv::ByteRecord::new(), positions, columns, fault: None }
    }

    pub(super) fn check_width(&mut self, width: usize) {
        let has = self.cells.len();
        if has != width {
            let rule = format!("the row has {has} cells, the header {width}");
            self.fault = Some(BadValue::new("", &has.to_string(), "wrong_width", rule));
        }
    }

    /// Returns the error of the row as a whole.
    ///
    /// # Errors
    /// A row with another number of columns than the header, a row that is too long, or invalid JSON.
    pub fn check_shape(&self) -> std::result::Result<(), BadValue> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Returns the text of column `i`; empty where the table lacks the column.
    ///
    /// # Errors
    /// Bytes that are not UTF-8.
    pub fn text_of(&self, i: usize) -> std::result::Result<&str, BadValue> {
        let Some(bytes) = self.positions[i].and_then(|p| self.cells.get(p)) else { return Ok("") };
        std::str::from_utf8(bytes).map_err(|_| {
            BadValue::new(self.columns[i].name, &String::from_utf8_lossy(bytes), "not_utf8", "is not UTF-8")
        })
    }

    /// Parses column `i` as a whole number; `None` where it is empty.
    pub fn integer<T: std::str::FromStr>(&self, i: usize) -> std::result::Result<Option<T>, BadValue> {
        let text = self.text_of(i)?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse().map(Some).map_err(|_| not_whole(self.columns[i].name, text, std::any::type_name::<T>()))
    }

    /// Parses column `i` as a number within `low..=high`; `None` where it is empty.
    pub fn number(&self, i: usize, low: f64, high: f64) -> std::result::Result<Option<f64>, BadValue> {
        let text = self.text_of(i)?;
        if text.is_empty() {
            return Ok(None);
        }
        number(self.columns[i].name, text, low, high).map(Some)
    }

    /// Returns the error for an empty cell that must not be empty.
    pub fn empty(&self, i: usize) -> BadValue {
        BadValue::new(self.columns[i].name, "", "empty", "must not be empty")
    }
}

/// Returns the error for a text that is no whole number of type `kind`, with what to do about it.
fn not_whole(column: &'static str, text: &str, kind: &str) -> BadValue {
    let hint = match (text.parse::<f64>(), column) {
        (Ok(number), _) if number >= 0.0 && number.fract() == 0.0 && text.contains(['.', 'e', 'E']) => {
            "; write it without point and exponent (pandas: give the column the type Int64)"
        }
        (Ok(_), _) => "",
        (Err(_), "ts_ms" | "arrival_ms") => "; times are Unix milliseconds, in Parquet also timestamps",
        (Err(_), _) if kind == "u64" => {
            "; hash ids that are texts, alike in every table (docs/formats.md, \"Rules for every file\")"
        }
        (Err(_), _) => "; number your texts, alike in every table",
    };
    BadValue::new(column, text, "not_an_integer", format!("is not a whole number that fits {kind}{hint}"))
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

/// Appends the cells of a tab-separated line.
pub fn split_tabs(text: &[u8], cells: &mut csv::ByteRecord) {
    let mut from = 0;
    for tab in memchr::memchr_iter(b'\t', text) {
        cells.push_field(&text[from..tab]);
        from = tab + 1;
    }
    cells.push_field(&text[from..]);
}

/// Returns the error of a row that is longer than [`LONGEST_ROW`].
pub fn long_row() -> BadValue {
    BadValue::new("", "", "row_too_long", format!("at most {} MiB are read of a row", LONGEST_ROW >> 20))
}
