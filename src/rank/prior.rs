//! The prior's part of the gradients of rows: it draws rare ids towards 0.

use crate::run::value_run::Prepared;
use crate::settings::ValueSettings;

use super::occurrences::Occurrences;
use super::store::{BatchRows, Store};

/// The prior on rows, by field.
pub struct RowPrior {
    /// Standard deviations of the direct elements of each field's rows, charge and click, and of all other elements.
    direct: Vec<[f64; 2]>,
    rest: f64,
    occurrences: Occurrences,
}

impl RowPrior {
    pub fn new(settings: &ValueSettings, prepared: &Prepared) -> Self {
        let direct = prepared.prior.iter().map(|sds| sds.map(f64::from)).collect();
        Self { direct, rest: settings.values.prior_sd, occurrences: Occurrences::default() }
    }

    /// Adds the prior's part to the gradients of a batch's rows: the mean over samples of these `weights`, after so many `passes` over
    /// the exposures. It is spread over the batches that hold a row; of a row's version, so many came in each pass.
    pub fn add(&mut self, store: &Store, batch: &BatchRows, weights: &[f32], passes: f64, gradients: &mut [f32]) {
        let samples = weights.len() as f64;
        let spread = |sd: f64| sd.powi(-2) / samples;
        let of_fields: Vec<[f64; 2]> = self.direct.iter().map(|sds| sds.map(spread)).collect();
        let rest = spread(self.rest);
        self.occurrences.count(&batch.lookup, weights, self.direct.len());
        let occurrences = &self.occurrences;
        store.add_prior(batch, gradients, |place, version| {
            let share = (passes / f64::from(version + 1)).min(1.0) * f64::from(occurrences.weight(place));
            let [charge, click] = of_fields[occurrences.field(place)];
            [charge, click, rest].map(|precision| (precision * share) as f32)
        });
    }
}
