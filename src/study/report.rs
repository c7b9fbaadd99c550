//! The study's table: Markdown that is also readable as plain text.

use std::fmt::Write as _;

use crate::evaluate::Kind;
use crate::evaluate::table::DECLARED;

use super::config::{CHOSEN, Study};
use super::found::BEST_BASELINE;
use super::learning::{Curve, MARKS};
use super::paired::Difference;
use super::rows::CALM;
use super::statistics::median;
use super::summary::{FrontierPoint, PolicySummary, Summary};

/// Renders a Markdown table with aligned columns; all but the first are right-aligned.
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..header.len())
        .map(|i| rows.iter().map(|r| r[i].chars().count()).chain([header[i].chars().count(), 3]).max().unwrap_or(3))
        .collect();
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, &w))| if i == 0 { format!("{cell:w$}") } else { format!("{cell:>w$}") })
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(i, &w)| if i == 0 { "-".repeat(w) } else { format!("{}:", "-".repeat(w - 1)) })
        .collect();
    let mut text = line(header) + &line(&rule);
    rows.iter().for_each(|row| text += &line(row));
    text
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(ToOwned::to_owned).to_vec()
}

fn percent(share: f64) -> String {
    format!("{:.2}", 100.0 * share)
}

fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn name(p: &PolicySummary) -> String {
    if p.kind == Kind::Trained { format!("{} *", p.policy) } else { p.policy.clone() }
}

/// Renders the whole report.
pub fn render(title: &str, study: &Study, summary: &Summary, curves: &[Curve]) -> String {
    let mut text = format!("# Study: {title}\n\n");
    let _ = writeln!(
        text,
        "{} worlds, {} trained variants, {} seeds. Shares are percent of the hindsight bound on reported days, which \
         nothing was trained, tuned or chosen on; differences are points. `*`: trained.\n",
        summary.worlds.len(),
        study.variants.len(),
        study.seeds.len(),
    );
    let _ = writeln!(
        text,
        "Values that plan and policies were told: {}; values that everything is counted with: {}.\n",
        summary.told, summary.judged
    );
    if summary.contracts_declared {
        let _ = writeln!(text, "{DECLARED}\n");
    }
    if study.choose {
        let _ =
            writeln!(text, "`{CHOSEN}`: of each world and seed the variant that was best on its validation days.\n");
    }
    if !summary.worlds_without_plan.is_empty() {
        let _ = writeln!(
            text,
            "Without a plan: {}. The baselines that need one are missing there, so these worlds have no `{BEST_BASELINE}` and count neither in \
             differences to it nor in the gap closed. The same command makes the plan again.\n",
            summary.worlds_without_plan.join(", ")
        );
    }
    policies(&mut text, summary);
    differences(&mut text, summary);
    worlds(&mut text, summary);
    stresses(&mut text, summary);
    frontier(&mut text, summary);
    learning(&mut text, study, curves);
    text
}

/// Index of the column of the gap closed against the better of pid and the dual-descent baselines.
const CLASSICAL: usize = 6;

fn policies(text: &mut String, summary: &Summary) {
    let best = summary.best_baseline.as_deref().unwrap_or("-");
    let classical = summary.classical.as_deref().unwrap_or("-");
    let mut header = vec![
        "policy".to_owned(),
        "mean".to_owned(),
        "95 % interval".to_owned(),
        "sd".to_owned(),
        "worst world".to_owned(),
        format!("of {best}'s gap closed"),
        format!("of {classical}'s gap closed"),
        "worlds above".to_owned(),
        "shortage %".to_owned(),
        "off curve %".to_owned(),
        "roughness".to_owned(),
        "auction revenue".to_owned(),
        "J".to_owned(),
    ];
    let planned = |world: &&String| !summary.worlds_without_plan.contains(world);
    let row = |p: &PolicySummary| {
        vec![
            name(p),
            percent(p.mean_share),
            or_dash(p.interval, |[low, high]| format!("{}..{}", percent(low), percent(high))),
            or_dash(p.sd, percent),
            format!("{} ({})", percent(p.worst_share), p.worst_world),
            or_dash(p.gap_closed_best, |c| format!("{:.0} %", 100.0 * c)),
            or_dash(p.gap_closed_classical, |c| format!("{:.0} %", 100.0 * c)),
            or_dash(p.above_classical, |n| format!("{n}/{}", p.worlds.keys().filter(planned).count())),
            percent(p.shortage_rate),
            or_dash(p.curve_deviation, percent),
            or_dash(p.roughness, |r| format!("{r:.2}")),
            format!("{:.0}", p.auction_revenue),
            format!("{:.0}", p.j),
        ]
    };
    let mut rows: Vec<Vec<String>> = summary.policies.iter().map(row).collect();
    if best == classical {
        header.remove(CLASSICAL);
        rows.iter_mut().for_each(|row| drop(row.remove(CLASSICAL)));
    }
    text.push_str(&table(&header, &rows));
    text.push_str(
        "\nMean over worlds of the mean over seeds and reported days; sd over worlds x seeds; the interval is Student's over \
         the worlds' means (over the seeds where there is one world). Gap closed = 1 - mean gap / mean gap of the baseline \
         named: the best one, and the better of pid and the dual-descent ones; `worlds above` counts the worlds in which \
         the mean is above all of the latter. Off curve: mean distance of delivered / owed from the planned curve, by quarter \
         hours; roughness: mean change of delivery between quarter hours beyond the planned one, over the planned delivery. \
         Revenue and J: minor units a day.\n",
    );
}

fn differences(text: &mut String, summary: &Summary) {
    if summary.differences.is_empty() {
        return;
    }
    let header = strings(["difference", "against", "days", "n", "points", "95 % interval", "decision"]);
    let row = |d: &Difference| {
        vec![
            d.policy.clone(),
            d.against.clone(),
            d.days.clone(),
            d.count.to_string(),
            format!("{:+.3}", d.points),
            or_dash(d.interval, |[low, high]| format!("{low:+.3}..{high:+.3}")),
            d.decision().to_owned(),
        ]
    };
    text.push('\n');
    text.push_str(&table(&header, &summary.differences.iter().map(row).collect::<Vec<_>>()));
    let _ = writeln!(
        text,
        "\nPaired: the same days for both, mean over a world's days and seeds, then over worlds; the interval is Student's over the \
         worlds. `{BEST_BASELINE}`: of each world the baseline that was best on its validation days, named before a reported day was \
         opened. Quartiles of the reported days by how far their hourly volume strays from the other days of their world, calmest \
         first; n: days."
    );
}

fn worlds(text: &mut String, summary: &Summary) {
    let mut header = strings(["share by world"]);
    header.extend(summary.worlds.iter().cloned());
    let row = |p: &PolicySummary| {
        let mut cells = vec![name(p)];
        cells.extend(summary.worlds.iter().map(|w| or_dash(p.worlds.get(w), |s| percent(*s))));
        cells
    };
    text.push('\n');
    text.push_str(&table(&header, &summary.policies.iter().map(row).collect::<Vec<_>>()));
}

fn stresses(text: &mut String, summary: &Summary) {
    if summary.stresses.len() < 2 {
        return;
    }
    // One row per stress, because there are more stresses than policies.
    let mut header = strings(["share under stress"]);
    header.extend(summary.policies.iter().map(name));
    let names = std::iter::once(CALM).chain(summary.stresses.keys().map(String::as_str).filter(|s| *s != CALM));
    let rows: Vec<Vec<String>> = names
        .map(|stress| {
            let shares = &summary.stresses[stress];
            let cells = summary.policies.iter().map(|p| or_dash(shares.get(&p.policy), |s| percent(*s)));
            std::iter::once(stress.to_owned()).chain(cells).collect()
        })
        .collect();
    text.push('\n');
    text.push_str(&table(&header, &rows));
}

fn frontier(text: &mut String, summary: &Summary) {
    if summary.frontier.is_empty() {
        return;
    }
    let header = strings(["frontier", "delivery weight", "shortage %", "auction revenue", "share"]);
    let row = |p: &FrontierPoint| {
        vec![
            p.policy.clone(),
            p.weight.to_string(),
            percent(p.shortage_rate),
            format!("{:.0}", p.auction_revenue),
            or_dash(p.mean_share, percent),
        ]
    };
    text.push('\n');
    text.push_str(&table(&header, &summary.frontier.iter().map(row).collect::<Vec<_>>()));
    text.push_str(
        "\nHindsight: served with the prices of the bound's solver where every penalty is weighted so; variants by their \
         reward.contract_delivery. Shares count the true penalties.\n",
    );
}

fn learning(text: &mut String, study: &Study, curves: &[Curve]) {
    if curves.is_empty() {
        return;
    }
    let mut header = strings(["learning", "runs", "best validation"]);
    for mark in MARKS {
        let mark = 100.0 * mark;
        header.extend([format!("reach {mark:.1}"), format!("samples to {mark:.1}"), format!("seconds to {mark:.1}")]);
    }
    header.extend(strings(["samples", "seconds", "lag mean", "lag max"]));
    let mut rows = Vec::new();
    for variant in &study.variants {
        let mine: Vec<&Curve> = curves.iter().filter(|c| c.variant == variant.name).collect();
        if mine.is_empty() {
            continue;
        }
        let mean = |f: fn(&Curve) -> f64| mine.iter().map(|c| f(c)).sum::<f64>() / mine.len() as f64;
        let best: Vec<f64> = mine.iter().filter_map(|c| c.best_share).collect();
        let best = (!best.is_empty()).then(|| best.iter().sum::<f64>() / best.len() as f64);
        let mut cells = vec![variant.name.clone(), mine.len().to_string(), or_dash(best, percent)];
        for i in 0..MARKS.len() {
            let reached: Vec<_> = mine.iter().filter_map(|c| c.reached[i]).collect();
            let thousands = |v: f64| format!("{:.0}k", v / 1000.0);
            cells.push(format!("{}/{}", reached.len(), mine.len()));
            cells.push(or_dash(median(reached.iter().map(|r| r.samples).collect()), thousands));
            cells.push(or_dash(median(reached.iter().map(|r| r.seconds).collect()), |s| format!("{s:.1}")));
        }
        cells.push(format!("{:.0}k", mean(|c| c.samples as f64) / 1000.0));
        cells.push(format!("{:.1}", mean(|c| c.seconds)));
        cells.push(format!("{:.1}", mean(|c| c.mean_lag)));
        cells.push(mine.iter().map(|c| c.max_lag).max().unwrap_or(0).to_string());
        rows.push(cells);
    }
    text.push('\n');
    text.push_str(&table(&header, &rows));
    text.push_str(
        "\nSamples and seconds to a validation share are medians over the runs that reached it, at the first evaluation \
         that did; whole samples, seconds and lag (updates by which the parameters behind a block were older than the \
         learner's) are means over the runs.\n",
    );
}
