//! The prior's part of the gradients of rows: it draws rare ids towards 0.

use crate::formulas::host::prior_share;
use crate::run::value_run::Prepared;
use crate::settings::ValueSettings;
use crate::sparse::table::DIRECT;

use super::occurrences::Occurrences;
use super::store::BatchRows;

/// The prior on rows, by field.
pub struct RowPrior {
    /// Standard deviations of the direct elements of each field's rows, charge and click, and of all other elements.
    direct: Vec<[f64; 2]>,
    rest: f64,
    occurrences: Occurrences,
}

impl RowPrior {
    pub fn new(settings: &ValueSettings, prepared: &Prepared) -> Self {
        Self::of(prepared.prior.iter().map(|sds| sds.map(f64::from)).collect(), settings.values.prior_sd)
    }

    /// A prior of these standard deviations: of the direct elements of each field's rows, and of all other elements.
    pub fn of(direct: Vec<[f64; 2]>, rest: f64) -> Self {
        Self { direct, rest, occurrences: Occurrences::default() }
    }

    /// Adds the prior's part to the gradients of a batch's rows: the mean over samples of these `weights`, after so many `passes` over
    /// the exposures. It is spread over the batches that hold a row; of a row's version, so many came in each pass.
    pub fn add(&mut self, batch: &BatchRows, weights: &[f32], passes: f64, gradients: &mut [f32]) {
        let of_batch = self.of_batch(weights.len() as u64, passes);
        self.occurrences.count(&batch.lookup, weights, self.direct.len());
        let Some(dim) = batch.values.len().checked_div(batch.versions.len()) else { return };
        let rows = batch.values.chunks_exact(dim).zip(gradients.chunks_exact_mut(dim));
        for (place, (version, (row, gradient))) in batch.versions.iter().zip(rows).enumerate() {
            if let Some(version) = *version {
                let (field, weight) = (self.occurrences.field(place), self.occurrences.weight(place));
                of_batch.add(field, weight, version, row, gradient);
            }
        }
    }

    /// Returns the prior's precisions for each of a batch's rows, spread over its batches: of the direct elements and of the others.
    /// A device adds them to the gradients as [`add`](Self::add) does.
    pub fn precisions(&mut self, batch: &BatchRows, weights: &[f32]) -> Vec<f32> {
        let of_batch = self.of_batch(weights.len() as u64, 1.0);
        self.occurrences.count(&batch.lookup, weights, self.direct.len());
        let rows = (0..batch.lookup.unique.len()).flat_map(|place| {
            let [charge, click] = of_batch.direct[self.occurrences.field(place)];
            let weight = f64::from(self.occurrences.weight(place));
            [charge, click, of_batch.rest].map(|precision| (precision * weight) as f32)
        });
        rows.collect()
    }

    /// The prior as it applies to a batch of so many `samples`, after so many `passes`.
    pub fn of_batch(&self, samples: u64, passes: f64) -> BatchPrior {
        let spread = |sd: f64| sd.powi(-2) / samples as f64;
        let direct = self.direct.iter().map(|sds| sds.map(spread)).collect();
        BatchPrior { direct, rest: spread(self.rest), passes }
    }
}

/// The prior's precisions, spread over a batch's samples.
pub struct BatchPrior {
    direct: Vec<[f64; 2]>,
    rest: f64,
    passes: f64,
}

impl BatchPrior {
    /// Adds the prior's part to the gradient of a row of `field`. `weight` is the mean weight of the row's samples, `version` the number
    /// of its updates.
    pub fn add(&self, field: usize, weight: f32, version: u32, row: &[f32], gradient: &mut [f32]) {
        let share = prior_share(self.passes, version.into()) * f64::from(weight);
        let [charge, click] = self.direct[field];
        let [charge, click, rest] = [charge, click, self.rest].map(|precision| (precision * share) as f32);
        let (direct_gradient, rest_gradient) = gradient.split_at_mut(DIRECT);
        let (direct_row, rest_row) = row.split_at(DIRECT);
        for ((g, w), precision) in direct_gradient.iter_mut().zip(direct_row).zip([charge, click]) {
            *g += precision * w;
        }
        rest_gradient.iter_mut().zip(rest_row).for_each(|(g, w)| *g += rest * w);
    }
}
