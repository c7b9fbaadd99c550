//! The trainer process of a value model: takes blocks from the readers in a fixed order, learns, evaluates, saves. This file is the
//! trainer without other ranks.
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
//! | [`dense`] | the network's products and their gradients, on the CPU |
//! | [`device`] | rows and network on GPUs |
//! | [`network`] | the one or the other, for a single trainer |
//! | [`gradients`] | the one or the other, for one of several ranks |
//! | [`passes`], [`judge`] | the end of a pass: evaluation, the best model |
//! | [`progress`] | where training begins and stands: its first state, the rates of an update, what main is told |
//! | [`saver`] | snapshots |
//! | [`together`] | sets up one rank of several, starts and ends it |
//! | [`member`] | what a rank does in both modes |
//! | [`in_step`], [`overlapped`] | the two modes |
//! | [`said`] | what ranks tell each other beside gradients |
//! | [`arrivals`] | which gradients of others have arrived |
//! | [`writer`] | the thread that writes the rows of a table while ranks overlap |
//! | [`merged`] | the rows of a table, and a rank's copies of them, moved along the gradients of all ranks |
//! | [`busy`] | the CPU time of a rank's updates |
//! | [`record`] | the records of training in `metrics.jsonl`; this file and [`member`] fill them |

mod arrivals;
mod blocks;
mod busy;
pub mod dense;
pub mod device;
pub mod gradients;
mod in_step;
pub mod judge;
mod member;
mod merged;
pub mod network;
mod occurrences;
mod overlapped;
mod passes;
pub mod prior;
mod progress;
mod record;
pub mod rows;
mod said;
mod saver;
mod shard;
pub mod store;
mod together;
mod writer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::gpu::{self, Device};
use crate::run::alive::Pulse;
use crate::run::value_run::{Prepared, ValueHalves, ValueSegments, net_shape, table_name};
use crate::run::value_snapshot::ValueState;
use crate::run::{Metrics, RunDirectory, failpoint};
use crate::settings::{Configuration as _, ValueSettings};
use crate::shm::control::{ProcessSlot, STOP_LEARNING};
use crate::shm::{Halves, Role};
use crate::sparse::HostTable;
use crate::values::Fields;
use crate::values::net::Losses;

use blocks::{Batch, Blocks};
use device::DeviceShape;
use judge::Judge;
use network::Network;
use passes::Passes;
use prior::RowPrior;
use progress::{report, report_updates, state_of, step_of};
use record::Training;
use rows::{RowStep, Rows};
use saver::Saver;
use store::Store;

/// Runs the trainer until training is over or the run stops, and saves.
///
/// # Errors
/// [`dense::NotFinite`], [`CannotSave`](crate::run::CannotSave), a full table, and anything that keeps it from working.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let settings = ValueSettings::read_resolved(&directory.config())?;
    let prepared = Prepared::read(directory)?;
    if prepared.world(&settings).ranks > 1 {
        return together::run(&settings, directory, prefix, 0);
    }
    let segments = ValueSegments::open_for_rank(prefix, 0, settings.values.readers)?;
    let slot = &segments.control.processes[Role::Trainer.slot()];
    slot.sign_in(Role::Trainer.kind());
    let mut table = HostTable::open(&table_name(prefix, 0))?;
    let (halves, undo) = ValueHalves::open(prefix)?.map(|of| (Arc::new(of.halves), of.undo)).unzip();
    let fields = Fields::parse(&settings.values.fields)?;
    let shape = net_shape(&settings, &fields);
    let (state, sightings) = state_of(&settings, directory, shape, halves.as_deref())?;
    if let Some(undo) = undo {
        table.track(undo);
    }
    let pulse = Pulse::new(&segments.control, slot);
    let judge = Judge::open(&settings, &fields, || pulse.beat())?;
    let prior = RowPrior::new(&settings, &prepared);
    let (mut store, device) = match Device::resolve(&settings.run.device, device::subject(&settings))? {
        Device::Cpu => (Store::new(table, &settings), None),
        Device::Cuda(index) => {
            let (rows, slots) = (settings.device_rows(), rows::slots(settings.ahead()));
            let (table_shape, dispersion) = (table.shape(), prepared.dispersion);
            let shape = DeviceShape { net: shape, table: table_shape, rows, slots, dispersion };
            let (memory, dense) = device::open_cuda(&gpu::device::from(index, settings.table.devices), &shape)?;
            gpu::failures::end_the_process();
            (Store::on_device(table, &settings, memory), Some(dense))
        }
    };
    store.begin(&settings, &prepared.days, &sightings)?;
    let rows = Rows::start(store, Some(prior), halves.clone(), settings.ahead())?;
    let mut trainer = Trainer {
        blocks: Blocks::open(&segments, slot, fields.len())?,
        rows,
        halves: halves.as_ref(),
        network: Network::new(shape, prepared.dispersion, device, &state),
        passes: Passes { settings: &settings, prepared: &prepared, directory, judge, pulse },
        saver: Saver::new((&segments, segments.rings.clone()), halves.as_deref(), &settings, 1),
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

struct Trainer<'a> {
    settings: &'a ValueSettings,
    prepared: &'a Prepared,
    segments: &'a ValueSegments,
    slot: &'a ProcessSlot,
    blocks: Blocks<'a>,
    rows: Rows,
    halves: Option<&'a Arc<Halves>>,
    network: Network,
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
                self.learn_asked()?;
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
            failpoint::reached("rank.update");
        }
        self.record();
        self.save()
    }

    /// Learns every batch whose rows were asked for. By now the row thread may have settled the next of them: it has counted its ids,
    /// marked its rows as used and freed others. A snapshot that held this but not the batch would settle it twice.
    fn learn_asked(&mut self) -> anyhow::Result<()> {
        while let Some(next) = self.blocks.next() {
            self.learn(next)?;
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
        self.network.begin(&self.state, &batch.block);
        let slot = self.slot;
        let mut looked_up = self.rows.looked_up(|| slot.beat())?;
        let changed = looked_up.changed();
        let (block, rows, gradients) = looked_up.parts();
        let losses = self.network.interact(&self.state, block, rows, gradients)?;
        self.sums.add(losses);
        self.state.samples += block.len() as u64;
        let (step, rate) = step_of(self.settings, self.prepared, &self.state);
        let snapshot = self.saver.begin(changed, || slot.beat());
        if snapshot.is_some() {
            self.sums.add(self.network.settle(&self.state)?);
        }
        let update = self.state.updates + 1;
        looked_up.ready(RowStep { snapshot: snapshot.map(|number| (number, update)), ..step });
        self.network.step(&mut self.state, &batch.block, rate)?;
        self.state.updates = update;
        if let Some(number) = snapshot {
            self.network.fetch(&mut self.state)?;
            self.saver.write(number, &self.state)?;
        }
        self.sums_samples += batch.block.len() as u64;
        report_updates(&self.segments.control, &self.state);
        self.segments.control.learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn end_pass(&mut self) -> anyhow::Result<()> {
        self.sums.add(self.network.settle(&self.state)?);
        self.network.fetch(&mut self.state)?;
        self.record();
        self.slot.beat();
        let slot = self.slot;
        let mut store = self.rows.settle(|| slot.beat());
        store.flush();
        let evaluation = self.passes.end(&mut self.state, self.network.net(), store.table())?;
        drop(store);
        if let Some(evaluation) = evaluation {
            self.metrics.append("evaluation", &evaluation);
        }
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        Ok(())
    }

    /// Takes the last snapshot.
    fn save(&mut self) -> anyhow::Result<()> {
        self.network.settle(&self.state)?;
        self.network.fetch(&mut self.state)?;
        let slot = self.slot;
        if let (Some(number), Some(halves)) = (self.saver.begin_last(|| slot.beat())?, self.halves) {
            self.rows.settle(|| slot.beat()).snapshot(halves, number, self.state.updates)?;
            self.saver.write(number, &self.state)?;
        }
        Ok(())
    }

    fn report(&self) {
        report(&self.segments.control, &self.state);
    }

    fn record(&mut self) {
        let (then, before) = self.shown;
        let seconds = then.elapsed().as_secs_f64().max(1e-9);
        let mean = |sum: f64| (self.sums_samples > 0).then(|| sum / self.sums_samples as f64);
        let slot = self.slot;
        let (rows, cache) = {
            let store = self.rows.settle(|| slot.beat());
            (store.table().len(), store.counters())
        };
        let (snapshot_wait, early_snapshots) = self.saver.cost();
        let record = Training {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / seconds,
            rows,
            row_writes: None,
            click: mean(self.sums.click),
            charge: mean(self.sums.charge),
            wait_s: self.blocks.waited().as_secs_f64(),
            rows_wait_s: (self.rows.waited() + self.network.waited()).as_secs_f64(),
            snapshot_wait_s: snapshot_wait.as_secs_f64(),
            early_snapshots,
            cache,
            work: None,
        };
        self.metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }
}
