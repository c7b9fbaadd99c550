//! Columns that a reader asks for.

/// A required or optional column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub required: bool,
    /// Format of the lists in its cells, if it may hold lists.
    pub list: Option<List>,
}

/// Format of a list in a cell: `separator` between its entries, commas between the fields of an entry.
#[derive(Debug, Clone, Copy)]
pub struct List {
    pub separator: u8,
    /// Fields of an entry in text order; empty for plain values.
    pub fields: &'static [&'static str],
    /// Number of fields, from the first, that must be present.
    pub required: usize,
}

/// A column that a table must have.
pub const fn required(name: &'static str) -> Column {
    Column { name, required: true, list: None }
}

/// A column that a table may lack.
pub const fn optional(name: &'static str) -> Column {
    Column { name, required: false, list: None }
}

impl Column {
    /// Returns the column with lists in its cells; the arguments are the fields of [`List`].
    pub const fn list(self, separator: u8, fields: &'static [&'static str], required: usize) -> Self {
        Self { list: Some(List { separator, fields, required }), ..self }
    }
}

/// Replaces list separators in a value that becomes part of a list. No valid value contains them.
pub fn keep_apart(value: &mut [u8]) {
    value.iter_mut().filter(|b| b";,\t\n".contains(b)).for_each(|b| *b = b'?');
}
