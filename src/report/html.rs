//! `report.html`: the report for human readers, one file that needs no network and no script.

use std::fmt::Write as _;

use serde_json::Value;

use crate::evaluate::table::conditions;
use crate::evaluate::{DayReport, Decision, familiar};

use super::charts;
use super::content::{CHOSEN, RunReport};
use super::means::{best_baseline, means};
use super::surroundings::Surroundings;
use super::svg::escape;

const STYLE: &str = include_str!("page.css");

/// Renders the page of a report.
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
    samples(&mut page, m);
    verdict(&mut page, report);
    table(&mut page, report);
    charts::learning(&mut page, report, around);
    charts::calibration(&mut page, around);
    charts::frontier(&mut page, report);
    charts::difference(&mut page, report);
    charts::prices(&mut page, report);
    charts::delivery(&mut page, report);
    timing(&mut page, around);
    let _ = write!(page, "<details><summary>Configuration</summary><pre>{}</pre></details>", escape(&around.config));
    page
}

/// Lists the training days that were replayed in part.
fn samples(page: &mut String, manifest: &Value) {
    for day in manifest["data"].as_array().into_iter().flatten() {
        let Some(share) = day["replayed_share"].as_f64().filter(|share| *share < 1.0) else { continue };
        let _ = write!(
            page,
            "<p>Training episodes replayed a random {:.1} % of the {} requests of {}, with demands scaled alike.</p>",
            100.0 * share,
            day["requests"],
            text(&day["path"])
        );
    }
}

fn text(value: &Value) -> String {
    escape(value.as_str().unwrap_or("-"))
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
    for sentence in conditions(&days) {
        let _ = write!(page, "<p class=note>{}</p>", escape(&sentence));
    }
}

fn timing(page: &mut String, around: &Surroundings) {
    let Some(processes) = around.records.of_kind("run").filter_map(|line| line["processes"].as_array()).next_back()
    else {
        return;
    };
    page.push_str(
        "<h2>Time by process</h2><div class=key><span class=own>computing</span><span class=base>copying</span>\
         <span class=wait>waiting</span></div><div class=wide><table><tr><th>process<th>computing<th>copying<th>waiting<th></tr>",
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
