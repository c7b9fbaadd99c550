//! The trainer process of a value model: takes blocks from the readers in a fixed order, learns, evaluates, saves.
//!
//! It is the one writer of the host table. Blocks are taken in turn from the readers, so the same seed gives the same bytes
//! whatever the timing. After each pass over the exposures it evaluates on the validation days and keeps the best model; it ends
//! after the last pass, or when evaluations no longer improve.
//!
//! [`store`] holds the rows, in the table itself or in the cache over it; [`judge`] evaluates; `occurrences` says how a batch's
//! samples weigh on its rows.
//!
//! May import: `run`, `values`, `sparse`, `shm`, `settings`.

pub mod judge;
mod occurrences;
pub mod store;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::run::value_run::{Cursor, Prepared, ValueSegments, ValueSnapshot, ValueState, table_name};
use crate::run::{CannotSave, Metrics, RunDirectory, failpoint};
use crate::settings::{Configuration as _, ValueSettings};
use crate::shm::control::{MAX_PROCESSES, STOP_LEARNING};
use crate::shm::{Ledger, ProcessKind, RingReader, SampleRing, ShmError};
use crate::sparse::cache::Counters;
use crate::sparse::{HostTable, Lookup, Ticket};
use crate::values::model::{self, Meta};
use crate::values::net::{Gradients, Losses, Net, NetShape};
use crate::values::{Block, Fields};

use judge::Judge;
use occurrences::Occurrences;
use store::Store;

/// Where the trainer signs in.
pub const SLOT: usize = MAX_PROCESSES - 1;
const NAP: Duration = Duration::from_millis(100);

/// A loss, gradient or parameter that is not finite.
#[derive(Debug, thiserror::Error)]
#[error("update {update}: a loss or gradient is not finite; lower table.rate and values.rate")]
pub struct NotFinite {
    update: u64,
}

/// A record of training in `metrics.jsonl`.
#[derive(Serialize)]
struct Record {
    epoch: u64,
    updates: u64,
    samples: u64,
    samples_per_s: f64,
    rows: usize,
    /// Means over the pass so far, per sample.
    click: f64,
    charge: f64,
    wait_s: f64,
    cache: Option<Counters>,
}

/// A record of an evaluation.
#[derive(Serialize)]
struct Evaluation {
    epoch: u64,
    updates: u64,
    click: f64,
    charge: f64,
    best: bool,
}

/// Runs the trainer until training is over or the run stops, and saves.
///
/// # Errors
/// [`NotFinite`], [`CannotSave`], a full table, and anything that keeps it from working.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let settings = ValueSettings::read_resolved(&directory.config())?;
    let segments = ValueSegments::open(prefix, 0..settings.values.readers)?;
    segments.control.processes[SLOT].sign_in(ProcessKind::Learner);
    let mut table = HostTable::open(&table_name(prefix))?;
    let fields = Fields::parse(&settings.values.fields)?;
    let shape = NetShape { fields: fields.len(), dim: settings.values.dim, hidden: settings.values.hidden };
    let snapshot = ValueSnapshot::newest(directory)?;
    let number = snapshot.as_ref().map_or(0, |s| s.number);
    let state = match snapshot {
        Some(snapshot) => {
            snapshot.restore(&mut table)?;
            snapshot.state
        }
        None => {
            let mut rng = ChaCha8Rng::seed_from_u64(settings.run.seed);
            ValueState::new(settings.values.readers, shape.first_parameters(&mut rng))
        }
    };
    let prepared = Prepared::read(directory)?;
    let mut trainer = Trainer {
        judge: Judge::open(&settings, &fields)?,
        store: Store::new(table, &settings),
        net: Net::new(shape),
        gradients: Gradients::default(),
        occurrences: Occurrences::default(),
        ahead: VecDeque::new(),
        sums: Losses::default(),
        sums_samples: 0,
        metrics: Metrics::open(&directory.metrics())?,
        readers: segments.rings.iter().map(SampleRing::reader).collect::<Result<_, _>>()?,
        saved: Instant::now(),
        shown: (Instant::now(), state.samples),
        fields,
        settings: &settings,
        prepared,
        directory,
        segments: &segments,
        state,
        snapshots: number,
        waited: Duration::ZERO,
    };
    trainer.train()
}

/// A block under way.
struct Batch {
    block: Block,
    lookup: Lookup,
    /// Its rows in the cache, once they are fetched.
    ticket: Option<Ticket>,
    /// Where training stands behind it.
    after: Cursor,
}

struct Trainer<'a> {
    settings: &'a ValueSettings,
    prepared: Prepared,
    directory: &'a RunDirectory,
    segments: &'a ValueSegments,
    readers: Vec<RingReader>,
    fields: Fields,
    judge: Judge,
    store: Store,
    net: Net,
    gradients: Gradients,
    occurrences: Occurrences,
    /// Batches under way, the next one first.
    ahead: VecDeque<Batch>,
    state: ValueState,
    /// Losses of the pass so far.
    sums: Losses,
    sums_samples: u64,
    metrics: Metrics,
    snapshots: u64,
    saved: Instant,
    /// When the last record was written, and the samples then.
    shown: (Instant, u64),
    waited: Duration,
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
            self.fetch_ahead()?;
            let Some(next) = self.ahead.pop_front() else { continue };
            self.learn(next)?;
            if self.shown.0.elapsed() > Duration::from_secs(1) {
                self.record();
            }
            let every = self.settings.checkpoint.every_s;
            if every > 0.0 && self.saved.elapsed() > Duration::from_secs_f64(every) {
                self.save().unwrap_or_else(|e| {
                    self.segments.control.checkpoint.failures.add(1);
                    self.saved = Instant::now();
                    tracing::warn!("a snapshot cannot be written, training goes on: {e:#}");
                });
            }
            failpoint::reached("rank.update");
        }
        self.record();
        if self.settings.checkpoint.every_s > 0.0 {
            self.save().map_err(CannotSave)?;
        }
        Ok(())
    }

    /// Takes the blocks of the next batches of this pass, and fetches their rows.
    fn fetch_ahead(&mut self) -> anyhow::Result<()> {
        let wanted = 1 + if self.settings.table.cache_rows > 0 { self.settings.table.prefetch } else { 0 };
        while self.ahead.len() < wanted {
            let mut after = self.ahead.back().map_or(&self.state.cursor, |batch| &batch.after).clone();
            if after.pass_ended() {
                break;
            }
            let Some(block) = self.take(after.reader())? else { break };
            // Else made again by a reader that died between handing it over and saying so.
            if after.advance(&block)? {
                let mut lookup = Lookup::default();
                self.store.find(&block.ids, &mut lookup);
                self.ahead.push_back(Batch { block, lookup, ticket: None, after });
            }
        }
        for batch in &mut self.ahead {
            if batch.ticket.is_none() {
                batch.ticket = self.store.prefetch(&batch.lookup)?;
                if batch.ticket.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A block of a reader; `None` where there is none yet, after a nap if nothing else is to be done.
    fn take(&mut self, reader: usize) -> anyhow::Result<Option<Block>> {
        let control = &self.segments.control;
        control.processes[SLOT].beat();
        let seen = control.data.value();
        match self.readers[reader].take() {
            Ok(Some(guard)) => {
                let block = Block::decode(guard.payload(), self.fields.len())?;
                guard.release();
                control.learner.samples_consumed.add(block.len() as u64);
                Ok(Some(block))
            }
            Ok(None) => {
                if self.ahead.is_empty() {
                    let begun = Instant::now();
                    control.data.wait(seen, NAP);
                    self.waited += begun.elapsed();
                    control.learner.wait_ns.add(begun.elapsed().as_nanos() as u64);
                }
                Ok(None)
            }
            Err(ShmError::Torn { .. }) => anyhow::bail!("a block of reader {reader} is damaged"),
            Err(e) => Err(e.into()),
        }
    }

    fn learn(&mut self, batch: Batch) -> anyhow::Result<()> {
        let Batch { block, lookup, ticket, after } = batch;
        self.state.cursor = after;
        if block.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let v = &self.settings.values;
        let rows = self.store.gather(&lookup, ticket)?;
        let losses = self.net.step(
            &self.state.parameters,
            rows,
            &lookup.inverse,
            &block,
            self.prepared.dispersion,
            &mut self.gradients,
        );
        let finite = losses.total().is_finite()
            && self.gradients.parameters.iter().chain(&self.gradients.rows).all(|g| g.is_finite());
        if !finite {
            return Err(NotFinite { update: self.state.updates }.into());
        }
        self.state.samples += block.len() as u64;
        let passes = self.state.samples as f64 / self.prepared.samples as f64;
        let done = (passes / v.epochs as f64).min(1.0);
        let rate = |first: f64| (first * (1.0 - done * (1.0 - v.final_rate_share))) as f32;
        // The prior's part of the gradient, spread over the batches that hold the row: of its version, so many came in each pass.
        let batch = block.len() as f64;
        let spread = |sd: f64| sd.powi(-2) / batch;
        let of_fields: Vec<[f64; 2]> =
            self.prepared.prior.iter().map(|sds| sds.map(|sd| spread(f64::from(sd)))).collect();
        let rest = spread(v.prior_sd);
        self.occurrences.count(&lookup, &block.weight, self.fields.len());
        let occurrences = &self.occurrences;
        self.store.add_prior(&lookup, &mut self.gradients.rows, |place, version| {
            let share = (passes / f64::from(version + 1)).min(1.0) * f64::from(occurrences.weight(place));
            let [charge, click] = of_fields[occurrences.field(place)];
            [charge, click, rest].map(|precision| (precision * share) as f32)
        });
        self.store.update(&self.gradients.rows, rate(self.settings.table.rate));
        self.state.adam.step(rate(v.rate), &mut self.state.parameters, &self.gradients.parameters);
        self.state.updates += 1;
        self.sums.click += losses.click;
        self.sums.charge += losses.charge;
        self.sums_samples += block.len() as u64;
        self.segments.control.learner.updates.set(self.state.updates);
        self.segments.control.learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    /// Evaluates, keeps the best, and begins the next pass.
    fn end_pass(&mut self) -> anyhow::Result<()> {
        self.record();
        self.store.flush();
        self.segments.control.processes[SLOT].beat();
        let losses =
            self.judge.losses(&mut self.net, &self.state.parameters, self.store.table(), self.prepared.dispersion);
        let total = losses.total() / losses.weight.max(1.0);
        // Without validation days the last pass is kept.
        let last = self.state.cursor.epoch + 1 == self.settings.values.epochs;
        let chosen = !self.settings.values.validation.is_empty();
        let best = if chosen { self.state.best.is_none_or(|best| total < best) } else { last };
        self.state.evaluations += 1;
        let (click, charge) = (losses.click / losses.weight.max(1.0), losses.charge / losses.weight.max(1.0));
        if chosen {
            self.metrics.append(
                "evaluation",
                &Evaluation { epoch: self.state.cursor.epoch, updates: self.state.updates, click, charge, best },
            );
        }
        if best {
            self.state.best = chosen.then_some(total);
            self.state.without_improvement = 0;
            let v = &self.settings.values;
            let meta = Meta {
                updates: self.state.updates,
                epoch: self.state.cursor.epoch,
                validation_click: click,
                validation_charge: charge,
                ..Meta::new(v.fields.clone(), v.dim, v.hidden, self.settings.run.seed, self.prepared.dispersion)
            };
            let folder = self.directory.root().join("values");
            model::write(&folder, meta, &self.state.parameters, self.store.table()).map_err(CannotSave)?;
        } else if chosen {
            self.state.without_improvement += 1;
        }
        self.state.cursor.next_pass();
        let patience = self.settings.values.patience;
        self.state.finished = self.state.cursor.epoch >= self.settings.values.epochs
            || (patience > 0 && self.state.without_improvement >= patience);
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        Ok(())
    }

    /// Tells main how evaluations went.
    fn report(&self) {
        let e = &self.segments.control.evaluator;
        e.evaluations.set(self.state.evaluations);
        e.without_improvement.set(self.state.without_improvement);
        e.best_benefit.set(self.state.best.unwrap_or(f64::NAN));
        e.due.set(self.state.cursor.epoch);
        self.segments.control.learner.updates.set(self.state.updates);
    }

    fn record(&mut self) {
        let (then, before) = self.shown;
        let seconds = then.elapsed().as_secs_f64().max(1e-9);
        let n = self.sums_samples.max(1) as f64;
        let record = Record {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / seconds,
            rows: self.store.table().len(),
            click: self.sums.click / n,
            charge: self.sums.charge / n,
            wait_s: self.waited.as_secs_f64(),
            cache: self.store.counters(),
        };
        self.metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        self.store.flush();
        let mut state = self.state.clone();
        let now = self.segments.rings.iter().map(|ring| ring.ledger().closed());
        state.ledger = Ledger::sum(now.chain([state.ledger]));
        let number = self.snapshots + 1;
        failpoint::reached("rank.snapshot");
        let keep = self.settings.checkpoint.keep;
        let bytes = ValueSnapshot::write(self.directory, number, &state, self.store.table(), keep)?;
        self.snapshots = number;
        let stats = &self.segments.control.checkpoint;
        stats.snapshots.add(1);
        stats.bytes.add(bytes);
        stats.write_ns.add(begun.elapsed().as_nanos() as u64);
        self.segments.control.learner.snapshot_ns.add(begun.elapsed().as_nanos() as u64);
        self.saved = Instant::now();
        Ok(())
    }
}
