//! One small log per trap, and the real log where it is available.

use std::fs;

use super::*;

/// An entry billed by CPM, with the given total.
fn cpm(ad: u64, total: f64) -> String {
    format!("{ad},{},2.000,10.0,{total},0", total - 10.0)
}

fn line(id: u64, second: u64, queue: &str) -> String {
    format!("{id}\t{}\t7\t2\t{queue}\n", 1_556_035_200 + second)
}

fn run(text: &str, contracts: Contracts, split: Option<usize>) -> (tempfile::TempDir, Result<ImportReport>) {
    let dir = tempfile::tempdir().unwrap();
    let track_log = dir.path().join("raw.tsv");
    fs::write(&track_log, text).unwrap();
    let out = dir.path().join("out");
    let report = import(&Options { track_log, contracts, split, out, max_bad_share: 1.0 });
    (dir, report)
}

fn declared(count: usize) -> Contracts {
    Contracts::FromLog { count, fill: 0.3 }
}

/// Imports `text` without contracts and returns the track log and the report.
fn imported(text: &str) -> (String, ImportReport) {
    let (dir, report) = run(text, declared(0), None);
    let rows = fs::read_to_string(dir.path().join("out/track_log.tsv")).unwrap();
    (rows, report.unwrap())
}

fn reasons(counts: &[super::super::Count]) -> Vec<(&'static str, u64)> {
    counts.iter().map(|c| (c.reason, c.count)).collect()
}

#[test]
fn units_times_and_the_day_are_converted() {
    let (rows, report) = imported(&line(9, 5, "11,137,19.5,382.24,3000.584,3;12,40,2.5,5,45,0"));
    assert_eq!(
        rows.lines().nth(1).unwrap(),
        "9\t1556035205000\t2\t0\t0\t0\t7\t11,A,3000.584,0.0195,3;12,A,45,0.0025,0"
    );
    assert_eq!(report.directories[0].date, "2019-04-24");
    assert_eq!(report.directories[0].utc_offset_minutes, 480);
    assert!(!report.contracts_declared && report.dropped.is_empty() && report.changed.is_empty());
}

#[test]
fn the_injected_test_ad_is_dropped_by_its_place_or_its_decimals() {
    let by_place = format!("{};{};{}", cpm(1, 90.0), cpm(2, 80.0), cpm(3, 85.0));
    let by_decimals = format!("{};5,61,1.1234567,1.0,70.0,0", cpm(1, 90.0));
    // Only the last position is suspect.
    let ranked_oddly = format!("{};{};{}", cpm(1, 80.0), cpm(2, 90.0), cpm(3, 70.0));
    let text = line(1, 0, &by_place) + &line(2, 0, &by_decimals) + &line(3, 0, &ranked_oddly);
    let (rows, report) = imported(&text);
    let lengths: Vec<usize> = rows.lines().skip(1).map(|l| l.split(';').count()).collect();
    assert_eq!(lengths, [2, 1, 3]);
    assert_eq!(reasons(&report.changed), [("injected_test_ad_dropped", 2)]);
}

#[test]
fn values_out_of_range_are_clamped_and_counted_where_the_row_can_be_kept() {
    let queue = format!("{};2,5,1000.5,1.0,60.0,0;{};3,1,2.0,-9.0,-8.0,0", cpm(1, 90.0), cpm(1, 50.0));
    let (rows, report) = imported(&line(1, 0, &queue));
    assert!(rows.ends_with("\t1,A,90,0.002,0;2,A,60,1,0;3,A,0,0.002,0\n"), "{rows}");
    assert_eq!(
        reasons(&report.changed),
        [("negative_total_set_to_0", 1), ("pctr_above_1000_per_mille_set_to_1", 1), ("repeated_ad_dropped", 1)]
    );
}

#[test]
fn bad_rows_are_dropped_with_line_column_and_value() {
    let good = cpm(1, 90.0);
    let text = line(1, 0, &good)
        + &line(1, 1, &good)
        + &line(2, 90_000, &good)
        + &line(3, 1, "1,5,x,1,6,0")
        + &line(4, 1, "1,5,2.0,1,inf,0")
        + &line(5, 1, "1,5,2.0,1,6")
        + &line(6, 1, "5,61,1.1234567,1.0,70.0,0")
        + "7\t1556035200\t7\t2\n";
    let (rows, report) = imported(&text);
    assert_eq!(rows.lines().count(), 2);
    assert_eq!(report.rows_read, 8);
    let expected = [
        ("duplicate_request_id", 2, "request_id", "1"),
        ("empty_queue", 7, "queue", "5,61,1.1234567,1.0,70.0,0"),
        ("not_5_columns", 8, "row", "7\t1556035200\t7\t2"),
        ("not_6_parts_in_entry", 6, "queue", "1,5,2.0,1,6"),
        ("not_a_number", 4, "pctr", "x"),
        ("out_of_range", 5, "total_ecpm", "inf"),
        ("outside_day", 3, "time", "1556125200"),
    ];
    let found: Vec<_> =
        report.dropped.iter().map(|c| (c.reason, c.first.line, c.first.column, c.first.value.as_str())).collect();
    assert_eq!(found, expected);
    assert!(report.changed.is_empty(), "nothing is counted as changed in dropped rows");
}

#[test]
fn rows_out_of_time_order_are_sorted_and_counted() {
    let good = cpm(1, 90.0);
    let (rows, report) = imported(&(line(1, 5, &good) + &line(2, 3, &good) + &line(3, 5, &good)));
    let ids: Vec<&str> = rows.lines().skip(1).map(|l| &l[..1]).collect();
    assert_eq!(ids, ["2", "1", "3"]);
    assert!(report.notes.iter().any(|n| n.starts_with("1 rows out of time order")));
}

#[test]
fn parts_owe_by_their_own_requests_and_every_output_says_that_contracts_were_declared() {
    let mut text = String::new();
    for i in 0..30 {
        let filter = u8::from(i >= 20 && i % 2 == 0);
        text += &line(i, i, &format!("1,90,2.0,10.0,100,{filter};2,50,3.0,1.0,151,0"));
    }
    // The CPC ad comes last and out of order; one more entry keeps it from looking like a test ad.
    let text = text.replace("151,0", "151,0;3,5,2.0,1.0,11,0");
    let (dir, report) = run(&text, declared(1), Some(20));
    let report = report.unwrap();
    assert!(report.contracts_declared && report.to_string().contains("DECLARED"));
    let owed: Vec<_> = report.declared.iter().map(|d| (d.appears, d.may_show, d.required)).collect();
    assert_eq!(owed, [(20, 20, 6), (10, 5, 2)]);
    for part in ["part-0", "part-1"] {
        let path = dir.path().join("out").join(part);
        assert!(fs::read_to_string(path.join("import.json")).unwrap().contains("\"contracts_declared\": true"));
        let rows = fs::read_to_string(path.join("track_log.tsv")).unwrap();
        assert!(rows.lines().skip(1).all(|l| l.contains("\t1,C,100,0.002,") && l.contains(";2,A,151,")));
    }
    let control = fs::read_to_string(dir.path().join("out/part-1/control.tsv")).unwrap();
    assert_eq!(control.lines().nth(1).unwrap(), "1\t2\t2\t0\t\t\t\t\t\t0.15\t0\t");
}

#[test]
fn options_that_cannot_work_and_unusable_logs_are_errors() {
    let text = line(1, 0, &cpm(1, 90.0)) + &line(2, 0, &cpm(1, 90.0));
    let message = |text: &str, contracts, split| {
        let (dir, report) = run(text, contracts, split);
        assert!(!dir.path().join("out").exists(), "nothing is written on failure");
        format!("{:#}", report.unwrap_err())
    };
    assert!(message(&text, declared(1), Some(2)).contains("2 usable requests"));
    assert!(message(&text, Contracts::FromLog { count: 1, fill: 0.0 }, None).contains("--fill"));
    assert!(message("a\tb\n", declared(0), None).contains("not_5_columns"));
    assert!(message("", declared(0), None).contains("empty"));
}

#[test]
fn a_truncated_archive_is_an_error_that_says_where() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for i in 0..5_000 {
        gz.write_all(line(i, i, &cpm(i * 7_919 % 1_000, 90.0)).as_bytes()).unwrap();
    }
    let bytes = gz.finish().unwrap();
    let track_log = dir.path().join("raw.tsv.gz");
    fs::write(&track_log, &bytes[..bytes.len() / 2]).unwrap();
    let out = dir.path().join("out");
    let error =
        import(&Options { track_log, contracts: declared(0), split: None, out: out.clone(), max_bad_share: 1.0 })
            .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("raw.tsv.gz") && text.contains("truncated"), "{text}");
    assert!(!out.exists());
}

#[test]
fn the_real_log_imports_whole() {
    let Some(shared) = std::env::var_os("ADMIX_SHARED_DATA") else {
        println!("skipped: ADMIX_SHARED_DATA is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let report = import(&Options {
        track_log: Path::new(&shared).join("tencent2019/track_log.20190424.first400.tsv.gz"),
        contracts: declared(5),
        split: Some(300),
        out: dir.path().join("out"),
        max_bad_share: 0.0,
    })
    .unwrap();
    assert_eq!(reasons(&report.changed)[0], ("injected_test_ad_dropped", 138));
    assert!(report.dropped.is_empty());
    let entries: u64 = report.directories.iter().map(|d| d.auction_entries + d.contract_entries).sum();
    assert_eq!(entries, 45_598);
    let ads: Vec<u64> = report.declared.iter().take(5).map(|d| d.ad_id).collect();
    assert_eq!(ads, [226_670, 203_441, 196_624, 84_723, 130_112], "the most frequent CPM ads");
}
