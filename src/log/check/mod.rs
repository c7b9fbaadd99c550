//! `data check`: tests a log directory against the whole input contract and warns of values that are possible but look like a
//! wrong unit.

mod census;
mod ranges;
mod units;
mod warning;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::compile;
use super::error::Result;
use super::exposure::{self, ExposureReport};
use super::options::CompileOptions;
use super::quarantine::quarantine_path;
use super::table;
use super::wander::Hourly;
use super::{CompiledLog, inventory};
use census::Census;
pub use ranges::{Range, Ranges};
pub use warning::Warning;

/// Share of a contract's targeted requests whose queue has it, below which there is a warning: the log may be censored by the
/// policy that wrote it.
const LOW_PRESENCE: f64 = 0.5;

/// Report on a log directory.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    pub directory: PathBuf,
    pub log: String,
    pub date: String,
    pub requests: u64,
    pub rows: u64,
    pub quarantined: u64,
    pub reasons: BTreeMap<String, u64>,
    /// Path of the list of bad rows, if there are any.
    pub quarantine: Option<PathBuf>,
    pub out_of_order: u64,
    pub unfillable: u64,
    pub ranges: Ranges,
    pub contracts: Vec<ContractReport>,
    /// Forecast page views of the inventory, if there is one.
    pub inventory_pv: Option<f64>,
    pub exposure: Option<ExposureReport>,
    pub warnings: Vec<Warning>,
    /// Requests and prices by hour, to compare days with each other.
    #[serde(skip)]
    pub hourly: Hourly,
}

/// Statistics of a contract in the log.
#[derive(Debug, Clone, Serialize)]
pub struct ContractReport {
    pub ad_id: u64,
    pub owed: u64,
    pub targeted: u64,
    /// Targeted requests in whose queue the contract may be shown.
    pub present: u64,
    /// Share of targeted requests with the contract present, by local hour; `null` where none was targeted.
    pub presence_by_hour: Vec<Option<f64>>,
}

/// Checks a log directory and compiles it; `feedback_delay_s` is the delay that runs on it would assume.
///
/// # Errors
/// Whatever makes the directory unusable, including more bad track rows than allowed.
pub fn check(dir: &Path, options: CompileOptions, feedback_delay_s: f64) -> Result<CheckReport> {
    let log = compile::open(dir, options)?;
    let counts = log.counts().clone();
    let census = Census::of(&log);
    let ranges = Ranges::of(&log, &census);
    let mut warnings = units::of_directory(dir)?;
    if log.contracts_declared() {
        warnings.push(Warning::new("declared_contracts", "contracts were declared by the import, they are not real"));
    }
    warnings.extend(units::of_log(&log, &ranges, &census));
    let contracts = contracts(&log, &census, &mut warnings);
    let inventory_pv = match table::find(dir, "inventory")? {
        Some(path) => Some(inventory::read(&path)?.iter().map(|node| node.pv).sum()),
        None => None,
    };
    let exposure = match table::find(dir, "joined_exposure")? {
        Some(path) => Some(join_exposure(&path, &log, (options.memory, feedback_delay_s), &mut warnings)?),
        None => None,
    };
    if counts.out_of_order > 0 {
        let what = format!("{} rows stood out of time order and were sorted", counts.out_of_order);
        warnings.push(Warning::new("out_of_order", what));
    }
    let quarantine = if counts.quarantined > 0 { Some(quarantine_path(dir)) } else { None };
    Ok(CheckReport {
        directory: dir.to_owned(),
        log: log.name().to_owned(),
        date: log.day().date.clone(),
        requests: log.requests().len() as u64,
        rows: counts.rows,
        quarantined: counts.quarantined,
        reasons: counts.reasons,
        quarantine,
        out_of_order: counts.out_of_order,
        unfillable: census.unfillable,
        ranges,
        contracts,
        inventory_pv,
        exposure,
        warnings,
        hourly: Hourly::of(&log),
    })
}

fn contracts(log: &CompiledLog, census: &Census, warnings: &mut Vec<Warning>) -> Vec<ContractReport> {
    let (mut short, mut absent) = (Vec::new(), Vec::new());
    let reports =
        log.contracts().iter().zip(census.targeted.iter().zip(&census.present)).map(|(c, (targeted, present))| {
            if c.present < c.owed() {
                short.push(format!(
                    "contract {} owes {} impressions but may be shown on {} requests only",
                    c.ad_id,
                    c.owed(),
                    c.present
                ));
            }
            if (c.present as f64) < LOW_PRESENCE * c.targeted as f64 {
                absent.push(format!(
                    "contract {} stands in the queues of {} of its {} targeted requests",
                    c.ad_id, c.present, c.targeted
                ));
            }
            ContractReport {
                ad_id: c.ad_id,
                owed: c.owed(),
                targeted: c.targeted,
                present: c.present,
                presence_by_hour: (0..24)
                    .map(|h| (targeted[h] > 0).then(|| present[h] as f64 / targeted[h] as f64))
                    .collect(),
            }
        });
    let reports = reports.collect();
    let remedy = "Look at its targeting and flight, and whether `required` is this day's share of the booking";
    warnings.extend(several(&short).map(|what| Warning::new("short_supply", what).so(remedy)));
    let remedy = "If the log was censored by the policy that wrote it, set env.complete_queues = true";
    warnings.extend(several(&absent).map(|what| Warning::new("low_presence", what).so(remedy)));
    reports
}

/// Merges the findings of several contracts into one: quotes the first and counts the others.
fn several(found: &[String]) -> Option<String> {
    match found {
        [] => None,
        [only] => Some(only.clone()),
        [first, others @ ..] => Some(format!("{first}, and {} contracts more (--json has each)", others.len())),
    }
}

fn join_exposure(
    path: &Path,
    log: &CompiledLog,
    (memory, feedback_delay_s): (usize, f64),
    warnings: &mut Vec<Warning>,
) -> Result<ExposureReport> {
    let exposures = exposure::join(path, log, memory)?;
    if let Some(first) = exposures.first_bad {
        warnings.push(Warning::new("bad_exposures", format!("bad exposure rows are left out; the first: {first}")));
    }
    let report = exposures.report;
    if report.not_allowed > 0 {
        let what =
            format!("{} exposures show an ad that by the log may not be shown on their request", report.not_allowed);
        warnings.push(
            Warning::new("exposures_not_allowed", what).likely("the log of another day, or entries that are missing"),
        );
    }
    if let Some(early) = report.feedback_delay.map(|d| d.early).filter(|&n| n > 0) {
        let what = format!("{early} exposures arrived before their request");
        warnings.push(Warning::new("early_exposures", what).likely("the clocks disagree"));
    }
    warnings.extend(units::of_exposure(&report, feedback_delay_s));
    Ok(report)
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}): {} requests of {} rows", self.directory.display(), self.date, self.requests, self.rows)?;
        if self.quarantined > 0 {
            let reasons: Vec<String> = self.reasons.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
            write!(f, "  quarantined  {}: {}", self.quarantined, reasons.join(", "))?;
            match &self.quarantine {
                Some(path) => writeln!(f, " (listed in {})", path.display())?,
                None => writeln!(f)?,
            }
        }
        writeln!(f, "  ranges       {}", self.ranges)?;
        writeln!(f, "  unfillable   {} requests have nothing that may be shown", self.unfillable)?;
        let owed: u64 = self.contracts.iter().map(|c| c.owed).sum();
        writeln!(f, "  contracts    {} owe {owed} impressions", self.contracts.len())?;
        if let Some(pv) = self.inventory_pv {
            writeln!(f, "  inventory    {pv:.0} page views forecast")?;
        }
        if let Some(e) = &self.exposure {
            writeln!(
                f,
                "  exposure     {} rows ({} bad, {} repeated), {} without a request, {} requests without one",
                e.rows, e.bad, e.repeated, e.unknown_requests, e.requests_without
            )?;
            if let Some(d) = &e.feedback_delay {
                writeln!(
                    f,
                    "  feedback     after {:.1} s (p50), {:.1} s (p90), {:.1} s (p99), {:.1} s at most",
                    d.p50_s, d.p90_s, d.p99_s, d.max_s
                )?;
            }
            if !e.calibration.is_empty() {
                writeln!(f, "  clicks       {:>9}  {:>9}  {:>9}   by tenth of pctr", "count", "predicted", "clicked")?;
                for tenth in &e.calibration {
                    writeln!(f, "               {:>9}  {:>9.5}  {:>9.5}", tenth.count, tenth.predicted, tenth.clicked)?;
                }
            }
        }
        for warning in &self.warnings {
            writeln!(f, "  warning      {warning} [{}]", warning.name)?;
        }
        Ok(())
    }
}
