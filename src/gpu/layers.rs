//! Layers of networks: matrix products fused with the operations before and after them.
//!
//! Weights and bias of a layer are adjacent in the flat parameters, so a layer is one matrix whose additional last row is the
//! bias, and rows have a 1 after their inputs. Sizes and positions are arguments of a launch, so that a kernel is compiled once
//! for all networks and batches.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use super::numbers::Numbers;

/// Units of a cube in each direction.
const SIDE: usize = 16;
/// Terms of a sum that a cube processes at a time.
const DEPTH: usize = 16;
/// Maximum number of results of a unit in each direction.
const EACH: usize = 4;
/// A sum over rows is split into parts of at least [`PART`] rows, and into at most [`PARTS`] parts: four for each
/// multiprocessor of a large GPU, because one cube alone mostly waits for memory.
const PART: usize = 64;
const PARTS: usize = 512;
/// Columns, and units per column, of a cube that sums parts.
const SUM_COLUMNS: usize = 8;
const SUM_UNITS: usize = 32;

/// A product's sizes.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    rows: usize,
    /// Inputs of the layer, without the constant 1.
    inputs: usize,
    outputs: usize,
    /// Index of the first input in its array, and of the first weight in the parameters.
    inputs_at: usize,
    weights_at: usize,
}

/// Adds the product of two tiles to each unit's sums: `left` is `[DEPTH, SIDE EACH]`, `right` is `[DEPTH, SIDE columns]`, both
/// with a column of padding.
#[cube]
fn multiply(left: &SharedMemory<f32>, right: &SharedMemory<f32>, sums: &mut Array<f32>, #[comptime] columns: usize) {
    let (row, column) = (UNIT_POS as usize / SIDE, UNIT_POS as usize % SIDE);
    #[unroll]
    for l in 0..DEPTH {
        let mut rights = Array::<f32>::new(columns);
        #[unroll]
        for j in 0..columns {
            rights[j] = right[l * comptime!(SIDE * columns + 1) + column + j * SIDE];
        }
        #[unroll]
        for i in 0..EACH {
            let x = left[l * comptime!(SIDE * EACH + 1) + row + i * SIDE];
            #[unroll]
            for j in 0..columns {
                sums[i * columns + j] += x * rights[j];
            }
        }
    }
}

/// Computes a layer: `[rows, inputs]` to `[rows, outputs]`.
#[cube(launch_unchecked)]
fn layer_kernel(
    inputs: &Array<f32>,
    params: &Array<f32>,
    outputs: &mut Array<f32>,
    of: Sizes,
    #[comptime] rectify: bool,
    #[comptime] columns: usize,
) {
    let unit = UNIT_POS as usize;
    let first_row = CUBE_POS_X as usize * comptime!(SIDE * EACH);
    let first_column = CUBE_POS_Y as usize * comptime!(SIDE * columns);
    let mut left = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * EACH + 1)));
    let mut right = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * columns + 1)));
    let mut sums = Array::<f32>::new(comptime!(EACH * columns));
    #[unroll]
    for i in 0..comptime!(EACH * columns) {
        sums[i] = 0.0f32;
    }
    let mut from = 0usize;
    while from <= of.inputs {
        #[unroll]
        for i in 0..EACH {
            let (r, l) = (unit / DEPTH + i * SIDE, unit % DEPTH);
            let (row, input) = (first_row + r, from + l);
            let mut x = 0.0f32;
            if row < of.rows && input < of.inputs {
                x = inputs[of.inputs_at + row * of.inputs + input];
            }
            if input == of.inputs {
                x = f32::new(1.0);
            }
            left[l * comptime!(SIDE * EACH + 1) + r] = x;
        }
        #[unroll]
        for i in 0..columns {
            let at = unit + i * comptime!(SIDE * SIDE);
            let (l, c) = (at / comptime!(SIDE * columns), at % comptime!(SIDE * columns));
            let (input, column) = (from + l, first_column + c);
            let mut weight = 0.0f32;
            if input <= of.inputs && column < of.outputs {
                weight = params[of.weights_at + input * of.outputs + column];
            }
            right[l * comptime!(SIDE * columns + 1) + c] = weight;
        }
        sync_cube();
        multiply(&left, &right, &mut sums, columns);
        sync_cube();
        from += DEPTH;
    }
    #[unroll]
    for i in 0..EACH {
        #[unroll]
        for j in 0..columns {
            let row = first_row + unit / SIDE + i * SIDE;
            let column = first_column + unit % SIDE + j * SIDE;
            if row < of.rows && column < of.outputs {
                let mut sum = sums[i * columns + j];
                if comptime!(rectify) && sum < 0.0 {
                    sum = 0.0f32;
                }
                outputs[row * of.outputs + column] = sum;
            }
        }
    }
}

/// Back-propagates through a layer: gradients by its outputs `[rows, outputs]` to those by its inputs `[rows, inputs]`; 0 where
/// the rectifier of the inputs, given in `rectified`, was closed.
#[cube(launch_unchecked)]
#[allow(clippy::collapsible_if, reason = "one is decided when the kernel is compiled")]
fn back_kernel(
    by: &Array<f32>,
    params: &Array<f32>,
    rectified: &Array<f32>,
    by_inputs: &mut Array<f32>,
    of: Sizes,
    #[comptime] mask: bool,
    #[comptime] columns: usize,
) {
    let unit = UNIT_POS as usize;
    let first_row = CUBE_POS_X as usize * comptime!(SIDE * EACH);
    let first_column = CUBE_POS_Y as usize * comptime!(SIDE * columns);
    let mut left = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * EACH + 1)));
    let mut right = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * columns + 1)));
    let mut sums = Array::<f32>::new(comptime!(EACH * columns));
    #[unroll]
    for i in 0..comptime!(EACH * columns) {
        sums[i] = 0.0f32;
    }
    let mut from = 0usize;
    while from < of.outputs {
        let l = unit % DEPTH;
        let output = from + l;
        #[unroll]
        for i in 0..EACH {
            let r = unit / DEPTH + i * SIDE;
            let mut x = 0.0f32;
            if first_row + r < of.rows && output < of.outputs {
                x = by[(first_row + r) * of.outputs + output];
            }
            left[l * comptime!(SIDE * EACH + 1) + r] = x;
        }
        #[unroll]
        for j in 0..columns {
            let c = unit / DEPTH + j * SIDE;
            let mut weight = 0.0f32;
            if first_column + c < of.inputs && output < of.outputs {
                weight = params[of.weights_at + (first_column + c) * of.outputs + output];
            }
            right[l * comptime!(SIDE * columns + 1) + c] = weight;
        }
        sync_cube();
        multiply(&left, &right, &mut sums, columns);
        sync_cube();
        from += DEPTH;
    }
    #[unroll]
    for i in 0..EACH {
        #[unroll]
        for j in 0..columns {
            let row = first_row + unit / SIDE + i * SIDE;
            let column = first_column + unit % SIDE + j * SIDE;
            if row < of.rows && column < of.inputs {
                let at = row * of.inputs + column;
                let mut sum = sums[i * columns + j];
                if comptime!(mask) {
                    if rectified[at] <= 0.0 {
                        sum = 0.0f32;
                    }
                }
                by_inputs[at] = sum;
            }
        }
    }
}

/// Computes gradients by a layer's weights and bias, `[inputs + 1, outputs]`, summed over a part of the rows: `[part, all]`,
/// from `weights_at` on.
#[cube(launch_unchecked)]
fn weights_kernel(
    inputs: &Array<f32>,
    by: &Array<f32>,
    parts: &mut Array<f32>,
    of: Sizes,
    part_rows: usize,
    all: usize,
    #[comptime] columns: usize,
) {
    let unit = UNIT_POS as usize;
    let first_input = CUBE_POS_X as usize * comptime!(SIDE * EACH);
    let first_column = CUBE_POS_Y as usize * comptime!(SIDE * columns);
    let part = CUBE_POS_Z as usize;
    let mut left = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * EACH + 1)));
    let mut right = SharedMemory::<f32>::new(comptime!(DEPTH * (SIDE * columns + 1)));
    let mut sums = Array::<f32>::new(comptime!(EACH * columns));
    #[unroll]
    for i in 0..comptime!(EACH * columns) {
        sums[i] = 0.0f32;
    }
    let mut from = part * part_rows;
    let mut end = from + part_rows;
    if end > of.rows {
        end = of.rows;
    }
    while from < end {
        #[unroll]
        for i in 0..EACH {
            let at = unit + i * comptime!(SIDE * SIDE);
            let (l, r) = (at / comptime!(SIDE * EACH), at % comptime!(SIDE * EACH));
            let (row, input) = (from + l, first_input + r);
            let mut x = 0.0f32;
            if row < end && input < of.inputs {
                x = inputs[of.inputs_at + row * of.inputs + input];
            }
            if row < end && input == of.inputs {
                x = f32::new(1.0);
            }
            left[l * comptime!(SIDE * EACH + 1) + r] = x;
        }
        #[unroll]
        for i in 0..columns {
            let at = unit + i * comptime!(SIDE * SIDE);
            let (l, c) = (at / comptime!(SIDE * columns), at % comptime!(SIDE * columns));
            let (row, column) = (from + l, first_column + c);
            let mut x = 0.0f32;
            if row < end && column < of.outputs {
                x = by[row * of.outputs + column];
            }
            right[l * comptime!(SIDE * columns + 1) + c] = x;
        }
        sync_cube();
        multiply(&left, &right, &mut sums, columns);
        sync_cube();
        from += DEPTH;
    }
    #[unroll]
    for i in 0..EACH {
        #[unroll]
        for j in 0..columns {
            let input = first_input + unit / SIDE + i * SIDE;
            let column = first_column + unit % SIDE + j * SIDE;
            if input <= of.inputs && column < of.outputs {
                parts[part * all + of.weights_at + input * of.outputs + column] = sums[i * columns + j];
            }
        }
    }
}

/// Sums `[parts, all]` over the parts: each unit of a column takes every [`SUM_UNITS`]th part.
#[cube(launch_unchecked)]
fn sum_kernel(parts: &Array<f32>, out: &mut Array<f32>) {
    let column = UNIT_POS as usize % SUM_COLUMNS;
    let unit = UNIT_POS as usize / SUM_COLUMNS;
    let i = CUBE_POS * SUM_COLUMNS + column;
    let mut shared = SharedMemory::<f32>::new(comptime!(SUM_COLUMNS * SUM_UNITS));
    let mut sum = 0.0f32;
    if i < out.len() {
        let mut at = unit * out.len() + i;
        while at < parts.len() {
            sum += parts[at];
            at += SUM_UNITS * out.len();
        }
    }
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    if unit == 0 && i < out.len() {
        let mut sum = 0.0f32;
        #[unroll]
        for unit in 0..SUM_UNITS {
            sum += shared[unit * SUM_COLUMNS + column];
        }
        out[i] = sum;
    }
}

/// Returns the number of results of a unit along `columns` columns.
fn each(columns: usize) -> usize {
    match columns.div_ceil(SIDE) {
        1 => 1,
        2 => 2,
        _ => EACH,
    }
}

/// Returns the cubes and units of a product with this number of results.
fn tiles(rows: usize, columns: usize, parts: usize) -> (CubeCount, CubeDim) {
    let (x, y) = (rows.div_ceil(SIDE * EACH), columns.div_ceil(SIDE * each(columns)));
    (CubeCount::Static(x as u32, y as u32, parts as u32), CubeDim::new_1d((SIDE * SIDE) as u32))
}

/// A layer in the flat parameters.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    pub inputs: usize,
    pub outputs: usize,
    /// Index of the first weight; the bias is behind the weights.
    pub at: usize,
}

impl Layer {
    fn sizes<R: CubeRuntime>(self, rows: usize, inputs_at: usize, weights_at: usize) -> SizesLaunch<R> {
        SizesLaunch::new(rows, self.inputs, self.outputs, inputs_at, weights_at)
    }

    /// Computes the layer for `rows` rows of inputs, from index `at` on in `x`: `[rows, outputs]`.
    pub fn forward<R: CubeRuntime>(
        self,
        params: &Numbers<R>,
        (x, at): (&Numbers<R>, usize),
        rows: usize,
        rectify: bool,
    ) -> Numbers<R> {
        assert!(x.len >= at + rows * self.inputs, "rows that are not there");
        let outputs = params.empty(rows * self.outputs);
        let (count, dim) = tiles(rows, self.outputs, 1);
        // SAFETY: units access only rows, inputs and outputs within the layer's sizes, which its arrays have.
        unsafe {
            layer_kernel::launch_unchecked::<R>(
                &params.client,
                count,
                dim,
                x.arg(),
                params.arg(),
                outputs.arg(),
                self.sizes(rows, at, self.at),
                rectify,
                each(self.outputs),
            );
        }
        outputs
    }

    /// Computes the gradients by the layer's inputs from those `by` its outputs: `[rows, inputs]`, 0 where the rectifier of the
    /// inputs, given in `rectified`, was closed.
    pub fn back<R: CubeRuntime>(
        self,
        params: &Numbers<R>,
        by: &Numbers<R>,
        rows: usize,
        rectified: Option<&Numbers<R>>,
    ) -> Numbers<R> {
        assert!(by.len >= rows * self.outputs, "rows that are not there");
        let by_inputs = by.empty(rows * self.inputs);
        let (count, dim) = tiles(rows, self.inputs, 1);
        // SAFETY: units access only rows, inputs and outputs within the layer's sizes, which its arrays have.
        unsafe {
            back_kernel::launch_unchecked::<R>(
                &by.client,
                count,
                dim,
                by.arg(),
                params.arg(),
                rectified.unwrap_or(by).arg(),
                by_inputs.arg(),
                self.sizes(rows, 0, self.at),
                rectified.is_some(),
                each(self.inputs),
            );
        }
        by_inputs
    }
}

/// Gradients by the parameters of a network, each part summed over a part of the rows: `[parts, all]`.
pub struct Parts<R: CubeRuntime> {
    pub numbers: Numbers<R>,
    /// Rows of a part.
    pub rows: usize,
    count: usize,
    all: usize,
}

impl<R: CubeRuntime> Parts<R> {
    /// Allocates parts of `rows` rows for `all` parameters, on the device of `beside`.
    pub fn new(beside: &Numbers<R>, rows: usize, all: usize) -> Self {
        let part_rows = rows.div_ceil((rows / PART).clamp(1, PARTS));
        let count = rows.div_ceil(part_rows);
        Self { numbers: beside.empty(count * all), rows: part_rows, count, all }
    }

    /// Writes the part of a layer: its `inputs` `[rows, inputs]` lie from index `at` on, `by` are the gradients by its outputs.
    pub fn add(&self, layer: Layer, (inputs, at): (&Numbers<R>, usize), by: &Numbers<R>, rows: usize) {
        assert!(inputs.len >= at + rows * layer.inputs && by.len >= rows * layer.outputs, "rows that are not there");
        let (count, dim) = tiles(layer.inputs + 1, layer.outputs, self.count);
        // SAFETY: units access only rows, inputs and outputs within the layer's sizes; every part has room for all parameters.
        unsafe {
            weights_kernel::launch_unchecked::<R>(
                &by.client,
                count,
                dim,
                inputs.arg(),
                by.arg(),
                self.numbers.arg(),
                layer.sizes(rows, at, layer.at),
                self.rows,
                self.all,
                each(layer.outputs),
            );
        }
    }

    /// Sums the parts: the gradient by all parameters.
    pub fn sum(self) -> Numbers<R> {
        sum(&self.numbers, self.all)
    }
}

/// Sums `[parts, all]` over the parts.
pub fn sum<R: CubeRuntime>(parts: &Numbers<R>, all: usize) -> Numbers<R> {
    let sum = parts.empty(all);
    let cubes = CubeCount::Static(all.div_ceil(SUM_COLUMNS) as u32, 1, 1);
    // SAFETY: units beyond the result write nothing.
    unsafe {
        let dim = CubeDim::new_1d((SUM_COLUMNS * SUM_UNITS) as u32);
        sum_kernel::launch_unchecked::<R>(&sum.client, cubes, dim, parts.arg(), sum.arg());
    }
    sum
}
