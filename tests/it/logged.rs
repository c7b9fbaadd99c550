//! What was really shown: its J, its join with the log, the feedback delay and the calibration, each counted again from the text.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use admix::log::row_index::{self, RowIndex};
use admix::log::{self, CompileOptions, exposure};
use serde_json::Value;
use tempfile::TempDir;

use super::support::admix;
use super::worlds::{Decision, PlainLog, close, table, text_of};

const WORLD: &str = "requests = 3000\nqueue = 8\nregions = 4\nslots = 2\nusers = 500\nauction_ads = 60\ncontracts = 6\n\
                     contracts_per_queue = 2.5\ncompress = \"none\"\nfilter_share = 0.1\n";

/// Two days of a synthetic world; the live system's impressions of the first one are damaged in every way.
fn days() -> (TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("world.toml");
    std::fs::write(&config, WORLD).unwrap();
    let mut synth = admix();
    synth.args(["data", "synth", "--days", "2", "--config"]).arg(&config).arg("--out").arg(folder.path());
    synth.assert().success();
    let days: Vec<PathBuf> = (0..2).map(|d| folder.path().join(format!("day-{d}"))).collect();
    let path = days[0].join("joined_exposure.tsv");
    let text = std::fs::read_to_string(&path).unwrap();
    let header = text.lines().next().unwrap();
    let change = |line: &str, changes: &[(&str, &str)]| {
        let cells = header.split('\t').zip(line.split('\t'));
        let cells = cells.map(|(column, cell)| changes.iter().find(|(c, _)| *c == column).map_or(cell, |(_, v)| v));
        cells.collect::<Vec<_>>().join("\t")
    };
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let mut damaged = format!("{header}\n");
    for (i, line) in lines.iter().enumerate() {
        match i {
            // Lost, of another log, of an ad that stands in no queue, bad, early.
            0..40 => continue,
            40..47 => writeln!(damaged, "{}", change(line, &[("request_id", &format!("{}", 90_000_000 + i))])),
            47..52 => writeln!(damaged, "{}", change(line, &[("ad_id", "123456789")])),
            52..55 => writeln!(damaged, "{}", change(line, &[("pctr", "1.5")])),
            55..57 => writeln!(damaged, "{}", change(line, &[("arrival_ms", "1")])),
            _ => writeln!(damaged, "{line}"),
        }
        .unwrap();
    }
    // Shown again, by something else.
    for line in &lines[60..66] {
        writeln!(damaged, "{}", change(line, &[("ad_id", "123456789")])).unwrap();
    }
    std::fs::write(&path, damaged).unwrap();
    (folder, days)
}

/// What the text says was shown on each request, and what does not join.
struct Plain {
    decisions: Vec<Decision>,
    unknown: u64,
    repeated: u64,
    not_allowed: u64,
    without: u64,
}

fn join(day: &Path, log: &PlainLog) -> Plain {
    let text = text_of(day, "joined_exposure");
    let mut plain = Plain { decisions: vec![], unknown: 0, repeated: 0, not_allowed: 0, without: 0 };
    let mut shown: HashMap<u64, Option<(u64, char)>> = HashMap::new();
    let by_id: HashMap<u64, _> = log.requests.iter().map(|r| (r.id, r)).collect();
    for row in table(&text).filter(good) {
        let (id, ad): (u64, u64) = (row["request_id"].parse().unwrap(), row["ad_id"].parse().unwrap());
        let kind: char = row["type"].parse().unwrap();
        let Some(request) = by_id.get(&id) else {
            plain.unknown += 1;
            continue;
        };
        if shown.contains_key(&id) {
            plain.repeated += 1;
            continue;
        }
        // No contract of this world has a cap above what the live system kept to, nor a rate.
        let may = log.showable(request, 0, |_| true).any(|e| (e.ad, e.kind) == (ad, kind));
        plain.not_allowed += u64::from(!may);
        shown.insert(id, may.then_some((ad, kind)));
    }
    plain.without = (log.requests.len() - shown.len()) as u64;
    plain.decisions = log.requests.iter().map(|r| (r.id, shown.get(&r.id).copied().flatten())).collect();
    plain
}

/// The one way in which rows are bad here.
fn good(row: &HashMap<&str, &str>) -> bool {
    row["pctr"].parse::<f64>().unwrap() <= 1.0
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_j_of_what_was_shown_is_that_of_the_text() {
    let (scratch, days) = days();
    let out = scratch.path().join("decisions");
    let mut eval = admix();
    eval.args(["eval", "--json", "--baselines", "logged,random", "--decisions"]).arg(&out).arg("--log").args(&days);
    let output = eval.assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    for (day, line) in days.iter().zip(text.lines()) {
        let report: Value = serde_json::from_str(line).unwrap();
        let rows: HashMap<&str, &Value> =
            report["policies"].as_array().unwrap().iter().map(|p| (p["name"].as_str().unwrap(), p)).collect();
        let logged = rows["logged"];
        let log = PlainLog::read(day);
        let plain = join(day, &log);
        let verdict = log.earned(&plain.decisions);
        let (upper, stake) = (number(&report["bound"]["ub"]), number(&report["bound"]["stake"]));
        assert_eq!(logged["kind"], "baseline");
        assert!(close(number(&logged["j"]), verdict.j), "{logged} and {verdict:?}");
        assert!(close(number(&logged["share"]), (verdict.j + stake) / (upper + stake)));
        assert!(close(number(&logged["share"]) + number(&logged["gap"]), 1.0));
        assert!(close(number(&logged["auction_revenue"]), verdict.auction_revenue));
        assert_eq!(logged["contract_impressions"], verdict.contract_impressions);
        assert_eq!(logged["unfilled"], verdict.unfilled);
        assert!(verdict.contract_impressions > 100 && verdict.j < upper, "{verdict:?}");
        let written = text_of(&out.join(day.file_name().unwrap()), "decisions.logged");
        let decisions: Vec<Decision> = table(&written)
            .map(|row| {
                let shown = (row["type"] != "-").then(|| (row["ad_id"].parse().unwrap(), row["type"].parse().unwrap()));
                (row["request_id"].parse().unwrap(), shown)
            })
            .collect();
        assert_eq!(decisions, plain.decisions);
    }
    let words = ["3 are bad", "7 have no request in the log", "6 repeat one", "5 show what may not be shown"];
    assert!(words.iter().all(|w| said.contains(w)), "{said}");
}

#[test]
fn the_check_reports_join_delay_and_calibration() {
    let (_scratch, days) = days();
    for day in &days {
        let output = admix().args(["data", "check", "--json"]).arg(day).assert().success();
        let report: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let exposure = &report["exposure"];
        let plain = join(day, &PlainLog::read(day));
        let text = text_of(day, "joined_exposure");
        let all = table(&text).count() as u64;
        let rows: Vec<_> = table(&text).filter(good).collect();
        assert_eq!(exposure["rows"], all);
        assert_eq!(exposure["bad"], all - rows.len() as u64);
        for (name, counted) in [
            ("unknown_requests", plain.unknown),
            ("repeated", plain.repeated),
            ("not_allowed", plain.not_allowed),
            ("requests_without", plain.without),
        ] {
            assert_eq!(exposure[name], counted, "{name}");
        }
        let time = |row: &HashMap<&str, &str>, column: &str| row[column].parse::<i64>().unwrap();
        let delays: Vec<i64> = rows.iter().map(|r| time(r, "arrival_ms") - time(r, "ts_ms")).collect();
        let delay = &exposure["feedback_delay"];
        assert_eq!(delay["early"], delays.iter().filter(|d| **d < 0).count());
        for (name, share) in [("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99), ("max_s", 1.0)] {
            // The share of rows that a quantile covers, and that no delay does which is less by more than 0.1 %.
            let at = (1000.0 * number(&delay[name])).round() as i64;
            let within = |limit: i64| delays.iter().filter(|d| **d <= limit).count() as f64 / delays.len() as f64;
            assert!(within(at) >= share && within((at as f64 / 1.001) as i64 - 1) < share, "{name}: {at} ms");
        }
        let tenths = exposure["calibration"].as_array().unwrap();
        assert_eq!(tenths.len(), 10);
        let mut by_pctr: Vec<(f64, bool)> =
            rows.iter().map(|r| (r["pctr"].parse().unwrap(), r["click"] == "1")).collect();
        by_pctr.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = &by_pctr[..];
        for tenth in tenths {
            let count = tenth["count"].as_u64().unwrap() as usize;
            assert!(count.abs_diff(by_pctr.len() / 10) <= 1, "{count}");
            let (mine, rest) = left.split_at(count);
            let mean = mine.iter().map(|(p, _)| p).sum::<f64>() / count as f64;
            // Values that differ by less than 0.1 % share a bucket, of which each tenth gets a part.
            assert!((number(&tenth["predicted"]) / mean - 1.0).abs() < 1e-3, "{tenth}");
            left = rest;
        }
        assert!(left.is_empty());
        // Clicks are drawn with the predicted probability: over all tenths they agree, within four standard deviations.
        let sum = |name| tenths.iter().map(|t| number(&t[name]) * number(&t["count"])).sum::<f64>();
        let clicks = by_pctr.iter().filter(|(_, click)| *click).count() as f64;
        assert!((sum("clicked") - clicks).abs() < 1e-6);
        assert!((sum("predicted") - clicks).abs() < 4.0 * sum("predicted").sqrt(), "{} {clicks}", sum("predicted"));
    }
    let said = admix().args(["data", "check"]).args(&days).assert().success();
    let said = String::from_utf8(said.get_output().stdout.clone()).unwrap();
    for words in ["(p50)", "by tenth of pctr", "6 repeated", "5 exposures show an ad", "2 exposures arrived before"] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
}

/// A large day's index of request ids does not fit into the memory that it may take; then the table is read once for each part of the ids.
#[test]
fn exposures_join_in_parts_as_in_one() {
    let (_scratch, days) = days();
    for day in &days {
        let log = log::open(day, CompileOptions::default()).unwrap();
        let path = day.join("joined_exposure.tsv");
        let whole = exposure::join(&path, &log, 1 << 30).unwrap();
        for memory in [24_000, 5_000, 900] {
            assert!(row_index::parts(&log, memory) >= 30_000 / memory as u64);
            let joined = exposure::join(&path, &log, memory).unwrap();
            assert_eq!((&joined.shown, &joined.first_bad), (&whole.shown, &whole.first_bad), "{memory}");
            // Sums run in another order.
            assert_eq!(format!("{:.6?}", joined.report), format!("{:.6?}", whole.report), "{memory}");
        }
    }
}

#[test]
fn an_index_of_a_part_finds_its_rows_and_no_others() {
    let (_scratch, days) = days();
    let log = log::open(&days[0], CompileOptions::default()).unwrap();
    for parts in [1, 2, 3, 50] {
        let hasher = Default::default();
        let indices: Vec<RowIndex> = (0..parts).map(|part| RowIndex::part(&log, &hasher, part, parts)).collect();
        for (row, request) in log.requests().iter().enumerate() {
            let found: Vec<_> = indices
                .iter()
                .map(|index| (index.covers(request.request_id), index.find(request.request_id)))
                .collect();
            assert_eq!(found.iter().filter(|found| **found == (true, Some(row))).count(), 1);
            assert_eq!(found.iter().filter(|found| **found == (false, None)).count() as u64, parts - 1);
        }
        for unknown in 0..1000 {
            assert!(indices.iter().all(|index| index.find(90_000_000 + unknown).is_none()));
        }
    }
}

/// Where one of several days lacks the table, its row is missing there and there alone.
#[test]
fn a_day_without_exposures_has_no_such_row_and_the_table_says_so() {
    let (_scratch, days) = days();
    std::fs::remove_file(days[0].join("joined_exposure.tsv")).unwrap();
    let run = |json: &[&str]| {
        let output =
            admix().args(["eval", "--baselines", "auction-only,logged"]).args(json).arg("--log").args(&days).assert();
        let output = output.success().get_output().clone();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (text, said) = run(&["--json"]);
    assert!(said.contains("logged needs a joined_exposure in") && said.contains("day-0"), "{said}");
    let has: Vec<bool> = text.lines().map(|l| l.contains("\"name\":\"logged\"")).collect();
    assert_eq!(has, [false, true]);
    let share: f64 = {
        let report: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        let rows = report["policies"].as_array().unwrap();
        number(&rows.iter().find(|p| p["name"] == "logged").unwrap()["share"])
    };
    let (shown, _) = run(&[]);
    let row = shown.lines().find(|l| l.starts_with("logged")).unwrap();
    let cells: HashSet<&str> = row.split_whitespace().collect();
    assert!(cells.contains("-") && cells.contains(format!("{:.2}", 100.0 * share).as_str()), "{row}");
}
