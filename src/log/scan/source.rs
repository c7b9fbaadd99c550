//! The opened tables of a day.

use std::path::{Path, PathBuf};

use crate::log::day::Day;
use crate::log::error::{LogError, Result};
use crate::log::options::CompileOptions;
use crate::log::quarantine::{Quarantine, check_share};
use crate::log::queue::QueueRules;
use crate::log::table::{self, Table};
use crate::log::{control, track};

/// The opened tables of a day, with the day and the contracts.
pub struct Source {
    pub day: Day,
    pub rules: QueueRules,
    pub(super) dir: PathBuf,
    pub(super) track_path: PathBuf,
    pub(super) options: CompileOptions,
}

impl Source {
    /// Opens the tables of a log directory.
    ///
    /// # Errors
    /// Any [`LogError`] of the tables; a track log without a usable row, whose bad rows are then in the quarantine file.
    pub fn open(dir: &Path, options: CompileOptions) -> Result<Self> {
        let track_path = table::require(dir, "track_log", track::COLUMNS)?;
        let control_path = table::require(dir, "control", control::COLUMNS)?;
        let day = match Day::read(dir)? {
            Some(day) => day,
            None => first_day(&track_path, dir, options)?,
        };
        let rules = QueueRules::new(control::read(&control_path, &day)?, options.complete_queues);
        Ok(Self { day, rules, dir: dir.to_owned(), track_path, options })
    }
}

/// Returns the UTC day of the first good row, for a directory without `day.toml`.
fn first_day(track_path: &Path, dir: &Path, options: CompileOptions) -> Result<Day> {
    let mut table = Table::open(track_path, track::COLUMNS)?;
    table.warn_unknown(0);
    let names = PartNames { parted: table.is_parted(), names: table.part_names() };
    let mut row = table.row();
    let mut quarantine = Quarantine::begin(dir);
    while table.read(&mut row)? {
        crate::cancel::point();
        quarantine.counts.rows += 1;
        match track::parse(&row) {
            Ok(request) => return Ok(Day::of_timestamp(request.ts_ms)),
            Err(bad) => quarantine.set_aside(names.of(row.place.part), row.place.line, &bad),
        }
    }
    quarantine.finish();
    check_share(&quarantine.counts, options, dir)?;
    Err(LogError::Empty { path: track_path.to_owned() })
}

/// Names of the part files of a table for lists.
#[derive(Default)]
pub struct PartNames {
    pub parted: bool,
    pub names: Vec<String>,
}

impl PartNames {
    /// Returns the name of a part, and whether the table has several.
    pub fn of(&self, part: u32) -> (&str, bool) {
        (&self.names[part as usize], self.parted)
    }
}
