//! Belief about a day's deviations from the expectation, for a policy that knows the process that draws them.
//!
//! The logarithms of volume and prices are sums of independent parts: levels of the day, hourly noise, shocks of regions.
//! The observations of each ten-minute step update a Gaussian belief about the parts, from which futures are drawn.

use crate::synth::{Truth, WorldSettings, group_of};

use super::gaussian::{Gaussian, Root};
use super::normals::Normals;

/// Length of a step, milliseconds; divides an hour.
pub const STEP_MS: u64 = 600_000;
const HOUR_MS: u64 = 3_600_000;
/// Indices of the volume's parts: the day's level, hourly noise, and hourly noise that moves requests between hours.
const VOLUME: [usize; 3] = [0, 1, 2];
/// Number of price parts that all regions share, before those of groups and regions.
const SHARED: usize = 2;

/// Observations of one step.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub requests: f64,
    /// By region from 0: sum and number of the price residuals, in the logarithm.
    pub prices: Vec<(f64, f64)>,
}

/// Belief at the end of a step.
pub struct Belief {
    settings: WorldSettings,
    volume: Gaussian,
    prices: Gaussian,
    groups: usize,
    regions: usize,
}

/// One drawn course of the rest of a day.
pub struct Course {
    /// Factor on the expected requests by hour.
    pub volume: [f64; 24],
    /// Factor on the expected prices by region (from 0) and half hour.
    pub prices: Vec<[f64; 48]>,
}

/// Advances an hourly part with the given standard deviation and correlation after an hour.
fn hourly(belief: &mut Gaussian, i: usize, sd: f64, correlation: f64) {
    belief.decay(i, correlation, sd * sd * (1.0 - correlation * correlation));
}

impl Belief {
    /// Creates the belief before the day's first request.
    pub fn new(truth: &Truth) -> Self {
        let s = truth.settings().clone();
        let (groups, regions) = (s.price_groups as usize, s.regions as usize);
        let mut variances = vec![s.price_drift.powi(2), s.price_noise.powi(2)];
        variances.extend(vec![s.group_price_noise.powi(2); groups]);
        // Shocks begin with the day.
        variances.extend(vec![0.0; regions]);
        let volume = [s.volume_drift.powi(2), s.volume_noise.powi(2), s.traffic_noise.powi(2)];
        Self { volume: Gaussian::new(&volume), prices: Gaussian::new(&variances), groups, regions, settings: s }
    }

    /// Returns the indices of the parts that sum to a region's price.
    fn parts(&self, region: usize) -> [usize; 4] {
        [0, 1, SHARED + group_of(region as u32 + 1, self.groups), SHARED + self.groups + region]
    }

    /// Returns the mean of the logarithm of the hourly noise, whose factor has mean 1.
    fn shift(&self) -> f64 {
        -self.settings.volume_noise.powi(2) / 2.0
    }

    /// Observes a step with a mean of `expected` requests and advances to its end at `end` milliseconds. `noise` is the
    /// variance of one request's price residual.
    pub fn advance(&mut self, seen: &Seen, expected: f64, noise: f64, end: u64) {
        self.volume.observe_count(&VOLUME, self.shift(), expected, seen.requests);
        for (region, &(sum, n)) in seen.prices.iter().enumerate().filter(|(_, (_, n))| *n > 0.0) {
            self.prices.observe(&self.parts(region), sum / n, noise / n);
        }
        let s = &self.settings;
        let kept = (-(STEP_MS as f64) / HOUR_MS as f64 / s.reverting_shock_hours).exp();
        let stationary = s.reverting_shocks / 24.0 * s.reverting_shock_sd.powi(2) * s.reverting_shock_hours / 2.0;
        for region in 0..self.regions {
            self.prices.decay(SHARED + self.groups + region, kept, stationary * (1.0 - kept * kept));
        }
        if end.is_multiple_of(HOUR_MS) {
            hourly(&mut self.volume, 1, s.volume_noise, s.volume_correlation);
            hourly(&mut self.volume, 2, s.traffic_noise, crate::synth::HOUR_CORRELATION);
            hourly(&mut self.prices, 1, s.price_noise, crate::synth::HOUR_CORRELATION);
            for group in 0..self.groups {
                hourly(&mut self.prices, SHARED + group, s.group_price_noise, s.group_price_correlation);
            }
        }
    }

    /// Returns the roots for drawing courses from the current belief.
    pub fn roots(&self) -> [Root; 2] {
        [self.volume.root(), self.prices.root()]
    }

    /// Draws the rest of the day from `now` on. The same `normals` give similar courses at similar times.
    pub fn draw(&self, roots: &[Root; 2], now: u64, normals: &mut Normals) -> Course {
        let s = &self.settings;
        let mut volume = roots[0].draw(normals);
        let mut prices = roots[1].draw(normals);
        // Noise is drawn for all hours, so that an hour's noise does not depend on `now`.
        let series = 3 + self.groups;
        let noise: Vec<f64> = (0..24 * series).map(|_| normals.next()).collect();
        let shocks = self.shocks(normals);
        let mut course = Course { volume: [1.0; 24], prices: vec![[1.0; 48]; self.regions] };
        let first = (now / HOUR_MS).min(23) as usize;
        for hour in first..24 {
            if hour > first {
                let at = &noise[hour * series..];
                let next = |value: f64, sd: f64, kept: f64, z: f64| kept * value + sd * (1.0 - kept * kept).sqrt() * z;
                volume[1] = next(volume[1], s.volume_noise, s.volume_correlation, at[0]);
                volume[2] = next(volume[2], s.traffic_noise, crate::synth::HOUR_CORRELATION, at[1]);
                prices[1] = next(prices[1], s.price_noise, crate::synth::HOUR_CORRELATION, at[2]);
                for g in 0..self.groups {
                    let part = &mut prices[SHARED + g];
                    *part = next(*part, s.group_price_noise, s.group_price_correlation, at[3 + g]);
                }
            }
            course.volume[hour] = (VOLUME.iter().map(|&i| volume[i]).sum::<f64>() + self.shift()).exp();
            for region in 0..self.regions {
                let [level, shared, group, own] = self.parts(region);
                for bin in 2 * hour..2 * hour + 2 {
                    let middle = bin as f64 / 2.0 + 0.25;
                    let fade = |since: f64| (-since.max(0.0) / s.reverting_shock_hours).exp();
                    let since = middle - now as f64 / HOUR_MS as f64;
                    let mut log = prices[level] + prices[shared] + prices[group] + prices[own] * fade(since);
                    for &(place, start, size) in &shocks {
                        if place == region && start > now as f64 / HOUR_MS as f64 && start <= middle {
                            log += size * fade(middle - start);
                        }
                    }
                    course.prices[region][bin] = log.exp();
                }
            }
        }
        course
    }

    /// Draws a day's shocks: region from 0, hour, size.
    fn shocks(&self, normals: &mut Normals) -> Vec<(usize, f64, f64)> {
        let s = &self.settings;
        let mut shocks = Vec::new();
        if s.reverting_shocks > 0.0 {
            for region in 0..self.regions {
                // Waiting times between them are exponential.
                let mut hour = normals.wait(24.0 / s.reverting_shocks);
                while hour < 24.0 {
                    shocks.push((region, hour, s.reverting_shock_sd * normals.next()));
                    hour += normals.wait(24.0 / s.reverting_shocks);
                }
            }
        }
        shocks
    }
}
