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
        let start_ms = ts_ms / DAY_MS * DAY_MS;
        let days = i64::try_from(start_ms / DAY_MS).unwrap_or(i64::MAX);
        let date = Date::constant(1970, 1, 1)
            .checked_add(jiff::Span::new().try_days(days).unwrap_or_default())
            .map_or_else(|_| String::from("9999-12-31"), |d| d.to_string());
        Self { date, start_ms }
    }

    /// Reads `DIR/day.toml`; `None` where there is none.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("day.toml");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(LogError::io(&path, e)),
        };
        let broken = |reason: String| LogError::Format { path: path.clone(), reason };
        let file: DayFile = toml::from_str(&text).map_err(|e| broken(e.to_string()))?;
        let date: Date = file.date.parse().map_err(|e| broken(format!("date `{}`: {e}", file.date)))?;
        let days = i64::from((date - Date::constant(1970, 1, 1)).get_days());
        let start = days * DAY_MS as i64 - i64::from(file.utc_offset_minutes) * 60_000;
        let start_ms = u64::try_from(start)
            .map_err(|_| broken(format!("date `{}` lies before 1970", file.date)))?;
        Ok(Some(Self { date: date.to_string(), start_ms }))
    }
}
