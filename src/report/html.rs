//! `report.html`: the report for people, one file that needs no network and no script.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::evaluate::{DayReport, Decision, Kind, PolicyReport, familiar};
use crate::plan::GRID;

use super::svg::{self, Chart, escape};
use super::{CHOSEN, ReportedDay, RunReport};

const STYLE: &str = include_str!("page.css");
/// Contracts whose delivery is drawn, by what they are owed.
const MOST_CONTRACTS: usize = 24;

/// What else lies in the run directory.
pub struct Surroundings {
    pub name: String,
    manifest: Value,
    metrics: Vec<Value>,
    config: String,
}

impl Surroundings {
    /// Reads what is there of a run directory; what is not is left out of the page.
    pub fn read(run: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(run.join(name)).unwrap_or_default();
        let canonical = run.canonicalize().unwrap_or_else(|_| run.to_owned());
        Self {
            name: canonical.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            manifest: serde_json::from_str(&text("manifest.json")).unwrap_or_default(),
            // A disk that was full for a while leaves part of a line.
            metrics: text("metrics.jsonl").lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            config: text("config.toml"),
        }
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.metrics.iter().filter(move |line| line["kind"] == kind)
    }
}

/// Renders the page.
pub fn render(report: &RunReport, around: &Surroundings) -> String {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{0} - admix</title><style>{STYLE}</style><h1>{0}</h1>",
        escape(&around.name)
    );
    let m = &around.manifest;
    let outcome = &m["outcome"];
    let _ = write!(
        page,
        "<p class=sub>Started {}, ended {} ({}) after {:.0} s: {} updates, {} samples. Seed {}, {} mode on {}, admix {}.</p>",
        text(&m["started"]),
        text(&m["ended"]),
        text(&outcome["reason"]),
        outcome["seconds"].as_f64().unwrap_or(0.0),
        outcome["updates"],
        outcome["samples"],
        m["seed"],
        text(&m["mode"]),
        text(&m["device"]),
        escape(&report.admix),
    );
    verdict(&mut page, report);
    table(&mut page, report);
    learning(&mut page, report, around);
    frontier(&mut page, report);
    difference(&mut page, report);
    delivery(&mut page, report);
    timing(&mut page, around);
    let _ = write!(page, "<details><summary>Configuration</summary><pre>{}</pre></details>", escape(&around.config));
    page
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or("-"))
}

/// The best baseline: of the verdict, else of the validation days.
fn best_baseline(report: &RunReport) -> Option<&str> {
    let judged = report.judgement.as_ref().map(|j| j.verdict.against.as_str());
    judged.or(report.validation.best_baseline.as_deref())
}

fn verdict(page: &mut String, report: &RunReport) {
    let Some(judgement) = &report.judgement else {
        page.push_str("<p>There were no reported days (<code>data.test</code>), so there is no verdict.</p>");
        return;
    };
    let word = match judgement.verdict.decision {
        Decision::Better => "better",
        Decision::Level => "level",
        Decision::Worse => "worse",
    };
    let _ = write!(page, "<div class=\"verdict {word}\"><b>{word}</b>");
    for sentence in judgement.sentences().lines() {
        let _ = write!(page, "<p>{}</p>", escape(sentence));
    }
    page.push_str("</div>");
}

/// A policy over all reported days.
struct Mean {
    name: String,
    kind: Kind,
    equals: bool,
    share: Option<f64>,
    j: f64,
    shortage: f64,
    revenue: f64,
}

fn means(days: &[ReportedDay]) -> Vec<Mean> {
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

fn table(page: &mut String, report: &RunReport) {
    if report.days.is_empty() {
        return;
    }
    let best = best_baseline(report);
    let days: Vec<DayReport> = report.days.iter().map(|day| day.report.clone()).collect();
    let _ = write!(page, "<h2>{}</h2>", familiar::heading(&days));
    for sentence in familiar::title(&days).lines().filter(|line| !line.is_empty()) {
        let _ = write!(page, "<p>{}</p>", escape(sentence));
    }
    page.push_str("<div class=wide><table><tr><th>policy<th>mean share");
    for day in &report.days {
        let _ = write!(page, "<th>{}", escape(&day.report.log));
    }
    page.push_str("<th>J<th>shortage<th>auction revenue</tr>");
    let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.2}", 100.0 * s));
    for row in means(&report.days) {
        let class = if row.name == CHOSEN {
            " class=own"
        } else if Some(row.name.as_str()) == best {
            " class=base"
        } else {
            ""
        };
        let mut name = escape(&row.name);
        if row.equals {
            name += " = start";
        }
        if Some(row.name.as_str()) == best {
            name += " (best baseline)";
        }
        let _ = write!(page, "<tr{class}><td>{name}<td>{}", percent(row.share));
        for day in &report.days {
            let share = day.report.policies.iter().find(|p| p.name == row.name).and_then(|p| p.share);
            let _ = write!(page, "<td>{}", percent(share));
        }
        let _ = write!(page, "<td>{:.0}<td>{:.2} %<td>{:.0}</tr>", row.j, 100.0 * row.shortage, row.revenue);
    }
    page.push_str(
        "</table></div><p class=note>Shares are percent of the hindsight bound; J and revenue are minor units, mean per day. \
         start: before the first update; untrained: planner and controller without anything learned; last: after the last \
         update.</p>",
    );
}

fn learning(page: &mut String, report: &RunReport, around: &Surroundings) {
    let points: Vec<(f64, f64)> = around
        .of_kind("evaluation")
        .filter_map(|line| Some((line["updates"].as_f64()?, 100.0 * line["share"].as_f64()?)))
        .collect();
    let Some(first) = points.first().copied() else { return };
    let share_of =
        |name: &str| report.validation.policies.iter().find(|p| p.name == name)?.share.map(|share| 100.0 * share);
    let start = share_of(&format!("{CHOSEN}:start")).unwrap_or(first.1);
    let best = report.validation.best_baseline.as_deref();
    let baseline = best.and_then(share_of);
    let ys = points.iter().map(|p| p.1).chain([start]).chain(baseline);
    let mut chart = Chart::over(300.0, points.iter().map(|p| p.0), ys);
    chart.axes("updates", "share of the bound, %");
    chart.level("start", start);
    if let Some(level) = baseline {
        chart.level("base", level);
    }
    chart.line("own", &points);
    let chosen = report.chosen_updates as f64;
    if let Some(&at) = points.iter().find(|p| p.0 == chosen) {
        chart.dot("own", at, &format!("chosen: {:.3} after {chosen:.0} updates", at.1), Some("chosen"));
    }
    let _ = write!(
        page,
        "<h2>Validation</h2><div class=key><span class=own>this run</span><span class=start>its start</span>{}</div>\
         <figure>{}<figcaption>Every evaluation on {}. The chosen parameters are those of update {}.</figcaption></figure>",
        best.map_or_else(String::new, |name| format!("<span class=base>{}</span>", escape(name))),
        chart.finish("validation share by updates"),
        escape(&report.validation.logs.join(", ")),
        report.chosen_updates,
    );
}

/// Policies this far below the chosen one would flatten the chart.
const NEAR: f64 = 0.05;

fn frontier(page: &mut String, report: &RunReport) {
    let all = means(&report.days);
    let Some(own) = all.iter().find(|m| m.name == CHOSEN).and_then(|m| m.share) else { return };
    let best = best_baseline(report);
    let (near, far): (Vec<&Mean>, Vec<&Mean>) =
        all.iter().partition(|m| m.share.is_some_and(|share| share > own - NEAR));
    let at = |m: &Mean| (100.0 * m.shortage, m.revenue);
    let mut chart = Chart::over(320.0, near.iter().map(|m| at(m).0), near.iter().map(|m| at(m).1));
    chart.axes("shortage, %", "auction revenue, minor units a day");
    for m in &near {
        let class = if m.name == CHOSEN {
            "own"
        } else if Some(m.name.as_str()) == best {
            "base"
        } else {
            "other"
        };
        let title = format!("{}: shortage {:.2} %, revenue {:.0}", m.name, at(m).0, at(m).1);
        // Names beside every dot would cover each other.
        let label = (class != "other" || m.kind == Kind::Oracle).then_some(m.name.as_str());
        chart.dot(class, at(m), &title, label);
    }
    let left_out: Vec<String> = far.iter().map(|m| escape(&m.name)).collect();
    let note =
        if left_out.is_empty() { String::new() } else { format!(" Too far off to be drawn: {}.", left_out.join(", ")) };
    let _ = write!(
        page,
        "<h2>Shortage against revenue</h2><figure>{}<figcaption>Up and to the left is better; the unlabelled dots say their names \
         under the pointer.{note}</figcaption></figure>",
        chart.finish("shortage against auction revenue"),
    );
}

fn difference(page: &mut String, report: &RunReport) {
    let Some(best) = best_baseline(report).filter(|_| !report.days.is_empty()) else { return };
    let _ = write!(page, "<h2>Where it differs from {}</h2>", escape(best));
    for day in &report.days {
        let (Some(own), Some(other)) = (day.hours.get(CHOSEN), day.hours.get(best)) else { continue };
        let bars: Vec<(f64, f64)> =
            own.iter().zip(other).enumerate().map(|(h, (a, b))| (h as f64, a[0] - b[0])).collect();
        let mut chart =
            Chart::over(220.0, [-0.5, bars.len() as f64 - 0.5].into_iter(), bars.iter().map(|b| b.1).chain([0.0]));
        chart.axes("hour of the day (those with requests)", "J gained, minor units");
        chart.bars(&bars);
        let total: f64 = bars.iter().map(|b| b.1).sum();
        let _ = write!(
            page,
            "<figure>{}<figcaption>{}: J gained over {} by hour, {total:+.1} in all. Delivery is credited at the bound's prices, so \
             that showing a contract ad earlier or later counts only by what it displaced.</figcaption></figure>",
            chart.finish("gain by hour"),
            escape(&day.report.log),
            escape(best),
        );
        let row = |name: &str| day.report.policies.iter().find(|p| p.name == name);
        let (Some(own), Some(other)) = (row(CHOSEN), row(best)) else { continue };
        let mut differing: Vec<_> = own
            .contracts
            .iter()
            .zip(&other.contracts)
            .filter(|(a, b)| a.delivered.min(a.owed) != b.delivered.min(b.owed))
            .collect();
        differing.sort_by_key(|(a, b)| std::cmp::Reverse(a.delivered.min(a.owed).abs_diff(b.delivered.min(b.owed))));
        if differing.is_empty() {
            page.push_str("<p class=note>Both deliver every contract alike.</p>");
            continue;
        }
        page.push_str(
            "<div class=wide><table><tr><th>contract<th>owed<th>delivered<th>by the baseline<th>difference</tr>",
        );
        for (a, b) in differing.iter().take(10) {
            let change = a.delivered as i64 - b.delivered as i64;
            let _ = write!(
                page,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{change:+}</tr>",
                a.ad_id, a.owed, a.delivered, b.delivered
            );
        }
        page.push_str("</table></div>");
    }
}

fn delivery(page: &mut String, report: &RunReport) {
    let best = best_baseline(report);
    for day in &report.days {
        let Some(own) = day.delivered.get(CHOSEN) else { continue };
        let other = best.and_then(|name| day.delivered.get(name));
        let Some(row) = day.report.policies.iter().find(|p| p.name == CHOSEN) else { continue };
        let mut order: Vec<usize> = (0..row.contracts.len()).filter(|&j| row.contracts[j].owed > 0).collect();
        order.sort_by_key(|&j| std::cmp::Reverse(row.contracts[j].owed));
        let _ = write!(
            page,
            "<h2>Delivery against plan, {}</h2><div class=key><span class=own>delivered</span><span class=plan>plan</span>{}</div>\
             <div class=tiles>",
            escape(&day.report.log),
            best.map_or_else(String::new, |name| format!("<span class=base>{}</span>", escape(name))),
        );
        for &j in order.iter().take(MOST_CONTRACTS) {
            let contract = &row.contracts[j];
            let curve = |shown: &[u32]| -> Vec<f64> {
                let cumulative = shown.iter().scan(0.0, |sum, &n| {
                    *sum += f64::from(n);
                    Some(*sum / contract.owed as f64)
                });
                std::iter::once(0.0).chain(cumulative).collect()
            };
            let mut lines = Vec::new();
            if let Some(planned) = day.planned.get(j).filter(|p| p.len() == GRID + 1) {
                lines.push(("plan", planned.clone()));
            }
            lines.extend(other.and_then(|o| o.get(j)).map(|shown| ("base", curve(shown))));
            lines.extend(own.get(j).map(|shown| ("own", curve(shown))));
            let title = format!("contract {}: {} of {}", contract.ad_id, contract.delivered, contract.owed);
            let _ = write!(
                page,
                "<figure>{}<figcaption>{}<br>{} of {} ({:.0} %)</figcaption></figure>",
                svg::small(&title, &lines),
                contract.ad_id,
                contract.delivered,
                contract.owed,
                100.0 * contract.delivered as f64 / contract.owed as f64
            );
        }
        page.push_str("</div>");
        let rest = order.len().saturating_sub(MOST_CONTRACTS);
        if rest > 0 {
            let _ = write!(page, "<p class=note>The {rest} smallest contracts are not drawn.</p>");
        }
    }
}

fn timing(page: &mut String, around: &Surroundings) {
    let Some(processes) = around.of_kind("run").filter_map(|line| line["processes"].as_array()).last() else { return };
    page.push_str(
        "<h2>Time by process</h2><div class=wide><table><tr><th>process<th>computing<th>copying<th>waiting<th></tr>",
    );
    for process in processes {
        let seconds = ["compute_s", "copy_s", "wait_s"].map(|key| process[key].as_f64().unwrap_or(0.0));
        let total: f64 = seconds.iter().sum::<f64>().max(1e-9);
        let [c, x, w] = seconds.map(|s| 100.0 * s / total);
        let _ = write!(
            page,
            "<tr><td>{}<td>{:.1} s<td>{:.1} s<td>{:.1} s<td class=bar><div class=split><i class=c style=\"width:{c:.1}%\"></i>\
             <i class=x style=\"width:{x:.1}%\"></i><i class=w style=\"width:{w:.1}%\"></i></div></tr>",
            text(&process["name"]),
            seconds[0],
            seconds[1],
            seconds[2]
        );
    }
    let outcome = &around.manifest["outcome"];
    let _ = write!(
        page,
        "</table></div><p class=note>Policy lag in updates: mean {:.1}, 95 % below {}, at most {}.</p>",
        outcome["policy_lag"]["mean"].as_f64().unwrap_or(0.0),
        outcome["policy_lag"]["p95"],
        outcome["policy_lag"]["max"],
    );
}
