//! Which calendar day a log directory holds: `day.toml`, or UTC and the first row's date.

use std::path::Path;

use jiff::civil::Date;

use super::error::{LogError, Result};
use super::schema::{DAY_MS, DayFile};

/// A calendar day in Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Day {
    /// `YYYY-MM-DD`, local.
    pub date: String,
    /// The local midnight that the day starts at.
    pub start_ms: u64,
}

impl Day {
    pub fn end_ms(&self) -> u64 {
        self.start_ms + DAY_MS
    }

    pub fn contains(&self, ts_ms: u64) -> bool {
        (self.start_ms..self.end_ms()).contains(&ts_ms)
    }

    /// The UTC day that holds `ts_ms`.
    pub fn of_timestamp(ts_ms: u64) -> Self {
        let days = ts_ms / DAY_MS;
        Self { date: format_date(days as i64), start_ms: days * DAY_MS }
    }

    /// Reads `DIR/day.toml`; `None` where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("day.toml");
        if path.try_exists().map_err(|e| LogError::io(&path, e))? { Self::read_file(&path).map(Some) } else { Ok(None) }
    }

    /// Reads a `day.toml`.
    ///
    /// # Errors
    /// An unreadable file, or one that names no day.
    pub fn read_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| LogError::io(path, e))?;
        let broken = |reason: String| LogError::Format { path: path.to_owned(), reason };
        let file: DayFile = toml::from_str(&text).map_err(|e| broken(e.to_string()))?;
        let start =
            parse_date(&file.date).map_err(&broken)? * DAY_MS as i64 - i64::from(file.utc_offset_minutes) * 60_000;
        let start_ms = u64::try_from(start).map_err(|_| broken(format!("date `{}` lies before 1970", file.date)))?;
        Ok(Self { date: file.date, start_ms })
    }
}

const EPOCH: Date = Date::constant(1970, 1, 1);

/// Days from 1970-01-01 to a `YYYY-MM-DD`.
///
/// # Errors
/// Quotes a text that is not a date of the calendar.
pub fn parse_date(text: &str) -> std::result::Result<i64, String> {
    let date: Date = text.parse().map_err(|_| format!("`{text}` is not a date like 2026-01-05"))?;
    Ok(i64::from((date - EPOCH).get_days()))
}

/// The `YYYY-MM-DD` that lies `days` after 1970-01-01; the last one that the calendar has where they are too many.
pub fn format_date(days: i64) -> String {
    let span = jiff::Span::new().try_days(days);
    span.and_then(|span| EPOCH.checked_add(span)).unwrap_or(Date::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_day_counts_convert_both_ways() {
        for (days, text) in [(0, "1970-01-01"), (15_865, "2013-06-09"), (19_782, "2024-02-29"), (20_458, "2026-01-05")]
        {
            assert_eq!((format_date(days).as_str(), parse_date(text)), (text, Ok(days)));
        }
        for bad in ["2025-02-29", "2025-13-01", "today", ""] {
            assert!(parse_date(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_is_no_panic() {
        assert_eq!(Day::of_timestamp(u64::MAX).date, "9999-12-31");
    }
}
