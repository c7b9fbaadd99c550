//! Windows of a day as separate log directories, for the refresh during the day.
//!
//! A day in progress cannot be used for training as a whole: its contracts owe what the missing hours would deliver. A window of
//! it can, because it is complete once there are later requests. In a window a contract owes the share of its impressions that the
//! forecast's supply has there, its flight is cut to the window, and the inventory has only the window's traffic.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use jiff::SignedDuration;

use crate::log::compiled::Contract;
use crate::log::day::Day;
use crate::log::schema::{AdType, ControlRow, InventoryRow, TrackRow};
use crate::log::write::{self, TableWriter};
use crate::log::{CompileOptions, RawDay};
use crate::plan::forecast::Node;
use crate::plan::{Forecast, GRID};

use super::days::{DayDir, window_label};

const MINUTE_MS: u64 = 60_000;
/// Minutes per cell of the forecast's grid.
const CELL_MIN: u64 = 24 * 60 / GRID as u64;
const MOST_MIN: u64 = 12 * 60;

/// Length of windows; they begin at midnight and at multiples of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    minutes: u64,
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "a multiple of 15m up to 12h that divides a day, for example 2h, 30m or 1h30m";
        let length: SignedDuration = text.parse().map_err(|_| format!("`{text}` is not {wanted}"))?;
        let minutes = u64::try_from(length.as_secs() / 60).unwrap_or(0);
        let whole = length == SignedDuration::from_mins(minutes.cast_signed()) && minutes.is_multiple_of(CELL_MIN);
        let fits = whole && (CELL_MIN..=MOST_MIN).contains(&minutes) && (24 * 60_u64).is_multiple_of(minutes);
        if fits { Ok(Self { minutes }) } else { Err(format!("`{text}` is not {wanted}")) }
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.minutes / 60, self.minutes % 60) {
            (0, m) => write!(f, "{m}m"),
            (h, 0) => write!(f, "{h}h"),
            (h, m) => write!(f, "{h}h{m}m"),
        }
    }
}

impl Window {
    fn length_ms(self) -> u64 {
        self.minutes * MINUTE_MS
    }

    /// Cuts a day into its windows and writes those with requests as log directories into `out`, oldest first. If the day is
    /// `under_way`, only windows that a later request shows to be complete count.
    ///
    /// `forecast` replaces a missing inventory.
    ///
    /// # Errors
    /// A day that cannot be read, or a folder that cannot be written.
    pub fn cut(
        self,
        source: &DayDir,
        under_way: bool,
        forecast: &Forecast,
        out: &Path,
        options: CompileOptions,
    ) -> anyhow::Result<Vec<DayDir>> {
        let raw = RawDay::read(&source.dir, options)?;
        let own = Forecast::of_directory(&source.dir)?;
        let forecast = own.as_ref().unwrap_or(forecast);
        let last = raw.rows.last().map_or(0, |row| row.ts_ms);
        let mut windows = Vec::new();
        let mut start = raw.day.start_ms;
        while start < raw.day.end_ms() {
            let end = (start + self.length_ms()).min(raw.day.end_ms());
            if !under_way || end <= last {
                let from = raw.rows.partition_point(|row| row.ts_ms < start);
                let to = raw.rows.partition_point(|row| row.ts_ms < end);
                let span = Span { day: &raw.day, start, end };
                let minute = (start - raw.day.start_ms) / MINUTE_MS;
                let dir = out.join(window_label(source.date, minute));
                if span.write(&raw.rows[from..to], &raw.contracts, forecast, &dir)? {
                    copy_import_report(&source.dir, &dir)?;
                    windows.push(DayDir { date: source.date, minute: Some(minute), dir });
                }
            }
            start = end;
        }
        Ok(windows)
    }
}

/// Copies the importer's report, which says whether contracts are real.
fn copy_import_report(from: &Path, to: &Path) -> anyhow::Result<()> {
    let [from, to] = [from, to].map(|dir| dir.join("import.json"));
    match std::fs::copy(&from, &to) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot copy {}", from.display()))
        }
        _ => Ok(()),
    }
}

/// A window of a day, Unix milliseconds, half open.
struct Span<'a> {
    day: &'a Day,
    start: u64,
    end: u64,
}

impl Span<'_> {
    /// Writes the window as a log directory; returns `false` where it would have no request.
    fn write(
        &self,
        rows: &[TrackRow],
        contracts: &[ControlRow],
        forecast: &Forecast,
        dir: &Path,
    ) -> anyhow::Result<bool> {
        let contracts: Vec<ControlRow> = contracts.iter().filter_map(|row| self.contract(row, forecast)).collect();
        // A contract that owes nothing here has no control row, and an entry without one would be bad.
        let known: HashSet<u64> = contracts.iter().map(|row| row.ad_id).collect();
        let rows: Vec<TrackRow> = rows
            .iter()
            .map(|row| {
                let mut row = row.clone();
                row.queue.retain(|e| e.ad_type == AdType::Auction || known.contains(&e.ad_id));
                row
            })
            .filter(|row| !row.queue.is_empty())
            .collect();
        if rows.is_empty() {
            return Ok(false);
        }
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(dir)?;
            write::control(&dir.join("control.tsv"), &contracts, (self.day.start_ms, self.day.end_ms()))?;
            write::inventory(&dir.join("inventory.tsv"), &self.inventory(forecast))?;
            write::calendar(dir, self.day)?;
            let mut track = TableWriter::create(&dir.join("track_log.tsv"))?;
            std::io::Write::write_all(&mut track, format!("{}\n", write::TRACK_HEADER).as_bytes())?;
            rows.iter().try_for_each(|row| write::track_row(&mut track, row))?;
            track.finish()
        };
        write().with_context(|| format!("cannot write {}", dir.display()))?;
        Ok(true)
    }

    /// Returns the contract as owed in the window; `None` where it owes nothing.
    fn contract(&self, row: &ControlRow, forecast: &Forecast) -> Option<ControlRow> {
        let (start, end) = (row.start_ms.max(self.start), row.end_ms.min(self.end));
        if start >= end {
            return None;
        }
        let contract = Contract::before_the_day(row);
        let supply = forecast.supply(&contract, self.day.start_ms, 1.0);
        let offset = |time: u64| time - self.day.start_ms;
        let total = supply.total();
        let share = if total > 0.0 {
            (supply.before(offset(end)) - supply.before(offset(start))) / total
        } else {
            (end - start) as f64 / (row.end_ms - row.start_ms) as f64
        };
        let required = (contract.owed() as f64 * share).round() as u64;
        let cap = ((contract.left() as f64 * share).round() as u64).max(required);
        (required > 0).then(|| ControlRow { required, cap, delivered0: 0, start_ms: start, end_ms: end, ..row.clone() })
    }

    /// Returns the forecast's traffic in the window only.
    fn inventory(&self, forecast: &Forecast) -> Vec<InventoryRow> {
        let cell_ms = CELL_MIN * MINUTE_MS;
        let inside = |cell: usize| {
            let at = self.day.start_ms + cell as u64 * cell_ms;
            let overlap = self.end.min(at + cell_ms).saturating_sub(self.start.max(at));
            overlap as f64 / cell_ms as f64
        };
        let of_node = |(i, node): (usize, &Node)| {
            let shares: Vec<f64> =
                forecast.curves[node.curve].iter().enumerate().map(|(cell, share)| share * inside(cell)).collect();
            let total: f64 = shares.iter().sum();
            (total > 0.0).then(|| InventoryRow {
                node_id: i as u64 + 1,
                slot_id: node.slot_id,
                region: node.region,
                gender: node.gender,
                age: node.age,
                pv: node.pv * total,
                curve: shares.iter().map(|share| share / total).collect(),
                ad_ids: node.ad_ids.clone(),
            })
        };
        forecast.nodes.iter().enumerate().filter_map(of_node).collect()
    }
}

/// Cuts windows from the newest day and from earlier days, newest first, until there are `wanted` windows.
///
/// # Errors
/// As [`Window::cut`].
pub fn newest(
    window: Window,
    days: &[DayDir],
    wanted: usize,
    forecast: &Forecast,
    out: &Path,
    options: CompileOptions,
) -> anyhow::Result<Vec<DayDir>> {
    if out.exists() {
        std::fs::remove_dir_all(out).with_context(|| format!("cannot replace {}", out.display()))?;
    }
    let mut found: Vec<DayDir> = Vec::new();
    for (i, day) in days.iter().rev().enumerate() {
        let is_newest = i == 0;
        match window.cut(day, is_newest, forecast, out, options) {
            Ok(windows) => found.extend(windows.into_iter().rev()),
            Err(e) if is_newest => return Err(e),
            Err(e) => say!("{} is left out: {e:#}", day.dir.display()),
        }
        if found.len() >= wanted {
            break;
        }
    }
    ensure!(!found.is_empty(), "no window of {window} is complete yet");
    found.truncate(wanted);
    found.reverse();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_divides_the_day_into_whole_quarters_of_an_hour() {
        for (text, shown) in [("2h", "2h"), ("30m", "30m"), ("90m", "1h30m"), ("12h", "12h"), ("15m", "15m")] {
            assert_eq!(text.parse::<Window>().unwrap().to_string(), shown);
        }
        for text in ["", "2", "7h", "10m", "0h", "24h", "-2h", "2 days", "1h1m", "15m1s"] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }
}
