//! A day's tables as checked rows: what a compiled log is made from, and where a day can still be altered.

use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compile::{self, CompileOptions, check_share, quarantine_path};
use super::compiled::{CompiledLog, Counts};
use super::day::Day;
use super::error::{BadValue, LogError, Result};
use super::queue::QueueRules;
use super::schema::{ControlRow, TrackRow};
use super::table::{self, Place, Table};
use super::{control, keep, track};

/// A day of requests and contracts, checked row by row; bad rows are set aside.
#[derive(Debug, Clone)]
pub struct RawDay {
    /// The name of the log directory.
    pub name: String,
    pub day: Day,
    /// In time order.
    pub rows: Vec<TrackRow>,
    pub contracts: Vec<ControlRow>,
    pub(super) dir: PathBuf,
    pub(super) inputs: u128,
    pub(super) counts: Counts,
    pub(super) contracts_declared: bool,
}

/// Bad rows that are listed; all are counted. A few kilobytes of Parquet can hold a hundred million of them.
const LISTED: u64 = 10_000;

/// Bad rows, written down as they are met.
struct Quarantine {
    path: PathBuf,
    file: Option<std::io::BufWriter<File>>,
    counts: Counts,
    first: Option<String>,
}

impl Quarantine {
    fn set_aside(&mut self, source: &Table, place: Place, bad: &BadValue) -> Result<()> {
        let failed = |e| LogError::io(&self.path, e);
        if self.file.is_none() {
            let mut file = std::io::BufWriter::new(keep::create_private(&self.path).map_err(failed)?);
            writeln!(file, "file\tline\tcolumn\tvalue\treason\trule").map_err(failed)?;
            self.file = Some(file);
        }
        let (name, line) = (source.part_name(place.part), place.line);
        let clean = |s: &str| s.replace(['\t', '\n', '\r'], " ");
        let file = self.file.as_mut().filter(|_| self.counts.quarantined <= LISTED);
        if let Some(file) = file {
            let (value, rule) = (clean(&bad.value), clean(&bad.rule));
            match self.counts.quarantined {
                LISTED => writeln!(file, "{name}\t{line}\t\t\tand_more\tthe first {LISTED} bad rows are listed"),
                _ => writeln!(file, "{name}\t{line}\t{}\t{value}\t{}\t{rule}", bad.column, bad.reason),
            }
            .map_err(failed)?;
        }
        if self.first.is_none() {
            let part = if source.is_parted() { format!("{name}: ") } else { String::new() };
            let BadValue { column, value, rule, .. } = bad;
            self.first = Some(format!("{part}line {line}, column `{column}`: `{value}`: {rule}"));
        }
        self.counts.quarantined += 1;
        *self.counts.reasons.entry(bad.reason.to_owned()).or_default() += 1;
        Ok(())
    }
}

impl RawDay {
    /// Reads the tables of a log directory and writes the bad rows to its quarantine file.
    ///
    /// # Errors
    /// Whatever [`LogError`] says of the inputs.
    pub fn read(dir: &Path, options: CompileOptions) -> Result<Self> {
        let track_path = table::require(dir, "track_log", track::COLUMNS)?;
        let control_path = table::require(dir, "control", control::COLUMNS)?;
        let inputs = compile::hash_inputs(dir, options)?;
        let mut day = Day::read(dir)?;
        let path = quarantine_path(dir);
        // A quarantine file of an earlier compilation would speak of rows that may be mended by now.
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
        let mut quarantine = Quarantine { path, file: None, counts: Counts::default(), first: None };
        let (mut rows, places, source) = read_rows(&track_path, &mut day, &mut quarantine)?;
        let empty = || LogError::Empty { path: track_path.clone() };
        let Some(day) = day else {
            check_share(&quarantine.counts, options, dir)?;
            return Err(empty());
        };
        let contracts = control::read(&control_path, &day)?;
        let rules = QueueRules::new(contracts, false);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&i| rows[i].ts_ms);
        let mut sorted = Vec::with_capacity(rows.len());
        for i in order {
            match rules.check(&rows[i]) {
                Err(bad) => quarantine.set_aside(&source, places[i], &bad)?,
                Ok(()) => {
                    let queue = std::mem::take(&mut rows[i].queue);
                    sorted.push(TrackRow { queue, ..rows[i] });
                }
            }
        }
        if let Some(file) = &mut quarantine.file {
            file.flush().map_err(|e| LogError::io(&quarantine.path, e))?;
        }
        if quarantine.counts.quarantined as f64 > options.max_bad_share * quarantine.counts.rows as f64 {
            return Err(LogError::TooManyBad {
                path: track_path,
                bad: quarantine.counts.quarantined,
                rows: quarantine.counts.rows,
                max: options.max_bad_share,
                first: quarantine.first.unwrap_or_default(),
                quarantine: quarantine.path,
            });
        }
        if sorted.is_empty() {
            return Err(empty());
        }
        Ok(Self {
            name: compile::name_of(dir),
            day,
            rows: sorted,
            contracts: rules.into_contracts(),
            dir: dir.to_owned(),
            inputs,
            counts: quarantine.counts,
            contracts_declared: compile::contracts_declared(dir),
        })
    }

    /// Compiles an altered day in memory: no file is written, none can be mistaken for another's. `alteration` says what was
    /// altered; the compiled log's input hash tells it from the directory's own.
    ///
    /// # Errors
    /// A day without requests, or no memory to map.
    pub fn compile_altered(&self, options: CompileOptions, alteration: &str) -> Result<CompiledLog> {
        if self.rows.is_empty() {
            return Err(LogError::Format {
                path: self.dir.clone(),
                reason: format!("no request is left under `{alteration}`"),
            });
        }
        let mut hasher = XxHash3_128::new();
        hasher.write(&self.inputs.to_le_bytes());
        hasher.write(alteration.as_bytes());
        CompiledLog::of_bytes(&self.dir, &compile::compile(self, options, hasher.finish_128()))
    }
}

/// The rows of the track log as they stand in the table, with their places; `day` is taken from the first where it is not known.
fn read_rows(
    path: &Path,
    day: &mut Option<Day>,
    quarantine: &mut Quarantine,
) -> Result<(Vec<TrackRow>, Vec<Place>, Table)> {
    let mut source = Table::open(path, track::COLUMNS)?;
    source.warn_unknown(0);
    let mut row = source.row();
    let mut rows: Vec<TrackRow> = Vec::new();
    let mut places: Vec<Place> = Vec::new();
    let mut ids = HashSet::new();
    let mut latest = 0;
    while source.read(&mut row)? {
        crate::cancel::point();
        quarantine.counts.rows += 1;
        let parsed = track::parse(&row).and_then(|request| {
            let day = day.get_or_insert_with(|| Day::of_timestamp(request.ts_ms));
            if !day.contains(request.ts_ms) {
                return Err(BadValue::new(
                    "ts_ms",
                    &request.ts_ms.to_string(),
                    "outside_day",
                    day.outside(request.ts_ms),
                ));
            }
            if !ids.insert(request.request_id) {
                return Err(BadValue::new(
                    "request_id",
                    &request.request_id.to_string(),
                    "duplicate_request",
                    "stands twice in the file",
                ));
            }
            Ok(request)
        });
        match parsed {
            Ok(request) => {
                if request.ts_ms < latest {
                    quarantine.counts.out_of_order += 1;
                }
                latest = latest.max(request.ts_ms);
                rows.push(request);
                places.push(row.place);
            }
            Err(bad) => quarantine.set_aside(&source, row.place, &bad)?,
        }
    }
    Ok((rows, places, source))
}
