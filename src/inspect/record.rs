//! Reads the run directory: manifest, metrics, checkpoints, flight recordings. Reads are bounded.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files;
use crate::run::RunDirectory;
use crate::run::flight::{self, Event};

/// Maximum size of a manifest, which has some kilobytes.
const MOST_MANIFEST: u64 = 4 << 20;
/// Bytes read from the end of `metrics.jsonl`, and number of records shown.
const METRICS_TAIL: u64 = 256 << 10;
const METRICS_LINES: usize = 5;
/// Maximum number of processes, and of checkpoints, shown.
const MOST_FILES: usize = 1000;

/// Mode of `admix values train` in its manifest.
const VALUES: &str = "values";

/// Content of `manifest.json` on the whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub admix: String,
    pub mode: String,
    pub device: String,
    pub host: String,
    pub seed: u64,
    pub started: String,
    pub ended: Option<String>,
    pub outcome: Option<Value>,
    /// Reason of the run's failure, if any.
    pub failure: Option<String>,
}

impl Manifest {
    /// Returns whether it is of `admix values train`.
    pub fn is_values(&self) -> bool {
        self.mode == VALUES
    }

    /// Whether a run of this mode has shared memory: one that is still training, not in serial mode.
    pub fn uses_memory(&self) -> bool {
        self.mode != "serial" && !self.is_values() && self.ended.is_none()
    }
}

/// Reads the manifest; `None` if there is none (yet).
pub fn manifest(directory: &RunDirectory, notes: &mut Vec<String>) -> Option<Manifest> {
    let path = directory.manifest();
    let bytes = match files::read(&path, MOST_MANIFEST) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        read => read.map_err(|e| notes.push(format!("{}: {e}", path.display()))).ok()?,
    };
    serde_json::from_slice(&bytes).map_err(|e| notes.push(format!("{}: {e}", path.display()))).ok()
}

/// Returns the last records of `metrics.jsonl`, oldest first.
pub fn metrics(directory: &RunDirectory, notes: &mut Vec<String>) -> Vec<Value> {
    let path = directory.metrics();
    let tail = || -> std::io::Result<Vec<u8>> {
        let mut file = files::open(&path)?;
        file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(METRICS_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(METRICS_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = match tail() {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => {
            notes.push(format!("{}: {e}", path.display()));
            return Vec::new();
        }
    };
    let mut damaged = 0;
    let mut records = Vec::new();
    // From the end; the first line of a tail may be cut, and so may the last one after a crash.
    for line in bytes.split(|&b| b == b'\n').rev().filter(|line| !line.is_empty()) {
        match serde_json::from_slice::<Value>(line) {
            Ok(record) if record.is_object() => records.push(record),
            _ => damaged += 1,
        }
        if records.len() == METRICS_LINES {
            break;
        }
    }
    if damaged > 0 {
        notes.push(format!("{}: {damaged} of its last lines are no records", path.display()));
    }
    records.reverse();
    records
}

/// Returns the names in a folder, sorted; empty if there is no folder.
fn listing(folder: &Path, notes: &mut Vec<String>) -> Vec<String> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => {
            notes.push(format!("{}: {e}", folder.display()));
            return Vec::new();
        }
    };
    let names = entries.flatten().take(MOST_FILES).map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Returns the names in `checkpoints/`.
pub fn checkpoints(directory: &RunDirectory, notes: &mut Vec<String>) -> Vec<String> {
    listing(&directory.checkpoints(), notes)
}

/// Returns the last `most` events of every process, merged by time.
pub fn events(directory: &RunDirectory, most: usize, notes: &mut Vec<String>) -> Vec<Event> {
    let folder = directory.flight();
    let mut events = Vec::new();
    for name in listing(&folder, notes).iter().filter(|name| name.ends_with(".bin")) {
        match flight::read(&folder.join(name), most) {
            Ok(of_process) => events.extend(of_process),
            Err(e) => notes.push(format!("flight/{name}: {e}")),
        }
    }
    events.sort_by(|a, b| (a.time_ms, &a.process, a.seq).cmp(&(b.time_ms, &b.process, b.seq)));
    events
}
