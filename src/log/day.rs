//! The calendar day of a log directory: from `day.toml`, else the UTC date of the first row.

use std::io::Read as _;
use std::path::Path;

use jiff::civil::Date;

use super::error::{LogError, Result};
use super::schema::DAY_MS;

/// A calendar day in Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Day {
    /// Local date, `YYYY-MM-DD`.
    pub date: String,
    /// Local midnight at which the day starts.
    pub start_ms: u64,
    /// Length of the day: 24 hours, or 23 or 25 where clocks change.
    #[serde(default = "whole")]
    pub length_ms: u64,
}

fn whole() -> u64 {
    DAY_MS
}

/// Start of the year 2200, Unix milliseconds: a later time is in another unit.
pub const FAR_FUTURE_MS: u64 = 7_258_118_400_000;

/// Maximum size of a `day.toml`, bytes.
const LONGEST_FILE: u64 = 1 << 16;

/// Contents of `day.toml`: what importers write, and the length of days that do not have 24 hours.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    date: String,
    #[serde(default)]
    utc_offset_minutes: i32,
    hours: Option<f64>,
}

impl Day {
    pub fn end_ms(&self) -> u64 {
        self.start_ms + self.length_ms
    }

    /// Returns by how much the day's clock is ahead of UTC.
    pub fn utc_offset_minutes(&self) -> i64 {
        let midnight = parse_date(&self.date).map_or(self.start_ms as i64, |days| days * DAY_MS as i64);
        (midnight - self.start_ms as i64) / 60_000
    }

    pub fn contains(&self, ts_ms: u64) -> bool {
        (self.start_ms..self.end_ms()).contains(&ts_ms)
    }

    /// Returns the UTC day that holds `ts_ms`.
    pub fn of_timestamp(ts_ms: u64) -> Self {
        let days = ts_ms / DAY_MS;
        Self { date: format_date(days as i64), start_ms: days * DAY_MS, length_ms: DAY_MS }
    }

    /// Describes why a time outside the day is wrong, with the likely cause.
    pub fn outside(&self, ts_ms: u64) -> String {
        let hour = 3_600_000;
        let too_fine = "; is it in microseconds or nanoseconds? Divide it";
        let cause = match ts_ms {
            ..100_000_000_000 => "; is it in seconds? Multiply it by 1,000",
            // The day was taken from such a time, too: its date and range mean nothing.
            FAR_FUTURE_MS.. if self.start_ms > FAR_FUTURE_MS => {
                return format!("is not a time in Unix milliseconds{too_fine}");
            }
            100_000_000_000_000.. => too_fine,
            _ if (self.end_ms()..self.end_ms() + hour).contains(&ts_ms) => {
                "; if clocks were set back on this day, set hours = 25 in day.toml, else look at utc_offset_minutes there"
            }
            _ if self.start_ms.abs_diff(ts_ms) < 2 * DAY_MS => {
                "; if the day is not UTC's, set utc_offset_minutes in day.toml (480 is UTC+8)"
            }
            _ => "; is it another day's? day.toml has the date",
        };
        format!("lies outside {} (Unix milliseconds {}..{}){cause}", self.date, self.start_ms, self.end_ms())
    }

    /// Reads `DIR/day.toml`; `None` where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("day.toml");
        if path.try_exists().map_err(|e| LogError::io(&path, e))? { Self::read_file(&path).map(Some) } else { Ok(None) }
    }

    /// Reads a `day.toml`.
    ///
    /// # Errors
    /// An unreadable file, or one without a valid day.
    pub fn read_file(path: &Path) -> Result<Self> {
        let file = written(path)?;
        let broken = |reason: String| LogError::Format { path: path.to_owned(), reason };
        let start =
            parse_date(&file.date).map_err(&broken)? * DAY_MS as i64 - i64::from(file.utc_offset_minutes) * 60_000;
        let start_ms = u64::try_from(start).map_err(|_| broken(format!("date `{}` lies before 1970", file.date)))?;
        let hours = file.hours.unwrap_or(24.0);
        if !(22.0..=26.0).contains(&hours) {
            return Err(broken(format!("hours = {hours}; a day has 24, or 23 or 25 where clocks are changed")));
        }
        Ok(Self { date: file.date, start_ms, length_ms: (hours * 3_600_000.0).round() as u64 })
    }

    /// Reads `utc_offset_minutes` from `DIR/day.toml`; `None` without that file.
    pub fn offset_minutes(dir: &Path) -> Result<Option<i32>> {
        let path = dir.join("day.toml");
        if !path.try_exists().map_err(|e| LogError::io(&path, e))? {
            return Ok(None);
        }
        Ok(Some(written(&path)?.utc_offset_minutes))
    }
}

fn written(path: &Path) -> Result<Written> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| LogError::io(path, e))?;
    file.take(LONGEST_FILE + 1).read_to_string(&mut text).map_err(|e| LogError::io(path, e))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(LogError::Format { path: path.to_owned(), reason: "is longer than a day file can be".into() });
    }
    toml::from_str(&text).map_err(|e| LogError::Format { path: path.to_owned(), reason: e.to_string() })
}

const EPOCH: Date = Date::constant(1970, 1, 1);

/// Returns the number of days from 1970-01-01 to a `YYYY-MM-DD`.
///
/// # Errors
/// A text that is not a calendar date; the error quotes it.
pub fn parse_date(text: &str) -> std::result::Result<i64, String> {
    let date: Date = text.parse().map_err(|_| format!("`{text}` is not a date like 2026-01-05"))?;
    Ok(i64::from((date - EPOCH).get_days()))
}

/// Returns the date `days` after 1970-01-01 as `YYYY-MM-DD`, at most the last date of the calendar.
pub fn format_date(days: i64) -> String {
    let span = jiff::Span::new().try_days(days);
    span.and_then(|span| EPOCH.checked_add(span)).unwrap_or(Date::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_that_is_written_is_read_back_whatever_its_length() {
        let dir = tempfile::tempdir().unwrap();
        for (hours, offset) in [(24, 0), (25, 60), (23, -300), (24, 345)] {
            let start_ms = (20_000 * DAY_MS as i64 - offset * 60_000) as u64;
            let day = Day { date: format_date(20_000), start_ms, length_ms: hours * 3_600_000 };
            super::super::write::calendar(dir.path(), &day).unwrap();
            assert_eq!(Day::read(dir.path()).unwrap(), Some(day));
        }
    }

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

    /// It lay outside 9999-12-31, with a range that has other digits than that day.
    #[test]
    fn a_time_of_another_unit_is_not_compared_with_a_day_of_that_unit() {
        let [us, later] = [1_767_571_200_000_000, 1_767_571_288_000_000];
        let said = Day::of_timestamp(us).outside(later);
        assert_eq!(said, "is not a time in Unix milliseconds; is it in microseconds or nanoseconds? Divide it");
        let said = Day::of_timestamp(us).outside(later / 1000);
        assert!(said.contains("another day's"), "this time is right: {said}");
        let said = Day::of_timestamp(us / 1000).outside(later);
        assert!(said.contains("2026-01-05") && said.contains("microseconds"), "the day is right: {said}");
    }

    #[test]
    fn a_time_beyond_the_calendar_is_no_panic() {
        assert_eq!(Day::of_timestamp(u64::MAX).date, "9999-12-31");
    }
}
