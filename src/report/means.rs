//! Policies averaged over all reported days, and the baseline that they are compared with.

use crate::evaluate::{Kind, PolicyReport};

use super::content::{ReportedDay, RunReport};

/// Returns the best baseline: that of the verdict, else that of the validation days.
pub fn best_baseline(report: &RunReport) -> Option<&str> {
    let judged = report.judgement.as_ref().map(|j| j.verdict.against.as_str());
    judged.or(report.validation.best_baseline.as_deref())
}

/// Results of a policy over all reported days.
pub struct Mean {
    pub name: String,
    pub kind: Kind,
    pub equals: bool,
    pub share: Option<f64>,
    pub j: f64,
    pub shortage: f64,
    pub revenue: f64,
}

/// Returns means over the days, best share first.
pub fn means(days: &[ReportedDay]) -> Vec<Mean> {
    let mut names: Vec<&PolicyReport> = Vec::new();
    for p in days.iter().flat_map(|day| &day.report.policies) {
        if names.iter().all(|known| known.name != p.name) {
            names.push(p);
        }
    }
    let mut all: Vec<Mean> = names
        .into_iter()
        .map(|first| {
            let rows: Vec<&PolicyReport> =
                days.iter().flat_map(|day| day.report.policies.iter().find(|p| p.name == first.name)).collect();
            let mean = |f: fn(&PolicyReport) -> f64| rows.iter().map(|p| f(p)).sum::<f64>() / rows.len() as f64;
            let shares: Vec<f64> = rows.iter().filter_map(|p| p.share).collect();
            Mean {
                name: first.name.clone(),
                kind: first.kind,
                equals: first.equals.is_some(),
                share: (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64),
                j: mean(|p| p.j),
                shortage: mean(|p| p.shortage_rate),
                revenue: mean(|p| p.auction_revenue),
            }
        })
        .collect();
    all.sort_by(|a, b| b.share.unwrap_or(f64::MIN).total_cmp(&a.share.unwrap_or(f64::MIN)));
    all
}
