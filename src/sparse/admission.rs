//! Which ids of a batch get a row, and whose row gives way for it.
//!
//! Decided when the batch's turn comes, when everything before it is updated and nothing after it has begun: what comes out follows from
//! the order of the batches alone, however far ahead rows are fetched.

use crate::settings::{Table, WhenFull};
use crate::shm::ahead;

use super::oldest::Oldest;
use super::sightings::Sightings;
use super::table::{HostTable, TableError};

/// The rules by which ids get rows.
pub struct Admission {
    when_full: WhenFull,
    admit_after: u32,
    sightings: Option<Sightings>,
    oldest: Oldest,
    #[cfg(test)]
    pub planted: Option<Bug>,
}

/// Bugs that the oracles have to find.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A row of the batch itself may give way.
    EvictsFromTheBatch,
    /// A row that is used is as old as when it came.
    ForgetsUses,
    /// Ids are counted in later passes, too.
    CountsEveryPass,
    /// What the cache holds of a freed row stays.
    LeavesFreedRowsInTheCache,
    /// Records that were found ahead are believed.
    BelievesWhatItFoundAhead,
}

/// What a batch asks for: its unique ids, and for each how many of its exposures are to be counted and its newest day.
pub struct Asked<'a> {
    pub ids: &'a [u64],
    /// Empty where nothing is counted.
    pub seen: &'a [u32],
    /// Empty where days are unknown.
    pub days: &'a [u32],
}

impl Admission {
    pub fn new(settings: &Table) -> Self {
        Self {
            when_full: settings.when_full,
            admit_after: settings.admit_after,
            sightings: (settings.admit_after > 1).then(|| Sightings::new(settings.counters)),
            oldest: Oldest::default(),
            #[cfg(test)]
            planted: None,
        }
    }

    /// Whether ids are counted before they get a row.
    pub fn counts(&self) -> bool {
        self.sightings.is_some()
    }

    /// The counts so far; empty where nothing is counted.
    pub fn sightings(&self) -> &[u8] {
        self.sightings.as_ref().map_or(&[], Sightings::as_bytes)
    }

    /// Goes on from the counts of a snapshot.
    ///
    /// # Errors
    /// Counts of another number of counters.
    pub fn restore(&mut self, settings: &Table, bytes: &[u8]) -> anyhow::Result<()> {
        if self.sightings.is_some() && !bytes.is_empty() {
            let restored = Sightings::restore(settings.counters, bytes);
            self.sightings = Some(anyhow::Context::context(restored, "counts of another table.counters")?);
        }
        Ok(())
    }

    /// Settles the record of each id of a batch whose turn has come. `records` holds those that are known; `None` is looked for,
    /// inserted if the rules say so, and left where they do not. Calls `freed` with each id whose row gave way.
    ///
    /// # Errors
    /// [`TableError`]: a table without room, or a batch that needs more rows than the table has.
    pub fn admit(
        &mut self,
        table: &mut HostTable,
        asked: &Asked<'_>,
        records: &mut [Option<u32>],
        mut freed: impl FnMut(u64),
    ) -> Result<(), TableError> {
        let marks = table.shape().marks;
        let day = |i: usize| asked.days.get(i).copied().unwrap_or(0);
        let before = table.uses();
        #[cfg(test)]
        let before = if self.planted == Some(Bug::EvictsFromTheBatch) { u64::MAX } else { before };
        // Rows of the batch are used first, so that none of them gives way for another.
        let mut missing = false;
        for i in 0..records.len() {
            for later in ahead(i, records.len()) {
                if records[later].is_none() {
                    table.prefetch_slot(asked.ids[later]);
                }
            }
            let record = &mut records[i];
            *record = record.or_else(|| table.find(asked.ids[i]));
            match record {
                #[cfg(test)]
                Some(_) if self.planted == Some(Bug::ForgetsUses) => {}
                Some(record) if marks => table.touch(*record, day(i)),
                Some(_) => {}
                None => missing = true,
            }
        }
        if !missing {
            return Ok(());
        }
        for (i, place) in records.iter_mut().enumerate().filter(|(_, record)| record.is_none()) {
            let id = asked.ids[i];
            if let Some(sightings) = &mut self.sightings {
                let seen = asked.seen.get(i).copied().unwrap_or(0);
                if sightings.add(id, seen) < self.admit_after {
                    continue;
                }
            }
            let record = match table.find_or_insert(id) {
                Some(record) => record,
                None => match self.when_full {
                    WhenFull::Error => return Err(TableError::Full { rows: table.len() }),
                    WhenFull::Ignore => continue,
                    WhenFull::Oldest => {
                        let Some(record) = self.oldest.find(table, before) else {
                            return Err(TableError::BatchTooLarge { ids: asked.ids.len(), rows: table.len() });
                        };
                        freed(table.owner(record));
                        table.replace(record, id);
                        record
                    }
                },
            };
            if marks {
                table.touch(record, day(i));
            }
            *place = Some(record);
        }
        Ok(())
    }
}
