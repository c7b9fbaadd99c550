//! Inputs that are odd and yet legal, and wrong ones that the program once took.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use admix::log::{self, CompileOptions};
use admix::values::Fields;
use admix::values::join::{JoinError, Share, join};
use serde_json::Value;

use crate::harness::{days, eval};
use crate::logs::LogRows;
use crate::small_logs::{CONTRACT, CONTROL, HEADER, Log, MIDNIGHT, admix, request, row};

fn day(i: usize) -> String {
    days().join(format!("day-{i}")).to_str().unwrap().to_owned()
}

/// The compiled log had the contracts of before under the hash of after, and every later command used it.
#[test]
fn a_table_that_changes_while_it_is_compiled_is_not_believed_later() {
    let rows: String = (0..40_000).map(request).collect();
    let log = Log::of(&format!("{HEADER}\n{rows}"), &format!("{CONTROL}{CONTRACT}"));
    let dir = Path::new(log.dir());
    let penalty = || log::open(dir, CompileOptions::default()).map(|log| log.contracts()[0].penalty);
    for (round, written) in (6..26).enumerate() {
        let control = format!("{CONTROL}{}", CONTRACT.replace("\t5\t", &format!("\t{written}\t")));
        let _ = std::fs::remove_dir_all(dir.join(".admix"));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(2 * round as u64));
                std::fs::write(log.path("control.new"), control).unwrap();
                std::fs::rename(log.path("control.new"), log.path("control.tsv")).unwrap();
            });
            // It may be an error, of the table or its change.
            let _ = penalty();
        });
        assert_eq!(penalty().unwrap(), f64::from(written), "round {round}");
    }
}

/// Each name was looked for among all before it: minutes for a line of 2 MB.
#[test]
fn a_header_of_very_many_columns_is_read() {
    let names: String = (0..200_000).fold(String::new(), |mut names, i| {
        let _ = write!(names, "\tc{i}");
        names
    });
    let log = Log::of(&format!("{HEADER}{names}\n{}", request(0)), &format!("{CONTROL}{CONTRACT}"));
    log.check(&[]).expect(2, &["199980 more columns are unknown", "the header 200007"]);
    let keys: Vec<String> = (0..2000).map(|i| format!("\"k{i}\": 1")).collect();
    let log = Log::new(&[request(0)]);
    std::fs::remove_file(log.path("control.tsv")).unwrap();
    log.write("control.jsonl", &format!("{{{}}}\n", keys.join(", ")));
    log.check(&[]).expect(2, &["more than 1000 keys"]);
}

/// JSON lines without a line were refused for the columns that they lack.
#[test]
fn json_lines_without_a_line_are_a_table_without_rows() {
    let log = Log::of(&format!("{HEADER}\n{}", row(0, MIDNIGHT, "7,A,2000,0.01,0")), CONTROL);
    std::fs::remove_file(log.path("control.tsv")).unwrap();
    log.write("control.jsonl", "");
    assert_eq!(log.report()["contracts"].as_array().map(Vec::len), Some(0));
}

/// A node of an age that there is not matched nobody, and a contract that aims at one had no supply.
#[test]
fn viewers_that_there_are_not_are_refused_in_inventory_and_targeting() {
    let log = Log::new(&[request(0)]);
    for (viewer, what) in [("7\t0", "must be 0, 1 or 2"), ("0\t12", "must be a bucket 0..=9")] {
        let curve = ["0.0625"; 16].iter().chain(&["0"; 8]).copied().collect::<Vec<_>>().join(",");
        let header = "node_id\tslot_id\tregion\tgender\tage\tpv\tcurve\tad_ids";
        log.write("inventory.tsv", &format!("{header}\n1\t3\t1\t{viewer}\t100\t{curve}\t\n"));
        log.check(&[]).expect(2, &["inventory.tsv", what]);
    }
    let target = |targeting: &str| {
        let contract = format!("1\t10\t\t\t\t\t{targeting}\t\t\t5\t1\t\n");
        Log::with_control(&contract).check(&[])
    };
    target("gender:3").expect(2, &["`3` in `gender:3` must be 0, 1 or 2"]);
    target("region:70000|age:10").expect(2, &["`10` in `age:10` must be a bucket 0..=9"]);
    target("region:70000|age:9").expect(0, &[]);
}

/// A day of which 19 of 20 rows were dropped was imported and looked clean from then on.
#[test]
fn an_import_of_mostly_bad_rows_is_an_error() {
    let scratch = tempfile::tempdir().unwrap();
    let [raw, control, out] = ["imp.csv", "control.tsv", "out"].map(|name| scratch.path().join(name));
    std::fs::write(&control, CONTROL).unwrap();
    let mut text = "click,weekday,hour,region,slotwidth,slotheight,advertiser,payprice,usertag\n".to_owned();
    for i in 0..100 {
        let price = if i % 20 == 0 { "71" } else { "x" };
        let _ = writeln!(text, "0,0,{},{},300,250,1458,{price},null", i % 24, i % 400);
    }
    std::fs::write(&raw, text).unwrap();
    let import = |more: &[&str]| {
        let [raw, control, out] = [&raw, &control, &out].map(|path| path.to_str().unwrap());
        let arguments = ["data", "import", "ipinyou", "--impressions", raw, "--control", control, "--out", out];
        admix(&[&arguments[..], more].concat())
    };
    import(&[]).expect(2, &["95 of 100 rows", "--max-bad-share"]);
    assert!(!out.exists(), "nothing was written");
    import(&["--max-bad-share", "0.95"]).expect(0, &[]);
}

/// `data synth` wrote over the tables of days that it had not made.
#[test]
fn synth_leaves_days_alone_that_it_did_not_make() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("logs");
    let rows = LogRows::read(&days().join("day-0"));
    std::fs::create_dir_all(&out).unwrap();
    rows.write(out.join("day-1"));
    let before = std::fs::read(out.join("day-1/track_log.tsv")).unwrap();
    let world = days().join("world.toml");
    let synth = |out: &Path| {
        let [world, out] = [&world, out].map(|path: &Path| path.to_str().unwrap().to_owned());
        admix(&["data", "synth", "--config", &world, "--days", "2", "--out", &out])
    };
    synth(&out).expect(2, &["day-1", "name another --out"]);
    assert_eq!(std::fs::read(out.join("day-1/track_log.tsv")).unwrap(), before);
    let again = scratch.path().join("again");
    synth(&again).expect(0, &[]);
    synth(&again).expect(0, &[]);
}

/// `plan --config` asked for `data.train`, which its own arguments name.
#[test]
fn a_configuration_of_plan_need_not_name_the_days() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("plan.toml");
    std::fs::write(&config, "[env]\nrate_seed = 3\n[baselines]\ntuning_replays = 4\n").unwrap();
    let out = scratch.path().join("plan.json");
    let [config, out] = [&config, &out].map(|path| path.to_str().unwrap());
    admix(&["plan", "--config", config, "--out", out, &day(0)]).expect(0, &[]);
}

/// Days whose contracts have no penalty made a world with the highest penalties that there are.
#[test]
fn a_world_like_days_without_penalties_has_hardly_any() {
    let scratch = tempfile::tempdir().unwrap();
    let free: Vec<PathBuf> = (0..2)
        .map(|i| {
            let mut rows = LogRows::read(&days().join(format!("day-{i}")));
            rows.contracts.iter_mut().for_each(|contract| contract.penalty = 0.0);
            rows.write(scratch.path().join(format!("free-{i}")))
        })
        .collect();
    let out = scratch.path().join("like");
    let [first, second, out] = [&free[0], &free[1], &out].map(|path| path.to_str().unwrap());
    admix(&["data", "synth", "--like", first, second, "--out", out, "--days", "1"]).expect(0, &[]);
    let world: toml::Table =
        toml::from_str(&std::fs::read_to_string(Path::new(out).join("world.toml")).unwrap()).unwrap();
    assert_eq!(world["penalty_max"].as_float(), Some(0.001), "{world}");
}

/// A day that was given twice made the interval narrower.
#[test]
fn eval_takes_a_day_once() {
    let said = admix(&["eval", "--baselines", "contract-first", "--log", &day(1), &day(1)]);
    said.expect(2, &["stands in --log twice", "name it once"]);
}

/// A copy of a day of the small world, with its exposures as `change` makes them.
fn with_exposures(folder: &Path, change: impl Fn(usize, &mut Vec<String>)) -> PathBuf {
    let source = days().join("day-1");
    let copy = folder.join("day-1");
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
    }
    let text = crate::worlds::text_of(&source, "joined_exposure");
    for entry in std::fs::read_dir(&copy).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("joined_exposure") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let mut lines = text.lines();
    let mut out = format!("{}\n", lines.next().unwrap());
    for (i, line) in lines.enumerate() {
        let mut cells: Vec<String> = line.split('\t').map(str::to_owned).collect();
        change(i, &mut cells);
        let _ = writeln!(out, "{}", cells.join("\t"));
    }
    std::fs::write(copy.join("joined_exposure.tsv"), out).unwrap();
    copy
}

fn column(name: &str) -> usize {
    let text = crate::worlds::text_of(&days().join("day-1"), "joined_exposure");
    text.lines().next().unwrap().split('\t').position(|column| column == name).unwrap()
}

/// Where all exposures were bad, the live system stood in the table with a share of almost nothing; a model learned from the few good ones.
#[test]
fn bad_exposures_are_no_baseline_and_teach_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let arrival = column("arrival_ms");
    let copy = with_exposures(scratch.path(), |i, cells| {
        if i % 3 > 0 {
            cells[arrival] = "1.7e+12".into();
        }
    });
    let dir = copy.to_str().unwrap();
    let said = admix(&["eval", "--json", "--baselines", "logged,contract-first", "--log", dir]);
    let said = said.expect(0, &["left out: logged", "arrival_ms", "1.7e+12"]);
    let report: Value = serde_json::from_str(said.stdout.lines().next().unwrap()).unwrap();
    let names: Vec<&str> =
        report["policies"].as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"contract-first") && !names.contains(&"logged"), "{names:?}");
    let fields = Fields::parse(&["ad".to_owned()]).unwrap();
    let joined = |max_bad_share| {
        let options = CompileOptions { max_bad_share, ..CompileOptions::default() };
        join(&copy, options, &fields, Share::ALL)
    };
    let error = joined(0.01).err().expect("most are bad");
    assert!(matches!(&error, JoinError::Log(_)) && error.to_string().contains("max_bad_share"), "{error}");
    let found = joined(0.9).unwrap();
    assert!(found.counts.bad > found.counts.samples && found.counts.samples > 100, "{:?}", found.counts);
}

/// A live system that shows a contract beyond its cap earned its clicks without end, and stood above the bound.
#[test]
fn impressions_beyond_the_cap_earn_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let mut rows = LogRows::read(&days().join("day-1"));
    for contract in &mut rows.contracts {
        (contract.required, contract.cap, contract.delivered0, contract.click_value) = (1, 1, 0, 1000.0);
    }
    let dir = rows.write(scratch.path().join("capped"));
    let exposures = crate::worlds::text_of(&days().join("day-1"), "joined_exposure");
    std::fs::write(dir.join("joined_exposure.tsv"), exposures).unwrap();
    let reports = eval(&["--baselines", "logged,contract-first", "--log", dir.to_str().unwrap()]);
    let logged = reports[0]["policies"].as_array().unwrap().iter().find(|policy| policy["name"] == "logged").unwrap();
    assert!(logged["contract_impressions"].as_u64() > Some(100), "{logged}");
    assert!(logged["share"].as_f64().unwrap() <= 1.0, "{logged}");
}
