//! Embeddings of ids: rows with embedded ids, and gradients by the tables.
//!
//! A library's scatter loops over all rows of a batch with as many units as a table has numbers: on an H100 that alone took 98
//! % of the time of an update's kernels (4,096 steps, 30 contracts). Here every part of the rows has its own units, and the
//! parts are summed together with those of the layers.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::env::FEATURES;
use crate::learner::networks::Flat;

use crate::gpu::numbers::{CUBE, Numbers};

/// A range of columns in rows, and the source of their numbers.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Columns {
    rows: usize,
    /// Numbers per row.
    inputs: usize,
    /// First column in a row, and number of columns, that a launch writes.
    first: usize,
    columns: usize,
    /// Index of the first number of the features in the batch, or of the table in the parameters.
    at: usize,
    /// Index of the table's first id in the batch; a row has one id for each of the tables.
    ids_at: usize,
    tables: usize,
}

/// Writes columns of rows with embeddings: from a table by ids, or the features themselves. One unit for each number.
#[cube(launch_unchecked)]
fn embed_kernel(
    batch: &Array<f32>,
    params: &Array<f32>,
    inputs: &mut Array<f32>,
    of: Columns,
    #[comptime] by_id: bool,
) {
    let row = ABSOLUTE_POS / of.columns;
    let column = ABSOLUTE_POS - row * of.columns;
    if row >= of.rows {
        terminate!();
    }
    let to = row * of.inputs + of.first + column;
    if comptime!(by_id) {
        let id = usize::cast_from(batch[of.ids_at + row * of.tables]);
        inputs[to] = params[of.at + id * of.columns + column];
    } else {
        inputs[to] = batch[of.at + row * of.columns + column];
    }
}

/// Computes gradients by a table, with one unit for each of its numbers and part of the rows: `[part, all]`. `by` are the
/// gradients by the embeddings, `[rows, inputs]`; a row contributes to the table's row of its id.
#[cube(launch_unchecked)]
fn table_kernel(
    batch: &Array<f32>,
    by: &Array<f32>,
    parts: &mut Array<f32>,
    of: Columns,
    len: usize,
    part_rows: usize,
    all: usize,
) {
    let i = ABSOLUTE_POS_X as usize;
    if i >= len {
        terminate!();
    }
    let id = i / of.columns;
    let column = of.first + i - id * of.columns;
    let part = CUBE_POS_Y as usize;
    let mut row = part * part_rows;
    let mut end = row + part_rows;
    if end > of.rows {
        end = of.rows;
    }
    let mut sum = 0.0f32;
    while row < end {
        if usize::cast_from(batch[of.ids_at + row * of.tables]) == id {
            sum += by[row * of.inputs + column];
        }
        row += 1;
    }
    parts[part * all + of.at + i] = sum;
}

/// Returns rows `[rows, inputs]` of features and embeddings of a batch; `at` and `ids_at` are the indices of the first feature
/// and id there.
pub fn rows<R: CubeRuntime>(
    flat: &Flat,
    params: &Numbers<R>,
    batch: &Numbers<R>,
    (at, ids_at): (usize, usize),
    rows: usize,
) -> Numbers<R> {
    let tables = flat.shape.tables.len();
    let inputs = flat.shape.inputs();
    assert!(batch.len >= at + rows * FEATURES && batch.len >= ids_at + rows * tables, "rows that are not there");
    let out = batch.empty(rows * inputs);
    let write = |first: usize, columns: usize, at: usize, ids_at: usize, by_id: bool| {
        let (count, dim) = batch.units(rows * columns);
        let of = ColumnsLaunch::new(rows, inputs, first, columns, at, ids_at, tables);
        // SAFETY: units access only rows and columns that exist in the batch, the tables and the result; ids are below the
        // tables' rows.
        unsafe {
            embed_kernel::launch_unchecked::<R>(
                &batch.client,
                count,
                dim,
                batch.arg(),
                params.arg(),
                out.arg(),
                of,
                by_id,
            );
        }
    };
    write(0, FEATURES, at, ids_at, false);
    let mut first = FEATURES;
    for (table, part) in flat.parts[..tables].iter().enumerate() {
        write(first, part.columns, part.at, ids_at + table, true);
        first += part.columns;
    }
    out
}

/// Writes the gradients by the tables to each part of `parts`; `by` are those by the embeddings, `[rows, inputs - FEATURES]`.
pub fn gradients<R: CubeRuntime>(
    flat: &Flat,
    (batch, ids_at): (&Numbers<R>, usize),
    by: &Numbers<R>,
    (parts, part_rows): (&Numbers<R>, usize),
    rows: usize,
) {
    let tables = flat.shape.tables.len();
    let inputs = flat.shape.inputs() - FEATURES;
    let all = flat.shape.len();
    assert_eq!(by.len, rows * inputs, "a gradient for each row");
    assert!(batch.len >= ids_at + rows * tables, "rows that are not there");
    let mut first = 0;
    for (table, part) in flat.parts[..tables].iter().enumerate() {
        let len = part.range().len();
        let cubes = CubeCount::Static(len.div_ceil(CUBE as usize) as u32, rows.div_ceil(part_rows) as u32, 1);
        let of = ColumnsLaunch::new(rows, inputs, first, part.columns, part.at, ids_at + table, tables);
        // SAFETY: units beyond the table end, rows beyond a part are not accessed, and every part has room for all parameters.
        unsafe {
            table_kernel::launch_unchecked::<R>(
                &batch.client,
                cubes,
                CubeDim::new_1d(CUBE),
                batch.arg(),
                by.arg(),
                parts.arg(),
                of,
                len,
                part_rows,
                all,
            );
        }
        first += part.columns;
    }
}
