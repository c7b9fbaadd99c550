//! The rows of the cache, each on the device that owns it.
//!
//! An owner alone reads and writes the records of its arena: it gathers the rows of a batch that it owns, and moves them along gradients that
//! the device that computes has summed. That device owns the first arena. Rows and
//! gradients of the other arenas cross the host. The copy of rows begins when the batch is gathered, and its products wait for it. The copy of
//! gradients begins when they are computed, and the update of the rows waits for it.

use std::sync::Arc;

use burn_cubecl::CubeRuntime;
use rayon::prelude::*;

use crate::gpu::numbers::{Numbers, Reader};
use crate::settings::RowOptimizer;
use crate::sparse::TableShape;
use crate::sparse::cache::memory::{DeviceMemory, DeviceStep, Memory, Taken};
use crate::sparse::optimiser::adam_corrections;
use crate::sparse::table::DIRECT;

use super::arena::Arena;
use super::reach;
use super::slots::{Elsewhere, Shared, SlotNumbers};
use super::spread::Spread;

/// Updates of a row after which the corrections of lazy Adam are 1 in single precision.
const CORRECTED: u32 = 1 << 14;

/// Records that go to a device at a time: few enough that several threads have something to copy.
const TOGETHER: usize = 1024;

/// A device with the records that it owns.
pub struct Owner<R: CubeRuntime> {
    arena: Arena<R>,
    optimizer: RowOptimizer,
    /// Of lazy Adam, two for each of a row's first updates.
    corrections: Numbers<R>,
    pub reader: Reader<R>,
}

impl<R: CubeRuntime> Owner<R> {
    /// An owner of the records in `words`, which has places for `capacity` of them.
    pub fn new(words: Numbers<R>, table: TableShape, capacity: usize) -> Self {
        let corrections: Vec<f32> = (1..=CORRECTED).flat_map(adam_corrections).collect();
        Self {
            corrections: words.upload(bytemuck::cast_slice(&corrections)),
            reader: Reader::new(&words),
            arena: Arena { words, dim: table.dim, width: table.words(), capacity },
            optimizer: table.optimizer,
        }
    }

    /// An array of the device's, for new ones beside it.
    pub fn words(&self) -> &Numbers<R> {
        &self.arena.words
    }

    /// Tries its kernels on places all over its arena, which holds nothing yet.
    ///
    /// # Errors
    /// A place that does not hold what it should.
    pub fn check(&self, table: TableShape) -> anyhow::Result<()> {
        reach::check(&self.arena, table, &self.reader, &self.corrections)
    }

    /// Moves rows along their gradients, which are on this device, as are their places.
    fn update(&self, places: &Numbers<R>, gradients: &Numbers<R>, precisions: &[f32], step: &DeviceStep) {
        let rates = [step.rate, step.passes];
        self.arena.update(places, gradients, precisions, &self.corrections, self.optimizer, rates);
    }
}

impl<R: CubeRuntime> Memory for Owner<R>
where
    R::Device: Send,
{
    fn put(&mut self, places: &[u32], words: &[u32]) {
        let width = self.arena.width;
        assert_eq!(words.len(), places.len() * width, "a record for each place");
        if places.len() < 2 * TOGETHER {
            return self.arena.put(places, words);
        }
        // Each thread copies its part for the upload. No two places are the same, so the parts need no order.
        let parts = places.par_chunks(TOGETHER).zip(words.par_chunks(TOGETHER * width));
        parts.for_each(|(places, words)| self.arena.put(places, words));
    }

    fn take(&mut self, places: &[u32]) -> Taken {
        Box::new(self.reader.begin(&self.arena.take(places)))
    }
}

/// All devices, as the row thread sees them; the first is the one that computes.
pub struct Owners<R: CubeRuntime> {
    pub all: Vec<Owner<R>>,
    pub shared: Arc<Shared<R>>,
}

impl<R: CubeRuntime> DeviceMemory for Owners<R>
where
    R::Device: Send,
{
    fn arenas(&self) -> usize {
        self.all.len()
    }

    fn capacity(&self) -> usize {
        self.all[0].arena.capacity
    }

    fn arena(&mut self, number: usize) -> &mut dyn Memory {
        &mut self.all[number]
    }

    fn gather(&mut self, slot: usize, places: &[(u32, u32)], firsts: &[f32]) {
        let Spread { places, elsewhere, owned } = Spread::of(places, self.arenas(), self.capacity());
        let mut elsewhere = Elsewhere { numbers: elsewhere, owners: vec![], coming: vec![], leaving: None };
        for (arena, places) in (1..).zip(owned).filter(|(_, places)| !places.is_empty()) {
            let owner = &self.all[arena];
            let (rows, places) = owner.arena.gather(&places, &[]);
            elsewhere.coming.push(Box::new(owner.reader.begin(&rows)));
            elsewhere.owners.push((arena, places));
        }
        let mut numbers = self.shared.slot(slot);
        numbers.gathered = Some(self.all[0].arena.gather(&places, firsts));
        numbers.elsewhere = (!elsewhere.owners.is_empty()).then_some(elsewhere);
        self.all.iter().for_each(|owner| owner.words().begin_launched());
    }

    fn update(&mut self, slot: usize, step: &DeviceStep) {
        let mut numbers = self.shared.slot(slot);
        let SlotNumbers { gathered, gradients, elsewhere } = &mut *numbers;
        let (_, places) = gathered.take().expect("the batch was gathered");
        let gradients = gradients.take().expect("its gradients were computed");
        self.all[0].update(&places, &gradients, &step.precisions, step);
        self.all[0].words().begin_launched();
        let Some(Elsewhere { numbers, owners, leaving, .. }) = elsewhere.take() else { return };
        let gradients = leaving.expect("its gradients were computed")();
        let dim = self.all[0].arena.dim;
        let (mut numbers, mut gradients) = (&numbers[..], &gradients[..]);
        for (arena, places) in owners {
            let (own, of_own);
            (own, numbers) = numbers.split_at(places.len);
            (of_own, gradients) = gradients.split_at(places.len * dim);
            let kinds = DIRECT + 1;
            let precisions = own.iter().flat_map(|number| step.precisions.chunks_exact(kinds).nth(*number as usize));
            let precisions: Vec<f32> = precisions.flatten().copied().collect();
            let owner = &self.all[arena];
            owner.update(&places, &owner.words().upload(of_own), &precisions, step);
            owner.words().begin_launched();
        }
    }
}
