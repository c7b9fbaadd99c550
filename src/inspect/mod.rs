//! Inspection of a run, alive or dead, from its directory and its shared memory alone.
//!
//! It does not disturb a run: files and segments are opened for reading, maps are private, no role is taken and no lock
//! is waited for. It does not trust its input either: a file that is damaged, or of another version, becomes a
//! note and the rest is shown.
//!
//! - [`memory`]: reads the shared memory. [`record`]: reads the run directory. [`text`]: renders both as text.

pub mod memory;
pub mod record;
pub mod text;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::run::RunDirectory;
use crate::run::flight::Event;
use crate::shm::RunNames;
use crate::values::ValueModel;

use memory::Memory;
use record::Manifest;

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// A main process holds the run directory.
    Alive,
    /// It ended in order; the manifest contains the outcome.
    Ended,
    /// It ended with an error, which the manifest contains.
    Failed,
    /// No end was recorded: it was killed, or the machine went down.
    Killed,
}

/// Inspected content of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    pub run_dir: PathBuf,
    pub state: State,
    /// `None` if the run had not begun to train.
    pub manifest: Option<Manifest>,
    /// `None` if there is none, as in serial mode and after an end in order.
    pub memory: Option<Memory>,
    /// The last records of `metrics.jsonl`.
    pub metrics: Vec<serde_json::Value>,
    /// Names in `checkpoints/`.
    pub checkpoints: Vec<String>,
    /// The last events of every process, sorted by time.
    pub events: Vec<Event>,
    /// Parts that could not be read, with the reason.
    pub notes: Vec<String>,
}

/// Inspects the run in `dir`, with at most `events` events of each process.
///
/// # Errors
/// If the directory was not created by a run, or cannot be read at all.
pub fn inspect(dir: &Path, events: usize) -> anyhow::Result<Inspection> {
    let directory = RunDirectory::inspect(dir)?;
    let mut notes = Vec::new();
    let alive = directory.is_in_use().unwrap_or_else(|e| {
        notes.push(format!("whether it is alive is not known: {e}"));
        false
    });
    let manifest = record::manifest(&directory, &mut notes);
    let memory = newest_memory(&directory, &mut notes);
    if alive && memory.is_none() && manifest.as_ref().is_some_and(Manifest::uses_memory) {
        notes.push(
            "its shared memory is not to be found: it is just starting or ending, or the directory has another path here \
             than where it runs"
                .into(),
        );
    }
    let stage = manifest.as_ref().filter(|m| m.is_values()).and_then(|_| ValueModel::unfinished(directory.root()));
    if let Some(stage) = stage.as_ref().filter(|_| !alive) {
        notes.push(format!(
            "its stage {} was {}: `admix inspect` shows it in {}, and --resume goes on",
            stage.name,
            stage.state,
            directory.root().join(stage.name).display()
        ));
    }
    let state = match &manifest {
        _ if alive => State::Alive,
        _ if stage.as_ref().is_some_and(|stage| stage.state == "failed") => State::Failed,
        _ if stage.as_ref().is_some_and(|stage| stage.state == "killed") => State::Killed,
        Some(m) if m.failure.is_some() => State::Failed,
        Some(m) if m.ended.is_some() => State::Ended,
        _ => State::Killed,
    };
    Ok(Inspection {
        state,
        manifest,
        memory,
        metrics: record::metrics(&directory, &mut notes),
        checkpoints: record::checkpoints(&directory, &mut notes),
        events: record::events(&directory, events, &mut notes),
        run_dir: directory.root().to_owned(),
        notes,
    })
}

/// Returns the shared memory of the run: of the main process that is alive, else of the last one that was killed.
fn newest_memory(directory: &RunDirectory, notes: &mut Vec<String>) -> Option<Memory> {
    let of_owner = || Ok::<_, anyhow::Error>(RunNames::of_run(&directory.run_id(), directory.owner()?)?);
    let found = match of_owner() {
        Ok(found) => found,
        Err(e) => {
            notes.push(format!("its shared memory is not to be found: {e:#}"));
            return None;
        }
    };
    Some(Memory::look(found.first()?, notes))
}
