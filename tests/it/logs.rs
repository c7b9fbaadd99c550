//! A log directory as rows, to be altered and written elsewhere.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use admix::log::day::Day;
use admix::log::schema::{ControlRow, DAY_MS, DayFile, InventoryRow, TrackRow};
use admix::log::table::{self, Table};
use admix::log::{control, inventory, track, write};

/// Everything of a day that policies may learn something from.
#[derive(Debug, Clone)]
pub struct LogRows {
    pub day: Day,
    pub requests: Vec<TrackRow>,
    pub contracts: Vec<ControlRow>,
    pub inventory: Option<Vec<InventoryRow>>,
}

impl LogRows {
    pub fn read(dir: &Path) -> Self {
        let day = Day::read(dir).unwrap().expect("a day.toml");
        assert_eq!(day.start_ms % DAY_MS, 0, "a day in UTC, as the generator writes them");
        let path = |name: &str| table::find(dir, name).unwrap();
        let mut source = Table::open(&path("track_log").unwrap(), track::COLUMNS).unwrap();
        let mut requests = Vec::new();
        let mut row = source.row();
        while source.read(&mut row).unwrap() {
            requests.push(track::parse(&row).unwrap());
        }
        Self {
            requests,
            contracts: control::read(&path("control").unwrap(), &day).unwrap(),
            inventory: path("inventory").map(|path| inventory::read(&path).unwrap()),
            day,
        }
    }

    /// Writes the tables as plain text into a new folder; its path.
    pub fn write(&self, dir: PathBuf) -> PathBuf {
        std::fs::create_dir(&dir).unwrap();
        write::day(&dir, &DayFile { date: self.day.date.clone(), utc_offset_minutes: 0 }).unwrap();
        let whole = (self.day.start_ms, self.day.start_ms + DAY_MS);
        write::control(&dir.join("control.tsv"), &self.contracts, whole).unwrap();
        if let Some(rows) = &self.inventory {
            write::inventory(&dir.join("inventory.tsv"), rows).unwrap();
        }
        track_log(&dir, &self.requests);
        dir
    }
}

/// Writes `track_log.tsv`.
pub fn track_log(dir: &Path, rows: &[TrackRow]) {
    let mut track = write::TableWriter::create(&dir.join("track_log.tsv")).unwrap();
    writeln!(track, "{}", write::TRACK_HEADER).unwrap();
    for row in rows {
        write::track_row(&mut track, row).unwrap();
    }
    track.finish().unwrap();
}
