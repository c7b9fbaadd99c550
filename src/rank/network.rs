//! The network of a single trainer, on the CPU or on a GPU.
//!
//! On the CPU every loss is known at once. A GPU is not waited for: the losses of a batch come while the next one is computed, and the
//! parameters come when they are evaluated or saved. Either way nothing that is not finite is saved.

use std::time::Duration;

use crate::run::value_snapshot::ValueState;
use crate::values::Block;
use crate::values::net::{Losses, Net, NetShape};

use super::dense::{Dense, NotFinite};
use super::device::DeviceDense;
use super::store::BatchRows;

/// The network of a single trainer.
pub struct Network {
    dense: Dense,
    device: Option<Box<dyn DeviceDense>>,
}

impl Network {
    /// `dispersion` is the charges' variance over their mean; parameters come with `state` where the network is on a `device`.
    pub fn new(shape: NetShape, dispersion: f32, mut device: Option<Box<dyn DeviceDense>>, state: &ValueState) -> Self {
        if let Some(device) = &mut device {
            device.load(&state.parameters, &state.adam);
        }
        Self { dense: Dense::new(shape, dispersion, 1), device }
    }

    /// The network on the CPU, for evaluations.
    pub fn net(&mut self) -> &mut Net {
        &mut self.dense.net
    }

    /// Computes what needs no rows: the products of the dense features.
    pub fn begin(&mut self, state: &ValueState, block: &Block) {
        match &mut self.device {
            Some(device) => device.begin(block),
            None => self.dense.begin(state, block),
        }
    }

    /// Computes the losses of a batch and the gradients of its rows, in `d_rows` or on the device. Returns the losses that are
    /// known by now and were not returned before.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn interact(
        &mut self,
        state: &ValueState,
        block: &Block,
        rows: &BatchRows,
        d_rows: &mut Vec<f32>,
    ) -> Result<Losses, NotFinite> {
        match &mut self.device {
            Some(device) => {
                device.interact(rows.slot, block, &rows.lookup);
                device.losses(false).filter(|_| !Dense::made_to_fail()).ok_or_else(|| NotFinite::at(state))
            }
            None => self.dense.interact(state, block, rows, d_rows),
        }
    }

    /// Computes the rest of the gradient and moves the parameters along it.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn step(&mut self, state: &mut ValueState, block: &Block, rate: f32) -> Result<(), NotFinite> {
        match &mut self.device {
            Some(device) => device.step(state.adam.next(rate)),
            None => {
                self.dense.finish(state, block)?;
                self.dense.apply(state, rate);
            }
        }
        Ok(())
    }

    /// How long it has waited for rows that other devices own.
    pub fn waited(&self) -> Duration {
        self.device.as_ref().map_or(Duration::ZERO, |device| device.waited())
    }

    /// Waits until all losses are known; returns those that were not returned before.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn settle(&mut self, state: &ValueState) -> Result<Losses, NotFinite> {
        match &mut self.device {
            Some(device) => device.losses(true).ok_or_else(|| NotFinite::at(state)),
            None => Ok(Losses::default()),
        }
    }

    /// Brings the parameters and their moments into `state`.
    ///
    /// # Errors
    /// [`NotFinite`].
    pub fn fetch(&self, state: &mut ValueState) -> Result<(), NotFinite> {
        if let Some(device) = &self.device {
            device.store(&mut state.parameters, &mut state.adam);
            if !state.parameters.iter().all(|w| w.is_finite()) {
                return Err(NotFinite::at(state));
            }
        }
        Ok(())
    }
}
