//! Writes the text files of a log directory for the importers and the synthetic generator.
//!
//! The file extension selects the compression, as for the readers. Numbers are written in the shortest form that reads back to
//! the same value.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::day::Day;
use super::schema::{AdType, ControlRow, DAY_MS, DayFile, ExposureRow, InventoryRow, TrackRow};

/// A table being written: a plain, `.gz` or `.zst` file.
pub enum TableWriter {
    Plain(BufWriter<File>),
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<File>>),
}

impl TableWriter {
    pub fn create(path: &Path) -> std::io::Result<Self> {
        Self::create_at(path, 12)
    }

    /// Creates a table like [`TableWriter::create`], with a `.zst` compression that takes a tenth of the time.
    pub fn create_quick(path: &Path) -> std::io::Result<Self> {
        Self::create_at(path, 1)
    }

    fn create_at(path: &Path, level: i32) -> std::io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        Ok(match path.extension().and_then(|e| e.to_str()) {
            // The builder leaves the time stamp zero, so that the same rows give the same bytes.
            Some("gz") => Self::Gzip(flate2::GzBuilder::new().write(file, flate2::Compression::new(6))),
            Some("zst") => Self::Zstd(zstd::stream::write::Encoder::new(file, level)?),
            _ => Self::Plain(file),
        })
    }

    /// Ends the compressed stream and flushes; a table that is only dropped may be truncated.
    pub fn finish(self) -> std::io::Result<()> {
        match self {
            Self::Plain(mut w) => w.flush(),
            Self::Gzip(w) => w.finish()?.flush(),
            Self::Zstd(w) => w.finish()?.flush(),
        }
    }
}

impl Write for TableWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Plain(w) => w.write(bytes),
            Self::Gzip(w) => w.write(bytes),
            Self::Zstd(w) => w.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Plain(w) => w.flush(),
            Self::Gzip(w) => w.flush(),
            Self::Zstd(w) => w.flush(),
        }
    }
}

fn letter(ad_type: AdType) -> char {
    match ad_type {
        AdType::Contract => 'C',
        AdType::Auction => 'A',
    }
}

pub const TRACK_HEADER: &str = "request_id\tts_ms\tslot_id\tregion\tgender\tage\tuser_id\tqueue";

/// Writes one `track_log` row; the boost is written only where it is not 1.
pub fn track_row(w: &mut impl Write, row: &TrackRow) -> std::io::Result<()> {
    write!(
        w,
        "{}\t{}\t{}\t{}\t{}\t{}\t{}\t",
        row.request_id,
        row.ts_ms,
        row.slot_id,
        row.region,
        row.gender,
        row.age,
        row.user_id.map(|u| u.to_string()).unwrap_or_default(),
    )?;
    for (i, e) in row.queue.iter().enumerate() {
        if i > 0 {
            w.write_all(b";")?;
        }
        write!(w, "{},{},{},{},{}", e.ad_id, letter(e.ad_type), e.ecpm, e.pctr, e.filter)?;
        if e.boost != 1.0 {
            write!(w, ",{}", e.boost)?;
        }
    }
    w.write_all(b"\n")
}

/// Writes a whole `control` table. A flight equal to `whole_day` is written as empty cells.
pub fn control(path: &Path, rows: &[ControlRow], whole_day: (u64, u64)) -> std::io::Result<()> {
    let mut w = TableWriter::create(path)?;
    writeln!(
        w,
        "ad_id\trequired\tcap\tdelivered0\tstart_ms\tend_ms\ttargeting\ttheta\trate\tpenalty\tclick_value\tpctr"
    )?;
    let optional = |v: Option<f64>| v.map(|v| v.to_string()).unwrap_or_default();
    for r in rows {
        let (start, end) = if (r.start_ms, r.end_ms) == whole_day {
            (String::new(), String::new())
        } else {
            (r.start_ms.to_string(), r.end_ms.to_string())
        };
        writeln!(
            w,
            "{}\t{}\t{}\t{}\t{start}\t{end}\t{}\t{}\t{}\t{}\t{}\t{}",
            r.ad_id,
            r.required,
            r.cap,
            r.delivered0,
            r.targeting,
            optional(r.theta),
            if r.rate == 1.0 { String::new() } else { r.rate.to_string() },
            r.penalty,
            r.click_value,
            optional(r.pctr),
        )?;
    }
    w.finish()
}

/// Writes a whole `inventory` table.
pub fn inventory(path: &Path, rows: &[InventoryRow]) -> std::io::Result<()> {
    let mut w = TableWriter::create(path)?;
    writeln!(w, "node_id\tslot_id\tregion\tgender\tage\tpv\tcurve\tad_ids")?;
    for r in rows {
        let curve: Vec<String> = r.curve.iter().map(f64::to_string).collect();
        let ads: Vec<String> = r.ad_ids.iter().map(u64::to_string).collect();
        writeln!(
            w,
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
            r.node_id,
            r.slot_id,
            r.region,
            r.gender,
            r.age,
            r.pv,
            curve.join(","),
            ads.join(";"),
        )?;
    }
    w.finish()
}

pub const EXPOSURE_HEADER: &str =
    "request_id\tts_ms\tarrival_ms\tad_id\ttype\tcharge\tecpm\tpctr\tclick\tpropensity\texplore";

/// Writes one `joined_exposure` row.
pub fn exposure_row(w: &mut impl Write, r: &ExposureRow) -> std::io::Result<()> {
    writeln!(
        w,
        "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
        r.request_id,
        r.ts_ms,
        r.arrival_ms,
        r.ad_id,
        letter(r.ad_type),
        r.charge,
        r.ecpm,
        r.pctr,
        u8::from(r.click),
        r.propensity.map(|p| p.to_string()).unwrap_or_default(),
        u8::from(r.explore),
    )
}

pub const TRUTH_HEADER: &str = "request_id\tad_id\tcharge\tpctr";

/// Writes one row of a value table (`truth`): the expected charge of a request and ad in minor units per impression, and the
/// click probability.
pub fn truth_row(w: &mut impl Write, (request_id, ad_id): (u64, u64), charge: f64, pctr: f64) -> std::io::Result<()> {
    writeln!(w, "{request_id}\t{ad_id}\t{charge:.7}\t{pctr:.7}")
}

/// Writes `day.toml` into `dir`, for a day of 24 hours.
pub fn day(dir: &Path, day: &DayFile) -> std::io::Result<()> {
    std::fs::write(dir.join("day.toml"), day_text(&day.date, i64::from(day.utc_offset_minutes)))
}

/// Writes `day.toml` into `dir`, so that all hours have the same meaning when it is read again.
pub fn calendar(dir: &Path, day: &Day) -> std::io::Result<()> {
    let mut text = day_text(&day.date, day.utc_offset_minutes());
    if day.length_ms != DAY_MS {
        text += &format!("hours = {:?}\n", day.length_ms as f64 / 3_600_000.0);
    }
    std::fs::write(dir.join("day.toml"), text)
}

fn day_text(date: &str, utc_offset_minutes: i64) -> String {
    format!("date = \"{date}\"\nutc_offset_minutes = {utc_offset_minutes}\n")
}
