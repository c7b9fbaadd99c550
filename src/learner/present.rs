//! The rows of a batch that are there.
//!
//! The layout of a batch is fixed: a row for each step and contract, whether or not the contract may still be shown. A contract outside
//! its flight, or one that has delivered all, has nothing to learn. Its rows are not passed through the networks: their outputs
//! count as 0, and so do the gradients by them.

use super::passes::{Net, Pass};

/// The rows of a layout that are there, on their way through a network.
#[derive(Debug, Default)]
pub struct PresentRows {
    pass: Pass,
    /// Places of the rows in the layout, ascending.
    places: Vec<usize>,
    /// `[places, outputs]`
    outputs: Vec<f32>,
    /// `[rows, outputs]`
    by: Vec<f32>,
}

impl PresentRows {
    /// Forgets the rows and keeps their memory.
    pub fn clear(&mut self) {
        self.pass.clear();
        self.places.clear();
    }

    /// Adds the row at `place` of the layout.
    pub fn push(&mut self, net: &Net, place: usize, features: &[f32], ids: &[u32]) {
        net.push(&mut self.pass, features, ids);
        self.places.push(place);
    }

    /// Infers the rows; returns the outputs of all places of the layout.
    ///
    /// # Shapes
    /// - result: `[places, outputs]`
    pub fn infer(&mut self, net: &Net, places: usize) -> &[f32] {
        net.forward(&mut self.pass);
        let width = net.outputs();
        self.outputs.clear();
        for (&place, row) in self.places.iter().zip(self.pass.outputs.chunks_exact(width)) {
            self.outputs.resize(place * width, 0.0);
            self.outputs.extend_from_slice(row);
        }
        self.outputs.resize(places * width, 0.0);
        &self.outputs
    }

    /// Writes the gradients by the network's parameters, from those by the outputs of all places, to `gradient`.
    ///
    /// # Shapes
    /// - turned: [`Net::turned`]; by: `[places, outputs]`; gradient: flat, as the parameters
    pub fn gradients(&mut self, net: &Net, turned: &[f32], by: &[f32], gradient: &mut Vec<f32>) {
        let width = net.outputs();
        self.by.clear();
        for &place in &self.places {
            self.by.extend_from_slice(&by[place * width..(place + 1) * width]);
        }
        net.gradients(turned, &mut self.pass, &self.by, gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::super::networks::Flat;
    use super::*;
    use crate::policy::net::Shape;

    /// Rows that are left out must not change what the others give, in a layout that begins and ends with gaps.
    #[test]
    fn rows_that_are_left_out_count_as_zero() {
        let flat = Flat::new(Shape { features: 3, tables: vec![], hidden: 4, outputs: 2 });
        let params: Vec<f32> = (0..flat.shape.len()).map(|i| ((i * 37 % 23) as f32 - 11.0) / 9.0).collect();
        let net = Net::new(&flat, &params);
        let row = |place: usize| [place as f32 / 7.0, 1.0, -(place as f32)];
        let by: Vec<f32> = (0..12).map(|i| i as f32 - 4.5).collect();
        let (mut rows, mut gradient) = (PresentRows::default(), vec![]);
        for place in [1, 2, 4] {
            rows.push(&net, place, &row(place), &[]);
        }
        let outputs = rows.infer(&net, 6).to_vec();
        rows.gradients(&net, &net.turned(), &by, &mut gradient);

        let mut summed = vec![0.0; params.len()];
        for place in 0..6 {
            let (mut alone, mut by_alone) = (PresentRows::default(), vec![]);
            alone.push(&net, 0, &row(place), &[]);
            let expected = alone.infer(&net, 1).to_vec();
            let range = place * 2..place * 2 + 2;
            if ![1, 2, 4].contains(&place) {
                assert_eq!(outputs[range], [0.0, 0.0]);
                continue;
            }
            assert!(outputs[range.clone()].iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
            alone.gradients(&net, &net.turned(), &by[range], &mut by_alone);
            summed.iter_mut().zip(by_alone).for_each(|(sum, by)| *sum += by);
        }
        assert!(gradient.iter().zip(&summed).all(|(a, b)| (a - b).abs() < 1e-3), "{gradient:?} {summed:?}");

        rows.clear();
        assert_eq!(rows.infer(&net, 2), [0.0; 4], "no row at all");
        rows.gradients(&net, &net.turned(), &[1.0; 4], &mut gradient);
        assert!(gradient.iter().all(|g| *g == 0.0));
    }
}
