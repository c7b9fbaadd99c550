//! Contents of `report.json`.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::evaluate::bootstrap::Block;
use crate::evaluate::measure::Market;
use crate::evaluate::verdict::{self, Judgement};
use crate::evaluate::{DayReport, Kind};
use crate::run::context::Context;

/// Name of the chosen policy in the report of its own run.
pub const CHOSEN: &str = "trained";

/// Mean share of one policy over the validation days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValidationRow {
    pub name: String,
    pub kind: Kind,
    pub share: Option<f64>,
}

/// Results on the validation days, determined before a reported day was opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    pub logs: Vec<String>,
    /// The best baseline; `None` where nothing was at stake.
    pub best_baseline: Option<String>,
    /// Policies, best mean share first.
    pub policies: Vec<ValidationRow>,
}

impl Validation {
    /// Averages over the validation days.
    pub fn of(days: &[DayReport]) -> Self {
        let mut policies: Vec<ValidationRow> = Vec::new();
        for p in days.iter().flat_map(|day| &day.policies) {
            if policies.iter().all(|known| known.name != p.name) {
                let share = verdict::mean_share(days, &p.name);
                policies.push(ValidationRow { name: p.name.clone(), kind: p.kind, share });
            }
        }
        policies.sort_by(|a, b| b.share.unwrap_or(f64::MIN).total_cmp(&a.share.unwrap_or(f64::MIN)));
        Self {
            logs: days.iter().map(|day| day.log.clone()).collect(),
            best_baseline: verdict::best_baseline(days),
            policies,
        }
    }
}

/// A reported day, with the contribution of each of its hours to `[J + S, UB + S]`, by policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedDay {
    /// Hash of the day's content.
    pub inputs: String,
    #[serde(flatten)]
    pub report: DayReport,
    pub hours: BTreeMap<String, Vec<[f64; 2]>>,
    /// Planned share of each contract's delivery before every quarter hour and after the last one; empty where there was no
    /// forecast.
    pub planned: Vec<Vec<f64>>,
    /// Impressions by quarter hour of each contract, in the order of its report, for the chosen policy and the best baseline.
    pub delivered: BTreeMap<String, Vec<Vec<u32>>>,
    /// The auction's prices; missing in reports of older programs.
    #[serde(default)]
    pub market: Market,
    /// Mean bids of the contracts that these two policies showed, by quarter hour, in units of eCPM.
    #[serde(default)]
    pub bids: BTreeMap<String, Vec<Option<f64>>>,
}

impl ReportedDay {
    fn of(inputs: String, report: &DayReport, drawn: &[&str]) -> Self {
        let of_policy = |blocks: &[Block]| blocks.iter().map(|b| [b.earned, b.bound]).collect();
        let hours = report.policies.iter().map(|p| (p.name.clone(), of_policy(&p.blocks))).collect();
        let drawn = || report.policies.iter().filter(|p| drawn.contains(&p.name.as_str()));
        Self {
            inputs,
            report: report.clone(),
            hours,
            planned: report.planned.clone(),
            delivered: drawn().map(|p| (p.name.clone(), p.quarters.clone())).collect(),
            market: report.market.clone(),
            bids: drawn().map(|p| (p.name.clone(), p.bids.clone())).collect(),
        }
    }

    /// Returns the day as it was evaluated, hours included.
    pub fn evaluated(&self) -> DayReport {
        let mut report = self.report.clone();
        for p in &mut report.policies {
            let hours = self.hours.get(&p.name).map_or(&[][..], Vec::as_slice);
            p.blocks = hours.iter().map(|&[earned, bound]| Block { earned, bound }).collect();
        }
        report
    }
}

/// `report.json` of a run directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    pub admix: String,
    /// Number of updates of the chosen policy.
    pub chosen_updates: u64,
    pub validation: Validation,
    /// `verdict` and `basis`; missing where there are no reported days.
    #[serde(flatten)]
    pub judgement: Option<Judgement>,
    pub days: Vec<ReportedDay>,
}

impl RunReport {
    /// Builds the report of a finished run. `reported` are the days of `data.test`, in that order.
    pub fn of(context: &Context, chosen_updates: u64, validation: Validation, reported: &[DayReport]) -> Self {
        let inputs = |dir| context.inputs.get(dir).cloned().unwrap_or_default();
        let judgement = verdict::judge(reported, CHOSEN, validation.best_baseline.as_deref());
        let against = judgement.as_ref().map_or("", |j| j.verdict.against.as_str());
        let days = context.settings.data.test.iter().zip(reported);
        Self {
            admix: env!("CARGO_PKG_VERSION").to_owned(),
            chosen_updates,
            days: days.map(|(dir, report)| ReportedDay::of(inputs(dir), report, &[CHOSEN, against])).collect(),
            judgement,
            validation,
        }
    }

    /// Reads the report of a run directory; `None` where the run has not written one.
    ///
    /// # Errors
    /// A report that cannot be read.
    pub fn read(run: &Path) -> anyhow::Result<Option<Self>> {
        let path = run.join("report.json");
        let text = match std::fs::read(&path) {
            // A path to a policy file has no report.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let report = serde_json::from_slice(&text);
        report.map(Some).with_context(|| format!("{} is not a report of this program", path.display()))
    }
}
