//! The screen, as lines of a given size.

use serde::Deserialize as _;
use serde_json::Value;

use crate::inspect::State;
use crate::inspect::memory::TableView;
use crate::shm::Ledger;

use super::Watched;

/// Minimum number of lines of the curve, used on a screen of 24 lines.
const LEAST_CURVE: usize = 4;

/// Renders the screen: at most `height` lines of at most `width` characters.
pub fn render(watched: &Watched, width: usize, height: usize) -> Vec<String> {
    let mut head = vec![title(watched, width), progress(watched)];
    let mut foot = figures(watched);
    foot.extend(processes(watched));
    foot.extend(tables(watched));
    foot.extend(ledger(watched));
    foot.extend(watched.seen.notes.iter().map(|note| format!("note: {note}")));
    let room = height.saturating_sub(head.len() + 1);
    foot.truncate(room.saturating_sub(LEAST_CURVE));
    head.extend(curve(watched, width, room - foot.len()));
    head.extend(foot);
    head.truncate(height);
    head.iter().map(|line| line.chars().take(width).collect::<String>().trim_end().to_owned()).collect()
}

fn title(watched: &Watched, width: usize) -> String {
    let seen = &watched.seen;
    let outcome = seen.manifest.as_ref().and_then(|m| m.outcome.as_ref());
    let state = match seen.state {
        State::Alive if watched.is_values() => "learning values".to_owned(),
        State::Alive => "training".to_owned(),
        State::Ended => {
            outcome.and_then(|o| o["reason"].as_str()).map_or("ended".to_owned(), |r| format!("ended: {r}"))
        }
        State::Failed => "FAILED".to_owned(),
        State::Killed if watched.is_values() => "FAILED or KILLED".to_owned(),
        State::Killed => "KILLED".to_owned(),
    };
    let name = seen.run_dir.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let time = seen.manifest.as_ref().map_or(String::new(), |m| format!("since {}", m.started));
    let right = format!("{state}  {time}");
    let room = width.saturating_sub(right.chars().count() + 2);
    format!("{:room$}  {right}", name.chars().take(room).collect::<String>())
}

/// Formats a figure with a suffix for thousands or millions.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e7 => format!("{:.0}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        _ => format!("{value:.0}"),
    }
}

fn number(record: Option<&Value>, key: &str) -> f64 {
    record.and_then(|r| r[key].as_f64()).unwrap_or(0.0)
}

fn progress(watched: &Watched) -> String {
    const BAR: usize = 20;
    let run = watched.run.as_ref();
    let outcome = watched.seen.manifest.as_ref().and_then(|m| m.outcome.as_ref());
    let newest = outcome.or(run);
    let last = watched.curve.last().map_or(0.0, |p| p.updates as f64);
    let updates = number(newest, "updates").max(last);
    let bar = match watched.max_updates {
        0 => String::new(),
        most => {
            let full = ((updates / most as f64).min(1.0) * BAR as f64) as usize;
            format!("/{most} [{}{}]", "#".repeat(full), "-".repeat(BAR - full))
        }
    };
    let mut line = format!("updates {updates:.0}{bar}  samples {}", short(number(newest, "samples")));
    if let Some(speed) = speed(run, outcome) {
        line += &format!(" {}/s", short(speed));
    }
    if run.is_some() && watched.is_values() {
        line += &format!("  passes {:.0}", number(run, "epoch"));
    } else if run.is_some() {
        line += &format!("  lag {:.1} p95 {:.0}", number(run, "lag"), number(run, "lag_p95"));
    }
    line
}

/// Returns the samples per second: the mean of a run that has ended, otherwise that of the newest record. The last record
/// of a run covers a short rest, which says nothing of its speed.
fn speed(run: Option<&Value>, outcome: Option<&Value>) -> Option<f64> {
    let seconds = number(outcome, "seconds");
    if seconds > 0.0 {
        return Some(number(outcome, "samples") / seconds);
    }
    run.map(|run| number(Some(run), "samples_per_s"))
}

/// Draws the validation curve with its scale; `-` is the start.
fn curve(watched: &Watched, width: usize, height: usize) -> Vec<String> {
    if watched.is_values() {
        return losses(watched, height);
    }
    let points = &watched.curve;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        let mut lines = vec!["no evaluation yet".to_owned()];
        lines.resize(height + 1, String::new());
        return lines;
    };
    let best = points.iter().copied().reduce(|a, b| if b.share > a.share { b } else { a }).unwrap_or(*first);
    let start = watched.start();
    let mut title =
        format!("validation share: last {:.2}, highest {:.2} at update {}", last.share, best.share, best.updates);
    if let Some(start) = start {
        title += &format!(", start {start:.2}");
    }
    let baseline = watched.report.as_ref().and_then(|r| r.validation.best_baseline.clone());
    let baseline = baseline.and_then(|name| Some((watched.validated(&name)?, name)));
    if let Some((share, name)) = &baseline {
        title += &format!(", {name} {share:.2}");
    }
    let columns = width.saturating_sub(10).max(10);
    let shares = points.iter().map(|p| p.share).chain(start);
    let (low, high) = shares.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), s| (l.min(s), h.max(s)));
    let span = (high - low).max(0.01);
    let rows = height.saturating_sub(1).max(2);
    let row_of = |share: f64| ((high - share) / span * (rows - 1) as f64).round() as usize;
    let mut cells = vec![vec![' '; columns]; rows];
    if let Some(start) = start {
        cells[row_of(start).min(rows - 1)].fill('-');
    }
    let to = last.updates.max(1) as f64;
    for p in points {
        let column = (p.updates as f64 / to * (columns - 1) as f64).round() as usize;
        cells[row_of(p.share).min(rows - 1)][column] = '*';
    }
    let mut lines = vec![title];
    for (i, row) in cells.iter().enumerate() {
        let share = high - span * i as f64 / (rows - 1) as f64;
        let scale = if i == 0 || i == rows - 1 { format!("{share:7.2}") } else { " ".repeat(7) };
        lines.push(format!("{scale} |{}", row.iter().collect::<String>()));
    }
    lines.push(format!("{:8}0{:>columns$}", "", last.updates));
    lines
}

/// Lists the newest evaluations of a value run.
fn losses(watched: &Watched, height: usize) -> Vec<String> {
    if watched.losses.is_empty() {
        return vec!["no evaluation yet".to_owned()];
    }
    let mut lines = vec![format!("{:>6} {:>10} {:>12} {:>12}", "pass", "updates", "click loss", "charge loss")];
    let rows = &watched.losses[watched.losses.len().saturating_sub(height)..];
    lines.extend(rows.iter().map(|loss| {
        let best = if loss.is_best { "  best so far" } else { "" };
        format!("{:>6} {:>10} {:>12.6} {:>12.6}{best}", loss.pass + 1, loss.updates, loss.click, loss.charge)
    }));
    lines
}

fn figures(watched: &Watched) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(first), Some(last)) = (watched.curve.first(), watched.curve.last()) {
        lines.push(format!(
            "delivery: shortage {:.2} -> {:.2} %, auction revenue {:.0} -> {:.0} (first, last evaluation)",
            first.shortage, last.shortage, first.revenue, last.revenue
        ));
    }
    if let Some(judgement) = watched.report.as_ref().and_then(|r| r.judgement.as_ref()) {
        let v = &judgement.verdict;
        lines.push(format!(
            "verdict: {} against {}, {:+.2} points ({:+.2}..{:+.2})",
            format!("{:?}", v.decision).to_lowercase(),
            v.against,
            v.difference,
            v.interval[0],
            v.interval[1]
        ));
    }
    if let Some(failure) = watched.seen.manifest.as_ref().and_then(|m| m.failure.as_ref()) {
        lines.push(format!("failure: {failure}"));
    }
    lines
}

/// Returns one line per process: whether it is alive, and its times computing, copying and waiting.
fn processes(watched: &Watched) -> Vec<String> {
    let timing = watched.run.as_ref().and_then(|run| run["processes"].as_array()).map_or(&[][..], Vec::as_slice);
    let control = watched.seen.memory.as_ref().and_then(|memory| memory.control.as_ref());
    let mut lines = vec![format!(
        "{:14} {:8} {:>8} {:>10} {:>8} {:>8}",
        "process", "state", "silent", "computing", "copying", "waiting"
    )];
    let names: Vec<&str> = match control {
        Some(control) => control.processes.iter().map(|p| p.name.as_str()).collect(),
        None => timing.iter().filter_map(|t| t["name"].as_str()).collect(),
    };
    for name in names {
        let process = control.and_then(|c| c.processes.iter().find(|p| p.name == name));
        let state = process.map_or("ended", |p| if p.alive { "alive" } else { "DEAD" });
        let silent = process.map_or("-".to_owned(), |p| format!("{:.1} s", p.silent_ms as f64 / 1000.0));
        let spent = timing.iter().find(|t| t["name"] == name);
        let seconds = ["compute_s", "copy_s", "wait_s"].map(|key| number(spent, key));
        let total = seconds.iter().sum::<f64>();
        let share = |s: f64| if total > 0.0 { format!("{:.0} %", 100.0 * s / total) } else { "-".to_owned() };
        let [c, x, w] = seconds.map(share);
        lines.push(format!("{name:14} {state:8} {silent:>8} {c:>10} {x:>8} {w:>8}"));
    }
    if lines.len() == 1 { vec![] } else { lines }
}

/// Returns one line per table of rows.
fn tables(watched: &Watched) -> Vec<String> {
    let tables = watched.seen.memory.as_ref().map_or(&[][..], |memory| &memory.tables);
    let line = |(number, table): (usize, &TableView)| {
        let mebibytes = table.bytes as f64 / f64::from(1 << 20);
        format!(
            "table {number}: {} rows of {}, {mebibytes:.1} MiB",
            short(table.rows as f64),
            short(table.capacity as f64)
        )
    };
    tables.iter().enumerate().map(line).collect()
}

fn ledger(watched: &Watched) -> Vec<String> {
    let run = watched.run.as_ref().map(|run| &run["ledger"]);
    let Some(ledger) = run.and_then(|ledger| Ledger::deserialize(ledger).ok()) else { return vec![] };
    vec![format!("samples: {}; {} restarts", ledger.line(|n| short(n as f64)), watched.restarts)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_speed_of_an_ended_run_is_not_that_of_its_last_record() {
        let last = json!({ "samples_per_s": 330.0 });
        let outcome = json!({ "samples": 48_900, "seconds": 16.3 });
        assert_eq!(speed(Some(&last), Some(&outcome)), Some(3000.0));
        assert_eq!(speed(None, Some(&outcome)), Some(3000.0), "a serial run has no record");
        assert_eq!(speed(Some(&last), None), Some(330.0), "a live run shows how fast it is now");
        assert_eq!(speed(None, None), None);
    }
}
