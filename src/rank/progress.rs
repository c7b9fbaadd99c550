//! Where training begins and stands.

use crate::run::RunDirectory;
use crate::run::beginning::first_parameters;
use crate::run::value_run::Prepared;
use crate::run::value_snapshot::{ValueSnapshot, ValueState, read_whole_state};
use crate::settings::ValueSettings;
use crate::shm::{Control, Halves};
use crate::values::net::NetShape;

use super::rows::RowStep;

/// Reads the state to resume from, and the counts of ids without a row. Main has restored the table to the same snapshot before.
pub fn state_of(
    settings: &ValueSettings,
    directory: &RunDirectory,
    shape: NetShape,
    halves: Option<&Halves>,
) -> anyhow::Result<(ValueState, Vec<u8>)> {
    let number = match halves.map(Halves::committed) {
        Some(number) => number,
        // No snapshots are taken; there may be some of before.
        None => ValueSnapshot::newest(directory)?.map_or(0, |snapshot| snapshot.number),
    };
    match number {
        0 => Ok((ValueState::new(settings.values.readers, first_parameters(settings, shape, directory)?), vec![])),
        number => read_whole_state(directory, number),
    }
}

/// Tells main how evaluations went.
pub fn report(control: &Control, state: &ValueState) {
    let e = &control.evaluator;
    e.evaluations.set(state.evaluations);
    e.without_improvement.set(state.without_improvement);
    e.best_benefit.set(state.best.unwrap_or(f64::NAN));
    e.due.set(state.cursor.epoch);
    report_updates(control, state);
}

/// Tells main how far training is: what was learned, not what was taken from the readers.
pub fn report_updates(control: &Control, state: &ValueState) {
    control.learner.updates.set(state.updates);
    control.learner.samples_consumed.set(state.samples);
}

/// Rates of rows and of the network after `state`: they decay over the passes. With the passes so far.
pub fn step_of(settings: &ValueSettings, prepared: &Prepared, state: &ValueState) -> (RowStep, f32) {
    let v = &settings.values;
    let passes = state.samples as f64 / prepared.samples as f64;
    let done = (passes / v.epochs as f64).min(1.0);
    let rate = |first: f64| (first * (1.0 - done * (1.0 - v.final_rate_share))) as f32;
    (RowStep { rate: rate(settings.table.rate), passes, snapshot: None }, rate(v.rate))
}
