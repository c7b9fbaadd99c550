//! Bugs between devices that the comparison of bits has to find.

use std::collections::HashMap;

use admix::sparse::cache::memory::{ABSENT, DeviceMemory, DeviceStep, Memory};

/// The batch that a bug shows in, counted from 1.
const BATCH: usize = 5;

/// What goes wrong with one row of an arena and one row of another, in one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Each is read where the other lies.
    GathersFromTheWrongArena,
    /// The gradient of each goes to the owner of the other.
    SendsToTheWrongOwner,
}

/// Devices with a bug: two records change places for as long as it takes.
pub struct Planted {
    inner: Box<dyn DeviceMemory>,
    bug: Bug,
    gathered: usize,
    /// Of the batch in a slot: a row in each of the last two arenas, where the batch has them.
    rows: HashMap<usize, [(u32, u32); 2]>,
}

impl Planted {
    pub fn new(inner: Box<dyn DeviceMemory>, bug: Bug) -> Self {
        Self { inner, bug, gathered: 0, rows: HashMap::new() }
    }

    fn exchange(&mut self, rows: [(u32, u32); 2]) {
        let words = rows.map(|(arena, place)| self.inner.arena(arena as usize).take(&[place])());
        for ((arena, place), words) in rows.into_iter().zip(words.iter().rev()) {
            self.inner.arena(arena as usize).put(&[place], words);
        }
    }
}

impl DeviceMemory for Planted {
    fn arenas(&self) -> usize {
        self.inner.arenas()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn arena(&mut self, number: usize) -> &mut dyn Memory {
        self.inner.arena(number)
    }

    fn gather(&mut self, slot: usize, places: &[(u32, u32)], firsts: &[f32]) {
        self.gathered += 1;
        let last = self.arenas() as u32 - 1;
        let of = |arena: u32| places.iter().copied().find(|row| row.0 == arena && row.1 != ABSENT);
        self.rows.remove(&slot);
        if let (BATCH, Some(a), Some(b)) = (self.gathered, of(last - 1), of(last)) {
            self.rows.insert(slot, [a, b]);
        }
        let wrong = self.rows.get(&slot).copied().filter(|_| self.bug == Bug::GathersFromTheWrongArena);
        wrong.into_iter().for_each(|rows| self.exchange(rows));
        self.inner.gather(slot, places, firsts);
        wrong.into_iter().for_each(|rows| self.exchange(rows));
    }

    fn update(&mut self, slot: usize, step: &DeviceStep) {
        let wrong = self.rows.get(&slot).copied().filter(|_| self.bug == Bug::SendsToTheWrongOwner);
        wrong.into_iter().for_each(|rows| self.exchange(rows));
        self.inner.update(slot, step);
        wrong.into_iter().for_each(|rows| self.exchange(rows));
    }
}
