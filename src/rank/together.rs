//! A rank among others: every rank computes the gradients of its shard of each batch, and all make the same update.
//!
//! The ranks exchange everything of an update at once: the mean of the parameters' gradients, and the gradients of rows. Each moves its
//! own copy of the parameters; rank 0 alone writes the table, evaluates, and saves. Nobody reads rows for the next batch before
//! rank 0 has published those of the last; until then the others compute what needs no rows.
//!
//! Every message carries a hash of its rank's parameters, so that ranks that have drifted apart are an error at the next update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use twox_hash::XxHash3_64;

use crate::collective::rows::{Merger, RowGradients, encode};
use crate::run::value_run::{Prepared, RANK_HEADER, ValueHalves, ValueSegments, exchange_name, net_shape, table_name};
use crate::run::value_snapshot::ValueState;
use crate::run::{Metrics, RunDirectory, failpoint};
use crate::settings::{ValueSettings, WhenFull};
use crate::shm::control::{ProcessSlot, STOP_LEARNING};
use crate::shm::{Exchange, Halves, Role, Seat};
use crate::sparse::lookup::Finder;
use crate::sparse::{HostTable, TableError, TableView};
use crate::values::net::Losses;
use crate::values::{Block, Fields};

use super::blocks::{Batch, Blocks};
use super::dense::Dense;
use super::judge::Judge;
use super::occurrences::Occurrences;
use super::passes::Passes;
use super::prior::RowPrior;
use super::record::Training;
use super::rows::RowStep;
use super::saver::Saver;
use super::store::{BatchRows, Store};
use super::{report, state_of, step_of};

/// Runs a rank until training is over or the run stops. Rank 0 saves.
///
/// # Errors
/// What [`super::run`] fails with, and a rank that is gone ([`crate::shm::Broken`]).
pub fn run(settings: &ValueSettings, directory: &RunDirectory, prefix: &str, rank: usize) -> anyhow::Result<()> {
    let segments = ValueSegments::open_for_rank(prefix, rank, settings.values.readers)?;
    let role = if rank == 0 { Role::Trainer } else { Role::Rank(rank) };
    let slot = &segments.control.processes[role.slot()];
    slot.sign_in(role.kind());
    let fields = Fields::parse(&settings.values.fields)?;
    let shape = net_shape(settings, &fields);
    let exchange = Arc::new(Exchange::open(&exchange_name(prefix))?);
    let seat = exchange.join(rank, Duration::from_secs_f64(settings.ranks.timeout_s))?;
    let (halves, undo) = ValueHalves::open(prefix)?.map(|of| (of.halves, of.undo)).unzip();
    let state = state_of(settings, directory, shape, halves.as_ref())?;
    let prepared = Prepared::read(directory)?;
    let prior = RowPrior::new(settings, &prepared);
    let rows = if rank == 0 {
        let mut table = HostTable::open(&table_name(prefix))?;
        if let Some(undo) = undo {
            table.track(undo);
        }
        let passes = Passes { settings, prepared: &prepared, directory, judge: Judge::open(settings, &fields)? };
        let metrics = Metrics::open(&directory.metrics())?;
        let saver = Saver::new(&segments, halves.as_ref(), settings);
        let store = Store::new(table, settings);
        seat.publish(1);
        let halves = halves.as_ref();
        Duty::First(Box::new(First { store, prior, passes, metrics, saver, halves, merged: RowGradients::default() }))
    } else {
        Duty::Other(TableView::open(&table_name(prefix))?)
    };
    let mut member = Member {
        blocks: Blocks::open(&segments, slot, fields.len())?,
        dense: Dense::new(shape, prepared.dispersion),
        occurrences: Occurrences::default(),
        finder: Finder::default(),
        batch_rows: BatchRows::default(),
        row_gradients: vec![],
        record: vec![],
        message: vec![],
        merger: Merger::default(),
        duty: rows,
        generation: 1,
        sums: Losses::default(),
        sums_samples: 0,
        shown: (Instant::now(), state.samples),
        exchanging: Duration::ZERO,
        fields: fields.len(),
        settings,
        prepared: &prepared,
        segments: &segments,
        slot,
        seat,
        state,
    };
    member.train()
}

/// What a rank does beside computing.
enum Duty<'a> {
    First(Box<First<'a>>),
    Other(TableView),
}

/// What rank 0 does for all.
struct First<'a> {
    store: Store,
    prior: RowPrior,
    passes: Passes<'a>,
    metrics: Metrics,
    saver: Saver<'a>,
    halves: Option<&'a Halves>,
    merged: RowGradients,
}

/// What a rank says of itself in an exchange.
struct Said {
    /// It has no batch to compute, because the run stops: nobody makes this update.
    stops: bool,
    /// Of its parameters before the update.
    parameters: u64,
    click: f64,
    charge: f64,
}

impl Said {
    fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        for word in [u64::from(self.stops), self.parameters, self.click.to_bits(), self.charge.to_bits()] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(message: &[u8]) -> Option<Self> {
        let word =
            |i: usize| -> Option<u64> { Some(u64::from_le_bytes(message.get(8 * i..8 * i + 8)?.try_into().ok()?)) };
        Some(Self {
            stops: word(0)? != 0,
            parameters: word(1)?,
            click: f64::from_bits(word(2)?),
            charge: f64::from_bits(word(3)?),
        })
    }
}

struct Member<'a> {
    settings: &'a ValueSettings,
    prepared: &'a Prepared,
    segments: &'a ValueSegments,
    slot: &'a ProcessSlot,
    seat: Seat,
    blocks: Blocks<'a>,
    dense: Dense,
    occurrences: Occurrences,
    finder: Finder,
    batch_rows: BatchRows,
    /// Of this rank's shard: `dim` floats for each unique id.
    row_gradients: Vec<f32>,
    /// Memory for a record of the table.
    record: Vec<u32>,
    message: Vec<u8>,
    merger: Merger,
    duty: Duty<'a>,
    state: ValueState,
    /// Number of the rows that the next batch reads, as rank 0 publishes them.
    generation: u64,
    /// Losses of the pass so far, of all ranks.
    sums: Losses,
    sums_samples: u64,
    /// When the last record was written, and the samples then.
    shown: (Instant, u64),
    /// Time in exchanges, and waiting for rows.
    exchanging: Duration,
    fields: usize,
}

impl Member<'_> {
    fn train(&mut self) -> anyhow::Result<()> {
        self.report();
        while !self.state.finished {
            if self.state.cursor.pass_ended() {
                self.end_pass()?;
                continue;
            }
            let next = self.next_batch()?;
            if let Some(Batch { block, after }) = &next
                && block.whole() == 0
            {
                self.state.cursor.clone_from(after);
                continue;
            }
            if !self.update(next)? {
                break;
            }
            self.after_update()?;
            failpoint::reached(if self.is_first() { "rank.update" } else { "other.update" });
        }
        self.record();
        let slot = self.slot;
        if let Duty::First(first) = &mut self.duty
            && let Some(number) = first.saver.begin_last(|| slot.beat())?
        {
            first.save(number, &self.state)?;
        }
        Ok(())
    }

    /// This rank's shard of the next batch; `None` when the run stops.
    fn next_batch(&mut self) -> anyhow::Result<Option<Batch>> {
        loop {
            let stops = self.segments.control.stop_level() >= STOP_LEARNING;
            // Rank 0 decides; the others stop by themselves only where the readers give no more.
            if stops && self.is_first() {
                return Ok(None);
            }
            if let Some(batch) = self.blocks.next() {
                return Ok(Some(batch));
            }
            if self.blocks.take(&self.state.cursor)?.is_none() && stops {
                return Ok(None);
            }
        }
    }

    /// Makes an update with all ranks; false when one of them stops.
    fn update(&mut self, batch: Option<Batch>) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let parameters = XxHash3_64::oneshot(bytemuck::cast_slice(&self.state.parameters));
        let mut said = Said { stops: batch.is_none(), parameters, click: 0.0, charge: 0.0 };
        if let Some(batch) = &batch {
            let losses = self.compute(&batch.block)?;
            (said.click, said.charge) = (losses.click, losses.charge);
        }
        said.encode(&mut self.message);
        debug_assert_eq!(self.message.len(), RANK_HEADER);
        if let Some(batch) = &batch {
            self.occurrences.count(&self.batch_rows.lookup, &batch.block.weight, self.fields);
            let of_row = |row| self.occurrences.of(row);
            encode(&self.batch_rows.lookup, of_row, &self.row_gradients, self.fields, &mut self.message);
        }
        let all = self.exchange()?;
        if let Some(drifted) = all.iter().position(|of| of.parameters != all[0].parameters) {
            anyhow::bail!("the parameters of rank {drifted} are not those of rank 0 any more");
        }
        let Some(batch) = batch.filter(|_| all.iter().all(|said| !said.stops)) else { return Ok(false) };
        let whole = batch.block.whole();
        self.state.cursor = batch.after;
        self.state.samples += whole;
        let (of_rows, rate) = step_of(self.settings, self.prepared, &self.state);
        self.generation += 1;
        if let Duty::First(first) = &mut self.duty {
            first.write(self.settings, &mut self.merger, of_rows, whole)?;
            failpoint::reached("rank.written");
            self.seat.publish(self.generation);
        }
        self.dense.apply(&mut self.state, rate);
        self.state.updates += 1;
        self.sums.click += all.iter().map(|said| said.click).sum::<f64>();
        self.sums.charge += all.iter().map(|said| said.charge).sum::<f64>();
        self.sums_samples += whole;
        if self.is_first() {
            let learner = &self.segments.control.learner;
            learner.updates.set(self.state.updates);
            learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        }
        Ok(true)
    }

    /// Computes the gradients of a shard.
    fn compute(&mut self, block: &Block) -> anyhow::Result<Losses> {
        self.slot.beat();
        self.dense.begin(&self.state, block);
        self.finder.find(&block.ids, &mut self.batch_rows.lookup);
        let begun = Instant::now();
        self.seat.wait_published(self.generation)?;
        self.exchanging += begun.elapsed();
        let BatchRows { lookup, values, .. } = &mut self.batch_rows;
        let shape = match &self.duty {
            Duty::First(first) => first.store.table().shape(),
            Duty::Other(view) => view.shape(),
        };
        self.record.resize(shape.words(), 0);
        values.clear();
        for &id in &lookup.unique {
            match &self.duty {
                Duty::First(first) => first.store.table().read(id, &mut self.record),
                Duty::Other(view) => view.read(id, &mut self.record),
            }
            values.extend_from_slice(bytemuck::cast_slice(&self.record[..shape.dim]));
        }
        let losses = self.dense.interact(&self.state, block, &self.batch_rows, &mut self.row_gradients)?;
        self.dense.finish(&self.state, block)?;
        Ok(losses)
    }

    /// Gives gradients and message to all; returns what each rank said. The parameters' gradient is the mean of all then, and rank 0
    /// has the rows of all.
    fn exchange(&mut self) -> anyhow::Result<Vec<Said>> {
        let begun = Instant::now();
        let (dim, first) = (self.settings.values.dim, self.is_first());
        let (merger, message) = (&mut self.merger, &self.message);
        merger.begin();
        let mut all = Vec::with_capacity(self.seat.ranks());
        let mut failed = None;
        let gradient = self.dense.gradient(self.state.parameters.len());
        failpoint::reached(if first { "rank.exchange" } else { "other.exchange" });
        self.seat.exchange(gradient, message, &mut |rank, message| {
            let Some(said) = Said::decode(message) else {
                failed.get_or_insert_with(|| anyhow::anyhow!("rank {rank} gave {} bytes", message.len()));
                return;
            };
            if first
                && !said.stops
                && let Err(damaged) = merger.add(&message[RANK_HEADER..], dim)
            {
                failed.get_or_insert(damaged.into());
            }
            all.push(said);
        })?;
        self.exchanging += begun.elapsed();
        failed.map_or(Ok(all), Err)
    }

    /// What rank 0 does between two updates.
    fn after_update(&mut self) -> anyhow::Result<()> {
        if self.shown.0.elapsed() > Duration::from_secs(1) {
            self.record();
        }
        let slot = self.slot;
        if let Duty::First(first) = &mut self.duty
            && let Some(number) = first.saver.begin(first.store.changed(), || slot.beat())
        {
            first.save(number, &self.state)?;
        }
        Ok(())
    }

    /// Rank 0 evaluates, and says whether training is over.
    fn end_pass(&mut self) -> anyhow::Result<()> {
        self.record();
        self.slot.beat();
        let mut verdict = Vec::new();
        match &mut self.duty {
            Duty::First(first) => {
                let table = first.store.table();
                if let Some(evaluation) = first.passes.end(&mut self.state, &mut self.dense.net, table)? {
                    first.metrics.append("evaluation", &evaluation);
                }
                verdict.push(u8::from(self.state.finished));
            }
            Duty::Other(_) => self.state.cursor.next_pass(),
        }
        let mut finished = None;
        self.seat.exchange(&mut [], &verdict, &mut |rank, verdict| {
            if rank == 0 {
                finished = verdict.first().map(|finished| *finished != 0);
            }
        })?;
        self.state.finished = finished.context("rank 0 did not say whether training is over")?;
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        Ok(())
    }

    fn is_first(&self) -> bool {
        matches!(self.duty, Duty::First(_))
    }

    fn report(&self) {
        if self.is_first() {
            report(&self.segments.control, &self.state);
        }
    }

    fn record(&mut self) {
        let Duty::First(first) = &mut self.duty else { return };
        let (then, before) = self.shown;
        let n = self.sums_samples.max(1) as f64;
        let (snapshot_wait, early_snapshots) = first.saver.cost();
        let record = Training {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / then.elapsed().as_secs_f64().max(1e-9),
            rows: first.store.table().len(),
            click: self.sums.click / n,
            charge: self.sums.charge / n,
            wait_s: self.blocks.waited().as_secs_f64(),
            rows_wait_s: self.exchanging.as_secs_f64(),
            snapshot_wait_s: snapshot_wait.as_secs_f64(),
            early_snapshots,
            cache: None,
        };
        first.metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }
}

impl First<'_> {
    /// Puts snapshot `number` into its half.
    fn save(&mut self, number: u64, state: &ValueState) -> anyhow::Result<()> {
        if let Some(halves) = self.halves {
            self.store.snapshot(halves, number, state.updates)?;
            self.saver.write(number, state)?;
        }
        Ok(())
    }

    /// Moves the rows of all ranks along their merged gradients, of a batch of `whole` samples.
    fn write(
        &mut self,
        settings: &ValueSettings,
        merger: &mut Merger,
        step: RowStep,
        whole: u64,
    ) -> Result<(), TableError> {
        let dim = settings.values.dim;
        merger.finish(settings.ranks.sparse_average, dim, &mut self.merged);
        let prior = self.prior.of_batch(whole, step.passes);
        let table = self.store.table_mut();
        for row in 0..self.merged.ids.len() {
            let weight = self.merged.mean_weight(row);
            let Some(record) = table.find_or_insert(self.merged.ids[row]) else {
                if settings.table.when_full == WhenFull::Error {
                    return Err(TableError::Full { rows: table.len() });
                }
                continue;
            };
            let version = *table.record(record).last().expect("a version");
            let weights = prior.weights(self.merged.fields[row] as usize, weight, version);
            let gradient = &mut self.merged.gradients[row * dim..(row + 1) * dim];
            for (element, (g, w)) in gradient.iter_mut().zip(table.row(record)).enumerate() {
                *g += weights[element.min(weights.len() - 1)] * w;
            }
            table.update(self.merged.ids[row], record, gradient, step.rate);
        }
        Ok(())
    }
}
