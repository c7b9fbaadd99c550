//! The same network in burn, for the learner; parameters are one flat tensor, in which a device may want arrays to begin at round
//! places.
//!
//! A forward pass with gradients cuts the flat tensor into leaves; their gradients are joined into one flat gradient, so that
//! clipping, Adam and averaging are a few operations on one array instead of a chain per layer.

use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use super::net::{Part, Shape};

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
    pub fn plain<B: Backend>(&self, flat: &Tensor<B, 1>) -> Leaves<B> {
        let cut = |p: &Part| flat.clone().slice(p.range()).reshape([p.rows, p.columns]);
        Leaves { arrays: self.placed.iter().map(cut).collect() }
    }

    /// Cuts flat parameters into leaves that gather gradients.
    pub fn leaves<B: AutodiffBackend>(&self, flat: &Tensor<B::InnerBackend, 1>) -> Leaves<B> {
        let plain = self.plain(flat).arrays;
        Leaves { arrays: plain.into_iter().map(|t| Tensor::from_inner(t).require_grad()).collect() }
    }

    /// The flat gradient of leaves; zero for arrays that nothing flowed to.
    pub fn gradient<B: AutodiffBackend>(&self, leaves: &Leaves<B>, by: &B::Gradients) -> Tensor<B::InnerBackend, 1> {
        let of = |leaf: &Tensor<B, 2>| {
            let [rows, columns] = leaf.dims();
            let gradient = leaf.grad(by).unwrap_or_else(|| Tensor::zeros([rows, columns], &leaf.device()));
            gradient.reshape([rows * columns])
        };
        let mut gradients = leaves.arrays.iter().map(of);
        if !self.has_gaps() {
            return Tensor::cat(gradients.collect(), 0);
        }
        let flat = Tensor::zeros([self.len], &leaves.arrays[0].device());
        self.placed
            .iter()
            .zip(&mut gradients)
            .fold(flat, |flat, (p, gradient)| flat.slice_assign([p.range()], gradient))
    }
}

/// Parameters cut into the arrays of the shape, each `[rows, columns]`.
pub struct Leaves<B: Backend> {
    arrays: Vec<Tensor<B, 2>>,
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

impl<B: Backend> Leaves<B> {
    /// Infers rows.
    ///
    /// # Shapes
    /// - result: `[rows, outputs]`
    pub fn forward(&self, rows: &Rows<B>) -> Tensor<B, 2> {
        let tables = rows.ids.len();
        let mut x = rows.features.clone();
        if tables > 0 {
            let mut parts = vec![x];
            for (table, ids) in self.arrays.iter().zip(&rows.ids) {
                parts.push(table.clone().select(0, ids.clone()));
            }
            x = Tensor::cat(parts, 1);
        }
        let [w1, b1, w2, b2, w3, b3] = &self.arrays[tables..] else {
            unreachable!("a shape has three layers");
        };
        let x = relu(x.matmul(w1.clone()) + b1.clone());
        let x = relu(x.matmul(w2.clone()) + b2.clone());
        x.matmul(w3.clone()) + b3.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::net::Table;
    use super::*;

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
