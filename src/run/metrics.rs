//! `metrics.jsonl`: one JSON object per line, appended by several processes.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde::Serialize;

use crate::files;

/// Appends records; each is one write, so that lines of several processes do not mix.
#[derive(Debug)]
pub struct Metrics {
    file: File,
    /// Whether the last record was not written, or only in part.
    refused: bool,
}

#[derive(Serialize)]
struct Line<'a, T> {
    /// Unix seconds.
    time: f64,
    kind: &'a str,
    #[serde(flatten)]
    record: &'a T,
}

impl Metrics {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = files::open_no_follow(path, OpenOptions::new().create(true).append(true));
        Ok(Self { file: file.with_context(|| format!("cannot write {}", path.display()))?, refused: false })
    }

    /// Appends a record. A full disk must not end training: the first failure gives a warning, and the record is missing. A
    /// partly written record is ended with a line break before the next one.
    pub fn append(&mut self, kind: &str, record: &impl Serialize) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let line = serde_json::to_vec(&Line { time, kind, record }).map_err(std::io::Error::from);
        let written = line.and_then(|mut line| {
            line.push(b'\n');
            if self.refused {
                line.insert(0, b'\n');
            }
            self.file.write_all(&line)
        });
        if let Err(e) = &written
            && !self.refused
        {
            tracing::warn!("metrics.jsonl: {e}; records are missing from here on");
        }
        self.refused = written.is_err();
    }
}
