//! Deviations of a day from the expected one: volume, price level, hourly noise, shocks.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::random::{Purpose, normal};
use super::settings::WorldSettings;
use super::wander::{HOUR_MS, Wander, autoregressive};

/// Correlation of the hour-scale noise of `traffic_noise` and `price_noise` from one hour to the next.
pub const HOUR_CORRELATION: f64 = 0.7;

struct Shock {
    region: u32,
    start_ms: u64,
    end_ms: u64,
    log: f64,
}

/// Deviations of one day from the expected one.
pub struct Conditions {
    /// Multiplier of the day's requests.
    pub volume: f64,
    /// Multiplier of the traffic by hour of the day.
    pub hour_traffic: [f64; 24],
    level: f64,
    hour_price: [f64; 24],
    shocks: Vec<Shock>,
    jump: Option<(u64, f64)>,
    pub wander: Wander,
}

impl Conditions {
    pub fn draw(settings: &WorldSettings, day: u32, rng: &dyn Fn(Purpose, u32) -> ChaCha8Rng) -> Self {
        let jump = settings.jump.filter(|j| j.day == day).map(|j| ((j.hour * HOUR_MS as f64) as u64, j.factor.ln()));
        // Persistent levels are drawn day by day from the first one.
        let kept = settings.level_persistence;
        let (mut volume, mut level) = (0.0, 0.0);
        let mut own = rng(Purpose::Conditions, 0);
        for earlier in 0..=day {
            own = rng(Purpose::Conditions, earlier);
            let weight = if earlier == 0 { 1.0 } else { (1.0 - kept * kept).sqrt() };
            volume = kept * volume + weight * normal(&mut own);
            level = kept * level + weight * normal(&mut own);
        }
        Self {
            volume: (settings.volume_drift * volume).exp(),
            level: settings.price_drift * level,
            jump,
            wander: Wander::draw(settings, &mut rng(Purpose::Wander, day)),
            ..Self::typical(settings, &mut own)
        }
    }

    /// Returns a day without any deviation.
    pub fn expected() -> Self {
        Self {
            volume: 1.0,
            hour_traffic: [1.0; 24],
            level: 0.0,
            hour_price: [0.0; 24],
            shocks: vec![],
            jump: None,
            wander: Wander::none(),
        }
    }

    /// Draws a day without drift, jump and wandering, which calibration takes as typical.
    pub fn typical(settings: &WorldSettings, rng: &mut ChaCha8Rng) -> Self {
        let hour_traffic = autoregressive(settings.traffic_noise, HOUR_CORRELATION, rng).map(f64::exp);
        let hour_price = autoregressive(settings.price_noise, HOUR_CORRELATION, rng);
        let shocks = if settings.shock_max == 1.0 && settings.shock_min == 1.0 {
            Vec::new()
        } else {
            let count = rng.random_range(1..=2u32.min(settings.regions));
            let first = rng.random_range(0..settings.regions);
            (0..count)
                .map(|i| {
                    let start = rng.random_range(7.0..20.0);
                    let hours = rng.random_range(2.0..4.0);
                    let factor = rng.random_range(settings.shock_min..=settings.shock_max);
                    Shock {
                        region: (first + i * (settings.regions / 2).max(1)) % settings.regions + 1,
                        start_ms: (start * HOUR_MS as f64) as u64,
                        end_ms: ((start + hours) * HOUR_MS as f64) as u64,
                        log: f64::ln(factor),
                    }
                })
                .collect()
        };
        Self { hour_traffic, hour_price, shocks, ..Self::expected() }
    }

    /// Returns the logarithm of the day's price multiplier for a region, `ms` after midnight.
    pub fn price_log(&self, region: u32, ms: u64) -> f64 {
        let hour = ms as f64 / HOUR_MS as f64;
        // Evenings are more expensive than early mornings on every day.
        let diurnal = 0.1 * ((hour - 20.0) * std::f64::consts::TAU / 24.0).cos();
        let shocks: f64 = self
            .shocks
            .iter()
            .filter(|s| s.region == region && (s.start_ms..s.end_ms).contains(&ms))
            .map(|s| s.log)
            .sum();
        let jump = self.jump.filter(|&(from, _)| ms >= from);
        let hourly = self.hour_price[(ms / HOUR_MS) as usize] + self.wander.price_log(region, ms);
        self.level + diurnal + hourly + shocks + jump.map_or(0.0, |(_, log)| log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::settings::Jump;

    #[test]
    fn a_jump_multiplies_prices_from_its_hour_on_its_day_only() {
        let mut settings = WorldSettings::default();
        let rng = |purpose, day| crate::synth::random::stream(1, purpose, day);
        let day = |s: &WorldSettings, d| Conditions::draw(s, d, &rng);
        let (plain, plain_other) = (day(&settings, 3), day(&settings, 2));
        settings.jump = Some(Jump { day: 3, hour: 14.0, factor: 1.4 });
        let (jumped, other) = (day(&settings, 3), day(&settings, 2));
        for hour in 0..24 {
            let ms = hour * HOUR_MS;
            let step = jumped.price_log(1, ms) - plain.price_log(1, ms);
            let expected = if hour >= 14 { 1.4f64.ln() } else { 0.0 };
            assert!((step - expected).abs() < 1e-12, "hour {hour}: {step}");
            assert_eq!(other.price_log(1, ms), plain_other.price_log(1, ms));
        }
    }
}
