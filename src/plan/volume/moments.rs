//! Normal equations: the sufficient statistics of a regression on the days seen.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::plan::transport::cholesky;

use super::day::DayVolume;
use super::deviation::INPUTS;
use super::habits::Habits;
use super::spans::SPANS;

/// Weighted sums of products of the inputs, of inputs and label, and of the label's square, each in units of a variance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Squares {
    /// `[inputs, inputs]`.
    inputs: Vec<f64>,
    label: Vec<f64>,
    square: f64,
    weight: f64,
}

impl Squares {
    fn new(inputs: usize) -> Self {
        Self { inputs: vec![0.0; inputs * inputs], label: vec![0.0; inputs], square: 0.0, weight: 0.0 }
    }

    /// Adds a row whose errors are measured in units of the variance `unit`.
    pub fn add(&mut self, inputs: &[f64], label: f64, weight: f64, unit: f64) {
        let n = inputs.len();
        self.weight += weight;
        let weight = weight / unit;
        for (i, x) in inputs.iter().enumerate() {
            for (k, y) in inputs.iter().enumerate() {
                self.inputs[i * n + k] += weight * x * y;
            }
            self.label[i] += weight * x * label;
        }
        self.square += weight * label * label;
    }

    fn merge(&mut self, other: &Self, factor: f64) {
        let sums = self.inputs.iter_mut().chain(&mut self.label).zip(other.inputs.iter().chain(&other.label));
        sums.for_each(|(sum, more)| *sum += factor * more);
        self.square += factor * other.square;
        self.weight += factor * other.weight;
    }

    /// Returns the weights of least squared error, with `ridge` of the whole weight added to each input's square.
    pub fn solve<const N: usize>(&self, ridge: f64) -> [f64; N] {
        let mut inputs = self.inputs.clone();
        for i in 0..N {
            inputs[i * N + i] += ridge * self.weight + 1e-12;
        }
        let weights = cholesky(&inputs, &self.label);
        std::array::from_fn(|i| weights[i])
    }

    /// Returns the mean squared error of weights, in units of a row's variance.
    pub fn mean_square(&self, weights: &[f64]) -> f64 {
        let n = weights.len();
        let mut sum = self.square;
        for (i, w) in weights.iter().enumerate() {
            let product: f64 = weights.iter().enumerate().map(|(k, v)| v * self.inputs[i * n + k]).sum();
            sum += w * (product - 2.0 * self.label[i]);
        }
        sum / self.weight.max(1e-12)
    }

    fn fits(&self, inputs: usize) -> bool {
        self.inputs.len() == inputs * inputs
            && self.label.len() == inputs
            && self.inputs.iter().chain(&self.label).chain([&self.square, &self.weight]).all(|v| v.is_finite())
    }
}

/// Training data of many days for the deviation of volume from its forecast, as moments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moments {
    version: u32,
    /// Number of days.
    pub(super) days: f64,
    pub(super) spans: [Squares; SPANS],
    pub(super) region: Squares,
}

/// Incremented when the inputs change.
const VERSION: u32 = 2;
const SHIPPED: &str = include_str!("../../../configs/volume.json");

impl Default for Moments {
    fn default() -> Self {
        Self {
            version: VERSION,
            days: 0.0,
            spans: std::array::from_fn(|_| Squares::new(INPUTS)),
            region: Squares::new(1),
        }
    }
}

impl Moments {
    /// Returns the moments that ship with the program; `scripts/pretrain-volume` makes them.
    ///
    /// # Panics
    /// If they have another version, which a unit test excludes.
    pub fn shipped() -> &'static Self {
        static PARSED: OnceLock<Moments> = OnceLock::new();
        PARSED.get_or_init(|| {
            let moments: Moments = serde_json::from_str(SHIPPED).expect("configs/volume.json comes with the program");
            assert!(moments.is_sound(), "configs/volume.json is of another version: scripts/pretrain-volume makes it");
            moments
        })
    }

    /// Computes the moments of days of one world; each day's inputs use the habits of the other days.
    pub fn of_days(days: &[DayVolume]) -> Self {
        Self::of_levels(days, &[(1.0, 1.0)])
    }

    /// Computes the same where each day comes once for each `(level, weight)`, with `level` times its requests.
    pub fn of_levels(days: &[DayVolume], levels: &[(f64, f64)]) -> Self {
        let mut moments = Self::default();
        for (i, day) in days.iter().enumerate() {
            let others = Habits::of(days.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, other)| other));
            moments.days += 1.0;
            for &(level, weight) in levels {
                day.times(level).each_moment(|at| {
                    let inputs = at.deviation.inputs(others.bias, others.calm(), at.elapsed);
                    moments.spans[at.span].add(&inputs, at.log_ratio, weight * at.weight, others.unit());
                });
            }
            for (region, log) in day.region_ratios() {
                let expected = others.regions.get(&region).copied().unwrap_or(0.0);
                moments.region.add(&[expected], log, day.region_share(region), 1.0);
            }
        }
        moments
    }

    /// Adds the moments of other days, weighted by a factor.
    pub fn add(&mut self, other: &Self, factor: f64) {
        self.days += factor * other.days;
        self.spans.iter_mut().zip(&other.spans).for_each(|(own, more)| own.merge(more, factor));
        self.region.merge(&other.region, factor);
    }

    /// Returns the number of days.
    pub fn days(&self) -> f64 {
        self.days
    }

    fn is_sound(&self) -> bool {
        self.version == VERSION && self.region.fits(1) && self.spans.iter().all(|span| span.fits(INPUTS))
    }
}
