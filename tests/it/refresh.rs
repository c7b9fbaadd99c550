//! The refresh during the day: windows that are cut from days, and the job that trains on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use admix::log::schema::{AdType, DAY_MS};
use admix::log::{self, CompileOptions};
use admix::plan::Forecast;
use admix::policy::stored::Stored;
use admix::retrain::days::DayDir;
use admix::retrain::{Outcome, Window, history};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::decisions::synth;
use crate::harness::{CONFIG, PATIENCE, PROGRAM, days, send};
use crate::logs::{LogRows, track_log};

const HOUR_MS: u64 = 3_600_000;

/// Copies the small world's day `i` below `folder`, named by its date; its directory and rows.
fn arrive(folder: &Path, i: u32) -> (PathBuf, LogRows) {
    let rows = LogRows::read(&days().join(format!("day-{i}")));
    (rows.write(folder.join(&rows.day.date)), rows)
}

/// Cuts a day that is over into windows.
fn cut(source: &Path, window: &str, out: &Path) -> Vec<DayDir> {
    let rows = LogRows::read(source);
    let day = DayDir { date: rows.day.date.parse().unwrap(), minute: None, dir: source.to_owned() };
    let nothing = Forecast { nodes: vec![], curves: vec![] };
    window.parse::<Window>().unwrap().cut(&day, false, &nothing, out, CompileOptions::default()).unwrap()
}

#[test]
fn the_windows_of_a_day_hold_its_requests_once_and_owe_together_what_it_owes() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, mut whole) = arrive(scratch.path(), 2);
    // A flight of part of the day, which ends within a window.
    whole.contracts[0].start_ms = whole.day.start_ms + 5 * HOUR_MS;
    whole.contracts[0].end_ms = whole.day.start_ms + 15 * HOUR_MS;
    whole.contracts[1].delivered0 = 3;
    std::fs::remove_dir_all(&source).unwrap();
    whole.write(source.clone());
    for length in ["2h", "30m", "12h"] {
        let windows = cut(&source, length, &scratch.path().join(length));
        let parts: Vec<LogRows> = windows.iter().map(|w| LogRows::read(&w.dir)).collect();
        let ids = |rows: &[LogRows]| rows.iter().flat_map(|r| &r.requests).map(|r| r.request_id).collect::<Vec<_>>();
        let has_auction = |r: &&admix::log::schema::TrackRow| r.queue.iter().any(|e| e.ad_type == AdType::Auction);
        let all: Vec<u64> = whole.requests.iter().filter(has_auction).map(|r| r.request_id).collect();
        let found = ids(&parts);
        assert!(all.iter().all(|id| found.contains(id)), "{length}: a request is missing");
        assert!(found.windows(2).all(|w| w[0] != w[1]) && found.len() <= whole.requests.len(), "{length}");
        for contract in &whole.contracts {
            let owed = contract.required - contract.delivered0;
            let here = parts.iter().flat_map(|p| &p.contracts).filter(|c| c.ad_id == contract.ad_id);
            let sum: u64 = here.clone().map(|c| c.required).sum();
            assert!(sum.abs_diff(owed) <= windows.len() as u64 / 2 + 1, "{length}: {sum} of {owed}");
            assert!(here.clone().all(|c| c.start_ms >= contract.start_ms && c.end_ms <= contract.end_ms));
        }
        let pv = |rows: &LogRows| rows.inventory.as_ref().unwrap().iter().map(|n| n.pv).sum::<f64>();
        let sum: f64 = parts.iter().map(pv).sum();
        // Windows without a request are not written.
        assert!(sum <= pv(&whole) * (1.0 + 1e-9) && sum > 0.9 * pv(&whole), "{length}: {sum} of {}", pv(&whole));
        for window in &windows {
            let log = log::open(&window.dir, CompileOptions::default()).unwrap();
            assert_eq!(log.counts().quarantined, 0, "{}", window.dir.display());
            let start = whole.day.start_ms + window.minute.unwrap() * 60_000;
            assert!(log.requests().iter().all(|r| r.ts_ms >= start && r.ts_ms < start + DAY_MS / 2));
        }
    }
}

/// A jobs' folder with days, and the job's file.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("days")).unwrap();
        let config: String = CONFIG
            .replace("[data]\ntrain = [\"DAYS/day-0\"]\nvalidation = [\"DAYS/day-1\"]\ntest = [\"DAYS/day-2\"]\n", "");
        std::fs::write(folder.path().join("training.toml"), config).unwrap();
        let job = "jobs = \"jobs\"\nconfig = \"training.toml\"\n[days]\ndir = \"days\"\ntrain = 3\nvalidation = 1\nheldout = 2\n\
                   [promote]\nmax_shortage_increase = 1.0\nbaselines = [\"auction-only\", \"contract-first\"]\n";
        std::fs::write(folder.path().join("job.toml"), job).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Adds a setting of training to the job.
    fn set(&self, set: &str) {
        let job = std::fs::read_to_string(self.path("job.toml")).unwrap();
        std::fs::write(self.path("job.toml"), format!("set = [\"{set}\"]\n{job}")).unwrap();
    }

    fn retrain(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["retrain", "--json", "--config"]).arg(self.path("job.toml")).args(arguments).output().unwrap()
    }

    /// The entry of a job that ends with `code`.
    fn entry(&self, arguments: &[&str], code: i32) -> Value {
        let output = self.retrain(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[test]
fn a_refresh_learns_from_the_windows_of_a_day_under_way_and_keeps_the_served_plan() {
    let desk = Desk::new();
    arrive(&desk.path("days"), 0);
    let refused = desk.entry(&["--window", "4h"], 1);
    assert!(refused["reason"].as_str().unwrap().contains("without --window first"), "{refused}");
    arrive(&desk.path("days"), 1);
    let night = desk.entry(&[], 0);
    assert_eq!((night["outcome"].as_str(), &night["window"]), (Some("promoted"), &Value::Null));

    // Twenty past three in the afternoon.
    let (today, whole) = arrive(&desk.path("days"), 2);
    let now = whole.day.start_ms + 15 * HOUR_MS + HOUR_MS / 3;
    let so_far: Vec<_> = whole.requests.iter().filter(|r| r.ts_ms < now).cloned().collect();
    track_log(&today, &so_far);

    let entry = desk.entry(&["--window", "4h"], 0);
    let yesterday = LogRows::read(&days().join("day-1")).day.date;
    let date = &whole.day.date;
    let labels =
        |key: &str| entry[key].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(labels("train"), [12, 16, 20].map(|h| format!("{yesterday}T{h}-00")), "{entry}");
    assert_eq!(labels("validation"), [format!("{date}T00-00")]);
    // The window from 12 to 16 h is not complete.
    assert_eq!(labels("heldout"), ["04", "08"].map(|h| format!("{date}T{h}-00")));
    assert_eq!((entry["window"].as_str(), entry["night"].as_str()), (Some("4h"), Some(&*format!("{date}T08-00"))));
    assert_eq!((entry["outcome"].as_str(), entry["policy"].as_str()), (Some("promoted"), Some("learned")), "{entry}");
    assert!(entry["comparisons"][0]["over"].as_str().unwrap().contains("2 window"), "{entry}");

    // Weights are new, the plan is the night's.
    let served = Stored::read(&desk.path("jobs/current.safetensors")).unwrap();
    let before =
        Stored::read(&desk.path("jobs/promoted").join(format!("{:04}.safetensors", night["serves"].as_u64().unwrap())))
            .unwrap();
    assert!(matches!(served, Stored::Learned(_)));
    assert_eq!((&served.plan().forecast, &served.plan().days), (&before.plan().forecast, &before.plan().days));

    // A day that cannot be read changes nothing.
    std::fs::write(today.join("track_log.tsv"), "not a table\n").unwrap();
    let suspect = desk.entry(&["--window", "4h"], 11);
    assert_eq!(suspect["serves"], entry["serves"]);
    for bad in ["7h", "10m", "soon"] {
        let output = desk.retrain(&["--window", bad]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains("for example 2h"), "{stderr}");
    }
}

/// Returns the UTC date of today, of which ten minutes are left.
fn long_today() -> jiff::civil::Date {
    loop {
        let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
        if (now.hour(), now.minute()) < (23, 50) {
            return now.date();
        }
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
}

/// The directory of today, which a server was writing, was the newest day of the night: it was suspect, and nothing was trained, every night.
/// It also stood for yesterday's, where that was missing.
#[test]
fn a_night_leaves_the_day_that_is_under_way_to_the_next_one() {
    let (desk, scratch) = (Desk::new(), tempfile::tempdir().unwrap());
    let job = std::fs::read_to_string(desk.path("job.toml")).unwrap();
    let job = job.replace("dir = \"days\"\n", "dir = \"days\"\nmax_age_days = 1\n");
    std::fs::write(desk.path("job.toml"), job).unwrap();
    let today = long_today();
    let yesterday = today.yesterday().unwrap();
    let world = format!(
        "start_date = \"{}\"\nrequests = 1500\nqueue = 8\nregions = 4\nslots = 2\nages = 3\nusers = 500\n\
         auction_ads = 60\ncontracts = 5\ncontracts_per_queue = 2.0\n",
        yesterday.yesterday().unwrap()
    );
    for day in synth(scratch.path(), &world, 3) {
        let mut rows = LogRows::read(&day);
        if rows.day.date == today.to_string() {
            rows.requests.truncate(50);
        }
        rows.write(desk.path("days").join(&rows.day.date));
    }
    let said = format!("{today} left out: the day has not ended");
    let entry = desk.entry(&[], 0);
    assert_eq!((&entry["outcome"], &entry["night"]), (&"promoted".into(), &yesterday.to_string().into()), "{entry}");
    assert!(entry["notes"].to_string().contains(&said), "{entry}");
    std::fs::remove_dir_all(desk.path("days").join(yesterday.to_string())).unwrap();
    let entry = desk.entry(&[], 11);
    assert!(entry["reason"].as_str().unwrap().starts_with(&format!("{yesterday} did not arrive")), "{entry}");
    assert!(entry["notes"].to_string().contains(&said), "{entry}");
}

/// A night after which no day had arrived was like any other.
#[test]
fn a_night_without_a_new_day_says_so() {
    let desk = Desk::new();
    let (_, rows) = arrive(&desk.path("days"), 0);
    let notes = |entry: &Value| entry["notes"].to_string();
    let first = desk.entry(&[], 0);
    assert!(!notes(&first).contains("NO NEW DAY"), "{first}");
    let second = desk.entry(&[], 10);
    let said = format!("NO NEW DAY since entry {}: {} is still the newest", first["n"], rows.day.date);
    assert!(notes(&second).contains(&said), "no `{said}` in {second}");
}

/// It was promoted once more under a new number, and a rollback led to the same bytes. One that was replaced by hand came back.
#[test]
fn a_repeated_night_does_not_promote_the_same_baseline_again() {
    let desk = Desk::new();
    let promote = |arguments: &[&str]| {
        let mut command = crate::support::admix();
        command.arg("promote").arg("--jobs").arg(desk.path("jobs")).args(arguments).assert().success();
    };
    arrive(&desk.path("days"), 0);
    let first = desk.entry(&[], 0);
    let again = desk.entry(&[], 10);
    assert_eq!((again["outcome"].as_str(), &again["serves"]), (Some("kept"), &first["serves"]), "{again}");
    assert!(again["reason"].as_str().unwrap().contains("served already"), "{again}");
    assert_eq!(std::fs::read_dir(desk.path("jobs/promoted")).unwrap().count(), 1);

    arrive(&desk.path("days"), 1);
    let second = desk.entry(&[], 0);
    assert_ne!(second["serves"], first["serves"]);
    promote(&["--rollback"]);
    let again = desk.entry(&[], 10);
    assert_eq!(again["serves"], first["serves"], "{again}");
    assert!(again["reason"].as_str().unwrap().contains("replaced by hand"), "{again}");
}

/// It went on planning and tuning for hours, and promoted what came of it.
#[test]
fn a_night_that_is_interrupted_while_it_plans_promotes_nothing() {
    let desk = Desk::new();
    arrive(&desk.path("days"), 0);
    let first = desk.entry(&[], 0);
    let served = || std::fs::read(desk.path("jobs/current.safetensors")).unwrap();
    let before = served();
    arrive(&desk.path("days"), 1);
    desk.set("baselines.tuning_replays=100000");
    let stderr = desk.path("stderr");
    let mut command = Command::new(PROGRAM);
    command.args(["retrain", "--config"]).arg(desk.path("job.toml")).stdout(Stdio::null());
    let mut night = command.stderr(std::fs::File::create(&stderr).unwrap()).spawn().unwrap();
    let said = || std::fs::read_to_string(&stderr).unwrap();
    let started = Instant::now();
    while !said().contains("planning: forecast") {
        assert!(night.try_wait().unwrap().is_none() && started.elapsed() < PATIENCE, "{}", said());
        std::thread::sleep(Duration::from_millis(2));
    }
    send(night.id(), Signal::SIGTERM);
    while night.try_wait().unwrap().is_none() {
        if started.elapsed() > PATIENCE {
            night.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(night.wait().unwrap().code(), Some(130), "{}", said());
    let entries = history::entries(&desk.path("jobs")).unwrap();
    let last = entries.last().unwrap();
    assert_eq!((last.outcome, last.serves), (Outcome::Interrupted, first["serves"].as_u64()), "{last:?}");
    assert!(served() == before);
}
