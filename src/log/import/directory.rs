//! Writes one imported day as a log directory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::report::{Directory, ImportReport};
use crate::log::day::format_date;
use crate::log::schema::{AdType, ControlRow, DAY_MS, DayFile, TrackRow};
use crate::log::{table, write};

/// The day of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Day {
    /// Days since 1970-01-01, local time.
    pub number: u64,
    pub utc_offset_minutes: i32,
}

impl Day {
    /// Returns the local midnight in Unix milliseconds; the day must not begin before 1970.
    pub fn start_ms(self) -> u64 {
        (self.number * DAY_MS).saturating_add_signed(-i64::from(self.utc_offset_minutes) * 60_000)
    }

    /// Converts to the day type of logs.
    pub fn of_log(self) -> crate::log::day::Day {
        let date = format_date(self.number as i64);
        crate::log::day::Day { date, start_ms: self.start_ms(), length_ms: DAY_MS }
    }

    pub fn contains(self, ts_ms: u64) -> bool {
        (self.start_ms()..self.start_ms() + DAY_MS).contains(&ts_ms)
    }
}

/// Refuses directories that hold a day, before the first one is written: half of two days is no day.
pub(super) fn refuse_taken(dirs: impl IntoIterator<Item = PathBuf>) -> Result<()> {
    for dir in dirs {
        for name in table::TABLES {
            if let Some(other) = table::all(&dir, name).next() {
                bail!("{} is there already: name another --out, or remove the directory", other.display());
            }
        }
    }
    Ok(())
}

/// Writes `day.toml`, `track_log.tsv` and `control.tsv` into `dir`, which is created if necessary.
pub(super) fn write_day(dir: &Path, day: Day, rows: &[TrackRow], control: &[ControlRow]) -> Result<Directory> {
    let date = format_date(day.number as i64);
    let failed = || format!("cannot write the log directory {}", dir.display());
    fs::create_dir_all(dir).with_context(failed)?;
    let file = DayFile { date: date.clone(), utc_offset_minutes: day.utc_offset_minutes };
    write::day(dir, &file).with_context(failed)?;
    let whole_day = (day.start_ms(), day.start_ms() + DAY_MS);
    write::control(&dir.join("control.tsv"), control, whole_day).with_context(failed)?;
    write_track_log(&dir.join("track_log.tsv"), rows).with_context(failed)?;

    let entries = rows.iter().map(|r| r.queue.len() as u64).sum::<u64>();
    let contract_entries = rows.iter().flat_map(|r| &r.queue).filter(|e| e.ad_type == AdType::Contract).count() as u64;
    Ok(Directory {
        path: dir.to_owned(),
        date,
        utc_offset_minutes: day.utc_offset_minutes,
        requests: rows.len() as u64,
        auction_entries: entries - contract_entries,
        contract_entries,
        contracts: control.len() as u64,
    })
}

fn write_track_log(path: &Path, rows: &[TrackRow]) -> std::io::Result<()> {
    let mut table = write::TableWriter::create(path)?;
    writeln!(table, "{}", write::TRACK_HEADER)?;
    for row in rows {
        write::track_row(&mut table, row)?;
    }
    table.finish()
}

/// Writes the report as `import.json` into every directory, so that a reader of the directory can tell, for example, that its
/// contracts were declared.
pub(super) fn write_reports(report: &ImportReport) -> Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    for directory in &report.directories {
        let path = directory.path.join("import.json");
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_east_of_greenwich_begins_before_utc_midnight() {
        let day = Day { number: 18_010, utc_offset_minutes: 480 };
        assert_eq!(day.start_ms(), 1_556_035_200_000);
        assert!(day.contains(1_556_035_200_000) && day.contains(1_556_121_599_999));
        assert!(!day.contains(1_556_035_199_999) && !day.contains(1_556_121_600_000));
    }
}
