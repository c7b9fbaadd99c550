//! The main process of `admix values train`: joins and counts the exposures first, then runs readers and the trainer.
//!
//! When a reader dies, main starts another, which begins with the first block that was not handed over. When the trainer dies, or
//! one of several ranks, which are trainers of one model, then what has changed in the table since the newest snapshot is undone, and
//! the whole run returns to it. Blocks are taken in a fixed order: either way the run ends with the bytes of an undisturbed one.
//!
//! [`beginning`]: what is known before a run starts. [`table`]: its rows, and how they go back. [`processes`]: its processes, watched.

mod beginning;
mod processes;
mod table;

use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;

use crate::run::RunDirectory;
use crate::run::value_run::{ValueHalves, ValueSegments};
use crate::settings::ValueSettings;
use crate::shm::{Ledger, RunNames, SampleRing, sweep};
use crate::values::Fields;

use super::ExitReason;
use super::children::without_huge_pages;
use super::failure::RunFailure;
use super::interrupt::Interrupt;

pub use beginning::{check_resume, prepare};
use processes::{Ended, Run};
use table::Rows;

/// What a finished run reports.
#[derive(Debug, Clone, Serialize)]
pub struct ValueOutcome {
    pub reason: ExitReason,
    pub updates: u64,
    pub samples: u64,
    pub passes: u64,
    pub seconds: f64,
    /// Loss of the best model on the validation days: click plus charge over its dispersion, per exposure.
    pub best_loss: f64,
    pub reader_restarts: u32,
    /// Times that everything went back to a snapshot.
    pub went_back: u32,
    pub snapshots: u64,
    pub snapshot_s: f64,
    pub ledger: Ledger,
}

/// Trains until the trainer ends, and reports. Goes on from the newest snapshot in the run directory, if there is one.
///
/// # Errors
/// [`RunFailure`], or no room for the table.
pub fn train(
    settings: &ValueSettings,
    fields: &Fields,
    directory: &RunDirectory,
    interrupt: &Interrupt,
) -> anyhow::Result<ValueOutcome> {
    let removed = sweep();
    if !removed.is_empty() {
        tracing::info!("removed shared memory that dead runs left: {}", removed.join(", "));
    }
    without_huge_pages();
    let names = RunNames::for_this_process(&directory.run_id())?;
    let started = Instant::now();
    let (mut went_back, mut reader_restarts, mut snapshots) = (0, 0, (0, 0));
    // The update that was not finite, if the last attempt ended with one.
    let mut not_finite = None;
    let mut rows = Rows::load(&names, settings, fields, directory)?;
    loop {
        let halves = ValueHalves::create(&names, settings, fields, rows.number)?;
        let segments = ValueSegments::create(&names, settings, fields)?;
        let mut before = Ledger::default();
        if let Some(state) = &rows.state {
            before = state.ledger;
            let l = &segments.control.learner;
            l.updates.set(state.updates);
            l.samples_consumed.set(state.samples);
            for (actor, &position) in segments.control.actors.iter().zip(&state.cursor.positions) {
                actor.param_version.set(position);
            }
        }
        let run = Run::start(settings, directory, &segments, names.to_string())?;
        let ended = run.watch(interrupt, &mut reader_restarts)?;
        let c = &segments.control.checkpoint;
        snapshots = (snapshots.0 + c.snapshots.get(), snapshots.1 + c.write_ns.get());
        let Ended::Well(reason) = ended else {
            went_back += 1;
            if matches!(ended, Ended::NotFinite) {
                let update = segments.control.learner.updates.get();
                // In a fixed order the same follows again, unless it was the machine's doing.
                anyhow::ensure!(
                    not_finite.replace(update).is_none_or(|before| update > before),
                    RunFailure::NotFinite { incidents: directory.logs() }
                );
                tracing::warn!("update {update} is not finite; once more from the newest snapshot");
            }
            anyhow::ensure!(
                went_back <= settings.watchdog.max_restarts,
                RunFailure::KeepsDying { process: "trainer".into(), times: went_back, log: directory.log("trainer") }
            );
            drop(segments);
            rows = rows.go_back(&names, settings, fields, directory, halves)?;
            continue;
        };
        let ledger = segments.rings.iter().map(SampleRing::ledger);
        for ledger in ledger.clone() {
            ledger.balance().context("samples are unaccounted for")?;
        }
        let control = &segments.control;
        return Ok(ValueOutcome {
            reason,
            updates: control.learner.updates.get(),
            samples: control.learner.samples_consumed.get(),
            passes: control.evaluator.due.get(),
            seconds: started.elapsed().as_secs_f64(),
            best_loss: control.evaluator.best_benefit.get(),
            reader_restarts,
            went_back,
            snapshots: snapshots.0,
            snapshot_s: snapshots.1 as f64 * 1e-9,
            ledger: Ledger::sum(ledger.chain([before])),
        });
    }
}
