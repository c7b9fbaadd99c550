//! Samples a smaller day that resembles a large one: requests drawn by the hash of their ids, and all daily amounts scaled by the same
//! rate.
//!
//! A request is kept iff `hash64(seed, request_id, 0) / 2^64 < rate` with the hash of [`super::draw`]. Two tables of a day, or two
//! samples of one seed, therefore keep the same requests, and a lower rate keeps a subset of what a higher one keeps. `required`,
//! `cap` and `delivered0` of a contract become `floor(rate * n + u)` with one `u` in [0, 1) per contract: their order is preserved,
//! and their mean over seeds is exactly `rate * n`.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::corrected;
use super::draw;
use super::error::{LogError, Result};
use super::options::CompileOptions;
use super::raw::Rows;
use super::scan::{Next, Source, Taker};
use super::schema::{AdType, ControlRow, DayFile, InventoryRow};
use super::table::{self, Table};
use super::write::{self, TableWriter};
use super::{exposure, inventory};

/// Parameters of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Share of the requests to keep, in (0, 1].
    pub rate: f64,
    pub seed: u64,
}

impl Sampling {
    /// Returns whether a request is kept.
    pub fn keeps(&self, request_id: u64) -> bool {
        draw::passes(self.seed, request_id, 0, self.rate)
    }

    /// Scales and rounds an amount of a contract.
    fn scale(&self, amount: u64, ad_id: u64) -> u64 {
        if self.rate >= 1.0 {
            return amount;
        }
        // The upper 53 bits, exactly representable as an f64 below 1.
        let u = (draw::hash64(self.seed, CONTRACTS, ad_id) >> 11) as f64 / (1u64 << 53) as f64;
        (self.rate * amount as f64 + u).floor() as u64
    }

    /// Scales a contract for the smaller day; `None` if its requirement becomes 0.
    pub fn contract(&self, row: &ControlRow) -> Option<ControlRow> {
        let scale = |amount| self.scale(amount, row.ad_id);
        let (required, cap, delivered0) = (scale(row.required), scale(row.cap), scale(row.delivered0));
        (required > 0).then(|| ControlRow { required, cap, delivered0, ..row.clone() })
    }
}

/// Value used instead of a request id when a contract's rounding is drawn.
const CONTRACTS: u64 = u64::MAX;

/// Contents of a sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SampleReport {
    pub directory: PathBuf,
    /// Good requests of the day, and the number kept.
    pub requests: u64,
    pub kept: u64,
    /// Requests that were drawn but had only entries of left-out contracts.
    pub emptied: u64,
    /// Bad rows of the day's track log; none is copied.
    pub quarantined: u64,
    /// Number of contracts of the smaller day.
    pub contracts: usize,
    /// Contracts whose requirement became 0.
    pub left_out: Vec<u64>,
    /// Exposures of the smaller day (absent without the table), and bad rows that were not copied.
    pub exposures: Option<u64>,
    pub bad_exposures: u64,
    /// Forecast page views of the smaller day; absent without the table.
    pub inventory_pv: Option<f64>,
}

impl std::fmt::Display for SampleReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}: {} of {} requests", self.directory.display(), self.kept, self.requests)?;
        writeln!(f, "  contracts    {} kept, {} left out", self.contracts, self.left_out.len())?;
        if !self.left_out.is_empty() {
            let ids: Vec<String> = self.left_out.iter().map(u64::to_string).collect();
            writeln!(f, "  left out     {}: nothing of what they require is left at this rate", ids.join(", "))?;
        }
        if self.emptied > 0 {
            writeln!(
                f,
                "  emptied      {} requests had entries of left-out contracts alone and are left out",
                self.emptied
            )?;
        }
        if let Some(pv) = self.inventory_pv {
            writeln!(f, "  inventory    {pv:.0} page views forecast")?;
        }
        if let Some(exposures) = self.exposures {
            writeln!(f, "  exposures    {exposures}")?;
        }
        if self.quarantined + self.bad_exposures > 0 {
            writeln!(
                f,
                "  bad rows     {} of track_log and {} of joined_exposure are not copied",
                self.quarantined, self.bad_exposures
            )?;
        }
        Ok(())
    }
}

/// Writes a sample of the log directory `dir` to `out`: `day.toml`, track_log, control, inventory, joined_exposure and the tables of a
/// synthetic world's values, whichever exist. Rows stay in their order. Text tables are written as `.tsv.zst`, whatever their source
/// format. The directory is made beside `out` and renamed into place, so that an incomplete sample is never taken for a day.
///
/// # Errors
/// An unusable day, an `out` that is not empty, or files that cannot be written.
pub fn write(dir: &Path, out: &Path, sampling: Sampling, options: CompileOptions) -> Result<SampleReport> {
    if std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
        let reason = "holds something already; name another directory, or remove it".into();
        return Err(LogError::Format { path: out.to_owned(), reason });
    }
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |e| LogError::io(out, e);
    std::fs::create_dir_all(parent).map_err(failed)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    let begun = tempfile::Builder::new().prefix(".sample-").permissions(mode).tempdir_in(parent).map_err(failed)?;
    let report = write_to(dir, begun.path(), sampling, options)?;
    std::fs::rename(begun.path(), out).map_err(failed)?;
    // After the rename there is nothing to remove.
    let _ = begun.keep();
    Ok(SampleReport { directory: out.to_owned(), ..report })
}

fn write_to(dir: &Path, out: &Path, sampling: Sampling, options: CompileOptions) -> Result<SampleReport> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |e| LogError::Io { path, cause: e }
    };
    let source = Source::open(dir, CompileOptions { complete_queues: false, ..options })?;
    let mut report = SampleReport::default();
    let (mut contracts, mut left_out) = (Vec::new(), HashSet::new());
    for row in source.rules.contracts() {
        match sampling.contract(row) {
            Some(row) => contracts.push(row),
            None => {
                left_out.insert(row.ad_id);
                report.left_out.push(row.ad_id);
            }
        }
    }
    let path = out.join("track_log.tsv.zst");
    let mut thin = Thin { sampling, left_out: &left_out, path: &path, writer: None, seen: 0, kept: 0, emptied: 0 };
    let scanned = loop {
        if let Some(scanned) = source.scan(&mut thin)? {
            break scanned;
        }
    };
    if thin.kept == 0 {
        let reason = format!("no request is left at a rate of {}; raise it", sampling.rate);
        return Err(LogError::Format { path: dir.to_owned(), reason });
    }
    (report.requests, report.kept, report.emptied) = (thin.seen, thin.kept, thin.emptied);
    report.quarantined = scanned.counts.quarantined;
    thin.writer.take().map_or(Ok(()), TableWriter::finish).map_err(failed(&path))?;

    for name in ["day.toml", "import.json"] {
        let (from, to) = (dir.join(name), out.join(name));
        if from.exists() {
            std::fs::copy(&from, &to).map_err(failed(&to))?;
        } else if name == "day.toml" {
            let day = DayFile { date: source.day.date.clone(), utc_offset_minutes: 0 };
            write::day(out, &day).map_err(failed(&to))?;
        }
    }
    let path = out.join("control.tsv");
    write::control(&path, &contracts, (source.day.start_ms, source.day.end_ms())).map_err(failed(&path))?;
    if let Some(from) = table::find(dir, "inventory")? {
        let rows = inventory::read(&from)?;
        let rows: Vec<InventoryRow> =
            rows.into_iter().map(|node| InventoryRow { pv: sampling.rate * node.pv, ..node }).collect();
        report.inventory_pv = Some(rows.iter().map(|node| node.pv).sum());
        let path = out.join("inventory.tsv");
        write::inventory(&path, &rows).map_err(failed(&path))?;
    }
    if let Some(from) = table::find(dir, "joined_exposure")? {
        let path = out.join("joined_exposure.tsv.zst");
        report.exposures = Some(exposures(&from, &path, sampling, &left_out, &mut report.bad_exposures)?);
    }
    for name in ["truth", "posterior"] {
        if let Some(from) = table::find(dir, name)? {
            values(&from, &out.join(format!("{name}.tsv.zst")), sampling, &left_out)?;
        }
    }
    report.contracts = contracts.len();
    Ok(report)
}

/// Writes the requests that are kept.
struct Thin<'a> {
    sampling: Sampling,
    left_out: &'a HashSet<u64>,
    path: &'a Path,
    writer: Option<TableWriter>,
    seen: u64,
    kept: u64,
    emptied: u64,
}

impl Taker for Thin<'_> {
    type Gathered = Rows;

    fn begin(&mut self) -> Result<()> {
        (self.seen, self.kept, self.emptied) = (0, 0, 0);
        let begun = TableWriter::create_quick(self.path).and_then(|mut writer| {
            writeln!(writer, "{}", write::TRACK_HEADER)?;
            Ok(writer)
        });
        self.writer = Some(begun.map_err(|e| LogError::io(self.path, e))?);
        Ok(())
    }

    fn take(&mut self, Rows(rows): &mut Rows, keep: &[bool]) -> Result<Next> {
        let Some(writer) = &mut self.writer else { return Ok(Next::GoOn) };
        for (mut row, _) in rows.drain(..).zip(keep).filter(|(_, keep)| **keep) {
            self.seen += 1;
            if !self.sampling.keeps(row.request_id) {
                continue;
            }
            row.queue.retain(|e| e.ad_type == AdType::Auction || !self.left_out.contains(&e.ad_id));
            if row.queue.is_empty() {
                self.emptied += 1;
                continue;
            }
            self.kept += 1;
            write::track_row(writer, &row).map_err(|e| LogError::Io { path: self.path.to_owned(), cause: e })?;
        }
        Ok(Next::GoOn)
    }
}

/// Copies the exposures of requests that are kept and returns their number.
fn exposures(from: &Path, to: &Path, sampling: Sampling, left_out: &HashSet<u64>, bad: &mut u64) -> Result<u64> {
    let failed = |e| LogError::Io { path: to.to_owned(), cause: e };
    let mut table = Table::open(from, exposure::COLUMNS)?;
    let mut writer = TableWriter::create_quick(to).map_err(failed)?;
    writeln!(writer, "{}", write::EXPOSURE_HEADER).map_err(failed)?;
    let mut row = table.row();
    let mut kept = 0;
    while table.read(&mut row)? {
        crate::cancel::point();
        let Ok(shown) = exposure::parse(&row) else {
            *bad += 1;
            continue;
        };
        let gone = shown.ad_type == AdType::Contract && left_out.contains(&shown.ad_id);
        if sampling.keeps(shown.request_id) && !gone {
            kept += 1;
            write::exposure_row(&mut writer, &shown).map_err(failed)?;
        }
    }
    writer.finish().map_err(failed)?;
    Ok(kept)
}

/// Copies the rows of a value table whose entries are kept, unchanged.
fn values(from: &Path, to: &Path, sampling: Sampling, left_out: &HashSet<u64>) -> Result<()> {
    let failed = |e| LogError::Io { path: to.to_owned(), cause: e };
    let mut table = Table::open(from, corrected::COLUMNS)?;
    let mut writer = TableWriter::create_quick(to).map_err(failed)?;
    writeln!(writer, "{}", write::TRUTH_HEADER).map_err(failed)?;
    let mut row = table.row();
    while table.read(&mut row)? {
        crate::cancel::point();
        let line = row.place.line;
        let bad = |bad| LogError::BadRow { path: from.to_owned(), line, bad };
        let id = |i| row.integer::<u64>(i)?.ok_or_else(|| row.empty(i));
        let (request, ad) = (id(0).map_err(bad)?, id(1).map_err(bad)?);
        if sampling.keeps(request) && !left_out.contains(&ad) {
            let text = |i| row.text_of(i).map_err(bad);
            writeln!(writer, "{request}\t{ad}\t{}\t{}", text(2)?, text(3)?).map_err(failed)?;
        }
    }
    writer.finish().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_their_order_and_their_mean() {
        for (rate, amount) in [(0.1, 7), (0.013, 100), (0.5, 1), (0.003, 999)] {
            let seeds = 0..40_000;
            let sum: u64 = seeds.clone().map(|seed| Sampling { rate, seed }.scale(amount, 9001)).sum();
            let (mean, wanted) = (sum as f64 / 40_000.0, rate * amount as f64);
            // Four standard deviations of the mean of the rounding.
            assert!((mean - wanted).abs() < 4.0 * 0.5 / 200.0, "{mean} for {wanted}");
            for seed in seeds.take(500) {
                let s = Sampling { rate, seed };
                let scaled: Vec<u64> = (0..60).map(|n| s.scale(n, 9001)).collect();
                assert!(scaled.is_sorted() && scaled[0] == 0);
                assert!((s.scale(amount, 9001) as f64 - wanted).abs() < 1.0);
            }
        }
        assert_eq!(Sampling { rate: 1.0, seed: 3 }.scale(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn a_lower_rate_keeps_a_part_of_what_a_higher_one_keeps() {
        let kept = |rate| (0..5000).filter(move |&id| Sampling { rate, seed: 4 }.keeps(id)).collect::<Vec<u64>>();
        let (few, many) = (kept(0.1), kept(0.4));
        assert!(few.iter().all(|id| many.contains(id)));
        assert!((400..600).contains(&few.len()) && kept(1.0).len() == 5000);
    }
}
