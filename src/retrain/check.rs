//! Checks which days can be used, and how they drift.
//!
//! A day that cannot be read is refused by its reader. A day in the wrong unit can be read, so its figures are compared with
//! those of the valid days before it. Limits are wide, because a price jump is possible and not an error; changes within them are
//! reported as drift.

use serde::Serialize;

use crate::log::check::check;
use crate::log::{self, CompileOptions, CompiledLog};
use crate::study::statistics::median;

use super::config::{Drift, Job};
use super::days::DayDir;

/// Number of earlier valid days that a day is compared with.
const MEMORY: usize = 7;
/// Factor below which a change is not reported.
const NEWS: f64 = 1.25;

const REQUESTS: &str = "requests";
const ECPM: &str = "auction eCPM";
const PENALTY: &str = "penalty";
const PCTR: &str = "pctr";
const OWED: &str = "impressions owed per request";

/// Figures of a day that wrong units and broken exports change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    pub requests: f64,
    /// Median of the best auction eCPM over requests.
    pub ecpm: Option<f64>,
    /// Mean penalty in minor units per impression, weighted by the impressions owed.
    pub penalty: Option<f64>,
    pub pctr: Option<f64>,
    /// Impressions owed per request.
    pub owed: f64,
}

impl Figures {
    fn of(log: &CompiledLog) -> Self {
        let requests = log.requests().len() as f64;
        let best: Vec<f64> = log
            .requests()
            .iter()
            .filter_map(|r| log.auctions(&r).iter().map(|a| a.ecpm).max_by(f64::total_cmp))
            .collect();
        let owed: f64 = log.contracts().iter().map(|c| c.owed() as f64).sum();
        let penalty: f64 = log.contracts().iter().map(|c| c.penalty * c.owed() as f64).sum();
        let (n, pctr) =
            log.requests().iter().flat_map(|r| log.entries(&r)).fold((0u64, 0.0), |(n, sum), e| (n + 1, sum + e.pctr));
        Self {
            requests,
            ecpm: median(best),
            penalty: (owed > 0.0).then(|| penalty / owed),
            pctr: (n > 0).then(|| pctr / n as f64),
            owed: owed / requests.max(1.0),
        }
    }

    /// Returns name, key of the limit, value and limit of each figure.
    fn limits(&self, drift: &Drift) -> [(&'static str, &'static str, Option<f64>, f64); 5] {
        [
            (REQUESTS, "requests", Some(self.requests), drift.requests),
            (ECPM, "ecpm", self.ecpm, drift.ecpm),
            (PENALTY, "penalty", self.penalty, drift.penalty),
            (PCTR, "pctr", self.pctr, drift.pctr),
            (OWED, "owed", Some(self.owed), drift.owed),
        ]
    }
}

/// Returns whether a figure depends on the amount of traffic.
fn is_of_traffic(figure: &str) -> bool {
    [REQUESTS, OWED].contains(&figure)
}

/// Returns the likely cause of a figure that is `factor` times the usual one.
fn cause(figure: &str, factor: f64) -> &'static str {
    let about = |wanted: f64| factor > 0.0 && (factor / wanted).ln().abs() < 4f64.ln();
    let is_money = [ECPM, PENALTY].contains(&figure);
    match figure {
        _ if is_money && about(0.01) => "likely major units (dollars, yuan) where minor ones (cents, fen) belong",
        _ if is_money && about(100.0) => "likely units of a hundredth of the usual ones",
        ECPM if about(0.001) => "likely a price per impression where one per 1,000 belongs",
        PENALTY if about(1000.0) => "likely a penalty per 1,000 impressions where one per impression belongs",
        PCTR if about(100.0) => "likely percent where a fraction belongs",
        REQUESTS if factor < 1.0 => "the export is likely incomplete",
        REQUESTS => "requests were likely exported twice",
        OWED => "the control table is likely another day's, or one of the tables is incomplete",
        _ => "the export has likely changed",
    }
}

/// Result of checking a day.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// The date, and for a window its time.
    pub label: String,
    #[serde(skip)]
    pub day: DayDir,
    /// Reasons why it is not used; empty for a valid day.
    pub suspect: Vec<String>,
    /// Changes within the limits.
    pub drift: Vec<String>,
    pub warnings: Vec<String>,
    pub figures: Option<Figures>,
}

impl Checked {
    /// Returns whether the day is used.
    pub fn is_valid(&self) -> bool {
        self.suspect.is_empty()
    }
}

/// Checks days, oldest first; each is compared with the valid ones before it.
///
/// `feedback_delay_s` is the delay that training is configured with; a day with another measured delay gives a warning.
pub fn all(days: &[DayDir], job: &Job, options: CompileOptions, feedback_delay_s: f64) -> Vec<Checked> {
    let mut checked: Vec<Checked> = Vec::new();
    for day in days {
        let known: Vec<Figures> =
            checked.iter().rev().filter(|c| c.is_valid()).filter_map(|c| c.figures).take(MEMORY).collect();
        checked.push(one(day, &known, job, options, feedback_delay_s));
    }
    checked
}

fn one(day: &DayDir, known: &[Figures], job: &Job, options: CompileOptions, feedback_delay_s: f64) -> Checked {
    let mut found = Checked {
        label: day.label(),
        day: day.clone(),
        suspect: vec![],
        drift: vec![],
        warnings: vec![],
        figures: None,
    };
    let log = match check(&day.dir, options, feedback_delay_s).and_then(|report| {
        found.warnings = report.warnings.iter().map(ToString::to_string).collect();
        log::open(&day.dir, options)
    }) {
        Ok(log) => log,
        Err(e) => {
            found.suspect.push(e.to_string());
            return found;
        }
    };
    if log.day().date != day.date.to_string() {
        found.suspect.push(format!(
            "its rows are of {}: a copy of another day, or a day.toml with date and utc_offset_minutes is missing",
            log.day().date
        ));
    }
    let figures = Figures::of(&log);
    found.figures = Some(figures);
    let mut suspect = Vec::new();
    if let (Some(penalty), Some(ecpm)) = (figures.penalty, figures.ecpm.filter(|e| *e > 0.0)) {
        let ratio = penalty / (ecpm / 1000.0);
        if penalty > 0.0 && (ratio > job.drift.unit || ratio < 1.0 / job.drift.unit) {
            suspect.push(format!(
                "a missing impression costs {ratio:.3} times what an auction impression earns: penalty is per impression, eCPM \
                 per 1,000 (drift.unit)"
            ));
        }
    }
    let date = day.date.to_string();
    let is_accepted = job.days.accept.contains(&date);
    let advice = |key: &str| {
        if is_accepted {
            return String::new();
        }
        format!(". Mend the export; if the change is real, raise drift.{key} or list {date} in days.accept")
    };
    for (i, (name, key, value, limit)) in figures.limits(&job.drift).into_iter().enumerate() {
        let before: Vec<f64> = known.iter().filter_map(|f| f.limits(&job.drift)[i].2).collect();
        // Traffic varies over the hours.
        if day.minute.is_some() && is_of_traffic(name) {
            continue;
        }
        let days = before.len();
        let (Some(value), Some(usual)) = (value, median(before)) else { continue };
        let factor = match (value, usual) {
            (v, u) if v == u => 1.0,
            (v, u) => v / u,
        };
        let said = format!("{name} {value:.4}, {factor:.2} times the median of the {days} valid days before");
        if !(1.0 / limit..=limit).contains(&factor) {
            suspect.push(format!("{said}: {}{}", cause(name, factor), advice(key)));
        } else if !(1.0 / NEWS..=NEWS).contains(&factor) {
            found.drift.push(said);
        }
    }
    if is_accepted {
        found.drift.extend(suspect.into_iter().map(|why| format!("{why}; accepted by days.accept")));
    } else {
        found.suspect.extend(suspect);
    }
    found
}
