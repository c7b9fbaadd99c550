//! One leaf column of a Parquet file, read in batches and converted to the text that the tables' parsers expect.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::page::{Chunks, Pages};

/// Conversion of a stored value to text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Unsigned,
    /// A timestamp with this many units per millisecond.
    Time(i64),
    /// Number of digits after the decimal point.
    Decimal(usize),
}

enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

/// A value that needs no conversion to text before it is parsed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plain {
    Null,
    Whole(u64),
    Real(f64),
    Letter(u8),
}

/// A leaf column.
pub struct Leaf {
    column: usize,
    form: Form,
    max_def: i16,
    reader: Option<ColumnReader>,
    def: Vec<i16>,
    rep: Vec<i16>,
    values: Values,
    /// Indices of the next level and the next value in the batch.
    at: (usize, usize),
    /// The same indices at the start of the current row.
    began: (usize, usize),
}

impl Leaf {
    /// Creates the reader of leaf number `column` of a file.
    ///
    /// # Errors
    /// A type that no column of a table can have.
    pub fn of(schema: &SchemaDescriptor, column: usize) -> Result<Self, String> {
        let descr = schema.column(column);
        let values = match descr.physical_type() {
            Type::BOOLEAN => Values::Bool(vec![]),
            Type::INT32 => Values::Int32(vec![]),
            Type::INT64 => Values::Int64(vec![]),
            Type::INT96 => Values::Int96(vec![]),
            Type::FLOAT => Values::Float(vec![]),
            Type::DOUBLE => Values::Double(vec![]),
            Type::BYTE_ARRAY => Values::Bytes(vec![]),
            Type::FIXED_LEN_BYTE_ARRAY => Values::Fixed(vec![]),
        };
        let form = form(&descr)?;
        let (def, rep) = (vec![], vec![]);
        Ok(Self {
            column,
            form,
            max_def: descr.max_def_level(),
            reader: None,
            def,
            rep,
            values,
            at: (0, 0),
            began: (0, 0),
        })
    }

    /// Moves to a row group.
    pub fn enter(&mut self, chunks: &Arc<Chunks>, group: &RowGroupMetaData) -> Result<()> {
        let pages = Pages::of(chunks, group, self.column)?;
        self.reader = Some(get_column_reader(group.column(self.column).column_descr_ptr(), Box::new(pages)));
        Ok(())
    }

    /// Reads the next `rows` rows, fewer at the end of the row group; returns the number read.
    pub fn fill(&mut self, rows: usize) -> Result<usize> {
        self.def.clear();
        self.rep.clear();
        self.at = (0, 0);
        let (def, rep) = (&mut self.def, &mut self.rep);
        macro_rules! read {
            ($reader:expr, $values:expr) => {{
                $values.clear();
                $reader.read_records(rows, Some(def), Some(rep), $values)?.0
            }};
        }
        Ok(match (&mut self.reader, &mut self.values) {
            (Some(ColumnReader::BoolColumnReader(r)), Values::Bool(v)) => read!(r, v),
            (Some(ColumnReader::Int32ColumnReader(r)), Values::Int32(v)) => read!(r, v),
            (Some(ColumnReader::Int64ColumnReader(r)), Values::Int64(v)) => read!(r, v),
            (Some(ColumnReader::Int96ColumnReader(r)), Values::Int96(v)) => read!(r, v),
            (Some(ColumnReader::FloatColumnReader(r)), Values::Float(v)) => read!(r, v),
            (Some(ColumnReader::DoubleColumnReader(r)), Values::Double(v)) => read!(r, v),
            (Some(ColumnReader::ByteArrayColumnReader(r)), Values::Bytes(v)) => read!(r, v),
            (Some(ColumnReader::FixedLenByteArrayColumnReader(r)), Values::Fixed(v)) => read!(r, v),
            _ => return Err(ParquetError::General("a column changes its type between row groups".into())),
        })
    }

    /// Returns the number of entries of the current row's list: levels up to the next row's first. An empty list has one level
    /// below `slot`.
    pub fn entries(&self, slot: i16) -> usize {
        let at = self.at.0;
        let n = 1 + self.rep[at + 1..].iter().take_while(|level| **level != 0).count();
        if n == 1 && self.def[at] < slot { 0 } else { n }
    }

    /// Skips one level without a value: an empty list.
    pub fn pass(&mut self) {
        self.at.0 += 1;
    }

    /// Remembers the current position as the start of a row.
    pub fn begin_row(&mut self) {
        self.began = self.at;
    }

    /// Goes back to the start of the row.
    pub fn rewind(&mut self) {
        self.at = self.began;
    }

    /// Returns whether the current row's list has `n` entries, as [`Leaf::entries`] counts them.
    pub fn has_entries(&self, n: usize, slot: i16) -> bool {
        let at = self.at.0;
        if n < 2 {
            return self.entries(slot) == n;
        }
        let rest = &self.rep[at + 1..];
        // All levels are looked at, so that several are compared at once.
        let within = rest.get(..n - 1).is_some_and(|levels| levels.iter().fold(true, |all, level| all & (*level != 0)));
        within && rest.get(n - 1).is_none_or(|level| *level == 0)
    }

    /// Returns the next value; `None` if it needs conversion to text.
    pub fn plain(&mut self) -> Result<Option<Plain>> {
        let mut value = Plain::Null;
        Ok(self.plain_values(std::iter::once(&mut value))?.then_some(value))
    }

    /// Reads the next values; returns false if one of them needs conversion to text.
    pub fn plain_values<'a>(&mut self, to: impl ExactSizeIterator<Item = &'a mut Plain>) -> Result<bool> {
        let (level, value) = self.at;
        let max = self.max_def;
        let levels = self.def.get(level..level + to.len());
        if max == 0 || levels.is_some_and(|levels| levels.iter().fold(true, |all, def| all & (*def == max))) {
            self.at = (level + to.len(), value + to.len());
            return self.convert(value..value + to.len(), to);
        }
        for slot in to {
            let (level, value) = self.at;
            self.at.0 += 1;
            *slot = Plain::Null;
            if self.def.get(level) == Some(&max) {
                self.at.1 += 1;
                if !self.convert(value..value + 1, std::iter::once(slot))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Converts values of the batch; returns false if one of them needs conversion to text.
    fn convert<'a>(&self, range: Range<usize>, to: impl Iterator<Item = &'a mut Plain>) -> Result<bool> {
        macro_rules! each {
            ($values:expr, $plain:expr) => {{
                let values = $values.get(range).ok_or_else(|| ParquetError::EOF("fewer values than rows".into()))?;
                for (slot, value) in to.zip(values) {
                    match $plain(value) {
                        Some(plain) => *slot = plain,
                        None => return Ok(false),
                    }
                }
            }};
        }
        let whole = |v: i64| u64::try_from(v).ok().map(Plain::Whole);
        match (&self.values, self.form) {
            (Values::Int32(v), Form::Unsigned) => each!(v, |v: &i32| Some(Plain::Whole((*v as u32).into()))),
            (Values::Int64(v), Form::Unsigned) => each!(v, |v: &i64| Some(Plain::Whole(*v as u64))),
            (Values::Int32(v), Form::Plain) => each!(v, |v: &i32| whole((*v).into())),
            (Values::Int64(v), Form::Plain) => each!(v, |v: &i64| whole(*v)),
            (Values::Int64(v), Form::Time(unit)) => each!(v, |v: &i64| whole(v.div_euclid(unit))),
            (Values::Float(v), Form::Plain) => each!(v, |v: &f32| Some(Plain::Real((*v).into()))),
            (Values::Double(v), Form::Plain) => each!(v, |v: &f64| Some(Plain::Real(*v))),
            (Values::Bytes(v), Form::Plain) => each!(v, |v: &ByteArray| match v.data() {
                [letter] => Some(Plain::Letter(*letter)),
                _ => None,
            }),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Appends the next value to `text`; nothing if it is null.
    pub fn next(&mut self, text: &mut Vec<u8>) -> Result<()> {
        let (level, value) = self.at;
        self.at.0 += 1;
        if self.max_def > 0 && self.def.get(level) != Some(&self.max_def) {
            return Ok(());
        }
        self.at.1 += 1;
        let missing = || ParquetError::EOF("fewer values than rows".into());
        macro_rules! value {
            ($values:expr) => {
                $values.get(value).ok_or_else(missing)?
            };
        }
        let written = match (&self.values, self.form) {
            (Values::Bool(v), _) => write!(text, "{}", u8::from(*value!(v))),
            (Values::Int32(v), Form::Unsigned) => write!(text, "{}", *value!(v) as u32),
            (Values::Int64(v), Form::Unsigned) => write!(text, "{}", *value!(v) as u64),
            (Values::Int32(v), Form::Decimal(scale)) => return decimal(text, i128::from(*value!(v)), scale),
            (Values::Int64(v), Form::Decimal(scale)) => return decimal(text, i128::from(*value!(v)), scale),
            (Values::Bytes(v), Form::Decimal(scale)) => return decimal(text, unscaled(value!(v).data())?, scale),
            (Values::Fixed(v), Form::Decimal(scale)) => return decimal(text, unscaled(value!(v).data())?, scale),
            (Values::Int64(v), Form::Time(unit)) => write!(text, "{}", value!(v).div_euclid(unit)),
            (Values::Int32(v), _) => write!(text, "{}", value!(v)),
            (Values::Int64(v), _) => write!(text, "{}", value!(v)),
            (Values::Int96(v), _) => write!(text, "{}", millis(value!(v))),
            // Written with the exact value of the stored 32 bits: 0.1 gets the digits of its nearest f32.
            (Values::Float(v), _) => write!(text, "{}", f64::from(*value!(v))),
            (Values::Double(v), _) => write!(text, "{}", value!(v)),
            (Values::Bytes(v), _) => text.write_all(value!(v).data()),
            (Values::Fixed(v), _) => text.write_all(value!(v).data()),
        };
        written.map_err(Into::into)
    }
}

fn form(descr: &ColumnDescriptor) -> Result<Form, String> {
    let stored = descr.physical_type();
    let unusable = |what: &str| Err(format!("holds {what}; store a number, a text or a timestamp"));
    let whole = matches!(stored, Type::INT32 | Type::INT64);
    match descr.logical_type_ref() {
        Some(LogicalType::Timestamp(time)) if stored == Type::INT64 => {
            return Ok(Form::Time(match time.unit {
                TimeUnit::MILLIS => 1,
                TimeUnit::MICROS => 1000,
                TimeUnit::NANOS => 1_000_000,
            }));
        }
        Some(LogicalType::Integer(kind)) if whole && !kind.is_signed => return Ok(Form::Unsigned),
        Some(LogicalType::Decimal(kind)) => return Ok(Form::Decimal(kind.scale.max(0) as usize)),
        Some(LogicalType::Date) => return unusable("dates"),
        Some(LogicalType::Time(_)) => return unusable("times of day"),
        Some(LogicalType::Uuid) => return unusable("UUIDs"),
        Some(LogicalType::Float16) => return unusable("16-bit floats"),
        _ => {}
    }
    match descr.converted_type() {
        ConvertedType::TIMESTAMP_MILLIS => Ok(Form::Time(1)),
        ConvertedType::TIMESTAMP_MICROS => Ok(Form::Time(1000)),
        ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 if whole => {
            Ok(Form::Unsigned)
        }
        ConvertedType::DECIMAL => Ok(Form::Decimal(descr.type_scale().max(0) as usize)),
        ConvertedType::DATE => unusable("dates"),
        ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS => unusable("times of day"),
        ConvertedType::INTERVAL => unusable("intervals"),
        _ => Ok(Form::Plain),
    }
}

/// Converts a time as Impala and old versions of Spark write it, nanoseconds of a Julian day, to Unix milliseconds.
fn millis(time: &Int96) -> i64 {
    let [low, high, day] = *time.data() else { return 0 };
    let nanos = u64::from(high) << 32 | u64::from(low);
    (i64::from(day) - 2_440_588) * 86_400_000 + (nanos / 1_000_000) as i64
}

/// Decodes a big-endian two's complement number.
fn unscaled(bytes: &[u8]) -> Result<i128> {
    let negative = bytes.first().is_some_and(|b| b & 0x80 != 0);
    if bytes.len() > 16 {
        return Err(ParquetError::NYI("decimals of more than 38 digits".into()));
    }
    let mut all = [if negative { 0xff } else { 0 }; 16];
    all[16 - bytes.len()..].copy_from_slice(bytes);
    Ok(i128::from_be_bytes(all))
}

fn decimal(text: &mut Vec<u8>, value: i128, scale: usize) -> Result<()> {
    if scale > 38 {
        return Err(ParquetError::NYI("decimals of more than 38 digits".into()));
    }
    let unit = 10u128.pow(scale as u32);
    let (sign, size) = (if value < 0 { "-" } else { "" }, value.unsigned_abs());
    write!(text, "{sign}{}", size / unit)?;
    if scale > 0 {
        write!(text, ".{:0scale$}", size % unit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_written_with_their_point() {
        for (bytes, scale, wanted) in
            [(&[0x04, 0xd2][..], 2, "12.34"), (&[0xff], 3, "-0.001"), (&[0x80, 0], 0, "-32768"), (&[], 2, "0.00")]
        {
            let mut text = vec![];
            decimal(&mut text, unscaled(bytes).unwrap(), scale).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), wanted);
        }
        assert!(unscaled(&[0; 17]).is_err() && decimal(&mut vec![], 1, 39).is_err());
    }

    #[test]
    fn julian_days_are_unix_times() {
        let mut time = Int96::new();
        time.set_data(1_500_000_000, 0, 2_440_589);
        assert_eq!(millis(&time), 86_401_500);
        time.set_data(u32::MAX, u32::MAX, u32::MAX);
        assert!(millis(&time) > 0);
    }
}
