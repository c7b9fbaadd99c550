//! Products of a batch with small matrices, sample by sample, the inner loop over outputs.
//!
//! Rows of a few dozen floats are too short for a general product to pay. Four samples share each pass over the weights, so that a
//! weight is loaded once for four of them.

use multiversion::multiversion;

/// Samples that share a pass over the weights.
const TILE: usize = 4;

/// `y = x w + b` for `n` samples: `x` is n x `inputs`, `w` is `inputs` x `outputs`, `b` has `outputs`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn forward(x: &[f32], w: &[f32], b: &[f32], inputs: usize, y: &mut [f32]) {
    let outputs = b.len();
    for (x, y) in x.chunks(TILE * inputs).zip(y.chunks_mut(TILE * outputs)) {
        y.chunks_exact_mut(outputs).for_each(|y| y.copy_from_slice(b));
        if y.len() == TILE * outputs {
            let (y0, rest) = y.split_at_mut(outputs);
            let (y1, rest) = rest.split_at_mut(outputs);
            let (y2, y3) = rest.split_at_mut(outputs);
            for (i, w) in w.chunks_exact(outputs).enumerate() {
                let x = [x[i], x[inputs + i], x[2 * inputs + i], x[3 * inputs + i]];
                for ((((w, y0), y1), y2), y3) in w.iter().zip(&mut *y0).zip(&mut *y1).zip(&mut *y2).zip(&mut *y3) {
                    *y0 += x[0] * w;
                    *y1 += x[1] * w;
                    *y2 += x[2] * w;
                    *y3 += x[3] * w;
                }
            }
        } else {
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
                for (x, w) in x.iter().zip(w.chunks_exact(outputs)) {
                    y.iter_mut().zip(w).for_each(|(y, w)| *y += x * w);
                }
            }
        }
    }
}

/// Adds to `dw` and `db` what the gradient `dy` of the outputs says of the weights.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn backward_weights(x: &[f32], dy: &[f32], inputs: usize, dw: &mut [f32], db: &mut [f32]) {
    let outputs = db.len();
    for (x, dy) in x.chunks(TILE * inputs).zip(dy.chunks(TILE * outputs)) {
        for dy in dy.chunks_exact(outputs) {
            db.iter_mut().zip(dy).for_each(|(db, dy)| *db += dy);
        }
        if dy.len() == TILE * outputs {
            let (d0, rest) = dy.split_at(outputs);
            let (d1, rest) = rest.split_at(outputs);
            let (d2, d3) = rest.split_at(outputs);
            for (i, dw) in dw.chunks_exact_mut(outputs).enumerate() {
                let x = [x[i], x[inputs + i], x[2 * inputs + i], x[3 * inputs + i]];
                for ((((dw, d0), d1), d2), d3) in dw.iter_mut().zip(d0).zip(d1).zip(d2).zip(d3) {
                    *dw += (x[0] * d0 + x[1] * d1) + (x[2] * d2 + x[3] * d3);
                }
            }
        } else {
            for (x, dy) in x.chunks_exact(inputs).zip(dy.chunks_exact(outputs)) {
                for (x, dw) in x.iter().zip(dw.chunks_exact_mut(outputs)) {
                    dw.iter_mut().zip(dy).for_each(|(dw, dy)| *dw += x * dy);
                }
            }
        }
    }
}

/// `dx = dy w^T` for each sample; `wt` is the transposed matrix, `outputs` x `inputs`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn backward_inputs(dy: &[f32], wt: &[f32], outputs: usize, inputs: usize, dx: &mut [f32]) {
    for (dy, dx) in dy.chunks_exact(outputs).zip(dx.chunks_exact_mut(inputs)) {
        dx.fill(0.0);
        for (dy, w) in dy.iter().zip(wt.chunks_exact(inputs)) {
            dx.iter_mut().zip(w).for_each(|(dx, w)| *dx += dy * w);
        }
    }
}

/// The transpose of a `rows` x `columns` matrix.
pub fn transpose(w: &[f32], columns: usize, out: &mut Vec<f32>) {
    let rows = w.len() / columns;
    out.clear();
    out.extend((0..columns).flat_map(|c| (0..rows).map(move |r| w[r * columns + c])));
}
