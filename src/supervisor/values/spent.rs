//! What the earlier starts of a run took, beside what its snapshots say of the whole run.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::run::RunDirectory;
use crate::supervisor::manifest;

use super::ValueOutcome;

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
    /// Of all starts before this one: the manifest of the last of them says so. If it failed or was killed, how often it saved or restarted is
    /// not known.
    pub fn before(directory: &RunDirectory, manifest: &Value) -> Self {
        let known = if manifest["outcome"].is_object() { &manifest["outcome"] } else { &manifest["before"] };
        let counters: Self = serde_json::from_value(known.clone()).unwrap_or_default();
        Self { seconds: manifest::seconds_before(manifest, &directory.metrics()), ..counters }
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
        let failed = json!({"before": took, "outcome": null, "started": "2026-01-01T00:00:00Z",
            "resumed": ["2026-01-02T00:00:00Z"], "ended": "2026-01-02T00:00:30Z", "failure": "no room"});
        assert_eq!(before(failed), Spent { seconds: 50.0, ..took }, "it failed after 30 s");
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
