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
use super::table::{self, Table};
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

/// Bad rows, written down as they are met.
struct Quarantine {
    path: PathBuf,
    file: Option<std::io::BufWriter<File>>,
    counts: Counts,
    first: Option<String>,
}

impl Quarantine {
    fn set_aside(&mut self, source: &Path, line: u64, bad: &BadValue) -> Result<()> {
        let failed = |e| LogError::io(&self.path, e);
        if self.file.is_none() {
            let mut file = std::io::BufWriter::new(keep::create_private(&self.path).map_err(failed)?);
            writeln!(file, "file\tline\tcolumn\tvalue\treason\trule").map_err(failed)?;
            self.file = Some(file);
        }
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let clean = |s: &str| s.replace(['\t', '\n', '\r'], " ");
        if let Some(file) = &mut self.file {
            writeln!(
                file,
                "{name}\t{line}\t{}\t{}\t{}\t{}",
                bad.column,
                clean(&bad.value),
                bad.reason,
                clean(&bad.rule)
            )
            .map_err(failed)?;
        }
        self.first
            .get_or_insert_with(|| format!("line {line}, column `{}`: `{}`: {}", bad.column, bad.value, bad.rule));
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
        let missing = |name| LogError::MissingFile { dir: dir.to_owned(), name };
        let track_path = table::find(dir, "track_log")?.ok_or_else(|| missing("track_log"))?;
        let control_path = table::find(dir, "control")?.ok_or_else(|| missing("control"))?;
        let inputs = compile::hash_inputs(dir, options)?;
        let mut day = Day::read(dir)?;
        let path = quarantine_path(dir);
        // A quarantine file of an earlier compilation would speak of rows that may be mended by now.
        if path.is_file() {
            let _ = std::fs::remove_file(&path);
        }
        let mut quarantine = Quarantine { path, file: None, counts: Counts::default(), first: None };
        let (mut rows, lines) = read_rows(&track_path, &mut day, &mut quarantine)?;
        let empty = || LogError::Empty { path: track_path.clone() };
        let Some(day) = day else {
            check_share(&quarantine.counts, options, dir)?;
            return Err(empty());
        };
        let contracts = control::read(&control_path, day.start_ms)?;
        let rules = QueueRules::new(contracts, false);
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&i| rows[i].ts_ms);
        let mut sorted = Vec::with_capacity(rows.len());
        for i in order {
            match rules.check(&rows[i]) {
                Err(bad) => quarantine.set_aside(&track_path, lines[i], &bad)?,
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

/// The rows of the track log as they stand in the file, with their lines; `day` is taken from the first where it is not known.
fn read_rows(path: &Path, day: &mut Option<Day>, quarantine: &mut Quarantine) -> Result<(Vec<TrackRow>, Vec<u64>)> {
    let mut source = Table::open(path, track::COLUMNS)?;
    super::warn_unknown(&source);
    let mut row = source.row();
    let mut rows: Vec<TrackRow> = Vec::new();
    let mut lines: Vec<u64> = Vec::new();
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
                    format!("lies outside {} (Unix milliseconds {}..{})", day.date, day.start_ms, day.end_ms()),
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
                lines.push(row.line);
            }
            Err(bad) => quarantine.set_aside(path, row.line, &bad)?,
        }
    }
    Ok((rows, lines))
}
