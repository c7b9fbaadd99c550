//! Scalar products of a sample's vectors in pairs: its dense vector and the embeddings of its ids, with each other.
//!
//! The order of the pairs is (1, 0), (2, 0), (2, 1), (3, 0) ..; vector 0 is the dense one.

use multiversion::multiversion;

use crate::sparse::table::DIRECT;

/// Floats that are added at a time.
const LANES: usize = 16;

type Lanes = [f32; LANES];

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

/// Writes the gradient of the dense vectors to `d_b` and adds that of the embeddings to `d_rows`, given the gradient of what [`forward`] wrote.
///
/// A sample's vectors are copied side by side, padded to whole runs of [`LANES`]: the gradient of one is the sum of the others, each times the gradient
/// of their product, which stays in registers.
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
    with_length!(dim - DIRECT, backward_of(b, rows, places, d_top, d_b, d_rows));
}

#[inline(always)]
fn backward_of(k: usize, b: &[f32], rows: &[f32], places: &[u32], d_top: &[f32], d_b: &mut [f32], d_rows: &mut [f32]) {
    let dim = k + DIRECT;
    let samples = b.len() / k;
    let fields = places.len() / samples.max(1);
    let (vectors, runs) = (fields + 1, k.div_ceil(LANES));
    let mut z: Vec<Lanes> = vec![[0.0; LANES]; vectors * runs];
    let mut d_z = z.clone();
    // By pair of vectors, both ways round; 0 on the diagonal.
    let mut d = vec![0.0f32; vectors * vectors];
    for s in 0..samples {
        let places = &places[s * fields..][..fields];
        let (d_head, d_pairs) = d_top[s * (k + pairs(fields))..][..k + pairs(fields)].split_at(k);
        let own = std::iter::once(&b[s * k..][..k]).chain(places.iter().map(|&place| embedding(rows, dim, place)));
        for (z, vector) in z.chunks_exact_mut(runs).zip(own) {
            z.as_flattened_mut()[..k].copy_from_slice(vector);
        }
        let mut d_pairs = d_pairs.iter();
        for i in 1..vectors {
            for (j, pair) in (0..i).zip(&mut d_pairs) {
                d[i * vectors + j] = *pair;
                d[j * vectors + i] = *pair;
            }
        }
        for (d_z, d) in d_z.chunks_exact_mut(runs).zip(d.chunks_exact(vectors)) {
            for (run, d_z) in d_z.iter_mut().enumerate() {
                let mut sums = [0.0f32; LANES];
                for (d, z) in d.iter().zip(z.chunks_exact(runs)) {
                    for (sum, z) in sums.iter_mut().zip(&z[run]) {
                        *sum += d * z;
                    }
                }
                *d_z = sums;
            }
        }
        let mut d_z = d_z.chunks_exact(runs).map(<[Lanes]>::as_flattened);
        if let Some(d_z) = d_z.next() {
            let d_b = &mut d_b[s * k..][..k];
            d_b.iter_mut().zip(d_head.iter().zip(d_z)).for_each(|(d_b, (head, d))| *d_b = head + d);
        }
        for (&place, d_z) in places.iter().zip(d_z) {
            let d_row = &mut d_rows[place as usize * dim + DIRECT..(place as usize + 1) * dim];
            d_row.iter_mut().zip(d_z).for_each(|(to, d)| *to += d);
        }
    }
}
