//! The checkpointer of a run of `admix values train`: one synced delta for each snapshot, merged into a base now and then.
//!
//! It never holds the table. A snapshot's rows are those that have changed since the one before; they are sorted and written as a delta.
//! When deltas have grown to the size of the base, a thread merges them into a new one, row by row, and removes what it replaces.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;

use crate::run::snapshot::files::Disk;
use crate::run::snapshot::{SnapshotFolder, folder};
use crate::run::sparse_part::SparsePart;
use crate::run::value_run::{ValueHalves, table_shape};
use crate::run::value_snapshot::{base_path, bases, delta_path};
use crate::run::{RunDirectory, failpoint};
use crate::settings::{Configuration as _, ValueSettings};
use crate::shm::{Complete, Control, Halves, Role, ShmError};
use crate::sparse::file::RowLayout;
use crate::sparse::merge;

use super::{Keeper, serve};

/// Deltas after which a base is written however small they are.
const MOST_DELTAS: u64 = 64;
const MERGING: &str = ".merging.rows";

/// Runs the checkpointer until the run stops and everything complete is on disk.
///
/// # Errors
/// Anything that keeps it from working but a file system that refuses: that is told, counted and tried again.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let settings = ValueSettings::read_resolved(&directory.config())?;
    let control = Control::open(&format!("{prefix}-control"))?;
    let halves = ValueHalves::open(prefix)?.context("the run takes no snapshots")?.halves;
    let slot = &control.processes[Role::ValueCheckpointer.slot()];
    slot.sign_in(Role::ValueCheckpointer.kind());
    let root = directory.checkpoints();
    let mut deltas = Deltas {
        folder: SnapshotFolder::new(&root, Disk),
        root: &root,
        layout: table_shape(&settings).into(),
        keep: settings.checkpoint.keep as u64,
        delta: Vec::new(),
        merging: None,
    };
    // A predecessor may have died between the rename and saying so.
    let complete = halves.complete();
    if complete > halves.committed() && folder::verify(&root.join(format!("{complete:08}"))).is_ok() {
        halves.commit(complete);
    }
    serve(&control, slot, &halves, &mut deltas)
}

struct Deltas<'a> {
    folder: SnapshotFolder<'a, Disk>,
    root: &'a Path,
    layout: RowLayout,
    keep: u64,
    /// The newest delta. Its memory is used again: fresh pages of a large delta cost as much as its rows.
    delta: Vec<u8>,
    merging: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Keeper for Deltas<'_> {
    fn commit(&mut self, complete: &Complete<'_>) -> anyhow::Result<u64> {
        let part = SparsePart::parse(complete.sparse, self.layout)?;
        let state = [complete.dense, part.sightings].concat();
        self.delta.clear();
        self.delta.reserve(complete.sparse.len() + 64);
        part.write_delta(std::io::Cursor::new(&mut self.delta))?;
        anyhow::ensure!(!failpoint::reached("checkpoint.commit"), "made to fail");
        let written = self.folder.commit(complete.snapshot, complete.update, &state, &[&self.delta], &[], None)?;
        failpoint::reached("checkpoint.committed");
        Ok(written)
    }

    fn committed(&mut self, number: u64) {
        self.merge_if_due(number);
    }

    /// The rows of a delta that is lost would be missing from all that follow.
    fn damaged(&mut self, _: &Halves, error: ShmError) -> anyhow::Result<()> {
        Err(error.into())
    }
}

impl Deltas<'_> {
    /// Merges deltas into a new base on a thread of its own, if they have grown to the size of the base. The newest `keep` snapshots
    /// stay apart.
    fn merge_if_due(&mut self, newest: u64) {
        if self.merging.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        match self.merging.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => tracing::warn!("deltas cannot be merged, they stay: {e:#}"),
            Some(Err(_)) => tracing::warn!("deltas cannot be merged, they stay: the thread has panicked"),
            _ => {}
        }
        let merge = Merge::due(self.root, newest, self.keep).unwrap_or_else(|e| {
            tracing::warn!("deltas cannot be looked at, they stay: {e:#}");
            None
        });
        if let Some(merge) = merge {
            let thread = std::thread::Builder::new().name("merge".into()).spawn(move || merge.run());
            self.merging = thread.inspect_err(|e| tracing::warn!("deltas cannot be merged, they stay: {e}")).ok();
        }
    }
}

/// A base and the deltas that become the next one.
struct Merge {
    root: PathBuf,
    files: Vec<PathBuf>,
    /// The snapshot that the new base is of.
    to: u64,
}

impl Merge {
    fn due(root: &Path, newest: u64, keep: u64) -> anyhow::Result<Option<Self>> {
        let bases = bases(root)?;
        let from = bases.last().copied().unwrap_or(0);
        let to = (newest + 1).saturating_sub(keep);
        if to <= from {
            return Ok(None);
        }
        let base = bases.last().map(|from| base_path(root, *from));
        let deltas: Vec<PathBuf> = (from + 1..=to).map(|n| delta_path(root, n)).collect();
        let len = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let grown = deltas.iter().map(len).sum::<u64>() >= base.as_ref().map_or(0, len);
        let due = deltas.len() as u64 >= MOST_DELTAS || (deltas.len() > 1 && grown);
        let files = base.into_iter().chain(deltas).collect();
        Ok(due.then(|| Self { root: root.to_owned(), files, to }))
    }

    fn run(self) -> anyhow::Result<()> {
        let writing = self.root.join(MERGING);
        merge::merge(&writing, &self.files)?;
        failpoint::reached("checkpoint.merged");
        std::fs::rename(&writing, base_path(&self.root, self.to))?;
        std::fs::File::open(&self.root)?.sync_all()?;
        failpoint::reached("checkpoint.base");
        // The state of the base's snapshot stays, and what is behind it.
        for number in folder::numbers(&self.root)?.into_iter().filter(|n| *n < self.to) {
            std::fs::remove_dir_all(self.root.join(format!("{number:08}")))?;
        }
        for number in bases(&self.root)?.into_iter().filter(|n| *n < self.to) {
            std::fs::remove_file(base_path(&self.root, number))?;
        }
        Ok(())
    }
}
