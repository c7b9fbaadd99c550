//! The trainer process of a value model: takes blocks from the readers in a fixed order, learns, evaluates, saves.
//!
//! It is the one writer of the host table. Blocks are taken in turn from the readers, and the row thread and the dense products
//! work on each batch in a fixed order, so the same seed gives the same bytes whatever the timing. After each pass over the
//! exposures the trainer evaluates on the validation days and keeps the best model; it ends after the last pass, or when
//! evaluations no longer improve.
//!
//! | file | what it is |
//! |---|---|
//! | [`blocks`] | where batches come from |
//! | [`rows`] | the row thread: look-ups, fetches and updates beside the dense products |
//! | [`store`] | rows in the table itself or in the cache over it |
//! | [`prior`], [`occurrences`] | the prior's part of the gradients of rows |
//! | [`dense`] | the network's products and their gradients |
//! | [`passes`], [`judge`] | the end of a pass: evaluation, the best model |
//! | [`saver`] | snapshots |
//! | [`together`] | a rank among others: the same updates, with gradients exchanged |
//! | [`record`] | records in `metrics.jsonl` |
//!
//! May import: `run`, `values`, `collective`, `sparse`, `shm`, `settings`.

mod blocks;
mod dense;
pub mod judge;
mod occurrences;
mod passes;
mod prior;
mod record;
pub mod rows;
mod saver;
pub mod store;
mod together;

use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::run::value_run::{Prepared, ValueSegments, ValueSnapshot, ValueState, net_shape, table_name};
use crate::run::{CannotSave, Metrics, RunDirectory, failpoint};
use crate::settings::{Configuration as _, ValueSettings};
use crate::shm::control::{MAX_PROCESSES, ProcessSlot, STOP_LEARNING};
use crate::shm::{Control, ProcessKind};
use crate::sparse::HostTable;
use crate::values::Fields;
use crate::values::net::{Losses, NetShape};

use blocks::{Batch, Blocks};
use dense::Dense;
use judge::Judge;
use passes::Passes;
use prior::RowPrior;
use record::Training;
use rows::{RowStep, Rows};
use saver::Saver;
use store::Store;

/// Where the trainer signs in: rank 0.
pub const SLOT: usize = MAX_PROCESSES - 1;

/// Where a rank signs in; evaluator and checkpointer of other runs have the slots in between.
pub fn slot(rank: usize) -> usize {
    if rank == 0 { SLOT } else { MAX_PROCESSES - 3 - rank }
}

/// A loss, gradient or parameter that is not finite.
#[derive(Debug, thiserror::Error)]
#[error("update {update}: a loss or gradient is not finite; lower table.rate and values.rate")]
pub struct NotFinite {
    update: u64,
}

/// Runs the trainer until training is over or the run stops, and saves.
///
/// # Errors
/// [`NotFinite`], [`CannotSave`], a full table, and anything that keeps it from working.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let settings = ValueSettings::read_resolved(&directory.config())?;
    if settings.values.ranks > 1 {
        return together::run(&settings, directory, prefix, 0);
    }
    let segments = ValueSegments::open_for_rank(prefix, 0, settings.values.readers)?;
    let slot = &segments.control.processes[SLOT];
    slot.sign_in(ProcessKind::Learner);
    let mut table = HostTable::open(&table_name(prefix))?;
    let fields = Fields::parse(&settings.values.fields)?;
    let shape = net_shape(&settings, &fields);
    let snapshot = ValueSnapshot::newest(directory)?;
    let number = snapshot.as_ref().map_or(0, |s| s.number);
    if let Some(snapshot) = &snapshot {
        snapshot.restore(&mut table)?;
    }
    let state = snapshot.map_or_else(|| first_state(&settings, shape), |snapshot| snapshot.state);
    let prepared = Prepared::read(directory)?;
    let judge = Judge::open(&settings, &fields)?;
    let ahead = if settings.table.cache_rows > 0 { settings.table.prefetch } else { 1 };
    let prior = RowPrior::new(&settings, &prepared);
    let mut trainer = Trainer {
        blocks: Blocks::open(&segments, slot, fields.len())?,
        rows: Rows::start(Store::new(table, &settings), Some(prior), ahead)?,
        dense: Dense::new(shape, prepared.dispersion),
        passes: Passes { settings: &settings, prepared: &prepared, directory, judge },
        saver: Saver::new(directory, &segments, settings.checkpoint.clone(), number),
        sums: Losses::default(),
        sums_samples: 0,
        metrics: Metrics::open(&directory.metrics())?,
        shown: (Instant::now(), state.samples),
        settings: &settings,
        prepared: &prepared,
        segments: &segments,
        slot,
        state,
    };
    trainer.train()
}

/// Runs rank `rank` of several until training is over or the run stops.
///
/// # Errors
/// As [`run`], and a rank that is gone ([`crate::shm::Broken`]).
pub fn run_rank(directory: &RunDirectory, prefix: &str, rank: usize) -> anyhow::Result<()> {
    together::run(&ValueSettings::read_resolved(&directory.config())?, directory, prefix, rank)
}

/// The state of a run that begins.
fn first_state(settings: &ValueSettings, shape: NetShape) -> ValueState {
    let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
    ValueState::new(settings.values.readers, shape.first_parameters(&mut rng))
}

/// Tells main how evaluations went.
fn report(control: &Control, state: &ValueState) {
    let e = &control.evaluator;
    e.evaluations.set(state.evaluations);
    e.without_improvement.set(state.without_improvement);
    e.best_benefit.set(state.best.unwrap_or(f64::NAN));
    e.due.set(state.cursor.epoch);
    control.learner.updates.set(state.updates);
}

/// Rates of rows and of the network after `state`: they decay over the passes. With the passes so far.
fn step_of(settings: &ValueSettings, prepared: &Prepared, state: &ValueState) -> (RowStep, f32) {
    let v = &settings.values;
    let passes = state.samples as f64 / prepared.samples as f64;
    let done = (passes / v.epochs as f64).min(1.0);
    let rate = |first: f64| (first * (1.0 - done * (1.0 - v.final_rate_share))) as f32;
    (RowStep { rate: rate(settings.table.rate), passes }, rate(v.rate))
}

struct Trainer<'a> {
    settings: &'a ValueSettings,
    prepared: &'a Prepared,
    segments: &'a ValueSegments,
    slot: &'a ProcessSlot,
    blocks: Blocks<'a>,
    rows: Rows,
    dense: Dense,
    passes: Passes<'a>,
    saver: Saver<'a>,
    state: ValueState,
    /// Losses of the pass so far.
    sums: Losses,
    sums_samples: u64,
    metrics: Metrics,
    /// When the last record was written, and the samples then.
    shown: (Instant, u64),
}

impl Trainer<'_> {
    fn train(&mut self) -> anyhow::Result<()> {
        self.report();
        while !self.state.finished {
            if self.segments.control.stop_level() >= STOP_LEARNING {
                break;
            }
            if self.state.cursor.pass_ended() {
                self.end_pass()?;
                continue;
            }
            self.ask_ahead()?;
            let Some(next) = self.blocks.next() else { continue };
            self.learn(next)?;
            if self.shown.0.elapsed() > Duration::from_secs(1) {
                self.record();
            }
            if self.saver.is_due() {
                self.save().unwrap_or_else(|e| {
                    self.saver.failed();
                    tracing::warn!("a snapshot cannot be written, training goes on: {e:#}");
                });
            }
            failpoint::reached("rank.update");
        }
        self.record();
        if self.saver.saves() {
            self.save().map_err(CannotSave)?;
        }
        Ok(())
    }

    /// Takes the batches that come next, and asks for their rows.
    fn ask_ahead(&mut self) -> anyhow::Result<()> {
        while self.rows.has_room() {
            let Some(block) = self.blocks.take(&self.state.cursor)? else { break };
            if !block.is_empty() {
                self.rows.ask(block);
            }
        }
        Ok(())
    }

    fn learn(&mut self, batch: Batch) -> anyhow::Result<()> {
        self.state.cursor = batch.after;
        if batch.block.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        self.dense.begin(&self.state, &batch.block);
        let slot = self.slot;
        let mut looked_up = self.rows.looked_up(|| slot.beat())?;
        let (block, rows, gradients) = looked_up.parts();
        let losses = self.dense.interact(&self.state, block, rows, gradients)?;
        self.state.samples += block.len() as u64;
        let (of_rows, rate) = step_of(self.settings, self.prepared, &self.state);
        looked_up.ready(of_rows);
        self.dense.finish(&self.state, &batch.block)?;
        self.dense.apply(&mut self.state, rate);
        self.state.updates += 1;
        self.sums.click += losses.click;
        self.sums.charge += losses.charge;
        self.sums_samples += batch.block.len() as u64;
        self.segments.control.learner.updates.set(self.state.updates);
        self.segments.control.learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn end_pass(&mut self) -> anyhow::Result<()> {
        self.record();
        self.slot.beat();
        let slot = self.slot;
        let mut store = self.rows.settle(|| slot.beat());
        store.flush();
        let evaluation = self.passes.end(&mut self.state, &mut self.dense.net, store.table())?;
        drop(store);
        if let Some(evaluation) = evaluation {
            self.metrics.append("evaluation", &evaluation);
        }
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        Ok(())
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let slot = self.slot;
        let mut store = self.rows.settle(|| slot.beat());
        self.saver.save(&self.state, &mut store)
    }

    fn report(&self) {
        report(&self.segments.control, &self.state);
    }

    fn record(&mut self) {
        let (then, before) = self.shown;
        let seconds = then.elapsed().as_secs_f64().max(1e-9);
        let n = self.sums_samples.max(1) as f64;
        let slot = self.slot;
        let (rows, cache) = {
            let store = self.rows.settle(|| slot.beat());
            (store.table().len(), store.counters())
        };
        let record = Training {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / seconds,
            rows,
            click: self.sums.click / n,
            charge: self.sums.charge / n,
            wait_s: self.blocks.waited().as_secs_f64(),
            rows_wait_s: self.rows.waited().as_secs_f64(),
            cache,
        };
        self.metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }
}
