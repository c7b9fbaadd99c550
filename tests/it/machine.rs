//! What the machine under a run does to it, for real: a disk that is full, folders that are read-only, a clock that steps.
//!
//! Disks and read-only folders are mounts in a namespace of the test's own; where the machine gives nobody one, the tests say that
//! they were skipped. The clock is the program's own library call, answered by a shim that is compiled here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use admix::run::snapshot;
use serde_json::Value;

use crate::harness::{Ended, PATIENCE, PROGRAM, Run, config_in, days};

/// Runs a shell script that may mount; `None` (said on stderr) where mounting is not allowed. `$ADMIX` is the program, `$CONFIG`
/// the small world's configuration, and the script starts in `folder`.
fn script(test: &str, folder: &Path, text: &str) -> Option<Output> {
    let alone = |script: &str| {
        // Whatever the script has left behind ends with it.
        let script = format!("main=\ntrap '[ -z \"$main\" ] || kill -KILL $main 2> /dev/null || true' EXIT\n{script}");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "timeout"]).arg(PATIENCE.as_secs().to_string());
        command.args(["sh", "-euc", &script]).current_dir(folder);
        command.env("ADMIX", PROGRAM).env("CONFIG", config_in(folder, days())).output()
    };
    std::fs::create_dir_all(folder.join("probe")).unwrap();
    if !alone("mount -t tmpfs -o size=1m none probe").is_ok_and(|output| output.status.success()) {
        eprintln!("{test}: skipped, this machine does not let a test mount anything");
        return None;
    }
    Some(alone(text).unwrap())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn manifest(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap()
}

/// The disk fills up while training runs, stays full for some snapshots, and is emptied.
#[test]
fn a_disk_that_is_full_for_a_while_costs_snapshots_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = script(
        "a_disk_that_is_full_for_a_while_costs_snapshots_and_nothing_else",
        folder.path(),
        r#"
        mkdir disk
        mount -t tmpfs -o size=48m none disk
        $ADMIX train --config $CONFIG --run-dir disk/run --set budget.max_updates=10000000 --set checkpoint.every_s=0.1 &
        main=$!
        newest() { ls disk/run/checkpoints 2>/dev/null | sort | tail -1; }
        until [ -n "$(newest)" ] && [ -f disk/run/policy/best.safetensors ]; do kill -0 $main; sleep 0.05; done
        dd if=/dev/zero of=disk/filler bs=4k 2> /dev/null || true
        until $ADMIX inspect disk/run | grep -q '[1-9][0-9]* refused'; do kill -0 $main; sleep 0.1; done
        rm disk/filler
        before=$(newest)
        until [ "$(newest)" != "$before" ]; do kill -0 $main; sleep 0.05; done
        kill -TERM $main
        code=0
        wait $main || code=$?
        main=
        cp -r disk/run kept
        exit $code
        "#,
    ) else {
        return;
    };
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let outcome = manifest(&folder.path().join("kept"))["outcome"].clone();
    assert!(outcome["checkpoints"]["failures"].as_u64() > Some(0), "{outcome}");
    assert_eq!(outcome["other_restarts"], 0, "{}", stderr(&output));
    let newest = snapshot::newest(&folder.path().join("kept/checkpoints")).unwrap().expect("a snapshot");
    assert_eq!(Some(newest.state.updates), outcome["updates"].as_u64());
}

/// Nothing can be saved at the end: that is an error which names a file, and what was saved before is whole.
#[test]
fn a_run_that_ends_on_a_full_disk_says_so_and_goes_on_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = script(
        "a_run_that_ends_on_a_full_disk_says_so_and_goes_on_once_there_is_room",
        folder.path(),
        r#"
        mkdir disk
        mount -t tmpfs -o size=48m none disk
        train() { $ADMIX train --config $CONFIG --run-dir disk/run --set checkpoint.every_s=0.1 --set evaluate.every=1000000 "$@"; }
        train --set budget.max_updates=1000 2> first &
        main=$!
        until [ -n "$(ls disk/run/checkpoints 2>/dev/null)" ] && [ -f disk/run/policy/best.safetensors ]; do
            kill -0 $main
            sleep 0.05
        done
        # Again and again: what a failed commit removes is room.
        while :; do dd if=/dev/zero bs=4k >> disk/filler 2>/dev/null || true; sleep 0.02; done &
        filler=$!
        code=0
        wait $main || code=$?
        main=
        kill $filler
        wait $filler || true
        echo $code > first-code
        rm disk/filler
        $ADMIX inspect disk/run > /dev/null
        code=0
        train --resume --set budget.max_updates=8 2> second || code=$?
        cp -r disk/run kept
        exit $code
        "#,
    ) else {
        return;
    };
    let said = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}\n{}\n{}", stderr(&output), said("first"), said("second"));
    assert_eq!(said("first-code").trim(), "25", "{}", said("first"));
    assert!(said("first").contains("make room and go on with --resume"), "{}", said("first"));
    assert!(snapshot::newest(&folder.path().join("kept/checkpoints")).unwrap().is_some());
    assert!(folder.path().join("kept/policy/best.safetensors").is_file());
}

/// A checkpointer that warned of a full disk into a log on the same disk panicked, again and again.
#[test]
fn logs_on_a_full_disk_do_not_end_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = script(
        "logs_on_a_full_disk_do_not_end_a_run",
        folder.path(),
        r#"
        train() { $ADMIX train --config $CONFIG --run-dir run --set checkpoint.every_s=0.05 --set 'data.test=[]' "$@"; }
        train --set budget.max_updates=8
        mount -t tmpfs -o size=64k none run/logs
        dd if=/dev/zero of=run/logs/filler bs=1k 2> /dev/null || true
        ADMIX_FAILPOINT=checkpoint.commit@2=fail train --resume 2> /dev/full
        ! grep -q . run/logs/checkpointer.log
        "#,
    ) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let outcome = manifest(&folder.path().join("run"))["outcome"].clone();
    assert_eq!((&outcome["checkpoints"]["failures"], &outcome["other_restarts"]), (&1.into(), &0.into()), "{outcome}");
}

/// Whoever wants fast tables may mount shared memory with `huge=always`. There, the kernel wiped what main had written into a large segment.
#[test]
fn shared_memory_mounted_for_huge_pages_keeps_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let values = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/values.toml");
    for huge in ["always", "within_size"] {
        let Some(output) = script(
            "shared_memory_mounted_for_huge_pages_keeps_what_is_written",
            folder.path(),
            &format!(
                r#"
                mount -t tmpfs -o huge={huge} none /dev/shm || exit 77
                [ -d world ] || {{
                    printf 'requests = 2000\nusers = 500\n[errors]\nad = 0.2\ntrain_days = 1\n' > world.toml
                    $ADMIX data synth --exposures-only --days 1 --config world.toml --out world
                }}
                $ADMIX values train --config {values} --run-dir {huge} --set 'values.train=["world/day-0"]' \
                    --set values.validation=[] --set values.refit=false --set values.epochs=1 --set table.max_rows=1000000
                "#
            ),
        ) else {
            return;
        };
        if output.status.code() == Some(77) {
            eprintln!(
                "shared_memory_mounted_for_huge_pages_keeps_what_is_written: skipped, this kernel has no huge pages"
            );
            return;
        }
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(folder.path().join(huge).join("values/values.safetensors").is_file());
    }
}

/// Whoever only reads gets on with a read-only run directory; whoever must write says so at once.
#[test]
fn a_read_only_run_directory_can_be_read_and_not_gone_on_with() {
    let ended = Run::start(&["budget.max_updates=16"], &[]).wait().expect(0);
    let folder = ended.into_folder();
    let Some(output) = script(
        "a_read_only_run_directory_can_be_read_and_not_gone_on_with",
        folder.path(),
        r#"
        mount --bind run run
        mount -o remount,bind,ro run
        ! touch run/file 2> /dev/null
        $ADMIX inspect run > inspected
        $ADMIX eval --policy run --log "$(dirname "$(sed -n 's/^train = \["\(.*\)"\]/\1/p' $CONFIG)")/day-2" --baselines none > evaluated
        code=0
        $ADMIX train --config $CONFIG --run-dir run --resume --set budget.max_updates=32 2> resumed || code=$?
        echo $code > resumed-code
        code=0
        $ADMIX train --config $CONFIG --run-dir run/below 2> begun || code=$?
        echo $code > begun-code
        "#,
    ) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(said("inspected").contains("budget"), "{}", said("inspected"));
    assert!(said("evaluated").contains("upper bound"), "{}", said("evaluated"));
    for attempt in ["resumed", "begun"] {
        assert_eq!(said(&format!("{attempt}-code")).trim(), "2", "{attempt}: {}", said(attempt));
        let text = said(attempt);
        assert!(text.contains("Read-only file system") && text.contains("run"), "{attempt}: {text}");
        assert!(text.contains("--run-dir"), "{attempt} says what to do: {text}");
    }
}

/// Nothing may be kept beside read-only logs: compiled logs and plans are made each time.
#[test]
fn read_only_logs_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = script(
        "read_only_logs_are_trained_on",
        folder.path(),
        r#"
        cp -r "$(dirname "$(sed -n 's/^train = \["\(.*\)"\]/\1/p' $CONFIG)")" logs
        rm -rf logs/day-*/.admix
        mount --bind logs logs
        mount -o remount,bind,ro logs
        sed -i 's#\["[^"]*/day-#["logs/day-#' $CONFIG
        $ADMIX train --config $CONFIG --run-dir run --set budget.max_updates=16
        "#,
    ) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!folder.path().join("logs/day-0/.admix").exists());
    assert_eq!(manifest(&folder.path().join("run"))["outcome"]["updates"], 16);
}

/// A wall clock that steps an hour back and forth, twice a second, for everybody who asks.
const CLOCK: &str = r#"
use std::ffi::{c_int, c_long};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn syscall(number: c_long, clock: c_long, time: *mut Timespec) -> c_long;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let result = unsafe { syscall(NUMBER, clock.into(), time) };
    if clock == 0 && result == 0 && unsafe { (*time).nanoseconds } >= 500_000_000 {
        unsafe { (*time).seconds -= 3600 };
    }
    result as c_int
}
"#;

fn stepping_clock(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("clock.rs"), folder.join("libclock.so"));
    std::fs::write(&source, CLOCK.replace("NUMBER", &libc::SYS_clock_gettime.to_string())).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let made = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-Cpanic=abort", "-o"])
        .args([&library, &source])
        .output()
        .expect("rustc");
    assert!(made.status.success(), "{}", stderr(&made));
    library
}

/// Timeouts, watchdogs and budgets go by a clock that nobody sets.
#[test]
fn a_wall_clock_that_steps_back_and_forth_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let library = stepping_clock(folder.path());
    let clock = [("LD_PRELOAD", library.to_str().unwrap())];
    let shown = Command::new("date").arg("+%s.%N").envs(clock).output().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let seen: Vec<bool> = (0..40)
        .map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let shown = Command::new("date").arg("+%s").envs(clock).output().unwrap();
            String::from_utf8(shown.stdout).unwrap().trim().parse::<u64>().unwrap() < now
        })
        .collect();
    assert!(shown.status.success() && seen.contains(&true) && seen.contains(&false), "the clock does not step");

    let start = |folder: tempfile::TempDir, sets: &[&str], arguments: &[&str]| {
        let config = config_in(folder.path(), days());
        Run::start_under(folder, &config, sets, arguments, &clock)
    };
    let sets = |seconds| {
        [seconds, "budget.max_updates=0", "checkpoint.every_s=0.1", "watchdog.silent_s=60", "watchdog.stuck_s=60"]
    };
    let started = std::time::Instant::now();
    let ended = start(tempfile::tempdir().unwrap(), &sets("budget.max_seconds=6"), &[]).wait().expect(0);
    assert!(started.elapsed() > std::time::Duration::from_secs(6), "the budget is of time that passes");
    let quiet = |ended: &Ended| {
        let outcome = ended.outcome();
        assert_eq!((&outcome["actor_restarts"], &outcome["other_restarts"]), (&0.into(), &0.into()), "{outcome}");
        assert_eq!(outcome["checkpoints"]["failures"], 0, "{outcome}");
        assert!(outcome["checkpoints"]["snapshots"].as_u64() > Some(0), "{outcome}");
        outcome["updates"].as_u64().unwrap()
    };
    let first = quiet(&ended);
    let newest = |ended: &Ended| snapshot::newest(&ended.dir().join("checkpoints")).unwrap().unwrap().state.updates;
    assert_eq!(newest(&ended), first);
    let ended = start(ended.into_folder(), &sets("budget.max_seconds=14"), &["--resume"]).wait().expect(0);
    let second = quiet(&ended);
    assert!(second >= first);
    assert_eq!(newest(&ended), second, "the newest snapshot is the one of most updates, whatever its time");
}
