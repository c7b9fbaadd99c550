//! A batch between its layers: products of a sample's vectors, losses, and the gradients by dense vectors and rows.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::formulas::device::{logistic, poisson};
use crate::formulas::values::{clamped, clamped_slope, click_probability};
use crate::gpu::numbers::Numbers;
use crate::sparse::table::DIRECT;
use crate::values::net::HEADS;

use super::parameters::FINITE;

/// Numbers of a sample's losses: charge, click, weight.
pub const LOSSES: usize = 3;
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
