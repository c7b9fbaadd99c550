//! The same network in burn, for the learner; parameters are one flat tensor.
//!
//! A forward pass with gradients cuts the flat tensor into leaves; their gradients are joined into one flat gradient, so that
//! clipping, Adam and averaging are a few operations on one array instead of a chain per layer.

use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};

use super::net::Shape;

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

/// Cuts flat parameters into plain arrays.
pub fn plain<B: Backend>(shape: &Shape, flat: &Tensor<B, 1>) -> Leaves<B> {
    let arrays = shape.parts().iter().map(|p| flat.clone().slice(p.range()).reshape([p.rows, p.columns])).collect();
    Leaves { arrays }
}

/// Cuts flat parameters into leaves that gather gradients.
pub fn leaves<B: AutodiffBackend>(shape: &Shape, flat: &Tensor<B::InnerBackend, 1>) -> Leaves<B> {
    let arrays = plain(shape, flat).arrays.into_iter().map(|t| Tensor::from_inner(t).require_grad()).collect();
    Leaves { arrays }
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

impl<B: AutodiffBackend> Leaves<B> {
    /// The flat gradient; zero for arrays that nothing flowed to.
    pub fn gradient(&self, gradients: &B::Gradients) -> Tensor<B::InnerBackend, 1> {
        let flat = self
            .arrays
            .iter()
            .map(|leaf| {
                let [rows, columns] = leaf.dims();
                leaf.grad(gradients)
                    .unwrap_or_else(|| Tensor::zeros([rows, columns], &leaf.device()))
                    .reshape([rows * columns])
            })
            .collect();
        Tensor::cat(flat, 0)
    }
}
