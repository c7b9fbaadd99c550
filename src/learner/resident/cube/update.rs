//! Inputs of an update's gradients.

use burn_cubecl::CubeRuntime;

use super::super::super::networks::Networks;
use super::super::layout::Layout;
use super::constants::Constants;
use crate::gpu::numbers::{Cube, Numbers};

/// Factors on the gradients: one over the pairs of step and contract with something to learn, one over the requests.
#[derive(Debug, Clone, Copy)]
pub struct Weights {
    pub critic: f32,
    pub actor: f32,
}

/// Inputs of an update's gradients.
#[derive(Clone, Copy)]
pub struct Update<'a, R: CubeRuntime> {
    pub layout: &'a Layout,
    pub losses: &'a Constants<R>,
    pub networks: &'a Networks<Cube<R>>,
    /// As [`gather`](super::gather) returns it.
    pub batch: &'a Numbers<R>,
    pub weights: Weights,
    pub train_actor: bool,
    /// Whether losses are summed for reading.
    pub with_sums: bool,
}

impl<R: CubeRuntime> Update<'_, R> {
    /// Returns the number of segments of the batch.
    pub(super) fn segments(&self) -> usize {
        self.batch.len / self.layout.width
    }
}
