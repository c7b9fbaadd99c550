//! The end of a pass over the exposures: evaluation, the best model, the decision to end.

use crate::run::alive::Pulse;
use crate::run::value_run::Prepared;
use crate::run::value_snapshot::ValueState;
use crate::run::{CannotSave, RunDirectory};
use crate::settings::ValueSettings;
use crate::sparse::HostTable;
use crate::values::model::{self, Meta};
use crate::values::net::Net;

use super::judge::Judge;
use super::record::Evaluation;

/// What happens at the end of each pass.
pub struct Passes<'a> {
    pub settings: &'a ValueSettings,
    pub prepared: &'a Prepared,
    pub directory: &'a RunDirectory,
    pub judge: Judge,
    pub pulse: Pulse<'a>,
}

impl Passes<'_> {
    /// Evaluates, keeps the best model, and moves `state` on to the next pass. `table` is as of the last update. Returns what the
    /// validation days say, where there are any.
    ///
    /// # Errors
    /// [`CannotSave`].
    pub fn end(
        &self,
        state: &mut ValueState,
        net: &mut Net,
        table: &HostTable,
    ) -> Result<Option<Evaluation>, CannotSave> {
        self.pulse.begin();
        let beat = || self.pulse.beat();
        let losses = self.judge.losses(net, &state.parameters, table, self.prepared.dispersion, beat);
        let weight = losses.weight.max(1.0);
        let (click, charge, total) = (losses.click / weight, losses.charge / weight, losses.total() / weight);
        let v = &self.settings.values;
        // Without validation days the last pass is kept.
        let last = state.cursor.epoch + 1 == v.epochs;
        let chosen = !v.validation.is_empty();
        let best = if chosen { state.best.is_none_or(|best| total < best) } else { last };
        let evaluation = Evaluation { epoch: state.cursor.epoch, updates: state.updates, click, charge, best };
        state.evaluations += 1;
        if best {
            state.best = chosen.then_some(total);
            state.without_improvement = 0;
            let meta = Meta {
                updates: state.updates,
                epoch: state.cursor.epoch,
                validation_click: click,
                validation_charge: charge,
                ..Meta::new(v.fields.clone(), v.dim, v.hidden, self.settings.run.seed, self.prepared.dispersion)
            };
            let folder = self.directory.root().join("values");
            model::write(&folder, meta, &state.parameters, table, &beat).map_err(CannotSave)?;
        } else if chosen {
            state.without_improvement += 1;
        }
        state.cursor.next_pass();
        state.finished = state.cursor.epoch >= v.epochs || (v.patience > 0 && state.without_improvement >= v.patience);
        Ok(chosen.then_some(evaluation))
    }
}
