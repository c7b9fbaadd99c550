//! The checkpointer of a run of `admix values train`: one synced delta for each snapshot, merged into a base now and then.
//!
//! It never holds more than may change between two snapshots. A snapshot's rows are those that have changed since the one before; they are
//! sorted and written as a delta. A snapshot of all rows is a base, too, under a second name. Otherwise a thread merges deltas into a new base,
//! row by row, when they have grown to twice its size. What a new base replaces is removed.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::Context as _;

use crate::run::snapshot::files::Disk;
use crate::run::snapshot::{SnapshotFolder, folder};
use crate::run::sparse_part::{DeltaMemory, SparsePart};
use crate::run::value_run::{ValueHalves, table_shape};
use crate::run::value_snapshot::{base_path, bases, delta_path, link_or_copy, remove_base};
use crate::run::{RunDirectory, beginning, failpoint};
use crate::settings::{Configuration as _, ValueSettings};
use crate::shm::{Complete, Control, Halves, Role, ShmError};
use crate::sparse::file::RowLayout;
use crate::sparse::merge;

use super::{Keeper, serve};

/// Deltas after which a base is written however small they are.
const MOST_DELTAS: u64 = 64;
/// So many times the base's size make deltas due to be merged: a merge reads and writes the base, and each delta's share of that is the less
/// the more there are.
const GROWN: u64 = 2;
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
        keeps_first: beginning::is_needed_later(&settings, directory),
        memory: DeltaMemory::default(),
        all: false,
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
    /// Base 0 stays: later stages of the training start with it, too.
    keeps_first: bool,
    memory: DeltaMemory,
    /// The snapshot that was written last has all rows.
    all: bool,
    merging: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Keeper for Deltas<'_> {
    fn commit(&mut self, complete: &Complete<'_>) -> anyhow::Result<u64> {
        let part = SparsePart::parse(complete.sparse, self.layout)?;
        let state = [complete.dense, part.sightings].concat();
        self.all = part.all;
        let delta = part.delta(&mut self.memory);
        anyhow::ensure!(!failpoint::reached("checkpoint.commit"), "made to fail");
        let written = self.folder.commit(complete.snapshot, complete.update, &state, &[delta], &[], None)?;
        failpoint::reached("checkpoint.committed");
        Ok(written)
    }

    fn committed(&mut self, number: u64) {
        if self.all
            && let Err(e) = make_base(self.root, number)
        {
            tracing::debug!("snapshot {number} is no base by itself, deltas are merged: {e}");
        }
        self.merge_or_prune(number);
    }

    /// The rows of a delta that is lost would be missing from all that follow.
    fn damaged(&mut self, _: &Halves, error: ShmError) -> anyhow::Result<()> {
        Err(error.into())
    }
}

impl Deltas<'_> {
    /// Merges deltas into a new base on a thread of its own, if that is due, or removes what newer bases replace. The newest `keep`
    /// snapshots stay apart.
    fn merge_or_prune(&mut self, newest: u64) {
        // It removes nothing while files are being merged.
        if self.merging.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        match self.merging.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => tracing::warn!("deltas cannot be merged, they stay: {e:#}"),
            Some(Err(_)) => tracing::warn!("deltas cannot be merged, they stay: the thread has panicked"),
            _ => {}
        }
        let looked = prune(self.root, (newest, self.keep), self.keeps_first)
            .and_then(|()| Merge::due(self.root, (newest, self.keep), self.keeps_first));
        let merge = looked.unwrap_or_else(|e| {
            tracing::warn!("deltas cannot be looked at or removed, they stay: {e:#}");
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
    keeps_first: bool,
}

impl Merge {
    fn due(root: &Path, (newest, keep): (u64, u64), keeps_first: bool) -> anyhow::Result<Option<Self>> {
        let bases = bases(root)?;
        let from = bases.last().copied().unwrap_or(0);
        let to = (newest + 1).saturating_sub(keep);
        if to <= from {
            return Ok(None);
        }
        let base = bases.last().map(|from| base_path(root, *from));
        let deltas: Vec<PathBuf> = (from + 1..=to).map(|n| delta_path(root, n)).collect();
        let len = |path: &PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
        let grown = deltas.iter().map(len).sum::<u64>() >= GROWN * base.as_ref().map_or(0, len);
        let due = deltas.len() as u64 >= MOST_DELTAS || (deltas.len() > 1 && grown);
        let files = base.into_iter().chain(deltas).collect();
        Ok(due.then(|| Self { root: root.to_owned(), files, to, keeps_first }))
    }

    fn run(self) -> anyhow::Result<()> {
        let writing = self.root.join(MERGING);
        merge::merge(&writing, &self.files)?;
        failpoint::reached("checkpoint.merged");
        std::fs::rename(&writing, base_path(&self.root, self.to))?;
        std::fs::File::open(&self.root)?.sync_all()?;
        failpoint::reached("checkpoint.base");
        remove_before(&self.root, self.to, self.keeps_first)
    }
}

/// Gives the rows of snapshot `number`, which are all rows, a second name: that of a base.
fn make_base(root: &Path, number: u64) -> std::io::Result<()> {
    let base = base_path(root, number);
    match std::fs::remove_file(&base) {
        // Of a snapshot of this number that was damaged.
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    link_or_copy(&delta_path(root, number), &base)?;
    std::fs::File::open(root)?.sync_all()?;
    failpoint::reached("checkpoint.base");
    Ok(())
}

/// Removes what the newest base replaces that all of the newest `keep` snapshots may go back to.
fn prune(root: &Path, (newest, keep): (u64, u64), keeps_first: bool) -> anyhow::Result<()> {
    let oldest = (newest + 1).saturating_sub(keep);
    match bases(root)?.into_iter().rfind(|base| *base <= oldest) {
        Some(base) => remove_before(root, base, keeps_first),
        None => Ok(()),
    }
}

/// Removes snapshots and bases before base `number`, but base 0 where it is kept. The state of that base's snapshot stays, and what is behind it.
fn remove_before(root: &Path, number: u64, keeps_first: bool) -> anyhow::Result<()> {
    for older in folder::numbers(root)?.into_iter().filter(|n| *n < number) {
        std::fs::remove_dir_all(root.join(format!("{older:08}")))?;
    }
    for older in bases(root)?.into_iter().filter(|n| *n < number && !(keeps_first && *n == 0)) {
        remove_base(root, older)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::value_snapshot::first_network_path;

    /// Snapshots of these numbers, some of which are bases, too.
    fn folder(snapshots: &[u64], bases: &[u64]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for number in snapshots {
            std::fs::create_dir(root.path().join(format!("{number:08}"))).unwrap();
            std::fs::write(delta_path(root.path(), *number), number.to_string()).unwrap();
        }
        bases.iter().for_each(|number| make_base(root.path(), *number).unwrap());
        root
    }

    fn left(root: &Path) -> (Vec<u64>, Vec<u64>) {
        (folder::numbers(root).unwrap(), bases(root).unwrap())
    }

    #[test]
    fn what_the_newest_snapshots_may_go_back_to_stays() {
        for (keep, expected) in [
            (1, (vec![5, 6], vec![5])),
            (2, (vec![5, 6], vec![5])),
            // Snapshot 4 is no base, and needs the one before.
            (3, (vec![3, 4, 5, 6], vec![3, 5])),
            (4, (vec![3, 4, 5, 6], vec![3, 5])),
            (5, (vec![1, 2, 3, 4, 5, 6], vec![1, 3, 5])),
            (9, (vec![1, 2, 3, 4, 5, 6], vec![1, 3, 5])),
        ] {
            let root = folder(&[1, 2, 3, 4, 5, 6], &[1, 3, 5]);
            prune(root.path(), (6, keep), false).unwrap();
            assert_eq!(left(root.path()), expected, "the newest {keep}");
        }
    }

    /// The first base went with the next one, and later stages of the training read its source, which may be gone or another one.
    #[test]
    fn what_later_stages_start_with_stays() {
        let root = folder(&[0, 1, 2, 3], &[0, 2]);
        std::fs::write(first_network_path(root.path()), "network").unwrap();
        prune(root.path(), (3, 1), true).unwrap();
        assert_eq!(left(root.path()), (vec![2, 3], vec![0, 2]));
        assert!(first_network_path(root.path()).exists());
        prune(root.path(), (3, 1), false).unwrap();
        assert_eq!(left(root.path()), (vec![2, 3], vec![2]));
        assert!(!first_network_path(root.path()).exists());
    }

    #[test]
    fn a_base_of_a_snapshot_that_was_written_again_is_that_of_the_new_one() {
        let root = folder(&[3], &[3]);
        std::fs::remove_file(delta_path(root.path(), 3)).unwrap();
        std::fs::write(delta_path(root.path(), 3), "again").unwrap();
        make_base(root.path(), 3).unwrap();
        assert_eq!(std::fs::read(base_path(root.path(), 3)).unwrap(), b"again");
    }

    #[test]
    fn deltas_are_merged_when_they_have_grown_to_twice_the_base() {
        let root = folder(&[1, 2, 3, 4, 5], &[1]);
        let len = |number, len: usize| std::fs::write(delta_path(root.path(), number), vec![0; len]).unwrap();
        // The base is a second name of the first of them.
        len(1, 100);
        for (lens, due) in [([60, 60, 60, 100], None), ([60, 60, 80, 100], Some(4)), ([0, 0, 200, 0], Some(4))] {
            (2..).zip(lens).for_each(|(number, bytes)| len(number, bytes));
            let merge = Merge::due(root.path(), (5, 2), false).unwrap();
            assert_eq!(merge.map(|merge| (merge.to, merge.files.len())).unzip().0, due, "{lens:?}");
        }
    }
}
