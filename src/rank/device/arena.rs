//! Rows of the cache in the memory of a device: they are put there, taken back, gathered for a batch, and moved along its gradients.
//!
//! Records are whole words, as the host has them: floats and a version. Sizes are arguments of a launch, so that a kernel is compiled
//! once for each optimiser. Addresses have 64 bits where 32 do not reach every word.

use burn_cubecl::CubeRuntime;
use cubecl::ir::AddressType;
use cubecl::prelude::*;

use crate::formulas::device::prior_share;
use crate::formulas::values::{adagrad, lazy_adam, rowwise_rate, sgd};
use crate::gpu::numbers::Numbers;
use crate::settings::RowOptimizer;
use crate::sparse::optimiser::ADAM_BETAS;
use crate::sparse::table::DIRECT;

/// Records in an arena.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Records {
    /// Rows of the batch.
    rows: usize,
    /// Floats of a row, and words of its record.
    dim: usize,
    width: usize,
    /// Places of the arena.
    capacity: usize,
}

/// Copies words to the records of places; one unit for each word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn put_kernel(words: &Array<u32>, places: &Array<u32>, arena: &mut Array<u32>, of: Records) {
    let row = ABSOLUTE_POS / of.width;
    if row >= of.rows {
        terminate!();
    }
    let to = places[row] as usize * of.width + ABSOLUTE_POS - row * of.width;
    arena[to] = words[ABSOLUTE_POS];
}

/// Copies the records of places; one unit for each word.
#[cube(launch_unchecked, address_type = "dynamic")]
fn take_kernel(arena: &Array<u32>, places: &Array<u32>, words: &mut Array<u32>, of: Records) {
    let row = ABSOLUTE_POS / of.width;
    if row >= of.rows {
        terminate!();
    }
    words[ABSOLUTE_POS] = arena[places[row] as usize * of.width + ABSOLUTE_POS - row * of.width];
}

/// Copies the rows of places, and of `firsts` for places beyond the arena; those beyond both are left as they are. One unit for each
/// float.
#[cube(launch_unchecked, address_type = "dynamic")]
fn gather_kernel(arena: &Array<u32>, places: &Array<u32>, firsts: &Array<f32>, rows: &mut Array<f32>, of: Records) {
    let row = ABSOLUTE_POS / of.dim;
    if row >= of.rows {
        terminate!();
    }
    let element = ABSOLUTE_POS - row * of.dim;
    let place = places[row] as usize;
    if place < of.capacity {
        rows[ABSOLUTE_POS] = f32::reinterpret(arena[place * of.width + element]);
    } else {
        let first = (place - of.capacity) * of.dim + element;
        if first < firsts.len() {
            rows[ABSOLUTE_POS] = firsts[first];
        }
    }
}

/// Moves rows along their gradients, which the prior's are added to; one unit for each row. `corrections` are those of the first
/// updates of lazy Adam.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
#[allow(clippy::collapsible_if, reason = "one is decided when the kernel is compiled")]
fn update_kernel(
    arena: &mut Array<u32>,
    places: &Array<u32>,
    gradients: &Array<f32>,
    precisions: &Array<f32>,
    corrections: &Array<f32>,
    of: Records,
    rate: f32,
    passes: f32,
    #[comptime] optimizer: u32,
    #[comptime] prior: bool,
) {
    let row = ABSOLUTE_POS;
    if row >= of.rows || places[row] as usize >= of.capacity {
        terminate!();
    }
    let record = places[row] as usize * of.width;
    let state = record + of.dim;
    let version = arena[record + of.width - 1];
    let share = prior_share(passes, f32::cast_from(version));
    let mut step = version;
    if version < u32::MAX {
        step = version + 1;
    }
    let mut row_rate = rate;
    let mut correction1 = f32::new(1.0);
    let mut correction2 = f32::new(1.0);
    if comptime!(optimizer == ROWWISE_ADAGRAD) {
        let mut square = f32::new(0.0);
        for e in 0..of.dim {
            let g = row_gradient(arena, gradients, precisions, row, record, e, of.dim, share, prior);
            square += g * g;
        }
        let sum = f32::reinterpret(arena[state]) + square / f32::cast_from(of.dim);
        arena[state] = u32::reinterpret(sum);
        row_rate = rowwise_rate(sum, rate);
    }
    if comptime!(optimizer == LAZY_ADAM) {
        // Not the double of the step, which 32 bits do not always hold.
        if step as usize <= corrections.len() / 2 {
            correction1 = corrections[(step as usize) * 2 - 2];
            correction2 = corrections[(step as usize) * 2 - 1];
        }
    }
    for e in 0..of.dim {
        let g = row_gradient(arena, gradients, precisions, row, record, e, of.dim, share, prior);
        let mut w = f32::reinterpret(arena[record + e]);
        if comptime!(optimizer == ADAGRAD) {
            let sum = f32::reinterpret(arena[state + e]) + g * g;
            arena[state + e] = u32::reinterpret(sum);
            w = adagrad(w, g, sum, rate);
        } else if comptime!(optimizer == LAZY_ADAM) {
            let first = f32::reinterpret(arena[state + e]) * ADAM_BETAS[0] + (1.0f32 - ADAM_BETAS[0]) * g;
            let second = f32::reinterpret(arena[state + of.dim + e]) * ADAM_BETAS[1] + (1.0f32 - ADAM_BETAS[1]) * g * g;
            arena[state + e] = u32::reinterpret(first);
            arena[state + of.dim + e] = u32::reinterpret(second);
            w = lazy_adam(w, first, second, rate, correction1, correction2);
        } else {
            w = sgd(w, g, row_rate);
        }
        arena[record + e] = u32::reinterpret(w);
    }
    arena[record + of.width - 1] = step;
}

/// Numbers of the optimisers in kernels ([`RowOptimizer::code`]).
const ADAGRAD: u32 = 1;
const ROWWISE_ADAGRAD: u32 = 2;
const LAZY_ADAM: u32 = 3;

/// The gradient of one element of a row, the prior's included.
#[cube]
#[allow(clippy::too_many_arguments, reason = "arrays cannot be put together")]
fn row_gradient(
    arena: &Array<u32>,
    gradients: &Array<f32>,
    precisions: &Array<f32>,
    row: usize,
    record: usize,
    element: usize,
    dim: usize,
    share: f32,
    #[comptime] prior: bool,
) -> f32 {
    let mut g = gradients[row * dim + element];
    if comptime!(prior) {
        let mut kind = element;
        if kind > DIRECT {
            kind = DIRECT;
        }
        g += precisions[row * comptime!(DIRECT + 1) + kind] * share * f32::reinterpret(arena[record + element]);
    }
    g
}

/// Records on the device: those of a cache, or the rows of a batch.
pub struct Arena<R: CubeRuntime> {
    pub words: Numbers<R>,
    pub dim: usize,
    /// Words of a record.
    pub width: usize,
    pub capacity: usize,
}

impl<R: CubeRuntime> Arena<R> {
    /// The rows of a batch, or their gradients, which are `dim` floats and nothing else.
    pub fn of_rows(words: Numbers<R>, dim: usize) -> Self {
        Self { capacity: words.len / dim, words, dim, width: dim }
    }

    fn records(&self, rows: usize) -> RecordsLaunch<R> {
        RecordsLaunch::new(rows, self.dim, self.width, self.capacity)
    }

    /// Addresses that reach every word.
    fn addresses(&self) -> AddressType {
        if u32::try_from(self.words.len).is_ok() { AddressType::U32 } else { AddressType::U64 }
    }

    fn check(&self, places: &[u32]) {
        assert!(places.iter().all(|place| (*place as usize) < self.capacity), "a place beyond the arena");
    }

    /// Copies records to places.
    pub fn put(&self, places: &[u32], words: &[u32]) {
        self.check(places);
        assert_eq!(words.len(), places.len() * self.width, "a record for each place");
        let (count, dim) = self.words.units(words.len());
        let (words, at) = (self.words.upload(words), self.words.upload(places));
        // SAFETY: places are within the arena, and there is a record for each.
        unsafe {
            put_kernel::launch_unchecked::<R>(
                &self.words.client,
                count,
                dim,
                self.addresses(),
                words.arg(),
                at.arg(),
                self.words.arg(),
                self.records(places.len()),
            );
        }
    }

    /// Copies the records of places into an array of their own.
    pub fn take(&self, places: &[u32]) -> Numbers<R> {
        self.check(places);
        let words = self.words.empty(places.len() * self.width);
        let at = self.words.upload(places);
        let (count, dim) = self.words.units(words.len);
        // SAFETY: places are within the arena, and the result has a record for each.
        unsafe {
            take_kernel::launch_unchecked::<R>(
                &self.words.client,
                count,
                dim,
                self.addresses(),
                self.words.arg(),
                at.arg(),
                words.arg(),
                self.records(places.len()),
            );
        }
        words
    }

    /// Copies the rows of places; those beyond the arena are in `firsts`, and those beyond both come later. Returns rows and places.
    pub fn gather(&self, places: &[u32], firsts: &[f32]) -> (Numbers<R>, Numbers<R>) {
        let end = self.capacity + firsts.len() / self.dim;
        assert!(places.iter().all(|place| *place as usize <= end), "a place beyond arena and first values");
        let rows = self.words.empty(places.len() * self.dim);
        let at = self.words.upload(places);
        // An array has at least one number.
        let firsts = self.words.upload(if firsts.is_empty() { &[0] } else { bytemuck::cast_slice(firsts) });
        let (count, dim) = self.words.units(rows.len);
        // SAFETY: only places within the arena and the first values are read, and the result has a row for each.
        unsafe {
            gather_kernel::launch_unchecked::<R>(
                &self.words.client,
                count,
                dim,
                self.addresses(),
                self.words.arg(),
                at.arg(),
                firsts.arg(),
                rows.arg(),
                self.records(places.len()),
            );
        }
        (rows, at)
    }

    /// Moves rows along their gradients; `places` are as [`gather`](Self::gather) gave them, those beyond the arena stay.
    pub fn update(
        &self,
        places: &Numbers<R>,
        gradients: &Numbers<R>,
        precisions: &[f32],
        corrections: &Numbers<R>,
        optimizer: RowOptimizer,
        [rate, passes]: [f32; 2],
    ) {
        let prior = !precisions.is_empty();
        assert!(gradients.len == places.len * self.dim, "a gradient for each row");
        assert!(!prior || precisions.len() == places.len * (DIRECT + 1), "precisions for each row");
        let precisions = if prior { self.words.upload(bytemuck::cast_slice(precisions)) } else { gradients.clone() };
        let (count, dim) = self.words.units(places.len);
        // SAFETY: units beyond the rows and places beyond the arena end; there is a gradient and a prior for each row.
        unsafe {
            update_kernel::launch_unchecked::<R>(
                &self.words.client,
                count,
                dim,
                self.addresses(),
                self.words.arg(),
                places.arg(),
                gradients.arg(),
                precisions.arg(),
                corrections.arg(),
                self.records(places.len),
                rate,
                passes,
                optimizer.code(),
                prior,
            );
        }
    }
}
