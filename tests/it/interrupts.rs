//! Ctrl-C and SIGTERM in every phase of `admix train`: while it plans, while it reports, while its processes end.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::decisions::synth;
use crate::harness::{ENDLESS, HASTY, PATIENCE, Run, child, children_of, config_in, send, until_best};
use crate::logs::LogRows;

/// A world that is planned and reported long enough to be interrupted: many replays of some thousand requests.
fn long_days(folder: &Path) -> std::path::PathBuf {
    let days = synth(folder, "requests = 12000\ncontracts = 12\ncontracts_per_queue = 3.0\n", 3);
    days[0].parent().unwrap().to_owned()
}

const LONG: [&str; 2] = ["baselines.tuning_replays=2000", "watchdog.grace_s=600"];

/// What main has said so far.
fn said(run: &Run) -> String {
    std::fs::read_to_string(run.dir().with_file_name("stderr")).unwrap()
}

/// It took up to 48 s to be heard, and what was known of the plan was lost.
#[test]
fn planning_is_interrupted_and_what_was_known_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let days = long_days(folder.path());
    let kept = |prefix: &str| {
        let entries = std::fs::read_dir(days.join("day-0/.admix")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    };
    let mut run = Run::start_on(&days, &LONG, &[]);
    run.until("an untuned plan", |_| (kept("plan-") > 0).then_some(()));
    run.signal(Signal::SIGTERM);
    let ended = run.wait().expect(130);
    assert!(ended.stderr.contains("interrupted before training began"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("watchdog.grace_s"), "it ended by itself: {}", ended.stderr);
    assert!(!ended.dir().exists(), "a directory without a run is in the way of the next start");
    assert_eq!((kept("compiled"), kept("plan-"), kept(".tmp")), (1, 1, 0));
    // The same command starts it.
    let sets = ["baselines.tuning_replays=4", "budget.max_updates=8", "data.test=[]"];
    Run::resume(ended.into_folder(), &sets, &[]).wait().expect(0);
}

#[test]
fn a_second_interrupt_ends_planning_at_once_and_so_does_the_end_of_grace() {
    let folder = tempfile::tempdir().unwrap();
    let days = long_days(folder.path());
    let mut run = Run::start_on(&days, &LONG, &[]);
    run.until("planning", |run| said(run).contains("planning from").then_some(()));
    run.signal(Signal::SIGINT);
    // Closer together they would count as one.
    std::thread::sleep(Duration::from_millis(500));
    run.signal(Signal::SIGINT);
    run.wait().expect(130);
}

/// GNU `timeout` signals its child, then the child's process group: the run ended "interrupted twice" and saved nothing.
#[test]
fn two_signals_at_once_are_one_interrupt_and_the_run_is_saved() {
    let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=1000"]].concat(), &[]);
    until_best(&mut run);
    run.signal(Signal::SIGTERM);
    // Another number: the kernel may deliver two equal ones as one.
    run.signal(Signal::SIGINT);
    let ended = run.wait().expect(130);
    assert_eq!(ended.outcome()["reason"], "interrupted", "{}", ended.stderr);
    let newest = admix::run::snapshot::newest(&ended.dir().join("checkpoints")).unwrap();
    assert!(newest.is_some_and(|snapshot| snapshot.state.updates > 0), "{}", ended.stderr);
    assert!(ended.last().is_file());
}

/// Five were ignored for 65 s.
#[test]
fn the_report_is_interrupted_and_the_policy_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let days = long_days(folder.path());
    // A report of many days: nearly the same one, again and again.
    let mut rows = LogRows::read(&days.join("day-2"));
    let test: Vec<String> = (0..40)
        .map(|i| {
            rows.requests.pop();
            format!("{:?}", rows.write(folder.path().join(format!("test-{i}"))))
        })
        .collect();
    let test = format!("data.test=[{}]", test.join(","));
    let sets = ["baselines.tuning_replays=4", "budget.max_updates=8", "watchdog.grace_s=600", test.as_str()];
    let mut run = Run::start_on(&days, &sets, &[]);
    run.until("the report", |run| said(run).contains("budget spent").then_some(()));
    run.signal(Signal::SIGTERM);
    let ended = run.wait().expect(130);
    assert!(ended.stderr.contains("interrupted during the report"), "{}", ended.stderr);
    assert!(ended.best().is_file());
    assert_eq!(ended.outcome()["reason"], "budget");
}

/// Every process of a run, main last among those that are stopped and first among those that go on, as when a machine sleeps.
#[test]
fn a_pause_of_the_whole_run_longer_than_its_patience_kills_nobody() {
    let sets = ["watchdog.silent_s=30", "checkpoint.every_s=0.1"];
    let mut run = Run::start(&[ENDLESS, &sets].concat(), &[]);
    until_best(&mut run);
    let children = run.until("all children", |run| Some(children_of(run.pid())).filter(|c| c.len() == 5));
    for kin in &children {
        send(kin.pid, Signal::SIGSTOP);
    }
    run.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(35));
    run.signal(Signal::SIGCONT);
    // Main looks around before the others are awake.
    std::thread::sleep(Duration::from_millis(200));
    for kin in &children {
        send(kin.pid, Signal::SIGCONT);
    }
    let updates = |run: &Run| {
        let memory = admix::inspect::inspect(&run.dir(), 1).unwrap().memory;
        memory.and_then(|memory| memory.control).map_or(0, |control| control.learner.updates)
    };
    let before = updates(&run);
    run.until("progress", |run| (updates(run) > before).then_some(()));
    run.signal(Signal::SIGTERM);
    let ended = run.wait().expect(130);
    let outcome = ended.outcome();
    assert_eq!((&outcome["actor_restarts"], &outcome["other_restarts"]), (&0.into(), &0.into()), "{}", ended.stderr);
}

/// It was waited for for ever: only a process that had signed in could be silent.
#[test]
fn a_process_that_hangs_before_it_signs_in_is_replaced() {
    for role in ["actor0", "checkpointer"] {
        let mut run = Run::start(&[ENDLESS, &HASTY].concat(), &[]);
        let hung = run.until(role, |run| child(run, role));
        send(hung.pid, Signal::SIGSTOP);
        run.until("successor", |run| child(run, role).filter(|kin| kin.pid != hung.pid));
        until_best(&mut run);
        run.until("a snapshot", |run| {
            let newest = admix::run::snapshot::newest(&run.dir().join("checkpoints")).unwrap();
            newest.filter(|snapshot| snapshot.state.updates > 0)
        });
        run.signal(Signal::SIGTERM);
        let ended = run.wait().expect(130);
        assert!(ended.stderr.contains(&format!("{role} has given no sign of life")), "{}", ended.stderr);
    }
}

/// Consumed, learned from and rolled back did not add up, and the outcome told of updates that nobody had any more.
#[test]
fn a_learner_that_dies_after_a_stop_request_leaves_an_exact_account() {
    let mut run = Run::start(&[ENDLESS, &["checkpoint.every_s=0.1"]].concat(), &[]);
    let snapshots = run.dir().join("checkpoints");
    until_best(&mut run);
    let newest = || admix::run::snapshot::newest(&snapshots).unwrap();
    run.until("a snapshot", |_| newest().filter(|s| s.state.updates > 20));
    let learner = child(&run, "learner").unwrap();
    // It cannot end in order, and is killed while the run waits for it.
    send(learner.pid, Signal::SIGSTOP);
    run.signal(Signal::SIGTERM);
    let stopping = Instant::now();
    run.until("the stop request", |run| {
        assert!(stopping.elapsed() < PATIENCE);
        let memory = admix::inspect::inspect(&run.dir(), 1).unwrap().memory?;
        (memory.control?.stop_level > 0).then_some(())
    });
    send(learner.pid, Signal::SIGKILL);
    let ended = run.wait().expect(130);
    let outcome = ended.outcome();
    let (samples, rolled_back) = (outcome["samples"].as_u64().unwrap(), outcome["rolled_back"].as_u64().unwrap());
    assert_eq!(ended.ledger("consumed"), samples + rolled_back, "{outcome}");
    let newest = admix::run::snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap();
    assert_eq!((Some(newest.state.updates), newest.state.samples), (outcome["updates"].as_u64(), samples));
    let last = admix::policy::file::PolicyFile::read(&ended.last()).unwrap();
    assert_eq!(last.updates, newest.state.updates);
    // And the run goes on from there.
    let more = format!("budget.max_updates={}", newest.state.updates + 8);
    let again = Run::resume(ended.into_folder(), &[&more, "checkpoint.every_s=0.1"], &["--resume"]).wait().expect(0);
    let outcome = again.outcome();
    let parts = outcome["samples"].as_u64().unwrap() + outcome["rolled_back"].as_u64().unwrap();
    assert_eq!(again.ledger("consumed"), parts, "{outcome}");
}

/// A FIFO where a file should be held up whoever opened it, for ever.
#[test]
fn a_pipe_in_a_run_directory_holds_nobody_up() {
    let ended = crate::harness::train(&["budget.max_updates=8", "data.test=[]"], &[]);
    let folder = ended.into_folder();
    let run = folder.path().join("run");
    for name in ["metrics.jsonl", "flight/main.bin", "policy/best.safetensors", "manifest.json", "config.toml", "lock"]
    {
        let (path, aside) = (run.join(name), folder.path().join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let day = crate::harness::days().join("day-2");
        let (day, dir) = (day.to_str().unwrap(), run.to_str().unwrap());
        let config = config_in(folder.path(), crate::harness::days());
        for arguments in [
            &["inspect", dir][..],
            &["eval", "--log", day, "--baselines", "none", "--policy", dir],
            &["train", "--config", config.to_str().unwrap(), "--resume", "--run-dir", dir, "--set", "data.test=[]"],
        ] {
            let mut command = crate::support::admix();
            // Whatever it says: that it ends is the promise.
            let output = command.args(arguments).timeout(PATIENCE).output().unwrap();
            assert!(output.status.code().is_some(), "{name}: {arguments:?} hangs");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
    }
}

/// The signal that tells of the limit ended main.
#[test]
fn a_limit_on_the_size_of_files_does_not_kill() {
    let folder = tempfile::tempdir().unwrap();
    let config = config_in(folder.path(), crate::harness::days());
    let mut shell = std::process::Command::new("sh");
    // The limit in blocks of 512 bytes: less than metrics and snapshots need.
    shell.args(["-c", "ulimit -f 8; exec \"$0\" \"$@\"", crate::harness::PROGRAM]);
    let sets = ["budget.max_updates=64", "data.test=[]", "checkpoint.every_s=0.1", "watchdog.grace_s=5"];
    let ended = Run::start_program(shell, folder, &config, &sets, &[], &[]).wait();
    // An error or a policy that cannot be written, but no death by a signal.
    assert!(ended.code.is_some(), "{}", ended.stderr);
}

/// The bytes of a log reached the terminal as they were.
#[test]
fn escape_sequences_in_a_log_are_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let days =
        synth(folder.path(), "requests = 300\ncontracts = 2\ncontracts_per_queue = 1.0\ncompress = \"none\"\n", 1);
    let log = days[0].join("track_log.tsv");
    let text = std::fs::read_to_string(&log).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let (first, rest) = rows.split_once('\n').unwrap();
    let bad = first.replacen(first.split('\t').next().unwrap(), "\u{1b}]0;owned\u{7}", 1);
    std::fs::write(&log, format!("{head}\n{bad}\n{rest}")).unwrap();
    for arguments in [&["data", "check"][..], &["eval", "--baselines", "none", "--log"]] {
        let output = crate::support::admix().args(arguments).arg(&days[0]).output().unwrap();
        for stream in [&output.stdout, &output.stderr] {
            assert!(!stream.contains(&0x1b) && !stream.contains(&7), "{}", String::from_utf8_lossy(stream));
        }
    }
}
