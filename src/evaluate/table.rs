//! The table of an evaluation, for people.

use std::fmt::Write as _;

use super::bootstrap::{Block, share_interval};
use super::compare::{DayReport, Kind, PolicyReport};

/// Renders days as a table: one row per policy, shares day by day and their mean, and what the mean is made of.
pub fn render(days: &[DayReport]) -> String {
    let mut text = String::new();
    if days.is_empty() {
        return text;
    }
    let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.2}", 100.0 * s));
    // Small days need their minor units' decimals.
    let decimals = if days.iter().any(|d| d.bound.ub.abs() < 1000.0) { 2 } else { 0 };
    // A day can lack a row that others have: what was really shown is not logged everywhere.
    let mut names: Vec<&PolicyReport> = Vec::new();
    for p in days.iter().flat_map(|d| &d.policies) {
        if names.iter().all(|known| known.name != p.name) {
            names.push(p);
        }
    }
    let row = |d: &DayReport, i: usize| d.policies.iter().position(|p| p.name == names[i].name);
    let width = names.iter().map(|p| p.name.len()).max().unwrap_or(0).max(14);
    let columns: Vec<String> = days.iter().map(|d| d.log.clone()).collect();
    let day_width = columns.iter().map(String::len).max().unwrap_or(0).max(9);
    let _ = write!(text, "{:width$}", "policy");
    for c in &columns {
        let _ = write!(text, "  {c:>day_width$}");
    }
    let _ = writeln!(
        text,
        "  {:>7}  {:>15}  {:>12}  {:>8}  {:>12}  {:>12}",
        "mean", "95 %", "J", "shortage", "auction rev.", "auction eCPM"
    );
    let mut rows: Vec<usize> = (0..names.len()).collect();
    let mean_share = |i: usize| mean(days.iter().filter_map(|d| d.policies[row(d, i)?].share));
    let interval = |i: usize| {
        let blocks: Vec<&[Block]> =
            days.iter().filter_map(|d| Some(d.policies[row(d, i)?].blocks.as_slice())).collect();
        share_interval(&blocks)
            .map_or_else(|| "-".to_owned(), |[low, high]| format!("{}..{}", percent(Some(low)), percent(Some(high))))
    };
    rows.sort_by(|&a, &b| mean_share(b).unwrap_or(0.0).total_cmp(&mean_share(a).unwrap_or(0.0)));
    for i in rows {
        let of = |f: fn(&PolicyReport) -> f64| {
            mean(days.iter().filter_map(|d| Some(f(&d.policies[row(d, i)?])))).unwrap_or(0.0)
        };
        let name = match names[i].kind {
            Kind::Trained => format!("{} *", names[i].name),
            Kind::Baseline | Kind::Oracle => names[i].name.clone(),
        };
        let _ = write!(text, "{name:width$}");
        for d in days {
            let _ = write!(text, "  {:>day_width$}", percent(row(d, i).and_then(|i| d.policies[i].share)));
        }
        let _ = writeln!(
            text,
            "  {:>7}  {:>15}  {:>12}  {:>7.2}%  {:>12}  {:>12.1}",
            percent(mean_share(i)),
            interval(i),
            money(of(|p| p.j), decimals),
            100.0 * of(|p| p.shortage_rate),
            money(of(|p| p.auction_revenue), decimals),
            of(|p| p.mean_auction_ecpm),
        );
    }
    let ub = mean(days.iter().map(|d| d.bound.ub)).unwrap_or(0.0);
    let _ = writeln!(
        text,
        "{:width$}{}  {:>7}  {:>15}  {:>12}",
        "upper bound",
        "  ".to_owned() + &" ".repeat((day_width + 2) * days.len() - 2),
        "100.00",
        "",
        money(ub, decimals)
    );
    text.push_str(
        "\nShares are percent of the hindsight bound, (J + S) / (UB + S); 95 %: of the mean, by bootstrap over the hours of the\n\
         days; J, revenue: minor units, mean per day.\n\
         * trained policy. The oracle knows the day's own prices; nobody can earn more than the upper bound.\n",
    );
    if let Some(stress) = days.first().and_then(|d| d.stress.as_ref()) {
        let _ = writeln!(text, "The days were altered: {stress}.");
    }
    if days.iter().any(|d| d.contracts_declared) {
        text.push_str(
            "Contracts were DECLARED by the import, they are not real: a smoke test, not a quality figure.\n",
        );
    }
    text
}

fn money(amount: f64, decimals: usize) -> String {
    format!("{amount:.decimals$}")
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (n, sum) = values.fold((0u32, 0.0), |(n, s), v| (n + 1, s + v));
    (n > 0).then(|| sum / f64::from(n))
}

/// One sentence that says whether the trained policy is worth deploying on these days.
pub fn verdict(days: &[DayReport]) -> Option<String> {
    let mean_of = |name: &str| mean(days.iter().filter_map(|d| d.policies.iter().find(|p| p.name == name)?.share));
    let first = days.first()?;
    let trained = first.policies.iter().find(|p| p.kind == Kind::Trained)?;
    let share = mean_of(&trained.name)?;
    let (best, best_share) = first
        .policies
        .iter()
        .filter(|p| p.kind == Kind::Baseline)
        .filter_map(|p| Some((p.name.as_str(), mean_of(&p.name)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    let points = 100.0 * (share - best_share);
    Some(if points.abs() < 0.005 {
        format!("The trained policy is level with the best baseline ({best}).")
    } else if points > 0.0 {
        let closed = 100.0 * (share - best_share) / (1.0 - best_share);
        format!(
            "The trained policy is {points:.2} points above the best baseline ({best}): it closes {closed:.0} % of its gap."
        )
    } else {
        format!(
            "The trained policy is {:.2} points BELOW the best baseline ({best}): it is not worth deploying. Train longer, \
             or on more days.",
            -points
        )
    })
}
