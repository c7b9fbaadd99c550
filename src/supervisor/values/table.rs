//! The table of a value training across the lives of its trainers.
//!
//! With `ranks.tables` there are several with equal rows. Snapshots are of the first one alone, and it alone notes what has changed since.
//! The others have no snapshot, no half and no log: whenever processes start, the first rank of each copies the rows of the first table
//! ([`HostTable::copy_from`]). So a snapshot does not know how many tables there were, and a rank that dies at any moment leaves
//! nothing to be repaired in a copy. Parts for each table, as nodes have them, would write equal rows to disk several
//! times, and would have to be begun and completed together.

use std::time::Instant;

use twox_hash::XxHash3_64;

use crate::nodes::{Job, Node, World};
use crate::run::beginning::first_rows;
use crate::run::snapshot::folder;
use crate::run::value_run::{Prepared, ValueHalves, create_tables};
use crate::run::value_snapshot::{ValueSnapshot, ValueState, bases, read_state, remove_behind};
use crate::run::{RunDirectory, failpoint};
use crate::settings::ValueSettings;
use crate::shm::RunNames;
use crate::sparse::{HostTable, file};
use crate::supervisor::job::{self, OnDisk};
use crate::supervisor::resume::{Refused, Resume};
use crate::values::Fields;

impl OnDisk for ValueSnapshot {
    const LOST: &'static str = "its rows. All nodes hold the same: copy the checkpoints of another node there, or start a new run in \
                                another --run-dir";

    fn newest_until(directory: &RunDirectory, most: u64) -> anyhow::Result<Option<Self>> {
        Self::newest_until(directory, most)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn digest(&self) -> u64 {
        XxHash3_64::oneshot_with_seed(self.state.updates, bytemuck::cast_slice(&self.state.parameters))
    }
}

/// Finds the snapshot that all nodes go on from; `None` where nothing was saved yet.
///
/// # Errors
/// [`Refused`]: snapshots of which none can be read, or those of a node are missing.
pub fn newest(directory: &RunDirectory, (job, known): (&Job, bool)) -> anyhow::Result<Option<ValueSnapshot>> {
    let newest: Option<ValueSnapshot> = job::newest_of_all(job, directory, known)?;
    if newest.is_none() {
        let mine = ValueSnapshot::newest(directory)?.is_some();
        let lost = !mine && holds_snapshots(directory)?;
        if job.tell(&lost)?.contains(&true) {
            check_none_is_lost(directory)?;
            let why = "another node cannot read its snapshots, and says so".to_owned();
            return Err(Refused { root: directory.root().to_owned(), why }.into());
        }
        if mine {
            // The job ended when this node had its first snapshot and another one had none yet.
            remove_behind(&directory.checkpoints(), 0)?;
        }
    }
    Ok(newest)
}

/// Checks that a run of which no snapshot can be read has none.
fn check_none_is_lost(directory: &RunDirectory) -> anyhow::Result<()> {
    if !holds_snapshots(directory)? {
        return Ok(());
    }
    let root = directory.checkpoints();
    let what = match folder::numbers(&root)?.len() {
        0 => format!("its snapshots in {} are gone", root.display()),
        n => format!("none of its {n} snapshots in {} can be read", root.display()),
    };
    let why = format!("{what}. Put one back from a copy, or start a new run in another --run-dir");
    Err(Refused { root: directory.root().to_owned(), why }.into())
}

/// Whether there are snapshots, whole or damaged, or bases that stood for some.
pub fn holds_snapshots(directory: &RunDirectory) -> anyhow::Result<bool> {
    let root = directory.checkpoints();
    Ok(!folder::numbers(&root)?.is_empty() || bases(&root)?.iter().any(|base| *base > 0))
}

/// Checks that a run on one machine that was begun here may go on: that it has a snapshot, or may begin again. `saved` says whether it is known
/// to have had one.
///
/// # Errors
/// [`Refused`]: it has none, and has lost what it had or was to go on from one.
pub fn check_begun(directory: &RunDirectory, how: Resume, saved: bool) -> anyhow::Result<()> {
    if holds_snapshots(directory)? || how == Resume::Auto && !saved {
        return Ok(());
    }
    let again = if saved {
        ". Put one back from a copy, or start a new run in another --run-dir"
    } else {
        "; begin the run again with --resume=auto"
    };
    let why = format!("there is no snapshot to go on from{again}");
    Err(Refused { root: directory.root().to_owned(), why }.into())
}

/// The tables of a run, and the snapshot that the first one is as of.
pub struct Rows {
    table: HostTable,
    /// The further tables. Their first ranks fill them with the rows of the first one when they start.
    copies: Vec<HostTable>,
    /// 0 and `None` at the beginning of a run.
    pub number: u64,
    pub state: Option<ValueState>,
}

impl Rows {
    /// Reads `snapshot` ([`newest`]) into a new table and removes later ones. Without one the run begins with its first rows.
    pub fn load(
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        directory: &RunDirectory,
        (world, snapshot): (World, Option<ValueSnapshot>),
    ) -> anyhow::Result<Self> {
        let mut copies = create_tables(names, settings, fields, world)?;
        failpoint::reached("values.tables");
        let mut table = copies.remove(0);
        let number = snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
        match &snapshot {
            Some(snapshot) => {
                remove_behind(&directory.checkpoints(), number)?;
                snapshot.restore(&mut table)?;
            }
            None => {
                let prepared = Prepared::read(directory)?;
                if let Some(rows) = first_rows(settings, &prepared, directory)? {
                    file::load(&rows, &mut table)?;
                }
            }
        }
        Ok(Self { table, copies, number, state: snapshot.map(|snapshot| snapshot.state) })
    }

    /// Returns the table to the newest snapshot after a rank's end, and says `why`, by undoing what has changed since. On one machine.
    pub fn go_back(
        mut self,
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        directory: &RunDirectory,
        (halves, why): (Option<ValueHalves>, &str),
    ) -> anyhow::Result<Self> {
        failpoint::reached("values.goes-back");
        let begun = Instant::now();
        self.copies.iter().chain([&self.table]).for_each(HostTable::recover);
        if let Some(ValueHalves { halves, undo }) = halves {
            let number = halves.complete();
            let on_disk = halves.committed() == number;
            if let Some(rows) = on_disk.then(|| self.table.roll_back(&undo, number)).flatten() {
                let state = (number > 0).then(|| read_state(directory, number)).transpose()?;
                tracing::warn!(
                    "{why}; all go back to snapshot {number}: {rows} rows restored in {:.3} s",
                    begun.elapsed().as_secs_f64()
                );
                return Ok(Self { number, state, ..self });
            }
        }
        tracing::warn!("{why}; all go back to the newest snapshot on disk");
        drop((self.table, self.copies));
        let snapshot = ValueSnapshot::newest(directory)?;
        if snapshot.is_none() {
            check_none_is_lost(directory)?;
        }
        Self::load(names, settings, fields, directory, (Node::default().world(settings.ranks_here()), snapshot))
    }
}
