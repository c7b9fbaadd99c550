//! Forward and backward passes of a network on the CPU.
//!
//! Parameters and gradients are flat, and arrays are slices of them: nothing is cut or joined. The memory of a [`Pass`] serves one
//! update after another, because an update touches tens of megabytes and fresh pages cost a tenth of its time. Matrix products
//! call the library that burn's CPU backend calls. The backward pass is explicit: the losses give gradients by the outputs in
//! closed form, and from there to the parameters it takes a few products. With one output, the two largest of them are
//! [`open_sums`](super::open_sums).

use std::ops::Range;

use super::id_sums::IdSums;
use super::networks::Flat;
use super::open_sums::{Open, OpenSums};
use super::row_loops::{
    add_bias, add_bias_and_rectify, close_and_sum_rows, close_sums, dot_rows, scale_and_sum_rows, sum_rows, transpose,
    turn_sums,
};

/// A network with its flat parameters.
#[derive(Clone, Copy)]
pub struct Net<'a> {
    flat: &'a Flat,
    params: &'a [f32],
}

/// Rows on their way through a network: inputs and activations, `[rows, width]` each. Kept for the backward pass, and as memory
/// for the rows of the next update.
#[derive(Debug, Default)]
pub struct Pass {
    rows: usize,
    inputs: Vec<f32>,
    /// `[rows, tables]`
    ids: Vec<u32>,
    first: Vec<f32>,
    second: Vec<f32>,
    /// `[rows, outputs]`
    pub outputs: Vec<f32>,
    /// Gradients by the second layer, before its rectifier. With one output `open` is in their place.
    by_second: Vec<f32>,
    /// Gradients by the first layer, before its rectifier; with one output, of some columns at a time.
    by_first: Vec<f32>,
    open: Open,
    open_sums: OpenSums,
}

impl Pass {
    /// Forgets the rows.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.inputs.clear();
        self.ids.clear();
    }
}

/// A matrix in memory, row-major.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    numbers: &'a [f32],
    rows: usize,
    columns: usize,
    /// Distances of neighbours in a column and in a row.
    strides: [isize; 2],
}

impl<'a> Matrix<'a> {
    fn new(numbers: &'a [f32], columns: usize) -> Self {
        let rows = numbers.len() / columns;
        Self { numbers: &numbers[..rows * columns], rows, columns, strides: [columns as isize, 1] }
    }

    fn transposed(self) -> Self {
        let [row, column] = self.strides;
        Self { rows: self.columns, columns: self.rows, strides: [column, row], ..self }
    }
}

/// Writes the product of two matrices to `out`, row-major.
///
/// # Shapes
/// - lhs: `[m, k]`, rhs: `[k, n]`, out: `[m, n]`
///
/// # Panics
/// If the shapes do not fit.
fn product(lhs: Matrix, rhs: Matrix, out: &mut [f32]) {
    product_to_columns(lhs, rhs, out, 0..rhs.columns, rhs.columns);
}

/// Writes the product of two matrices to some columns of a row-major matrix with `width` columns.
///
/// # Shapes
/// - lhs: `[m, k]`, rhs: `[k, columns]`, out: `[m, width]`
///
/// # Panics
/// If the shapes do not fit.
fn product_to_columns(lhs: Matrix, rhs: Matrix, out: &mut [f32], columns: Range<usize>, width: usize) {
    let (m, k, n) = (lhs.rows, lhs.columns, rhs.columns);
    assert_eq!(k, rhs.rows, "the columns of one matrix are the rows of the other");
    assert!(columns.len() == n && columns.end <= width, "the result has the columns of the second matrix");
    assert_eq!(out.len(), m * width, "the result has the rows of the first matrix");
    if m == 0 {
        return;
    }
    // SAFETY: a matrix has `rows * columns` numbers, and its strides stay within them; `out` has `m` rows of `width`, of which
    // `columns` are written.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out[columns.start..].as_mut_ptr(),
            1,
            width as isize,
            false,
            lhs.numbers.as_ptr(),
            lhs.strides[1],
            lhs.strides[0],
            rhs.numbers.as_ptr(),
            rhs.strides[1],
            rhs.strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Writes the gradient by weights, from their layer's inputs and the gradient by its `columns` outputs.
fn by_weights(inputs: &[f32], by: &[f32], columns: usize, out: &mut [f32]) {
    let width = out.len() / columns;
    product(Matrix::new(inputs, width).transposed(), Matrix::new(by, columns), out);
}

/// Gradients by the parameters between the first layer's rectifier and the outputs.
struct Upper<'a> {
    b1: &'a mut [f32],
    w2: &'a mut [f32],
    b2: &'a mut [f32],
    w3: &'a mut [f32],
}

/// Gradients below the first layer's rectifier.
struct Lower<'a> {
    w1: &'a mut [f32],
    /// Sums of the gradients by the first layer, for each table.
    by_ids: Vec<IdSums>,
}

impl Lower<'_> {
    /// Takes in the gradients by some columns of the first layer.
    ///
    /// # Shapes
    /// - inputs: `[rows, inputs]`, by_first: `[rows, columns]`
    fn take(&mut self, inputs: Matrix, columns: Range<usize>, by_first: &[f32]) {
        let by = Matrix::new(by_first, columns.len());
        let hidden = self.w1.len() / inputs.columns;
        product_to_columns(inputs.transposed(), by, self.w1, columns.clone(), hidden);
        self.by_ids.iter_mut().for_each(|sums| sums.add(columns.clone(), by_first));
    }
}

impl<'a> Net<'a> {
    /// # Panics
    /// If the length of `params` does not fit the shape.
    pub fn new(flat: &'a Flat, params: &'a [f32]) -> Self {
        assert_eq!(params.len(), flat.shape.len(), "parameters fit the shape");
        Self { flat, params }
    }

    /// Returns the number of outputs of a row.
    pub fn outputs(&self) -> usize {
        self.flat.shape.outputs
    }

    fn tables(&self) -> usize {
        self.flat.shape.tables.len()
    }

    /// Returns what [`Net::gradients`] takes, once for all passes of an update: with one output the transpose of the second layer's
    /// weights, with several nothing.
    pub fn turned(&self) -> Vec<f32> {
        let hidden = self.flat.shape.hidden;
        let mut turned = vec![0.0; if self.outputs() == 1 { hidden * hidden } else { 0 }];
        if !turned.is_empty() {
            transpose(self.layer(2).0.numbers, hidden, &mut turned);
        }
        turned
    }

    /// Returns the parameters of a network with one output, the mean of this one's outputs.
    pub fn mean_of_outputs(&self) -> Vec<f32> {
        let (weights, bias) = self.layer(3);
        let mean = |outputs: &[f32]| outputs.iter().sum::<f32>() / outputs.len() as f32;
        let below = self.params.len() - weights.numbers.len() - bias.len();
        let mut params = self.params[..below].to_vec();
        params.extend(weights.numbers.chunks_exact(weights.columns).map(mean));
        params.push(mean(bias));
        params
    }

    /// Returns the weights `[inputs, outputs]` and the bias of layer 1, 2 or 3.
    fn layer(&self, layer: usize) -> (Matrix<'a>, &'a [f32]) {
        let at = self.tables() + 2 * (layer - 1);
        let [weights, bias] = [at, at + 1].map(|part| &self.flat.parts[part]);
        (Matrix::new(&self.params[weights.range()], weights.columns), &self.params[bias.range()])
    }

    /// Adds a row to those of `pass`: its features, then the embeddings of its ids.
    ///
    /// # Shapes
    /// - features: `[features]`, ids: `[tables]`
    ///
    /// # Panics
    /// If the lengths do not fit, or an id is beyond its table.
    pub fn push(&self, pass: &mut Pass, features: &[f32], ids: &[u32]) {
        assert_eq!((features.len(), ids.len()), (self.flat.shape.features, self.tables()), "a row of this network");
        pass.rows += 1;
        pass.inputs.extend_from_slice(features);
        for (table, &id) in self.flat.parts.iter().zip(ids) {
            let at = table.at + id as usize * table.columns;
            assert!(at < table.range().end, "an id beyond its table");
            pass.inputs.extend_from_slice(&self.params[at..at + table.columns]);
        }
        pass.ids.extend_from_slice(ids);
    }

    /// Infers the rows of `pass`.
    pub fn forward(&self, pass: &mut Pass) {
        let dense = |inputs: &[f32], layer: usize, finish: fn(&mut [f32], &[f32]), out: &mut Vec<f32>| {
            let (weights, bias) = self.layer(layer);
            out.resize(pass.rows * bias.len(), 0.0);
            match bias.len() {
                1 => dot_rows(inputs, weights.numbers, out),
                _ => product(Matrix::new(inputs, weights.rows), weights, out),
            }
            finish(out, bias);
        };
        dense(&pass.inputs, 1, add_bias_and_rectify, &mut pass.first);
        dense(&pass.first, 2, add_bias_and_rectify, &mut pass.second);
        dense(&pass.second, 3, add_bias, &mut pass.outputs);
    }

    /// Writes the gradients by the parameters, of a sum whose gradient by the outputs of `pass` is `by`, to `gradient`.
    ///
    /// # Shapes
    /// - by: `[rows, outputs]`; turned: [`Net::turned`]; gradient: flat, as the parameters
    pub fn gradients(&self, turned: &[f32], pass: &mut Pass, by: &[f32], gradient: &mut Vec<f32>) {
        let rows = pass.rows;
        gradient.resize(self.params.len(), 0.0);
        if rows == 0 {
            gradient.fill(0.0);
            return;
        }
        let (tables, mut layers) = gradient.split_at_mut(self.flat.parts[self.tables()].at);
        let mut parts = self.flat.parts[self.tables()..].iter().map(|part| {
            let (part, rest) = std::mem::take(&mut layers).split_at_mut(part.range().len());
            layers = rest;
            part
        });
        let mut part = || parts.next().expect("three layers have six parts");
        let [w1, b1, w2, b2, w3, b3] = [part(), part(), part(), part(), part(), part()];

        sum_rows(by, b3);
        let ids_of = |table| pass.ids.iter().skip(table).step_by(self.tables()).copied();
        let by_ids = (0..self.tables()).map(|table| IdSums::new(ids_of(table), self.flat.shape.hidden)).collect();
        let (upper, mut lower) = (Upper { b1, w2, b2, w3 }, Lower { w1, by_ids });
        if self.outputs() == 1 {
            self.by_open_sums(turned, pass, by, upper, &mut lower)
        } else {
            self.by_products(pass, by, upper, &mut lower)
        }
        self.by_tables(&lower.by_ids, tables);
    }

    /// Back-propagates from several outputs.
    fn by_products(&self, pass: &mut Pass, by: &[f32], Upper { b1, w2, b2, w3 }: Upper, lower: &mut Lower) {
        // Back-propagates through the weights of `layer`, and through the rectifier of the layer below where it was open.
        let through = |by: &[f32], layer: usize, rectified: &[f32], out: &mut Vec<f32>, bias: &mut [f32]| {
            let (weights, _) = self.layer(layer);
            out.resize(pass.rows * weights.rows, 0.0);
            product(Matrix::new(by, weights.columns), weights.transposed(), out);
            close_and_sum_rows(out, rectified, bias);
        };
        by_weights(&pass.second, by, self.outputs(), w3);
        through(by, 3, &pass.second, &mut pass.by_second, b2);
        by_weights(&pass.first, &pass.by_second, self.flat.shape.hidden, w2);
        through(&pass.by_second, 2, &pass.first, &mut pass.by_first, b1);
        lower.take(Matrix::new(&pass.inputs, self.flat.shape.inputs()), 0..self.flat.shape.hidden, &pass.by_first);
    }

    /// Back-propagates from one output: the gradient by unit `h` of the second layer in row `r` is `by[r] * weights[h]` if the unit
    /// is open there, else 0. Gradients by the first layer are made and used some columns at a time, so that they stay in the
    /// second cache.
    fn by_open_sums(
        &self,
        turned: &[f32],
        pass: &mut Pass,
        by: &[f32],
        Upper { b1, w2, b2, w3 }: Upper,
        lower: &mut Lower,
    ) {
        let hidden = self.flat.shape.hidden;
        let weights3 = self.layer(3).0.numbers;
        let Pass { inputs, first, second, by_first, open, open_sums, .. } = pass;
        scale_and_sum_rows(second, by, w3, b2);
        b2.iter_mut().zip(weights3).for_each(|(x, weight)| *x *= weight);

        open.by_unit(second, hidden);
        open_sums.each(first, by, open, |inputs, sums| turn_sums(inputs, sums, weights3, w2));

        open.by_row(second, hidden);
        open_sums.each(turned, weights3, open, |units, sums| {
            by_first.resize(by.len() * units.len(), 0.0);
            close_sums(units.clone(), sums, by, first, by_first, &mut b1[units.clone()]);
            lower.take(Matrix::new(inputs, self.flat.shape.inputs()), units, by_first);
        });
    }

    /// Writes the gradients by the tables to `gradient`: of each table's id that occurs, the product of its rows' sum with the weights
    /// of its columns.
    fn by_tables(&self, by_ids: &[IdSums], gradient: &mut [f32]) {
        gradient.fill(0.0);
        let (weights, _) = self.layer(1);
        let hidden = weights.columns;
        // Features are constants: no gradient by them is needed.
        let mut weights = &weights.numbers[self.flat.shape.features * hidden..];
        for (table, IdSums { ids, sums, .. }) in self.flat.parts.iter().zip(by_ids) {
            let (own, rest) = weights.split_at(table.columns * hidden);
            weights = rest;
            let mut by_embeddings = vec![0.0; ids.len() * table.columns];
            product(Matrix::new(sums, hidden), Matrix::new(own, hidden).transposed(), &mut by_embeddings);
            for (id, by) in ids.iter().zip(by_embeddings.chunks_exact(table.columns)) {
                gradient[table.at + *id as usize * table.columns..][..table.columns].copy_from_slice(by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::policy::net::{HostNet, Shape, Table};

    #[test]
    fn one_output_is_the_mean_of_several() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let shape = Shape { features: 3, tables: vec![Table { rows: 4, width: 2 }], hidden: 20, outputs: 5 };
        let [several, one] = [5, 1].map(|outputs| Flat::new(Shape { outputs, ..shape.clone() }));
        let params: Vec<f32> = (0..shape.len()).map(|_| rng.random_range(-0.8..0.8)).collect();
        let several = Net::new(&several, &params);
        let mean = several.mean_of_outputs();
        let one = Net::new(&one, &mean);
        let [mut of_several, mut of_one] = [(); 2].map(|_| Pass::default());
        for _ in 0..11 {
            let features = [(); 3].map(|_| rng.random_range(-1.0..1.0));
            let id = [rng.random_range(0..4)];
            several.push(&mut of_several, &features, &id);
            one.push(&mut of_one, &features, &id);
        }
        several.forward(&mut of_several);
        one.forward(&mut of_one);
        for (outputs, output) in of_several.outputs.chunks_exact(5).zip(&of_one.outputs) {
            let mean = outputs.iter().sum::<f32>() / 5.0;
            assert!((mean - output).abs() < 1e-5, "{output} is not {mean}");
        }
    }

    /// More columns than are made at a time, and a rest: sums over open units beside the products of a network with a second output
    /// that nothing depends on.
    #[test]
    fn gradients_from_one_output_are_those_of_several_of_which_one_counts() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let shape = Shape { features: 5, tables: vec![Table { rows: 4, width: 2 }], hidden: 150, outputs: 1 };
        let [one, two] = [1, 2].map(|outputs| Flat::new(Shape { outputs, ..shape.clone() }));
        let params: Vec<f32> = (0..shape.len()).map(|_| rng.random_range(-0.3..0.3)).collect();
        let last = params.len() - shape.hidden - 1;
        let with_second = |column: &[f32]| -> Vec<f32> { column.iter().flat_map(|weight| [*weight, 0.7]).collect() };
        let wide = [params[..last].to_vec(), with_second(&params[last..])].concat();
        let (one, two) = (Net::new(&one, &params), Net::new(&two, &wide));
        let [mut of_one, mut of_two] = [(); 2].map(|_| Pass::default());
        let rows = 37;
        for _ in 0..rows {
            let features = [(); 5].map(|_| rng.random_range(-1.0..1.0));
            let id = [rng.random_range(0..4)];
            one.push(&mut of_one, &features, &id);
            two.push(&mut of_two, &features, &id);
        }
        let by: Vec<f32> = (0..rows).map(|_| rng.random_range(-1.0..1.0)).collect();
        let by_two: Vec<f32> = by.iter().flat_map(|by| [*by, 0.0]).collect();
        let [mut found, mut expected] = [vec![], vec![]];
        one.forward(&mut of_one);
        two.forward(&mut of_two);
        one.gradients(&one.turned(), &mut of_one, &by, &mut found);
        two.gradients(&two.turned(), &mut of_two, &by_two, &mut expected);
        let lower = expected[..last].iter().copied();
        let expected: Vec<f32> = lower.chain(expected[last..].iter().copied().step_by(2)).collect();
        let size = expected.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() < 1e-5 * size, "{i}: {found} is not {expected}");
        }
        assert!(expected.iter().filter(|g| g.abs() > 1e-3 * size).count() > expected.len() / 4, "hardly any gradient");
    }

    /// Differences of the plain loops' outputs in single precision need wide steps, so the gradient is compared to few digits
    /// only.
    #[test]
    fn gradients_are_what_differences_say() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        // The memory serves all networks, so that what is left of one must not reach the other.
        let (mut pass, mut gradient) = (Pass::default(), Vec::new());
        let tables = vec![Table { rows: 3, width: 2 }, Table { rows: 4, width: 1 }];
        for (tables, outputs) in [(tables.clone(), 2), (vec![], 2), (tables, 1), (vec![], 1)] {
            let shape = Shape { features: 5, tables, hidden: 6, outputs };
            let params: Vec<f32> = (0..shape.len()).map(|_| rng.random_range(-0.8..0.8)).collect();
            let rows = 9;
            let features: Vec<f32> = (0..rows * shape.features).map(|_| rng.random_range(-1.0..1.0)).collect();
            let ids: Vec<u32> = (0..rows)
                .flat_map(|_| shape.tables.iter().map(|t| t.rows as u32))
                .map(|n| rng.random_range(0..n))
                .collect();
            let by: Vec<f32> = (0..rows * shape.outputs).map(|_| rng.random_range(-1.0..1.0)).collect();
            let sum = |params: &[f32]| -> f64 {
                let mut out = vec![0.0; by.len()];
                HostNet::new(shape.clone(), params.to_vec()).forward(&features, &ids, &mut out);
                out.iter().zip(&by).map(|(o, b)| f64::from(*o) * f64::from(*b)).sum()
            };
            let flat = Flat::new(shape.clone());
            let net = Net::new(&flat, &params);
            pass.clear();
            let tables = shape.tables.len();
            for (row, features) in features.chunks_exact(shape.features).enumerate() {
                net.push(&mut pass, features, &ids[row * tables..(row + 1) * tables]);
            }
            net.forward(&mut pass);
            net.gradients(&net.turned(), &mut pass, &by, &mut gradient);
            let mut moved = params.clone();
            for (i, g) in gradient.iter().enumerate() {
                let step = 1e-3;
                let at = |moved: &mut Vec<f32>, x: f32| {
                    moved[i] = x;
                    sum(moved)
                };
                let difference = (at(&mut moved, params[i] + step) - at(&mut moved, params[i] - step)) / 2e-3;
                moved[i] = params[i];
                assert!((difference - f64::from(*g)).abs() < 0.02, "{i}: {g} is not {difference}");
            }
            assert!(gradient.iter().filter(|g| g.abs() > 0.05).count() > shape.len() / 2, "hardly any gradient");
        }
    }
}
