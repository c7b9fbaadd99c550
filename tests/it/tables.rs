//! Tables in every form that platforms write: Parquet of all codecs, units and layouts, directories of part files, CSV,
//! JSON lines; hostile files end in errors that name them.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, Int96};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use serde_json::Value;

use crate::inputs::evaluation;
use crate::small_logs::{CONTRACT, CONTROL, HEADER, Log, MIDNIGHT, admix, request, row};

/// How a track log is stored.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    codec: Compression,
    version: WriterVersion,
    dictionary: bool,
    /// Declaration of `ts_ms`, and units to a millisecond; 0 writes the 96 bits of Impala.
    time: (&'static str, i64),
    /// Groups between `queue` and the fields of an entry.
    layout: &'static str,
}

const THREE_LEVELS: &str = "optional group queue (LIST) { repeated group list { optional group element { FIELDS } } }";
const TWO_LEVELS: &str = "optional group queue (LIST) { repeated group array { FIELDS } }";
const BARE: &str = "repeated group queue { FIELDS }";
const FIELDS: &str = "optional int64 ad_id (INTEGER(64, false)); optional binary type (UTF8); optional double ecpm;
    optional float pctr; optional int64 filter (INTEGER(64, false)); optional int32 boost (DECIMAL(4, 1));";

const USUAL: Form = Form {
    codec: Compression::SNAPPY,
    version: WriterVersion::PARQUET_1_0,
    dictionary: true,
    time: ("int64 ts_ms (TIMESTAMP(MICROS, true))", 1000),
    layout: THREE_LEVELS,
};

/// Writes text rows as Parquet, queues as lists of structs, with a column that nobody asked for and in it dates that no
/// calendar has.
pub fn write_parquet(path: &Path, rows: &[String], form: Form) {
    let schema = format!(
        "message track {{ required int64 when (TIMESTAMP(MILLIS, true)); optional double user_id;
         required int64 request_id (INTEGER(64, false)); required {};
         required int32 slot_id; required int32 region; required int32 gender; required int32 age; {} }}",
        form.time.0,
        form.layout.replace("FIELDS", FIELDS)
    );
    let schema = Arc::new(parquet::schema::parser::parse_message_type(&schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(form.codec)
        .set_writer_version(form.version)
        .set_dictionary_enabled(form.dictionary)
        .set_data_page_row_count_limit(30)
        .build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.clone(), Arc::new(properties)).unwrap();
    for group in rows.chunks(70) {
        let cells: Vec<Vec<&str>> = group.iter().map(|row| row.trim_end_matches('\n').split('\t').collect()).collect();
        let numbers = |i: usize| cells.iter().map(move |row| row[i].parse::<i64>().unwrap());
        let mut columns = writer.next_row_group().unwrap();
        let names: Vec<String> = schema.get_fields()[..8].iter().map(|f| f.name().to_owned()).collect();
        for name in &names {
            let mut out = columns.next_column().unwrap().unwrap();
            let i = HEADER.split('\t').position(|h| h == name);
            match (out.untyped(), i) {
                (ColumnWriter::Int64ColumnWriter(w), None) => {
                    w.write_batch(&vec![i64::MAX; cells.len()], None, None).unwrap();
                }
                (ColumnWriter::DoubleColumnWriter(w), _) => {
                    let levels: Vec<i16> = (0..cells.len()).map(|i| i16::from(i % 2 == 0)).collect();
                    w.write_batch(&vec![5.0; cells.len().div_ceil(2)], Some(&levels), None).unwrap();
                }
                (ColumnWriter::Int64ColumnWriter(w), Some(i)) => {
                    let unit = if i == 1 { form.time.1 } else { 1 };
                    let values: Vec<i64> = numbers(i).map(|v| v * unit + unit / 2).collect();
                    w.write_batch(&values, None, None).unwrap();
                }
                (ColumnWriter::Int96ColumnWriter(w), Some(i)) => {
                    let values: Vec<Int96> = numbers(i)
                        .map(|ms| {
                            let mut time = Int96::new();
                            let nanos = (ms % 86_400_000) * 1_000_000;
                            time.set_data(nanos as u32, (nanos >> 32) as u32, (ms / 86_400_000 + 2_440_588) as u32);
                            time
                        })
                        .collect();
                    w.write_batch(&values, None, None).unwrap();
                }
                (ColumnWriter::Int32ColumnWriter(w), Some(i)) => {
                    w.write_batch(&numbers(i).map(|v| v as i32).collect::<Vec<_>>(), None, None).unwrap();
                }
                _ => unreachable!("{name}"),
            }
            out.close().unwrap();
        }
        write_queues(&mut columns, &cells, form.layout);
        columns.close().unwrap();
    }
    writer.close().unwrap();
}

fn write_queues<W: std::io::Write + Send>(
    columns: &mut parquet::file::writer::SerializedRowGroupWriter<'_, W>,
    cells: &[Vec<&str>],
    layout: &str,
) {
    // Definition levels of an empty list, and of a field that is there.
    let (empty, there) = match layout {
        THREE_LEVELS => (1, 4),
        TWO_LEVELS => (1, 3),
        _ => (0, 2),
    };
    for field in 0..6 {
        let (mut def, mut rep, mut texts): (Vec<i16>, Vec<i16>, Vec<&str>) = (vec![], vec![], vec![]);
        for row in cells {
            let entries: Vec<&str> = row[6].split(';').filter(|e| !e.is_empty()).collect();
            if entries.is_empty() {
                def.push(empty);
                rep.push(0);
            }
            for (i, entry) in entries.iter().enumerate() {
                rep.push(i16::from(i > 0));
                match entry.split(',').nth(field) {
                    Some(text) => {
                        def.push(there);
                        texts.push(text);
                    }
                    None => def.push(there - 1),
                }
            }
        }
        let (def, rep) = (Some(&def[..]), Some(&rep[..]));
        let mut out = columns.next_column().unwrap().unwrap();
        match out.untyped() {
            ColumnWriter::Int64ColumnWriter(w) => {
                w.write_batch(&texts.iter().map(|t| t.parse::<u64>().unwrap() as i64).collect::<Vec<_>>(), def, rep)
                    .unwrap();
            }
            ColumnWriter::ByteArrayColumnWriter(w) => {
                w.write_batch(&texts.iter().map(|t| ByteArray::from(*t)).collect::<Vec<_>>(), def, rep).unwrap();
            }
            ColumnWriter::DoubleColumnWriter(w) => {
                w.write_batch(&texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<_>>(), def, rep).unwrap();
            }
            ColumnWriter::FloatColumnWriter(w) => {
                w.write_batch(&texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<_>>(), def, rep).unwrap();
            }
            ColumnWriter::Int32ColumnWriter(w) => {
                let tenths = texts.iter().map(|t| (t.parse::<f64>().unwrap() * 10.0).round() as i32);
                w.write_batch(&tenths.collect::<Vec<_>>(), def, rep).unwrap();
            }
            _ => unreachable!(),
        };
        out.close().unwrap();
    }
}

/// Requests with queues of one to five entries, a boost in some; every pctr is one that 32 bits hold.
fn requests(n: u64) -> Vec<String> {
    let entry = |i: u64, j: u64| {
        let boost = if (i + j).is_multiple_of(3) { ",1.5" } else { "" };
        format!(
            "{},A,{},{},{}{boost}",
            100 + j,
            900 + (i * 37 + j * 11) % 1000,
            0.25 / (1 + j) as f32 / 3.0_f32.exp2(),
            j % 4
        )
    };
    (0..n)
        .map(|i| {
            let contract = if i % 2 == 0 { vec!["1,C,0,0.015625,0".to_owned()] } else { vec![] };
            let queue: Vec<String> = contract.into_iter().chain((0..1 + i % 4).map(|j| entry(i, j))).collect();
            row(i, MIDNIGHT + 1000 * i, &queue.join(";"))
        })
        .collect()
}

/// Every codec, unit and layout.
pub fn forms() -> Vec<Form> {
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ];
    let of_codecs = codecs.into_iter().flat_map(|codec| {
        let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
        versions.map(|version| Form { codec, version, dictionary: version == WriterVersion::PARQUET_1_0, ..USUAL })
    });
    let of_times = [
        ("int64 ts_ms", 1),
        ("int64 ts_ms (TIMESTAMP(MILLIS, true))", 1),
        ("int64 ts_ms (TIMESTAMP(NANOS, false))", 1_000_000),
        ("int64 ts_ms (TIMESTAMP_MICROS)", 1000),
        ("int96 ts_ms", 0),
    ]
    .map(|time| Form { time, ..USUAL });
    let of_layouts = [TWO_LEVELS, BARE].map(|layout| Form { layout, ..USUAL });
    of_codecs.chain(of_times).chain(of_layouts).collect()
}

/// The rows of a text track log with the usual columns, for [`write_parquet`]; a `user_id` is left out.
pub fn rows_of(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    let at: Vec<usize> = HEADER.split('\t').map(|name| header.iter().position(|h| *h == name).unwrap()).collect();
    lines.map(|cells| at.iter().map(|&i| cells[i]).collect::<Vec<_>>().join("\t") + "\n").collect()
}

/// A log without a track log.
fn without_track() -> Log {
    let log = Log::new(&[]);
    std::fs::remove_file(log.path("track_log.tsv")).unwrap();
    log
}

/// What `data check` and `eval` make of a log, but for its place.
fn outcome(log: &Log) -> (Value, Value) {
    let mut report = log.check(&[]).expect(0, &[]).json();
    for field in ["directory", "log", "quarantine"] {
        report.as_object_mut().unwrap().remove(field).unwrap();
    }
    (report, evaluation(log))
}

#[test]
fn parquet_of_every_codec_unit_and_layout_equals_the_text() {
    let mut rows = requests(200);
    rows.push(row(900, MIDNIGHT, ""));
    let wanted = outcome(&Log::new(&rows));
    assert_eq!(wanted.0["reasons"], serde_json::json!({ "empty_queue": 1 }));
    for form in forms() {
        let log = without_track();
        write_parquet(&log.path("track_log.parquet"), &rows, form);
        assert_eq!(outcome(&log), wanted, "{form:?}");
    }
}

#[test]
fn csv_and_json_lines_equal_the_text() {
    let mut rows = requests(160);
    rows.push(row(900, MIDNIGHT, ""));
    let wanted = outcome(&Log::new(&rows));
    let cells: Vec<Vec<&str>> = rows.iter().map(|row| row.trim_end_matches('\n').split('\t').collect()).collect();
    let mut csv = HEADER.replace('\t', ",") + "\r\n";
    let (mut texts, mut lists) = (String::new(), String::new());
    for row in &cells {
        csv += &format!("{},\"{}\"\r\n", row[..6].join(","), row[6]);
        let mut object = serde_json::Map::new();
        for (name, cell) in HEADER.split('\t').zip(row) {
            object.insert(name.into(), cell.parse::<u64>().map_or_else(|_| (*cell).into(), Value::from));
        }
        texts += &format!("{}\n", Value::Object(object.clone()));
        // As they stand in the text: a number keeps its digits.
        let entries = row[6].split(';').filter(|e| !e.is_empty()).map(|entry| {
            let fields: Vec<&str> = entry.split(',').collect();
            let boost = fields.get(5).map(|b| format!(",\"boost\":{b}")).unwrap_or_default();
            format!(
                "{{\"type\":\"{}\",\"ad_id\":{},\"ecpm\":{},\"pctr\":{},\"filter\":{}{boost}}}",
                fields[1], fields[0], fields[2], fields[3], fields[4]
            )
        });
        let list = format!("[{}]", entries.collect::<Vec<_>>().join(","));
        object.remove("queue");
        let text = Value::Object(object).to_string();
        lists += &format!("{},\"queue\":{list}}}\n", text.trim_end_matches('}'));
    }
    for (name, text) in [
        ("track_log.csv", &csv),
        ("track_log.csv.gz", &csv),
        ("track_log.jsonl", &texts),
        ("track_log.jsonl", &lists),
        ("track_log.jsonl.zst", &lists),
    ] {
        let log = without_track();
        log.write(name, text);
        assert_eq!(outcome(&log), wanted, "{name}");
    }
    // Contracts and forecast too.
    let log = without_track();
    std::fs::remove_file(log.path("control.tsv")).unwrap();
    log.write("track_log.csv", &csv);
    log.write("control.csv", &format!("{CONTROL}{CONTRACT}").replace('\t', ","));
    assert_eq!(outcome(&log), wanted);
    let even: Vec<String> = vec![(1.0_f64 / 24.0).to_string(); 24];
    log.write(
        "inventory.jsonl",
        &format!(
            "{{\"node_id\":1,\"slot_id\":3,\"region\":1,\"gender\":0,\"age\":0,\"pv\":250.5,\"curve\":[{}],\"ad_ids\":[1]}}\n",
            even.join(",")
        ),
    );
    assert_eq!(log.report()["inventory_pv"], 250.5);
}

#[test]
fn a_bad_json_line_is_a_bad_row_and_a_bad_first_one_an_error() {
    let good = |i: u64| {
        let text = request(i);
        let object: serde_json::Map<String, Value> =
            HEADER.split('\t').zip(text.trim_end().split('\t')).map(|(k, v)| (k.to_owned(), v.into())).collect();
        Value::Object(object).to_string() + "\n"
    };
    let log = without_track();
    for (bad, words) in [
        ("{\"request_id\":", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("{}", "the object has no `request_id`"),
        (&good(9).trim_end().replace("\"9\"", "{}"), "has to be a plain value"),
        (&good(9).trim_end().replace("{\"", "{\"age\":1,\""), "the key `age` stands twice"),
    ] {
        log.write("track_log.jsonl", &format!("{}{bad}\n{}", good(0), good(1)));
        log.check(&[]).expect(2, &["track_log.jsonl", "line 2", words]);
        assert_eq!(log.report()["reasons"], serde_json::json!({ "bad_json": 1 }), "{bad}");
    }
    log.write("track_log.jsonl", "request_id\tts_ms\n");
    log.check(&[]).expect(2, &["track_log.jsonl: line 1: not a JSON object"]);
    log.write("track_log.jsonl", "{\"request_id\":1}\n");
    log.check(&[]).expect(2, &["track_log.jsonl: line 1: no column `ts_ms`; the header has: request_id"]);
}

#[test]
fn a_directory_of_part_files_is_one_table_in_the_order_of_its_paths() {
    let rows = requests(300);
    let wanted = outcome(&Log::new(&rows));
    for folder in ["track_log", "track_log.parquet"] {
        let log = without_track();
        for (hour, rows) in rows.chunks(100).enumerate() {
            let dir = log.path(folder).join(format!("hour={hour:02}"));
            std::fs::create_dir_all(&dir).unwrap();
            // As Spark names them, and as Flink does.
            write_parquet(&dir.join("part-00000-5f3c.c000.snappy.parquet"), &rows[..60], USUAL);
            write_parquet(&dir.join("part-5f3c-0-1"), &rows[60..], Form { dictionary: false, ..USUAL });
            std::fs::write(dir.join(".part-00000-5f3c.c000.snappy.parquet.crc"), b"crc").unwrap();
        }
        std::fs::write(log.path(folder).join("_SUCCESS"), b"").unwrap();
        std::fs::create_dir_all(log.path(folder).join("_temporary/0")).unwrap();
        std::fs::write(log.path(folder).join("_temporary/0/part-0.parquet"), b"half").unwrap();
        assert_eq!(outcome(&log), wanted);

        // Changed, it is compiled again; named, where it is bad.
        let part = log.path(folder).join("hour=02/part-zzz.parquet");
        write_parquet(&part, &[row(5, MIDNIGHT, "7,A,9,0.5,0"), row(901, MIDNIGHT, "7,A,9,0.5,0")], USUAL);
        let report = log.report();
        assert_eq!((&report["rows"], &report["requests"]), (&302.into(), &301.into()));
        assert_eq!(report["reasons"], serde_json::json!({ "duplicate_request": 1 }));
        let listed = std::fs::read_to_string(report["quarantine"].as_str().unwrap()).unwrap();
        let place = format!("{folder}/hour=02/part-zzz.parquet\t1\trequest_id\t5\t");
        assert!(listed.lines().nth(1).unwrap().starts_with(&place), "{listed}");
        log.check(&["--max-bad-share", "0"]).expect(2, &["hour=02/part-zzz.parquet: line 1, column `request_id`"]);

        std::fs::write(&part, b"PAR1, or is it").unwrap();
        log.check(&[]).expect(2, &["hour=02/part-zzz.parquet", "not a readable Parquet file"]);
        std::fs::rename(&part, log.path(folder).join("notes.txt")).unwrap();
        std::fs::write(log.path(folder).join("notes.txt"), b"text").unwrap();
        log.check(&[]).expect(2, &["notes.txt", "is no part file"]);
    }
}

#[test]
fn of_duplicates_the_first_in_byte_order_of_paths_stays() {
    let log = without_track();
    for (part, ecpm) in [("a/x.tsv", 30), ("a-b/x.tsv", 10), ("a.tsv", 20)] {
        let path = log.path("track_log").join(part);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("{HEADER}\n{}", row(1, MIDNIGHT, &format!("7,A,{ecpm},0.5,0")))).unwrap();
    }
    assert_eq!(log.report()["reasons"], serde_json::json!({ "duplicate_request": 2 }));
    // `-` comes before `.`, and that before `/`.
    let reports = admix(&["eval", "--json", "--max-bad-share", "1", "--log", log.dir()]).expect(0, &[]).json();
    let earned = reports["bound"]["ub"].as_f64().unwrap() + reports["bound"]["stake"].as_f64().unwrap();
    assert!((earned - 0.01).abs() < 1e-9, "{earned}");
}

#[test]
fn a_column_that_is_only_in_the_path_is_told_to_be_ignored() {
    let log = without_track();
    let dir = log.path("track_log/slot_id=3");
    std::fs::create_dir_all(&dir).unwrap();
    let text = HEADER.replace("slot_id\t", "");
    std::fs::write(dir.join("part-0.tsv"), text + "\n").unwrap();
    log.check(&[]).expect(2, &["slot_id=3/part-0.tsv", "no column `slot_id`", "partitions are ignored"]);
    std::fs::remove_file(dir.join("part-0.tsv")).unwrap();
    log.check(&[]).expect(2, &["track_log", "holds no part files"]);
}

#[test]
fn a_table_under_another_name_is_named() {
    let rows = requests(10);
    for (there, wanted) in [
        ("tracklog.tsv", "rename it to track_log.tsv"),
        ("Track-Log.csv", "rename it to track_log.csv"),
        ("track_log.txt", "rename it to track_log.tsv"),
        ("track_logs.parquet", "rename it to track_log.parquet"),
        // By its columns.
        ("export_20260101.tsv", "rename it to track_log.tsv"),
        ("requests.parquet", "rename it to track_log.parquet"),
    ] {
        let log = without_track();
        std::fs::write(log.path("notes.md"), "text").unwrap();
        match there.ends_with("parquet") {
            true => write_parquet(&log.path(there), &rows, USUAL),
            false => log.write(there, &format!("{HEADER}\n{}", rows.concat())),
        }
        log.check(&[]).expect(2, &["no track_log.tsv", &format!("`{there}` is there"), wanted]);
    }
    let log = without_track();
    let said = log.check(&[]).expect(2, &["no track_log.tsv"]);
    assert!(!said.stderr.contains("is there"), "{}", said.stderr);
    let month = tempfile::tempdir().unwrap();
    std::fs::create_dir(month.path().join("day-0")).unwrap();
    std::fs::write(month.path().join("day-0/track_log.tsv"), HEADER).unwrap();
    admix(&["data", "check", month.path().to_str().unwrap()]).expect(2, &["Log directories lie in it: name day-0"]);
}

#[test]
fn columns_of_a_type_that_cannot_be_meant_are_told() {
    let rows = requests(3);
    for (form, words) in [
        (Form { time: ("int64 ts_ms (TIME(MICROS, true))", 1), ..USUAL }, "column `ts_ms` holds times of day"),
        (
            Form { layout: "repeated group queue { repeated group more { FIELDS } }", ..USUAL },
            "column `queue` is nested in another way",
        ),
    ] {
        let log = without_track();
        let schema = |layout: &str| layout.replace("FIELDS", FIELDS);
        if form.layout == USUAL.layout {
            write_parquet(&log.path("track_log.parquet"), &rows, form);
        } else {
            let text = format!("message m {{ {} }}", schema(form.layout));
            let schema = Arc::new(parquet::schema::parser::parse_message_type(&text).unwrap());
            let file = std::fs::File::create(log.path("track_log.parquet")).unwrap();
            SerializedFileWriter::new(file, schema, Arc::default()).unwrap().close().unwrap();
        }
        log.check(&[]).expect(2, &["track_log.parquet", words]);
    }
}

/// The reader decoded every column, and its calendar panicked over a time in the year 292 million: a valid file whose
/// unknown columns hold such times ended the program.
#[test]
fn extreme_dates_in_unknown_columns_are_not_read() {
    let log = without_track();
    write_parquet(&log.path("track_log.parquet"), &requests(10), USUAL);
    log.check(&[]).expect(0, &["column `when` is unknown and ignored"]);
}

/// 18 of 11,635 damaged files panicked.
#[test]
fn a_damaged_parquet_file_is_an_error_that_names_it() {
    let log = without_track();
    let path = log.path("track_log.parquet");
    write_parquet(&path, &requests(100), USUAL);
    let good = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..good.len()).step_by(good.len() / 60) {
        let mut bytes = good.clone();
        for byte in &mut bytes[at..(at + 4).min(good.len())] {
            *byte ^= 0xff;
        }
        std::fs::write(&path, bytes).unwrap();
        let said = log.check(&["--max-bad-share", "1"]);
        assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
        if said.code != 0 {
            refused += 1;
            said.expect(2, &["track_log.parquet"]);
        }
    }
    assert!(refused > 20, "{refused}");
    for keep in [good.len() - 1, good.len() / 2, 4, 0] {
        std::fs::write(&path, &good[..keep]).unwrap();
        log.check(&[]).expect(2, &["track_log.parquet"]);
    }
}

/// There was no limit on the length of a line: 364 KB of archive that unpack to 10 GB of zeros ended under a limit of 4 GB.
#[test]
fn a_line_without_an_end_is_an_error_within_bounded_memory() {
    let log = without_track();
    let mut archive = zstd::Encoder::new(std::fs::File::create(log.path("track_log.tsv.zst")).unwrap(), 3).unwrap();
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), 1 << 30), &mut archive).unwrap();
    archive.finish().unwrap();
    let limited = |dir: &str| {
        let program = crate::harness::PROGRAM;
        let line = format!("ulimit -v 700000; exec {program} data check --max-bad-share 1 {dir}");
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = limited(log.dir());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("track_log.tsv.zst") && text.contains("line 1 is longer than 4 MiB"), "{text}");

    // Among good rows it is a bad row; a sparse file is no better than an archive.
    std::fs::remove_file(log.path("track_log.tsv.zst")).unwrap();
    log.write("track_log.tsv", &format!("{HEADER}\n{}{}", request(0), request(1)));
    let file = std::fs::File::options().append(true).open(log.path("track_log.tsv")).unwrap();
    file.set_len(1 << 30).unwrap();
    let (code, text) = limited(log.dir());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(log.report()["reasons"], serde_json::json!({ "row_too_long": 1 }));
}

/// The list of bad rows had no end: 11 KB of Parquet wrote 1.6 GB of it.
#[test]
fn the_list_of_bad_rows_ends_and_their_count_does_not() {
    let bad: Vec<String> = (0..10_500).map(|i| row(i, MIDNIGHT, "")).collect();
    let log = Log::new(&[bad, vec![row(20_000, MIDNIGHT, "7,A,9,0.5,0")]].concat());
    let report = log.report();
    assert_eq!(report["reasons"], serde_json::json!({ "empty_queue": 10_500 }));
    let listed = std::fs::read_to_string(report["quarantine"].as_str().unwrap()).unwrap();
    assert_eq!(listed.lines().count(), 1 + 10_000 + 1);
    assert!(listed.lines().last().unwrap().contains("and_more"), "{}", listed.lines().last().unwrap());
}

/// A page claimed more than there is memory for, and nothing could be said of it.
#[test]
fn a_page_that_unpacks_without_end_is_an_error() {
    let log = without_track();
    let path = log.path("track_log.parquet");
    // A dictionary of one string of 300 MB: a few hundred kilobytes when packed.
    let schema = "message m { required binary queue (UTF8); required int64 request_id; required int64 ts_ms;
        required int32 slot_id; required int32 region; required int32 gender; required int32 age; }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::GZIP(GzipLevel::default())).build();
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut columns = writer.next_row_group().unwrap();
    while let Some(mut out) = columns.next_column().unwrap() {
        match out.untyped() {
            ColumnWriter::ByteArrayColumnWriter(w) => {
                w.write_batch(&[vec![b'1'; 300 << 20].into()], None, None).unwrap()
            }
            ColumnWriter::Int64ColumnWriter(w) => w.write_batch(&[MIDNIGHT as i64], None, None).unwrap(),
            ColumnWriter::Int32ColumnWriter(w) => w.write_batch(&[0], None, None).unwrap(),
            _ => unreachable!(),
        };
        out.close().unwrap();
    }
    columns.close().unwrap();
    writer.close().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    log.check(&[]).expect(2, &["track_log.parquet", "a page unpacks to more than 128 MiB"]);
}

/// Escape sequences of a log reached the terminal as they were.
#[test]
fn what_a_log_holds_reaches_the_terminal_without_its_escape_sequences() {
    let log = Log::new(&[request(0), row(1, MIDNIGHT, "7,A,\u{1b}[31m,0.5,0")]);
    let said = log.check(&[]).expect(2, &["\\u{1b}[31m"]);
    assert!(!said.stderr.contains('\u{1b}'), "{}", said.stderr);
    let log = Log::of(&format!("{HEADER}\t\u{1b}[2J\n{}\tx\n", request(0).trim_end()), CONTROL);
    assert!(!log.check(&[]).stderr.contains('\u{1b}'));
}
