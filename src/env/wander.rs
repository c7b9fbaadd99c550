//! Random deviation of a training episode's hours from the logged ones: volume by thinning, prices by region group.
//!
//! A policy that sees the same logged day again and again memorises it. Each episode therefore draws an autoregressive path
//! over the hours, whose size and correlation are drawn too, so that the future of a state is as uncertain as on a day to
//! come.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use crate::log::schema::DAY_MS;
use crate::settings::Episodes;

const HOURS: usize = 24;
/// Number of region groups; the prices of a group deviate together.
const GROUPS: usize = 4;
/// Range of the correlation of an hour's deviation with that of the hour before.
const CORRELATIONS: std::ops::Range<f64> = 0.3..0.8;

/// Factors of one episode on volume and prices, by hour.
#[derive(Debug, Clone, PartialEq)]
pub struct Wander {
    volume: [f64; HOURS],
    /// Largest hourly volume factor.
    top: f64,
    prices: [[f64; HOURS]; GROUPS],
}

impl Wander {
    /// No deviation from the log.
    pub const NONE: Self = Self { volume: [1.0; HOURS], top: 1.0, prices: [[1.0; HOURS]; GROUPS] };

    /// Draws an episode's paths; the settings give the largest log-sd of each, 0 for none.
    pub fn draw(settings: &Episodes, rng: &mut ChaCha8Rng) -> Self {
        let mut wander = Self::NONE;
        if settings.volume_noise > 0.0 {
            wander.volume = path(settings.volume_noise, rng);
            wander.top = wander.volume.iter().copied().fold(0.0, f64::max);
        }
        if settings.price_noise > 0.0 {
            wander.prices = std::array::from_fn(|_| path(settings.price_noise, rng));
        }
        wander
    }

    /// Returns the volume factor of the busiest hour.
    pub fn top(&self) -> f64 {
        self.top
    }

    /// Returns the volume at a time, milliseconds from midnight, as a share of the busiest hour's.
    pub fn volume_share(&self, offset: u64) -> f64 {
        self.volume[hour(offset)] / self.top
    }

    /// Returns the factor on a region's auction worth at a time.
    pub fn price(&self, region: u32, offset: u64) -> f64 {
        self.prices[region as usize % GROUPS][hour(offset)]
    }
}

fn hour(offset: u64) -> usize {
    (offset.min(DAY_MS - 1) * HOURS as u64 / DAY_MS) as usize
}

/// Draws a stationary path with mean factor 1 and a log-sd of up to `most`.
fn path(most: f64, rng: &mut ChaCha8Rng) -> [f64; HOURS] {
    let sd = most * rng.random::<f64>();
    let correlation = rng.random_range(CORRELATIONS);
    let normal = |rng: &mut ChaCha8Rng| -> f64 { StandardNormal.sample(rng) };
    let mut at = normal(rng);
    std::array::from_fn(|_| {
        let factor = (sd * at - 0.5 * sd * sd).exp();
        at = correlation * at + (1.0 - correlation * correlation).sqrt() * normal(rng);
        factor
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[test]
    fn paths_stray_by_what_the_settings_say_and_keep_the_mean() {
        let settings = Episodes { volume_noise: 0.4, price_noise: 0.2, ..Episodes::default() };
        let (mut sum, mut squares, mut together, mut n) = (0.0, 0.0, 0.0, 0.0);
        for seed in 0..4000 {
            let wander = Wander::draw(&settings, &mut ChaCha8Rng::seed_from_u64(seed));
            assert!(wander.volume.iter().all(|v| v / wander.top <= 1.0));
            assert!((0..24).all(|h| wander.volume_share(h * 3_600_000) > 0.0));
            sum += wander.volume.iter().sum::<f64>();
            let logs = wander.volume.map(f64::ln);
            squares += logs.iter().map(|l| l * l).sum::<f64>();
            together += logs.windows(2).map(|w| w[0] * w[1]).sum::<f64>() * 24.0 / 23.0;
            n += 24.0;
        }
        assert!((sum / n - 1.0).abs() < 0.02, "mean factor {}", sum / n);
        // The sd is uniform up to 0.4: its mean square is 0.16 / 3, and the mean of the correlation is 0.55.
        let sd = (squares / n).sqrt();
        assert!((sd - 0.233).abs() < 0.015, "sd {sd}");
        assert!((together / squares - 0.55).abs() < 0.05, "correlation {}", together / squares);
    }

    #[test]
    fn nothing_strays_where_nothing_is_asked_for() {
        let settings = Episodes { volume_noise: 0.0, price_noise: 0.0, ..Episodes::default() };
        assert_eq!(Wander::draw(&settings, &mut ChaCha8Rng::seed_from_u64(1)), Wander::NONE);
    }
}
