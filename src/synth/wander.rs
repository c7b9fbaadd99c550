//! Deviations of a day from its expected course: hourly volume, hourly prices of groups of regions, shocks that revert.
//!
//! Public logs suggest the parameters: hourly traffic deviates by a quarter to a third in the log from its mean over days, with a
//! correlation of about one half after an hour, while hourly prices deviate much less. A policy that takes a noisy hour for a new
//! level loses by it.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Poisson};

use super::random::normal;
use super::settings::WorldSettings;

/// Milliseconds of an hour.
pub const HOUR_MS: u64 = 3_600_000;

/// A price shock of one region.
#[derive(Debug, Clone, Copy)]
struct Shock {
    region: u32,
    start_ms: u64,
    /// Logarithm of the price factor at the start of the shock.
    log: f64,
}

/// Deviations of one day.
#[derive(Debug, Clone)]
pub struct Wander {
    /// Factor on the expected requests by hour; mean 1.
    pub volume: [f64; 24],
    /// Logarithm of the price factor of each group of regions by hour.
    groups: Vec<[f64; 24]>,
    shocks: Vec<Shock>,
    shock_hours: f64,
}

impl Wander {
    /// Returns a day without deviations.
    pub fn none() -> Self {
        Self { volume: [1.0; 24], groups: vec![[0.0; 24]], shocks: vec![], shock_hours: 1.0 }
    }

    pub fn draw(settings: &WorldSettings, rng: &mut ChaCha8Rng) -> Self {
        let sd = settings.volume_noise;
        let volume = autoregressive(sd, settings.volume_correlation, rng).map(|log| (log - sd * sd / 2.0).exp());
        let (sd, correlation) = (settings.group_price_noise, settings.group_price_correlation);
        let groups = (0..settings.price_groups).map(|_| autoregressive(sd, correlation, rng)).collect();
        let mut shocks = Vec::new();
        if settings.reverting_shocks > 0.0 {
            let number = Poisson::new(settings.reverting_shocks).expect("its range was checked");
            for region in 1..=settings.regions {
                let count = number.sample(rng) as u32;
                shocks.extend((0..count).map(|_| Shock {
                    region,
                    start_ms: rng.random_range(0..24 * HOUR_MS),
                    log: settings.reverting_shock_sd * normal(rng),
                }));
            }
        }
        Self { volume, groups, shocks, shock_hours: settings.reverting_shock_hours }
    }

    /// Returns the logarithm of the price factor of a region, `ms` after midnight.
    pub fn price_log(&self, region: u32, ms: u64) -> f64 {
        let hour = ((ms / HOUR_MS) as usize).min(23);
        let shocks: f64 = self
            .shocks
            .iter()
            .filter(|s| s.region == region && s.start_ms <= ms)
            .map(|s| s.log * (-((ms - s.start_ms) as f64 / HOUR_MS as f64) / self.shock_hours).exp())
            .sum();
        self.groups[group_of(region, self.groups.len())][hour] + shocks
    }
}

/// Returns the price group of a region, from 0.
pub fn group_of(region: u32, groups: usize) -> usize {
    (region as usize - 1) % groups
}

/// Draws 24 values of a stationary AR(1) process with the given standard deviation and correlation.
pub fn autoregressive(sd: f64, correlation: f64, rng: &mut ChaCha8Rng) -> [f64; 24] {
    let innovation = (1.0 - correlation * correlation).sqrt();
    let mut value = normal(rng);
    std::array::from_fn(|_| {
        let now = value;
        value = correlation * value + innovation * normal(rng);
        sd * now
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_hours_have_their_standard_deviation_and_correlation() {
        for (sd, correlation) in [(0.05, 0.7), (0.4, 0.3)] {
            let mut rng = ChaCha8Rng::seed_from_u64(5);
            let days: Vec<[f64; 24]> = (0..4000).map(|_| autoregressive(sd, correlation, &mut rng)).collect();
            let mean = |f: &dyn Fn(&[f64; 24]) -> f64| days.iter().map(f).sum::<f64>() / 4000.0;
            let seen = mean(&|d| d[20] * d[20]).sqrt();
            assert!((seen / sd - 1.0).abs() < 0.06, "{seen}");
            let seen = mean(&|d| d[10] * d[11]) / (sd * sd);
            assert!((seen - correlation).abs() < 0.06, "{seen}");
        }
    }

    #[test]
    fn a_reverting_shock_is_of_its_region_and_fades() {
        let settings = WorldSettings {
            reverting_shocks: 3.0,
            reverting_shock_hours: 2.0,
            regions: 2,
            price_groups: 2,
            ..WorldSettings::default()
        };
        let wander = Wander::draw(&settings, &mut ChaCha8Rng::seed_from_u64(3));
        let first = wander.shocks.iter().filter(|s| s.region == 1).min_by_key(|s| s.start_ms).unwrap();
        let after = |ms: u64| wander.price_log(1, first.start_ms + ms);
        assert_eq!(wander.price_log(1, first.start_ms.saturating_sub(1)), 0.0);
        assert_eq!(after(0), first.log);
        let others = wander.shocks.iter().filter(|s| s.region == 1 && s.start_ms > first.start_ms);
        let next = others.map(|s| s.start_ms).min().unwrap_or(24 * HOUR_MS);
        let half = (next - first.start_ms) / 2;
        let expected = first.log * (-(half as f64 / HOUR_MS as f64) / 2.0).exp();
        assert!((after(half) - expected).abs() < 1e-12);
    }

    #[test]
    fn the_mean_volume_is_one() {
        let settings = WorldSettings { volume_noise: 0.45, ..WorldSettings::default() };
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let sum: f64 = (0..4000).map(|_| Wander::draw(&settings, &mut rng).volume[12]).sum();
        assert!((sum / 4000.0 - 1.0).abs() < 0.03, "{sum}");
    }
}
