//! The flight recorder: the last events of every process of a run, in `RUN_DIR/flight/<process>.bin`.
//!
//! Only the process that crashed knows what happened just before, and its log may never have been flushed. Each process
//! therefore records its few events in a small mapped file ([`crate::shm::flight`]), which `admix inspect` can read while the
//! process is alive or after it died. A process has one recorder, as it has one log; the command line starts it. Where none was
//! started (in a library's user or a test), or where the file cannot be made (a full disk, a folder without permission: a
//! warning), all functions here do nothing.
//!
//! Frequent events are thinned: publications and block hand-overs are recorded at most once per [`OFTEN`], with numbers from
//! which their count follows.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::shm::{FlightFile, FlightLog, FlightRecord};

/// Minimum time between two records of a frequent event.
const OFTEN: Duration = Duration::from_secs(1);
/// A wait is recorded when it has lasted this long, and each time its length has doubled.
const LONG: Duration = Duration::from_secs(10);

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum EventKind {
    /// The process started. Number: which start of its role this is.
    Start = 1,
    /// Parameters were published. Numbers: version, updates.
    Publication = 2,
    /// Parameters were evaluated. Numbers: updates, bits of J, bits of the share of the bound.
    Evaluation = 3,
    /// A block was handed to the learner. Numbers: blocks so far, samples in it, parameter version.
    HandOver = 4,
    /// The process is waiting. Number: milliseconds so far. Text: for what.
    Wait = 5,
    /// Main found a child dead. Numbers: its pid, samples lost with it. Text: its status.
    Restart = 6,
    /// The run was asked to stop. Number: level. Text: why.
    Stop = 7,
    /// The process ends with an error.
    Error = 8,
    /// The process ends normally.
    End = 9,
}

impl EventKind {
    fn of(number: u32) -> Option<Self> {
        use EventKind::{End, Error, Evaluation, HandOver, Publication, Restart, Start, Stop, Wait};
        [Start, Publication, Evaluation, HandOver, Wait, Restart, Stop, Error, End]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

struct Recorder {
    file: FlightFile,
    pace: Mutex<Pace>,
}

/// State for thinning frequent events.
#[derive(Default)]
struct Pace {
    published: Option<Instant>,
    handed_over: Option<Instant>,
    blocks: u64,
    wait: Option<Wait>,
}

struct Wait {
    since: Instant,
    /// Length of the wait at which it is recorded next.
    next: Duration,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Starts recording for this process, called `process` (`main`, `learner`, `actor0`, ..), in `folder`. From now on a panic is
/// recorded too.
pub fn begin(folder: &Path, process: &str) {
    let opened =
        std::fs::create_dir_all(folder).and_then(|()| FlightFile::open(&folder.join(format!("{process}.bin"))));
    let file = match opened {
        Ok(file) => file,
        Err(e) => {
            tracing::warn!("no flight recorder in {}: {e}; the run goes on without", folder.display());
            return;
        }
    };
    let starts = file.starts();
    if RECORDER.set(Recorder { file, pace: Mutex::default() }).is_err() {
        return;
    }
    note(EventKind::Start, [starts, 0, 0], concat!("admix ", env!("CARGO_PKG_VERSION")));
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let said = payload.downcast_ref::<&str>().copied();
        let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("");
        let line = panic.location().map_or(0, |at| u64::from(at.line()));
        note(EventKind::Error, [line, 0, 0], &format!("panic: {said}"));
        previous(panic);
    }));
}

/// Records an event. About 60 characters of `text` are kept.
pub fn note(kind: EventKind, numbers: [u64; 3], text: &str) {
    if let Some(recorder) = RECORDER.get() {
        recorder.file.record(kind as u32, numbers, text);
    }
}

/// Locks the thinning state; `None` where nothing is recorded.
fn pace() -> Option<MutexGuard<'static, Pace>> {
    Some(RECORDER.get()?.pace.lock().unwrap_or_else(PoisonError::into_inner))
}

fn due(last: &mut Option<Instant>) -> bool {
    let due = last.is_none_or(|at| at.elapsed() >= OFTEN);
    if due {
        *last = Some(Instant::now());
    }
    due
}

/// Records that parameters were published.
pub fn published(version: u64, updates: u64) {
    let Some(mut pace) = pace() else { return };
    pace.wait = None;
    if due(&mut pace.published) {
        note(EventKind::Publication, [version, updates, 0], "");
    }
}

/// Records that a block of samples, made with parameters `version`, was handed over.
pub fn handed_over(samples: u64, version: u64) {
    let Some(mut pace) = pace() else { return };
    pace.wait = None;
    pace.blocks += 1;
    if due(&mut pace.handed_over) {
        note(EventKind::HandOver, [pace.blocks, samples, version], "");
    }
}

/// Reports that the process still waits for `what`; to be called at every wake-up. Recorded once the wait has lasted long
/// without a publication or a block handed over.
pub fn waiting(what: &str) {
    let Some(mut pace) = pace() else { return };
    let wait = pace.wait.get_or_insert_with(|| Wait { since: Instant::now(), next: LONG });
    let lasted = wait.since.elapsed();
    if lasted >= wait.next {
        wait.next = 2 * lasted;
        note(EventKind::Wait, [lasted.as_millis() as u64, 0, 0], what);
    }
}

/// Records an evaluation of the parameters after `updates` updates.
pub fn evaluated(updates: u64, j: f64, share: f64, improved: bool) {
    let text = if improved { "the best so far" } else { "" };
    note(EventKind::Evaluation, [updates, j.to_bits(), share.to_bits()], text);
}

/// Records that main found a child dead and will start another.
pub fn restarted(process: impl std::fmt::Display, pid: u32, status: impl std::fmt::Display, lost: u64) {
    note(EventKind::Restart, [pid.into(), lost, 0], &format!("{process}: {status}"));
}

/// Records that the run was asked to stop, at `level`.
pub fn stop_requested(level: u32, why: &str) {
    note(EventKind::Stop, [level.into(), 0, 0], why);
}

/// Records the end of the process, normal or by an error.
pub fn end<T>(result: &anyhow::Result<T>) {
    match result {
        Ok(_) => note(EventKind::End, [0; 3], ""),
        Err(e) => note(EventKind::Error, [0; 3], &format!("{e:#}")),
    }
}

/// One event of a process, readable by people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    pub process: String,
    pub pid: u32,
    pub seq: u64,
    /// Unix milliseconds.
    pub time_ms: u64,
    /// Milliseconds of the monotonic clock.
    pub monotonic_ms: u64,
    /// Kind of the event; `None` for a kind that this build does not know.
    pub kind: Option<EventKind>,
    pub numbers: [u64; 3],
    pub text: String,
    /// The whole event in words.
    pub says: String,
}

impl Event {
    fn new(process: &str, record: FlightRecord) -> Self {
        let kind = EventKind::of(record.kind);
        let text: String = record.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self {
            process: process.to_owned(),
            pid: record.pid,
            seq: record.seq,
            time_ms: record.wall_ms,
            monotonic_ms: record.monotonic_ms,
            kind,
            numbers: record.numbers,
            says: says(kind, record.kind, record.numbers, &text),
            text,
        }
    }
}

fn says(kind: Option<EventKind>, number: u32, [a, b, c]: [u64; 3], text: &str) -> String {
    match kind {
        Some(EventKind::Start) => format!("start {a} ({text})"),
        Some(EventKind::Publication) => format!("published version {a}, of {b} updates"),
        Some(EventKind::Evaluation) => {
            let (j, share) = (f64::from_bits(b), 100.0 * f64::from_bits(c));
            let best = if text.is_empty() { String::new() } else { format!(", {text}") };
            format!("evaluated {a} updates: J {j:.0}, share {share:.2}{best}")
        }
        Some(EventKind::HandOver) => format!("handed over block {a} ({b} samples, parameters {c})"),
        Some(EventKind::Wait) => format!("has waited {:.1} s for {text}", a as f64 / 1000.0),
        Some(EventKind::Restart) => format!("{text}; was process {a}, {b} samples lost with it; starts another"),
        Some(EventKind::Stop) => format!("stop requested, level {a}: {text}"),
        Some(EventKind::Error) => format!("error: {text}"),
        Some(EventKind::End) => "end".to_owned(),
        None => format!("event of kind {number}: {a} {b} {c} {text}"),
    }
}

/// Returns the last `most` events of one process, oldest first.
///
/// # Errors
/// A file that cannot be read or is not a recording.
pub fn read(path: &Path, most: usize) -> std::io::Result<Vec<Event>> {
    let process = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let records = FlightLog::read(path)?.records;
    let skipped = records.len().saturating_sub(most);
    Ok(records.into_iter().skip(skipped).map(|record| Event::new(&process, record)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_and_its_words() {
        for number in 1..=9 {
            let kind = EventKind::of(number).unwrap();
            assert_eq!(kind as u32, number);
            assert!(!says(Some(kind), number, [1, 2, 3], "text").is_empty());
        }
        assert_eq!(EventKind::of(0), None);
        assert_eq!(says(None, 77, [1, 2, 3], "new"), "event of kind 77: 1 2 3 new");
        let share = [64, 1234.4f64.to_bits(), 0.991f64.to_bits()];
        assert_eq!(
            says(Some(EventKind::Evaluation), 3, share, "the best so far"),
            "evaluated 64 updates: J 1234, share 99.10, the best so far"
        );
    }

    #[test]
    fn what_is_read_is_one_line_whatever_was_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("actor7.bin");
        let file = FlightFile::open(&path).unwrap();
        for i in 0..20 {
            file.record(EventKind::Error as u32, [i, 0, 0], "two\nlines\u{1b}[2J");
        }
        drop(file);
        let events = read(&path, 5).unwrap();
        assert_eq!(events.iter().map(|e| e.numbers[0]).collect::<Vec<_>>(), [15, 16, 17, 18, 19]);
        assert!(events.iter().all(|e| e.process == "actor7" && e.says == "error: two lines [2J"), "{events:?}");
    }
}
