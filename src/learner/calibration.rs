//! Calibration of the critic's distributions: how often returns fall below the predicted deciles.
//!
//! For a calibrated critic, a tenth of all returns lies below the first predicted decile, half below the median. The shares go
//! into the learner's records and from there into the report of a run.

use serde::{Deserialize, Serialize};

/// Number of deciles of a distribution, without its ends.
pub const DECILES: usize = 9;

/// Counts of targets below the critic's deciles.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    below: [u32; DECILES],
    seen: u32,
}

/// Where the deciles of a distribution are between its quantiles.
#[derive(Debug, Clone, Copy)]
pub struct Deciles {
    quantiles: usize,
    between: [Between; DECILES],
}

/// Indices of the two nearest quantiles, and how far it is from the first to the second.
#[derive(Debug, Clone, Copy)]
struct Between {
    low: usize,
    high: usize,
    part: f32,
}

impl Deciles {
    /// Returns the places of deciles 1 to 9 of ten between `quantiles` quantiles at `(i + 0.5) / quantiles`.
    pub fn of(quantiles: usize) -> Self {
        let last = quantiles - 1;
        let between = |d: usize| {
            let at = ((d + 1) as f32 / 10.0 * quantiles as f32 - 0.5).clamp(0.0, last as f32);
            let low = at as usize;
            Between { low, high: (low + 1).min(last), part: at.fract() }
        };
        Self { quantiles, between: std::array::from_fn(between) }
    }
}

impl Calibration {
    /// Counts a distribution, given as its quantiles, and its outcome, in the same unit.
    ///
    /// # Panics
    /// If `deciles` are those of another number of quantiles.
    pub fn see(&mut self, deciles: &Deciles, quantiles: &[f32], came: f32) {
        assert_eq!(quantiles.len(), deciles.quantiles, "deciles of this distribution");
        self.seen += 1;
        for (below, Between { low, high, part }) in self.below.iter_mut().zip(deciles.between) {
            let decile = quantiles[low] + part * (quantiles[high] - quantiles[low]);
            *below += u32::from(came < decile);
        }
    }

    /// Adds counts.
    pub fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum.seen += one.seen;
            sum.below.iter_mut().zip(one.below).for_each(|(sum, one)| *sum += one);
            sum
        })
    }

    /// Returns the share of outcomes below each decile; `None` if nothing was counted.
    pub fn shares(&self) -> Option<[f64; DECILES]> {
        (self.seen > 0).then(|| self.below.map(|below| f64::from(below) / f64::from(self.seen)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_that_is_right_has_its_deciles_where_they_should_be() {
        let quantiles: Vec<f32> = (0..16).map(|i| (i as f32 + 0.5) / 16.0).collect();
        let deciles = Deciles::of(16);
        let (mut right, mut low) = (Calibration::default(), Calibration::default());
        for i in 0..1000 {
            let came = (i as f32 + 0.5) / 1000.0;
            right.see(&deciles, &quantiles, came);
            low.see(&deciles, &quantiles, came + 1.0);
        }
        for (d, share) in right.shares().unwrap().into_iter().enumerate() {
            assert!((share - (d + 1) as f64 / 10.0).abs() <= 0.001, "decile {}: {share}", d + 1);
        }
        assert_eq!(low.shares(), Some([0.0; DECILES]));
        let both = Calibration::sum([right, low].iter());
        assert!((both.shares().unwrap()[4] - 0.25).abs() <= 0.001);
        assert_eq!(Calibration::default().shares(), None);
    }
}
