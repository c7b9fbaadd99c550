//! Rows of a table that another process writes: a rank's own copies of them.
//!
//! The ranks of a machine share one table, and one of them writes it. Another rank that read every row of every batch there would take
//! each of them from the writer's core, and the writer would take it back to change it. So a rank keeps copies of what it reads. All ranks
//! get the gradients of all, so each moves its copies as the writer moves the rows: a copy has the bytes of its row after every update. A copy
//! is never written back; whoever needs its place drops it.
//!
//! Only rows that the table has are copied. A row is copied between a publication and the next exchange, in which nobody writes.

use crate::shm::{ahead, prefetch, prefetch_lines};
use crate::sparse::index::mix;
use crate::sparse::table::{TableShape, TableView};

use super::Counters;
use super::arena::Arena;
use super::memory::{ABSENT, HostMemory};
use super::resident::hash;

/// Copies of rows, and those of the batch in hand.
pub struct Copies {
    shape: TableShape,
    arena: Arena,
    memory: HostMemory,
    /// Of the batch in hand: the place of each unique id, or [`ABSENT`].
    places: Vec<u32>,
    /// Of the batch in hand: the unique ids that were not copied when it began, and their records in the table.
    missing: Vec<u32>,
    ids: Vec<u64>,
    records: Vec<Option<u32>>,
    counters: Counters,
    /// The place that is compared with the table next.
    checked: usize,
    #[cfg(test)]
    pub planted: Option<Bug>,
}

/// Bugs that the oracle of copies has to find.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    MissesAnUpdate,
    CopiesAbsentRows,
    DropsWhatTheBatchNeeds,
}

impl Copies {
    /// Room for copies of `rows` rows.
    pub fn new(shape: TableShape, rows: usize) -> Self {
        Self {
            shape,
            arena: Arena::new(rows),
            memory: HostMemory::new(rows, shape.words()),
            places: vec![],
            missing: vec![],
            ids: vec![],
            records: vec![],
            counters: Counters::default(),
            checked: 0,
            #[cfg(test)]
            planted: None,
        }
    }

    pub fn shape(&self) -> TableShape {
        self.shape
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Begins with a batch of these unique ids: finds those that are copied, and those that the table has of the others.
    pub fn begin(&mut self, table: &TableView, unique: &[u64]) {
        let mut places = std::mem::take(&mut self.places);
        self.find_all(unique, &mut places);
        self.missing.clear();
        self.ids.clear();
        for (number, (&place, &id)) in places.iter().zip(unique).enumerate() {
            if place == ABSENT {
                self.missing.push(number as u32);
                self.ids.push(id);
            } else {
                self.arena.pin(place);
                self.counters.hits += 1;
            }
        }
        self.places = places;
        table.find_all(&self.ids, &mut self.records);
    }

    /// Copies the rows of the batch that are not copied yet, as far as there is room, and replaces `values` by the rows of its unique ids,
    /// `dim` floats each, or by their first values where they have none. `scratch` is memory for a record.
    pub fn read_all(&mut self, table: &TableView, unique: &[u64], scratch: &mut Vec<u32>, values: &mut Vec<f32>) {
        let (dim, words) = (self.shape.dim, self.shape.words());
        scratch.resize(words, 0);
        values.resize(unique.len() * dim, 0.0);
        for i in 0..self.missing.len() {
            table.load_ahead(&self.records, i);
            let (number, id) = (self.missing[i] as usize, self.ids[i]);
            // It may have got a row since it was looked for.
            let record = self.records[i].or_else(|| table.find(id));
            match record {
                Some(record) => table.read(record, scratch),
                None => self.shape.first_value(id, scratch),
            }
            values[number * dim..][..dim].copy_from_slice(bytemuck::cast_slice(&scratch[..dim]));
            #[cfg(test)]
            let record = record.or((self.planted == Some(Bug::CopiesAbsentRows)).then_some(0));
            match record.and_then(|record| Some((self.place()?, record))) {
                Some((place, record)) => {
                    self.memory.record_mut(place).copy_from_slice(scratch);
                    self.arena.fill(place, id, record);
                    self.places[number] = place;
                    self.counters.misses += 1;
                    self.counters.bytes_up += (words * size_of::<u32>()) as u64;
                }
                None => self.counters.absent += 1,
            }
        }
        let mut missing = self.missing.iter().copied().peekable();
        for (number, values) in values.chunks_exact_mut(dim).enumerate() {
            self.load_ahead(&self.places, number);
            if missing.next_if_eq(&(number as u32)).is_none() {
                let row = &self.memory.record(self.places[number])[..dim];
                values.copy_from_slice(bytemuck::cast_slice(row));
            }
        }
    }

    /// A place that the batch in hand does not need, if there is one.
    fn place(&mut self) -> Option<u32> {
        if let Some(place) = self.arena.free.pop() {
            return Some(place);
        }
        #[cfg(test)]
        {
            self.arena.evicts_pinned = self.planted == Some(Bug::DropsWhatTheBatchNeeds);
        }
        if self.arena.pinned == self.arena.places.len() {
            return None;
        }
        let place = self.arena.victim();
        self.arena.empty(place);
        self.counters.evictions += 1;
        Some(place)
    }

    /// The places of ids; [`ABSENT`] for those that are not copied.
    pub fn find_all(&self, ids: &[u64], places: &mut Vec<u32>) {
        places.clear();
        places.extend(ids.iter().enumerate().map(|(i, &id)| {
            ids[ahead(i, ids.len())].iter().for_each(|later| self.arena.resident.prefetch(hash(mix(*later))));
            self.arena.resident.likely(hash(mix(id))).unwrap_or(ABSENT)
        }));
        for (i, &id) in ids.iter().enumerate() {
            for later in ahead(i, ids.len()) {
                self.arena.places.get(places[later] as usize).into_iter().for_each(prefetch);
            }
            places[i] = self.arena.confirm(id, places[i]);
        }
    }

    /// Starts to load the copies that are used after the one at place `i`, where that is due.
    pub fn load_ahead(&self, places: &[u32], i: usize) {
        let later = places[ahead(i, places.len())].iter();
        later.filter(|place| **place != ABSENT).for_each(|place| prefetch_lines(self.memory.record(*place)));
    }

    /// The copy at a place, to be moved as the writer moves its row; `None` at [`ABSENT`].
    pub fn record_mut(&mut self, place: u32) -> Option<&mut [u32]> {
        #[cfg(test)]
        if self.planted == Some(Bug::MissesAnUpdate) && place == 0 {
            return None;
        }
        (place != ABSENT).then(|| self.memory.record_mut(place))
    }

    /// Ends the batch in hand: its copies may be dropped.
    pub fn end(&mut self) {
        for i in 0..self.places.len() {
            for later in ahead(i, self.places.len()) {
                self.arena.places.get(self.places[later] as usize).into_iter().for_each(prefetch);
            }
            if self.places[i] != ABSENT {
                self.arena.unpin(self.places[i]);
            }
        }
        self.places.clear();
    }

    /// The id of a copy that differs from its row in the table, if one of the next `most` places has one; the next call goes on behind them.
    /// Nobody writes meanwhile.
    pub fn stale(&mut self, table: &TableView, most: usize) -> Option<u64> {
        let places = self.arena.places.len();
        let checked = most.min(places);
        let numbers = (self.checked..self.checked + checked).map(|number| (number % places) as u32);
        self.checked = (self.checked + checked) % places;
        let place = |number: u32| self.arena.places[number as usize];
        let copied: Vec<u32> = numbers.filter(|number| self.arena.find(place(*number).id) == Some(*number)).collect();
        let records: Vec<Option<u32>> = copied.iter().map(|number| Some(place(*number).record)).collect();
        let mut row = vec![0; self.shape.words()];
        let differs = |(i, number): (usize, &u32)| {
            table.load_ahead(&records, i);
            table.read(place(*number).record, &mut row);
            (row != self.memory.record(*number)).then(|| place(*number).id)
        };
        copied.iter().enumerate().find_map(differs)
    }
}
