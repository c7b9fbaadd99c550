//! `admix inspect`: a live run, a killed one, an ended one, damaged recordings, and what is no run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use admix::run::{RunDirectory, flight};
use admix::shm::flight::{FILE_BYTES, RECORDS};
use admix::shm::{Control, FlightFile, FlightLog, FlightRecord};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{
    ENDLESS, HAND_OVER, PATIENCE, PROGRAM, Run, child, children_of, segments_of, train, until_working,
};

fn run_inspect(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("inspect").arg(dir).args(arguments).output().unwrap()
}

/// What `admix inspect --json` says; and its text, which must hold each of `words`.
fn inspect(dir: &Path, words: &[&str]) -> Value {
    let text = run_inspect(dir, &[]);
    let text = String::from_utf8(text.stdout).unwrap();
    for word in words {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    let output = run_inspect(dir, &["--json", "--events", "1000"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The segments of a run under other names, so that they outlive a start of another test, which sweeps those of dead runs.
struct Kept(Vec<(PathBuf, PathBuf)>);

impl Kept {
    fn of(pid: u32) -> Self {
        let shm = Path::new("/dev/shm");
        let pairs = segments_of(pid).into_iter().map(|name| (shm.join(format!("kept-{name}")), shm.join(name)));
        let kept = Self(pairs.collect());
        for (other, name) in &kept.0 {
            std::fs::hard_link(name, other).unwrap();
        }
        kept
    }

    /// What [`inspect`] says while all of them are there, before and after it: to inspect is not to sweep.
    fn inspect(&self, dir: &Path, words: &[&str]) -> Value {
        let mut text = String::new();
        for _ in 0..50 {
            for (other, name) in &self.0 {
                let _ = std::fs::hard_link(other, name);
            }
            text = String::from_utf8(run_inspect(dir, &[]).stdout).unwrap();
            let output = run_inspect(dir, &["--json", "--events", "1000"]);
            let there = self.0.iter().all(|(_, name)| name.exists());
            if there && words.iter().all(|word| text.contains(word)) {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                return serde_json::from_slice(&output.stdout).unwrap();
            }
        }
        panic!("what a killed run left is not shown, or was swept by looking at it: {text}");
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (other, _) in &self.0 {
            let _ = std::fs::remove_file(other);
        }
    }
}

fn events<'a>(seen: &'a Value, process: &str) -> Vec<&'a Value> {
    seen["events"].as_array().unwrap().iter().filter(|e| e["process"] == process).collect()
}

/// A ledger must balance whenever nothing moves, and tell when something does.
fn assert_balance(ring: &Value) {
    let of = |name: &str| ring["ledger"][name].as_u64().unwrap();
    let parts: u64 = ["consumed", "overwritten", "lost", "unread", "discarded"].map(of).iter().sum();
    match ring["balance"].as_str().unwrap() {
        "exact" => assert_eq!(of("produced"), parts + ring["writing"].as_u64().unwrap(), "{ring}"),
        "moving" => {}
        other => panic!("{other}: {ring}"),
    }
}

#[test]
fn a_live_run_is_shown_with_its_processes_and_a_balanced_ledger_and_is_not_disturbed() {
    let mut run = Run::start(ENDLESS, &[]);
    until_working(&mut run);
    let seen = inspect(&run.dir(), &["alive", "stop level 0", "learner", "evaluator", "actor1", "ring0", "published"]);
    assert_eq!(seen["state"], "alive");
    assert_eq!(seen["notes"].as_array().unwrap().len(), 0, "{}", seen["notes"]);
    let memory = &seen["memory"];
    assert_eq!((memory["main_pid"].as_u64(), memory["main_alive"].as_bool()), (Some(run.pid().into()), Some(true)));
    let processes = memory["control"]["processes"].as_array().unwrap();
    for kin in children_of(run.pid()) {
        let shown = processes.iter().find(|p| p["name"] == kin.role).unwrap_or_else(|| panic!("no {}", kin.role));
        assert_eq!((shown["pid"].as_u64(), shown["alive"].as_bool()), (Some(kin.pid.into()), Some(true)));
        assert_eq!(shown["incarnation"], 1);
    }
    assert_eq!(processes.len(), children_of(run.pid()).len());
    assert!(memory["control"]["evaluator"]["best_j"].is_f64());
    assert!(memory["params"]["version"].as_u64() > Some(0) && memory["params"]["torn"] == 0);
    run.until("a snapshot on disk", |run| {
        let snapshots = inspect(&run.dir(), &["sparse part ready"])["memory"]["snapshots"].clone();
        let [dense, sparse, disk] =
            ["dense_ready", "sparse_ready", "committed"].map(|counter| snapshots[counter].as_u64().unwrap());
        assert!(dense >= disk && sparse >= disk && snapshots["halves"].as_array().unwrap().len() == 2, "{snapshots}");
        (disk > 0).then_some(())
    });
    let learner = child(&run, "learner").unwrap().pid;
    // The ring stands still between two moves: some look finds it so.
    run.until("a balanced ledger", |run| {
        let seen = inspect(&run.dir(), &[]);
        let rings = seen["memory"]["rings"].as_array().unwrap().clone();
        assert_eq!(rings.len(), 2);
        for (id, ring) in rings.iter().enumerate() {
            assert_balance(ring);
            assert_eq!(ring["writer_pid"].as_u64(), child(run, &format!("actor{id}")).map(|kin| kin.pid.into()));
            assert_eq!(ring["reader_pid"].as_u64(), Some(learner.into()));
            assert_eq!(ring["regions"].as_array().unwrap().len(), 2);
        }
        (seen["memory"]["balance"] == "exact").then_some(())
    });
    for process in ["main", "learner", "evaluator", "actor0", "actor1"] {
        assert_eq!(events(&seen, process)[0]["kind"], "start", "{process}");
    }
    // It goes on as if nobody had looked, and ends in order.
    let control = Control::open(&format!("{}-control", memory["names"].as_str().unwrap())).unwrap();
    let updates = control.learner.updates.get();
    run.until("updates", |_| (control.learner.updates.get() > updates).then_some(()));
    drop(control);
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    ended.ledger("produced");
    assert_eq!(ended.outcome()["actor_restarts"], 0);
    let seen = inspect(&ended.dir(), &["dead; ended", "interrupted", "stop requested"]);
    assert_eq!((seen["state"].as_str(), seen["memory"].is_null()), (Some("ended"), true));
    for process in ["main", "learner", "evaluator", "actor0", "actor1"] {
        assert_eq!(events(&seen, process).last().unwrap()["kind"], "end", "{process}");
    }
    let times: Vec<u64> = seen["events"].as_array().unwrap().iter().map(|e| e["time_ms"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
}

#[test]
fn a_killed_run_is_shown_dead_with_what_it_left_and_the_last_events_of_each_process() {
    let mut run = Run::start(ENDLESS, &[]);
    until_working(&mut run);
    // One restart, to be found among main's events.
    let victim = child(&run, "actor0").unwrap();
    crate::harness::send(victim.pid, Signal::SIGKILL);
    let next = run.until("replacement", |run| child(run, "actor0").filter(|kin| kin.pid != victim.pid));
    let flight = run.dir().join("flight/actor0.bin");
    run.until("the second start", |_| {
        let log = FlightLog::read(&flight).ok()?;
        (log.starts == 2 && log.records.iter().any(|r| r.pid == next.pid && r.kind == HAND_OVER)).then_some(())
    });
    let (pid, dir) = (run.pid(), run.dir());
    let kept = Kept::of(pid);
    assert_eq!(kept.0.len(), 5);
    run.signal(Signal::SIGKILL);
    while !children_of(pid).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let words = ["no end was written: it was killed", "this is what it left", "Last events"];
    let mut seen = kept.inspect(&dir, &words);
    // A child that was just being started has no name of its own yet.
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE {
        let processes = seen["memory"]["control"]["processes"].as_array().unwrap();
        if processes.iter().all(|p| p["alive"] == false) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        seen = kept.inspect(&dir, &words);
    }
    assert_eq!(seen["state"], "killed");
    let memory = &seen["memory"];
    assert_eq!((memory["main_pid"].as_u64(), memory["main_alive"].as_bool()), (Some(pid.into()), Some(false)));
    assert!(memory["control"]["processes"].as_array().unwrap().iter().all(|p| p["alive"] == false));
    for ring in memory["rings"].as_array().unwrap() {
        assert_balance(ring);
    }
    let kinds = |process: &str| -> Vec<String> {
        events(&seen, process).iter().map(|e| e["kind"].as_str().unwrap().to_owned()).collect()
    };
    for (process, kind) in [
        ("main", "start"),
        ("main", "restart"),
        ("learner", "publication"),
        ("evaluator", "evaluation"),
        ("actor0", "hand-over"),
        ("actor1", "hand-over"),
    ] {
        assert!(kinds(process).iter().any(|k| k == kind), "no {kind} of {process} in {:?}", kinds(process));
        assert!(!kinds(process).iter().any(|k| k == "end" || k == "error"), "{process}");
    }
    let restart = events(&seen, "main").into_iter().find(|e| e["kind"] == "restart").unwrap().clone();
    assert_eq!(restart["numbers"][0], victim.pid);
    assert!(restart["text"].as_str().unwrap().contains("actor0: signal: 9"), "{restart}");
    assert!(!seen["metrics"].as_array().unwrap().is_empty());
    train(&[], &[]);
    assert!(inspect(&dir, &["it was killed"])["memory"].is_null(), "the next start swept it");
}

#[test]
fn what_is_no_run_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let check = |dir: &Path| {
        let output = run_inspect(dir, &[]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(check(folder.path()).contains("is not a run directory"));
    std::fs::write(&config, "").unwrap();
    assert!(check(folder.path()).contains("is not a run directory"));
    assert!(check(&config).contains("config.toml"));
    assert!(check(&folder.path().join("missing")).contains("missing"));
}

#[test]
fn a_serial_run_records_too_and_an_error_is_told_with_its_reason() {
    let ended = train(&["budget.max_updates=32"], &["--serial"]);
    let seen = inspect(&ended.dir(), &["dead; ended", "budget", "evaluated"]);
    let kinds: Vec<&str> = events(&seen, "main").iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"start"), Some(&"end")));
    assert!(kinds.contains(&"evaluation"));

    let mut run = Run::start(&[ENDLESS, &["actors.max_restarts=0"]].concat(), &[]);
    let victim = run.until("actor", |run| child(run, "actor0"));
    crate::harness::send(victim.pid, Signal::SIGKILL);
    let ended = run.wait().expect(20);
    let seen = inspect(&ended.dir(), &["dead; failed", "actor0 died 1 times"]);
    assert_eq!(seen["state"], "failed");
    let last = events(&seen, "main").last().unwrap().to_owned();
    assert_eq!(last["kind"], "error");
    assert!(last["text"].as_str().unwrap().contains("actor0 died"), "{last}");
}

/// Training must go on where the recorder cannot.
#[test]
fn a_run_without_room_for_a_flight_recorder_trains_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    // Folders in the recordings' places, which even root cannot write.
    let run = folder.path().join("run");
    drop(RunDirectory::create(&run).unwrap());
    for process in ["main", "learner", "evaluator", "checkpointer", "actor0", "actor1"] {
        std::fs::create_dir(run.join("flight").join(format!("{process}.bin"))).unwrap();
    }
    let config = folder.path().join("config.toml");
    let days = crate::harness::days().to_str().unwrap();
    std::fs::write(&config, crate::harness::CONFIG.replace("DAYS", days)).unwrap();
    let ended = Run::start_from(folder, &config, &[], &[]).wait().expect(0);
    assert!(ended.stderr.contains("no flight recorder"), "{}", ended.stderr);
    let seen = inspect(&ended.dir(), &["dead; ended", "note: "]);
    assert_eq!(seen["events"].as_array().unwrap().len(), 0);
}

/// A recording with more records than fit, and what is to be read from it.
fn recording() -> (Vec<u8>, Vec<FlightRecord>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.bin");
    let file = FlightFile::open(&path).unwrap();
    for i in 0..RECORDS as u64 + 20 {
        file.record(1 + (i % 9) as u32, [i, !i, 7], &format!("event {i}"));
    }
    drop(file);
    let bytes = std::fs::read(&path).unwrap();
    let records = FlightLog::decode(&bytes).unwrap().records;
    assert_eq!((bytes.len(), records.len()), (FILE_BYTES, RECORDS));
    (bytes, records)
}

#[test]
fn a_record_with_any_byte_damaged_is_skipped_and_the_others_are_read() {
    let (bytes, records) = recording();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let Some(log) = FlightLog::decode(&damaged) else {
                assert!(at < 16, "byte {at} is not of the head");
                continue;
            };
            if at < 128 {
                assert!(at >= 16 && log.records == records, "byte {at}");
                continue;
            }
            // The slot after the head in which the byte lies; records lie by their number.
            let slot = (at as u64 - 128) / 128;
            let rest: Vec<&FlightRecord> = records.iter().filter(|r| r.seq % RECORDS as u64 != slot).collect();
            assert_eq!(log.records.iter().collect::<Vec<_>>(), rest, "byte {at}");
        }
    }
}

#[test]
fn a_recording_cut_off_anywhere_gives_the_records_that_are_whole() {
    let (bytes, records) = recording();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("actor0.bin");
    for len in 0..bytes.len() {
        let Some(log) = FlightLog::decode(&bytes[..len]) else {
            assert!(len < 128, "{len}");
            continue;
        };
        let slots = (len as u64 - 128) / 128;
        let whole = records.iter().filter(|r| r.seq % (RECORDS as u64) < slots).count();
        assert_eq!(log.records.len(), whole, "{len}");
        assert!(log.records.iter().all(|r| records.contains(r)));
        if len % 997 == 0 {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert_eq!(flight::read(&path, usize::MAX).unwrap().len(), whole);
            // Whoever records next goes on after what is whole.
            let file = FlightFile::open(&path).unwrap();
            file.record(1, [0; 3], "next");
            let log = FlightLog::read(&path).unwrap();
            assert_eq!(log.records.last().unwrap().text, "next");
            assert!(log.records.len() >= whole.min(RECORDS - 1));
        }
    }
}

/// `inspect` and `watch` called it killed, and `runs` listed every key of either kind as a difference.
#[test]
fn a_value_run_that_ended_is_shown_as_one_and_not_compared_with_other_runs() {
    let folder = tempfile::tempdir().unwrap();
    let [values, trained] = ["v", "t"].map(|name| folder.path().join(name));
    let write = |dir: &Path, config: &str, manifest: Value| {
        drop(RunDirectory::create(dir).unwrap());
        std::fs::write(dir.join("config.toml"), config).unwrap();
        std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    };
    let outcome = serde_json::json!({
        "reason": "budget", "updates": 539, "samples": 549_402, "passes": 7, "best_loss": 0.1106, "seconds": 60.0,
    });
    let manifest = serde_json::json!({
        "admix": "0.1.0", "mode": "values", "seed": 1, "host": "here", "device": "cpu", "outcome": outcome,
        "started": "2026-11-23T04:00:00Z", "ended": "2026-11-23T05:00:00Z",
    });
    write(&values, "[values]\nbatch = 256\n", manifest);
    let metrics = "{\"time\":1.0,\"kind\":\"values\",\"epoch\":7,\"updates\":539,\"samples\":549402,\"samples_per_s\":0.0}\n\
                   {\"time\":2.0,\"kind\":\"evaluation\",\"epoch\":6,\"updates\":539,\"click\":0.1106,\"charge\":0.0,\"best\":true}\n";
    std::fs::write(values.join("metrics.jsonl"), metrics).unwrap();
    let manifest = serde_json::json!({
        "admix": "0.1.0", "mode": "parallel", "seed": 1, "started": "2026-11-23T06:00:00Z", "outcome": {"reason": "budget"},
    });
    write(&trained, "[policy]\nhidden = 4\n", manifest);

    let seen = inspect(&values, &["dead; ended 2026-11-23T05:00:00Z", "7 passes, best validation loss 0.1106"]);
    assert_eq!((seen["state"].as_str(), seen["notes"].as_array().map(Vec::len)), (Some("ended"), Some(0)), "{seen}");
    let screen = Command::new(PROGRAM).arg("watch").arg(&values).arg("--once").output().unwrap();
    let screen = String::from_utf8(screen.stdout).unwrap();
    for word in ["ended: budget", "updates 539", "click loss", "0.110600", "best so far"] {
        assert!(screen.contains(word), "no `{word}` in {screen}");
    }
    let listed = Command::new(PROGRAM).arg("runs").arg(folder.path()).arg("--json").output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let kinds: Vec<&str> = listed["runs"].as_array().unwrap().iter().map(|r| r["kind"].as_str().unwrap()).collect();
    assert_eq!((kinds, listed["differing"].as_object().unwrap().len()), (vec!["values", "train"], 0), "{listed}");
}
