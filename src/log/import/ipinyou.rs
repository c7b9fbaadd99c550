//! The impression log of the iPinYou real-time bidding contest.
//!
//! CSV with a header, one row per impression won, with weekday and hour as the only times. The market price paid is the worth
//! of the best auction ad, so it becomes the one auction entry of the request; the contracts of a control table that may be
//! shown there are added to its queue.
//!
//! Rows are sorted by hour, stably, and spread evenly within it. The log has no finer times, and many requests at one instant
//! would make all pacing rules look alike. The publishers of the log over-sampled clicks, so click rates mean nothing: an
//! auction entry has pctr 0.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::directory::{Day, refuse_taken, write_day, write_reports};
use super::report::{Flaw, ImportReport, Tally, number, within};
use crate::log::schema::{AdType, ControlRow, MAX_ECPM, MAX_QUEUE, QueueEntry, TrackRow};
use crate::log::{control, table};

/// 2013-06-09, a Sunday, which the log counts as weekday 0; in days since 1970-01-01.
const WEEKDAY_0: u64 = 15_865;
const HOUR_MS: u64 = 3_600_000;
const MALE_TAG: &str = "10110";
const FEMALE_TAG: &str = "10111";

/// Options of an import.
#[derive(Debug, Clone)]
pub struct Options {
    pub impressions: Vec<PathBuf>,
    pub control: PathBuf,
    /// Output folder: gets one log directory `weekday-D` per weekday that occurs in the rows.
    pub out: PathBuf,
    /// Share of dropped rows above which nothing is imported.
    pub max_bad_share: f64,
}

/// Imports the impressions and writes a directory per weekday.
///
/// # Errors
/// An unreadable or truncated file, a missing column, a control table that does not fit the log, or impressions of which none can
/// be used.
pub fn import(options: &Options) -> Result<ImportReport> {
    let mut report = ImportReport {
        source: "ipinyou",
        rows_read: 0,
        directories: Vec::new(),
        dropped: Vec::new(),
        changed: Vec::new(),
        contracts_declared: false,
        declared: Vec::new(),
        notes: vec!["click rates of this log are not real: auction entries have pctr 0".to_owned()],
    };
    let mut dropped = Tally::default();
    let mut weekdays: BTreeMap<u8, Vec<Impression>> = BTreeMap::new();
    for path in &options.impressions {
        report.rows_read += read(path, &mut weekdays, &mut dropped)?;
    }
    report.dropped = dropped.into_counts();
    if weekdays.is_empty() {
        let why = report.dropped.first().map_or_else(
            || "there is none".to_owned(),
            |c| format!("the first is dropped for {} at {}", c.reason, c.first),
        );
        bail!("no impression can be used: {why}");
    }
    report.check_dropped(options.max_bad_share)?;

    let mut days = Vec::new();
    for (weekday, impressions) in weekdays {
        let day = Day { number: WEEKDAY_0 + u64::from(weekday), utc_offset_minutes: 0 };
        let control = control::read(&options.control, &day.of_log())?;
        check_contracts(&control, &impressions)
            .with_context(|| format!("{} does not fit the log", options.control.display()))?;
        let rows = requests(impressions, day, &control);
        days.push((weekday, day, rows, control));
    }
    let directory = |weekday: &u8| options.out.join(format!("weekday-{weekday}"));
    refuse_taken(days.iter().map(|(weekday, ..)| directory(weekday)))?;
    for (weekday, day, rows, control) in &days {
        let dir = directory(weekday);
        report.directories.push(write_day(&dir, *day, rows, control)?);
    }
    write_reports(&report)?;
    Ok(report)
}

/// Attributes that an impression gives its request.
#[derive(Debug, Clone, PartialEq)]
struct Impression {
    hour: u8,
    slot_id: u32,
    region: u32,
    gender: u8,
    advertiser: u64,
    /// Market price paid, minor units per 1,000 impressions.
    price: f64,
}

/// Reads one file into its weekdays; returns the number of its rows.
fn read(path: &Path, weekdays: &mut BTreeMap<u8, Vec<Impression>>, dropped: &mut Tally) -> Result<u64> {
    // `flexible`: a row with another number of columns is a bad row and does not end the import.
    let mut csv = csv::ReaderBuilder::new().flexible(true).from_reader(table::open(path)?);
    let unreadable = |row: u64| format!("{}: cannot read past data row {row}; is the file truncated?", path.display());
    let header = csv.headers().with_context(|| unreadable(0))?;
    let columns = Columns::find(header).with_context(|| format!("{}: bad header", path.display()))?;
    let mut rows = 0;
    let mut raw = csv::ByteRecord::new();
    while csv.read_byte_record(&mut raw).with_context(|| unreadable(rows))? {
        rows += 1;
        let line = raw.position().map_or(0, csv::Position::line);
        match columns.parse(&raw) {
            Ok((weekday, impression)) => weekdays.entry(weekday).or_default().push(impression),
            Err(flaw) => dropped.add(path, line, flaw),
        }
    }
    Ok(rows)
}

/// Positions of the columns that are used.
struct Columns {
    width: usize,
    index: HashMap<&'static str, usize>,
}

impl Columns {
    const NAMES: [&'static str; 8] =
        ["weekday", "hour", "region", "slotwidth", "slotheight", "payprice", "advertiser", "usertag"];

    fn find(header: &csv::StringRecord) -> Result<Self> {
        let mut index = HashMap::new();
        for name in Self::NAMES {
            let mut places = (0..header.len()).filter(|&i| header[i].trim() == name);
            let place = places.next().with_context(|| {
                let found: Vec<&str> = header.iter().collect();
                format!("line 1 has no column `{name}`, only {}", found.join(", "))
            })?;
            ensure!(places.next().is_none(), "line 1 has the column `{name}` twice");
            index.insert(name, place);
        }
        Ok(Self { width: header.len(), index })
    }

    fn parse(&self, raw: &csv::ByteRecord) -> Result<(u8, Impression), Flaw> {
        if raw.len() != self.width {
            let value = format!("{} columns instead of {}", raw.len(), self.width);
            return Err(Flaw::new("row", value, "column_count"));
        }
        let text = |name: &'static str| {
            let bytes = &raw[self.index[name]];
            std::str::from_utf8(bytes)
                .map(str::trim)
                .map_err(|_| Flaw::new(name, String::from_utf8_lossy(bytes), "not_utf8"))
        };
        let below = |name: &'static str, end: u8| {
            let text = text(name)?;
            let value: u8 = number(name, text)?;
            if value < end { Ok(value) } else { Err(Flaw::new(name, text, "out_of_range")) }
        };
        let weekday = below("weekday", 7)?;
        let hour = below("hour", 24)?;
        Ok((
            weekday,
            Impression {
                hour,
                slot_id: slot_id(text("slotwidth")?, text("slotheight")?)?,
                // The log writes unknown values as `null`.
                region: match text("region")? {
                    "null" => 0,
                    known => number("region", known)?,
                },
                gender: gender(text("usertag")?),
                advertiser: number("advertiser", text("advertiser")?)?,
                price: within("payprice", text("payprice")?, 0.0, MAX_ECPM)?,
            },
        ))
    }
}

/// Joins width and height: `300` and `250` give slot 300250.
fn slot_id(width: &str, height: &str) -> Result<u32, Flaw> {
    let width: u32 = number("slotwidth", width)?;
    let height: u32 = number("slotheight", height)?;
    let together = format!("{width}{height}");
    together.parse().map_err(|_| Flaw::new("slotwidth", together, "out_of_range"))
}

/// Returns 1 for male, 2 for female, 0 where the tags have neither or both.
fn gender(tags: &str) -> u8 {
    let has = |tag: &str| tags.split(',').any(|t| t.trim() == tag);
    match (has(MALE_TAG), has(FEMALE_TAG)) {
        (true, false) => 1,
        (false, true) => 2,
        _ => 0,
    }
}

/// Refuses contracts that would make a queue that readers refuse.
fn check_contracts(control: &[ControlRow], impressions: &[Impression]) -> Result<()> {
    ensure!(
        control.len() < MAX_QUEUE,
        "{} contracts and an auction ad may not fit a queue of {MAX_QUEUE}",
        control.len()
    );
    for row in control {
        let ad_id = row.ad_id;
        let Some(pctr) = row.pctr else {
            bail!("contract {ad_id} has no pctr, and the log has none for it");
        };
        let ecpm = contract_ecpm(row, pctr);
        ensure!(
            (0.0..=MAX_ECPM).contains(&ecpm),
            "contract {ad_id}: click_value x pctr x 1000 = {ecpm} is not an eCPM up to {MAX_ECPM}"
        );
        ensure!(
            impressions.iter().all(|i| i.advertiser != ad_id),
            "contract {ad_id} has the id of an advertiser; renumber the contract"
        );
    }
    Ok(())
}

/// Returns the eCPM of a contract impression from its clicks alone, without the penalty.
fn contract_ecpm(row: &ControlRow, pctr: f64) -> f64 {
    row.click_value * pctr * 1_000.0
}

/// Converts the impressions of one day to requests in time order.
fn requests(mut impressions: Vec<Impression>, day: Day, control: &[ControlRow]) -> Vec<TrackRow> {
    impressions.sort_by_key(|i| i.hour);
    let mut in_hour = [0_u64; 24];
    for impression in &impressions {
        in_hour[usize::from(impression.hour)] += 1;
    }
    let mut placed = [0_u64; 24];
    impressions
        .into_iter()
        .zip(1..)
        .map(|(impression, request_id)| {
            let hour = usize::from(impression.hour);
            let offset = placed[hour] * HOUR_MS / in_hour[hour];
            placed[hour] += 1;
            let ts_ms = day.start_ms() + hour as u64 * HOUR_MS + offset;
            request(&impression, request_id, ts_ms, control)
        })
        .collect()
}

fn request(i: &Impression, request_id: u64, ts_ms: u64, control: &[ControlRow]) -> TrackRow {
    const AGE_UNKNOWN: u8 = 0;
    let entry = |ad_id, ad_type, ecpm, pctr| QueueEntry { ad_id, ad_type, ecpm, pctr, filter: 0, boost: 1.0 };
    let mut queue = vec![entry(i.advertiser, AdType::Auction, i.price, 0.0)];
    for row in control {
        let in_flight = (row.start_ms..row.end_ms).contains(&ts_ms);
        if in_flight && row.targeting.matches(i.slot_id, i.region, i.gender, AGE_UNKNOWN) {
            let pctr = row.pctr.unwrap_or_default();
            queue.push(entry(row.ad_id, AdType::Contract, contract_ecpm(row, pctr), pctr));
        }
    }
    TrackRow {
        request_id,
        ts_ms,
        slot_id: i.slot_id,
        region: i.region,
        gender: i.gender,
        age: AGE_UNKNOWN,
        user_id: None,
        queue,
    }
}

#[cfg(test)]
mod tests;
