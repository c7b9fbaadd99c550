//! The network as the learner passes through it on the CPU, forwards and backwards; parameters are one flat tensor.
//!
//! A pass cuts the flat tensor into arrays; their gradients are joined into one flat gradient, so that clipping, Adam and
//! averaging are a few operations on one array instead of a chain per layer. The backward pass is explicit: the losses give
//! gradients by the outputs in closed form, and from there to the parameters it takes a dozen operations; automatic
//! differentiation would need more of them, and a graph node for every operation.
//!
//! Matrix products call the library that burn's CPU backend calls, but write to fresh memory, which the backend clears and copies
//! first. Bias and rectifier are applied to a product in place. As operations on tensors, each takes a pass and a new tensor.

use burn::backend::Flex;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};
use burn_flex::FlexDevice;
use multiversion::multiversion;

use crate::policy::net::{Part, Shape};

use super::transfer::to_host;

/// Positions of a shape's arrays in its flat parameters.
#[derive(Debug, Clone)]
pub struct Flat {
    pub shape: Shape,
    pub parts: Vec<Part>,
}

impl Flat {
    pub fn new(shape: Shape) -> Self {
        Self { parts: shape.parts(), shape }
    }

    /// Cuts flat parameters into plain arrays.
    pub fn cut(&self, flat: &Tensor<Flex, 1>) -> Net {
        let cut = |p: &Part| flat.clone().slice(p.range()).reshape([p.rows, p.columns]);
        Net { arrays: self.parts.iter().map(cut).collect(), features: self.shape.features }
    }

    /// Joins gradients by the arrays.
    pub fn join(&self, gradients: Vec<Matrix>) -> Tensor<Flex, 1> {
        let flat = self.parts.iter().zip(gradients).map(|(p, g)| g.reshape([p.rows * p.columns]));
        Tensor::cat(flat.collect(), 0)
    }
}

type Matrix = Tensor<Flex, 2>;
type Ids = Tensor<Flex, 1, Int>;

/// Parameters cut into the arrays of the shape, each `[rows, columns]`.
pub struct Net {
    arrays: Vec<Matrix>,
    features: usize,
}

/// Activations of rows in a network, `[rows, width]` each, for the backward pass.
pub struct Pass {
    ids: Vec<Ids>,
    inputs: Matrix,
    first: Matrix,
    second: Matrix,
    /// `[rows, outputs]`
    pub outputs: Matrix,
}

/// Rows to infer.
pub struct Rows {
    /// `[rows, features]`.
    pub features: Matrix,
    /// One `[rows]` for each table.
    pub ids: Vec<Ids>,
}

impl Rows {
    /// Uploads rows.
    ///
    /// # Shapes
    /// - features: `[rows, features]`, ids: `[rows, tables]`, row-major.
    pub fn upload(shape: &Shape, features: Vec<f32>, ids: &[u32], device: &FlexDevice) -> Self {
        let rows = features.len() / shape.features;
        let tables = shape.tables.len();
        let ids = (0..tables)
            .map(|t| {
                let column: Vec<i32> = ids.chunks_exact(tables).map(|row| row[t] as i32).collect();
                Tensor::from_data(TensorData::new(column, [rows]), device)
            })
            .collect();
        Self { features: Tensor::from_data(TensorData::new(features, [rows, shape.features]), device), ids }
    }
}

/// Returns the product of two matrices, row-major.
///
/// # Shapes
/// - lhs: `[m, k]`, rhs: `[k, n]`; result: `[m, n]`
///
/// # Panics
/// If the shapes do not fit.
fn product(lhs: &Matrix, rhs: &Matrix) -> Vec<f32> {
    let ([m, k], [rhs_k, n]) = (lhs.dims(), rhs.dims());
    assert_eq!(k, rhs_k, "the columns of one matrix are the rows of the other");
    let [lhs, rhs] = [lhs, rhs].map(|matrix| matrix.clone().into_primitive().tensor());
    let [from_lhs, from_rhs] = [&lhs, &rhs].map(|matrix| &matrix.storage::<f32>()[matrix.layout().start_offset()..]);
    let [lhs_strides, rhs_strides] = [&lhs, &rhs].map(|matrix| matrix.layout().strides());
    let mut out = Vec::with_capacity(m * n);
    // SAFETY: the layouts are those of the storages, which `lhs` and `rhs` keep alive; `out` has room for `m` rows of `n`, and all of
    // them are written before its length says so.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            from_lhs.as_ptr(),
            lhs_strides[1],
            lhs_strides[0],
            from_rhs.as_ptr(),
            rhs_strides[1],
            rhs_strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
        out.set_len(m * n);
    }
    out
}

fn matrix(numbers: Vec<f32>, columns: usize) -> Matrix {
    let rows = numbers.len() / columns;
    Tensor::from_data(TensorData::new(numbers, [rows, columns]), &FlexDevice)
}

/// Adds a bias to each row.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_bias(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// Adds a bias to each row and rectifies.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_bias_and_rectify(rows: &mut [f32], bias: &[f32]) {
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x = (*x + b).max(0.0));
    }
}

/// Clears the gradients where the rectifier was closed.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn close(gradients: &mut [f32], rectified: &[f32]) {
    for (gradient, rectified) in gradients.iter_mut().zip(rectified) {
        *gradient = if *rectified == 0.0 { 0.0 } else { *gradient };
    }
}

impl Net {
    /// Returns the embedding tables.
    fn tables(&self) -> &[Matrix] {
        &self.arrays[..self.arrays.len() - 6]
    }

    /// Returns weights and bias of each layer.
    fn layers(&self) -> [&[Matrix]; 3] {
        let layers = &self.arrays[self.tables().len()..];
        [&layers[..2], &layers[2..4], &layers[4..]]
    }

    /// Concatenates features and embeddings of rows.
    ///
    /// # Shapes
    /// - result: `[rows, inputs]`
    fn inputs(&self, rows: &Rows) -> Matrix {
        let features = rows.features.clone();
        if rows.ids.is_empty() {
            return features;
        }
        let embedded = self.tables().iter().zip(&rows.ids).map(|(table, ids)| table.clone().select(0, ids.clone()));
        Tensor::cat(std::iter::once(features).chain(embedded).collect(), 1)
    }

    /// Returns the gradients by the tables, from those by the embeddings.
    ///
    /// # Shapes
    /// - ids: `[rows]` each, by: `[rows, inputs - features]`; result: that of the tables.
    fn by_tables(&self, ids: Vec<Ids>, by: &Matrix) -> Vec<Matrix> {
        let mut at = 0;
        let by_table = |(table, ids): (&Matrix, Ids)| {
            let [rows, width] = table.dims();
            let by_rows = by.clone().narrow(1, at, width);
            at += width;
            let none = Tensor::zeros([rows, width], &table.device());
            none.select_assign(0, ids, by_rows, IndexingUpdateOp::Add)
        };
        self.tables().iter().zip(ids).map(by_table).collect()
    }

    /// Infers rows.
    ///
    /// # Shapes
    /// - result: `[rows, outputs]`
    pub fn forward(&self, rows: &Rows) -> Matrix {
        self.pass(rows).outputs
    }

    /// Infers rows and keeps the activations for the backward pass.
    pub fn pass(&self, rows: &Rows) -> Pass {
        let inputs = self.inputs(rows);
        let dense = |x: &Matrix, layer: &[Matrix], finish: fn(&mut [f32], &[f32])| {
            let bias = to_host(layer[1].clone());
            let mut rows = product(x, &layer[0]);
            finish(&mut rows, &bias);
            matrix(rows, bias.len())
        };
        let [l1, l2, l3] = self.layers();
        let first = dense(&inputs, l1, add_bias_and_rectify);
        let second = dense(&first, l2, add_bias_and_rectify);
        let outputs = dense(&second, l3, add_bias);
        Pass { ids: rows.ids.clone(), inputs, first, second, outputs }
    }

    /// Returns the gradients by the arrays, of a sum whose gradient by the outputs of `pass` is `by`.
    ///
    /// # Shapes
    /// - by: `[rows, outputs]`; result: that of the arrays.
    pub fn gradients(&self, pass: Pass, by: Matrix) -> Vec<Matrix> {
        let Pass { ids, inputs, first, second, .. } = pass;
        let [l1, l2, l3] = self.layers();
        let by_layer = |x: &Matrix, by: &Matrix| {
            [matrix(product(&x.clone().transpose(), by), by.dims()[1]), by.clone().sum_dim(0)]
        };
        // Back-propagates through the weights, and through the rectifier where it was open.
        let through = |by: &Matrix, weights: &Matrix, rectified: &Matrix| {
            let columns = rectified.dims()[1];
            let rectified = rectified.clone().into_primitive().tensor();
            let mut gradients = product(by, &weights.clone().transpose());
            close(&mut gradients, rectified.storage());
            matrix(gradients, columns)
        };
        let third = by_layer(&second, &by);
        let by = through(&by, &l3[0], &second);
        let second = by_layer(&first, &by);
        let by = through(&by, &l2[0], &first);
        let first = by_layer(&inputs, &by);
        let mut gradients = Vec::new();
        if !ids.is_empty() {
            // Features are constants: no gradient by them is needed.
            let weights = l1[0].clone().slice(self.features..l1[0].dims()[0]);
            gradients =
                self.by_tables(ids, &matrix(product(&by, &weights.transpose()), inputs.dims()[1] - self.features));
        }
        gradients.extend([first, second, third].into_iter().flatten());
        gradients
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::policy::net::{HostNet, Table};

    /// Differences of the plain loops' outputs in single precision need wide steps, so the gradient is compared to few digits
    /// only.
    #[test]
    fn gradients_are_what_differences_say() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for tables in [vec![], vec![Table { rows: 3, width: 2 }, Table { rows: 4, width: 1 }]] {
            let shape = Shape { features: 5, tables, hidden: 6, outputs: 2 };
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
            let net = flat.cut(&Tensor::from_data(TensorData::new(params.clone(), [params.len()]), &FlexDevice));
            let pass = net.pass(&Rows::upload(&shape, features.clone(), &ids, &FlexDevice));
            let by = Tensor::from_data(TensorData::new(by.clone(), [rows, shape.outputs]), &FlexDevice);
            let gradient = flat.join(net.gradients(pass, by)).into_data().into_vec::<f32>().unwrap();
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
