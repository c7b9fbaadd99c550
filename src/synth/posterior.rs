//! The posterior of planted errors given the exposures, for an observer who knows the distribution of the errors.
//!
//! A model of values cannot find the exact truth, because the exposures do not contain it. The posterior under the true
//! variances sees the same exposures, so the gap that it closes is the best that can be reached. For charges the effects are
//! Gaussian in the logarithm and coordinate descent solves for their mean; for clicks it finds the mode.

use super::error_settings::ErrorSettings;
use super::errors::{Cell, Effect, Errors};

/// One exposure of a training day.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    pub cell: Cell,
    pub day: usize,
    /// Logarithm of the charge over the prediction, corrected for the noise's mean; `None` where the exposure has no
    /// information.
    pub charge: Option<f64>,
    /// Logit of the predicted click probability.
    pub logit: f64,
    pub click: bool,
}

const SWEEPS: usize = 200;
const TOLERANCE: f64 = 1e-6;

/// Effects of one group (for example ads) on one head.
struct Group {
    precision: f64,
    mean: Vec<f64>,
    variance: Vec<f64>,
}

/// Posterior effects on charges and click odds.
pub struct Posterior {
    regions: usize,
    /// Groups by head: ads, slots, ads in regions, days.
    groups: [[Group; 4]; 2],
}

impl Posterior {
    /// Computes the posterior from the exposures of `days` days.
    pub fn learn(errors: &Errors, days: usize, observations: &[Observation]) -> Self {
        let [ads, slots, regions] = errors.sizes();
        let s = &errors.settings;
        let group = |n: usize, sd: f64| Group {
            precision: if sd > 0.0 { sd.powi(-2) } else { f64::INFINITY },
            mean: vec![0.0; n],
            variance: vec![sd * sd; n],
        };
        let fresh = || [group(ads, s.ad), group(slots, s.slot), group(ads * regions, s.ad_region), group(days, s.day)];
        let mut posterior = Self { regions, groups: [fresh(), fresh()] };
        posterior.descend(0, observations, s);
        posterior.descend(1, observations, s);
        posterior
    }

    fn indices(regions: usize, o: &Observation) -> [usize; 4] {
        [o.cell.ad, o.cell.slot, o.cell.ad * regions + o.cell.region, o.day]
    }

    /// Takes Newton steps on one group after the other until convergence; exact for charges.
    fn descend(&mut self, head: usize, observations: &[Observation], settings: &ErrorSettings) {
        let regions = self.regions;
        let groups = &mut self.groups[head];
        let noise_precision = settings.charge_noise.max(1e-3).powi(-2);
        for _ in 0..SWEEPS {
            let mut moved: f64 = 0.0;
            for g in [0, 1, 2, 3] {
                let n = groups[g].mean.len();
                let (mut slope, mut curvature) = (vec![0.0; n], vec![0.0; n]);
                for o in observations {
                    let at = Self::indices(regions, o);
                    let effect: f64 = (0..4).map(|k| groups[k].mean[at[k]]).sum();
                    let (residual, weight) = match head {
                        0 => match o.charge {
                            Some(charge) => ((charge - effect) * noise_precision, noise_precision),
                            None => continue,
                        },
                        _ => {
                            let p = 1.0 / (1.0 + (-(o.logit + effect)).exp());
                            (f64::from(u8::from(o.click)) - p, p * (1.0 - p))
                        }
                    };
                    slope[at[g]] += residual;
                    curvature[at[g]] += weight;
                }
                let group = &mut groups[g];
                if group.precision.is_infinite() {
                    continue;
                }
                let moments = group.mean.iter_mut().zip(&mut group.variance);
                for ((slope, curvature), (mean, variance)) in slope.iter().zip(&curvature).zip(moments) {
                    let whole = curvature + group.precision;
                    let step = (slope - group.precision * *mean) / whole;
                    *mean += step;
                    *variance = 1.0 / whole;
                    moved = moved.max(step.abs());
                }
            }
            if moved < TOLERANCE {
                break;
            }
        }
    }

    /// Returns the logarithms of the expected factors on charge and click odds for a day without observations. The variances of
    /// an impression's effects enter as if they were independent.
    pub fn effect(&self, cell: Cell) -> Effect {
        let at = [cell.ad, cell.slot, cell.ad * self.regions + cell.region];
        [0, 1].map(|head| {
            let groups = &self.groups[head];
            (0..3).map(|g| groups[g].mean[at[g]] + 0.5 * groups[g].variance[at[g]]).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::WorldSettings;

    /// An ad with many exposures is known; one without any stays at its prior.
    #[test]
    fn much_seen_is_known_and_nothing_seen_is_the_prior() {
        let settings = ErrorSettings { slot: 0.0, ad_region: 0.0, day: 0.0, ..ErrorSettings::default() };
        let world = WorldSettings { errors: Some(settings), contracts: 0, ..WorldSettings::default() };
        let errors = Errors::draw(&world).unwrap();
        let seen = Cell { ad: 0, slot: 0, region: 0 };
        let observation = |i: usize| Observation {
            cell: seen,
            day: 0,
            charge: Some(0.3 + if i.is_multiple_of(2) { 0.5 } else { -0.5 }),
            logit: 0.0,
            click: !i.is_multiple_of(4),
        };
        let observations: Vec<Observation> = (0..40_000).map(observation).collect();
        let posterior = Posterior::learn(&errors, 1, &observations);
        let [charge, odds] = posterior.effect(seen);
        assert!((charge - 0.3).abs() < 0.01, "{charge}");
        assert!((odds - 3f64.ln()).abs() < 0.05, "{odds}");
        let unseen = posterior.effect(Cell { ad: 1, slot: 0, region: 0 });
        assert!((unseen[0] - 0.5 * 0.18f64.powi(2)).abs() < 1e-9, "{unseen:?}");
    }
}
