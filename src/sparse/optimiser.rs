//! How a row moves along its gradient on the host, in the flat table and in the cache. [`crate::formulas::values`] has the formulas.

use crate::formulas::values::{adagrad, lazy_adam, rowwise_rate, sgd};
use crate::settings::RowOptimizer;

/// Decay of the moments of lazy Adam.
pub const ADAM_BETAS: [f32; 2] = [0.9, 0.999];

impl RowOptimizer {
    /// Floats of state beside a row of `dim` floats.
    pub fn state_floats(self, dim: usize) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Adagrad => dim,
            Self::RowwiseAdagrad => 1,
            Self::LazyAdam => 2 * dim,
        }
    }

    /// Number of this optimiser in files and segments.
    pub fn code(self) -> u32 {
        match self {
            Self::Sgd => 0,
            Self::Adagrad => 1,
            Self::RowwiseAdagrad => 2,
            Self::LazyAdam => 3,
        }
    }

    /// The optimiser of a number, if there is one.
    pub fn of_code(code: u32) -> Option<Self> {
        [Self::Sgd, Self::Adagrad, Self::RowwiseAdagrad, Self::LazyAdam].into_iter().find(|o| o.code() == code)
    }

    /// Moves `row` along `gradient`, the sum over a batch. `step` counts this row's updates, this one included, from 1.
    pub fn apply(self, rate: f32, row: &mut [f32], state: &mut [f32], gradient: &[f32], step: u32) {
        match self {
            Self::Sgd => row.iter_mut().zip(gradient).for_each(|(w, g)| *w = sgd(*w, *g, rate)),
            Self::Adagrad => {
                for ((w, s), g) in row.iter_mut().zip(state).zip(gradient) {
                    *s += g * g;
                    *w = adagrad(*w, *g, *s, rate);
                }
            }
            Self::RowwiseAdagrad => {
                let square: f32 = gradient.iter().map(|g| g * g).sum();
                state[0] += square / gradient.len() as f32;
                let rate = rowwise_rate(state[0], rate);
                row.iter_mut().zip(gradient).for_each(|(w, g)| *w = sgd(*w, *g, rate));
            }
            Self::LazyAdam => {
                let (first, second) = state.split_at_mut(row.len());
                let [b1, b2] = ADAM_BETAS;
                let [c1, c2] = adam_corrections(step);
                for (((w, m), v), g) in row.iter_mut().zip(first).zip(second).zip(gradient) {
                    *m = b1 * *m + (1.0 - b1) * g;
                    *v = b2 * *v + (1.0 - b2) * g * g;
                    *w = lazy_adam(*w, *m, *v, rate, c1, c2);
                }
            }
        }
    }
}

/// Corrections of the moments of lazy Adam in the update of this number, from 1.
pub fn adam_corrections(step: u32) -> [f32; 2] {
    ADAM_BETAS.map(|beta| 1.0 - beta.powi(step.min(1 << 24) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_books() {
        let (row, gradient) = ([1.0f32, -2.0], [3.0f32, 4.0]);
        let moved = |optimizer: RowOptimizer| {
            let (mut row, mut state) = (row, vec![0.0; optimizer.state_floats(2)]);
            optimizer.apply(0.5, &mut row, &mut state, &gradient, 1);
            (row, state)
        };
        assert_eq!(moved(RowOptimizer::Sgd), ([-0.5, -4.0], vec![]));
        assert_eq!(moved(RowOptimizer::Adagrad), ([0.5, -2.5], vec![9.0, 16.0]));
        let root = 12.5f32.sqrt();
        let (rowwise, state) = moved(RowOptimizer::RowwiseAdagrad);
        assert_eq!(state, [12.5]);
        assert!((rowwise[0] - (1.0 - 0.5 * 3.0 / root)).abs() < 1e-6);
        // The first step of Adam is the rate in the gradient's direction, whatever its length.
        let (adam, _) = moved(RowOptimizer::LazyAdam);
        assert!((adam[0] - 0.5).abs() < 1e-4 && (adam[1] + 2.5).abs() < 1e-4, "{adam:?}");
        for optimizer in
            [RowOptimizer::Sgd, RowOptimizer::Adagrad, RowOptimizer::RowwiseAdagrad, RowOptimizer::LazyAdam]
        {
            assert_eq!(RowOptimizer::of_code(optimizer.code()), Some(optimizer));
        }
        assert_eq!(RowOptimizer::of_code(4), None);
    }
}
