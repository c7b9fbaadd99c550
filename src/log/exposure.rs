//! Reads `joined_exposure`: the impressions that the live system showed, joined to the log by request.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;

use super::CompiledLog;
use super::error::{BadValue, LogError, Result};
use super::schema::{AdType, ExposureRow};
use super::table::{Column, Row, Table, optional, required};

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
    /// Ad shown on each row of the log; `None` where no exposure of an ad that may be shown is known.
    pub shown: Vec<Option<(u64, AdType)>>,
    pub report: ExposureReport,
    /// Message of the first bad row.
    pub first_bad: Option<String>,
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

/// Distribution of the time from request to arrival, seconds.
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

/// Reads an exposure table and joins it to its log.
///
/// # Errors
/// An unreadable table. Bad rows are counted and left out.
pub fn join(path: &Path, log: &CompiledLog) -> Result<Exposures> {
    let row_of: HashMap<u64, usize> = log.requests().iter().map(|r| r.request_id).zip(0..).collect();
    let mut shown = vec![None; row_of.len()];
    let mut exposed = vec![false; row_of.len()];
    let (mut delays, mut predictions) = (Vec::new(), Vec::new());
    let mut table = Table::open(path, COLUMNS)?;
    table.warn_unknown(0);
    let mut row = table.row();
    let mut report = ExposureReport::default();
    let mut first_bad = None;
    let mut early = 0;
    let mut charges = Charges::default();
    while table.read(&mut row)? {
        report.rows += 1;
        let exposure = match parse(&row) {
            Ok(exposure) => exposure,
            Err(bad) => {
                let text = || LogError::BadRow { path: table.here().to_owned(), line: row.place.line, bad }.to_string();
                first_bad.get_or_insert_with(text);
                report.bad += 1;
                continue;
            }
        };
        early += u64::from(exposure.arrival_ms < exposure.ts_ms);
        delays.push(exposure.arrival_ms.saturating_sub(exposure.ts_ms));
        predictions.push((exposure.pctr, exposure.click));
        match row_of.get(&exposure.request_id) {
            None => report.unknown_requests += 1,
            Some(&i) if exposed[i] => report.repeated += 1,
            Some(&i) => {
                exposed[i] = true;
                if allowed(log, i, exposure.ad_id, exposure.ad_type) {
                    shown[i] = Some((exposure.ad_id, exposure.ad_type));
                    let auctions = log.auctions(&log.requests().row(i));
                    if let Some(ad) = auctions.iter().find(|a| a.ad_id == exposure.ad_id)
                        && exposure.ad_type == AdType::Auction
                    {
                        charges.exposures += 1;
                        charges.charged += exposure.charge;
                        charges.predicted += ad.worth();
                        charges.stated += exposure.ecpm / 1000.0;
                    }
                } else {
                    report.not_allowed += 1;
                }
            }
        }
    }
    report.requests_without = exposed.iter().filter(|e| !**e).count() as u64;
    report.feedback_delay = feedback_delay(delays, early);
    report.calibration = calibration(predictions);
    report.charges = Some(charges).filter(|charges| charges.exposures > 0);
    Ok(Exposures { shown, report, first_bad })
}

/// Returns whether an ad may be shown on row `i`, ignoring its cap and its rate, which the live system drew itself.
fn allowed(log: &CompiledLog, i: usize, ad_id: u64, ad_type: AdType) -> bool {
    let request = &log.requests().row(i);
    match ad_type {
        AdType::Auction => log.auctions(request).iter().any(|a| a.ad_id == ad_id),
        AdType::Contract => log.entries(request).iter().any(|e| log.contracts()[e.contract as usize].ad_id == ad_id),
    }
}

/// Computes quantiles as order statistics: the least delay that the given share does not exceed.
fn feedback_delay(mut delays_ms: Vec<u64>, early: u64) -> Option<FeedbackDelay> {
    delays_ms.sort_unstable();
    let max = *delays_ms.last()?;
    let quantile =
        |share: f64| delays_ms[((share * delays_ms.len() as f64).ceil() as usize).max(1) - 1] as f64 / 1000.0;
    Some(FeedbackDelay {
        p50_s: quantile(0.5),
        p90_s: quantile(0.9),
        p99_s: quantile(0.99),
        max_s: max as f64 / 1000.0,
        early,
    })
}

fn calibration(mut predictions: Vec<(f64, bool)>) -> Vec<Decile> {
    predictions.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = predictions.len();
    (0..10)
        .map(|d| &predictions[d * n / 10..(d + 1) * n / 10])
        .filter(|tenth| !tenth.is_empty())
        .map(|tenth| {
            let count = tenth.len() as f64;
            Decile {
                count: tenth.len() as u64,
                predicted: tenth.iter().map(|(p, _)| p).sum::<f64>() / count,
                clicked: tenth.iter().filter(|(_, click)| *click).count() as f64 / count,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_order_statistics() {
        let delay = feedback_delay((1..=200).rev().map(|i| i * 1000).collect(), 3).unwrap();
        assert_eq!(delay, FeedbackDelay { p50_s: 100.0, p90_s: 180.0, p99_s: 198.0, max_s: 200.0, early: 3 });
        let one = feedback_delay(vec![70], 0).unwrap();
        assert_eq!((one.p50_s, one.p99_s, one.max_s), (0.07, 0.07, 0.07));
        assert_eq!(feedback_delay(vec![], 0), None);
    }

    #[test]
    fn tenths_hold_every_row_once_and_rise() {
        for n in [0, 1, 9, 10, 25, 1000] {
            let rows: Vec<(f64, bool)> = (0..n).map(|i| ((i * 37 % n) as f64 / n as f64, i % 3 == 0)).collect();
            let tenths = calibration(rows.clone());
            assert_eq!(tenths.len(), n.min(10));
            assert_eq!(tenths.iter().map(|t| t.count).sum::<u64>(), n as u64);
            let sum = |f: fn(&Decile) -> f64| tenths.iter().map(|t| f(t) * t.count as f64).sum::<f64>();
            assert!((sum(|t| t.predicted) - rows.iter().map(|r| r.0).sum::<f64>()).abs() < 1e-9);
            assert!((sum(|t| t.clicked) - rows.iter().filter(|r| r.1).count() as f64).abs() < 1e-9);
            assert!(tenths.windows(2).all(|w| w[0].predicted < w[1].predicted));
        }
    }
}
