//! The table of an evaluation, as text.

use std::fmt::Write as _;

use super::bootstrap::{Block, share_interval};
use super::familiar;
use super::report::{DayReport, Kind, PolicyReport};

/// Renders days as a table: one row per policy, with shares day by day, their mean, and its components.
pub fn render(days: &[DayReport]) -> String {
    let mut text = familiar::title(days);
    if days.is_empty() {
        return text;
    }
    let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.2}", 100.0 * s));
    // Small days need decimals of minor units.
    let decimals = if days.iter().any(|d| d.bound.ub.abs() < 1000.0) { 2 } else { 0 };
    // A day can lack a row that others have: the ads shown live are not logged everywhere.
    let mut names: Vec<&PolicyReport> = Vec::new();
    for p in days.iter().flat_map(|d| &d.policies) {
        if names.iter().all(|known| known.name != p.name) {
            names.push(p);
        }
    }
    let row = |d: &DayReport, i: usize| d.policies.iter().position(|p| p.name == names[i].name);
    let width = names.iter().map(|p| label(p).len()).max().unwrap_or(0).max(14);
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
        let name = label(names[i]);
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
         * trained policy: the best on its run's validation days. NAME:start: before the run's first update; NAME:untrained: planner\n\
         and controller without anything learned; NAME:last: after the last update. The oracle knows the day's own prices; nobody can earn more than the upper bound.\n",
    );
    for sentence in conditions(days) {
        let _ = writeln!(text, "{sentence}");
    }
    text
}

/// Stated where figures are of contracts that an importer declared.
pub const DECLARED: &str =
    "Contracts were DECLARED by the import, they are not real: a smoke test, not a quality figure.";

/// Returns sentences on how days were replayed.
pub fn conditions(days: &[DayReport]) -> Vec<String> {
    let Some(day) = days.first() else { return vec![] };
    let mut sentences = vec![format!(
        "Values that plan and policies were told: {}; values that everything is counted with: {}. Seed of the rate draws: {}.",
        day.told, day.judged, day.rate_seed
    )];
    sentences.extend(day.stress.as_ref().map(|stress| format!("The days were altered: {stress}.")));
    sentences.extend(days.iter().any(|d| d.contracts_declared).then(|| DECLARED.to_owned()));
    sentences
}

/// Returns a row's name in the table.
fn label(policy: &PolicyReport) -> String {
    match (policy.kind, &policy.equals) {
        (Kind::Trained, Some(_)) => format!("{} * = start", policy.name),
        (Kind::Trained, None) => format!("{} *", policy.name),
        _ => policy.name.clone(),
    }
}

fn money(amount: f64, decimals: usize) -> String {
    format!("{amount:.decimals$}")
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (n, sum) = values.fold((0u32, 0.0), |(n, s), v| (n + 1, s + v));
    (n > 0).then(|| sum / f64::from(n))
}
