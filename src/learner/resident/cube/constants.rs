//! What the losses take from the settings.

use burn_cubecl::CubeRuntime;
use cubecl::prelude::*;

use crate::learner::loss::support;
use crate::settings::{Critic, Settings};

use super::numbers::Numbers;

/// Constants of a launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub struct Factors {
    pub inverse_temperature: f32,
    pub lambda: f32,
    pub inverse_kappa: f32,
    pub half_kappa: f32,
    pub actor_weight: f32,
    pub critic_weight: f32,
    /// First atom, and the distance between two.
    pub lowest: f32,
    pub atom_step: f32,
}

/// Constants of the losses for one run.
pub struct Constants<R: CubeRuntime> {
    pub(super) critic: Critic,
    lambda: f32,
    kappa: f32,
    temperature: f32,
    /// Quantile midpoints or atoms, `[Q]`; here and on the device.
    atoms: Vec<f32>,
    pub(super) support: Numbers<R>,
}

impl<R: CubeRuntime> Constants<R> {
    /// Takes the constants from the settings, and to the device where `beside` is.
    pub fn new(settings: &Settings, beside: &Numbers<R>) -> Self {
        let l = &settings.learner;
        let atoms = support(l);
        let support = Numbers { len: atoms.len(), ..beside.upload(bytemuck::cast_slice(&atoms)) };
        let temperature = settings.policy.temperature as f32;
        Self { critic: l.critic, lambda: l.lambda as f32, kappa: l.kappa as f32, temperature, atoms, support }
    }

    /// Returns what a launch takes of them; the weights are those of each gradient.
    pub(super) fn factors(&self, actor_weight: f32, critic_weight: f32) -> FactorsLaunch<R> {
        let atoms = &self.atoms;
        FactorsLaunch::new(
            1.0 / self.temperature,
            self.lambda,
            1.0 / self.kappa,
            0.5 * self.kappa,
            actor_weight,
            critic_weight,
            atoms[0],
            (atoms[atoms.len() - 1] - atoms[0]) / (atoms.len() - 1).max(1) as f32,
        )
    }
}
