//! The rows that devices hold: a cache over the host table that is exact, not nearly so.
//!
//! A row that was updated stays on its device and is what the next batch reads. A batch's rows are fetched ahead: only those that
//! are not resident come from the host, while an earlier batch is computed. The rules that keep this the same as a flat table:
//!
//! - A row lives in one place of one arena, that of device `hash(id) mod D`; while it is resident the host's copy may be old and
//!   nobody reads it.
//! - A batch pins its rows from its prefetch to its release. A pinned row is never evicted, so a batch that is in flight or
//!   prefetched never loses one, and a row that two batches share is fetched once.
//! - The victim, which [`arena`] chooses, is the row that was queued first, among the rows that one batch alone has asked for while these
//!   take more than a tenth of the places, among the others otherwise: ids that come once do not drive out those that come again. A row
//!   is queued when it is released; one that was asked for since then is spared and queued anew. If the victim was changed since it came,
//!   it is written back with its optimiser state and version before its place is given away; a clean one is not.
//! - An update happens in place. A prefetched batch that shares the row reads the updated value: it gathers later.
//! - A prefetch has room for all of its rows or changes nothing: where pinned rows leave none it is tried again after the next release.
//!   The rows that are not resident are brought in some at a time, and other batches may go on in between. Room stays kept for ids that
//!   have no row yet.
//! - A batch is settled in its turn: ids that have got a row since its prefetch come in, and rows that the table has freed since, for
//!   another id, go. What a place held of a freed row is forgotten, not written back; a place that prefetched batches pin stays
//!   empty until they are settled, or until the first of them gives its id a row again, which comes into the same place.
//!
//! [`copies`] has a simpler use of an arena: rows of a table that another process writes.
//!
//! [`arena`] has the places, their order and the rule of eviction, [`resident`] finds the place of an id, [`memory`] keeps the records, and
//! [`traffic`] moves them between devices and host. This file has the batches, and keeps the arena's count of rows that one batch alone
//! has asked for when it empties or frees a place, or fills it again.

#[path = "cache/arena.rs"]
mod arena;
#[path = "cache/copies.rs"]
pub mod copies;
#[path = "cache/memory.rs"]
pub mod memory;
#[path = "cache/resident.rs"]
mod resident;
#[path = "cache/traffic.rs"]
mod traffic;

use serde::Serialize;

use crate::shm::{ahead, prefetch, prefetch_lines};

use super::index::mix;
use super::table::{HostTable, TableShape};
use arena::{Arena, Fact};
use memory::{ABSENT, DeviceMemory, DeviceStep, HostMemory, Records};
use resident::hash;
use traffic::{Coming, Leaving, Traffic};

/// What the cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Rows asked for that were on their device already, and those that were brought there.
    pub hits: u64,
    pub misses: u64,
    /// Bytes from the host to the device, and back.
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Bytes of rows and gradients from one GPU to another.
    pub bytes_between: u64,
    pub evictions: u64,
    pub write_backs: u64,
    /// Prefetches that found no room beside pinned rows.
    pub stalls: u64,
    /// Rows asked for that the table does not have: their ids are read at their first value. Of a rank's copies: those, too, for which there
    /// was no room beside the rows of the same batch.
    pub absent: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CacheError {
    #[error("pinned rows leave no room; release a batch first")]
    Stall,
    #[error(
        "a batch needs {needed} rows of one device, and its cache holds {capacity}: raise table.cache_rows or lower values.batch"
    )]
    BatchTooLarge { needed: usize, capacity: usize },
}

/// A batch's rows on the devices, from its prefetch to its release.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Arena and place of each unique id.
    rows: Vec<(u32, u32)>,
    /// The record in the host table of each of them, as of when it was fetched.
    records: Vec<Option<u32>>,
    /// Those that were not resident at the prefetch, and how many of them have been fetched or not found.
    missing: Vec<u32>,
    fetched: usize,
    /// What [`Cache::brought`] was when rows were last fetched for this batch, if no other batch has brought in any since its prefetch.
    brought: u64,
    /// What [`Cache::lost`] was at the prefetch.
    lost: u64,
    /// Whether ids without a place have none for good, and none is kept for them.
    settled: bool,
}

/// Rows flushed at a time: what is copied to the host at once stays small beside the arena.
const FLUSHED: usize = 1 << 16;

/// The rows that devices hold.
pub struct Cache {
    shape: TableShape,
    arenas: Vec<Arena>,
    records: Records,
    traffic: Traffic,
    /// Places of an arena.
    capacity: usize,
    /// Rows brought in so far.
    brought: u64,
    /// Pinned rows that the table has freed so far.
    lost: u64,
    /// Places whose row has changed since it was fetched or written back.
    dirty: usize,
    /// Without what [`Traffic`] counts.
    counters: Counters,
    /// Rows wanted of each arena by the prefetch in hand, resident ones that nobody pins yet, and those to be fetched.
    wanted: Vec<[usize; 2]>,
    #[cfg(test)]
    planted: Option<tests::Bug>,
}

impl Cache {
    /// A cache of `rows` rows in all over `devices` arenas in plain memory.
    ///
    /// # Panics
    /// When there is no device or less than one row for each.
    pub fn new(shape: TableShape, rows: usize, devices: usize) -> Self {
        let capacity = rows.div_ceil(devices);
        let plain = (0..devices).map(|_| HostMemory::new(capacity, shape.words())).collect();
        Self::over(shape, capacity, devices, Records::Host(plain))
    }

    /// A cache of as many rows as the memory of GPUs has places for.
    ///
    /// # Panics
    /// When there is no place.
    pub fn on_device(shape: TableShape, memory: Box<dyn DeviceMemory>) -> Self {
        Self::over(shape, memory.capacity(), memory.arenas(), Records::Device(memory))
    }

    fn over(shape: TableShape, capacity: usize, devices: usize, records: Records) -> Self {
        assert!(devices > 0 && capacity > 0 && u32::try_from(capacity).is_ok(), "{capacity} rows on {devices} devices");
        Self {
            shape,
            arenas: (0..devices).map(|_| Arena::new(capacity)).collect(),
            records,
            traffic: Traffic::of(devices),
            capacity,
            brought: 0,
            lost: 0,
            dirty: 0,
            counters: Counters::default(),
            wanted: vec![[0; 2]; devices],
            #[cfg(test)]
            planted: None,
        }
    }

    pub fn counters(&self) -> Counters {
        let Traffic { came, landed, .. } = self.traffic;
        let bytes = 4 * self.shape.words() as u64;
        let [bytes_up, bytes_down] = [came, landed].map(|rows| rows * bytes);
        Counters { misses: came, bytes_up, bytes_down, write_backs: landed, ..self.counters }
    }

    /// Rows that are pinned; 0 when no batch is in flight or prefetched.
    pub fn pinned(&self) -> usize {
        self.arenas.iter().map(|arena| arena.pinned).sum()
    }

    /// Rows that the host has not got yet.
    pub fn dirty(&self) -> usize {
        self.dirty + self.traffic.under_way()
    }

    /// Whether all arenas' queues and counts are right.
    #[cfg(test)]
    pub fn is_in_order(&self) -> bool {
        self.arenas.iter().all(Arena::is_in_order)
    }

    /// Whether an id's row is on its device.
    pub fn is_resident(&self, id: u64) -> bool {
        self.arenas[self.device(id)].find(id).is_some()
    }

    /// The device that owns an id.
    fn device(&self, id: u64) -> usize {
        self.device_and_hash(id).0 as usize
    }

    /// The device that owns an id, and the hash by which its arena finds it.
    fn device_and_hash(&self, id: u64) -> (u32, u32) {
        let mixed = mix(id);
        // A division takes as long as the rest of a search.
        let device = match self.arenas.len() as u64 {
            1 => 0,
            // Other bits than those by which an index begins its search.
            devices => (mixed.rotate_left(32) % devices) as u32,
        };
        (device, hash(mixed))
    }

    /// Begins to fetch a batch: pins those of its rows that are resident, and keeps room for the others, which [`fetch`](Self::fetch) brings.
    /// `unique` holds no id twice.
    ///
    /// # Errors
    /// [`CacheError::Stall`] where pinned rows leave no room, [`CacheError::BatchTooLarge`] where no release could help: nothing
    /// has changed then.
    pub fn prefetch(&mut self, table: &mut HostTable, unique: &[u64]) -> Result<Ticket, CacheError> {
        self.traffic.land(table);
        let mut rows: Vec<(u32, u32)> = unique.iter().map(|id| self.device_and_hash(*id)).collect();
        for i in 0..rows.len() {
            for &(device, hash) in &rows[ahead(i, rows.len())] {
                self.arenas[device as usize].resident.prefetch(hash);
            }
            let (device, hash) = rows[i];
            rows[i].1 = self.arenas[device as usize].resident.likely(hash).unwrap_or(ABSENT);
        }
        // The exact count looks at every place of the batch, so it is made only where the batch's size alone does not show that there is room.
        if !self.arenas.iter().all(|arena| arena.pinned + arena.reserved + unique.len() <= self.capacity) {
            self.check_room(unique, &rows)?;
        }
        #[cfg(test)]
        if self.planted == Some(tests::Bug::FetchesWhatIsResident) {
            rows.iter_mut().for_each(|(_, place)| *place = ABSENT);
        }
        let (mut missing, mut records) = (vec![], Vec::with_capacity(unique.len()));
        for (i, &id) in unique.iter().enumerate() {
            self.load_places_ahead(&rows, i);
            let (device, likely) = rows[i];
            let place = self.arenas[device as usize].confirm(id, likely);
            #[cfg(test)]
            let place = if self.planted == Some(tests::Bug::BelievesWhatIsLikely) { likely } else { place };
            rows[i].1 = place;
            if place == ABSENT {
                missing.push(i as u32);
                records.push(None);
                self.arenas[device as usize].reserved += 1;
            } else {
                let arena = &mut self.arenas[device as usize];
                arena.pin(place);
                records.push(Some(arena.places[place as usize].record));
                self.counters.hits += 1;
            }
        }
        Ok(Ticket { rows, records, missing, fetched: 0, brought: self.brought, lost: self.lost, settled: false })
    }

    /// Fetches up to `most` of the rows that were not resident at a batch's prefetch and that the table has, and pins them. Returns whether none
    /// are left. Other batches may be settled, updated and released in between.
    pub fn fetch(&mut self, table: &mut HostTable, unique: &[u64], ticket: &mut Ticket, most: usize) -> bool {
        let Ticket { rows, records, missing, fetched, .. } = ticket;
        let next = &missing[*fetched..missing.len().min(fetched.saturating_add(most))];
        let ids: Vec<u64> = next.iter().map(|i| unique[*i as usize]).collect();
        let found = table.find_many(&ids);
        let alone = ticket.brought == self.brought;
        self.traffic.may_return = !alone;
        for (i, (&id, &at)) in ids.iter().zip(next).enumerate() {
            for (device, hash) in ids[ahead(i, ids.len())].iter().map(|id| self.device_and_hash(*id)) {
                self.arenas[device as usize].resident.prefetch(hash);
            }
            let (device, place) = &mut rows[at as usize];
            let arena = &mut self.arenas[*device as usize];
            // Another batch may have brought it in since.
            let resident = if alone { None } else { arena.find(id) };
            #[cfg(test)]
            let resident = resident.filter(|_| self.planted != Some(tests::Bug::BringsInTwice));
            let Some(record) = resident.map(|place| arena.places[place as usize].record).or(found[i]) else { continue };
            arena.reserved -= 1;
            records[at as usize] = Some(record);
            *place = match resident {
                Some(place) => {
                    self.counters.hits += 1;
                    arena.pin(place);
                    place
                }
                None => self.bring_in(table, *device as usize, id, record),
            };
        }
        self.traffic.may_return = false;
        self.traffic.exchange(table, &mut self.records);
        *fetched += next.len();
        if alone {
            ticket.brought = self.brought;
        }
        ticket.fetched == ticket.missing.len()
    }

    /// Fetches a row from the host into a place of its own and pins it.
    fn bring_in(&mut self, table: &mut HostTable, device: usize, id: u64, record: u32) -> u32 {
        let place = self.make_room(device);
        self.brought += 1;
        self.traffic.bring(table, &mut self.records, device, Coming { id, record, place });
        let arena = &mut self.arenas[device];
        arena.fill(place, id, record);
        place
    }

    /// Fetches the row that an id has got anew into the place that batches have kept pinned for it, and pins it.
    fn fill_again(&mut self, table: &mut HostTable, device: usize, number: u32, record: u32) {
        let id = self.arenas[device].places[number as usize].id;
        self.brought += 1;
        self.traffic.bring(table, &mut self.records, device, Coming { id, record, place: number });
        let arena = &mut self.arenas[device];
        let place = &mut arena.places[number as usize];
        place.record = record;
        place.set(Fact::Gone, false);
        arena.young += usize::from(!place.is(Fact::Again));
        arena.resident.insert(place.id, number);
        arena.pin(number);
    }

    /// The record in the host table of each of a batch's ids whose row is still on its device.
    pub fn records(&self, ticket: &Ticket, records: &mut Vec<Option<u32>>) {
        records.clear();
        if ticket.lost == self.lost {
            records.extend_from_slice(&ticket.records);
            return;
        }
        records.extend(ticket.rows.iter().map(|&(device, place)| {
            let place = self.arenas[device as usize].places.get(place as usize)?;
            (!place.is(Fact::Gone)).then_some(place.record)
        }));
    }

    /// Brings in the rows that ids of a batch have got since its prefetch; `records` has the record of each that has a row. The batch
    /// is the oldest one in flight.
    pub fn settle(&mut self, table: &mut HostTable, unique: &[u64], records: &[Option<u32>], ticket: &mut Ticket) {
        self.traffic.may_return = true;
        let all_there = ticket.lost == self.lost;
        for (i, (&id, record)) in unique.iter().zip(records).enumerate() {
            for later in ahead(i, unique.len()) {
                let (device, place) = ticket.rows[later];
                if place == ABSENT {
                    self.arenas[device as usize].resident.prefetch(self.device_and_hash(unique[later]).1);
                }
            }
            let (device, place) = &mut ticket.rows[i];
            let arena = &mut self.arenas[*device as usize];
            if *place != ABSENT && (all_there || !arena.places[*place as usize].is(Fact::Gone)) {
                continue;
            }
            // The empty place that later batches still pin for this id, if there is one.
            let mut kept = None;
            if *place == ABSENT {
                arena.reserved -= 1;
            } else {
                arena.unpin(*place);
                kept = Some(*place).filter(|place| arena.places[*place as usize].pins > 0);
            }
            let resident = arena.find(id);
            if resident.is_some_and(|place| arena.places[place as usize].pins > 0) {
                kept = None;
            }
            *place = match (record, resident, kept) {
                (None, ..) => {
                    self.counters.absent += 1;
                    ABSENT
                }
                // Room was kept for one place of the id, not for two.
                (Some(record), _, Some(kept)) => {
                    if let Some(place) = resident {
                        self.evict(*device as usize, place);
                        self.arenas[*device as usize].free.push(place);
                    }
                    self.fill_again(table, *device as usize, kept, *record);
                    kept
                }
                // A batch before this one has brought it in.
                (Some(_), Some(place), None) => {
                    self.counters.hits += 1;
                    arena.pin(place);
                    place
                }
                (Some(record), None, None) => self.bring_in(table, *device as usize, id, *record),
            };
        }
        self.traffic.may_return = false;
        self.traffic.exchange(table, &mut self.records);
        ticket.settled = true;
    }

    /// Forgets the row of an id that the table has freed; nothing is written back.
    pub fn forget(&mut self, id: u64) {
        let device = self.device(id);
        let arena = &mut self.arenas[device];
        let Some(number) = arena.find(id) else { return };
        arena.resident.remove(id, number);
        let place = &mut arena.places[number as usize];
        self.dirty -= usize::from(place.set(Fact::Dirty, false));
        arena.young -= usize::from(!place.is(Fact::Again));
        if place.pins == 0 {
            place.hold(0, 0);
            arena.free.push(number);
        } else {
            place.set(Fact::Gone, true);
            self.lost += 1;
        }
    }

    /// Checks that there is room for a batch, given arena and likely place of each of its ids.
    fn check_room(&mut self, unique: &[u64], rows: &[(u32, u32)]) -> Result<(), CacheError> {
        self.wanted.iter_mut().for_each(|wanted| *wanted = [0; 2]);
        for (i, (&id, &(device, place))) in unique.iter().zip(rows).enumerate() {
            self.load_places_ahead(rows, i);
            let [unpinned, missing] = &mut self.wanted[device as usize];
            let arena = &self.arenas[device as usize];
            match arena.places.get(arena.confirm(id, place) as usize) {
                Some(place) => *unpinned += usize::from(place.pins == 0),
                None => *missing += 1,
            }
        }
        let needed = |device: usize| rows.iter().filter(|(of, _)| *of as usize == device).count();
        for (device, [unpinned, missing]) in self.wanted.iter().enumerate() {
            let arena = &self.arenas[device];
            if arena.pinned + arena.reserved + unpinned + missing > self.capacity {
                let needed = needed(device);
                if needed > self.capacity {
                    return Err(CacheError::BatchTooLarge { needed, capacity: self.capacity });
                }
                self.counters.stalls += 1;
                return Err(CacheError::Stall);
            }
        }
        Ok(())
    }

    /// A place of an arena that nobody needs.
    fn make_room(&mut self, device: usize) -> u32 {
        if let Some(place) = self.arenas[device].free.pop() {
            return place;
        }
        let place = self.arenas[device].victim();
        self.evict(device, place);
        place
    }

    /// Empties an unpinned place; what has changed goes to the host.
    fn evict(&mut self, device: usize, place: u32) {
        let dirty = self.arenas[device].places[place as usize].is(Fact::Dirty);
        #[cfg(test)]
        let dirty = dirty && self.planted != Some(tests::Bug::ForgetsToWriteBack);
        if dirty {
            self.write_back(device, place);
        }
        self.arenas[device].empty(place);
        self.counters.evictions += 1;
    }

    /// Copies the rows of a batch, one after another, into `out`, and their versions into `versions`; `unique` are its ids, of which those
    /// without a row are read at their first value and have no version.
    pub fn gather(&self, ticket: &Ticket, unique: &[u64], out: &mut Vec<f32>, versions: &mut Vec<Option<u32>>) {
        out.clear();
        versions.clear();
        let mut first = Vec::new();
        for (i, (&(device, place), &id)) in ticket.rows.iter().zip(unique).enumerate() {
            self.load_records_ahead(&ticket.rows, i);
            let words = if place == ABSENT {
                first.resize(self.shape.words(), 0);
                self.shape.first_value(id, &mut first);
                &first[..]
            } else {
                self.records.plain(device).record(place)
            };
            versions.push((place != ABSENT).then(|| words[self.shape.words() - 1]));
            out.extend_from_slice(bytemuck::cast_slice(&words[..self.shape.dim]));
        }
    }

    /// Gathers the rows of a batch on the GPUs that hold them, for its slot; `unique` are its ids.
    ///
    /// # Panics
    /// When the rows are in plain memory.
    pub fn gather_on_device(&mut self, ticket: &Ticket, unique: &[u64], slot: usize) {
        let (mut firsts, mut first) = (Vec::<f32>::new(), vec![0; self.shape.words()]);
        for (_, &id) in ticket.rows.iter().zip(unique).filter(|((_, place), _)| *place == ABSENT) {
            self.shape.first_value(id, &mut first);
            firsts.extend_from_slice(bytemuck::cast_slice(&first[..self.shape.dim]));
        }
        self.records.on_device().gather(slot, &ticket.rows, &firsts);
        self.count_crossing(ticket);
    }

    /// Moves the rows of a batch along the gradients that the GPU has for its slot, and ends the batch.
    ///
    /// # Panics
    /// When the rows are in plain memory.
    pub fn update_on_device(&mut self, ticket: Ticket, slot: usize, step: &DeviceStep) {
        self.records.on_device().update(slot, step);
        self.count_crossing(&ticket);
        for (i, &row) in ticket.rows.iter().enumerate() {
            self.load_places_ahead(&ticket.rows, i);
            self.mark_changed(row);
            self.unpin(row, ticket.settled);
        }
    }

    /// Counts the rows of a batch, or their gradients, that go from one device to another.
    fn count_crossing(&mut self, ticket: &Ticket) {
        let rows = ticket.rows.iter().filter(|(device, place)| *device > 0 && *place != ABSENT).count();
        self.counters.bytes_between += (4 * self.shape.dim * rows) as u64;
    }

    /// Whether the rows are on GPUs.
    pub fn is_on_device(&self) -> bool {
        matches!(self.records, Records::Device(_))
    }

    /// Applies the gradients of a batch's rows, `dim` floats for each, in place, and ends the batch. The owner of a row is its only writer.
    pub fn update(&mut self, ticket: Ticket, gradients: &[f32], rate: f32) {
        let shape = self.shape;
        for (i, (&(device, place), gradient)) in ticket.rows.iter().zip(gradients.chunks_exact(shape.dim)).enumerate() {
            self.load_places_ahead(&ticket.rows, i);
            self.load_records_ahead(&ticket.rows, i);
            if place != ABSENT {
                shape.update(self.records.plain_mut(device).record_mut(place), gradient, rate);
                self.mark_changed((device, place));
            }
            self.unpin((device, place), ticket.settled);
        }
    }

    /// Starts to load the [`Place`]s of rows that are used after the one at `i`, where that is due.
    fn load_places_ahead(&self, rows: &[(u32, u32)], i: usize) {
        for &(device, place) in &rows[ahead(i, rows.len())] {
            self.arenas[device as usize].places.get(place as usize).into_iter().for_each(prefetch);
        }
    }

    /// Starts to load the records of rows that are used after the one at `i`, where that is due.
    fn load_records_ahead(&self, rows: &[(u32, u32)], i: usize) {
        for &(device, place) in rows[ahead(i, rows.len())].iter().filter(|(_, place)| *place != ABSENT) {
            prefetch_lines(self.records.plain(device).record(place));
        }
    }

    fn mark_changed(&mut self, (device, place): (u32, u32)) {
        #[cfg(test)]
        if self.planted == Some(tests::Bug::ForgetsThatItChanged) {
            return;
        }
        if let Some(place) = self.arenas[device as usize].places.get_mut(place as usize) {
            self.dirty += usize::from(!place.set(Fact::Dirty, true));
        }
    }

    /// Takes a batch's pin off a row, or gives back the room that was kept for it.
    fn unpin(&mut self, (device, place): (u32, u32), settled: bool) {
        let arena = &mut self.arenas[device as usize];
        if place != ABSENT {
            arena.unpin(place);
        } else if !settled {
            arena.reserved -= 1;
        }
    }

    /// Ends a batch without an update: its rows may be evicted, as far as no other batch needs them.
    pub fn release(&mut self, ticket: Ticket) {
        for (i, &row) in ticket.rows.iter().enumerate() {
            self.load_places_ahead(&ticket.rows, i);
            self.unpin(row, ticket.settled);
        }
    }

    /// Lets a changed row go to the host.
    fn write_back(&mut self, device: usize, place: u32) {
        let held = &mut self.arenas[device].places[place as usize];
        held.set(Fact::Dirty, false);
        self.dirty -= 1;
        self.traffic.send(&self.records, device, Leaving { id: held.id, record: held.record, place });
    }

    /// Brings what is on its way from GPUs into the host table.
    pub fn land(&mut self, table: &mut HostTable) {
        self.traffic.land(table);
    }

    /// Writes everything that was changed back to the host; the rows stay resident.
    pub fn flush(&mut self, table: &mut HostTable) {
        self.traffic.land(table);
        for device in 0..self.arenas.len() {
            for place in 0..self.capacity {
                if self.arenas[device].places[place].is(Fact::Dirty) {
                    self.write_back(device, place as u32);
                }
                if self.traffic.leaving(device) == FLUSHED {
                    self.traffic.exchange(table, &mut self.records);
                    self.traffic.land(table);
                }
            }
        }
        self.traffic.exchange(table, &mut self.records);
        self.traffic.land(table);
    }
}

#[cfg(test)]
#[path = "cache/tests.rs"]
mod tests;
