//! Products of a batch with small matrices.
//!
//! Matrices of a few dozen rows and columns are too small for a general product to pay. A tile of samples and columns keeps its sums in
//! registers while it runs along the inputs; the loops are written so that the compiler turns the columns of a tile into one vector. Sums are formed in
//! the same order on every processor, without fused multiply-adds, so that every processor gives the same bits.

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Columns of a tile.
const LANES: usize = 16;
/// Columns of a tile of [`forward`] if there are at most so many outputs.
const FEW: usize = 8;

/// Computes `y = x w + b` for `n` samples: `x` is n x `inputs`, `w` is `inputs` x `outputs`, `b` has `outputs`.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn forward(x: &[f32], w: &[f32], b: &[f32], inputs: usize, y: &mut [f32]) {
    // Samples of a tile: with 8 and all lanes, AVX2 has no register left for what is multiplied.
    const TILE: usize = if target_cfg_f!(target_feature = "avx512f") { 8 } else { 6 };
    if b.len() <= FEW {
        forward_of::<TILE, FEW>(x, w, b, inputs, y);
    } else {
        forward_of::<TILE, LANES>(x, w, b, inputs, y);
    }
}

/// As [`forward`], with tiles of `TILE` samples and `COLUMNS` columns.
#[inline(always)]
fn forward_of<const TILE: usize, const COLUMNS: usize>(x: &[f32], w: &[f32], b: &[f32], inputs: usize, y: &mut [f32]) {
    let outputs = b.len();
    // Padded with zeros to whole runs of lanes; the first row is `b`.
    let padded = outputs.next_multiple_of(COLUMNS);
    let mut wide = vec![0.0; (inputs + 1) * padded];
    for (wide, w) in wide.chunks_exact_mut(padded).zip(std::iter::once(b).chain(w.chunks_exact(outputs))) {
        wide[..outputs].copy_from_slice(w);
    }
    let (b, w) = wide.split_at(padded);
    for (x, y) in x.chunks(TILE * inputs).zip(y.chunks_mut(TILE * outputs)) {
        if x.len() < TILE * inputs {
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)) {
                y.copy_from_slice(&b[..outputs]);
                for (x, w) in x.iter().zip(w.chunks_exact(padded)) {
                    y.iter_mut().zip(w).for_each(|(y, w)| *y += x * w);
                }
            }
            continue;
        }
        let x: [&[f32]; TILE] = std::array::from_fn(|s| &x[s * inputs..][..inputs]);
        for o in (0..padded).step_by(COLUMNS) {
            let mut sums = [[0.0f32; COLUMNS]; TILE];
            sums.iter_mut().for_each(|sum| sum.copy_from_slice(&b[o..o + COLUMNS]));
            for (i, w) in w.chunks_exact(padded).enumerate() {
                let w = &w[o..o + COLUMNS];
                for (sum, x) in sums.iter_mut().zip(x) {
                    let x = x[i];
                    for (sum, w) in sum.iter_mut().zip(w) {
                        *sum += x * w;
                    }
                }
            }
            if o + COLUMNS <= outputs {
                for (y, sum) in y.chunks_exact_mut(outputs).zip(sums) {
                    y[o..o + COLUMNS].copy_from_slice(&sum);
                }
            } else {
                // A copy: sums that are read at a length which the compiler does not know would lie in memory all along.
                let kept = sums;
                for (y, sum) in y.chunks_exact_mut(outputs).zip(&kept) {
                    y[o..].iter_mut().zip(sum).for_each(|(y, sum)| *y = *sum);
                }
            }
        }
    }
}

/// Sums over the samples of the products of `$tile` numbers of `a`, from `$i` on, with [`LANES`] numbers of `b`, from `$o` on. A macro: the compiler
/// keeps the sums of a function that it puts in place in memory.
macro_rules! outer {
    ($tile:expr, $a:expr, $i:expr, $b:expr, $o:expr) => {{
        let mut sums = [[0.0f32; LANES]; $tile];
        for (a, b) in $a.zip($b) {
            let b = &b[$o..$o + LANES];
            for (sum, k) in sums.iter_mut().zip($i..) {
                let a = a[k];
                for (sum, b) in sum.iter_mut().zip(b) {
                    *sum += a * b;
                }
            }
        }
        sums
    }};
}

/// Calls `$add` with each number of `$a` from `$from` to `$end` and its [sums](outer), which are formed in tiles of as many numbers as `$tile` says, the
/// largest first. The sums of a small tile wait for each other: a processor adds several vectors while one addition takes place.
macro_rules! outer_in_tiles {
    ([$($tile:literal)*], $a:expr, $from:expr, $end:expr, $b:expr, $o:expr, $add:expr) => {{
        let (mut i, mut add) = ($from, $add);
        $(while $end - i >= $tile {
            let sums = outer!($tile, $a, i, $b, $o);
            (i..).zip(sums).for_each(&mut add);
            i += $tile;
        })*
    }};
}

/// Adds the gradients of the weights and of `b` to `dw` and `db`: `dw += x^T dy`, and `db` the sum of `dy` over the samples.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn backward_weights(x: &[f32], dy: &[f32], inputs: usize, dw: &mut [f32], db: &mut [f32]) {
    let outputs = db.len();
    for dy in dy.chunks_exact(outputs) {
        db.iter_mut().zip(dy).for_each(|(db, dy)| *db += dy);
    }
    let (x, dy) = (x.chunks_exact(inputs), dy.chunks_exact(outputs));
    let whole = outputs / LANES * LANES;
    for o in (0..whole).step_by(LANES) {
        let add = |(i, sums): (usize, [f32; LANES])| {
            dw[i * outputs + o..][..LANES].iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
        };
        outer_in_tiles!([8 4 2 1], x.clone(), 0, inputs, dy.clone(), o, add);
    }
    // Outputs that fill no lanes: runs of inputs do, and what is left goes one by one.
    let filled = inputs / LANES * LANES;
    for i in (0..filled).step_by(LANES) {
        let add = |(o, sums): (usize, [f32; LANES])| {
            dw[i * outputs..].chunks_exact_mut(outputs).zip(sums).for_each(|(dw, sum)| dw[o] += sum);
        };
        outer_in_tiles!([8 4 2 1], dy.clone(), whole, outputs, x.clone(), i, add);
    }
    for o in whole..outputs {
        for i in filled..inputs {
            dw[i * outputs + o] += x.clone().zip(dy.clone()).map(|(x, dy)| x[i] * dy[o]).sum::<f32>();
        }
    }
}

/// Computes `dx = dy w^T` for each sample; `wt` is the transposed matrix, `outputs` x `inputs`.
pub fn backward_inputs(dy: &[f32], wt: &[f32], outputs: usize, inputs: usize, dx: &mut [f32]) {
    forward(dy, wt, &vec![0.0; inputs], outputs, dx);
}

/// Writes the transpose of a `rows` x `columns` matrix to `out`.
pub fn transpose(w: &[f32], columns: usize, out: &mut Vec<f32>) {
    let rows = w.len() / columns;
    out.clear();
    out.extend((0..columns).flat_map(|c| (0..rows).map(move |r| w[r * columns + c])));
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        /// Whole numbers: every order of summation gives the same bits.
        #[test]
        fn products_of_all_shapes_are_those_of_plain_loops(
            n in 1usize..40, inputs in 1usize..70, outputs in 1usize..70, seed in 0u64..u64::MAX,
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut whole = |len: usize| (0..len).map(|_| rng.random_range(-9i8..=9).into()).collect::<Vec<f32>>();
            let (x, w, b, dy) = (whole(n * inputs), whole(inputs * outputs), whole(outputs), whole(n * outputs));
            let (mut dw, mut db) = (whole(w.len()), whole(outputs));
            let (mut y, mut dx, mut wt) = (whole(n * outputs), whole(n * inputs), vec![]);
            let (mut expected_y, mut expected_dx) = (vec![0.0; y.len()], vec![0.0; dx.len()]);
            let (mut expected_dw, mut expected_db) = (dw.clone(), db.clone());
            for s in 0..n {
                for o in 0..outputs {
                    let along: f32 = (0..inputs).map(|i| x[s * inputs + i] * w[i * outputs + o]).sum();
                    expected_y[s * outputs + o] = b[o] + along;
                    expected_db[o] += dy[s * outputs + o];
                    for i in 0..inputs {
                        expected_dw[i * outputs + o] += x[s * inputs + i] * dy[s * outputs + o];
                        expected_dx[s * inputs + i] += dy[s * outputs + o] * w[i * outputs + o];
                    }
                }
            }
            forward(&x, &w, &b, inputs, &mut y);
            backward_weights(&x, &dy, inputs, &mut dw, &mut db);
            transpose(&w, outputs, &mut wt);
            backward_inputs(&dy, &wt, outputs, inputs, &mut dx);
            proptest::prop_assert_eq!(y, expected_y);
            proptest::prop_assert_eq!(dx, expected_dx);
            proptest::prop_assert_eq!(dw, expected_dw);
            proptest::prop_assert_eq!(db, expected_db);
        }
    }
}
