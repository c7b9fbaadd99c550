//! Records on their way between devices and host.
//!
//! They go many at a time: a prefetch copies its victims to the host, then the rows that it fetches into their places. A GPU only begins to
//! copy victims then. They are in the host table before the next batch is fetched, or before a row is brought in that may be one of them: else
//! nobody waits for a device that is busy with the batch before.

use std::collections::HashMap;

use crate::shm::{ahead, prefetch_lines};
use crate::sparse::index::IdMap;
use crate::sparse::table::HostTable;

use super::memory::{Records, Taken};

/// A changed row that leaves its place, or only goes to the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    pub(super) id: u64,
    /// Its record in the host table.
    pub(super) record: u32,
    pub(super) place: u32,
}

/// A row that comes into a place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coming {
    pub(super) id: u64,
    pub(super) record: u32,
    pub(super) place: u32,
}

/// What goes to and from a device with the next exchange.
#[derive(Default)]
struct Freight {
    leaving: Vec<Leaving>,
    coming: Vec<Coming>,
}

/// Memory for what a GPU takes and gives.
#[derive(Default)]
struct Parcel {
    places: Vec<u32>,
    /// In the host table.
    records: Vec<u32>,
    /// Records, one after another.
    words: Vec<u32>,
}

/// What goes to and from the devices.
pub(super) struct Traffic {
    of_device: Vec<Freight>,
    parcel: Parcel,
    /// Rows on their way from GPUs to the host.
    landing: Vec<(Vec<Leaving>, Taken)>,
    /// Ids of rows that leave a GPU while rows are brought in that may be the same, until they are in the host table.
    away: IdMap<()>,
    /// Whether others have left a GPU, whose ids are not in `away`, and are not in the host table yet.
    others_away: bool,
    /// Whether rows that leave may be brought in again before they are in the host table: while a batch is settled, and while rows are fetched
    /// that another batch may have had in the meantime.
    pub(super) may_return: bool,
    /// Rows that have left their devices so far, those that are in the host table by now, and those that have come to the devices.
    left: u64,
    pub(super) landed: u64,
    pub(super) came: u64,
    #[cfg(test)]
    pub(super) planted: Option<Bug>,
}

/// Bugs that the cache's oracle has to find.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    LeavesTheStateBehind,
    PutsBeforeItTakes,
    ForgetsWhatIsAway,
    ForgetsThatOthersAreAway,
}

impl Traffic {
    pub(super) fn of(devices: usize) -> Self {
        Self {
            of_device: (0..devices).map(|_| Freight::default()).collect(),
            parcel: Parcel::default(),
            landing: vec![],
            away: HashMap::default(),
            others_away: false,
            may_return: false,
            left: 0,
            landed: 0,
            came: 0,
            #[cfg(test)]
            planted: None,
        }
    }

    /// Rows that have left their places and are not in the host table yet.
    pub(super) fn under_way(&self) -> usize {
        (self.left - self.landed) as usize
    }

    /// Rows that leave a device with the next exchange.
    pub(super) fn leaving(&self, device: usize) -> usize {
        self.of_device[device].leaving.len()
    }

    /// Lets a row come into a place with what the host has of it.
    pub(super) fn bring(&mut self, table: &mut HostTable, records: &mut Records, device: usize, row: Coming) {
        if self.may_be_away(row.id) {
            self.exchange(table, records);
            self.land(table);
        }
        self.came += 1;
        self.of_device[device].coming.push(row);
    }

    /// Whether a row that is brought in may have left a GPU and be missing in the host table.
    fn may_be_away(&self, id: u64) -> bool {
        #[cfg(test)]
        if self.planted == Some(Bug::ForgetsThatOthersAreAway) {
            return self.away.contains_key(&id);
        }
        self.may_return && self.others_away || self.away.contains_key(&id)
    }

    /// Lets a changed row go to the host: row, optimiser state and version.
    pub(super) fn send(&mut self, records: &Records, device: usize, row: Leaving) {
        self.left += 1;
        self.of_device[device].leaving.push(row);
        #[cfg(test)]
        if self.planted == Some(Bug::ForgetsWhatIsAway) {
            return;
        }
        if matches!(records, Records::Device(_)) {
            if self.may_return {
                self.away.insert(row.id, ());
            } else {
                self.others_away = true;
            }
        }
    }

    /// Copies rows that leave to the host, or begins to, then copies those that come into their places.
    pub(super) fn exchange(&mut self, table: &mut HostTable, records: &mut Records) {
        for device in 0..self.of_device.len() {
            #[cfg(test)]
            if self.planted == Some(Bug::PutsBeforeItTakes) {
                self.put(table, records, device);
            }
            self.take(table, records, device);
            self.put(table, records, device);
            self.of_device[device].coming.clear();
        }
    }

    /// Copies rows that leave a device to the host, or begins to.
    fn take(&mut self, table: &mut HostTable, records: &mut Records, device: usize) {
        let mut leaving = std::mem::take(&mut self.of_device[device].leaving);
        if leaving.is_empty() {
            return;
        }
        match records {
            Records::Host(memories) => {
                let memory = &memories[device];
                for (i, row) in leaving.iter().enumerate() {
                    let later = &leaving[ahead(i, leaving.len())];
                    later.iter().for_each(|row| prefetch_lines(memory.record(row.place)));
                    table.prefetch(later.iter().map(|row| row.record));
                    self.arrive(table, row, memory.record(row.place));
                }
                leaving.clear();
                self.of_device[device].leaving = leaving;
            }
            Records::Device(memory) => {
                let places = &mut self.parcel.places;
                places.clear();
                places.extend(leaving.iter().map(|row| row.place));
                let taken = memory.arena(device).take(places);
                self.landing.push((leaving, taken));
            }
        }
    }

    /// Copies the rows that come to a device into their places.
    fn put(&mut self, table: &HostTable, records: &mut Records, device: usize) {
        let coming = &self.of_device[device].coming;
        if coming.is_empty() {
            return;
        }
        match records {
            Records::Host(memories) => {
                let memory = &mut memories[device];
                for (i, row) in coming.iter().enumerate() {
                    let later = &coming[ahead(i, coming.len())];
                    table.prefetch(later.iter().map(|row| row.record));
                    later.iter().for_each(|row| prefetch_lines(memory.record(row.place)));
                    memory.record_mut(row.place).copy_from_slice(table.record(row.record));
                }
            }
            Records::Device(memory) => {
                let Parcel { places, records, words } = &mut self.parcel;
                places.clear();
                records.clear();
                places.extend(coming.iter().map(|row| row.place));
                records.extend(coming.iter().map(|row| row.record));
                words.resize(coming.len() * table.shape().words(), 0);
                table.read_records(records, words);
                memory.arena(device).put(places, words);
            }
        }
    }

    /// Brings what is on its way from GPUs into the host table.
    pub(super) fn land(&mut self, table: &mut HostTable) {
        for (rows, taken) in std::mem::take(&mut self.landing) {
            let taken = taken();
            #[cfg(test)]
            let taken = self.all_spoilt(table, &rows, taken);
            let records = &mut self.parcel.records;
            records.clear();
            records.extend(rows.iter().map(|row| row.record));
            table.write_records(rows.iter().map(|row| row.id), records, &taken);
            self.landed += rows.len() as u64;
        }
        self.away.clear();
        self.others_away = false;
    }

    /// What arrives of records, with a bug or without.
    #[cfg(test)]
    fn all_spoilt(&self, table: &HostTable, rows: &[Leaving], records: Vec<u32>) -> Vec<u32> {
        let each = rows.iter().zip(records.chunks_exact(table.shape().words()));
        each.flat_map(|(row, record)| self.spoilt(table, row, record)).collect()
    }

    /// Writes a row that has left plain memory into the host table.
    fn arrive(&mut self, table: &mut HostTable, row: &Leaving, record: &[u32]) {
        #[cfg(test)]
        let changed = self.spoilt(table, row, record);
        #[cfg(test)]
        let record = &changed[..];
        table.write_record(row.id, row.record, record);
        self.landed += 1;
    }

    /// What arrives of a record, with a bug or without.
    #[cfg(test)]
    fn spoilt(&self, table: &HostTable, row: &Leaving, record: &[u32]) -> Vec<u32> {
        let (shape, mut record) = (table.shape(), record.to_vec());
        if self.planted == Some(Bug::LeavesTheStateBehind) {
            let state = shape.dim..shape.words() - 1;
            record[state.clone()].copy_from_slice(&table.record(row.record)[state]);
        }
        record
    }
}
