//! Small impression logs for each rule and trap, and the real log where it is available.

use std::fs;

use super::*;

const HEADER: &str = "click,weekday,hour,region,slotwidth,slotheight,payprice,advertiser,usertag";
const CONTROL: &str = "ad_id\trequired\tstart_ms\tend_ms\ttargeting\tpenalty\tclick_value\tpctr\n";
const DAY_0: u64 = 1_370_736_000_000;

fn run(csv: &str, contracts: &str) -> (tempfile::TempDir, Result<ImportReport>) {
    let dir = tempfile::tempdir().unwrap();
    let (impressions, control) = (dir.path().join("imp.csv"), dir.path().join("control.tsv"));
    fs::write(&impressions, csv).unwrap();
    fs::write(&control, format!("{CONTROL}{contracts}")).unwrap();
    let report =
        import(&Options { impressions: vec![impressions], control, out: dir.path().join("out"), max_bad_share: 1.0 });
    (dir, report)
}

/// Returns the track log rows of one weekday, split into columns.
fn rows(dir: &tempfile::TempDir, weekday: u8) -> Vec<Vec<String>> {
    let path = dir.path().join(format!("out/weekday-{weekday}/track_log.tsv"));
    let text = fs::read_to_string(path).unwrap();
    text.lines().skip(1).map(|l| l.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn rows_are_sorted_by_hour_stably_and_spread_within_it() {
    let csv = format!(
        "{HEADER}\n0,0,5,1,300,250,10,71,null\n0,0,2,1,300,250,20,71,null\n\
         0,0,5,1,728,90,30,72,null\n0,1,9,1,300,250,40,71,null\n0,0,5,1,300,250,50,71,null\n"
    );
    let (dir, report) = run(&csv, "");
    let report = report.unwrap();
    let found: Vec<(String, u64, String, String)> = rows(&dir, 0)
        .into_iter()
        .map(|r| (r[0].clone(), r[1].parse::<u64>().unwrap() - DAY_0, r[2].clone(), r[7].clone()))
        .collect();
    let row = |id: &str, ts: u64, slot: &str, queue: &str| (id.into(), ts, slot.into(), queue.into());
    assert_eq!(
        found,
        [
            row("1", 7_200_000, "300250", "71,A,20,0,0"),
            row("2", 18_000_000, "300250", "71,A,10,0,0"),
            row("3", 19_200_000, "72890", "72,A,30,0,0"),
            row("4", 20_400_000, "300250", "71,A,50,0,0"),
        ]
    );
    assert_eq!(rows(&dir, 1)[0][..2], ["1".to_owned(), (DAY_0 + 118_800_000).to_string()]);
    let dates: Vec<&str> = report.directories.iter().map(|d| d.date.as_str()).collect();
    assert_eq!(dates, ["2013-06-09", "2013-06-10"]);
}

#[test]
fn gender_comes_from_whole_tags() {
    let csv = format!(
        "{HEADER}\n0,0,0,1,300,250,10,71,\"10006,10110\"\n0,0,0,1,300,250,10,71,10111\n\
         0,0,0,1,300,250,10,71,\"10110,10111\"\n0,0,0,1,300,250,10,71,101102\n"
    );
    let (dir, report) = run(&csv, "");
    report.unwrap();
    let genders: Vec<String> = rows(&dir, 0).into_iter().map(|r| r[4].clone()).collect();
    assert_eq!(genders, ["1", "2", "0", "0"]);
}

#[test]
fn contracts_join_the_requests_they_target_while_they_fly() {
    let csv = format!(
        "{HEADER}\n0,1,11,216,300,250,10,71,10110\n0,1,12,216,300,250,10,71,10110\n\
         0,1,12,3,300,250,10,71,10111\n0,1,18,216,300,250,10,71,10110\n"
    );
    let contracts = "9001\t5\t\t\tregion:216|gender:1\t0.2\t20\t0.001\n\
                     9009\t5\t43200000\t64800000\t\t0.2\t0\t0.002\n";
    let (dir, report) = run(&csv, contracts);
    let report = report.unwrap();
    let queues: Vec<String> = rows(&dir, 1).into_iter().map(|r| r[7].clone()).collect();
    assert_eq!(
        queues,
        [
            "71,A,10,0,0;9001,C,20,0.001,0",
            "71,A,10,0,0;9001,C,20,0.001,0;9009,C,0,0.002,0",
            "71,A,10,0,0;9009,C,0,0.002,0",
            "71,A,10,0,0;9001,C,20,0.001,0",
        ]
    );
    assert_eq!(report.directories[0].contract_entries, 5);
    let control = fs::read_to_string(dir.path().join("out/weekday-1/control.tsv")).unwrap();
    let midnight = DAY_0 + 86_400_000;
    let lines: Vec<&str> = control.lines().collect();
    assert_eq!(lines[1], "9001\t5\t5\t0\t\t\tregion:216|gender:1\t\t\t0.2\t20\t0.001");
    assert_eq!(
        lines[2],
        format!("9009\t5\t5\t0\t{}\t{}\t\t\t\t0.2\t0\t0.002", midnight + 43_200_000, midnight + 64_800_000)
    );
}

#[test]
fn bad_rows_are_dropped_with_line_column_and_value() {
    let csv = format!(
        "{HEADER}\n0,0,24,1,300,250,10,71,null\n0,7,1,1,300,250,10,71,null\n0,0,1,1,300,250,-3,71,null\n\
         0,0,1,x,300,250,10,71,null\n0,0,1,1,300,250,10\n0,0,1,1,99999,999999,10,71,null\n\
         0,0,1,null,300,250,10,71,null\n"
    );
    let (dir, report) = run(&csv, "");
    let report = report.unwrap();
    let found: Vec<String> = report.dropped.iter().map(|c| format!("{} {} {}", c.count, c.reason, c.first)).collect();
    let file = dir.path().join("imp.csv").display().to_string();
    assert_eq!(
        found,
        [
            format!("1 column_count {file}:6: row = `7 columns instead of 9`"),
            format!("1 not_a_number {file}:5: region = `x`"),
            format!("4 out_of_range {file}:2: hour = `24`"),
        ]
    );
    assert_eq!(report.rows_read, 7);
    assert_eq!(rows(&dir, 0).len(), 1, "an unknown region is kept as 0");
    assert_eq!(rows(&dir, 0)[0][3], "0");
}

#[test]
fn contracts_that_do_not_fit_and_files_without_use_are_errors() {
    let row = "0,0,1,1,300,250,10,71,null";
    let message = |csv: String, contracts: &str| {
        let (dir, report) = run(&csv, contracts);
        assert!(!dir.path().join("out").exists(), "nothing is written on failure");
        format!("{:#}", report.unwrap_err())
    };
    let good = format!("{HEADER}\n{row}\n");
    assert!(message(good.clone(), "71\t5\t\t\t\t0.2\t20\t0.001\n").contains("advertiser"));
    assert!(message(good.clone(), "9001\t5\t\t\t\t0.2\t20\t\n").contains("no pctr"));
    assert!(message(good, "9001\t5\t\t\t\t0.2\t9e5\t0.9\n").contains("9001"));
    let header = HEADER.replace("payprice", "price");
    let text = message(format!("{header}\n{row}\n"), "");
    assert!(text.contains("`payprice`") && text.contains("imp.csv"), "{text}");
    assert!(message(format!("{HEADER},hour\n{row},1\n"), "").contains("`hour` twice"));
    assert!(message(format!("{HEADER}\n0,x,1,1,300,250,10,71,null\n"), "").contains("weekday"));
    assert!(message(format!("{HEADER}\n"), "").contains("no impression"));
}

#[test]
fn a_truncated_archive_is_an_error_that_says_where() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writeln!(gz, "{HEADER}").unwrap();
    for i in 0..20_000_u64 {
        writeln!(gz, "0,0,{},{},300,250,{},71,null", i % 24, i * 7_919 % 400, i * 31 % 300).unwrap();
    }
    let bytes = gz.finish().unwrap();
    let (path, control) = (dir.path().join("imp.csv.gz"), dir.path().join("control.tsv"));
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(&control, CONTROL).unwrap();
    let error = import(&Options { impressions: vec![path], control, out: dir.path().join("out"), max_bad_share: 1.0 })
        .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("imp.csv.gz") && text.contains("truncated"), "{text}");
}

#[test]
fn the_real_log_imports_whole() {
    let Some(shared) = std::env::var_os("ADMIX_SHARED_DATA") else {
        println!("skipped: ADMIX_SHARED_DATA is not set");
        return;
    };
    let raw = Path::new(&shared).join("ipinyou");
    let dir = tempfile::tempdir().unwrap();
    let report = import(&Options {
        impressions: (0..3).map(|d| raw.join(format!("imp.weekday{d}.csv.gz"))).collect(),
        control: raw.join("contracts.tsv"),
        out: dir.path().join("out"),
        max_bad_share: 0.0,
    })
    .unwrap();
    assert!(report.dropped.is_empty());
    let requests: Vec<u64> = report.directories.iter().map(|d| d.requests).collect();
    assert_eq!(requests, [6_045, 5_520, 4_412]);
    assert!(report.directories.iter().all(|d| d.contracts == 12 && d.contract_entries > d.requests));
}
