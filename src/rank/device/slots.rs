//! What the two threads of the trainer have of a batch in common, on the device that computes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn_cubecl::CubeRuntime;

use crate::gpu::numbers::{Numbers, Reader};
use crate::sparse::cache::memory::Taken;

use super::arena::Arena;

/// A batch's arrays that both threads use.
pub struct SlotNumbers<R: CubeRuntime> {
    /// Rows of the unique ids, and their places in the first arena.
    pub gathered: Option<(Numbers<R>, Numbers<R>)>,
    pub gradients: Option<Numbers<R>>,
    /// Rows that other devices own.
    pub elsewhere: Option<Elsewhere<R>>,
}

/// Rows of a batch that other devices own: the device that computes has copies of them.
pub struct Elsewhere<R: CubeRuntime> {
    /// Their numbers in the batch, owner after owner.
    pub numbers: Vec<u32>,
    /// Arena of each owner, and the places there.
    pub owners: Vec<(usize, Numbers<R>)>,
    /// The rows of each owner, on their way to the host.
    pub coming: Vec<Taken>,
    /// The gradients of all of them, on their way to the host.
    pub leaving: Option<Taken>,
}

impl<R: CubeRuntime> SlotNumbers<R> {
    fn empty() -> Mutex<Self> {
        Mutex::new(Self { gathered: None, gradients: None, elsewhere: None })
    }

    /// Returns the rows of the unique ids, `dim` floats each, all of which have been gathered. Waits for those that other devices own.
    pub fn rows(&mut self, dim: usize) -> Numbers<R> {
        let rows = self.gathered.as_ref().expect("the batch was gathered").0.clone();
        if let Some(elsewhere) = &mut self.elsewhere {
            let words: Vec<u32> = elsewhere.coming.drain(..).flat_map(|coming| coming()).collect();
            Arena::of_rows(rows.clone(), dim).put(&elsewhere.numbers, &words);
        }
        rows
    }

    /// Keeps the gradients of the unique ids' rows, `dim` floats each. Those of rows that other devices own begin to go to the host.
    pub fn keep(&mut self, gradients: Numbers<R>, dim: usize, reader: &Reader<R>) {
        if let Some(elsewhere) = &mut self.elsewhere {
            let leaving = Arena::of_rows(gradients.clone(), dim).take(&elsewhere.numbers);
            elsewhere.leaving = Some(Box::new(reader.begin(&leaving)));
        }
        self.gradients = Some(gradients);
    }
}

/// What both threads share.
pub struct Shared<R: CubeRuntime> {
    slots: Vec<Mutex<SlotNumbers<R>>>,
    /// `[1]`: not 0 once a gradient was not finite.
    pub bad: Numbers<R>,
}

impl<R: CubeRuntime> Shared<R> {
    /// So many batches under way at a time.
    pub fn new(slots: usize, bad: Numbers<R>) -> Self {
        Self { slots: (0..slots).map(|_| SlotNumbers::empty()).collect(), bad }
    }

    /// The arrays of the batch that is in a slot, which has one user at a time.
    pub fn slot(&self, slot: usize) -> MutexGuard<'_, SlotNumbers<R>> {
        self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
