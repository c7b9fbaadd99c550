//! The track log of the 2019 Tencent advertising algorithm contest.
//!
//! Tab-separated without a header: request id, Unix seconds, user, ad position, queue; queue entries
//! `ad_id,bid,pctr,quality_ecpm,total_ecpm,filter` joined by `;`. It is one of the few public logs with whole ranked queues. It
//! has traps:
//!
//! - A third of the requests end with an injected test ad that was never ranked. It is recognised in the last position by a
//!   total above the entry before it, or by a pctr with long decimals (ranked entries have three); either is enough, and the
//!   entry is dropped.
//! - `pctr` is per mille, and a few predictions exceed 1,000. Such a prediction is an error of the model, not of the row, so it
//!   is set to 1 and the request stays. A negative total becomes 0.
//! - Days are Chinese days at UTC+8; the log's first request determines the date.
//! - There are no contracts. Either a control table names ads of the log, or the most frequent CPM-billed ads are declared to
//!   be contracts, which every report then states.
//!
//! With a split, the set of contracts and their penalties come from the whole log, but the contracts of each part owe a share
//! of that part's own requests: each part is replayed as a separate day, and the shorter one must not owe what only the longer
//! one can deliver.

mod billing;
mod row;

use std::collections::HashSet;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use billing::{Billing, Declared, control_row, mark_contracts, supply};
use row::Parsed;

use super::directory::{Day, refuse_taken, write_day, write_reports};
use super::report::{DeclaredContract, Flaw, ImportReport, Tally};
use crate::log::schema::{ControlRow, DAY_MS, TrackRow};
use crate::log::{control, table};

const UTC_OFFSET_MINUTES: i32 = 480;

/// Options of an import.
#[derive(Debug, Clone)]
pub struct Options {
    pub track_log: PathBuf,
    pub contracts: Contracts,
    /// Number of requests of `part-0`; the rest goes to `part-1`. `None` writes one directory.
    pub split: Option<usize>,
    pub out: PathBuf,
    /// Share of dropped rows above which nothing is imported.
    pub max_bad_share: f64,
}

/// Source of the contracts.
#[derive(Debug, Clone)]
pub enum Contracts {
    /// A control table whose ads occur in the log.
    Control(PathBuf),
    /// The `count` most frequent CPM-billed ads, each owed `fill` of the requests that may show it.
    FromLog { count: usize, fill: f64 },
}

/// Imports the log and writes its directories.
///
/// # Errors
/// Bad options, an unreadable file, a truncated archive, or a log of which no row can be used.
pub fn import(options: &Options) -> Result<ImportReport> {
    if let Contracts::FromLog { fill, .. } = options.contracts {
        ensure!(fill > 0.0 && fill <= 1.0, "--fill must be above 0 and at most 1, not {fill}");
    }
    let part = |i: usize| options.out.join(format!("part-{i}"));
    refuse_taken(match options.split {
        None => vec![options.out.clone()],
        Some(_) => vec![part(0), part(1)],
    })?;
    let Log { mut rows, day, billing, mut report } = read(&options.track_log)?;
    report.check_dropped(options.max_bad_share)?;
    if let Some(first) = options.split {
        ensure!(
            first > 0 && first < rows.len(),
            "--split {first} leaves a part empty: {} has {} usable requests",
            options.track_log.display(),
            rows.len()
        );
    }

    let demand = match &options.contracts {
        Contracts::Control(path) => Demand::table(path, day, &mut rows, &mut report)?,
        &Contracts::FromLog { count, fill } => Demand::declare(&billing, count, fill, &mut rows, &mut report),
    };
    match options.split {
        None => demand.write(&options.out, day, &rows, &mut report)?,
        Some(first) => {
            for (i, rows) in [&rows[..first], &rows[first..]].into_iter().enumerate() {
                demand.write(&part(i), day, rows, &mut report)?;
            }
        }
    }
    write_reports(&report)?;
    Ok(report)
}

/// Contracts of the import.
enum Demand {
    Table(Vec<ControlRow>),
    Declared { ads: Vec<Declared>, fill: f64 },
}

impl Demand {
    fn table(path: &Path, day: Day, rows: &mut [TrackRow], report: &mut ImportReport) -> Result<Self> {
        let control = control::read(path, &day.of_log())?;
        let ads: HashSet<u64> = control.iter().map(|c| c.ad_id).collect();
        let found = mark_contracts(rows, &ads);
        for row in control.iter().filter(|c| !found.contains(&c.ad_id)) {
            report.notes.push(format!("contract {} of {} is in no queue of the log", row.ad_id, path.display()));
        }
        Ok(Self::Table(control))
    }

    fn declare(billing: &Billing, count: usize, fill: f64, rows: &mut [TrackRow], report: &mut ImportReport) -> Self {
        let ads = billing.declare(count);
        if ads.len() < count {
            report.notes.push(format!(
                "{count} contracts were asked for, but only {} ads of the log are billed by CPM",
                ads.len()
            ));
        }
        report.contracts_declared = !ads.is_empty();
        mark_contracts(rows, &ads.iter().map(|a| a.ad_id).collect());
        Self::Declared { ads, fill }
    }

    /// Writes `rows` and the contracts owed on them as one directory.
    fn write(&self, dir: &Path, day: Day, rows: &[TrackRow], report: &mut ImportReport) -> Result<()> {
        let declared: Vec<ControlRow>;
        let control = match self {
            Self::Table(control) => control,
            Self::Declared { ads, fill } => {
                declared = ads
                    .iter()
                    .map(|&ad| {
                        let supply = supply(rows, ad.ad_id);
                        let row = control_row(ad, supply, *fill, day);
                        report.declared.push(DeclaredContract {
                            directory: dir.to_owned(),
                            ad_id: ad.ad_id,
                            appears: supply.appears,
                            may_show: supply.may_show,
                            required: row.required,
                            penalty: row.penalty,
                        });
                        row
                    })
                    .collect();
                &declared
            }
        };
        report.directories.push(write_day(dir, day, rows, control)?);
        Ok(())
    }
}

/// The usable rows of the log in time order.
struct Log {
    rows: Vec<TrackRow>,
    day: Day,
    billing: Billing,
    report: ImportReport,
}

fn read(path: &Path) -> Result<Log> {
    let mut reader = table::open(path)?;
    let mut dropped = Tally::default();
    let mut changed = Tally::default();
    let mut rows: Vec<TrackRow> = Vec::new();
    let mut seen = HashSet::new();
    let mut billing = Billing::default();
    let mut day: Option<Day> = None;
    let mut bytes = Vec::new();
    let mut line = 0;
    loop {
        bytes.clear();
        let read = reader
            .read_until(b'\n', &mut bytes)
            .with_context(|| format!("{}: cannot read past line {line}; is the file truncated?", path.display()))?;
        if read == 0 {
            break;
        }
        line += 1;
        let checked = Parsed::from_line(&bytes).and_then(|parsed| {
            let row = &parsed.row;
            let day = *day.get_or_insert_with(|| local_day(row.ts_ms));
            if !day.contains(row.ts_ms) {
                let seconds = (row.ts_ms / 1_000).to_string();
                return Err(Flaw::new("time", seconds, "outside_day"));
            }
            if !seen.insert(row.request_id) {
                let id = row.request_id.to_string();
                return Err(Flaw::new("request_id", id, "duplicate_request_id"));
            }
            Ok(parsed)
        });
        match checked {
            Err(flaw) => dropped.add(path, line, flaw),
            Ok(parsed) => {
                for flaw in parsed.changes {
                    changed.add(path, line, flaw);
                }
                for (entry, price) in parsed.row.queue.iter().zip(parsed.prices) {
                    billing.add(entry.ad_id, price, entry.ecpm);
                }
                rows.push(parsed.row);
            }
        }
    }
    let dropped = dropped.into_counts();
    let Some(day) = day else {
        let why = dropped.first().map_or_else(
            || "it is empty".to_owned(),
            |c| format!("the first is dropped for {} at {}", c.reason, c.first),
        );
        anyhow::bail!("no row of {} can be used: {why}", path.display());
    };

    let mut report = ImportReport {
        source: "tencent2019",
        rows_read: line,
        directories: Vec::new(),
        dropped,
        changed: changed.into_counts(),
        contracts_declared: false,
        declared: Vec::new(),
        notes: Vec::new(),
    };
    let mut latest = 0;
    let mut late = 0_u64;
    for row in &rows {
        late += u64::from(row.ts_ms < latest);
        latest = latest.max(row.ts_ms);
    }
    if late > 0 {
        report.notes.push(format!("{late} rows out of time order were sorted"));
    }
    rows.sort_by_key(|r| r.ts_ms);
    let span_s = latest.saturating_sub(rows.first().map_or(latest, |r| r.ts_ms)) / 1_000 + 1;
    if span_s < 3_600 {
        report.notes.push(format!("{span_s} seconds of traffic are a smoke test, not a quality figure"));
    }
    Ok(Log { rows, day, billing, report })
}

fn local_day(ts_ms: u64) -> Day {
    let local_ms = ts_ms.saturating_add_signed(i64::from(UTC_OFFSET_MINUTES) * 60_000);
    Day { number: local_ms / DAY_MS, utc_offset_minutes: UTC_OFFSET_MINUTES }
}

#[cfg(test)]
mod tests;
