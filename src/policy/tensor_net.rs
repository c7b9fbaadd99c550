//! The same network in burn, for the learner; parameters are one flat tensor, in which a device may want arrays to begin at round
//! places.
//!
//! A pass cuts the flat tensor into arrays; their gradients are joined into one flat gradient, so that clipping, Adam and averaging
//! are a few operations on one array instead of a chain per layer. The way back is written out: the losses give gradients by the
//! outputs in closed form, and what leads from there to the parameters is a dozen operations, where a graph that records the
//! way forward costs a device more of them and every operation a node.

use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

use super::net::{Part, Shape};
use super::products::{Products, product, product_over_rows};

/// Where the arrays of a shape lie in a flat tensor.
#[derive(Debug, Clone)]
pub struct Flat {
    pub shape: Shape,
    /// As in the flat parameters on the host, and on the device.
    packed: Vec<Part>,
    placed: Vec<Part>,
    /// Length of the tensor.
    pub len: usize,
}

impl Flat {
    /// Arrays begin at multiples of `aligned` numbers, so that cutting them costs a device nothing; 1 = as on the host.
    pub fn new(shape: Shape, aligned: usize) -> Self {
        let packed = shape.parts();
        let mut len = 0usize;
        let place = |part: &Part| {
            let at = len.next_multiple_of(aligned);
            len = at + part.rows * part.columns;
            Part { at, ..part.clone() }
        };
        let placed = packed.iter().map(place).collect();
        Self { packed, placed, len: len.next_multiple_of(aligned), shape }
    }

    fn has_gaps(&self) -> bool {
        self.len > self.shape.len()
    }

    /// Parameters of the host as the device has them, zeros in between.
    pub fn place(&self, params: &[f32]) -> Vec<f32> {
        let mut placed = vec![0.0; self.len];
        for (from, to) in self.packed.iter().zip(&self.placed) {
            placed[to.range()].copy_from_slice(&params[from.range()]);
        }
        placed
    }

    /// What [`Flat::place`] was made from.
    pub fn pack(&self, placed: &[f32]) -> Vec<f32> {
        self.placed.iter().flat_map(|part| &placed[part.range()]).copied().collect()
    }

    /// Cuts flat parameters into plain arrays.
    pub fn cut<B: Backend>(&self, flat: &Tensor<B, 1>) -> Net<B> {
        let cut = |p: &Part| flat.clone().slice(p.range()).reshape([p.rows, p.columns]);
        Net { arrays: self.placed.iter().map(cut).collect(), features: self.shape.features }
    }

    /// Joins gradients by the arrays.
    pub fn join<B: Backend>(&self, gradients: Vec<Tensor<B, 2>>) -> Tensor<B, 1> {
        let device = gradients[0].device();
        let flat = self.placed.iter().zip(gradients).map(|(p, g)| (p, g.reshape([p.rows * p.columns])));
        if !self.has_gaps() {
            return Tensor::cat(flat.map(|(_, gradient)| gradient).collect(), 0);
        }
        flat.fold(Tensor::zeros([self.len], &device), |all, (p, gradient)| all.slice_assign([p.range()], gradient))
    }
}

/// Parameters cut into the arrays of the shape, each `[rows, columns]`.
pub struct Net<B: Backend> {
    arrays: Vec<Tensor<B, 2>>,
    features: usize,
}

/// Rows on their way through a network, `[rows, width]` each: what the way back needs.
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

impl<B: Products> Net<B> {
    /// Embedding tables.
    fn tables(&self) -> &[Tensor<B, 2>] {
        &self.arrays[..self.arrays.len() - 6]
    }

    /// Weights and bias of each layer.
    fn layers(&self) -> [&[Tensor<B, 2>]; 3] {
        let layers = &self.arrays[self.tables().len()..];
        [&layers[..2], &layers[2..4], &layers[4..]]
    }

    /// Infers rows.
    ///
    /// # Shapes
    /// - result: `[rows, outputs]`
    pub fn forward(&self, rows: &Rows<B>) -> Tensor<B, 2> {
        self.pass(rows).outputs
    }

    /// Infers rows that it will go back from.
    pub fn pass(&self, rows: &Rows<B>) -> Pass<B> {
        let mut inputs = rows.features.clone();
        if !rows.ids.is_empty() {
            let embedded = self.tables().iter().zip(&rows.ids).map(|(table, ids)| table.clone().select(0, ids.clone()));
            inputs = Tensor::cat(std::iter::once(inputs).chain(embedded).collect(), 1);
        }
        let dense = |x: &Tensor<B, 2>, layer: &[Tensor<B, 2>]| product(x.clone(), layer[0].clone()) + layer[1].clone();
        let [l1, l2, l3] = self.layers();
        let first = relu(dense(&inputs, l1));
        let second = relu(dense(&first, l2));
        let outputs = dense(&second, l3);
        Pass { ids: rows.ids.clone(), inputs, first, second, outputs }
    }

    /// Gradients by the arrays, of a sum whose gradient by the outputs of `pass` is `by`.
    ///
    /// # Shapes
    /// - by: `[rows, outputs]`; result: that of the arrays.
    pub fn gradients(&self, pass: Pass<B>, by: Tensor<B, 2>) -> Vec<Tensor<B, 2>> {
        let Pass { ids, inputs, first, second, .. } = pass;
        let [l1, l2, l3] = self.layers();
        let by_layer =
            |x: &Tensor<B, 2>, by: &Tensor<B, 2>| [product_over_rows(x.clone(), by.clone()), by.clone().sum_dim(0)];
        // Through the weights, and through the rectifier where it let something pass.
        let through = |by: Tensor<B, 2>, weights: &Tensor<B, 2>, rectified: &Tensor<B, 2>| {
            product(by, weights.clone().transpose()).mask_fill(rectified.clone().equal_elem(0.0), 0.0)
        };
        let third = by_layer(&second, &by);
        let by = through(by, &l3[0], &second);
        let second = by_layer(&first, &by);
        let by = through(by, &l2[0], &first);
        let first = by_layer(&inputs, &by);
        let mut gradients = Vec::with_capacity(self.arrays.len());
        if !ids.is_empty() {
            // Features are given: nobody asks for the gradient by them.
            let weights = l1[0].clone().slice(self.features..l1[0].dims()[0]);
            let by_embedded = product(by, weights.transpose());
            let mut at = 0;
            for (table, ids) in self.tables().iter().zip(ids) {
                let [rows, width] = table.dims();
                let by_rows = by_embedded.clone().narrow(1, at, width);
                at += width;
                let none = Tensor::zeros([rows, width], &table.device());
                gradients.push(none.select_assign(0, ids, by_rows, IndexingUpdateOp::Add));
            }
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

    use super::super::net::{HostNet, Table};
    use super::*;

    /// Differences of the plain loops' outputs, in double precision's stead over steps that are wide for single precision: the
    /// gradient is right to the few digits that they have.
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
            for aligned in [1, 16] {
                let flat = Flat::new(shape.clone(), aligned);
                let placed = flat.place(&params);
                let net = flat.cut::<Flex>(&Tensor::from_data(TensorData::new(placed, [flat.len]), &FlexDevice));
                let pass = net.pass(&Rows::upload(&shape, features.clone(), &ids, &FlexDevice));
                let by = Tensor::from_data(TensorData::new(by.clone(), [rows, shape.outputs]), &FlexDevice);
                let gradient = flat.pack(&flat.join(net.gradients(pass, by)).into_data().into_vec::<f32>().unwrap());
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

    #[test]
    fn placed_parameters_begin_at_round_places_and_come_back() {
        let shape = Shape { features: 5, tables: vec![Table { rows: 3, width: 2 }], hidden: 7, outputs: 2 };
        let params: Vec<f32> = (0..shape.len()).map(|i| 1.0 + i as f32).collect();
        for aligned in [1, 4, 128] {
            let flat = Flat::new(shape.clone(), aligned);
            let placed = flat.place(&params);
            assert_eq!(placed.len(), flat.len);
            assert!(flat.placed.iter().all(|part| part.at.is_multiple_of(aligned)));
            assert_eq!(placed.iter().filter(|p| **p != 0.0).count(), params.len());
            assert_eq!(flat.pack(&placed), params);
        }
    }
}
