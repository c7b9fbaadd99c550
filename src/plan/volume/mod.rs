//! Forecast of the remaining traffic during a day.
//!
//! A forecast has errors that repeat, and a day deviates from it and reverts. A planner that extrapolates the day's volume so
//! far mistakes a busy hour for a busy day; one that trusts the forecast learns nothing from the day. [`VolumeModel`] learns
//! the balance by ridge regression on logged days: the logarithm of actual over forecast traffic, in five spans of the time
//! ahead, given the same ratio over ten minutes, an hour and the day so far, and over the other days. How much of a deviation
//! will last depends on the world: where hours keep to the day's level, a missing quarter of the requests will go on missing;
//! where they stray, it will come back. So the inputs are there a second time, times the world's calm. Every label is a count,
//! known once the day is over, so a few days are enough to correct the shipped moments of many worlds ([`Moments::shipped`]).
//!
//! The remaining uncertainty is part of the result: [`VolumeModel::courses`] returns several courses of the rest of the day,
//! and prices are averaged over them. A contract that is short in a course with little traffic costs its penalty, which the
//! mean volume does not show.

mod day;
mod deviation;
mod habits;
mod moments;
mod spans;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use day::DayVolume;
pub use deviation::Deviation;
pub use moments::Moments;

use deviation::{BASE, INPUTS, MOST};
use habits::Habits;
use spans::{SPANS, span_of};

use super::amount::is_amount;
use super::forecast::GRID;

/// Courses, in standard deviations of the forecast error.
const COURSES: [f64; 3] = [-1.2, 0.0, 1.2];
/// Number of days that the shipped moments count as, beside the logged days.
const SHIPPED_DAYS: f64 = 9.0;
/// Keeps the equations solvable; far below the contribution of one day.
const RIDGE: f64 = 1e-4;
/// Learned deviation of volume from its forecast. Logarithms of actual over forecast requests throughout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeModel {
    /// Mean over the logged days for all requests, shrunk.
    bias: f64,
    /// Deviation of each region relative to that.
    regions: BTreeMap<u32, f64>,
    /// The world's calm, 0 to 1. Models made before it was known have half as many weights and do without.
    #[serde(default)]
    calm: f64,
    /// Per span of the time ahead: weights of the inputs, and the standard deviation of the residual.
    weights: [Vec<f64>; SPANS],
    spread: [f64; SPANS],
}

impl VolumeModel {
    /// Fits the model to logged days, starting from the moments shipped with the program.
    pub fn fit(days: &[DayVolume]) -> Self {
        Self::fit_from(Moments::shipped(), days)
    }

    /// Fits the model to logged days, starting from the moments of other days.
    pub fn fit_from(start: &Moments, days: &[DayVolume]) -> Self {
        let mut all = Moments::of_days(days);
        all.add(start, SHIPPED_DAYS / start.days.max(1.0));
        let [region] = all.region.solve(RIDGE);
        let habits = Habits::of(days.iter());
        let mut regions = habits.regions.clone();
        regions.values_mut().for_each(|log| *log = (*log * region.clamp(0.0, 1.0)).clamp(-MOST, MOST));
        let weights = all.spans.each_ref().map(|span| span.solve::<INPUTS>(RIDGE).to_vec());
        let error = |i: usize| (all.spans[i].mean_square(&weights[i]).max(0.0) * habits.unit()).sqrt();
        let spread = std::array::from_fn(|i| error(i).min(MOST));
        Self { bias: habits.bias, regions, calm: habits.calm(), weights, spread }
    }

    /// Returns the factor on the forecast of a region, relative to the deviation of all requests.
    pub fn region_factor(&self, region: u32) -> f64 {
        self.regions.get(&region).map_or(1.0, |log| log.exp())
    }

    /// Returns courses of the rest of the day: factors on the forecast by cell of the grid, from the cell `now` on. They are
    /// equally likely. `elapsed`: share of the forecast traffic before now.
    pub fn courses(&self, deviation: Deviation, elapsed: f64, now: usize) -> Vec<[f64; GRID]> {
        let inputs = deviation.inputs(self.bias, self.calm, elapsed.clamp(0.0, 1.0));
        let expected =
            self.weights.each_ref().map(|weights| weights.iter().zip(inputs).map(|(w, x)| w * x).sum::<f64>());
        let course = |deviations: f64| {
            let factor = |span: usize| (expected[span] + deviations * self.spread[span]).clamp(-MOST, MOST).exp();
            std::array::from_fn(|cell| if cell < now { 1.0 } else { factor(span_of(cell - now)) })
        };
        COURSES.map(course).to_vec()
    }

    /// Whether every figure can be used.
    pub(super) fn is_sound(&self) -> bool {
        let figures = self
            .weights
            .iter()
            .flatten()
            .chain(&self.spread)
            .chain(self.regions.values())
            .chain([&self.bias, &self.calm]);
        let sizes = self.weights.iter().all(|weights| [BASE, INPUTS].contains(&weights.len()));
        sizes && figures.copied().all(|v| is_amount(v.abs()))
    }
}

#[cfg(test)]
mod tests;
