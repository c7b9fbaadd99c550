//! What the logged days of a world have in common: how they deviate from their forecasts on average, and how far their hours stray.

use std::collections::BTreeMap;

use super::day::DayVolume;

/// Variance of the hours of a day about which nothing is known, and the number of days that it counts as.
const USUAL_VARIANCE: f64 = 0.04;
const USUAL_DAYS: f64 = 0.5;
/// Variance of the hours of a world whose calm is one half.
const CALM_VARIANCE: f64 = 0.01;

/// Averages over several days, shrunk according to their number. Logarithms of actual over forecast requests.
pub(super) struct Habits {
    /// Mean deviation of all requests.
    pub bias: f64,
    /// Mean deviation of each region relative to that.
    pub regions: BTreeMap<u32, f64>,
    /// Variance of the hours of a day about the day's own deviation, without the noise of counting.
    pub variance: f64,
}

impl Habits {
    pub fn of<'a>(days: impl Iterator<Item = &'a DayVolume>) -> Self {
        let (mut n, mut bias, mut regions) = (0.0, 0.0, BTreeMap::<u32, f64>::new());
        let mut variance = USUAL_DAYS * USUAL_VARIANCE;
        for day in days {
            n += 1.0;
            bias += day.log_ratio();
            variance += day.hourly_variance();
            for (region, log) in day.region_ratios() {
                *regions.entry(region).or_default() += log;
            }
        }
        let shrink = 1.0 / (n + 1.0);
        regions.values_mut().for_each(|log| *log *= shrink);
        Self { bias: bias * shrink, regions, variance: (variance / (n + USUAL_DAYS)).max(0.0) }
    }

    /// Returns the world's calm: 1 where hours keep to the day's level, and near 0 where they stray far.
    pub fn calm(&self) -> f64 {
        CALM_VARIANCE / self.unit()
    }

    /// Returns the variance by which errors of a forecast of the volume are measured: as in weighted least squares, a day counts by its
    /// inverse, so that calm days count beside restless ones.
    pub fn unit(&self) -> f64 {
        CALM_VARIANCE + self.variance
    }
}
