//! Constants of the losses: the only conversion from settings to the formulas that use them, on the host and in kernels.

use cubecl::Runtime;

use crate::formulas::shared::{LossFactors, LossFactorsLaunch};
use crate::settings::Settings;

/// Returns the constants that a run's losses use.
pub fn loss_factors(settings: &Settings) -> LossFactors {
    let kappa = settings.learner.kappa as f32;
    LossFactors {
        temperature: settings.policy.temperature as f32,
        lambda: settings.learner.lambda as f32,
        inverse_kappa: 1.0 / kappa,
        half_kappa: 0.5 * kappa,
    }
}

/// Returns the constants as a kernel's launch argument.
pub fn launched<R: Runtime>(by: LossFactors) -> LossFactorsLaunch<R> {
    let LossFactors { temperature, lambda, inverse_kappa, half_kappa } = by;
    LossFactorsLaunch::new(temperature, lambda, inverse_kappa, half_kappa)
}
