//! All results of the evaluation, and the names given to the best of them.

use std::collections::HashMap;

use crate::evaluate::PolicyReport;

use super::config::CHOSEN;
use super::frontier::HindsightPoint;
use super::learning::Curve;
use super::paired;
use super::rows::{Row, Volatility};

/// Name of the baseline that is best on a world's validation days, which is determined without its reported days.
pub const BEST_BASELINE: &str = "best-baseline";

/// Results of the evaluation.
#[derive(Debug, Default)]
pub struct Found {
    pub rows: Vec<Row>,
    /// Rows of the baselines on the validation days.
    pub validation: Vec<Row>,
    /// Volatility of the reported days.
    pub volatility: Vec<Volatility>,
    pub frontier: Vec<HindsightPoint>,
    /// Worlds whose plan could not be made, so that baselines which need one are missing there.
    pub worlds_without_plan: Vec<String>,
}

impl Found {
    /// Adds [`BEST_BASELINE`]: for every world with a plan the rows of the baseline that was best on its validation days. Without one,
    /// the best of what is left would not be a baseline worth beating.
    pub fn name_best_baseline(&mut self) {
        let mut best = paired::best_baselines(&self.validation);
        best.retain(|world, _| !self.worlds_without_plan.contains(world));
        let is_best = |row: &&Row| best.get(&row.world).is_some_and(|name| *name == row.report.name);
        let renamed = |r: &Row| Row {
            report: PolicyReport {
                name: BEST_BASELINE.into(),
                equals: Some(r.report.name.clone()),
                ..r.report.clone()
            },
            ..r.clone()
        };
        let rows: Vec<Row> = self.rows.iter().filter(is_best).map(renamed).collect();
        self.rows.extend(rows);
    }

    /// Adds [`CHOSEN`]: for every world and seed the rows of the variant whose run was best on its validation days, the first
    /// one if several are.
    pub fn choose(&mut self, curves: &[Curve]) {
        let mut best: HashMap<(&str, u64), &Curve> = HashMap::new();
        for curve in curves.iter().filter(|c| c.best_share.is_some()) {
            let chosen = best.entry((&curve.world, curve.seed)).or_insert(curve);
            if curve.best_share > chosen.best_share {
                *chosen = curve;
            }
        }
        let is_chosen = |row: &&Row| {
            let run = row.seed.and_then(|seed| best.get(&(row.world.as_str(), seed)));
            run.is_some_and(|run| run.variant == row.report.name)
        };
        let rows = self.rows.iter().filter(is_chosen);
        let rows: Vec<Row> = rows
            .map(|r| Row { report: PolicyReport { name: CHOSEN.into(), ..r.report.clone() }, ..r.clone() })
            .collect();
        self.rows.extend(rows);
    }
}
