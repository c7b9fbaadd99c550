//! What the earlier starts of a run took, beside what its snapshots say of the whole run.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files;
use crate::run::RunDirectory;
use crate::supervisor::manifest;

use super::ValueOutcome;

/// Bytes at the end of `metrics.jsonl` in which its last record is looked for.
const TAIL: u64 = 64 << 10;

/// What the starts of a run took, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    seconds: f64,
    reader_restarts: u32,
    went_back: u32,
    snapshots: u64,
    snapshot_s: f64,
}

impl Spent {
    /// Of all starts before this one: the manifest of the last of them says so. If it failed or was killed, its time until its end, or until
    /// its last record, is counted; how often it saved or restarted is not known.
    pub fn before(directory: &RunDirectory, manifest: &Value) -> Self {
        let read = |value: &Value| serde_json::from_value::<Self>(value.clone()).unwrap_or_default();
        if manifest["outcome"].is_object() {
            return read(&manifest["outcome"]);
        }
        let earlier = read(&manifest["before"]);
        let seconds = |text: &str| text.parse::<jiff::Timestamp>().ok().map(|time| time.as_second() as f64);
        let begun = manifest::starts(manifest).last().and_then(|text| seconds(text));
        let ended = manifest["ended"].as_str().and_then(seconds).or_else(|| last_record(&directory.metrics()));
        let last = begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).max(0.0));
        Self { seconds: earlier.seconds + last, ..earlier }
    }

    /// Whether a snapshot is known to have been taken.
    pub fn saved(&self) -> bool {
        self.snapshots > 0
    }

    /// Returns the outcome of the run whose last start ended with `last`.
    pub fn and(self, last: ValueOutcome) -> ValueOutcome {
        ValueOutcome {
            seconds: self.seconds + last.seconds,
            reader_restarts: self.reader_restarts + last.reader_restarts,
            went_back: self.went_back + last.went_back,
            snapshots: self.snapshots + last.snapshots,
            snapshot_s: self.snapshot_s + last.snapshot_s,
            ..last
        }
    }
}

/// Returns the time of the last record in `metrics.jsonl`, Unix seconds.
fn last_record(path: &Path) -> Option<f64> {
    let mut file = files::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    // The first and the last line may be cut.
    tail.rsplit(|b| *b == b'\n').find_map(|line| serde_json::from_slice::<Value>(line).ok()?["time"].as_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::shm::Ledger;
    use crate::supervisor::ExitReason;

    /// The outcome of a run that was resumed had the updates of the whole run and the seconds of its last start.
    #[test]
    fn what_all_starts_took_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::create(&folder.path().join("run")).unwrap();
        let before = |manifest: Value| Spent::before(&directory, &manifest);
        assert_eq!(before(Value::Null), Spent::default(), "the first start");
        let took = Spent { seconds: 20.0, reader_restarts: 1, went_back: 2, snapshots: 3, snapshot_s: 0.5 };
        let interrupted = json!({"before": {"seconds": 5.0}, "outcome": took, "started": "2026-01-01T00:00:00Z"});
        assert_eq!(before(interrupted), took, "an outcome is that of all starts");
        let starts = json!({"before": took, "outcome": null, "started": "2026-01-01T00:00:00Z",
            "resumed": ["2026-01-02T00:00:00Z"], "ended": "2026-01-02T00:00:30Z", "failure": "no room"});
        assert_eq!(before(starts.clone()), Spent { seconds: 50.0, ..took }, "it failed after 30 s");
        let mut killed = starts;
        killed["ended"] = Value::Null;
        assert_eq!(before(killed.clone()), took, "it left no record");
        let begun = "2026-01-02T00:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second();
        let records = format!("{{\"time\": {begun}}}\n{{\"time\": {}.5}}\n{{\"ti", begun + 7);
        std::fs::write(directory.metrics(), records).unwrap();
        assert_eq!(before(killed), Spent { seconds: 27.5, ..took }, "until its last record");
        let last = ValueOutcome {
            reason: ExitReason::Budget,
            updates: 9,
            samples: 90,
            passes: 1,
            seconds: 2.0,
            best_loss: 0.5,
            reader_restarts: 4,
            went_back: 0,
            snapshots: 1,
            snapshot_s: 0.25,
            ledger: Ledger::default(),
            work: None,
        };
        let all = took.and(last);
        assert_eq!((all.seconds, all.reader_restarts, all.went_back), (22.0, 5, 2));
        assert_eq!((all.snapshots, all.snapshot_s, all.updates, all.samples), (4, 0.75, 9, 90));
    }
}
