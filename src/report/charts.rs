//! The charts of `report.html`, one section each.

use std::fmt::Write as _;

use serde_json::Value;

use crate::evaluate::Kind;
use crate::learner::calibration::DECILES;
use crate::plan::GRID;

use super::content::{CHOSEN, RunReport};
use super::means::{Mean, best_baseline, means};
use super::records::Evaluation;
use super::surroundings::Surroundings;
use super::svg::{self, Chart, escape};

/// Maximum number of contracts whose delivery is drawn, those that are owed most.
const MOST_CONTRACTS: usize = 24;

/// Draws the evaluations on the validation days.
pub fn learning(page: &mut String, report: &RunReport, around: &Surroundings) {
    let point = |e: &Evaluation| (e.updates as f64, 100.0 * e.share);
    let points: Vec<(f64, f64)> = around.records.curve().iter().map(point).collect();
    let Some(first) = points.first().copied() else { return };
    let share_of =
        |name: &str| report.validation.policies.iter().find(|p| p.name == name)?.share.map(|share| 100.0 * share);
    let start = share_of(&format!("{CHOSEN}:start")).unwrap_or(first.1);
    let best = report.validation.best_baseline.as_deref();
    let baseline = best.and_then(share_of);
    let chosen = around.records.chosen(report.chosen_updates).map(|e| point(&e));
    let drawn = || points.iter().copied().chain(chosen);
    let ys = drawn().map(|p| p.1).chain([start]).chain(baseline);
    let mut chart = Chart::over(300.0, drawn().map(|p| p.0), ys);
    chart.axes("updates", "share of the bound, %");
    chart.level("start", start);
    if let Some(level) = baseline {
        chart.level("base", level);
    }
    chart.line("own", &points);
    if let Some(at) = chosen {
        chart.dot("own", at, &format!("chosen: {:.3} after {:.0} updates", at.1, at.0), Some("chosen"));
    }
    let chosen_from = match report.judgement.as_ref().is_some_and(|judgement| judgement.basis.chosen_is_start) {
        true => "equal the start: no update beat it on the validation days".into(),
        false => format!("are those of update {}", report.chosen_updates),
    };
    let _ = write!(
        page,
        "<h2>Validation</h2><div class=key><span class=own>this run</span><span class=start>its start</span>{}</div>\
         <figure>{}<figcaption>Evaluations on {}. The chosen parameters {chosen_from}.</figcaption></figure>",
        best.map_or_else(String::new, |name| format!("<span class=base>{}</span>", escape(name))),
        chart.finish("validation share by updates"),
        escape(&report.validation.logs.join(", ")),
    );
}

/// Draws the share of returns below each decile that the critic predicted, over the last quarter of the learner's records.
pub fn calibration(page: &mut String, around: &Surroundings) {
    let records: Vec<Vec<f64>> = around
        .records
        .of_kind("learner")
        .filter_map(|line| line["calibration"].as_array()?.iter().map(Value::as_f64).collect())
        .filter(|shares: &Vec<f64>| shares.len() == DECILES)
        .collect();
    let last = &records[records.len() - records.len().div_ceil(4)..];
    if last.is_empty() {
        return;
    }
    let mean = |d: usize| 100.0 * last.iter().map(|shares| shares[d]).sum::<f64>() / last.len() as f64;
    let nominal = |d: usize| 100.0 * (d + 1) as f64 / (DECILES + 1) as f64;
    let points: Vec<(f64, f64)> = (0..DECILES).map(|d| (nominal(d), mean(d))).collect();
    let off = points.iter().map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    let ends = [0.0, 100.0];
    let mut chart = Chart::over(280.0, ends.into_iter(), ends.into_iter());
    chart.axes("quantile that the critic stated, %", "returns below it, %");
    chart.line("start", &ends.map(|end| (end, end)));
    chart.line("own", &points);
    for &point in &points {
        chart.dot("own", point, &format!("{:.1} % of the returns below its {:.0} % quantile", point.1, point.0), None);
    }
    let _ = write!(
        page,
        "<h2>Calibration of the critic</h2><div class=key><span class=own>this run</span><span class=start>calibrated</span></div>\
         <figure>{}<figcaption>Contracts' returns against the distributions that the critic had predicted, over the last {} records of the \
         learner; off by {off:.1} points at most. Returns go as far as their segment of an episode and take the critic's word from there.</figcaption>\
         </figure>",
        chart.finish("calibration of the critic"),
        last.len(),
    );
}

/// Distance in share from the chosen policy beyond which policies are left out, because they would flatten the chart.
const NEAR: f64 = 0.05;

/// Draws each policy's trade-off between shortage and revenue.
pub fn frontier(page: &mut String, report: &RunReport) {
    let all = means(&report.days);
    let Some(own) = all.iter().find(|m| m.name == CHOSEN).and_then(|m| m.share) else { return };
    let best = best_baseline(report);
    let (near, far): (Vec<&Mean>, Vec<&Mean>) =
        all.iter().partition(|m| m.share.is_some_and(|share| share > own - NEAR));
    let at = |m: &Mean| (100.0 * m.shortage, m.revenue);
    let mut chart = Chart::over(320.0, near.iter().map(|m| at(m).0), near.iter().map(|m| at(m).1));
    chart.axes("shortage, %", "auction revenue, minor units a day");
    let class = |m: &Mean| match m.name.as_str() {
        CHOSEN => "own",
        name if Some(name) == best => "base",
        _ => "other",
    };
    // Later dots cover earlier ones, so the most important ones come last.
    let order = ["other", "base", "own"].into_iter().flat_map(|kind| near.iter().filter(move |m| class(m) == kind));
    for m in order {
        let title = format!("{}: shortage {:.2} %, revenue {:.0}", m.name, at(m).0, at(m).1);
        // Labels at every dot would overlap.
        let label = (class(m) != "other" || m.kind == Kind::Oracle).then_some(m.name.as_str());
        chart.dot(class(m), at(m), &title, label);
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

/// Draws the hours and contracts in which the chosen policy and the best baseline differ.
pub fn difference(page: &mut String, report: &RunReport) {
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

/// Draws the auction's prices over each day, and the bids with which contracts won against them.
pub fn prices(page: &mut String, report: &RunReport) {
    let best = best_baseline(report);
    for day in &report.days {
        let market = &day.market;
        if market.seen.iter().all(Option::is_none) {
            continue;
        }
        let hour = |q: usize| (q as f64 + 0.5) * 24.0 / GRID as f64;
        let course = |values: &[Option<f64>]| -> Vec<Option<(f64, f64)>> {
            values.iter().enumerate().map(|(q, value)| value.map(|value| (hour(q), value))).collect()
        };
        let bids = |name: &str| day.bids.get(name).map(|bids| course(bids)).unwrap_or_default();
        let expected: Vec<Option<f64>> = market.expected.iter().copied().map(Some).collect();
        let mut lines = vec![("plan", course(&expected)), ("market", course(&market.seen))];
        lines.extend(best.map(|name| ("base", bids(name))));
        lines.push(("own", bids(CHOSEN)));
        let ys = lines.iter().flat_map(|(_, line)| line).flatten().map(|point| point.1);
        // The margin of a chart extends to both midnights.
        let mut chart = Chart::over(260.0, [1.0, 23.0].into_iter(), ys.chain([0.0]));
        chart.axes("hour of the day", "eCPM, minor units");
        for (class, line) in &lines {
            chart.course(class, line);
        }
        let _ = write!(
            page,
            "<h2>Prices, {}</h2><div class=key><span class=market>best auction ad</span><span class=plan>expected of it</span>\
             <span class=own>bids of contracts shown</span>{}</div><figure>{}<figcaption>Means by quarter hour. A contract ad is shown where it \
             bids more than the best auction ad, which it displaces.</figcaption></figure>",
            escape(&day.report.log),
            best.map_or_else(String::new, |name| format!("<span class=base>bids of {}</span>", escape(name))),
            chart.finish("prices over the day"),
        );
    }
}

/// Draws each contract's delivery over the day.
pub fn delivery(page: &mut String, report: &RunReport) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Validation;

    /// The page drew both runs of a directory as one line, and the dot where the run that is gone had been chosen.
    #[test]
    fn the_page_of_a_run_that_was_started_over_draws_that_run_alone() {
        let evaluation = |updates: u64, share: f64, improved: bool| {
            serde_json::json!({
                "time": 1.0, "kind": "evaluation", "updates": updates, "share": share, "shortage_rate": 0.0, "auction_revenue": 0.0,
                "improved": improved,
            })
        };
        let start = serde_json::json!({"time": 1.0, "kind": "start"});
        let folder = tempfile::tempdir().unwrap();
        let page = |lines: &[&Value], chosen_updates: u64| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            std::fs::write(folder.path().join("metrics.jsonl"), text).unwrap();
            let validation = Validation { logs: vec![], best_baseline: None, policies: vec![] };
            let report = RunReport { admix: String::new(), chosen_updates, validation, judgement: None, days: vec![] };
            let mut page = String::new();
            learning(&mut page, &report, &Surroundings::read(folder.path()));
            page
        };
        let (old, first, last) = (evaluation(64, 0.1, true), evaluation(0, 0.5, false), evaluation(64, 0.9, false));
        let both = page(&[&start, &old, &start, &first, &last], 64);
        assert_eq!(both, page(&[&start, &first, &last], 64));
        assert!(!both.contains(">chosen<"), "the best is still the other run's: {both}");
        let better = evaluation(64, 0.9, true);
        let chosen = page(&[&start, &old, &start, &first, &better], 64);
        assert!(chosen.contains(">chosen<") && chosen.contains("chosen: 90.000 after 64 updates"), "{chosen}");
    }
}
