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

/// Calls a function with the length of an embedding, which is a constant for usual lengths: a copy of a length that the compiler does not know is a
/// call, and takes longer than the products of what was copied.
macro_rules! with_length {
    ($k:expr, $function:ident($($argument:expr),*)) => {
        match $k {
            6 => $function(6, $($argument),*),
            8 => $function(8, $($argument),*),
            16 => $function(16, $($argument),*),
            32 => $function(32, $($argument),*),
            k => $function(k, $($argument),*),
        }
    };
}

/// Writes for each sample its dense vector and the products.
///
/// # Shapes
/// - `b`: samples x k; `rows`: unique ids x `dim`, where `dim` is k + [`DIRECT`]; `places`: samples x `fields`; `top`: samples x (k + pairs)
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2+fma"))]
pub fn forward(b: &[f32], rows: &[f32], dim: usize, places: &[u32], fields: usize, top: &mut [f32]) {
    with_length!(dim - DIRECT, forward_of(b, rows, places, fields, top));
}

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

/// Adds the first `K` numbers of `d` to the `K` numbers `to`. All are read before one is written, so that they fit into vectors whatever the
/// compiler knows of the two.
#[inline(always)]
fn add<const K: usize>(to: &mut [f32], d: &[f32]) {
    if let (Ok(to), Some(d)) = (<&mut [f32; K]>::try_from(to), d.first_chunk::<K>()) {
        *to = std::array::from_fn(|i| to[i] + d[i]);
    }
}

#[inline(always)]
fn add_slice(to: &mut [f32], d: &[f32]) {
    to.iter_mut().zip(d).for_each(|(to, d)| *to += d);
}

/// As [`backward`], for embeddings of `k` numbers, which `add` adds.
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
    // Of each vector, by the other one: 0 for itself, and behind the last one.
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
        /// Of whole numbers, so that every order of a sum gives the same.
        #[test]
        fn products_and_gradients_are_those_of_plain_loops(
            k in 1usize..40, usual in proptest::option::of(0usize..4), fields in 1usize..12, samples in 1usize..6, seed in 0u64..u64::MAX,
        ) {
            let k = usual.map_or(k, |usual| [6, 8, 16, 32][usual]);
            let (dim, unique, width) = (k + DIRECT, 3, k + pairs(fields));
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let places: Vec<u32> = (0..samples * fields).map(|_| rng.random_range(0..unique as u32)).collect();
            let mut whole = |len: usize| (0..len).map(|_| rng.random_range(-4i8..=4).into()).collect::<Vec<f32>>();
            let (b, rows, d_top) = (whole(samples * k), whole(unique * dim), whole(samples * width));
            let before = whole(rows.len());
            let (mut top, mut expected) = (vec![f32::NAN; samples * width], vec![]);
            let (mut d_b, mut d_rows) = (vec![f32::NAN; b.len()], before.clone());
            let (mut expected_b, mut expected_rows) = (vec![], before);
            for s in 0..samples {
                let vector = |i: usize| match i.checked_sub(1) {
                    None => &b[s * k..][..k],
                    Some(field) => embedding(&rows, dim, places[s * fields + field]),
                };
                expected.extend_from_slice(vector(0));
                let mut d: Vec<Vec<f32>> = vec![vec![0.0; k]; fields + 1];
                d[0].copy_from_slice(&d_top[s * width..][..k]);
                let mut pair = s * width + k;
                for i in 1..=fields {
                    for j in 0..i {
                        expected.push(vector(i).iter().zip(vector(j)).map(|(a, b)| a * b).sum());
                        for l in 0..k {
                            d[i][l] += d_top[pair] * vector(j)[l];
                            d[j][l] += d_top[pair] * vector(i)[l];
                        }
                        pair += 1;
                    }
                }
                expected_b.extend_from_slice(&d[0]);
                for (place, d) in places[s * fields..].iter().zip(&d[1..]) {
                    let row = &mut expected_rows[*place as usize * dim + DIRECT..][..k];
                    row.iter_mut().zip(d).for_each(|(to, d)| *to += d);
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
