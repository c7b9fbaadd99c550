//! Days of any size: compiled in bounded memory, in whatever order rows come, through kills and full disks; samples of them.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use admix::log::sample::{self, Sampling};
use admix::log::{self, CompileOptions, CompiledLog, RawDay, write};
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use super::support::admix;
use super::worlds::{cases, open, world};

/// A day of a synthetic world, with exposures and a forecast.
const DAY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/test-0");
pub const MIDNIGHT: u64 = 1_767_571_200_000;

/// A day of `requests` with queues of 16, a few megabytes of text for each 10,000; times in order unless `shuffled`.
pub fn large(requests: u64, shuffled: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    std::fs::write(dir.path().join("day.toml"), "date = \"2026-01-05\"\n").unwrap();
    let control = "ad_id\trequired\tpenalty\tclick_value\n9001\t300\t4\t10\n9002\t2\t5\t0\n";
    std::fs::write(dir.path().join("control.tsv"), control).unwrap();
    let mut text = write::TRACK_HEADER.to_owned() + "\n";
    for i in 0..requests {
        let ms = if shuffled { rng.random_range(0..86_400_000) } else { i * 86_400_000 / requests };
        write!(text, "{}\t{}\t{}\t{}\t1\t2\t{}\t", i * 7919 % 999_983 + 1, MIDNIGHT + ms, i % 3, i % 5, i % 977)
            .unwrap();
        for k in 0..16 {
            let (ad, kind) = if k < 2 { (9001 + k, 'C') } else { (100 + (i * 31 + k * 17) % 400, 'A') };
            let ad = if k < 2 { ad } else { ad + 1000 * k };
            let (ecpm, pctr) = (rng.random_range(1..90_000), rng.random_range(1..500));
            let end = if k == 15 { "\n" } else { ";" };
            write!(text, "{ad},{kind},{}.{:02},0.{pctr:04},0{end}", ecpm / 100, ecpm % 100).unwrap();
        }
    }
    std::fs::write(dir.path().join("track_log.tsv"), text).unwrap();
    dir
}

pub fn compiled(dir: &Path) -> PathBuf {
    dir.join(".admix/compiled.log")
}

pub fn forget(dir: &Path) {
    let _ = std::fs::remove_dir_all(dir.join(".admix"));
}

pub fn check(dir: &Path, args: &[&str]) -> std::process::Output {
    admix().args(["data", "check", "--json"]).args(args).arg(dir).output().unwrap()
}

/// All that a log says of its requests.
fn content(log: &CompiledLog) -> Vec<(log::Request, Vec<log::ContractEntry>, Vec<log::Auction>)> {
    assert!(log.requests().iter().is_sorted_by_key(|r| r.ts_ms));
    log.requests().iter().map(|r| (r, log.entries(&r).to_vec(), log.auctions(&r).to_vec())).collect()
}

#[test]
fn the_bytes_are_the_same_for_any_number_of_threads_and_any_memory() {
    for shuffled in [false, true] {
        let dir = large(20_000, shuffled);
        assert!(check(dir.path(), &[]).status.success());
        let expected = std::fs::read(compiled(dir.path())).unwrap();
        for (threads, memory) in [("1", "1024"), ("3", "16"), ("2", "16")] {
            forget(dir.path());
            let mut command = admix();
            command.env("RAYON_NUM_THREADS", threads).args(["data", "check", "--memory", memory]).arg(dir.path());
            assert!(command.output().unwrap().status.success());
            assert!(std::fs::read(compiled(dir.path())).unwrap() == expected, "{threads} threads, {memory} MB");
        }
        // What is read whole and sorted in memory says the same.
        let raw = RawDay::read(dir.path(), CompileOptions::default()).unwrap();
        let memory = raw.compile_altered(CompileOptions::default(), "nothing").unwrap();
        assert!(content(&memory) == content(&open(dir.path())));
    }
}

#[test]
fn a_killed_compilation_leaves_nothing_that_is_taken_for_whole() {
    let dir = large(20_000, true);
    let program = admix().get_program().to_owned();
    let begun = std::time::Instant::now();
    assert!(check(dir.path(), &["--memory", "16"]).status.success());
    let whole = begun.elapsed();
    let expected = std::fs::read(compiled(dir.path())).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..25 {
        forget(dir.path());
        let mut child = Command::new(&program)
            .args(["data", "check", "--memory", "16"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(whole.mul_f64(rng.random_range(0.0..1.0)));
        let _ = child.kill();
        child.wait().unwrap();
        if compiled(dir.path()).exists() {
            assert!(std::fs::read(compiled(dir.path())).unwrap() == expected, "half a file stood in the log's place");
        }
        assert!(check(dir.path(), &["--memory", "16"]).status.success());
        assert!(std::fs::read(compiled(dir.path())).unwrap() == expected);
    }
}

/// Runs a check of which no file may grow beyond `kilobytes`.
fn check_within(dir: &Path, kilobytes: u64, args: &str) -> std::process::Output {
    let program = admix().get_program().to_owned();
    let script = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$0\" data check {args} \"$1\"");
    Command::new("bash").arg("-c").arg(script).arg(program).arg(dir).output().unwrap()
}

#[test]
fn a_disk_that_fills_up_ends_clearly_or_not_at_all() {
    let dir = large(40_000, false);
    // It fits memory: compiled each time, with a warning.
    let output = check_within(dir.path(), 4096, "--json");
    assert!(output.status.success() && said(&output).contains("cannot be kept"), "{}", said(&output));
    let left: Vec<_> = std::fs::read_dir(dir.path().join(".admix")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "inputs.json"), "{left:?}");
    // It fits neither: 20 MB compiled.
    let dir = large(140_000, false);
    let output = check_within(dir.path(), 4096, "--json --memory 16");
    assert!(!output.status.success());
    for word in ["can be neither written nor held", "16 MB", "Make room"] {
        assert!(said(&output).contains(word), "{word} in {}", said(&output));
    }
    assert!(!compiled(dir.path()).exists());
    assert!(check(dir.path(), &["--memory", "16"]).status.success(), "with room it goes on");

    // A bad row that cannot be listed is counted; rows in no order need room to be sorted.
    let dir = large(500, false);
    let track = dir.path().join("track_log.tsv");
    let text = std::fs::read_to_string(&track).unwrap().replacen("\t1\t2\t", "\t1\t77\t", 1);
    std::fs::write(&track, text).unwrap();
    let output = check_within(dir.path(), 0, "--json");
    assert!(output.status.success() && said(&output).contains("counted and not listed"), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["quarantined"], 1, "{report}");
    let output = check_within(large(40_000, true).path(), 64, "--json --memory 16");
    assert!(!output.status.success() && said(&output).contains("Make room"), "{}", said(&output));
}

#[test]
fn verify_reads_again_what_is_known() {
    let dir = large(300, false);
    assert!(check(dir.path(), &[]).status.success());
    let whole = std::fs::read(compiled(dir.path())).unwrap();
    let mut damaged = whole.clone();
    damaged[200] ^= 1;
    std::fs::write(compiled(dir.path()), &damaged).unwrap();
    let output = check(dir.path(), &["--verify"]);
    assert!(output.status.success() && said(&output).contains("compiling again"));
    assert!(std::fs::read(compiled(dir.path())).unwrap() == whole);

    // A wrong hash beside the right times is believed, and read again only with --verify. Files are remembered once they are settled.
    std::thread::sleep(Duration::from_millis(3_100));
    assert!(check(dir.path(), &[]).status.success());
    let known = dir.path().join(".admix/inputs.json");
    let plant = || {
        let mut hashes: serde_json::Value = serde_json::from_slice(&std::fs::read(&known).unwrap()).unwrap();
        assert!(falsify(&mut hashes), "nothing is remembered: {hashes}");
        std::fs::write(&known, hashes.to_string()).unwrap();
    };
    plant();
    assert!(!said(&check(dir.path(), &["--verify"])).contains("compiling again"));
    plant();
    assert!(said(&check(dir.path(), &[])).contains("inputs changed, compiling again"));
}

pub fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Puts a wrong one in place of every hash.
fn falsify(value: &mut serde_json::Value) -> bool {
    match value {
        serde_json::Value::Object(map) => map
            .iter_mut()
            .map(|(key, value)| {
                if key != "xxh3" {
                    return falsify(value);
                }
                *value = "0".repeat(value.as_str().unwrap().len()).into();
                true
            })
            .fold(false, |found, more| found | more),
        _ => false,
    }
}

/// Another writer in the same directory is waited for, and its log is used.
#[test]
fn one_process_compiles_and_others_use_what_it_made() {
    let dir = large(2_000, false);
    let folder = log::keep::folder(dir.path()).unwrap();
    let lock = std::fs::File::open(&folder).unwrap();
    lock.lock().unwrap();
    let program = admix().get_program().to_owned();
    let start =
        || Command::new(&program).args(["data", "check"]).arg(dir.path()).stdout(Stdio::null()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    // Compiling takes a tenth of that.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!compiled(dir.path()).exists(), "somebody did not wait");
    lock.unlock().unwrap();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(compiled(dir.path()).exists());
}

proptest! {
    #![proptest_config(cases(40))]

    /// Tiny memory, so that everything is spilled and merged; ids that repeat, rows in any order.
    #[test]
    fn sorted_on_disk_or_in_memory_a_day_is_the_same(
        world in world(),
        repeats in proptest::collection::vec(any::<proptest::sample::Index>(), 0..4),
    ) {
        let mut world = world;
        for pick in &repeats {
            let row = pick.get(&world.rows).clone();
            world.rows.push(row);
        }
        let dir = tempfile::tempdir().unwrap();
        world.write(dir.path());
        let options = |memory| CompileOptions { memory, max_bad_share: 1.0, ..CompileOptions::default() };
        let Ok(whole) = log::open(dir.path(), options(1 << 30)) else { return Ok(()) };
        let bytes = std::fs::read(compiled(dir.path())).unwrap();
        prop_assert_eq!(whole.counts().reasons.get("duplicate_request").copied().unwrap_or(0), repeats.len() as u64);
        forget(dir.path());
        log::open(dir.path(), options(0)).unwrap();
        prop_assert!(std::fs::read(compiled(dir.path())).unwrap() == bytes);
    }

    /// Whatever the world, a sample of it is a day that can be used, and holds what the rule says.
    #[test]
    fn a_sample_is_a_day_of_the_requests_that_the_rule_keeps(world in world(), seed in 0u64..1000, part in 1u32..=10) {
        let rate = f64::from(part) / 10.0;
        let sampling = Sampling { rate, seed };
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        world.write(dir.path());
        let Ok(report) = sample::write(dir.path(), out.path(), sampling, CompileOptions::default()) else { return Ok(()) };
        let whole = RawDay::read(dir.path(), CompileOptions::default()).unwrap();
        let small = RawDay::read(out.path(), CompileOptions { max_bad_share: 0.0, ..CompileOptions::default() }).unwrap();
        prop_assert_eq!(&small.day, &whole.day);
        let left_out: HashSet<u64> = report.left_out.iter().copied().collect();
        let mut rows: Vec<_> = whole.rows.iter().filter(|r| sampling.keeps(r.request_id)).cloned().collect();
        rows.iter_mut().for_each(|r| r.queue.retain(|e| !left_out.contains(&e.ad_id)));
        let before = rows.len();
        rows.retain(|r| !r.queue.is_empty());
        prop_assert_eq!((report.kept, report.emptied), (rows.len() as u64, (before - rows.len()) as u64));
        prop_assert_eq!(&small.rows, &rows);
        let contracts: Vec<_> = whole.contracts.iter().filter_map(|c| sampling.contract(c)).collect();
        prop_assert_eq!(&small.contracts, &contracts);
        prop_assert!(contracts.iter().all(|c| c.required <= c.cap && c.delivered0 <= c.cap));
        prop_assert_eq!(contracts.len() + left_out.len(), whole.contracts.len());
    }
}

#[test]
fn a_sample_of_a_world_with_exposures_and_a_forecast_fits_together() {
    let out = tempfile::tempdir().unwrap();
    let small = out.path().join("small");
    let output = admix()
        .args(["data", "sample", DAY, "--rate", "0.02", "--seed", "9", "--json", "--out"])
        .arg(&small)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["kept"].as_u64() > Some(100) && report["kept"].as_u64() < Some(400), "{report}");
    let checked = check(&small, &["--max-bad-share", "0"]);
    assert!(checked.status.success());
    let small_day: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    let whole: serde_json::Value = serde_json::from_slice(&check(Path::new(DAY), &[]).stdout).unwrap();
    let number = |v: &serde_json::Value| v.as_f64().unwrap();
    assert!((number(&small_day["inventory_pv"]) - 0.02 * number(&whole["inventory_pv"])).abs() < 1e-6);
    for field in ["unknown_requests", "not_allowed", "bad"] {
        assert_eq!(small_day["exposure"][field], whole["exposure"][field], "{field}: {small_day}");
    }
    assert_eq!(small_day["exposure"]["rows"], report["exposures"]);
    // What fails leaves nothing behind that a second call would stumble over.
    let sampled = |rate: &str, to: &Path| {
        admix().args(["data", "sample", DAY, "--rate", rate, "--out"]).arg(to).output().unwrap().status.code()
    };
    let twice = out.path().join("twice");
    assert_eq!(sampled("0.0000001", &twice), Some(2));
    assert!(!twice.exists() && sampled("0.5", &twice) == Some(0));
    let names: Vec<_> = std::fs::read_dir(out.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    // Everything of it again.
    let again = admix().args(["data", "sample", DAY, "--rate", "1", "--out"]).arg(&small).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "an output directory that holds a log is left alone");
    let copy = out.path().join("copy");
    assert!(
        admix().args(["data", "sample", DAY, "--rate", "1", "--out"]).arg(&copy).output().unwrap().status.success()
    );
    let (one, all) = (open(&copy), open(Path::new(DAY)));
    assert!(one.requests() == all.requests() && one.contracts() == all.contracts() && one.content() == all.content());
    for rate in ["0", "1.5", "-1", "NaN"] {
        let output = admix().args(["data", "sample", DAY, "--out", "x", &format!("--rate={rate}")]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{rate}");
    }
}
