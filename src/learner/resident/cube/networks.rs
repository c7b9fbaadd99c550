//! Forward and backward passes: matrix products fused with the operations before and after them.
//!
//! Weights and bias of a layer are adjacent in the flat parameters, so a layer is one matrix whose additional last row is the
//! bias, and rows have a 1 after their inputs.

use std::ops::Range;

use burn::tensor::Tensor;
use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::env::FEATURES;
use crate::learner::tensor_net::Flat;

use super::super::super::networks::Networks;
use super::super::layout::Layout;
use super::embeddings;
use super::numbers::{Cube, Numbers};
use super::update::Update;

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
struct Layer {
    inputs: usize,
    outputs: usize,
    at: usize,
}

impl Layer {
    /// The three layers of a network.
    fn all(flat: &Flat) -> [Self; 3] {
        let layers = &flat.parts[flat.shape.tables.len()..];
        let layer = |i: usize| {
            let (weights, bias) = (&layers[2 * i], &layers[2 * i + 1]);
            assert_eq!(weights.range().end, bias.at, "the bias lies behind the weights");
            Self { inputs: weights.rows, outputs: weights.columns, at: weights.at }
        };
        [layer(0), layer(1), layer(2)]
    }

    fn sizes<R: CubeRuntime>(self, rows: usize, inputs_at: usize, weights_at: usize) -> SizesLaunch<R> {
        SizesLaunch::new(rows, self.inputs, self.outputs, inputs_at, weights_at)
    }
}

/// Positions of rows in a segment: their features, and their ids.
struct RowFields {
    features: Range<usize>,
    ids: Range<usize>,
}

impl RowFields {
    fn states(layout: &Layout) -> Self {
        Self { features: layout.states.clone(), ids: layout.state_ids.clone() }
    }

    fn after(layout: &Layout) -> Self {
        Self { features: layout.after.clone(), ids: layout.after_ids.clone() }
    }

    fn last(layout: &Layout) -> Self {
        Self { features: layout.last.clone(), ids: layout.last_ids.clone() }
    }

    fn actor(layout: &Layout) -> Self {
        Self { features: layout.actor.clone(), ids: layout.actor_ids.clone() }
    }
}

/// Rows to infer, in an array.
struct Inputs<R: CubeRuntime> {
    numbers: Numbers<R>,
    at: usize,
    rows: usize,
}

/// Activations of rows in a network.
pub struct Pass<R: CubeRuntime> {
    inputs: Inputs<R>,
    first: Numbers<R>,
    second: Numbers<R>,
    pub outputs: Numbers<R>,
}

fn pass<R: CubeRuntime>(flat: &Flat, params: &Numbers<R>, inputs: Inputs<R>) -> Pass<R> {
    let rows = inputs.rows;
    let layer = |x: &Numbers<R>, at: usize, layer: Layer, rectify: bool| {
        assert!(x.len >= at + rows * layer.inputs, "rows that are not there");
        let outputs = params.empty(rows * layer.outputs);
        let (count, dim) = tiles(rows, layer.outputs, 1);
        // SAFETY: units access only rows, inputs and outputs within the layer's sizes, which its arrays have.
        unsafe {
            layer_kernel::launch_unchecked::<R>(
                &params.client,
                count,
                dim,
                x.arg(),
                params.arg(),
                outputs.arg(),
                layer.sizes(rows, at, layer.at),
                rectify,
                each(layer.outputs),
            );
        }
        outputs
    };
    let [l1, l2, l3] = Layer::all(flat);
    let first = layer(&inputs.numbers, inputs.at, l1, true);
    let second = layer(&first, 0, l2, true);
    let outputs = layer(&second, 0, l3, false);
    Pass { inputs, first, second, outputs }
}

/// Outputs of the networks for a batch.
pub struct Passes<R: CubeRuntime> {
    /// The critic before each step, then after each display.
    pub critic: Pass<R>,
    /// The target critic after each segment.
    pub last: Pass<R>,
    pub actor: Pass<R>,
}

/// Gradients by the networks' outputs.
pub struct ByOutputs<R: CubeRuntime> {
    /// Gradients by the critic's outputs before each step.
    pub states: Numbers<R>,
    pub actor: Numbers<R>,
}

/// Returns the input rows of a network from a range of features.
fn inputs<R: CubeRuntime>(update: &Update<R>, (flat, params): (&Flat, &Numbers<R>), fields: RowFields) -> Inputs<R> {
    let segments = update.segments();
    let rows = segments * fields.features.len() / FEATURES;
    let batch = update.batch;
    let at = segments * fields.features.start;
    if flat.shape.tables.is_empty() {
        return Inputs { numbers: batch.clone(), at, rows };
    }
    Inputs { numbers: embeddings::rows(flat, params, batch, (at, segments * fields.ids.start), rows), at: 0, rows }
}

/// Infers a batch.
pub fn infer<R: CubeRuntime>(update: &Update<R>) -> Passes<R> {
    let layout = update.layout;
    let Networks { actor_flat, critic_flat, actor, critic } = update.networks;
    let through = |flat: &Flat, params: &Tensor<Cube<R>, 1>, fields: RowFields| {
        let params = Numbers::of(params);
        pass(flat, &params, inputs(update, (flat, &params), fields))
    };
    // The rows before each step and after each display are adjacent.
    let (states, after) = (RowFields::states(layout), RowFields::after(layout));
    let both = RowFields { features: states.features.start..after.features.end, ids: states.ids.start..after.ids.end };
    Passes {
        critic: through(critic_flat, &critic.at.params, both),
        last: through(critic_flat, &critic.at.follower, RowFields::last(layout)),
        actor: through(actor_flat, &actor.at.params, RowFields::actor(layout)),
    }
}

/// A gradient by the parameters of a network.
type Gradient<R> = Tensor<Cube<R>, 1>;

/// Returns the gradients by the parameters of a network; `by` are those by the outputs of the first rows of a pass, whose ids
/// begin at `ids_at` in the batch.
fn gradients<R: CubeRuntime>(
    (flat, params): (&Flat, &Tensor<Cube<R>, 1>),
    pass: &Pass<R>,
    by: &Numbers<R>,
    (batch, ids_at): (&Numbers<R>, usize),
) -> Gradient<R> {
    let net = Numbers::of(params);
    let layers = Layer::all(flat);
    let rows = by.len / flat.shape.outputs;
    let through = |by: &Numbers<R>, layer: Layer, weights_at: usize, rectified: Option<&Numbers<R>>| {
        let by_inputs = by.empty(rows * layer.inputs);
        let (count, dim) = tiles(rows, layer.inputs, 1);
        // SAFETY: units access only rows, inputs and outputs within the layer's sizes, which its arrays have.
        unsafe {
            back_kernel::launch_unchecked::<R>(
                &by.client,
                count,
                dim,
                by.arg(),
                net.arg(),
                rectified.unwrap_or(by).arg(),
                by_inputs.arg(),
                layer.sizes(rows, 0, weights_at),
                rectified.is_some(),
                each(layer.inputs),
            );
        }
        by_inputs
    };
    let by_second = through(by, layers[2], layers[2].at, Some(&pass.second));
    let by_first = through(&by_second, layers[1], layers[1].at, Some(&pass.first));

    let all = flat.shape.len();
    let part_rows = rows.div_ceil((rows / PART).clamp(1, PARTS));
    let count = rows.div_ceil(part_rows);
    let parts = by.empty(count * all);
    let sources =
        [(&pass.inputs.numbers, pass.inputs.at, &by_first), (&pass.first, 0, &by_second), (&pass.second, 0, by)];
    for (layer, (inputs, at, by)) in layers.into_iter().zip(sources) {
        let (count, dim) = tiles(layer.inputs + 1, layer.outputs, count);
        // SAFETY: as above; every part has room for all parameters.
        unsafe {
            weights_kernel::launch_unchecked::<R>(
                &by.client,
                count,
                dim,
                inputs.arg(),
                by.arg(),
                parts.arg(),
                layer.sizes(rows, at, layer.at),
                part_rows,
                all,
                each(layer.outputs),
            );
        }
    }
    if !flat.shape.tables.is_empty() {
        let embedded = Layer { inputs: layers[0].inputs - FEATURES, ..layers[0] };
        let by_embedded = through(&by_first, embedded, embedded.at + FEATURES * embedded.outputs, None);
        embeddings::gradients(flat, (batch, ids_at), &by_embedded, (&parts, part_rows), rows);
    }
    let by_params = by.empty(all);
    let cubes = CubeCount::Static(all.div_ceil(SUM_COLUMNS) as u32, 1, 1);
    // SAFETY: units beyond the result write nothing.
    unsafe {
        let dim = CubeDim::new_1d((SUM_COLUMNS * SUM_UNITS) as u32);
        sum_kernel::launch_unchecked::<R>(&by.client, cubes, dim, parts.arg(), by_params.arg());
    }
    by_params.flat()
}

/// Returns the gradients by the parameters of the critic, and of the actor if it learns.
pub fn back<R: CubeRuntime>(
    update: &Update<R>,
    passes: &Passes<R>,
    by: &ByOutputs<R>,
) -> (Gradient<R>, Option<Gradient<R>>) {
    let (layout, batch) = (update.layout, update.batch);
    let segments = update.segments();
    let Networks { actor_flat, critic_flat, actor, critic } = update.networks;
    let ids = |fields: RowFields| (batch, segments * fields.ids.start);
    let critic =
        gradients((critic_flat, &critic.at.params), &passes.critic, &by.states, ids(RowFields::states(layout)));
    let actor = update
        .train_actor
        .then(|| gradients((actor_flat, &actor.at.params), &passes.actor, &by.actor, ids(RowFields::actor(layout))));
    (critic, actor)
}
