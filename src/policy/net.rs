//! The networks' shape, and inference on the host.
//!
//! Parameters are one flat vector, so that publishing, averaging, saving and the optimiser handle one array. Actors and
//! evaluation infer a handful of rows at a time, where a tensor library's overhead outweighs the arithmetic; this
//! kernel does it without allocation. Each output is summed in the order of the inputs whatever the vector width,
//! so every processor gives the same bits.

use multiversion::multiversion;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// An embedding table: `rows` ids, `width` numbers each; id 0 stands for every unknown id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub rows: usize,
    pub width: usize,
}

/// A perceptron of two hidden layers over features and embedded ids.
///
/// Flat layout: the tables `[rows, width]`, then `w1 [inputs, hidden]`, `b1`, `w2 [hidden, hidden]`, `b2`,
/// `w3 [hidden, outputs]`, `b3`; matrices row-major, inputs are the features followed by the embeddings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    pub features: usize,
    pub tables: Vec<Table>,
    pub hidden: usize,
    pub outputs: usize,
}

/// One array within the flat parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    pub rows: usize,
    pub columns: usize,
    pub at: usize,
}

impl Part {
    pub fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.rows * self.columns
    }
}

impl Shape {
    /// Returns the width of the first layer's input.
    pub fn inputs(&self) -> usize {
        self.features + self.tables.iter().map(|t| t.width).sum::<usize>()
    }

    /// Returns the arrays of the flat vector, in order. A bias has one row.
    pub fn parts(&self) -> Vec<Part> {
        let (i, h, o) = (self.inputs(), self.hidden, self.outputs);
        let mut at = 0;
        let mut parts = Vec::new();
        let mut push = |name: String, rows: usize, columns: usize| {
            parts.push(Part { name, rows, columns, at });
            at += rows * columns;
        };
        for (k, t) in self.tables.iter().enumerate() {
            push(format!("embedding{k}"), t.rows, t.width);
        }
        push("w1".into(), i, h);
        push("b1".into(), 1, h);
        push("w2".into(), h, h);
        push("b2".into(), 1, h);
        push("w3".into(), h, o);
        push("b3".into(), 1, o);
        parts
    }

    /// Returns the length of the flat parameters.
    pub fn len(&self) -> usize {
        self.parts().last().map_or(0, |p| p.range().end)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Draws initial parameters: He-uniform weights, the last layer's scaled by `last`; small embeddings; zero biases, except
    /// for `output_bias` of the last layer.
    pub fn initial(&self, rng: &mut ChaCha8Rng, last: f32, output_bias: f32) -> Vec<f32> {
        let mut params = vec![0.0; self.len()];
        for part in self.parts() {
            let limit = match part.name.as_str() {
                "b1" | "b2" => continue,
                "b3" => {
                    params[part.range()].fill(output_bias);
                    continue;
                }
                "w3" => last * (6.0 / part.rows as f32).sqrt(),
                name if name.starts_with("embedding") => 0.05,
                _ => (6.0 / part.rows as f32).sqrt(),
            };
            for p in &mut params[part.range()] {
                *p = rng.random_range(-1.0f32..1.0) * limit;
            }
        }
        params
    }
}

/// Inference with flat parameters.
#[derive(Debug, Clone)]
pub struct HostNet {
    shape: Shape,
    parts: Vec<Part>,
    params: Vec<f32>,
    input: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl HostNet {
    /// # Panics
    /// If the length of `params` does not match the shape.
    pub fn new(shape: Shape, params: Vec<f32>) -> Self {
        assert_eq!(params.len(), shape.len(), "parameters fit the shape");
        Self { parts: shape.parts(), shape, params, input: vec![], first: vec![], second: vec![] }
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// # Panics
    /// If the length of `params` does not match the shape.
    pub fn set_params(&mut self, params: &[f32]) {
        self.params.copy_from_slice(params);
    }

    /// Infers rows.
    ///
    /// # Shapes
    /// - features: `[rows, features]`, ids: `[rows, tables]`, out: `[rows, outputs]`; ids beyond a table count as 0.
    pub fn forward(&mut self, features: &[f32], ids: &[u32], out: &mut [f32]) {
        let shape = &self.shape;
        let rows = features.len() / shape.features;
        let inputs = shape.inputs();
        let tables = shape.tables.len();
        debug_assert_eq!((ids.len(), out.len()), (rows * tables, rows * shape.outputs));
        let p = &self.params;
        let part = |i: usize| &p[self.parts[tables + i].range()];
        let x: &[f32] = if tables == 0 {
            features
        } else {
            self.input.clear();
            for r in 0..rows {
                self.input.extend_from_slice(&features[r * shape.features..(r + 1) * shape.features]);
                for (k, t) in shape.tables.iter().enumerate() {
                    let id = ids[r * tables + k] as usize;
                    let at = self.parts[k].at + if id < t.rows { id } else { 0 } * t.width;
                    self.input.extend_from_slice(&p[at..at + t.width]);
                }
            }
            &self.input
        };
        let h = shape.hidden;
        self.first.resize(rows * h, 0.0);
        self.second.resize(rows * h, 0.0);
        dense(x, part(0), part(1), inputs, h, true, &mut self.first);
        dense(&self.first, part(2), part(3), h, h, true, &mut self.second);
        dense(&self.second, part(4), part(5), h, shape.outputs, false, out);
    }
}

const LANES: usize = 16;
const ROWS: usize = 4;

/// Computes `out = x w + b`, rectified if `relu`. Tiles of 4 rows by 16 outputs stay in registers. A tile with fewer rows
/// repeats the last one, which costs nothing: the four sums overlap in the latency of one addition.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn dense(x: &[f32], w: &[f32], b: &[f32], inputs: usize, outputs: usize, relu: bool, out: &mut [f32]) {
    let rows = out.len() / outputs;
    let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
    for first in (0..rows).step_by(ROWS) {
        let at: [usize; ROWS] = std::array::from_fn(|i| (first + i).min(rows - 1));
        let x = at.map(|r| &x[r * inputs..(r + 1) * inputs]);
        let mut o = 0;
        while o + LANES <= outputs {
            let bias: &[f32; LANES] = b[o..o + LANES].try_into().expect("a tile");
            let mut acc = [*bias; ROWS];
            for k in 0..inputs {
                let weights: &[f32; LANES] = w[k * outputs + o..][..LANES].try_into().expect("a tile");
                for (row, x) in acc.iter_mut().zip(x) {
                    let v = x[k];
                    for (a, weight) in row.iter_mut().zip(weights) {
                        *a += v * weight;
                    }
                }
            }
            for (r, row) in at.iter().zip(acc) {
                out[r * outputs + o..][..LANES].copy_from_slice(&row.map(|a| a.max(floor)));
            }
            o += LANES;
        }
        for o in o..outputs {
            let mut acc = [b[o]; ROWS];
            for k in 0..inputs {
                let weight = w[k * outputs + o];
                for (a, x) in acc.iter_mut().zip(x) {
                    *a += x[k] * weight;
                }
            }
            for (r, a) in at.iter().zip(acc) {
                out[r * outputs + o] = a.max(floor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    /// Plain triple loop over the documented layout.
    fn reference(shape: &Shape, p: &[f32], features: &[f32], ids: &[u32]) -> Vec<f32> {
        let parts = shape.parts();
        let tables = shape.tables.len();
        let layer = |x: &[f32], w: &Part, b: &Part, relu: bool| -> Vec<f32> {
            (0..w.columns)
                .map(|o| {
                    let sum = x.iter().enumerate().fold(p[b.at + o], |s, (k, v)| s + v * p[w.at + k * w.columns + o]);
                    if relu { sum.max(0.0) } else { sum }
                })
                .collect()
        };
        let rows = features.len() / shape.features;
        (0..rows)
            .flat_map(|r| {
                let mut x = features[r * shape.features..(r + 1) * shape.features].to_vec();
                for (k, t) in shape.tables.iter().enumerate() {
                    let at = parts[k].at + ids[r * tables + k] as usize * t.width;
                    x.extend_from_slice(&p[at..at + t.width]);
                }
                let l = &parts[tables..];
                let x = layer(&x, &l[0], &l[1], true);
                let x = layer(&x, &l[2], &l[3], true);
                layer(&x, &l[4], &l[5], false)
            })
            .collect()
    }

    #[test]
    fn kernel_equals_the_plain_loops_bit_for_bit() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        for (hidden, outputs, tables) in [
            (64, 1, vec![]),
            (32, 16, vec![Table { rows: 5, width: 4 }]),
            (23, 3, vec![Table { rows: 2, width: 1 }, Table { rows: 9, width: 7 }]),
        ] {
            let shape = Shape { features: 11, tables, hidden, outputs };
            let params = shape.initial(&mut rng, 1.0, 0.3);
            for rows in [1, 3, 4, 7] {
                let x: Vec<f32> = (0..rows * 11).map(|_| rng.random_range(-2.0..2.0)).collect();
                let ids: Vec<u32> = (0..rows)
                    .flat_map(|_| shape.tables.iter().map(|t| t.rows as u32 - 1).collect::<Vec<_>>())
                    .collect();
                let mut out = vec![0.0; rows * outputs];
                HostNet::new(shape.clone(), params.clone()).forward(&x, &ids, &mut out);
                assert_eq!(out, reference(&shape, &params, &x, &ids));
            }
        }
    }
}
