//! Signs of a wrong unit or a wrong file: values that are possible but hardly ever intended.

use std::collections::BTreeSet;
use std::path::Path;

use super::Warning;
use super::census::Census;
use super::ranges::Ranges;
use crate::log::day::{Day, FAR_FUTURE_MS};
use crate::log::error::Result;
use crate::log::exposure::ExposureReport;
use crate::log::table::{self, Column};
use crate::log::{CompiledLog, exposure, inventory};

/// Number of requests below which a short day is taken for a sample.
const MANY: usize = 100;
/// Length in seconds below which a day may have its seconds read as milliseconds.
const SHORT_S: f64 = 600.0;
/// Ratio of penalty to auction worth beyond which, or below whose inverse, one of them probably has another unit: half way
/// between the usual, up to 10, and the 100 of cents in a dollar.
const FAR_APART: f64 = 30.0;
/// Observed or predicted clicks from which on a calibration is meaningful.
const CLICKS: f64 = 30.0;
/// Exposures of auction ads from which on sums of charges are meaningful.
const CHARGES: u64 = 100;
/// Ratio of charges to predictions beyond which, or below whose inverse, one of them probably has another unit.
const CHARGES_APART: f64 = 5.0;
/// Median delay that matters, seconds.
const DELAY_S: f64 = 1.0;

/// Returns warnings about the values of the day.
pub fn of_log(log: &CompiledLog, ranges: &Ranges, census: &Census) -> Vec<Warning> {
    let mut warnings = Vec::new();
    warnings.extend(times(log, ranges));
    warnings.extend(outside(log));
    warnings.extend(prices(ranges));
    warnings.extend(both_types(&census.both_types));
    if let Some(pctr) = ranges.pctr.filter(|pctr| pctr.median > 0.3) {
        let what = format!("the median pctr is {}", pctr.median);
        let cause = "percent or per mille instead of a fraction";
        warnings.push(Warning::new("pctr_high", what).likely(cause).so("Divide pctr by 100 or by 1,000"));
    }
    warnings
}

fn times(log: &CompiledLog, ranges: &Ranges) -> Option<Warning> {
    if log.day().date.starts_with("1970-") {
        let what = format!("the requests lie in 1970 and span {:.0} s", ranges.span_s);
        let cause = "ts_ms is in seconds";
        return Some(Warning::new("year_1970", what).likely(cause).so("Multiply ts_ms by 1,000"));
    }
    if log.day().start_ms > FAR_FUTURE_MS {
        let what = format!("the requests lie in the year {}", log.day().date.split('-').next().unwrap_or_default());
        let cause = "ts_ms is in microseconds or nanoseconds";
        return Some(Warning::new("far_future", what).likely(cause).so("Divide ts_ms by 1,000 or by 1,000,000"));
    }
    (log.requests().len() >= MANY && ranges.span_s < SHORT_S).then(|| {
        let what = format!("the whole day spans {:.0} s", ranges.span_s);
        let cause = "ts_ms counts seconds from midnight, or the log is a sample of a few minutes";
        Warning::new("short_span", what)
            .likely(cause)
            .so("Give ts_ms in Unix milliseconds; do not judge policies on a few minutes")
    })
}

fn outside(log: &CompiledLog) -> Option<Warning> {
    let counts = log.counts();
    let outside = counts.reasons.get("outside_day").copied().unwrap_or(0);
    (outside * 2 > counts.rows).then(|| {
        let what = format!("{outside} of {} rows lie outside {}", counts.rows, log.day().date);
        let cause = "the date, or the offset of local time";
        let remedy = "Set date and utc_offset_minutes in day.toml (480 is UTC+8); the quarantine file lists the rows";
        Warning::new("outside_day", what).likely(cause).so(remedy)
    })
}

/// Compares eCPM with penalty.
fn prices(ranges: &Ranges) -> Option<Warning> {
    let (ecpm, penalty) = (ranges.ecpm?, ranges.penalty?);
    let (worth, penalty) = (ecpm.median / 1000.0, penalty.median);
    if worth <= 0.0 {
        return None;
    }
    if penalty <= 0.0 {
        let what = "most contracts cost nothing when they are missed";
        let cause = "rounded to whole units, or left out";
        let remedy = "Give penalty with its decimals: in the unit of eCPM, for one impression";
        return Some(Warning::new("penalty_low", what).likely(cause).so(remedy));
    }
    let ratio = penalty / worth;
    let what = format!(
        "a missing impression costs {penalty} (penalty, median), an auction impression earns {worth} (eCPM / 1000, median): \
         {:.0} to 1",
        if ratio > 1.0 { ratio } else { 1.0 / ratio }
    );
    if ratio >= FAR_APART {
        // Usual ratios are 0.3 to 10: times 100, times 1,000, or both.
        let (cause, remedy) = match ratio {
            ..300.0 => (
                "eCPM is in the major unit (yuan for fen), or penalty is per 1,000 impressions",
                "Multiply eCPM by 100, or divide penalty by 1,000, whichever is wrong: not both",
            ),
            ..10_000.0 => (
                "penalty is per 1,000 impressions, or eCPM is in the major unit (yuan for fen) and penalties are high",
                "Divide penalty by 1,000: it is per impression; multiply eCPM by 100 only where it is in the major unit",
            ),
            _ => (
                "penalty is per 1,000 impressions, and eCPM is in the major unit (yuan for fen)",
                "Divide penalty by 1,000 and multiply eCPM by 100",
            ),
        };
        return Some(Warning::new("penalty_high", what).likely(cause).so(remedy));
    }
    (ratio <= 1.0 / FAR_APART).then(|| {
        let cause = "penalty is in the major unit (yuan for fen), or eCPM is per million impressions";
        let remedy = "Multiply penalty by 100: it is in the unit of eCPM, for one impression";
        Warning::new("penalty_low", what).likely(cause).so(remedy)
    })
}

fn both_types(both: &BTreeSet<u64>) -> Option<Warning> {
    let first = both.first()?;
    let what = format!("{} ids are contracts in control and auction ads (A) in queues, {first} first", both.len());
    let cause = "two systems number their ads independently, or contract entries are typed A";
    Some(
        Warning::new("both_types", what)
            .likely(cause)
            .so("Give contracts ids of their own, and their entries the type C"),
    )
}

/// Returns warnings about exposures; `feedback_delay_s` is the delay that a run would assume.
pub fn of_exposure(report: &ExposureReport, feedback_delay_s: f64) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let good = report.rows - report.bad;
    if good > 0 && report.unknown_requests * 2 > good {
        let what = format!("{} of {good} exposures belong to no request of the track log", report.unknown_requests);
        let cause = "exposures of another day, or request ids that are hashed in another way";
        warnings.push(
            Warning::new("exposures_do_not_join", what).likely(cause).so("Export both tables with the same request_id"),
        );
    }
    let predicted: f64 = report.calibration.iter().map(|t| t.predicted * t.count as f64).sum();
    let clicked: f64 = report.calibration.iter().map(|t| t.clicked * t.count as f64).sum();
    if predicted.max(clicked) >= CLICKS && !(0.5..=1.5).contains(&(clicked / predicted)) {
        let what = format!("{clicked:.0} clicks where pctr predicts {predicted:.0}");
        let cause = match clicked / predicted {
            ratio if !(0.05..=20.0).contains(&ratio) => "pctr is in percent or per mille, or clicks are missing",
            _ => "a click model that is not calibrated, or clicks that had not arrived when the log was made",
        };
        let remedy = "Contracts with a click_value are judged by pctr: calibrate it first";
        warnings.push(Warning::new("calibration", what).likely(cause).so(remedy));
    }
    warnings.extend(charges(report));
    if let Some(delay) = report.feedback_delay.filter(|d| d.p50_s >= DELAY_S && feedback_delay_s == 0.0) {
        let what = format!(
            "exposures arrive after {:.1} s (median), {:.1} s (p99), and env.feedback_delay_s is 0",
            delay.p50_s, delay.p99_s
        );
        let remedy =
            format!("Set env.feedback_delay_s = {:.0}, so that policies know no more than they will", delay.p50_s);
        warnings.push(Warning::new("feedback_delay", what).so(remedy));
    }
    warnings
}

/// Compares what exposures of auction ads say of money with the track log.
fn charges(report: &ExposureReport) -> Vec<Warning> {
    let Some(sums) = report.charges.filter(|c| c.exposures >= CHARGES && c.predicted > 0.0) else { return vec![] };
    let apart = |sum: f64| sum > 0.0 && !(1.0 / CHARGES_APART..=CHARGES_APART).contains(&(sum / sums.predicted));
    let mut warnings = Vec::new();
    if apart(sums.charged) {
        let ratio = sums.charged / sums.predicted;
        let what = format!(
            "{} auction impressions were charged {:.0} in all; the eCPM of the track log predicts {:.0}, {ratio:.3} to 1",
            sums.exposures, sums.charged, sums.predicted
        );
        let (cause, remedy) = if ratio < 0.05 {
            ("charge is in the major unit (yuan for fen)", "Multiply charge by 100: minor units for one impression")
        } else if ratio > 100.0 {
            ("charge is for 1,000 impressions", "Divide charge by 1,000: minor units for one impression")
        } else {
            ("charge or eCPM has another unit, or charges are missing", "Give charge in minor units for one impression")
        };
        warnings.push(Warning::new("charge_unit", what).likely(cause).so(remedy));
    }
    if apart(sums.stated) {
        let ratio = sums.stated / sums.predicted;
        let what = format!("the eCPM of exposures is {ratio:.3} times that of the same ads in the track log");
        let cause = "one of the two tables has another unit of money";
        warnings.push(Warning::new("exposure_ecpm", what).likely(cause).so("Export both with eCPM in minor units"));
    }
    warnings
}

/// Returns warnings about the directory itself.
///
/// # Errors
/// A `day.toml` that cannot be read.
pub fn of_directory(dir: &Path) -> Result<Vec<Warning>> {
    let mut warnings = Vec::new();
    if let Some(offset) = Day::offset_minutes(dir)?.filter(|m| (1..=14).contains(&m.abs())) {
        let what = format!("utc_offset_minutes is {offset}");
        let cause = "hours instead of minutes";
        let remedy = format!("Set utc_offset_minutes = {} in day.toml", offset * 60);
        warnings.push(Warning::new("offset_in_hours", what).likely(cause).so(remedy));
    }
    let optional: [(&str, &'static [Column]); 2] =
        [("inventory", inventory::COLUMNS), ("joined_exposure", exposure::COLUMNS)];
    for (name, columns) in optional {
        if table::find(dir, name)?.is_none()
            && let Some(hint) = table::elsewhere(dir, name, columns)
        {
            warnings.push(Warning::new("unread_file", format!("no {name} is read")).likely(hint));
        }
    }
    Ok(warnings)
}
