//! Reads `joined_exposure`: the impressions that the live system showed. Here they are joined to the log by request for the
//! `logged` baseline and for `data check`; `values::join` joins the same rows as samples of the value model, and has the reasons
//! why one is left out there.

use std::path::Path;

use foldhash::quality::RandomState;
use serde::Serialize;

use crate::cancel;

use super::buckets::{Bucket, Buckets};
use super::error::{BadValue, LogError, Result};
use super::row_index::{self, RowIndex};
use super::schema::{AdType, ExposureRow};
use super::table::{Column, Row, Table, optional, required};
use super::{CompiledLog, Progress, Request};

pub const COLUMNS: &[Column] = &[
    required("request_id"),
    required("ts_ms"),
    required("arrival_ms"),
    required("ad_id"),
    required("type"),
    required("charge"),
    required("ecpm"),
    required("pctr"),
    required("click"),
    optional("propensity"),
    optional("explore"),
];

/// Parses one row.
///
/// # Errors
/// The first value that breaks a rule.
pub fn parse(row: &Row) -> std::result::Result<ExposureRow, BadValue> {
    row.check_shape()?;
    let flag = |i: usize, column: &'static str| match row.text_of(i)? {
        "0" | "" => Ok(false),
        "1" => Ok(true),
        other => Err(BadValue::new(column, other, "out_of_range", "must be 0 or 1")),
    };
    let propensity = row.number(9, 0.0, 1.0)?;
    if propensity == Some(0.0) {
        return Err(BadValue::new("propensity", "0", "out_of_range", "must be in (0, 1] or empty"));
    }
    Ok(ExposureRow {
        request_id: row.integer(0)?.ok_or_else(|| row.empty(0))?,
        ts_ms: row.integer(1)?.ok_or_else(|| row.empty(1))?,
        arrival_ms: row.integer(2)?.ok_or_else(|| row.empty(2))?,
        ad_id: row.integer(3)?.ok_or_else(|| row.empty(3))?,
        ad_type: match row.text_of(4)? {
            "C" => AdType::Contract,
            "A" => AdType::Auction,
            other => return Err(BadValue::new("type", other, "bad_type", "must be C or A")),
        },
        charge: row.number(5, 0.0, super::schema::MAX_PENALTY)?.ok_or_else(|| row.empty(5))?,
        ecpm: row.number(6, 0.0, super::schema::MAX_ECPM)?.ok_or_else(|| row.empty(6))?,
        pctr: row.number(7, 0.0, 1.0)?.ok_or_else(|| row.empty(7))?,
        click: flag(8, "click")?,
        propensity,
        explore: flag(10, "explore")?,
    })
}

/// The ads shown on a log's requests, and their statistics.
#[derive(Debug, Clone, PartialEq)]
pub struct Exposures {
    pub shown: ShownAds,
    pub report: ExposureReport,
    /// Message of the first bad row.
    pub first_bad: Option<String>,
}

/// The ad that was shown on each row of a log, in four bytes a row.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownAds(Vec<u32>);

/// No exposure of the request is known.
const UNKNOWN: u32 = 0;
/// The ad shown may not be shown on the request. Other values are the ad's place among contract entries and then auction ads, from 1.
const BARRED: u32 = u32::MAX;

impl ShownAds {
    /// Returns the ad shown on `request`, which is row `row` of the log that the exposures were joined to; `None` where no exposure of an ad that may be shown
    /// is known.
    pub fn ad(&self, log: &CompiledLog, row: usize, request: &Request) -> Option<(u64, AdType)> {
        let place = match self.0[row] {
            UNKNOWN | BARRED => return None,
            place => place as usize - 1,
        };
        let entries = log.entries(request);
        Some(match place.checked_sub(entries.len()) {
            None => {
                let entry = entries.iter().nth(place).expect("a place is within the queue");
                (log.contracts()[entry.contract as usize].ad_id, AdType::Contract)
            }
            Some(place) => {
                let auction = log.auctions(request).iter().nth(place).expect("a place is within the queue");
                (auction.ad_id, AdType::Auction)
            }
        })
    }
}

/// Results of joining the exposures to the track log, with statistics of feedback delay and calibration.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExposureReport {
    pub rows: u64,
    pub bad: u64,
    /// Exposures without a request in the log.
    pub unknown_requests: u64,
    /// Exposures of a request that already has one; the first one counts.
    pub repeated: u64,
    /// Exposures of an ad that may not be shown on the request according to the log.
    pub not_allowed: u64,
    /// Requests without an exposure.
    pub requests_without: u64,
    /// Feedback delay over all good rows; `null` without any.
    pub feedback_delay: Option<FeedbackDelay>,
    /// Charges beside predictions, over the auction ads that the log knows on their requests; `null` without any.
    pub charges: Option<Charges>,
    /// Calibration over all good rows: tenths by predicted click probability, lowest first; fewer where there are fewer rows.
    pub calibration: Vec<Decile>,
}

/// Distribution of the time from request to arrival, seconds; quantiles are at most 0.1 % too large.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FeedbackDelay {
    pub p50_s: f64,
    pub p90_s: f64,
    pub p99_s: f64,
    pub max_s: f64,
    /// Rows that arrived before their request because clocks disagree. They count as a delay of 0.
    pub early: u64,
}

/// Sums over exposures of auction ads, minor units.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Charges {
    pub exposures: u64,
    pub charged: f64,
    /// Worth by the eCPM of the track log.
    pub predicted: f64,
    /// Worth by the eCPM of the exposures themselves.
    pub stated: f64,
}

/// A tenth of the exposures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Decile {
    pub count: u64,
    /// Mean predicted click probability.
    pub predicted: f64,
    /// Share of exposures that were clicked.
    pub clicked: f64,
}

/// Reads an exposure table and joins it to its log. The index of request ids takes at most `memory` bytes: where it would take more, the table is
/// read several times.
///
/// # Errors
/// An unreadable table. Bad rows are counted and left out.
pub fn join(path: &Path, log: &CompiledLog, memory: usize) -> Result<Exposures> {
    let parts = row_index::parts(log, memory);
    let hasher = RandomState::default();
    let mut join = Join::new(log);
    for part in 0..parts {
        join.read(path, &RowIndex::part(log, &hasher, part, parts), part == 0)?;
    }
    Ok(join.finish())
}

/// Sums of a join.
struct Join<'a> {
    log: &'a CompiledLog,
    shown: Vec<u32>,
    report: ExposureReport,
    first_bad: Option<String>,
    early: u64,
    /// Milliseconds from request to arrival.
    delays: Buckets,
    /// Predicted click probabilities, marked where there was a click.
    predictions: Buckets,
    charges: Charges,
}

/// Rows of the table after which the pages of the log are released that they led to, and progress is told.
const STRETCH: u64 = 1 << 18;

impl<'a> Join<'a> {
    fn new(log: &'a CompiledLog) -> Self {
        Self {
            log,
            shown: vec![UNKNOWN; log.requests().len()],
            report: ExposureReport::default(),
            first_bad: None,
            early: 0,
            delays: Buckets::default(),
            predictions: Buckets::default(),
            charges: Charges::default(),
        }
    }

    /// Reads the whole table for the request ids of `index`, and for what has no id if `first`.
    fn read(&mut self, path: &Path, index: &RowIndex, first: bool) -> Result<()> {
        let mut table = Table::open(path, COLUMNS)?;
        if first {
            table.warn_unknown(0);
        }
        let (mut row, mut rows, mut read) = (table.row(), 0u64, 0);
        let mut progress = Progress::new(path.display().to_string(), table.bytes());
        while table.read(&mut row)? {
            self.report.rows += u64::from(first);
            rows += 1;
            if rows.is_multiple_of(STRETCH) {
                cancel::point();
                self.log.requests().release();
                progress.add(STRETCH, table.bytes_read() - std::mem::replace(&mut read, table.bytes_read()));
            }
            match parse(&row) {
                Ok(exposure) if index.covers(exposure.request_id) => {
                    self.take(&exposure, index.find(exposure.request_id))
                }
                Ok(_) => {}
                Err(bad) if first => {
                    let text =
                        || LogError::BadRow { path: table.here().to_owned(), line: row.place.line, bad }.to_string();
                    self.first_bad.get_or_insert_with(text);
                    self.report.bad += 1;
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Counts an exposure of the request in row `row`.
    fn take(&mut self, exposure: &ExposureRow, row: Option<usize>) {
        self.early += u64::from(exposure.arrival_ms < exposure.ts_ms);
        self.delays.add(exposure.arrival_ms.saturating_sub(exposure.ts_ms) as f64, false);
        self.predictions.add(exposure.pctr, exposure.click);
        let Some(row) = row else {
            self.report.unknown_requests += 1;
            return;
        };
        if self.shown[row] != UNKNOWN {
            self.report.repeated += 1;
            return;
        }
        let Some(place) = self.place(row, exposure) else {
            self.report.not_allowed += 1;
            self.shown[row] = BARRED;
            return;
        };
        self.shown[row] = place as u32 + 1;
    }

    /// Returns the place of the ad shown among those that may be shown on a row, ignoring its cap and its rate, which the live system drew
    /// itself. Counts the charge of an auction ad.
    fn place(&mut self, row: usize, exposure: &ExposureRow) -> Option<usize> {
        let request = self.log.requests().row(row);
        let entries = self.log.entries(&request);
        if exposure.ad_type == AdType::Contract {
            return entries.iter().position(|e| self.log.contracts()[e.contract as usize].ad_id == exposure.ad_id);
        }
        let (place, ad) = self.log.auctions(&request).iter().enumerate().find(|(_, a)| a.ad_id == exposure.ad_id)?;
        self.charges.exposures += 1;
        self.charges.charged += exposure.charge;
        self.charges.predicted += ad.worth();
        self.charges.stated += exposure.ecpm / 1000.0;
        Some(entries.len() + place)
    }

    fn finish(self) -> Exposures {
        let Self { shown, mut report, first_bad, early, delays, predictions, charges, .. } = self;
        report.requests_without = shown.iter().filter(|place| **place == UNKNOWN).count() as u64;
        report.feedback_delay = delays.quantiles([0.5, 0.9, 0.99, 1.0]).map(|delays_ms| {
            let [p50_s, p90_s, p99_s, max_s] = delays_ms.map(|ms| ms / 1000.0);
            FeedbackDelay { p50_s, p90_s, p99_s, max_s, early }
        });
        let decile = |tenth: Bucket| {
            let count = tenth.count as f64;
            Decile { count: tenth.count, predicted: tenth.sum / count, clicked: tenth.marked / count }
        };
        report.calibration = predictions.parts(10).into_iter().map(decile).collect();
        report.charges = Some(charges).filter(|charges| charges.exposures > 0);
        Exposures { shown: ShownAds(shown), report, first_bad }
    }
}
