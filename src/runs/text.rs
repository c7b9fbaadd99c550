//! Text form of the list of runs.

use std::fmt::Write as _;

use serde_json::Value;

use super::Runs;

/// Renders the list, the differences of the configurations, and the paired differences.
pub fn render(runs: &Runs) -> String {
    let width = runs.runs.iter().map(|r| r.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!(
        "    {:width$}  {:20}  {:11}  {:>7}  {:>7}  {:>10}  {:>6}  verdict\n",
        "run", "started", "state", "updates", "seconds", "validation", "test"
    );
    let percent = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |s| format!("{:.2}", 100.0 * s));
    for (i, run) in runs.runs.iter().enumerate() {
        let verdict = run.verdict.as_ref().map_or_else(
            || if run.kind == "values" { "- (values)".to_owned() } else { "-".to_owned() },
            |v| format!("{:?} ({:+.2}) {}", v.decision, v.difference, v.against).to_lowercase(),
        );
        let _ = writeln!(
            text,
            "{:>3} {:width$}  {:20}  {:11}  {:>7}  {:>7}  {:>10}  {:>6}  {verdict}",
            i + 1,
            run.name,
            run.started,
            run.state,
            run.updates.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            run.seconds.map_or_else(|| "-".to_owned(), |s| format!("{s:.0}")),
            percent(run.validation_share),
            percent(run.test_share),
        );
    }
    if !runs.differing.is_empty() {
        text.push_str("\nConfigurations differ in (by number of the run):\n");
        for (key, values) in &runs.differing {
            // A key of value runs is no key of the others, and the reverse.
            let knows = |kind: &str| runs.runs.iter().zip(values).any(|(run, v)| run.kind == kind && !v.is_null());
            let shown = runs.runs.iter().zip(values).enumerate().filter(|(_, (run, _))| knows(run.kind));
            let shown: Vec<(usize, &Value)> = shown.map(|(i, (_, value))| (i, value)).collect();
            let _ = writeln!(text, "    {key}: {}", grouped(&shown));
        }
    }
    if !runs.compared.is_empty() {
        text.push_str("\nShares on common reported days, in points; 95 % within these days:\n");
        for c in &runs.compared {
            let [low, high] = c.interval;
            let decision = format!("{:?}", c.decision).to_lowercase();
            let _ = writeln!(
                text,
                "    {} - {}: {:+.2}, {low:+.2}..{high:+.2} ({}): {decision}",
                c.run,
                c.against,
                c.difference,
                c.days.join(", ")
            );
        }
    }
    for why in &runs.unreadable {
        let _ = writeln!(text, "unreadable: {why}");
    }
    text
}

/// Lists each distinct value once, with the numbers of its runs.
fn grouped(values: &[(usize, &Value)]) -> String {
    let mut groups: Vec<(&Value, Vec<String>)> = Vec::new();
    for &(i, value) in values {
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, runs)) => runs.push((i + 1).to_string()),
            None => groups.push((value, vec![(i + 1).to_string()])),
        }
    }
    let said = groups.iter().map(|(value, runs)| {
        let value = if value.is_null() { "not there".to_owned() } else { shortened(&value.to_string()) };
        format!("{value} [{}]", runs.join(","))
    });
    said.collect::<Vec<_>>().join("  ")
}

/// Truncates a long value at its start, because paths differ at the end.
fn shortened(value: &str) -> String {
    const MOST: usize = 60;
    let count = value.chars().count();
    if count <= MOST { value.to_owned() } else { format!("..{}", value.chars().skip(count - MOST).collect::<String>()) }
}
