//! Bad input, through the real program: what is wrong, in which file, line and column, and what to do about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::harness::{ENDLESS, Run, days, until_best};
use crate::small_logs::{CONTRACT, CONTROL, HEADER, Log, MIDNIGHT, Said, admix, request, row};

/// `good` requests with `bad` among them as line 3.
fn among(good: u64, bad: String) -> Vec<String> {
    let mut rows: Vec<String> = (0..good).map(request).collect();
    rows.insert(1, bad);
    rows
}

#[test]
fn a_bad_value_is_told_with_file_line_column_value_and_what_to_do() {
    let queue = |queue: &str| row(9, MIDNIGHT, queue);
    let cell = |i: usize, value: &str| {
        let text = request(9);
        let mut cells: Vec<&str> = text.trim_end().split('\t').collect();
        cells[i] = value;
        cells.join("\t") + "\n"
    };
    let long: Vec<String> = (0..513).map(|i| format!("{},A,1,0,0", 100 + i)).collect();
    for (bad, column, reason, words) in [
        (queue("7,A,NaN,0.01,0"), "queue", "not_finite", "ecpm `NaN` must be finite"),
        (queue("7,A,inf,0.01,0"), "queue", "not_finite", "ecpm `inf` must be finite"),
        (queue("7,A,20,-inf,0"), "queue", "not_finite", "pctr `-inf` must be finite"),
        (queue("7,A,-0.5,0.01,0"), "queue", "negative", "ecpm `-0.5` must be at least 0"),
        (queue("7,A,10000001,0.01,0"), "queue", "out_of_range", "must be at most 10000000"),
        (queue("7,A,20,1.01,0"), "queue", "out_of_range", "pctr `1.01` must be at most 1"),
        (queue("7,A,20,0.01,0,11"), "queue", "out_of_range", "boost `11` must be at most 10"),
        (queue("7,A,20,0.01,0,0.01"), "queue", "out_of_range", "boost `0.01` must be at least 0.1"),
        (queue("7,A,x,0.01,0"), "queue", "not_a_number", "ecpm `x` is not a number"),
        (queue("7,B,20,0.01,0"), "queue", "bad_type", "must be C or A"),
        (queue("7,A,20,0.01"), "queue", "short_entry", "ad_id,type,ecpm,pctr,filter[,boost]"),
        (queue("7,A,20,0.01,0,1,1"), "queue", "long_entry", "at most six"),
        (queue("-7,A,20,0.01,0"), "queue", "not_an_integer", "ad_id `-7`"),
        (queue("7,A,20,0.01,0;7,A,30,0.01,0"), "queue", "repeated_ad", "stands twice in the queue"),
        (queue(""), "queue", "empty_queue", "at least one entry"),
        (queue(&long.join(";")), "queue", "queue_too_long", "at most 512"),
        (queue("2,C,0,0.02,0"), "queue", "unknown_contract", "`2`: a contract entry without a row in control"),
        (row(0, MIDNIGHT, "7,A,20,0.01,0"), "request_id", "duplicate_request", "stands twice in the file"),
        (row(9, MIDNIGHT + 86_400_000, "7,A,20,0.01,0"), "ts_ms", "outside_day", "2026-01-01"),
        (cell(0, "x"), "request_id", "not_an_integer", "is not a whole number"),
        (cell(0, "b7c1-77aa"), "request_id", "not_an_integer", "hash ids that are texts, alike in every table"),
        (cell(0, "17.0"), "request_id", "not_an_integer", "write it without point and exponent"),
        (cell(1, "2026-01-01T07:30:00Z"), "ts_ms", "not_an_integer", "times are Unix milliseconds"),
        (cell(2, "top"), "slot_id", "not_an_integer", "number your texts"),
        (queue("deal-9,A,20,0.01,0"), "queue", "not_an_integer", "hash ids that are texts"),
        (cell(0, ""), "request_id", "empty", "must not be empty"),
        (cell(2, "4294967296"), "slot_id", "not_an_integer", "u32"),
        (cell(3, "-1"), "region", "not_an_integer", "is not a whole number"),
        (cell(4, "3"), "gender", "out_of_range", "must be 0, 1 or 2"),
        (cell(5, "10"), "age", "out_of_range", "0..=9"),
        (String::from("9\t3\n"), "", "wrong_width", "the row has 2 cells, the header 7"),
    ] {
        let log = Log::new(&among(3, bad.clone()));
        let place = format!("line 3, column `{column}`");
        let file = log.path("track_log.tsv");
        let said = log.check(&[]).expect(2, &[file.to_str().unwrap(), "1 of 4 rows", &place, words, "--max-bad-share"]);
        assert!(said.json()["error"].as_str().unwrap().contains(&place), "{reason}");

        let report = log.report();
        assert_eq!(report["reasons"], serde_json::json!({ reason: 1 }), "{bad}");
        assert_eq!((&report["requests"], &report["quarantined"]), (&3.into(), &1.into()));
        let listed = std::fs::read_to_string(report["quarantine"].as_str().unwrap()).unwrap();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines[0], ["file", "line", "column", "value", "reason", "rule"]);
        assert_eq!(lines.len(), 2, "{listed}");
        assert_eq!((lines[1][..3].to_vec(), lines[1][4]), (vec!["track_log.tsv", "3", column], reason));
        assert!(lines[1][5].contains(words.rsplit("`: ").next().unwrap()), "{listed}");
    }
}

#[test]
fn bytes_that_are_not_utf8_make_their_row_bad_and_no_other() {
    let log = Log::new(&[]);
    let mut track = format!("{HEADER}\n{}", request(0)).into_bytes();
    track.extend_from_slice(b"1\t1767225601000\t3\t1\t0\t0\t7,A,\xff\xfe,0.01,0\n");
    track.extend_from_slice(request(2).as_bytes());
    std::fs::write(log.path("track_log.tsv"), track).unwrap();
    let report = log.report();
    assert_eq!(report["reasons"], serde_json::json!({ "not_utf8": 1 }));
    assert_eq!(report["requests"], 2);
}

#[test]
fn bad_rows_are_listed_in_the_quarantine_and_counted_by_reason() {
    let queues =
        ["7,A,NaN,0.01,0", "7,A,inf,0.01,0", "7,A,-1,0.01,0", "2,C,0,0.01,0", "3,C,0,0.01,0", "2,C,0,0.01,0", ""];
    let mut rows: Vec<String> = (0..20).map(request).collect();
    rows.extend((100..).zip(queues).map(|(id, queue)| row(id, MIDNIGHT + id * 1000, queue)));
    let log = Log::new(&rows);
    let report = log.report();
    let reasons = serde_json::json!({ "not_finite": 2, "negative": 1, "unknown_contract": 3, "empty_queue": 1 });
    assert_eq!(report["reasons"], reasons);
    assert_eq!((&report["rows"], &report["requests"], &report["quarantined"]), (&27.into(), &20.into(), &7.into()));
    let listed = std::fs::read_to_string(report["quarantine"].as_str().unwrap()).unwrap();
    let mut lines: Vec<u32> = listed.lines().skip(1).map(|l| l.split('\t').nth(1).unwrap().parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, [22, 23, 24, 25, 26, 27, 28]);

    let text = admix(&["data", "check", "--max-bad-share", "1", log.dir()]).expect(0, &[]).stdout;
    assert!(text.contains("unknown_contract 3") && text.contains("quarantine.tsv"), "{text}");
    let reports = admix(&["eval", "--json", "--max-bad-share", "1", "--log", log.dir()]).expect(0, &[]);
    assert_eq!(reports.json()["quarantined"], 7);
    assert_eq!(reports.json()["requests"], 20);

    // Mended, nothing of the old list is left.
    log.write("track_log.tsv", &format!("{HEADER}\n{}", rows[..20].concat()));
    assert_eq!(log.report()["quarantine"], Value::Null);
    assert!(!log.path(".admix/quarantine.tsv").exists());
}

#[test]
fn the_share_of_bad_rows_that_is_allowed_can_be_set_everywhere() {
    let log = Log::new(&among(9, row(99, MIDNIGHT, "")));
    for (share, code) in [("0.1", 0), ("0.09", 2), ("0", 2), ("1", 0)] {
        log.check(&["--max-bad-share", share]).expect(code, &[]);
        admix(&["eval", "--max-bad-share", share, "--log", log.dir()]).expect(code, &[]);
        let folder = tempfile::tempdir().unwrap();
        let set = format!("data.max_bad_share={share}");
        let config = config(folder.path(), log.dir(), "[budget]\nmax_updates = 1\n");
        let words: &[&str] = if code == 2 { &["1 of 10 rows are bad", "empty_queue", "quarantine.tsv"] } else { &[] };
        train(folder.path(), &config, &["--set", &set]).expect(code, words);
    }
}

/// They were told of one column at a time: an export of texts took six attempts.
#[test]
fn a_log_of_texts_is_told_of_every_bad_column_at_once() {
    let bad = |i: usize| format!("req-{i}\t{}\ttop\tgeo3\tf\tband-2\t7,open,20,0.01,0\n", MIDNIGHT + i as u64);
    let log = Log::new(&(0..20).map(bad).collect::<Vec<_>>());
    let words = ["request_id", "slot_id", "region", "gender", "age", "queue"].map(|name| format!("column `{name}`: "));
    let words: Vec<&str> = ["20 of 20 rows are bad"].into_iter().chain(words.iter().map(String::as_str)).collect();
    log.check(&[]).expect(2, &words);
}

/// A configuration that trains on a directory, and validates on a day of the small world: a day has one role.
pub fn config(folder: &Path, log: &str, more: &str) -> PathBuf {
    let path = folder.join("small.toml");
    let validation = days().join("day-1");
    let text = format!(
        "[data]\ntrain = [\"{log}\"]\nvalidation = [{validation:?}]\n[run]\ndevice = \"cpu\"\n[policy]\nhidden = 8\n\
         [learner]\nbatch = 64\nsamples_per_update = 64\npool = 640\n[actors]\ncount = 1\nwrite_every = 64\n{more}"
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// `admix train` into `folder/run`.
pub fn train(folder: &Path, config: &Path, arguments: &[&str]) -> Said {
    let run = folder.join("run");
    admix(&[&["train", "--config", config.to_str().unwrap(), "--run-dir", run.to_str().unwrap()], arguments].concat())
}

#[test]
fn train_and_eval_refuse_a_bad_log_with_the_words_of_data_check() {
    let missing = "request_id\tts_ms\tslot_id\tregion\tgender\tqueue\n";
    for (log, words) in [
        (Log::of(missing, CONTROL), "no column `age`"),
        (Log::new(&among(3, row(9, MIDNIGHT, "7,A,NaN,0.01,0"))), "line 3, column `queue`"),
        (Log::new(&[]), "an empty day cannot be replayed"),
        (Log::with_control("1\t10\t9\t\t\t\t\t\t\t5\t1\t\n"), "line 2, column `cap`"),
    ] {
        log.check(&[]).expect(2, &[log.dir(), words]);
        admix(&["eval", "--log", log.dir()]).expect(2, &[log.dir(), words]);
        admix(&["plan", log.dir()]).expect(2, &[log.dir(), words]);
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), &config(folder.path(), log.dir(), ""), &[]).expect(2, &[log.dir(), words]);
    }
}

#[test]
fn a_missing_column_is_named_with_those_that_are_there() {
    for column in HEADER.split('\t') {
        let header: Vec<&str> = HEADER.split('\t').filter(|c| *c != column).collect();
        let log = Log::of(&header.join("\t"), CONTROL);
        let found = format!("the header has: {}", header.join(", "));
        let wanted = format!("no column `{column}`");
        log.check(&[]).expect(2, &["track_log.tsv", "line 1", &wanted, &found, "Add the column or rename it"]);
    }
    for column in ["ad_id", "required", "penalty", "click_value"] {
        let control = CONTROL.replace(column, "other");
        Log::of(&(HEADER.to_owned() + "\n" + &request(0)), &control)
            .check(&[])
            .expect(2, &["control.tsv", "line 1", &format!("no column `{column}`")]);
    }
    Log::of(&format!("{HEADER}\tage\n"), CONTROL).check(&[]).expect(2, &["column `age` stands twice"]);
}

#[test]
fn rows_out_of_time_order_are_sorted_and_counted() {
    let rows: Vec<String> = [3, 1, 2, 5, 4].into_iter().map(request).collect();
    let log = Log::new(&rows);
    let report = log.report();
    assert_eq!((&report["out_of_order"], &report["quarantined"]), (&3.into(), &0.into()));
    assert!(report["warnings"].to_string().contains("3 rows stood out of time order and were sorted"), "{report}");
    let sorted: Vec<String> = (1..=5).map(request).collect();
    assert_eq!(evaluation(&log), evaluation(&Log::new(&sorted)));
}

/// What all baselines make of a log.
pub fn evaluation(log: &Log) -> Value {
    let mut report = admix(&["eval", "--json", "--log", log.dir()]).expect(0, &[]).json();
    report.as_object_mut().unwrap().remove("log").unwrap();
    report
}

#[test]
fn an_empty_day_is_refused() {
    let log = Log::new(&[]);
    log.check(&[]).expect(2, &["track_log.tsv", "no usable request", "Leave this directory out"]);
    log.write("day.toml", "date = \"2026-01-01\"\n");
    log.check(&[]).expect(2, &["track_log.tsv", "no usable request"]);
    log.write("track_log.tsv", "");
    log.check(&[]).expect(2, &["track_log.tsv", "line 1", "no column `request_id`"]);
    // Only bad rows: with all of them allowed there is still nothing to replay.
    Log::new(&[row(1, MIDNIGHT, "")]).check(&["--max-bad-share", "1"]).expect(2, &["no usable request"]);
}

#[test]
fn a_queue_of_512_entries_is_fine() {
    let queue: Vec<String> = (0..512).map(|i| format!("{},A,{i},0,0", 100 + i)).collect();
    let log = Log::new(&[row(1, MIDNIGHT, &queue.join(";"))]);
    assert_eq!(log.check(&[]).expect(0, &[]).json()["requests"], 1);
}

#[test]
fn a_truncated_archive_is_an_error_that_says_so() {
    let rows: Vec<String> = (0..5000).map(request).collect();
    let track = format!("{HEADER}\n{}", rows.concat());
    for ending in ["gz", "zst"] {
        let log = Log::new(&[]);
        std::fs::remove_file(log.path("track_log.tsv")).unwrap();
        let name = format!("track_log.tsv.{ending}");
        log.write(&name, &track);
        assert_eq!(log.check(&[]).expect(0, &[]).json()["requests"], 5000, "{ending}");
        let whole = std::fs::read(log.path(&name)).unwrap();
        for keep in [whole.len() - 1, whole.len() / 2, 12] {
            std::fs::write(log.path(&name), &whole[..keep]).unwrap();
            log.check(&["--max-bad-share", "1"])
                .expect(2, &[&name, "the file ends in the middle", "fetch or write it again"]);
        }
        std::fs::write(log.path(&name), b"neither").unwrap();
        log.check(&["--max-bad-share", "1"]).expect(2, &[&name]);
    }
}

#[test]
fn two_files_of_one_table_are_ambiguous_and_a_missing_one_is_named() {
    let log = Log::new(&[request(0)]);
    log.write("track_log.tsv.gz", HEADER);
    log.check(&[]).expect(2, &[log.dir(), "track_log.tsv", "track_log.tsv.gz", "keep one of them"]);
    for name in ["track_log", "control"] {
        let log = Log::new(&[request(0)]);
        std::fs::remove_file(log.path(&format!("{name}.tsv"))).unwrap();
        log.check(&[]).expect(2, &[log.dir(), &format!("no {name}.tsv"), ".parquet"]);
    }
}

#[test]
fn a_missing_log_directory_is_named() {
    admix(&["data", "check", "/nowhere/day-0"]).expect(2, &["/nowhere/day-0", "is not a directory"]);
    admix(&["eval", "--log", "/nowhere/day-0"]).expect(2, &["/nowhere/day-0", "is not a directory"]);
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &config(folder.path(), "/nowhere/day-0", ""), &[])
        .expect(2, &["/nowhere/day-0", "is not a directory"]);
}

#[test]
fn check_goes_on_after_a_bad_directory() {
    let (bad, good) = (Log::new(&[]), Log::new(&[request(0)]));
    let said = admix(&["data", "check", "--json", bad.dir(), good.dir()]).expect(2, &["no usable request"]);
    let lines: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0]["error"].is_string() && lines[0]["directory"] == bad.dir());
    assert_eq!(lines[1]["requests"], 1);
}

#[test]
fn a_day_file_that_cannot_be_read_is_told() {
    let log = Log::new(&[request(0)]);
    for (text, word) in [("date = 7", "date"), ("date = \"2026-02-30\"", "2026-02-30"), ("dat = \"2026-01-01\"", "dat")]
    {
        log.write("day.toml", text);
        log.check(&[]).expect(2, &["day.toml", word]);
    }
}

/// All of it was read into memory.
#[test]
fn a_day_file_without_end_is_an_error() {
    let log = Log::new(&[request(0)]);
    std::fs::File::create(log.path("day.toml")).unwrap().set_len(1 << 40).unwrap();
    log.check(&[]).expect(2, &["day.toml", "longer than a day file can be"]);
}

#[test]
fn a_compiled_log_that_is_something_else_is_rebuilt_with_a_warning() {
    let log = Log::new(&(0..50).map(request).collect::<Vec<_>>());
    let before = evaluation(&log);
    let good = std::fs::read(log.compiled()).unwrap();
    let flipped = |i: usize| {
        let mut bytes = good.clone();
        bytes[i] ^= 1;
        bytes
    };
    for (bytes, word) in [
        (b"GIF89a, and longer than a header: ".repeat(10), "wrong magic"),
        (flipped(0), "wrong magic"),
        (flipped(8), "format version"),
        (good[..good.len() - 1].to_vec(), "bytes are there"),
        (good[..100].to_vec(), "shorter than a header"),
        (flipped(good.len() - 1), "checksum mismatch"),
        (flipped(200), "checksum mismatch"),
    ] {
        std::fs::write(log.compiled(), &bytes).unwrap();
        log.check(&[]).expect(0, &[".admix/compiled.log", word, "compiling again"]);
        assert!(std::fs::read(log.compiled()).unwrap() == good, "{word}");
        assert_eq!(evaluation(&log), before);
    }
}

#[test]
fn columns_may_come_in_any_order_and_unknown_ones_are_a_warning() {
    let rows: Vec<String> = (0..30).map(request).collect();
    let usual = evaluation(&Log::new(&rows));
    let mut track = String::from("queue\tage\tgender\tregion\tslot_id\tts_ms\trequest_id\n");
    let mut wide = format!("mood\t{HEADER}\tuser_id\n");
    for (i, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = row.trim_end().split('\t').rev().collect();
        track += &(cells.join("\t") + "\n");
        wide += &format!("fine\t{}\t{}\n", row.trim_end(), i / 2);
    }
    let control = format!("{CONTROL}{CONTRACT}");
    assert_eq!(evaluation(&Log::of(&track, &control)), usual);
    let log = Log::of(&wide, &control);
    assert_eq!(
        log.check(&[]).expect(0, &["track_log.tsv", "column `mood` is unknown and ignored"]).json()["requests"],
        30
    );
    assert_eq!(evaluation(&log), usual);
}

#[test]
fn windows_line_ends_and_compression_change_nothing() {
    let rows: Vec<String> = (0..30).map(request).collect();
    let (track, control) = (format!("{HEADER}\n{}", rows.concat()), format!("{CONTROL}{CONTRACT}"));
    let usual = evaluation(&Log::of(&track, &control));
    let crlf = |text: &str| text.replace('\n', "\r\n");
    assert_eq!(evaluation(&Log::of(&crlf(&track), &crlf(&control))), usual);
    assert_eq!(evaluation(&Log::of(&format!("\u{feff}{track}"), &control)), usual);
    for ending in ["gz", "zst"] {
        let log = Log::new(&[]);
        for (name, text) in [("track_log", &track), ("control", &control)] {
            std::fs::remove_file(log.path(&format!("{name}.tsv"))).unwrap();
            log.write(&format!("{name}.tsv.{ending}"), text);
        }
        assert_eq!(evaluation(&log), usual, "{ending}");
    }
}

/// Lines with Windows ends and those after empty ones were counted one too low.
#[test]
fn the_lines_that_errors_name_are_those_of_an_editor() {
    let bad = row(9, MIDNIGHT, "");
    let control = format!("{CONTROL}{CONTRACT}");
    let track = format!("{HEADER}\n{}{}{bad}{}", request(0), request(1), request(2));
    Log::of(&track, &control).check(&[]).expect(2, &["line 4, column `queue`"]);
    Log::of(&track.replace('\n', "\r\n"), &control).check(&[]).expect(2, &["line 4, column `queue`"]);
    Log::of(&track.replace('\n', "\n\n"), &control).check(&[]).expect(2, &["1 of 4 rows", "line 7, column `queue`"]);
    Log::of(&format!("{HEADER}\n{}{}", request(0), bad.trim_end()), &control).check(&[]).expect(2, &["line 3"]);
    let log = Log::with_control("1\t10\t9\t\t\t\t\t\t\t5\t1\t\r\n");
    log.check(&[]).expect(2, &["line 2, column `cap`"]);
}

#[test]
fn a_parquet_track_log_equals_the_text_one() {
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
    let rows: Vec<String> = (0..200).map(request).chain([row(900, MIDNIGHT, "")]).collect();
    let text = Log::new(&rows);
    let log = Log::new(&[]);
    std::fs::remove_file(log.path("track_log.tsv")).unwrap();
    // Another order of columns, in several row groups, with one that may be null.
    let schema = "message track {
        required binary queue (UTF8); required int64 request_id (INTEGER(64, false)); required int64 ts_ms;
        required int32 slot_id; required int32 region; required int32 gender; required int32 age; optional int64 user_id;
    }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let file = std::fs::File::create(log.path("track_log.parquet")).unwrap();
    let mut writer = parquet::file::writer::SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    for group in rows.chunks(60) {
        let cells: Vec<Vec<&str>> = group.iter().map(|row| row.trim_end_matches('\n').split('\t').collect()).collect();
        let column = |i: usize| cells.iter().map(move |row| row[i]);
        let mut columns = writer.next_row_group().unwrap();
        for source in [6, 0, 1, 2, 3, 4, 5, 7] {
            let mut out = columns.next_column().unwrap().unwrap();
            match source {
                6 => {
                    let values: Vec<ByteArray> = column(6).map(ByteArray::from).collect();
                    out.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
                }
                0 | 1 => {
                    let values: Vec<i64> = column(source).map(|v| v.parse().unwrap()).collect();
                    out.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
                }
                7 => {
                    let levels: Vec<i16> = (0..cells.len()).map(|i| i16::from(i % 2 == 0)).collect();
                    let values = vec![5; cells.len().div_ceil(2)];
                    out.typed::<Int64Type>().write_batch(&values, Some(&levels), None).unwrap();
                }
                _ => {
                    let values: Vec<i32> = column(source).map(|v| v.parse().unwrap()).collect();
                    out.typed::<Int32Type>().write_batch(&values, None, None).unwrap();
                }
            }
            out.close().unwrap();
        }
        columns.close().unwrap();
    }
    writer.close().unwrap();
    let of = |log: &Log| {
        let mut report = log.check(&[]).expect(0, &[]).json();
        for field in ["directory", "log", "quarantine"] {
            report.as_object_mut().unwrap().remove(field).unwrap();
        }
        (report, evaluation(log))
    };
    assert_eq!(of(&log).0["reasons"], serde_json::json!({ "empty_queue": 1 }));
    assert_eq!(of(&log), of(&text));
    std::fs::write(log.path("track_log.parquet"), b"PAR1, or is it").unwrap();
    log.check(&[]).expect(2, &["track_log.parquet", "not a readable Parquet file"]);
}

#[test]
fn any_bad_control_row_is_an_error_with_its_line_and_column() {
    let good = CONTRACT;
    for (bad, column, words) in [
        ("2\t10\t9\t\t\t\t\t\t\t5\t1\t\n", "cap", "`9`: must be at least required = 10"),
        ("2\t10\t12\t13\t\t\t\t\t\t5\t1\t\n", "delivered0", "`13`: must be at most cap = 12"),
        ("2\t10\t\t11\t\t\t\t\t\t5\t1\t\n", "delivered0", "`11`: must be at most cap = 10"),
        ("2\t10\t\t\t7200000\t3600000\t\t\t\t5\t1\t\n", "end_ms", "must be after start_ms"),
        ("2\t10\t\t\t3600000\t3600000\t\t\t\t5\t1\t\n", "end_ms", "must be after start_ms"),
        ("1\t10\t\t\t\t\t\t\t\t5\t1\t\n", "ad_id", "`1`: stands twice"),
        ("2\t0\t\t\t\t\t\t\t\t5\t1\t\n", "required", "must be at least 1"),
        ("2\t\t\t\t\t\t\t\t\t5\t1\t\n", "required", "must not be empty"),
        ("2\t10\t\t\t\t\t\t1.5\t\t5\t1\t\n", "theta", "`1.5`: must be at most 1"),
        ("2\t10\t\t\t\t\t\t\t-0.1\t5\t1\t\n", "rate", "`-0.1`: must be at least 0"),
        ("2\t10\t\t\t\t\t\t\t\tNaN\t1\t\n", "penalty", "`NaN`: must be finite"),
        ("2\t10\t\t\t\t\t\t\t\t-5\t1\t\n", "penalty", "`-5`: must be at least 0"),
        ("2\t10\t\t\t\t\t\t\t\t5\tinf\t\n", "click_value", "`inf`: must be finite"),
        ("2\t1000000001\t\t\t\t\t\t\t\t5\t1\t\n", "required", "must be at most 1000000000"),
        ("2\t10\t1000000001\t\t\t\t\t\t\t5\t1\t\n", "cap", "must be at most 1000000000"),
        ("2\t10\t\t\t\t\t\t\t\t5\t\t\n", "click_value", "must not be empty"),
        ("2\t10\t\t\t\t\tplanet:1\t\t\t5\t1\t\n", "targeting", "planet"),
        ("2\t10\n", "", "the row has 2 cells, the header 12"),
    ] {
        let log = Log::with_control(&format!("{good}{bad}"));
        let place = format!("control.tsv: line 3, column `{column}`: ");
        log.check(&["--max-bad-share", "1"]).expect(2, &[log.dir(), &place, words]);
    }
    // The largest that is still allowed.
    let report = Log::with_control("1\t10\t12\t12\t0\t86400000\tregion:1,2|gender:1\t1\t0\t0\t0\t1\n").report();
    assert_eq!(report["contracts"][0]["owed"], 0);
}

/// A penalty of 1e300 killed learner after learner, one of 1e308 made `plan` panic and `eval` print NaN; `data check` was silent.
#[test]
fn penalties_and_click_values_beyond_all_money_are_refused() {
    for (penalty, click_value, column) in [
        ("1e300", "1", "penalty"),
        ("1e308", "1", "penalty"),
        ("100001", "1", "penalty"),
        ("5", "1e308", "click_value"),
        ("5", "1000001", "click_value"),
    ] {
        let log = Log::with_control(&format!("1\t10\t\t\t\t\t\t\t\t{penalty}\t{click_value}\t\n"));
        let words = [&format!("control.tsv: line 2, column `{column}`")[..], "must be at most"];
        log.check(&[]).expect(2, &words);
        admix(&["plan", log.dir()]).expect(2, &words);
        admix(&["eval", "--log", log.dir()]).expect(2, &words);
    }
    // The largest that are allowed are planned and judged in numbers.
    let log = Log::with_control("1\t1000000000\t\t\t\t\t\t\t\t100000\t1000000\t1\n");
    admix(&["plan", log.dir()]).expect(0, &[]);
    let report = admix(&["eval", "--json", "--log", log.dir()]).expect(0, &[]).json();
    assert!(report["policies"].as_array().unwrap().iter().all(|p| p["j"].is_f64()), "{report}");
}

/// 70,000 contracts ended with an allocation of 39 GB.
#[test]
fn too_many_contracts_are_refused_at_once() {
    let rows: String = (0..10_001).map(|j| format!("{j}\t1\t\t\t\t\t\t\t\t5\t1\t\n")).collect();
    let log = Log::with_control(&rows);
    let words = ["control.tsv: 10001 contracts; a day may have 10000", "split the inventory"];
    log.check(&[]).expect(2, &words);
    admix(&["plan", log.dir()]).expect(2, &words);
}

#[test]
fn a_bad_inventory_row_is_an_error_with_its_line_and_column() {
    let log = Log::new(&[request(0)]);
    let header = "node_id\tslot_id\tregion\tgender\tage\tpv\tcurve\tad_ids\n";
    let even = vec![(1.0_f64 / 24.0).to_string(); 24].join(",");
    log.write("inventory.tsv", &format!("{header}1\t3\t1\t0\t0\t250.5\t{even}\t\n"));
    assert_eq!(log.report()["inventory_pv"], 250.5);
    for (row, column) in [
        (format!("1\t3\t1\t0\t0\t-1\t{even}\t"), "pv"),
        (String::from("1\t3\t1\t0\t0\t1\t0.5,0.5\t"), "curve"),
        (format!("1\t3\t1\t0\t0\t1\t{even},0\t"), "curve"),
        (format!("1\t3\t1\t0\t0\t1\t{even}\tx"), "ad_ids"),
    ] {
        log.write("inventory.tsv", &format!("{header}{row}\n"));
        log.check(&[]).expect(2, &["inventory.tsv: line 2", &format!("column `{column}`")]);
    }
}

#[test]
fn a_bad_configuration_names_file_line_key_and_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(&[request(0)]);
    for (more, words) in [
        (
            "[evaluate]\nevry = 3\n",
            &["small.toml: line 16", "unknown key `evaluate.evry`", "did you mean `evaluate.every`?"][..],
        ),
        ("[bugdet]\nmax_updates = 3\n", &["small.toml: line 15", "unknown key `bugdet`", "did you mean `budget`?"]),
        ("[evaluate]\nbatch = 3\n", &["small.toml: line 16", "unknown key `evaluate.batch`"]),
        ("[evaluate]\nevery = \"often\"\n", &["small.toml", "line 16, column 9", "every = \"often\"", "expected u64"]),
        ("[env]\nfeedback_delay_s = true\n", &["small.toml", "line 16, column 20", "expected f64"]),
        ("[evaluate]\nevery = 0\n", &["`evaluate.every` must be at least 1"]),
        ("[evaluate\nevery = 0\n", &["small.toml", "line 15, column 10"]),
        ("[budget]\nmax_updates = 0\n", &["`budget` sets no bound", "max_seconds"]),
        ("[env]\nfeedback_delay_s = nan\n", &["`env.feedback_delay_s` is NaN"]),
    ] {
        let config = config(folder.path(), log.dir(), more);
        train(folder.path(), &config, &[]).expect(2, words);
    }
    let nowhere = folder.path().join("nowhere.toml");
    let said = train(folder.path(), &nowhere, &[]).expect(2, &["cannot read the configuration", "nowhere.toml"]);
    assert_eq!(said.stderr.matches("No such file").count(), 1, "{}", said.stderr);
    assert!(!folder.path().join("run").exists(), "nothing was started");
}

#[test]
fn a_bad_set_option_names_itself_and_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(&[request(0)]);
    let config = config(folder.path(), log.dir(), "");
    for (set, words) in [
        ("run.seed", &["--set run.seed: write it as key=value"][..]),
        ("run.sed=1", &["--set run.sed=1", "did you mean `run.seed`?"]),
        ("learner.critic=quantiles", &["--set learner.critic=quantiles", "`quantile`, `categorical`, `scalar`"]),
        ("learner.pool=large", &["--set learner.pool=large", "expected usize"]),
        ("learner.pool=10", &["`learner.pool` is 10; must hold at least one batch"]),
        ("learner.threads=100000", &["`learner.threads` is 100000; must be at most 1024"]),
        ("learner.atoms=1000000000", &["`learner.atoms` is 1000000000; must be at most 1024"]),
        ("actors.count=65", &["`actors.count` is 65; must be at most 64"]),
        ("run.device=abacus", &["unknown device `abacus`; use auto, cpu, cuda or cuda:INDEX"]),
        ("data.train=[]", &["`data.train` names no log directory"]),
    ] {
        train(folder.path(), &config, &["--set", set]).expect(2, words);
    }
    assert!(!folder.path().join("run").exists(), "nothing was started");
}

#[test]
fn a_policy_or_plan_that_cannot_be_used_is_wrong_input() {
    let log = Log::new(&[request(0)]);
    let file = log.path("other.safetensors");
    std::fs::write(&file, b"what is this").unwrap();
    let file = file.to_str().unwrap();
    admix(&["eval", "--log", log.dir(), "--policy", file]).expect(2, &[file, "is not a usable policy"]);
    admix(&["eval", "--log", log.dir(), "--policy", "/nowhere/run"])
        .expect(2, &["there is no policy /nowhere/run", "name a run directory"]);
    admix(&["eval", "--log", log.dir(), "--plan", file]).expect(2, &[file]);
    admix(&["eval", "--log", log.dir(), "--baselines", "pidd"]).expect(2, &["no baseline `pidd`", "static-prices"]);
}

#[test]
fn json_is_all_that_stands_on_stdout() {
    let day = days().join("day-0");
    let day = day.to_str().unwrap();
    for arguments in
        [&["data", "check", "--json", day][..], &["eval", "--json", "--log", day], &["plan", "--json", day]]
    {
        assert!(admix(arguments).expect(0, &[]).json().is_object(), "{arguments:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), day, "[budget]\nmax_updates = 3\n");
    let test = days().join("day-2");
    let test = format!("data.test=[{test:?}]");
    let said = train(folder.path(), &config, &["--json", "--set", &test]).expect(0, &["budget spent", "policy: "]);
    let lines: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let (days, verdict): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line["verdict"].is_null());
    assert_eq!((days.len(), verdict.len()), (1, 1));
    assert!(days.iter().all(|line| line["log"] == "day-2" && line["bound"]["ub"].is_f64()), "{lines:?}");
}

/// They ended with 1, which schedulers repeat for ever, and some said only "nope: No such file or directory".
#[test]
fn paths_that_cannot_be_used_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(&[request(0)]);
    let config = config(folder.path(), log.dir(), "");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    // Even root cannot make a folder below a file.
    let below = file.join("run");
    let (nope, out) = (folder.path().join("nope.tsv"), folder.path().join("dictionary.tsv"));
    let [config, below, nope, out] = [&config, &below, &nope, &out].map(|path| path.to_str().unwrap());
    let of = ["--policy", "baseline:contract-first", "--control", nope];
    let unopened = format!("cannot open {nope}");
    for (arguments, word) in [
        (vec!["train", "--config", config, "--run-dir", below], "cannot use"),
        ([&["serve"], &of[..]].concat(), unopened.as_str()),
        ([&["export", "--log", log.dir(), "--out", out], &of[..]].concat(), unopened.as_str()),
    ] {
        admix(&arguments).expect(2, &[word]);
    }
}

#[test]
fn a_run_directory_is_used_once() {
    let mut running = Run::start(ENDLESS, &[]);
    until_best(&mut running);
    let folder = running.dir().parent().unwrap().to_owned();
    let config = folder.join("config.toml");
    let run = running.dir();
    let before = std::fs::read(run.join("config.toml")).unwrap();
    train(&folder, &config, &[]).expect(1, &[run.to_str().unwrap(), "in use by a running", "--run-dir"]);
    assert!(std::fs::read(run.join("config.toml")).unwrap() == before);
    running.signal(nix::sys::signal::Signal::SIGINT);
    let ended = running.wait().expect(130);
    let outcome = ended.outcome();
    train(&folder, &config, &[]).expect(2, &[run.to_str().unwrap(), "already holds a run", "--run-dir"]);
    assert_eq!(ended.outcome(), outcome, "the old run is untouched");
}

#[test]
fn too_little_shared_memory_is_told_before_anything_starts() {
    let sets = ["actors.write_every=1000000000", "checkpoint.every_s=0"];
    let ended = Run::start(&sets, &[]).wait().expect(1);
    for word in ["not enough shared memory", "MiB needed", "MiB free in /dev/shm", "--shm-size", "actors.write_every"] {
        assert!(ended.stderr.contains(word), "no `{word}` in {}", ended.stderr);
    }
    assert!(!ended.dir().join("logs/learner.log").exists(), "no process was started");
    // As many regions as a ring can have: the message depends on what is asked for.
    let more = Run::start(&[sets[0], sets[1], "actors.regions=64"], &[]).wait().expect(1);
    let needed = |text: &str| -> f64 {
        let rest = text.split("not enough shared memory: ").nth(1).unwrap();
        rest.split(" MiB").next().unwrap().parse().unwrap()
    };
    assert!(needed(&more.stderr) > 30.0 * needed(&ended.stderr), "{} {}", ended.stderr, more.stderr);
}
