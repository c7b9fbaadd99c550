//! The network of one of several ranks: gradients on the CPU or on a GPU, parameters on the host.
//!
//! Ranks average gradients and then each moves its own parameters. That happens on the host in any case, so that the parameters of all
//! ranks are bit-equal whatever each of them computes on.

use crate::run::value_snapshot::ValueState;
use crate::values::Block;
use crate::values::net::{Losses, Net, NetShape};

use super::dense::{Dense, NotFinite};
use super::device::DeviceGradients;
use super::store::BatchRows;

/// The network of a rank.
pub struct Gradients {
    dense: Dense,
    device: Option<Box<dyn DeviceGradients>>,
}

impl Gradients {
    /// `dispersion` is the charges' variance over their mean; `ranks` share the cores of this machine.
    pub fn new(shape: NetShape, dispersion: f32, ranks: usize, device: Option<Box<dyn DeviceGradients>>) -> Self {
        Self { dense: Dense::new(shape, dispersion, ranks), device }
    }

    /// The network on the CPU, for evaluations.
    pub fn net(&mut self) -> &mut Net {
        &mut self.dense.net
    }

    /// Computes what needs no rows: the products of the dense features.
    pub fn begin(&mut self, state: &ValueState, block: &Block) {
        match &mut self.device {
            Some(device) => device.begin(&state.parameters, block),
            None => self.dense.begin(state, block),
        }
    }

    /// Computes the losses of a batch, the gradients of its rows and those of the parameters.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn compute(
        &mut self,
        state: &ValueState,
        block: &Block,
        rows: &BatchRows,
        by_rows: &mut Vec<f32>,
    ) -> Result<Losses, NotFinite> {
        let Some(device) = &mut self.device else {
            let losses = self.dense.interact(state, block, rows, by_rows)?;
            self.dense.finish(state, block)?;
            return Ok(losses);
        };
        let gradient = self.dense.gradient();
        let losses = device.finish(block, &rows.lookup, &rows.values, by_rows, gradient);
        let finite = gradient.iter().all(|g| g.is_finite()) && !Dense::made_to_fail();
        losses.filter(|_| finite).ok_or_else(|| NotFinite::at(state))
    }

    /// The gradient of the last batch by the parameters; `parameters` zeroes before the first one.
    pub fn gradient(&mut self, parameters: usize) -> &mut [f32] {
        let gradient = self.dense.gradient();
        gradient.resize(parameters, 0.0);
        gradient
    }

    /// Moves the parameters along their gradient.
    pub fn apply(&self, state: &mut ValueState, rate: f32) {
        self.dense.apply(state, rate);
    }
}
