//! Scalar products of a sample's vectors in pairs: its dense vector and the embeddings of its ids, with each other.
//!
//! The order of the pairs is (1, 0), (2, 0), (2, 1), (3, 0) ..; vector 0 is the dense one.

use multiversion::multiversion;

use crate::sparse::table::DIRECT;

/// Number of pairs among the dense vector and the embeddings of `fields` ids.
pub fn pairs(fields: usize) -> usize {
    (fields + 1) * fields / 2
}

/// The embedding in the row of an id, of `dim` floats in all.
fn embedding(rows: &[f32], dim: usize, place: u32) -> &[f32] {
    &rows[place as usize * dim + DIRECT..(place as usize + 1) * dim]
}

/// Writes for each sample its dense vector and the products.
///
/// # Shapes
/// - `b`: samples x k; `rows`: unique ids x `dim`, where `dim` is k + [`DIRECT`]; `places`: samples x `fields`; `top`: samples x (k + pairs)
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn forward(b: &[f32], rows: &[f32], dim: usize, places: &[u32], fields: usize, top: &mut [f32]) {
    // Usual lengths are constants: a copy of a length that the compiler does not know is a call, and takes longer than the products of what was copied.
    match dim - DIRECT {
        6 => forward_of(6, b, rows, places, fields, top),
        8 => forward_of(8, b, rows, places, fields, top),
        16 => forward_of(16, b, rows, places, fields, top),
        32 => forward_of(32, b, rows, places, fields, top),
        k => forward_of(k, b, rows, places, fields, top),
    }
}

/// As [`forward`], for embeddings of `k` numbers.
#[inline(always)]
fn forward_of(k: usize, b: &[f32], rows: &[f32], places: &[u32], fields: usize, top: &mut [f32]) {
    let dim = k + DIRECT;
    let mut z = vec![0.0f32; (fields + 1) * k];
    let samples = top.chunks_exact_mut(k + pairs(fields)).zip(b.chunks_exact(k)).zip(places.chunks_exact(fields));
    for ((top, b), places) in samples {
        let own = std::iter::once(b).chain(places.iter().map(|&place| embedding(rows, dim, place)));
        z.chunks_exact_mut(k).zip(own).for_each(|(z, vector)| z.copy_from_slice(vector));
        let (head, products) = top.split_at_mut(k);
        head.copy_from_slice(b);
        let mut products = products.iter_mut();
        for i in 1..=fields {
            let (others, own) = z.split_at(i * k);
            for (other, product) in others.chunks_exact(k).zip(&mut products) {
                *product = dot(&own[..k], other);
            }
        }
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 4];
    let (a4, a_rest) = a.as_chunks::<4>();
    let (b4, b_rest) = b.as_chunks::<4>();
    for (a, b) in a4.iter().zip(b4) {
        lanes.iter_mut().zip(a.iter().zip(b)).for_each(|(lane, (a, b))| *lane += a * b);
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest
}

/// Vectors whose gradients are summed at the same time, each in registers.
const TILE: usize = 4;

/// Writes the gradient of the dense vectors to `d_b` and adds that of the embeddings to `d_rows`, given the gradient of what [`forward`] wrote.
///
/// A sample's vectors are copied side by side, padded to whole runs of lanes: the gradient of one is the sum of the others, each times the gradient
/// of their product.
///
/// # Shapes
/// As in [`forward`].
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn backward(
    b: &[f32],
    rows: &[f32],
    dim: usize,
    places: &[u32],
    d_top: &[f32],
    d_b: &mut [f32],
    d_rows: &mut [f32],
) {
    match dim - DIRECT {
        6 => backward_of::<8>((6, add::<6>), (b, rows, places), d_top, d_b, d_rows),
        8 => backward_of::<8>((8, add::<8>), (b, rows, places), d_top, d_b, d_rows),
        16 => backward_of::<16>((16, add::<16>), (b, rows, places), d_top, d_b, d_rows),
        32 => backward_of::<16>((32, add::<32>), (b, rows, places), d_top, d_b, d_rows),
        k => backward_of::<16>((k, add_slice), (b, rows, places), d_top, d_b, d_rows),
    }
}

/// Adds the first `K` numbers of `d` to the `K` numbers `to`. All are read before one is written, so that the compiler makes vectors of them without
/// knowing that the two do not overlap.
#[inline(always)]
fn add<const K: usize>(to: &mut [f32], d: &[f32]) {
    let to: &mut [f32; K] = to.try_into().expect("a whole embedding");
    let d: &[f32; K] = d.first_chunk().expect("a whole embedding");
    *to = std::array::from_fn(|i| to[i] + d[i]);
}

#[inline(always)]
fn add_slice(to: &mut [f32], d: &[f32]) {
    to.iter_mut().zip(d).for_each(|(to, d)| *to += d);
}

/// As [`backward`], for embeddings of `k` numbers in runs of `LANES`; `add` adds one to another.
#[inline(always)]
fn backward_of<const LANES: usize>(
    (k, add): (usize, impl Fn(&mut [f32], &[f32])),
    (b, rows, places): (&[f32], &[f32], &[u32]),
    d_top: &[f32],
    d_b: &mut [f32],
    d_rows: &mut [f32],
) {
    let dim = k + DIRECT;
    let samples = b.len() / k;
    let fields = places.len() / samples.max(1);
    let (vectors, runs) = (fields + 1, k.div_ceil(LANES));
    let tiles = vectors.div_ceil(TILE);
    let mut z = vec![[0.0f32; LANES]; vectors * runs];
    let mut d_z = vec![[0.0f32; LANES]; tiles * TILE * runs];
    // The gradient of the product of each vector with each other one; 0 with itself, and in what fills the last tile.
    let mut d = vec![[0.0f32; TILE]; vectors * tiles];
    for s in 0..samples {
        let places = &places[s * fields..][..fields];
        let (d_head, d_pairs) = d_top[s * (k + pairs(fields))..][..k + pairs(fields)].split_at(k);
        let own = std::iter::once(&b[s * k..][..k]).chain(places.iter().map(|&place| embedding(rows, dim, place)));
        for (z, vector) in z.chunks_exact_mut(runs).zip(own) {
            z.as_flattened_mut()[..k].copy_from_slice(vector);
        }
        let by_pair = d.as_flattened_mut();
        let mut d_pairs = d_pairs.iter();
        for i in 1..vectors {
            for (j, pair) in (0..i).zip(&mut d_pairs) {
                by_pair[i * tiles * TILE + j] = *pair;
                by_pair[j * tiles * TILE + i] = *pair;
            }
        }
        for (tile, d_z) in d_z.chunks_exact_mut(TILE * runs).enumerate() {
            for run in 0..runs {
                let mut sums = [[0.0f32; LANES]; TILE];
                for (d, z) in d.chunks_exact(tiles).zip(z.chunks_exact(runs)) {
                    for (sum, d) in sums.iter_mut().zip(d[tile]) {
                        sum.iter_mut().zip(&z[run]).for_each(|(sum, z)| *sum += d * z);
                    }
                }
                d_z[run..].iter_mut().step_by(runs).zip(sums).for_each(|(d_z, sum)| *d_z = sum);
            }
        }
        let mut d_z = d_z.chunks_exact(runs).map(<[[f32; LANES]]>::as_flattened);
        if let Some(d_z) = d_z.next() {
            let d_b = &mut d_b[s * k..][..k];
            d_b.iter_mut().zip(d_head.iter().zip(d_z)).for_each(|(d_b, (head, d))| *d_b = head + d);
        }
        for (&place, d_z) in places.iter().zip(d_z) {
            add(&mut d_rows[place as usize * dim + DIRECT..(place as usize + 1) * dim], d_z);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    proptest::proptest! {
        /// Vectors have whole numbers, so that every order of the sums of a product gives the same. Gradients have fractions: their sums have one order.
        #[test]
        fn products_and_gradients_are_those_of_plain_loops(
            k in 1usize..40, usual in proptest::option::of(0usize..4), fields in 1usize..12, samples in 1usize..6, seed in 0u64..u64::MAX,
        ) {
            let k = usual.map_or(k, |usual| [6, 8, 16, 32][usual]);
            let (dim, unique, width) = (k + DIRECT, 3, k + pairs(fields));
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let places: Vec<u32> = (0..samples * fields).map(|_| rng.random_range(0..unique as u32)).collect();
            let mut whole = |len: usize| (0..len).map(|_| rng.random_range(-4i8..=4).into()).collect::<Vec<f32>>();
            let (b, rows) = (whole(samples * k), whole(unique * dim));
            let mut fractions = |len: usize| (0..len).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f32>>();
            let (d_top, before) = (fractions(samples * width), fractions(rows.len()));
            let (mut top, mut expected) = (vec![f32::NAN; samples * width], vec![]);
            let (mut d_b, mut d_rows) = (vec![f32::NAN; b.len()], before.clone());
            let (mut expected_b, mut expected_rows) = (vec![], before);
            for s in 0..samples {
                let vector = |i: usize| match i.checked_sub(1) {
                    None => &b[s * k..][..k],
                    Some(field) => embedding(&rows, dim, places[s * fields + field]),
                };
                let (d_head, d_pairs) = d_top[s * width..][..width].split_at(k);
                let d_pair = |i: usize, j: usize| if i == j { 0.0 } else { d_pairs[i.max(j) * (i.max(j) - 1) / 2 + i.min(j)] };
                let d = |i: usize, l: usize| (0..=fields).fold(0.0f32, |sum, j| sum + d_pair(i, j) * vector(j)[l]);
                expected.extend_from_slice(vector(0));
                for i in 1..=fields {
                    expected.extend((0..i).map(|j| vector(i).iter().zip(vector(j)).map(|(a, b)| a * b).sum::<f32>()));
                }
                expected_b.extend((0..k).map(|l| d_head[l] + d(0, l)));
                for i in 1..=fields {
                    let row = &mut expected_rows[places[s * fields + i - 1] as usize * dim + DIRECT..][..k];
                    row.iter_mut().enumerate().for_each(|(l, to)| *to += d(i, l));
                }
            }
            forward(&b, &rows, dim, &places, fields, &mut top);
            backward(&b, &rows, dim, &places, &d_top, &mut d_b, &mut d_rows);
            proptest::prop_assert_eq!(top, expected);
            proptest::prop_assert_eq!(d_b, expected_b);
            proptest::prop_assert_eq!(d_rows, expected_rows);
        }
    }
}
