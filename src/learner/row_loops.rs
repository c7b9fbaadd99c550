//! Loops over the rows of a [`Pass`](super::passes::Pass), compiled for the widest vectors of the processor.

use std::ops::Range;

use multiversion::multiversion;

use super::open_sums::{LANES, Lanes, stretches};

/// Adds a bias to each row.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn add_bias(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// Adds a bias to each row and rectifies.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn add_bias_and_rectify(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x = (*x + b).max(0.0));
    }
}

/// Writes the sum of the rows to `sum`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn sum_rows(rows: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for row in rows.chunks_exact(sum.len()) {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}

/// Writes the product of each row with `weights`. A matrix product with one column would use one lane of sixteen.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn dot_rows(rows: &[f32], weights: &[f32], out: &mut [f32]) {
    let (weights_by_lane, rest_of_weights) = weights.as_chunks::<LANES>();
    for (row, out) in rows.chunks_exact(weights.len()).zip(out) {
        let (by_lane, rest) = row.as_chunks::<LANES>();
        let mut sums = [0.0; LANES];
        for (row, weights) in by_lane.iter().zip(weights_by_lane) {
            (0..LANES).for_each(|i| sums[i] += row[i] * weights[i]);
        }
        let rest = rest.iter().zip(rest_of_weights).map(|(x, weight)| x * weight).sum::<f32>();
        *out = sums.iter().sum::<f32>() + rest;
    }
}

/// Clears the gradients where the rectifier was closed, and writes the sum of the rows to `sum`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn close_and_sum_rows(gradients: &mut [f32], rectified: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    let columns = sum.len();
    for (gradients, rectified) in gradients.chunks_exact_mut(columns).zip(rectified.chunks_exact(columns)) {
        for ((gradient, rectified), sum) in gradients.iter_mut().zip(rectified).zip(sum.iter_mut()) {
            *gradient = if *rectified == 0.0 { 0.0 } else { *gradient };
            *sum += *gradient;
        }
    }
}

/// Writes some columns of the gradient by a layer: sums, times the factor of the row, where the rectifier was open; and the sum of
/// the rows.
///
/// # Shapes
/// - sums: `[columns / LANES, rows]`; factors: `[rows]`; rectified: `[rows, width]`; gradients: `[rows, columns]`; sum: `[columns]`
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn close_sums(
    columns: Range<usize>,
    sums: &[Lanes],
    factors: &[f32],
    rectified: &[f32],
    gradients: &mut [f32],
    sum: &mut [f32],
) {
    let (rows, width) = (factors.len(), rectified.len() / factors.len());
    let closed = |gradient: f32, rectified: f32| if rectified == 0.0 { 0.0 } else { gradient };
    sum.fill(0.0);
    let (sum_by_lane, rest_of_sum) = sum.as_chunks_mut::<LANES>();
    let last = &sums[sums.len() - rows..];
    let of_rows = gradients.chunks_exact_mut(columns.len()).zip(rectified.chunks_exact(width)).zip(factors);
    for (row, ((gradients, rectified), factor)) in of_rows.enumerate() {
        let (gradients, rest_of_gradients) = gradients.as_chunks_mut::<LANES>();
        let (rectified, rest_of_rectified) = rectified[columns.clone()].as_chunks::<LANES>();
        let places = gradients.iter_mut().zip(rectified).zip(sum_by_lane.iter_mut());
        for (((gradients, rectified), sum), sums) in places.zip(sums[row..].iter().step_by(rows)) {
            for i in 0..LANES {
                gradients[i] = closed(sums.0[i] * factor, rectified[i]);
                sum[i] += gradients[i];
            }
        }
        // The columns that do not fill the lanes.
        let rest = rest_of_gradients.iter_mut().zip(rest_of_rectified).zip(rest_of_sum.iter_mut());
        for (((gradient, rectified), sum), x) in rest.zip(&last[row].0) {
            *gradient = closed(x * factor, *rectified);
            *sum += *gradient;
        }
    }
}

/// Writes some rows of a matrix, whose columns are `sums`, times the factors of the columns.
///
/// # Shapes
/// - sums: `[rows / LANES, columns]`; factors: `[columns]`; matrix: `[.., columns]`
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn turn_sums(rows: Range<usize>, sums: &[Lanes], factors: &[f32], matrix: &mut [f32]) {
    let columns = factors.len();
    for (at, row) in matrix[rows.start * columns..rows.end * columns].chunks_exact_mut(columns).enumerate() {
        let (sums, lane) = (&sums[at / LANES * columns..], at % LANES);
        for ((x, sums), factor) in row.iter_mut().zip(sums).zip(factors) {
            *x = sums.0[lane] * factor;
        }
    }
}

/// Writes the sum of the rows, times their factors, to `sum`, and the sum of the factors where a column is open to `open`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn scale_and_sum_rows(rectified: &[f32], factors: &[f32], sum: &mut [f32], open: &mut [f32]) {
    sum.fill(0.0);
    open.fill(0.0);
    for (row, factor) in rectified.chunks_exact(sum.len()).zip(factors) {
        for ((x, sum), open) in row.iter().zip(sum.iter_mut()).zip(open.iter_mut()) {
            *sum += x * factor;
            *open += if *x == 0.0 { 0.0 } else { *factor };
        }
    }
}

/// Writes the transpose of a square matrix, some rows at a time, so that what is read stays in the cache.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
pub fn transpose(matrix: &[f32], side: usize, out: &mut [f32]) {
    for rows in stretches(0..side, LANES) {
        for (column, out) in out.chunks_exact_mut(side).enumerate() {
            let from = matrix[rows.start * side + column..].iter().step_by(side);
            out[rows.clone()].iter_mut().zip(from).for_each(|(to, x)| *to = *x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns that fill the lanes, and a rest. All numbers are small integers, so that sums are exact.
    #[test]
    fn sums_by_lanes_become_rows_and_columns() {
        let (rows, width) = (7, 70);
        let number = |i: usize, step: usize| ((i * step) % 19) as f32 - 9.0;
        let sum_of = |row: usize, column: usize| number(row * width + column, 5);
        let factors: Vec<f32> = (0..rows).map(|row| number(row, 3)).collect();
        let rectified: Vec<f32> = (0..rows * width).map(|i| number(i, 7).max(0.0)).collect();
        let mut gradients = vec![f32::NAN; rows * width];
        let mut sum = vec![f32::NAN; width];
        let mut turned = vec![f32::NAN; width * rows];
        for columns in [0..64, 64..70] {
            let lanes = |columns: Range<usize>| {
                (0..rows).map(move |row| {
                    let mut lanes = Lanes([0.0; LANES]);
                    lanes.0.iter_mut().zip(columns.clone()).for_each(|(x, column)| *x = sum_of(row, column));
                    lanes
                })
            };
            let sums: Vec<Lanes> = stretches(columns.clone(), LANES).flat_map(lanes).collect();
            let mut some = vec![f32::NAN; rows * columns.len()];
            close_sums(columns.clone(), &sums, &factors, &rectified, &mut some, &mut sum[columns.clone()]);
            some.chunks_exact(columns.len()).enumerate().for_each(|(row, some)| {
                gradients[row * width..][columns.clone()].copy_from_slice(some);
            });
            turn_sums(columns, &sums, &factors, &mut turned);
        }
        for column in 0..width {
            let mut total = 0.0;
            for row in 0..rows {
                let (at, scaled) = (row * width + column, sum_of(row, column) * factors[row]);
                assert_eq!(turned[column * rows + row], scaled);
                assert_eq!(gradients[at], if rectified[at] > 0.0 { scaled } else { 0.0 }, "row {row}, column {column}");
                total += gradients[at];
            }
            assert_eq!(sum[column], total, "column {column}");
        }
    }
}
