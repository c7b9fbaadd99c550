//! The places of one device, of one record each: what they hold, and which of them gives its place next.

use std::collections::VecDeque;

use crate::shm::prefetch;
use crate::sparse::index::mix;

use super::memory::ABSENT;
use super::resident::{Resident, hash};

/// One place in so many is for rows that one batch alone has asked for.
const YOUNG_SHARE: usize = 10;
/// Entries that a queue of victims may hold before the old ones are thrown out: so many for each place, and some more in a small arena.
const QUEUE_PLACES: usize = 4;
const QUEUE_SLACK: usize = 1024;

/// The places of one device, of one record each.
pub(super) struct Arena {
    pub(super) places: Vec<Place>,
    pub(super) resident: Resident,
    pub(super) free: Vec<u32>,
    /// Places by when they were asked for, of rows that one batch has asked for and of the others, with the low half of their stamp then. An
    /// entry whose stamp is not its place's any more is old.
    queues: [VecDeque<(u32, u32)>; 2],
    /// Rows that one batch alone has asked for since they came.
    pub(super) young: usize,
    /// Places with pins.
    pub(super) pinned: usize,
    /// Places kept for ids of prefetched batches that had no row.
    pub(super) reserved: usize,
    #[cfg(test)]
    pub(super) evicts_pinned: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) id: u64,
    /// The row's record in the host table, where it stays.
    pub(super) record: u32,
    /// Batches in flight or prefetched that need the row.
    pub(super) pins: u32,
    pub(super) dirty: bool,
    /// Number of the prefetch that asked for it last; 0 = none yet.
    pub(super) stamp: u64,
    /// More than one has asked for it since it came.
    pub(super) again: bool,
    /// The table has freed the row while batches had it pinned.
    pub(super) gone: bool,
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

    pub(super) fn pin(&mut self, number: u32, stamp: u64) {
        let place = &mut self.places[number as usize];
        self.pinned += usize::from(place.pins == 0);
        place.pins += 1;
        if place.stamp == 0 {
            self.young += 1;
        } else if !std::mem::replace(&mut place.again, true) {
            self.young -= 1;
        }
        place.stamp = stamp;
    }

    pub(super) fn unpin(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        place.pins -= 1;
        if place.pins == 0 {
            self.pinned -= 1;
            if place.gone {
                *place = Place::default();
                self.free.push(number);
                return;
            }
            // Where it can be found as a victim; until now it could not be one.
            let queue = &mut self.queues[usize::from(place.again)];
            queue.push_back((number, place.stamp as u32));
            if queue.len() > QUEUE_PLACES * self.places.len() + QUEUE_SLACK {
                let places = &self.places;
                queue.retain(|&(number, stamp)| {
                    let place = &places[number as usize];
                    place.pins == 0 && place.stamp as u32 == stamp
                });
            }
        }
    }

    /// Whether the queues of victims are no longer than they may be.
    #[cfg(test)]
    pub(super) fn queues_are_short(&self) -> bool {
        self.queues.iter().all(|queue| queue.len() <= QUEUE_PLACES * self.places.len() + QUEUE_SLACK)
    }

    /// The unpinned place whose row is missed the least. Room was checked: there is one.
    pub(super) fn victim(&mut self) -> u32 {
        let young_first = self.young > self.places.len() / YOUNG_SHARE;
        let order = if young_first { [0, 1] } else { [1, 0] };
        order.into_iter().find_map(|queue| self.oldest(queue)).expect("an unpinned place")
    }

    /// The unpinned place of a queue that was asked for the longest ago.
    fn oldest(&mut self, queue: usize) -> Option<u32> {
        while let Some((number, stamp)) = self.queues[queue].pop_front() {
            let [far, near] = AHEAD.map(|ahead| self.queues[queue].get(ahead).map(|(number, _)| *number as usize));
            far.into_iter().for_each(|number| prefetch(&self.places[number]));
            near.into_iter().for_each(|number| self.resident.prefetch(hash(mix(self.places[number].id))));
            #[cfg(test)]
            if self.evicts_pinned {
                return Some(number);
            }
            // Else pinned or asked for again since it was queued: it stands further back, or will.
            let place = &self.places[number as usize];
            if place.pins == 0 && place.stamp as u32 == stamp {
                return Some(number);
            }
        }
        None
    }
}
