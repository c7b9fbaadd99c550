//! The dense part of an update: the network's products around the interaction with rows.

use crate::run::failpoint;
use crate::run::value_snapshot::ValueState;
use crate::values::Block;
use crate::values::net::{Embedded, Lesson, Losses, Net, NetShape};

use super::store::BatchRows;

/// A loss, gradient or parameter that is not finite.
#[derive(Debug, thiserror::Error)]
#[error("update {update}: a loss or gradient is not finite; lower table.rate and values.rate")]
pub struct NotFinite {
    update: u64,
}

impl NotFinite {
    /// In the update after this state.
    pub fn at(state: &ValueState) -> Self {
        Self { update: state.updates }
    }
}

/// The network at work, with the gradient of its parameters.
pub struct Dense {
    pub net: Net,
    gradient: Vec<f32>,
    dispersion: f32,
}

impl Dense {
    /// `dispersion` is the charges' variance over their mean; `trainers` share the cores of this machine.
    pub fn new(shape: NetShape, dispersion: f32, trainers: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let net = if cores / trainers > 1 { Net::on_two_threads(shape) } else { Net::new(shape) };
        Self { net, gradient: vec![], dispersion }
    }

    /// Computes what needs no rows: the products of the dense features.
    pub fn begin(&mut self, state: &ValueState, block: &Block) {
        self.net.below(&state.parameters, &block.dense);
    }

    /// Computes the losses of a batch and the gradients of its rows.
    ///
    /// # Errors
    /// [`NotFinite`]; nothing has changed then.
    pub fn interact(
        &mut self,
        state: &ValueState,
        block: &Block,
        rows: &BatchRows,
        d_rows: &mut Vec<f32>,
    ) -> Result<Losses, NotFinite> {
        let embedded = Embedded { rows: &rows.values, inverse: &rows.lookup.inverse };
        let lesson = Lesson { batch: block, first: 0, dispersion: self.dispersion };
        let losses = self.net.learn_above(&state.parameters, embedded, lesson, &mut self.gradient, d_rows);
        if losses.total().is_finite() && !Self::made_to_fail() {
            finite(state, d_rows)?;
            return Ok(losses);
        }
        Err(NotFinite::at(state))
    }

    /// Whether a test makes this batch's loss fail.
    pub fn made_to_fail() -> bool {
        failpoint::reached("rank.loss")
    }

    /// Computes the rest of the parameters' gradient.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn finish(&mut self, state: &ValueState, block: &Block) -> Result<(), NotFinite> {
        self.net.back_below(&state.parameters, &block.dense, &mut self.gradient);
        finite(state, &self.gradient)
    }

    /// The gradient of the last batch by the parameters; empty before the first one.
    pub fn gradient(&mut self) -> &mut Vec<f32> {
        &mut self.gradient
    }

    /// Moves the parameters along their gradient.
    pub fn apply(&self, state: &mut ValueState, rate: f32) {
        state.adam.step(rate, &mut state.parameters, &self.gradient);
    }
}

fn finite(state: &ValueState, gradient: &[f32]) -> Result<(), NotFinite> {
    // Without an early end the compiler checks many at a time.
    let finite = gradient.iter().fold(true, |finite, g| finite & g.is_finite());
    if finite { Ok(()) } else { Err(NotFinite::at(state)) }
}
