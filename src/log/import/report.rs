//! Report of an import: directories written, rows dropped, values changed, contracts invented.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde::Serialize;

/// The outcome of an import, for people (`Display`) and programs (`Serialize`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportReport {
    /// Name of the imported format.
    pub source: &'static str,
    /// Rows read from all files, dropped ones included.
    pub rows_read: u64,
    pub directories: Vec<Directory>,
    /// Rows left out, by reason.
    pub dropped: Vec<Count>,
    /// Values changed or queue entries left out within rows that were kept, by reason.
    pub changed: Vec<Count>,
    /// Whether the contracts are auction ads of the log, declared to be contracts by the import.
    pub contracts_declared: bool,
    pub declared: Vec<DeclaredContract>,
    pub notes: Vec<String>,
}

/// One log directory as written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Directory {
    pub path: PathBuf,
    pub date: String,
    pub utc_offset_minutes: i32,
    pub requests: u64,
    pub auction_entries: u64,
    pub contract_entries: u64,
    pub contracts: u64,
}

/// Number of occurrences, and the first one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Count {
    pub reason: &'static str,
    pub count: u64,
    pub first: Example,
}

/// A place in an input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    pub file: PathBuf,
    /// Line number, from 1.
    pub line: u64,
    pub column: &'static str,
    pub value: String,
}

/// A contract that the import declared from an auction ad, in one directory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeclaredContract {
    pub directory: PathBuf,
    pub ad_id: u64,
    /// Requests of the directory whose queue has the ad.
    pub appears: u64,
    /// Requests among those in which its filter lets it be shown.
    pub may_show: u64,
    pub required: u64,
    /// Penalty, minor units per missing impression.
    pub penalty: f64,
}

impl ImportReport {
    /// Checks how many rows were dropped.
    ///
    /// # Errors
    /// More than a share of all rows.
    pub(super) fn check_dropped(&self, max: f64) -> Result<()> {
        let dropped: u64 = self.dropped.iter().map(|c| c.count).sum();
        let Some(most) = self.dropped.iter().max_by_key(|c| c.count) else { return Ok(()) };
        ensure!(
            dropped as f64 <= max * self.rows_read as f64,
            "{dropped} of {} rows cannot be used, more than --max-bad-share {max} allows; {} for {}, the first at {}. Mend the export, or raise the \
             share where that many may be missing",
            self.rows_read,
            most.count,
            most.reason,
            most.first
        );
        Ok(())
    }
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "imported {}: {} rows read", self.source, self.rows_read)?;
        for d in &self.directories {
            writeln!(
                f,
                "  {}: {} (UTC{:+} min), {} requests, {} auction and {} contract entries, {} contracts",
                d.path.display(),
                d.date,
                d.utc_offset_minutes,
                d.requests,
                d.auction_entries,
                d.contract_entries,
                d.contracts
            )?;
        }
        for (title, counts) in [("rows dropped", &self.dropped), ("changed in rows kept", &self.changed)] {
            if counts.is_empty() {
                writeln!(f, "{title}: none")?;
                continue;
            }
            writeln!(f, "{title}:")?;
            for c in counts {
                writeln!(f, "  {} x {}, first {}", c.count, c.reason, c.first)?;
            }
        }
        if self.contracts_declared {
            writeln!(f, "contracts were DECLARED by the import, they are not real: auction ads of the log, with")?;
            writeln!(f, "demands and penalties computed from it:")?;
            for c in &self.declared {
                writeln!(
                    f,
                    "  {}: ad {} required {} of {} requests that may show it (in {} queues), penalty {:.4}",
                    c.directory.display(),
                    c.ad_id,
                    c.required,
                    c.may_show,
                    c.appears,
                    c.penalty
                )?;
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, value } = self;
        write!(f, "{}:{line}: {column} = `{value}`", file.display())
    }
}

/// An error or a change in a row: the column, its value and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flaw {
    pub column: &'static str,
    pub value: String,
    pub reason: &'static str,
}

impl Flaw {
    /// Truncates a long value, so that a message does not quote a whole queue.
    pub fn new(column: &'static str, value: impl Into<String>, reason: &'static str) -> Self {
        const KEPT: usize = 80;
        let mut value: String = value.into();
        if let Some((end, _)) = value.char_indices().nth(KEPT) {
            value.truncate(end);
            value.push_str("..");
        }
        Self { column, value, reason }
    }
}

/// Counts flaws by reason and keeps the first example of each.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<&'static str, Count>);

impl Tally {
    pub fn add(&mut self, file: &Path, line: u64, flaw: Flaw) {
        self.0
            .entry(flaw.reason)
            .or_insert_with(|| Count {
                reason: flaw.reason,
                count: 0,
                first: Example { file: file.to_owned(), line, column: flaw.column, value: flaw.value },
            })
            .count += 1;
    }

    pub fn into_counts(self) -> Vec<Count> {
        self.0.into_values().collect()
    }
}

/// Parses a number in column `column`.
pub(super) fn number<T: std::str::FromStr>(column: &'static str, text: &str) -> Result<T, Flaw> {
    text.trim().parse().map_err(|_| Flaw::new(column, text, "not_a_number"))
}

/// Parses a finite number within `low..=high`.
pub(super) fn within(column: &'static str, text: &str, low: f64, high: f64) -> Result<f64, Flaw> {
    let value: f64 = number(column, text)?;
    if (low..=high).contains(&value) { Ok(value) } else { Err(Flaw::new(column, text, "out_of_range")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_counts_by_reason_and_keeps_the_first_place() {
        let mut tally = Tally::default();
        for (line, value) in [(3, "x"), (4, "y")] {
            tally.add(Path::new("a.csv"), line, number::<u64>("hour", value).unwrap_err());
        }
        tally.add(Path::new("a.csv"), 9, within("price", "inf", 0.0, 1.0).unwrap_err());
        let counts = tally.into_counts();
        assert_eq!(
            counts.iter().map(|c| (c.reason, c.count)).collect::<Vec<_>>(),
            [("not_a_number", 2), ("out_of_range", 1)]
        );
        assert_eq!(counts[0].first.to_string(), "a.csv:3: hour = `x`");
    }

    #[test]
    fn numbers_that_are_not_finite_are_out_of_range() {
        for text in ["NaN", "inf", "-0.5", "1.5"] {
            assert_eq!(within("p", text, 0.0, 1.0).unwrap_err().reason, "out_of_range");
        }
        assert_eq!(within("p", " 1 ", 0.0, 1.0), Ok(1.0));
    }

    #[test]
    fn long_values_are_cut_at_a_character() {
        let flaw = Flaw::new("queue", "\u{5e7f}".repeat(200), "not_a_number");
        assert_eq!(flaw.value.chars().count(), 82);
    }
}
