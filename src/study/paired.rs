//! Paired differences between two policies: on the same days, in the same worlds.
//!
//! Worlds are the independent draws. A difference is therefore the mean over worlds of the mean over a world's days and seeds, and
//! its interval is Student's over the worlds. Shares of two policies on one day are strongly correlated; their difference removes
//! that.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::rows::{CALM, Row, Volatility};
use super::statistics::{interval, mean};

/// Difference of one policy to another, in points of share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub policy: String,
    pub against: String,
    /// `all`, or a quartile of the days' volatility.
    pub days: String,
    pub points: f64,
    /// 95 % interval; `null` for a single world.
    pub interval: Option<[f64; 2]>,
    pub worlds: BTreeMap<String, f64>,
    /// Number of days averaged.
    pub count: usize,
}

impl Difference {
    /// Returns `better` or `worse` if the interval excludes 0, else `level`.
    pub fn decision(&self) -> &'static str {
        match self.interval {
            Some([low, _]) if low > 0.0 => "better",
            Some([_, high]) if high < 0.0 => "worse",
            _ => "level",
        }
    }
}

/// A day of a world.
type Day<'a> = (&'a str, usize);

/// Returns the mean over the seeds of a policy's share on each day, without stress.
fn shares<'a>(rows: &'a [Row], policy: &str) -> BTreeMap<Day<'a>, f64> {
    let mut found: BTreeMap<Day, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|r| r.report.name == policy && r.stress == CALM) {
        if let Some(share) = row.report.share {
            found.entry((&row.world, row.day)).or_default().push(share);
        }
    }
    found.into_iter().map(|(day, shares)| (day, mean(&shares))).collect()
}

/// Compares two policies on the days that both were replayed on and that `wanted` accepts; `None` where there is no such day.
pub fn difference(
    rows: &[Row],
    (policy, against): (&str, &str),
    label: &str,
    wanted: &dyn Fn(&str, usize) -> bool,
) -> Option<Difference> {
    let (ours, theirs) = (shares(rows, policy), shares(rows, against));
    let mut by_world: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (day, share) in ours.iter().filter(|((world, day), _)| wanted(world, *day)) {
        if let Some(other) = theirs.get(day) {
            by_world.entry(day.0.to_owned()).or_default().push(100.0 * (share - other));
        }
    }
    let count = by_world.values().map(Vec::len).sum();
    let worlds: BTreeMap<String, f64> = by_world.into_iter().map(|(world, points)| (world, mean(&points))).collect();
    let means: Vec<f64> = worlds.values().copied().collect();
    (!means.is_empty()).then(|| Difference {
        policy: policy.to_owned(),
        against: against.to_owned(),
        days: label.to_owned(),
        points: mean(&means),
        interval: interval(&means),
        worlds,
        count,
    })
}

/// Returns the quartile of each day's volatility, from 0, the calmest.
pub fn quartiles(volatility: &[Volatility]) -> BTreeMap<(String, usize), usize> {
    let mut days: Vec<&Volatility> = volatility.iter().collect();
    days.sort_by(|a, b| a.volatility.total_cmp(&b.volatility));
    let n = days.len().max(1);
    days.into_iter().enumerate().map(|(i, v)| ((v.world.clone(), v.day), 4 * i / n)).collect()
}

/// Returns for each world the baseline with the best mean share on its validation days.
pub fn best_baselines(validation: &[Row]) -> BTreeMap<String, String> {
    let baselines = validation.iter().filter(|r| r.report.kind == crate::evaluate::Kind::Baseline);
    let names: BTreeSet<&str> = baselines.map(|r| r.report.name.as_str()).collect();
    let mut best: BTreeMap<String, (f64, &str)> = BTreeMap::new();
    for name in names {
        let mut worlds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for ((world, _), share) in shares(validation, name) {
            worlds.entry(world).or_default().push(share);
        }
        for (world, shares) in worlds {
            let share = mean(&shares);
            let known = best.entry(world.to_owned()).or_insert((share, name));
            if share > known.0 {
                *known = (share, name);
            }
        }
    }
    best.into_iter().map(|(world, (_, name))| (world, name.to_owned())).collect()
}
