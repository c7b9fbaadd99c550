//! `data check` against logs whose units, times or files are wrong in the ways that exports are.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::small_logs::{CONTROL, HEADER, Log, MIDNIGHT, admix, row};

const EXPOSURE: &str = "request_id\tts_ms\tarrival_ms\tad_id\ttype\tcharge\tecpm\tpctr\tclick\n";

/// A day of requests every 5 minutes of `hours`, with one contract.
struct Day {
    hours: u64,
    /// Of the requests' times.
    time: fn(u64) -> u64,
    queue: &'static str,
    control: &'static str,
}

const SOUND: Day = Day {
    hours: 24,
    time: |ms| ms,
    queue: "1,C,0,0.02,0;7,A,2000,0.01,0;8,A,1000,0.02,0",
    control: "1\t10\t\t\t\t\t\t\t\t4\t1\t\n",
};

impl Day {
    fn write(&self) -> Log {
        let rows: Vec<String> =
            (0..self.hours * 12).map(|i| row(i, (self.time)(MIDNIGHT + i * 300_000), self.queue)).collect();
        Log::of(&format!("{HEADER}\n{}", rows.concat()), &format!("{CONTROL}{}", self.control))
    }
}

/// The names of a report's warnings.
fn names(report: &Value) -> BTreeSet<String> {
    report["warnings"].as_array().unwrap().iter().map(|w| w["name"].as_str().unwrap().to_owned()).collect()
}

/// Checks that a log has this warning and no other, with these words in the text and in the JSON; any number of bad rows.
fn expect(log: &Log, name: &str, words: &[&str]) {
    let report = log.report();
    assert_eq!(names(&report), BTreeSet::from([name.to_owned()]), "{report}");
    let text = admix(&["data", "check", "--max-bad-share", "1", log.dir()]).expect(0, &[]).stdout;
    admix(&["data", "check", "--strict", "--max-bad-share", "1", log.dir()]).expect(11, &[]);
    let warning = &report["warnings"][0];
    let json = format!("{} {} {}", warning["what"], warning["cause"], warning["remedy"]);
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
        assert!(json.contains(word), "no `{word}` in {json}");
    }
}

#[test]
fn a_sound_day_has_ranges_and_no_warnings() {
    let log = SOUND.write();
    let report = log.report();
    assert_eq!(names(&report), BTreeSet::new(), "{report}");
    admix(&["data", "check", "--strict", log.dir()]).expect(0, &[]);
    let ranges = &report["ranges"];
    assert_eq!((&ranges["first_ms"], &ranges["last_ms"]), (&MIDNIGHT.into(), &(MIDNIGHT + 287 * 300_000).into()));
    assert_eq!(ranges["ecpm"], serde_json::json!({ "low": 1000.0, "median": 2000.0, "high": 2000.0 }));
    assert_eq!(ranges["penalty"]["median"], 4.0);
    assert_eq!(ranges["requests_an_hour"]["median"], 12.0);
    assert_eq!(ranges["pctr"]["low"], 0.01);
    let text = admix(&["data", "check", log.dir()]).expect(0, &[]).stdout;
    let line = text.lines().find(|line| line.contains("ranges")).unwrap();
    for word in ["2026-01-01 00:00:00 to 2026-01-01 23:55:00 UTC (23.9 h)", "eCPM 1000..2000..2000", "penalty 4..4..4"]
    {
        assert!(line.contains(word), "no `{word}` in {line}");
    }
}

#[test]
fn seconds_for_milliseconds_are_seen() {
    let log = Day { time: |ms| ms / 1000, ..SOUND }.write();
    expect(&log, "year_1970", &["in 1970 and span 86 s", "ts_ms is in seconds", "Multiply ts_ms by 1,000"]);
    // With a date they all lie outside it.
    log.write("day.toml", "date = \"2026-01-01\"\n");
    log.check(&[]).expect(2, &["288 of 288 rows are bad", "is it in seconds? Multiply it by 1,000"]);
    // Seconds since midnight, added to midnight.
    let log = Day { time: |ms| MIDNIGHT + (ms - MIDNIGHT) / 1000, ..SOUND }.write();
    expect(&log, "short_span", &["the whole day spans 86 s", "seconds"]);
}

#[test]
fn microseconds_for_milliseconds_are_seen() {
    let log = Day { time: |ms| MIDNIGHT * 1000 + (ms - MIDNIGHT), ..SOUND }.write();
    expect(&log, "far_future", &["microseconds or nanoseconds", "Divide ts_ms"]);
    log.write("day.toml", "date = \"2026-01-01\"\n");
    log.check(&[]).expect(2, &["is it in microseconds or nanoseconds?"]);
}

#[test]
fn a_penalty_of_another_unit_than_the_ecpm_is_seen() {
    for (control, name, words) in [
        (
            "1\t10\t\t\t\t\t\t\t\t4000\t1\t\n",
            "penalty_high",
            ["2000 to 1", "per 1,000 impressions", "Divide penalty by 1,000"],
        ),
        ("1\t10\t\t\t\t\t\t\t\t0.04\t1\t\n", "penalty_low", ["50 to 1", "yuan for fen", "Multiply penalty by 100"]),
    ] {
        expect(&Day { control, ..SOUND }.write(), name, &words);
    }
}

/// Then nothing is at stake: `auction-only` reads 100.00, and no policy delivers a contract.
#[test]
fn penalties_that_were_rounded_to_zero_are_seen() {
    let log = Day { control: "1\t10\t\t\t\t\t\t\t\t0\t1\t\n", ..SOUND }.write();
    let words = ["most contracts cost nothing when they are missed", "rounded to whole units", "with its decimals"];
    expect(&log, "penalty_low", &words);
}

#[test]
fn an_id_that_is_contract_and_auction_ad_is_seen() {
    let control = "1\t10\t\t\t\t\t\t\t\t4\t1\t\n7\t10\t\t\t\t\tregion:99\t\t\t4\t1\t\n";
    let log = Day { control, ..SOUND }.write();
    let report = log.report();
    assert!(names(&report).contains("both_types"), "{report}");
    assert!(report["warnings"].to_string().contains("1 ids are contracts in control and auction ads"), "{report}");
}

#[test]
fn most_rows_outside_the_date_name_the_offset() {
    let log = Day { time: |ms| ms - 16 * 3_600_000, ..SOUND }.write();
    log.write("day.toml", "date = \"2026-01-01\"\n");
    log.check(&[]).expect(2, &["192 of 288 rows are bad", "utc_offset_minutes in day.toml (480 is UTC+8)"]);
    expect(&log, "outside_day", &["192 of 288 rows lie outside 2026-01-01", "utc_offset_minutes"]);
    log.write("day.toml", "date = \"2026-01-01\"\nutc_offset_minutes = 8\n");
    assert!(names(&log.report()).contains("offset_in_hours"));
    let log = SOUND.write();
    log.write("day.toml", "date = \"2026-01-01\"\nutc_offset_minutes = 8\n");
    assert!(names(&log.report()).contains("offset_in_hours"));
    log.write("day.toml", "date = \"2026-01-01\"\nutc_offset_minutes = 0\n");
    assert_eq!(names(&log.report()), BTreeSet::new());
}

#[test]
fn days_of_23_and_25_hours_are_days() {
    for hours in [23, 25] {
        let log = Day { hours, ..SOUND }.write();
        if hours == 25 {
            log.write("day.toml", "date = \"2026-01-01\"\n");
            log.check(&[]).expect(2, &["12 of 300 rows are bad", "set hours = 25 in day.toml"]);
        }
        log.write("day.toml", &format!("date = \"2026-01-01\"\nhours = {hours}\n"));
        let report = log.report();
        assert_eq!((names(&report), &report["quarantined"]), (BTreeSet::new(), &0.into()), "{report}");
        assert_eq!(report["requests"], hours * 12);
        // The contract flies all day, and the last hour is replayed.
        assert_eq!(report["contracts"][0]["targeted"], hours * 12);
        let day = admix(&["eval", "--json", "--log", log.dir()]).expect(0, &[]).json();
        assert_eq!((&day["requests"], &day["unfilled"]), (&(hours * 12).into(), &0.into()));
        admix(&["plan", log.dir()]).expect(0, &[]);
    }
    let log = SOUND.write();
    log.write("day.toml", "date = \"2026-01-01\"\nhours = 48\n");
    log.check(&[]).expect(2, &["day.toml", "hours = 48; a day has 24"]);
}

/// The exposures of a sound day: each `delay_ms` late, clicked by `click`.
fn exposures(delay_ms: u64, id: fn(u64) -> u64, pctr: f64, click: fn(u64) -> bool) -> Log {
    let log = SOUND.write();
    let rows: Vec<String> = (0..288)
        .map(|i| {
            let ts = MIDNIGHT + i * 300_000;
            format!("{}\t{ts}\t{}\t7\tA\t2\t2000\t{pctr}\t{}\n", id(i), ts + delay_ms, u8::from(click(i)))
        })
        .collect();
    log.write("joined_exposure.tsv", &format!("{EXPOSURE}{}", rows.concat()));
    log
}

#[test]
fn exposures_that_join_nothing_are_seen() {
    let log = exposures(0, |i| i + 1_000_000, 0.01, |_| false);
    expect(&log, "exposures_do_not_join", &["288 of 288 exposures belong to no request", "same request_id"]);
    assert_eq!(names(&exposures(0, |i| i, 0.01, |_| false).report()), BTreeSet::new());
}

/// Charges in yuan for fen were taken without a word, by `values train` too.
#[test]
fn charges_in_another_unit_are_seen() {
    let charged = |charge: f64, ecpm: f64| {
        let log = SOUND.write();
        let rows: Vec<String> = (0..288)
            .map(|i| {
                let ts = MIDNIGHT + i * 300_000;
                format!("{i}\t{ts}\t{ts}\t7\tA\t{charge}\t{ecpm}\t0.01\t0\n")
            })
            .collect();
        log.write("joined_exposure.tsv", &format!("{EXPOSURE}{}", rows.concat()));
        log
    };
    expect(&charged(0.02, 2000.0), "charge_unit", &["charged 6 in all", "predicts 576", "Multiply charge by 100"]);
    expect(&charged(2000.0, 2000.0), "charge_unit", &["Divide charge by 1,000"]);
    expect(&charged(2.0, 20.0), "exposure_ecpm", &["0.010 times that of the same ads"]);
    assert_eq!(names(&charged(1.5, 2000.0).report()), BTreeSet::new());
}

#[test]
fn a_calibration_off_by_more_than_half_is_seen() {
    let half = |i: u64| i.is_multiple_of(2);
    expect(&exposures(0, |i| i, 0.2, half), "calibration", &["144 clicks where pctr predicts 58"]);
    expect(
        &exposures(0, |i| i, 0.005, half),
        "calibration",
        &["144 clicks where pctr predicts 1", "percent or per mille"],
    );
    assert_eq!(names(&exposures(0, |i| i, 0.4, half).report()), BTreeSet::new());
}

#[test]
fn a_feedback_delay_that_nothing_allows_for_is_seen() {
    let log = exposures(90_000, |i| i, 0.01, |_| false);
    expect(
        &log,
        "feedback_delay",
        &["after 90.0 s (median)", "env.feedback_delay_s is 0", "Set env.feedback_delay_s = 90"],
    );
    let report = log.check(&["--feedback-delay", "60"]).expect(0, &[]).json();
    assert_eq!(names(&report), BTreeSet::new());
}

#[test]
fn a_file_that_nobody_reads_is_seen() {
    let log = SOUND.write();
    log.write("exposures.tsv", EXPOSURE);
    expect(
        &log,
        "unread_file",
        &["no joined_exposure is read", "exposures.tsv` is there", "rename it to joined_exposure.tsv"],
    );
}
