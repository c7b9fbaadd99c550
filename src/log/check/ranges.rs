//! Ranges of the values of a day, which make a wrong unit obvious.

use std::fmt;

use serde::Serialize;

use super::census::Census;
use crate::log::CompiledLog;

/// Maximum number of values used for quantiles; of a longer day a regular subset is taken.
const SAMPLED: usize = 1 << 20;

/// Minimum, median and maximum of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Range {
    pub low: f64,
    pub median: f64,
    pub high: f64,
}

impl Range {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        Some(Self { low, median: values[values.len() / 2], high })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |v: f64| format!("{}", if v == 0.0 { 0.0 } else { significant(v, 4) });
        write!(f, "{}..{}..{}", short(self.low), short(self.median), short(self.high))
    }
}

/// Rounds `v` to `digits` significant digits.
fn significant(v: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits - 1 - v.abs().log10().floor() as i32);
    let rounded = (v * unit).round() / unit;
    if rounded.is_finite() { rounded } else { v }
}

/// The ranges of a day; `null` where there are no values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ranges {
    /// Times of the first and last request, Unix milliseconds.
    pub first_ms: u64,
    pub last_ms: u64,
    pub span_s: f64,
    /// Requests per hour, over hours that have any.
    pub requests_an_hour: Option<Range>,
    /// eCPM of auction entries that may be shown, minor units per 1,000 impressions.
    pub ecpm: Option<Range>,
    /// Predicted click probability of all entries that may be shown.
    pub pctr: Option<Range>,
    /// Penalty of the contracts, minor units per missing impression.
    pub penalty: Option<Range>,
}

impl Ranges {
    pub fn of(log: &CompiledLog, census: &Census) -> Self {
        let requests = log.requests();
        let (first_ms, last_ms) = (requests.first().map_or(0, |r| r.ts_ms), requests.last().map_or(0, |r| r.ts_ms));
        let step = requests.len().div_ceil(SAMPLED / 16).max(1);
        let (mut ecpm, mut pctr) = (Vec::new(), Vec::new());
        for r in requests.iter().step_by(step) {
            ecpm.extend(log.auctions(&r).iter().map(|a| a.ecpm));
            pctr.extend(log.auctions(&r).iter().map(|a| a.pctr));
            pctr.extend(log.entries(&r).iter().map(|e| e.pctr));
        }
        Self {
            first_ms,
            last_ms,
            span_s: (last_ms - first_ms) as f64 / 1000.0,
            requests_an_hour: Range::of(census.hours.iter().filter(|n| **n > 0).map(|n| *n as f64).collect()),
            ecpm: Range::of(ecpm),
            pctr: Range::of(pctr),
            penalty: Range::of(log.contracts().iter().map(|c| c.penalty).collect()),
        }
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ms: u64| {
            let time = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
            time.map_or_else(|| format!("{ms} ms"), |t| t.strftime("%Y-%m-%d %H:%M:%S").to_string())
        };
        write!(f, "{} to {} UTC ({:.1} h)", time(self.first_ms), time(self.last_ms), self.span_s / 3600.0)?;
        for (name, range) in [
            ("requests an hour", &self.requests_an_hour),
            ("eCPM", &self.ecpm),
            ("pctr", &self.pctr),
            ("penalty", &self.penalty),
        ] {
            if let Some(range) = range {
                write!(f, ", {name} {range}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_short() {
        let range = Range::of(vec![1234.5678, 0.0, 0.000_123_456]).unwrap();
        assert_eq!(range.to_string(), "0..0.0001235..1235");
        assert_eq!(Range::of(vec![]), None);
        assert_eq!(significant(1e308, 4), 1e308);
    }
}
