//! What the losses take from the settings.

use burn_cubecl::CubeRuntime;

use crate::learner::loss::support;
use crate::settings::{Critic, Settings};

use super::numbers::Numbers;

/// Constants of the losses for one run.
pub struct Constants<R: CubeRuntime> {
    pub(super) critic: Critic,
    pub(super) lambda: f32,
    pub(super) kappa: f32,
    pub(super) temperature: f32,
    /// Quantile midpoints or atoms, `[Q]`; here and on the device.
    pub(super) atoms: Vec<f32>,
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
}
