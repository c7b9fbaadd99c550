//! The table of a value training across the lives of its trainers.
//!
//! With `ranks.tables` there are several with equal rows. Snapshots are of the first one alone, and it alone notes what has changed since.
//! The others have no snapshot, no half and no log: whenever processes start, the first rank of each copies the rows of the first table
//! ([`HostTable::copy_from`]). So a snapshot does not know how many tables there were, and a rank that dies at any moment leaves
//! nothing to be repaired in a copy. Parts for each table, as nodes have them, would write equal rows to disk several
//! times, and would have to be begun and completed together.

use std::time::Instant;

use twox_hash::XxHash3_64;

use crate::nodes::{Node, World};
use crate::run::RunDirectory;
use crate::run::beginning::first_rows;
use crate::run::value_run::{Prepared, ValueHalves, create_tables};
use crate::run::value_snapshot::{ValueSnapshot, ValueState, read_state, remove_behind};
use crate::settings::ValueSettings;
use crate::shm::RunNames;
use crate::sparse::{HostTable, file};
use crate::supervisor::job::OnDisk;
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
    /// Reads the snapshot that the run goes on from into a new table, and removes what is behind it. `None` at the beginning.
    pub fn load(
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        directory: &RunDirectory,
        (world, snapshot): (World, Option<ValueSnapshot>),
    ) -> anyhow::Result<Self> {
        let mut copies = create_tables(names, settings, fields, world)?;
        let mut table = copies.remove(0);
        let number = snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
        remove_behind(&directory.checkpoints(), number)?;
        match &snapshot {
            Some(snapshot) => snapshot.restore(&mut table)?,
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
        Self::load(names, settings, fields, directory, (Node::default().world(settings.ranks_here()), snapshot))
    }
}
