//! Records on their way between devices and host.
//!
//! They go many at a time: a prefetch copies its victims to the host, then the rows that it fetches into their places. A GPU only begins to
//! copy victims then. They are in the host table before its rows are looked at again, which is a batch later, so that nobody waits for a
//! device that is busy with the batch before.

use std::collections::HashMap;

use crate::shm::{ahead, prefetch_ends};
use crate::sparse::index::IdMap;
use crate::sparse::table::HostTable;

use super::Cache;
use super::arena::Place;
use super::memory::{Records, Taken};
#[cfg(test)]
use super::tests::Bug;

/// Rows flushed at a time: what is copied to the host at once stays small beside the arena.
const FLUSHED: usize = 1 << 16;

/// A changed row that leaves its place, or only goes to the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaving {
    pub(super) id: u64,
    /// Its record in the host table.
    pub(super) record: u32,
    place: u32,
}

impl Leaving {
    /// Writes a row that has left its device into the host table.
    fn arrive(&self, table: &mut HostTable, record: &[u32], #[cfg(test)] planted: Option<Bug>) {
        #[cfg(test)]
        let changed = planted.map(|bug| bug.spoil(table, self, record));
        #[cfg(test)]
        let record = changed.as_deref().unwrap_or(record);
        table.write_record(self.id, self.record, record);
    }
}

/// A row that comes into a place.
#[derive(Debug, Clone, Copy)]
struct Coming {
    record: u32,
    place: u32,
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
    /// Whether rows that leave may be brought in again before they are in the host table: while a batch is settled, and while rows are fetched
    /// that another batch may have had in the meantime.
    pub(super) may_return: bool,
}

impl Traffic {
    pub(super) fn of(devices: usize) -> Self {
        Self {
            of_device: (0..devices).map(|_| Freight::default()).collect(),
            parcel: Parcel::default(),
            landing: vec![],
            away: HashMap::default(),
            may_return: false,
        }
    }
}

impl Cache {
    /// Lets a row come into a place with what the host has of it.
    pub(super) fn stage(&mut self, table: &mut HostTable, (device, place): (usize, u32), (id, record): (u64, u32)) {
        if self.traffic.away.contains_key(&id) {
            self.exchange(table);
            self.land(table);
        }
        self.counters.misses += 1;
        self.counters.bytes_up += 4 * self.shape.words() as u64;
        self.traffic.of_device[device].coming.push(Coming { record, place });
    }

    /// Lets a changed row go to the host: row, optimiser state and version. It counts as changed until it is there.
    pub(super) fn write_back(&mut self, device: usize, place: u32) {
        let Place { id, record, dirty, .. } = &mut self.arenas[device].places[place as usize];
        *dirty = false;
        self.traffic.of_device[device].leaving.push(Leaving { id: *id, record: *record, place });
        #[cfg(test)]
        if self.planted == Some(Bug::ForgetsWhatIsAway) {
            return;
        }
        if self.traffic.may_return && matches!(self.records, Records::Device(_)) {
            self.traffic.away.insert(*id, ());
        }
    }

    /// Copies rows that leave to the host, or begins to, then copies those that come into their places.
    pub(super) fn exchange(&mut self, table: &mut HostTable) {
        for device in 0..self.arenas.len() {
            #[cfg(test)]
            if self.planted == Some(Bug::PutsBeforeItTakes) {
                self.bring(table, device);
            }
            self.send(table, device);
            self.bring(table, device);
            self.traffic.of_device[device].coming.clear();
        }
    }

    /// Copies rows that leave a device to the host, or begins to.
    fn send(&mut self, table: &mut HostTable, device: usize) {
        let leaving = &mut self.traffic.of_device[device].leaving;
        if leaving.is_empty() {
            return;
        }
        match &mut self.records {
            Records::Host(memories) => {
                let memory = &memories[device];
                for (i, row) in leaving.iter().enumerate() {
                    let later = &leaving[ahead(i, leaving.len())];
                    later.iter().for_each(|row| prefetch_ends(memory.record(row.place)));
                    table.prefetch(later.iter().map(|row| row.record));
                    row.arrive(
                        table,
                        memory.record(row.place),
                        #[cfg(test)]
                        self.planted,
                    );
                }
                let rows = leaving.len();
                leaving.clear();
                self.count_down(rows);
            }
            Records::Device(memory) => {
                let places = &mut self.traffic.parcel.places;
                places.clear();
                places.extend(leaving.iter().map(|row| row.place));
                let taken = memory.arena(device).take(places);
                self.traffic.landing.push((std::mem::take(leaving), taken));
            }
        }
    }

    /// Copies the rows that come to a device into their places.
    fn bring(&mut self, table: &HostTable, device: usize) {
        let coming = &self.traffic.of_device[device].coming;
        if coming.is_empty() {
            return;
        }
        let records = coming.iter().enumerate().map(|(i, row)| {
            table.prefetch(coming[ahead(i, coming.len())].iter().map(|row| row.record));
            table.record(row.record)
        });
        match &mut self.records {
            Records::Host(memories) => {
                let memory = &mut memories[device];
                for (i, (row, record)) in coming.iter().zip(records).enumerate() {
                    let later = &coming[ahead(i, coming.len())];
                    later.iter().for_each(|row| prefetch_ends(memory.record(row.place)));
                    memory.record_mut(row.place).copy_from_slice(record);
                }
            }
            Records::Device(memory) => {
                let Parcel { places, words } = &mut self.traffic.parcel;
                places.clear();
                words.clear();
                places.extend(coming.iter().map(|row| row.place));
                records.for_each(|record| words.extend_from_slice(record));
                memory.arena(device).put(places, words);
            }
        }
    }

    /// Brings what is on its way from GPUs into the host table.
    pub fn land(&mut self, table: &mut HostTable) {
        for (rows, taken) in std::mem::take(&mut self.traffic.landing) {
            let taken = taken();
            for (i, (row, record)) in rows.iter().zip(taken.chunks_exact(self.shape.words())).enumerate() {
                table.prefetch(rows[ahead(i, rows.len())].iter().map(|row| row.record));
                row.arrive(
                    table,
                    record,
                    #[cfg(test)]
                    self.planted,
                );
            }
            self.count_down(rows.len());
        }
        self.traffic.away.clear();
    }

    /// Counts rows that have come to the host.
    fn count_down(&mut self, rows: usize) {
        self.dirty -= rows;
        self.counters.write_backs += rows as u64;
        self.counters.bytes_down += 4 * (self.shape.words() * rows) as u64;
    }

    /// Writes everything that was changed back to the host; the rows stay resident.
    pub fn flush(&mut self, table: &mut HostTable) {
        self.land(table);
        for device in 0..self.arenas.len() {
            for place in 0..self.capacity {
                if self.arenas[device].places[place].dirty {
                    self.write_back(device, place as u32);
                }
                if self.traffic.of_device[device].leaving.len() == FLUSHED {
                    self.exchange(table);
                    self.land(table);
                }
            }
        }
        self.exchange(table);
        self.land(table);
    }
}
