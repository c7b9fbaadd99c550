//! Constants of the losses on the device: uploads and launch arguments. [`factors`](crate::learner::factors) converts the settings.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::formulas::shared::{LossFactors, LossFactorsLaunch};
use crate::learner::factors::{launched, loss_factors};
use crate::learner::loss::support;
use crate::settings::{Critic, Settings};

use crate::gpu::numbers::Numbers;

/// Range of the categorical critic's atoms.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Atoms {
    pub lowest: f32,
    /// Distance between two atoms.
    pub step: f32,
}

/// Constants of the losses for one run.
pub struct Constants<R: CubeRuntime> {
    pub(super) critic: Critic,
    factors: LossFactors,
    /// Quantile midpoints or atoms, `[Q]`, on the host; `support` is the copy on the device.
    atoms: Vec<f32>,
    pub(super) support: Numbers<R>,
}

impl<R: CubeRuntime> Constants<R> {
    /// Reads the constants from the settings and uploads them to the device of `beside`.
    pub fn new(settings: &Settings, beside: &Numbers<R>) -> Self {
        let l = &settings.learner;
        let atoms = support(l);
        let support = Numbers { len: atoms.len(), ..beside.upload(bytemuck::cast_slice(&atoms)) };
        Self { critic: l.critic, factors: loss_factors(settings), atoms, support }
    }

    /// Returns the factors as a launch argument.
    pub(super) fn factors(&self) -> LossFactorsLaunch<R> {
        launched(self.factors)
    }

    /// Returns the range of the atoms as a launch argument.
    pub(super) fn atoms(&self) -> AtomsLaunch<R> {
        let atoms = &self.atoms;
        AtomsLaunch::new(atoms[0], (atoms[atoms.len() - 1] - atoms[0]) / (atoms.len() - 1).max(1) as f32)
    }
}
