//! Kernels of the value model: rows of the cache, the interaction of a sample's vectors, losses, and the optimisers.
//!
//! Sizes and positions are arguments of a launch. Records of rows are whole words, as the host has them: floats and a version.

use burn_cubecl::CubeRuntime;
use cubecl::ir::AddressType;
use cubecl::prelude::*;

use crate::formulas::device::{logistic, poisson, prior_share};
use crate::formulas::shared::{AdamFactors, AdamParameter, adam};
use crate::formulas::values::{adagrad, clamped, clamped_slope, click_probability, lazy_adam, rowwise_rate, sgd};
use crate::gpu::numbers::Numbers;
use crate::settings::RowOptimizer;
use crate::sparse::optimiser::ADAM_BETAS;
use crate::sparse::table::DIRECT;
use crate::values::net::HEADS;

/// Numbers of a sample's losses: charge, click, weight.
pub const LOSSES: usize = 3;
/// Largest number that is finite.
const FINITE: f32 = f32::MAX;

/// Sizes of a batch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    samples: usize,
    fields: usize,
    /// Floats of a row, and those of them that take part in products.
    dim: usize,
    product: usize,
    /// Pairs of vectors of a sample.
    pairs: usize,
}

/// Sizes of a batch, on the host.
#[derive(Debug, Clone, Copy)]
pub struct BatchSizes {
    pub samples: usize,
    pub fields: usize,
    pub dim: usize,
}

impl BatchSizes {
    fn product(self) -> usize {
        self.dim - DIRECT
    }

    fn pairs(self) -> usize {
        (self.fields + 1) * self.fields / 2
    }

    fn launched<R: CubeRuntime>(self) -> SizesLaunch<R> {
        SizesLaunch::new(self.samples, self.fields, self.dim, self.product(), self.pairs())
    }
}

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

/// Copies the rows of places, and of `firsts` for places beyond the arena; one unit for each float.
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
        rows[ABSOLUTE_POS] = firsts[(place - of.capacity) * of.dim + element];
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
        if (step as usize) * 2 <= corrections.len() {
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

/// Writes the inputs of the layers above the products: each sample's dense vector, then the products of its vectors in pairs; one
/// unit for each number. Vector 0 is the dense one; pairs are in the order (1, 0), (2, 0), (2, 1), (3, 0), ..
#[cube(launch_unchecked)]
fn products_kernel(b: &Array<f32>, rows: &Array<f32>, inverse: &Array<u32>, top: &mut Array<f32>, of: Sizes) {
    let width = of.product + of.pairs;
    let sample = ABSOLUTE_POS / width;
    if sample >= of.samples {
        terminate!();
    }
    let column = ABSOLUTE_POS - sample * width;
    let mut value = f32::new(0.0);
    if column < of.product {
        value = b[sample * of.product + column];
    } else {
        let mut i = 1usize;
        let mut j = column - of.product;
        while j >= i {
            j -= i;
            i += 1;
        }
        let left = inverse[sample * of.fields + i - 1] as usize * of.dim + DIRECT;
        if j == 0 {
            for e in 0..of.product {
                value += rows[left + e] * b[sample * of.product + e];
            }
        } else {
            let right = inverse[sample * of.fields + j - 1] as usize * of.dim + DIRECT;
            for e in 0..of.product {
                value += rows[left + e] * rows[right + e];
            }
        }
    }
    top[ABSOLUTE_POS] = value;
}

/// Constants of the losses.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct LossConstants {
    /// One over the samples of the batch.
    pub scale: f32,
    pub dispersion: f32,
    /// Limit of a correction.
    pub limit: f32,
}

/// Computes the gradients by the corrections, to which each row adds its direct elements, and the losses; one unit for each sample.
/// `data` are the columns of the batch: predicted, logit, charged, weight, auction, clicked, from `data_at` on.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn loss_kernel(
    data: &Array<f32>,
    out: &Array<f32>,
    rows: &Array<f32>,
    inverse: &Array<u32>,
    by_out: &mut Array<f32>,
    losses: &mut Array<f32>,
    of: Sizes,
    data_at: usize,
    by: LossConstants,
) {
    let s = ABSOLUTE_POS;
    if s >= of.samples {
        terminate!();
    }
    let mut c_raw = out[s * HEADS];
    let mut q_raw = out[s * HEADS + 1];
    for field in 0..of.fields {
        let row = inverse[s * of.fields + field] as usize * of.dim;
        c_raw += rows[row];
        q_raw += rows[row + 1];
    }
    let predicted = data[data_at + s];
    let logit = data[data_at + of.samples + s];
    let charged = data[data_at + 2 * of.samples + s];
    let weight = data[data_at + 3 * of.samples + s];
    let auction = data[data_at + 4 * of.samples + s];
    let clicked = data[data_at + 5 * of.samples + s];
    let c = clamped(c_raw, by.limit);
    let q = clamped(q_raw, by.limit);
    let mut charge_loss = f32::new(0.0);
    let mut charge_slope = f32::new(0.0);
    if auction > 0.0 && predicted > 0.0 {
        let expected = predicted * c.exp();
        charge_loss = weight * poisson(charged, expected) / by.dispersion;
        charge_slope = weight * by.scale * (expected - charged) / by.dispersion;
    }
    let click_slope = weight * by.scale * (click_probability(logit + q) - clicked);
    by_out[s * HEADS] = clamped_slope(charge_slope, c_raw, c);
    by_out[s * HEADS + 1] = clamped_slope(click_slope, q_raw, q);
    losses[s * LOSSES] = charge_loss;
    losses[s * LOSSES + 1] = weight * logistic(clicked, logit + q);
    losses[s * LOSSES + 2] = weight;
}

/// Place of the pair of two vectors among a sample's pairs.
#[cube]
fn pair(a: usize, b: usize) -> usize {
    let mut large = a;
    let mut small = b;
    if b > a {
        large = b;
        small = a;
    }
    large * (large - 1) / 2 + small
}

/// Computes the gradient of each sample's dense vector, 0 where its rectifier was closed; one unit for each number.
#[cube(launch_unchecked)]
fn dense_kernel(
    b: &Array<f32>,
    rows: &Array<f32>,
    inverse: &Array<u32>,
    by_top: &Array<f32>,
    by_b: &mut Array<f32>,
    of: Sizes,
) {
    let sample = ABSOLUTE_POS / of.product;
    if sample >= of.samples {
        terminate!();
    }
    let element = ABSOLUTE_POS - sample * of.product;
    let top = sample * (of.product + of.pairs);
    let mut sum = by_top[top + element];
    for field in 0..of.fields {
        let row = inverse[sample * of.fields + field] as usize * of.dim + DIRECT;
        sum += by_top[top + of.product + pair(field + 1, 0)] * rows[row + element];
    }
    if b[ABSOLUTE_POS] <= 0.0 {
        sum = f32::new(0.0);
    }
    by_b[ABSOLUTE_POS] = sum;
}

/// Computes what each occurrence of an id adds to the gradient of its row: `[samples, fields, dim]`; one unit for each number.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
fn occurrence_kernel(
    b: &Array<f32>,
    rows: &Array<f32>,
    inverse: &Array<u32>,
    by_top: &Array<f32>,
    by_out: &Array<f32>,
    occurrences: &mut Array<f32>,
    of: Sizes,
) {
    let place = ABSOLUTE_POS / of.dim;
    let sample = place / of.fields;
    if sample >= of.samples {
        terminate!();
    }
    let element = ABSOLUTE_POS - place * of.dim;
    let mut sum = f32::new(0.0);
    if element < DIRECT {
        sum += by_out[sample * HEADS + element];
    } else {
        let vector = place - sample * of.fields + 1;
        let top = sample * (of.product + of.pairs) + of.product;
        sum += by_top[top + pair(vector, 0)] * b[sample * of.product + element - DIRECT];
        for field in 0..of.fields {
            if field + 1 != vector {
                let row = inverse[sample * of.fields + field] as usize * of.dim;
                sum += by_top[top + pair(vector, field + 1)] * rows[row + element];
            }
        }
    }
    occurrences[ABSOLUTE_POS] = sum;
}

/// Sums numbers by stretches: `[stretches, dim]` of `[.., dim]`; one unit for each sum. `starts` has the first of each stretch and
/// the end of the last one, from `starts_at` on; they are places in `order`, from `order_at` on, if `ordered`.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a launch has no other way to name its arrays")]
#[allow(clippy::collapsible_if, reason = "one is decided when the kernel is compiled")]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is not finite either")]
fn stretch_kernel(
    numbers: &Array<f32>,
    index: &Array<u32>,
    sums: &mut Array<f32>,
    bad: &mut Array<f32>,
    stretches: usize,
    dim: usize,
    starts_at: usize,
    order_at: usize,
    #[comptime] ordered: bool,
) {
    let stretch = ABSOLUTE_POS / dim;
    if stretch >= stretches {
        terminate!();
    }
    let element = ABSOLUTE_POS - stretch * dim;
    let mut i = index[starts_at + stretch] as usize;
    let end = index[starts_at + stretch + 1] as usize;
    let mut sum = f32::new(0.0);
    while i < end {
        if comptime!(ordered) {
            sum += numbers[index[order_at + i] as usize * dim + element];
        } else {
            sum += numbers[i * dim + element];
        }
        i += 1;
    }
    sums[ABSOLUTE_POS] = sum;
    if comptime!(!ordered) {
        // Whoever writes it writes the same.
        if !(sum.abs() <= FINITE) {
            bad[0] = f32::new(1.0);
        }
    }
}

/// Does a step of Adam in place; one unit for each parameter.
#[cube(launch_unchecked)]
#[allow(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is not finite either")]
fn adam_kernel(
    gradient: &Array<f32>,
    params: &mut Array<f32>,
    first: &mut Array<f32>,
    second: &mut Array<f32>,
    bad: &mut Array<f32>,
    by: AdamFactors,
) {
    let i = ABSOLUTE_POS;
    if i >= gradient.len() {
        terminate!();
    }
    let g = gradient[i];
    if !(g.abs() <= FINITE) {
        bad[0] = f32::new(1.0);
    }
    let old = AdamParameter { param: params[i], follower: params[i], first: first[i], second: second[i] };
    let new = adam(g, &old, &by);
    params[i] = new.param;
    first[i] = new.first;
    second[i] = new.second;
}

/// Records of a cache on the device.
pub struct Arena<R: CubeRuntime> {
    pub words: Numbers<R>,
    pub dim: usize,
    /// Words of a record.
    pub width: usize,
    pub capacity: usize,
}

impl<R: CubeRuntime> Arena<R> {
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

    /// Copies the rows of places; those beyond the arena are in `firsts`. Returns rows and places.
    pub fn gather(&self, places: &[u32], firsts: &[f32]) -> (Numbers<R>, Numbers<R>) {
        let end = self.capacity + firsts.len() / self.dim;
        assert!(places.iter().all(|place| (*place as usize) < end), "a place beyond arena and first values");
        let rows = self.words.empty(places.len() * self.dim);
        let at = self.words.upload(places);
        // An array has at least one number.
        let firsts = self.words.upload(if firsts.is_empty() { &[0] } else { bytemuck::cast_slice(firsts) });
        let (count, dim) = self.words.units(rows.len);
        // SAFETY: places are within the arena and the first values, and the result has a row for each.
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

/// A batch's arrays on the device.
pub struct Interaction<'a, R: CubeRuntime> {
    pub sizes: BatchSizes,
    /// Dense vectors, `[samples, product]`.
    pub b: &'a Numbers<R>,
    /// Rows of the unique ids, `[unique, dim]`.
    pub rows: &'a Numbers<R>,
    /// Place of each sample's ids among the unique ones, `[samples, fields]`.
    pub inverse: &'a Numbers<R>,
}

impl<R: CubeRuntime> Interaction<'_, R> {
    fn check(&self) {
        let BatchSizes { samples, fields, .. } = self.sizes;
        assert!(self.b.len >= samples * self.sizes.product() && self.inverse.len >= samples * fields);
    }

    /// Computes the inputs of the layers above the products, `[samples, product + pairs]`.
    pub fn products(&self) -> Numbers<R> {
        self.check();
        let top = self.b.empty(self.sizes.samples * (self.sizes.product() + self.sizes.pairs()));
        let (count, dim) = self.b.units(top.len);
        // SAFETY: a number for each unit; places in `inverse` are among the rows, which the look-up made.
        unsafe {
            products_kernel::launch_unchecked::<R>(
                &self.b.client,
                count,
                dim,
                self.b.arg(),
                self.rows.arg(),
                self.inverse.arg(),
                top.arg(),
                self.sizes.launched(),
            );
        }
        top
    }

    /// Computes the gradients by the corrections, `[samples, 2]`, and the losses, `[samples, 3]`; the columns of the batch lie in
    /// `data` from `data_at` on.
    pub fn losses(
        &self,
        (data, data_at): (&Numbers<R>, usize),
        out: &Numbers<R>,
        by: LossConstants,
    ) -> (Numbers<R>, Numbers<R>) {
        self.check();
        let samples = self.sizes.samples;
        assert!(data.len >= data_at + 6 * samples && out.len >= HEADS * samples, "columns of a batch");
        let (by_out, losses) = (out.empty(samples * HEADS), out.empty(samples * LOSSES));
        let (count, dim) = out.units(samples);
        let by = LossConstantsLaunch::new(by.scale, by.dispersion, by.limit);
        // SAFETY: as above; units beyond the samples end.
        unsafe {
            loss_kernel::launch_unchecked::<R>(
                &out.client,
                count,
                dim,
                data.arg(),
                out.arg(),
                self.rows.arg(),
                self.inverse.arg(),
                by_out.arg(),
                losses.arg(),
                self.sizes.launched(),
                data_at,
                by,
            );
        }
        (by_out, losses)
    }

    /// Computes the gradients by the dense vectors, behind their rectifier.
    pub fn back_dense(&self, by_top: &Numbers<R>) -> Numbers<R> {
        self.check();
        let by_b = self.b.empty(self.sizes.samples * self.sizes.product());
        let (count, dim) = self.b.units(by_b.len);
        // SAFETY: as above.
        unsafe {
            dense_kernel::launch_unchecked::<R>(
                &self.b.client,
                count,
                dim,
                self.b.arg(),
                self.rows.arg(),
                self.inverse.arg(),
                by_top.arg(),
                by_b.arg(),
                self.sizes.launched(),
            );
        }
        by_b
    }

    /// Computes the gradients by the rows, `[unique, dim]`. `index` are the places of the occurrences, the starts of the chunks from
    /// `chunks_at` on, and the first chunks of the rows from `rows_at` on. A number that is not finite is noted in `bad`.
    pub fn back_rows(
        &self,
        (by_top, by_out): (&Numbers<R>, &Numbers<R>),
        (index, chunks_at, rows_at): (&Numbers<R>, usize, usize),
        bad: &Numbers<R>,
    ) -> Numbers<R> {
        self.check();
        let BatchSizes { samples, fields, dim } = self.sizes;
        let occurrences = self.b.empty(samples * fields * dim);
        let (count, cube) = self.b.units(occurrences.len);
        // SAFETY: as above.
        unsafe {
            occurrence_kernel::launch_unchecked::<R>(
                &self.b.client,
                count,
                cube,
                self.b.arg(),
                self.rows.arg(),
                self.inverse.arg(),
                by_top.arg(),
                by_out.arg(),
                occurrences.arg(),
                self.sizes.launched(),
            );
        }
        let (chunks, unique) = (rows_at - chunks_at - 1, self.rows.len / dim);
        assert_eq!(index.len, rows_at + unique + 1, "an order of other rows");
        let of_chunks = self.b.empty(chunks * dim);
        let sum = |numbers: &Numbers<R>, sums: &Numbers<R>, stretches: usize, starts_at: usize, ordered: bool| {
            let (count, cube) = sums.units(sums.len);
            // SAFETY: stretches are within what is summed: the order was made for these occurrences.
            unsafe {
                stretch_kernel::launch_unchecked::<R>(
                    &sums.client,
                    count,
                    cube,
                    numbers.arg(),
                    index.arg(),
                    sums.arg(),
                    bad.arg(),
                    stretches,
                    dim,
                    starts_at,
                    0,
                    ordered,
                );
            }
        };
        sum(&occurrences, &of_chunks, chunks, chunks_at, true);
        let by_rows = self.b.empty(unique * dim);
        sum(&of_chunks, &by_rows, unique, rows_at, false);
        by_rows
    }
}

/// Parameters with their moments.
pub struct Parameters<R: CubeRuntime> {
    pub params: Numbers<R>,
    pub first: Numbers<R>,
    pub second: Numbers<R>,
}

impl<R: CubeRuntime> Parameters<R> {
    /// Does a step along a gradient; one that is not finite is noted in `bad`.
    pub fn step(&self, gradient: &Numbers<R>, by: AdamFactors, bad: &Numbers<R>) {
        assert_eq!(gradient.len, self.params.len, "a gradient of other parameters");
        let (count, dim) = gradient.units(gradient.len);
        // SAFETY: units beyond the arrays, which have one length, end.
        unsafe {
            adam_kernel::launch_unchecked::<R>(
                &gradient.client,
                count,
                dim,
                gradient.arg(),
                self.params.arg(),
                self.first.arg(),
                self.second.arg(),
                bad.arg(),
                by.launched(),
            );
        }
    }
}
