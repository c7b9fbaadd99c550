//! The places of one device, of one record each: what they hold, and which of them gives its place next.

use std::collections::VecDeque;

use crate::shm::prefetch;
use crate::sparse::index::mix;

use super::memory::ABSENT;
use super::resident::{Resident, hash};

/// One place in so many is for rows that one batch alone has asked for.
const YOUNG_SHARE: usize = 10;

/// The places of one device, of one record each.
pub(super) struct Arena {
    pub(super) places: Vec<Place>,
    pub(super) resident: Resident,
    pub(super) free: Vec<u32>,
    /// Places in the order in which they were queued: those of rows that one batch alone had asked for by then, and the others. A place stands in
    /// one queue at most, once. Every unpinned row is queued; a pinned row or a free place may be.
    queues: [VecDeque<u32>; 2],
    /// Rows that one batch alone has asked for since they came.
    pub(super) young: usize,
    /// Places with pins.
    pub(super) pinned: usize,
    /// Places kept for ids of prefetched batches that had no row.
    pub(super) reserved: usize,
    #[cfg(test)]
    pub(super) evicts_pinned: bool,
}

/// A quarter of a cache line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) id: u64,
    /// The row's record in the host table, where it stays.
    pub(super) record: u32,
    /// Batches in flight or prefetched that need the row.
    pub(super) pins: u16,
    facts: u16,
}

/// What may be true of a place.
#[derive(Debug, Clone, Copy)]
#[repr(u16)]
pub(super) enum Fact {
    /// The row has changed since it came or was written back.
    Dirty = 1,
    /// The table has freed the row while batches had it pinned.
    Gone = 2,
    /// More than one batch has asked for the row since it came.
    Again = 4,
    /// A batch has asked for it since the place was queued.
    Lately = 8,
    /// It stands in a queue.
    Queued = 16,
}

impl Place {
    pub(super) fn is(&self, fact: Fact) -> bool {
        self.facts & fact as u16 != 0
    }

    /// Notes whether a fact is true; returns whether it was.
    pub(super) fn set(&mut self, fact: Fact, now: bool) -> bool {
        let before = self.is(fact);
        self.facts = if now { self.facts | fact as u16 } else { self.facts & !(fact as u16) };
        before
    }

    /// Holds an id's row, or none, and nothing more is known of it than whether it is queued.
    pub(super) fn hold(&mut self, id: u64, record: u32) {
        *self = Self { id, record, pins: 0, facts: self.facts & Fact::Queued as u16 };
    }
}

/// Places that [`Arena::oldest`] looks at ahead: the entry of the queue, then what the place says.
const AHEAD: [usize; 2] = [16, 8];

impl Arena {
    /// So many places, all free.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            places: vec![Place::default(); capacity],
            resident: Resident::of(capacity),
            free: (0..capacity as u32).rev().collect(),
            queues: Default::default(),
            young: 0,
            pinned: 0,
            reserved: 0,
            #[cfg(test)]
            evicts_pinned: false,
        }
    }

    /// The place of a resident id.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.resident.find(hash(mix(id)), |place| self.places[place as usize].id == id)
    }

    /// The place of an id, given the one where it [most likely](Resident::likely) is; [`ABSENT`] for an id that is not resident.
    pub(super) fn confirm(&self, id: u64, likely: u32) -> u32 {
        match self.places.get(likely as usize) {
            Some(place) if place.id != id => self.find(id).unwrap_or(ABSENT),
            _ => likely,
        }
    }

    /// Pins a row for a batch that is not the first one to ask for it.
    pub(super) fn pin(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        self.pinned += usize::from(place.pins == 0);
        place.pins += 1;
        place.set(Fact::Lately, true);
        self.young -= usize::from(!place.set(Fact::Again, true));
    }

    /// Puts a row that has come into an empty place, pinned for the batch that asked for it.
    pub(super) fn fill(&mut self, number: u32, id: u64, record: u32) {
        let place = &mut self.places[number as usize];
        place.hold(id, record);
        place.pins = 1;
        // Of a place that was freed while it was queued: its row has a turn of its own.
        place.set(Fact::Lately, place.is(Fact::Queued));
        self.pinned += 1;
        self.young += 1;
        self.resident.insert(id, number);
    }

    pub(super) fn unpin(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.pins -= 1;
        if place.pins > 0 {
            return;
        }
        self.pinned -= 1;
        if place.is(Fact::Gone) {
            place.hold(0, 0);
            self.free.push(number);
        } else if !place.set(Fact::Queued, true) {
            place.set(Fact::Lately, false);
            self.queues[usize::from(place.is(Fact::Again))].push_back(number);
        }
    }

    /// Empties an unpinned place.
    pub(super) fn empty(&mut self, number: u32) {
        let place = self.places[number as usize];
        self.resident.remove(place.id, number);
        self.young -= usize::from(!place.is(Fact::Again));
        self.places[number as usize].hold(0, 0);
    }

    /// Whether every unpinned row is queued, no place is queued twice, and the counts are right.
    #[cfg(test)]
    pub(super) fn is_in_order(&self) -> bool {
        let mut times = vec![0; self.places.len()];
        self.queues.iter().flatten().for_each(|number| times[*number as usize] += 1);
        let in_order = |(number, (place, times)): (usize, (&Place, usize))| {
            let queued = place.is(Fact::Queued);
            times == usize::from(queued) && (queued || place.pins > 0 || self.free.contains(&(number as u32)))
        };
        let resident = |number: usize| self.find(self.places[number].id) == Some(number as u32);
        let young = (0..self.places.len()).filter(|number| resident(*number) && !self.places[*number].is(Fact::Again));
        self.places.iter().zip(times).enumerate().all(in_order)
            && self.young == young.count()
            && self.pinned == self.places.iter().filter(|place| place.pins > 0).count()
    }

    /// The unpinned place whose row is missed the least. Room was checked: there is one.
    pub(super) fn victim(&mut self) -> u32 {
        let young_first = self.young > self.places.len() / YOUNG_SHARE;
        // The first one again: those that are spared in the other may go there.
        let order = if young_first { [0, 1, 0] } else { [1, 0, 1] };
        order.into_iter().find_map(|queue| self.oldest(queue)).expect("an unpinned place")
    }

    /// The first unpinned place of a queue that no batch has asked for since it was queued. Those that one has asked for are queued anew.
    fn oldest(&mut self, queue: usize) -> Option<u32> {
        while let Some(number) = self.queues[queue].pop_front() {
            let [far, near] = AHEAD.map(|ahead| self.queues[queue].get(ahead).map(|number| *number as usize));
            far.into_iter().for_each(|number| prefetch(&self.places[number]));
            near.into_iter().for_each(|number| self.resident.prefetch(hash(mix(self.places[number].id))));
            let place = &mut self.places[number as usize];
            let pinned = place.pins > 0;
            #[cfg(test)]
            let pinned = pinned && !self.evicts_pinned;
            if pinned {
                // It is queued anew when it is released.
                place.set(Fact::Queued, false);
            } else if place.set(Fact::Lately, false) {
                self.queues[usize::from(place.is(Fact::Again))].push_back(number);
            } else {
                place.set(Fact::Queued, false);
                return Some(number);
            }
        }
        None
    }
}
