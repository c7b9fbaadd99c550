//! Summary of the rows: means over worlds, days and seeds, with their spread.
//!
//! Worlds are the independent draws. A policy's result is therefore the mean of its worlds' means (over seeds and reported
//! days), and the interval is Student's over the worlds' means, because seeds and days of one world are correlated. With a
//! single world the interval is over the seeds and says nothing about other worlds.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::evaluate::Kind;
use crate::policy::baselines::is_classical;

use super::found::{BEST_BASELINE, Found};
use super::frontier::HindsightPoint;
use super::paired::{self, Difference};
use super::rows::{CALM, Row};
use super::statistics::{interval, mean, sd};

/// Results of one policy over all worlds, without stress. Shares and gaps are fractions of 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicySummary {
    pub policy: String,
    pub kind: Kind,
    pub mean_share: f64,
    /// Sample standard deviation over worlds x seeds of the mean over days; `null` for a single one.
    pub sd: Option<f64>,
    /// 95 % interval of the mean.
    pub interval: Option<[f64; 2]>,
    pub worst_world: String,
    pub worst_share: f64,
    /// Mean share by world.
    pub worlds: BTreeMap<String, f64>,
    pub mean_gap: f64,
    /// 1 - mean gap / mean gap of the baseline with the highest mean share, over the worlds with a plan.
    pub gap_closed_best: Option<f64>,
    /// The same against the better of pid and the dual-descent baselines.
    pub gap_closed_classical: Option<f64>,
    /// Worlds with a plan in which it is above pid and the dual-descent baselines.
    pub above_classical: Option<usize>,
    /// Number of trained runs behind the results.
    pub runs: usize,
    pub shortage_rate: f64,
    /// Auction revenue in minor units, mean per day.
    pub auction_revenue: f64,
    pub j: f64,
    /// Mean deviation from the planned curves, and mean roughness of delivery.
    pub curve_deviation: Option<f64>,
    pub roughness: Option<f64>,
}

/// A point on the frontier of shortage and auction revenue; means over worlds and days.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontierPoint {
    /// `hindsight`, or the name of a variant.
    pub policy: String,
    /// Weight of delivery.
    pub weight: f64,
    pub shortage_rate: f64,
    /// Minor units per day.
    pub auction_revenue: f64,
    pub mean_share: Option<f64>,
}

/// All results of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Values that plan and policies saw, and values that everything is counted with.
    pub told: String,
    pub judged: String,
    pub contracts_declared: bool,
    pub worlds: Vec<String>,
    /// Worlds whose plan could not be made. Baselines are not compared with there, because those that need a plan are missing.
    pub worlds_without_plan: Vec<String>,
    /// The baseline that [`PolicySummary::gap_closed_best`] refers to.
    pub best_baseline: Option<String>,
    /// The baseline that [`PolicySummary::gap_closed_classical`] refers to.
    pub classical: Option<String>,
    /// Policies, best mean share first.
    pub policies: Vec<PolicySummary>,
    /// Mean share of every policy by stress; `none` is without stress.
    pub stresses: BTreeMap<String, BTreeMap<String, f64>>,
    /// Frontier; empty where the study asks for none.
    pub frontier: Vec<FrontierPoint>,
    /// Differences of learned policies and the informed reference to the best baseline and to the untrained policy, without
    /// stress.
    pub differences: Vec<Difference>,
}

/// Rows of one policy under one stress that have a share.
struct Group<'a>(Vec<(&'a Row, f64)>);

impl<'a> Group<'a> {
    fn of(rows: &'a [Row], policy: &str, stress: &str) -> Self {
        let mine = rows.iter().filter(|r| r.report.name == policy && r.stress == stress);
        Self(mine.filter_map(|r| Some((r, r.report.share?))).collect())
    }

    /// Returns the mean over the days by world and seed.
    fn runs(&self) -> BTreeMap<(&'a str, Option<u64>), f64> {
        let mut days: BTreeMap<(&str, Option<u64>), Vec<f64>> = BTreeMap::new();
        for (row, share) in &self.0 {
            days.entry((&row.world, row.seed)).or_default().push(*share);
        }
        days.into_iter().map(|(key, shares)| (key, mean(&shares))).collect()
    }

    /// Returns the mean over seeds and days by world.
    fn worlds(&self) -> BTreeMap<String, f64> {
        let mut seeds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for ((world, _), share) in self.runs() {
            seeds.entry(world.to_owned()).or_default().push(share);
        }
        seeds.into_iter().map(|(world, shares)| (world, mean(&shares))).collect()
    }

    fn mean_of(&self, f: fn(&Row) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.0.iter().filter_map(|(row, _)| f(row)).collect();
        (!values.is_empty()).then(|| mean(&values))
    }

    fn mean(&self) -> Option<f64> {
        let worlds: Vec<f64> = self.worlds().into_values().collect();
        (!worlds.is_empty()).then(|| mean(&worlds))
    }
}

/// Returns the hindsight points by weight, then the variants.
fn frontier(points: &[HindsightPoint], policies: &[PolicySummary], weights: &[(String, f64)]) -> Vec<FrontierPoint> {
    if points.is_empty() {
        return vec![];
    }
    let mut all: Vec<f64> = points.iter().map(|p| p.weight).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let hindsight = all.into_iter().map(|weight| {
        let mine: Vec<&HindsightPoint> = points.iter().filter(|p| p.weight == weight).collect();
        let over = |f: fn(&HindsightPoint) -> f64| mean(&mine.iter().map(|p| f(p)).collect::<Vec<_>>());
        let shares: Vec<f64> = mine.iter().filter_map(|p| p.share).collect();
        FrontierPoint {
            policy: "hindsight".into(),
            weight,
            shortage_rate: over(|p| p.shortage_rate),
            auction_revenue: over(|p| p.auction_revenue),
            mean_share: (!shares.is_empty()).then(|| mean(&shares)),
        }
    });
    let trained = weights.iter().filter_map(|(name, weight)| {
        let p = policies.iter().find(|p| p.policy == *name)?;
        Some(FrontierPoint {
            policy: name.clone(),
            weight: *weight,
            shortage_rate: p.shortage_rate,
            auction_revenue: p.auction_revenue,
            mean_share: Some(p.mean_share),
        })
    });
    hindsight.chain(trained).collect()
}

impl Summary {
    /// Summarises the results; `weights` are the delivery weights of the variants.
    pub fn of(found: &Found, weights: &[(String, f64)]) -> Self {
        let rows = &found.rows;
        let mut names: Vec<(&str, Kind)> = Vec::new();
        let mut worlds: Vec<String> = Vec::new();
        let mut stresses: Vec<&str> = Vec::new();
        for row in rows {
            if !names.iter().any(|(name, _)| *name == row.report.name) {
                names.push((&row.report.name, row.report.kind));
            }
            if !worlds.contains(&row.world) {
                worlds.push(row.world.clone());
            }
            if !stresses.contains(&row.stress.as_str()) {
                stresses.push(&row.stress);
            }
        }
        let mut policies: Vec<PolicySummary> =
            names.iter().filter_map(|&(name, kind)| PolicySummary::of(rows, name, kind)).collect();
        policies.sort_by(|a, b| b.mean_share.total_cmp(&a.mean_share));
        let without = &found.worlds_without_plan;
        let baselines = policies.iter().filter(|p| p.kind == Kind::Baseline && p.policy != BEST_BASELINE);
        let mut baselines: Vec<(f64, PolicySummary)> =
            baselines.filter_map(|p| Some((p.planned_share(without)?, p.clone()))).collect();
        baselines.sort_by(|a, b| b.0.total_cmp(&a.0));
        let baselines: Vec<PolicySummary> = baselines.into_iter().map(|(_, p)| p).collect();
        let best = baselines.first();
        let classical: Vec<&PolicySummary> = baselines.iter().filter(|p| is_classical(&p.policy)).collect();
        for p in &mut policies {
            let share = p.planned_share(without);
            let closed = |than: &PolicySummary| {
                let gap = 1.0 - than.planned_share(without)?;
                (gap > 0.0).then_some(1.0 - (1.0 - share?) / gap)
            };
            p.gap_closed_best = best.and_then(closed);
            p.gap_closed_classical = classical.first().copied().and_then(closed);
            let above = |(world, share): &(&String, &f64)| {
                !without.contains(world)
                    && classical.iter().all(|c| c.worlds.get(*world).is_none_or(|other| *share > other))
            };
            p.above_classical = (!classical.is_empty()).then(|| p.worlds.iter().filter(above).count());
        }
        let (best, classical) = (best.map(|b| b.policy.clone()), classical.first().map(|c| c.policy.clone()));
        let of_stress = |stress: &str| {
            let shares = names.iter().filter_map(|(n, _)| Some(((*n).to_owned(), Group::of(rows, n, stress).mean()?)));
            (stress.to_owned(), shares.collect())
        };
        let frontier = frontier(&found.frontier, &policies, weights);
        let (told, judged) = rows.first().map(|row| (row.told.clone(), row.judged.clone())).unwrap_or_default();
        Self {
            told,
            judged,
            contracts_declared: rows.iter().any(|row| row.contracts_declared),
            worlds,
            frontier,
            differences: differences(found, &names),
            worlds_without_plan: found.worlds_without_plan.clone(),
            best_baseline: best,
            classical,
            policies,
            stresses: stresses.into_iter().map(of_stress).collect(),
        }
    }
}

/// Returns the differences of all policies but baselines and the oracle to the best baseline, over all days and by quartile of their
/// volatility, and of chosen policies to their untrained ones.
fn differences(found: &Found, names: &[(&str, Kind)]) -> Vec<Difference> {
    let quartiles = paired::quartiles(&found.volatility);
    let mut differences = Vec::new();
    for (name, kind) in names.iter().filter(|(_, kind)| !matches!(kind, Kind::Baseline | Kind::Oracle)) {
        let against_best = (*name, BEST_BASELINE);
        differences.extend(paired::difference(&found.rows, against_best, "all", &|_, _| true));
        if matches!(kind, Kind::Trained | Kind::Informed) && quartiles.len() >= 4 {
            for quartile in 0..4 {
                let within = |world: &str, day: usize| quartiles.get(&(world.to_owned(), day)) == Some(&quartile);
                let label = format!("volatility quartile {}", quartile + 1);
                differences.extend(paired::difference(&found.rows, against_best, &label, &within));
            }
        }
        if *kind == Kind::Trained {
            let untrained = format!("{name}:untrained");
            differences.extend(paired::difference(&found.rows, (name, &untrained), "all", &|_, _| true));
        }
    }
    differences
}

impl PolicySummary {
    /// Returns the mean share over the worlds but those `without` a plan; `None` if there is no other.
    fn planned_share(&self, without: &[String]) -> Option<f64> {
        let worlds = self.worlds.iter().filter(|(world, _)| !without.contains(world));
        let shares: Vec<f64> = worlds.map(|(_, share)| *share).collect();
        (!shares.is_empty()).then(|| mean(&shares))
    }

    /// Summarises one policy; `None` if none of its days has a share.
    fn of(rows: &[Row], policy: &str, kind: Kind) -> Option<Self> {
        let group = Group::of(rows, policy, CALM);
        let mean_share = group.mean()?;
        let runs: Vec<f64> = group.runs().into_values().collect();
        let worlds = group.worlds();
        let means: Vec<f64> = worlds.values().copied().collect();
        let (worst_world, worst_share) = worlds.iter().min_by(|a, b| a.1.total_cmp(b.1))?;
        let over = |f: fn(&Row) -> f64| mean(&group.0.iter().map(|(row, _)| f(row)).collect::<Vec<_>>());
        Some(Self {
            policy: policy.to_owned(),
            kind,
            mean_share,
            sd: sd(&runs),
            interval: interval(if means.len() > 1 { &means } else { &runs }),
            worst_world: worst_world.clone(),
            worst_share: *worst_share,
            mean_gap: 1.0 - mean_share,
            gap_closed_best: None,
            gap_closed_classical: None,
            above_classical: None,
            runs: if matches!(kind, Kind::Baseline | Kind::Oracle) { 0 } else { runs.len() },
            shortage_rate: over(|r| r.report.shortage_rate),
            auction_revenue: over(|r| r.report.auction_revenue),
            j: over(|r| r.report.j),
            curve_deviation: group.mean_of(|r| r.report.curve_deviation),
            roughness: group.mean_of(|r| r.report.roughness),
            worlds,
        })
    }
}
