//! The same network in burn, for the learner; parameters are one flat tensor.
//!
//! A pass cuts the flat tensor into arrays; their gradients are joined into one flat gradient, so that clipping, Adam and
//! averaging are a few operations on one array instead of a chain per layer. The backward pass is explicit: the losses give
//! gradients by the outputs in closed form, and from there to the parameters it takes a dozen operations; automatic
//! differentiation would need more of them, and a graph node for every operation.

use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

use crate::policy::net::{Part, Shape};

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
    pub fn cut<B: Backend>(&self, flat: &Tensor<B, 1>) -> Net<B> {
        let cut = |p: &Part| flat.clone().slice(p.range()).reshape([p.rows, p.columns]);
        Net { arrays: self.parts.iter().map(cut).collect(), features: self.shape.features }
    }

    /// Joins gradients by the arrays.
    pub fn join<B: Backend>(&self, gradients: Vec<Tensor<B, 2>>) -> Tensor<B, 1> {
        let flat = self.parts.iter().zip(gradients).map(|(p, g)| g.reshape([p.rows * p.columns]));
        Tensor::cat(flat.collect(), 0)
    }
}

/// Parameters cut into the arrays of the shape, each `[rows, columns]`.
pub struct Net<B: Backend> {
    arrays: Vec<Tensor<B, 2>>,
    features: usize,
}

/// Activations of rows in a network, `[rows, width]` each, for the backward pass.
pub struct Pass<B: Backend> {
    ids: Vec<Tensor<B, 1, Int>>,
    inputs: Tensor<B, 2>,
    first: Tensor<B, 2>,
    second: Tensor<B, 2>,
    /// `[rows, outputs]`
    pub outputs: Tensor<B, 2>,
}

/// Rows to infer.
pub struct Rows<B: Backend> {
    /// `[rows, features]`.
    pub features: Tensor<B, 2>,
    /// One `[rows]` for each table.
    pub ids: Vec<Tensor<B, 1, Int>>,
}

impl<B: Backend> Rows<B> {
    /// Uploads rows.
    ///
    /// # Shapes
    /// - features: `[rows, features]`, ids: `[rows, tables]`, row-major.
    pub fn upload(shape: &Shape, features: Vec<f32>, ids: &[u32], device: &B::Device) -> Self {
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

impl<B: Backend> Net<B> {
    /// Returns the embedding tables.
    fn tables(&self) -> &[Tensor<B, 2>] {
        &self.arrays[..self.arrays.len() - 6]
    }

    /// Returns weights and bias of each layer.
    fn layers(&self) -> [&[Tensor<B, 2>]; 3] {
        let layers = &self.arrays[self.tables().len()..];
        [&layers[..2], &layers[2..4], &layers[4..]]
    }

    /// Concatenates features and embeddings of rows.
    ///
    /// # Shapes
    /// - result: `[rows, inputs]`
    pub fn inputs(&self, rows: &Rows<B>) -> Tensor<B, 2> {
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
    pub fn by_tables(&self, ids: Vec<Tensor<B, 1, Int>>, by: &Tensor<B, 2>) -> Vec<Tensor<B, 2>> {
        let mut at = 0;
        let by_table = |(table, ids): (&Tensor<B, 2>, Tensor<B, 1, Int>)| {
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
    pub fn forward(&self, rows: &Rows<B>) -> Tensor<B, 2> {
        self.pass(rows).outputs
    }

    /// Infers rows and keeps the activations for the backward pass.
    pub fn pass(&self, rows: &Rows<B>) -> Pass<B> {
        let inputs = self.inputs(rows);
        let dense = |x: &Tensor<B, 2>, layer: &[Tensor<B, 2>]| x.clone().matmul(layer[0].clone()) + layer[1].clone();
        let [l1, l2, l3] = self.layers();
        let first = relu(dense(&inputs, l1));
        let second = relu(dense(&first, l2));
        let outputs = dense(&second, l3);
        Pass { ids: rows.ids.clone(), inputs, first, second, outputs }
    }

    /// Returns the gradients by the arrays, of a sum whose gradient by the outputs of `pass` is `by`.
    ///
    /// # Shapes
    /// - by: `[rows, outputs]`; result: that of the arrays.
    pub fn gradients(&self, pass: Pass<B>, by: Tensor<B, 2>) -> Vec<Tensor<B, 2>> {
        let Pass { ids, inputs, first, second, .. } = pass;
        let [l1, l2, l3] = self.layers();
        let by_layer =
            |x: &Tensor<B, 2>, by: &Tensor<B, 2>| [x.clone().transpose().matmul(by.clone()), by.clone().sum_dim(0)];
        // Back-propagates through the weights, and through the rectifier where it was open.
        let through = |by: Tensor<B, 2>, weights: &Tensor<B, 2>, rectified: &Tensor<B, 2>| {
            by.matmul(weights.clone().transpose()).mask_fill(rectified.clone().equal_elem(0.0), 0.0)
        };
        let third = by_layer(&second, &by);
        let by = through(by, &l3[0], &second);
        let second = by_layer(&first, &by);
        let by = through(by, &l2[0], &first);
        let first = by_layer(&inputs, &by);
        let mut gradients = Vec::new();
        if !ids.is_empty() {
            // Features are constants: no gradient by them is needed.
            let weights = l1[0].clone().slice(self.features..l1[0].dims()[0]);
            gradients = self.by_tables(ids, &by.matmul(weights.transpose()));
        }
        gradients.extend([first, second, third].into_iter().flatten());
        gradients
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn_flex::FlexDevice;
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
            let net =
                flat.cut::<Flex>(&Tensor::from_data(TensorData::new(params.clone(), [params.len()]), &FlexDevice));
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
