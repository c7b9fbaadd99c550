//! A rank among others: every rank computes the gradients of its shard of each batch.
//!
//! **In step** (`ranks.sync = "step"`) all make the same updates. They exchange everything of an update at once: the mean of the
//! parameters' gradients, and the gradients of rows. Each moves its own copy of the parameters; rank 0 alone writes the table,
//! evaluates, and saves. Nobody reads rows for the next batch before rank 0 has published those of the last; until then the others
//! compute what needs no rows. Every message carries a hash of its rank's parameters, so that ranks that have drifted apart are an
//! error at the next exchange.
//!
//! **Several tables**, one on each of several machines or `ranks.tables` on one: the first rank of each writes it, with the gradients of
//! all ranks of all tables in the same order, and the ranks of a table wait for that one alone. All hold the same rows, which is checked at
//! the end of each pass. Rank 0 alone evaluates. The first rank of each machine saves, and it saves the first table: the first ranks of further
//! ones copy it when they begin.
//!
//! **Overlapped** (`ranks.sync = "overlap"`) nobody waits for the others within a period: [`super::overlapped`].

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::collective::rows::encode;
use crate::run::value_run::{Prepared, RANK_HEADER, ValueHalves, ValueSegments, exchange_name, net_shape, table_name};
use crate::run::value_snapshot::ValueState;
use crate::run::{CannotSave, Metrics, RunDirectory, failpoint};
use crate::settings::{RankSync, ValueSettings};
use crate::shm::control::{ProcessSlot, STOP_LEARNING};
use crate::shm::{Exchange, Halves, NumaNodes, Role, RowReader, Seat};
use crate::sparse::lookup::Finder;
use crate::sparse::{HostTable, TableView};
use crate::values::net::Losses;
use crate::values::{Block, Fields};

use super::blocks::{Batch, Blocks};
use super::dense::Dense;
use super::judge::Judge;
use super::merged::MergedRows;
use super::occurrences::Occurrences;
use super::overlapped::Overlapped;
use super::passes::Passes;
use super::prior::RowPrior;
use super::progress::{report, state_of, step_of};
use super::record::Training;
use super::said::{Said, Verdict, hash};
use super::saver::{Room, Saver, Wish};
use super::store::{BatchRows, Store};

/// Runs rank `rank` of this machine until training is over or the run stops. The first one saves.
///
/// # Errors
/// What [`super::run`] fails with, and a rank that is gone ([`crate::shm::Broken`]).
pub fn run(settings: &ValueSettings, directory: &RunDirectory, prefix: &str, rank: usize) -> anyhow::Result<()> {
    let prepared = Prepared::read(directory)?;
    let world = prepared.world(settings);
    let segments = ValueSegments::open_for_rank(prefix, rank, settings.values.readers)?;
    let role = Role::rank(rank);
    let slot = &segments.control.processes[role.slot()];
    slot.sign_in(role.kind());
    let fields = Fields::parse(&settings.values.fields)?;
    let shape = net_shape(settings, &fields);
    let exchange = Arc::new(Exchange::open(&exchange_name(prefix))?);
    let seat = exchange.join(world.first + rank, Duration::from_secs_f64(settings.ranks.timeout_s))?;
    let (halves, undo) = ValueHalves::open(prefix)?.map(|of| (Arc::new(of.halves), of.undo)).unzip();
    let (state, _) = state_of(settings, directory, shape, halves.as_deref())?;
    if let Some(nodes) = NumaNodes::of_part(seat.group(), settings.ranks.tables) {
        nodes.stay();
    }
    let table_name = |table| table_name(prefix, table);
    let mut rows = None;
    if seat.publishes() {
        let mut table = HostTable::open(&table_name(seat.group()))?;
        if rank > 0 {
            let begun = Instant::now();
            table.copy_from(&table_name(0), || slot.beat())?;
            let (rows, seconds) = (table.len(), begun.elapsed().as_secs_f64());
            tracing::info!("table {} has the {rows} rows of the first one after {seconds:.3} s", seat.group());
        } else if let Some(undo) = undo {
            table.track(undo);
        }
        let merged = MergedRows::new(Store::new(table, settings), RowPrior::new(settings, &prepared));
        rows = Some(Arc::new(Mutex::new(merged)));
        exchange.publish(seat.group(), 0);
    }
    let mut first = None;
    if rank == 0 {
        let passes = || -> anyhow::Result<_> {
            let judge = Judge::open(settings, &fields, || slot.beat())?;
            Ok(Passes { settings, prepared: &prepared, directory, judge, slot })
        };
        let tables = (0..settings.ranks.tables).map(|table| RowReader::open(&table_name(table)));
        first = Some(First {
            passes: prepared.node.is_first().then(passes).transpose()?,
            metrics: Metrics::open(&directory.metrics())?,
            saver: Saver::new(&segments, halves.as_deref(), settings, world.ranks),
            halves: halves.as_ref(),
            tables: tables.collect::<Result<_, _>>()?,
        });
    }
    let mut member = Member {
        blocks: Blocks::open(&segments, slot, fields.len())?,
        dense: Dense::new(shape, prepared.dispersion, settings.ranks_here()),
        view: TableView::open(&table_name(seat.group()))?,
        occurrences: Occurrences::default(),
        finder: Finder::default(),
        batch_rows: BatchRows::default(),
        row_gradients: vec![],
        record: vec![],
        message: vec![],
        rows,
        first,
        written: 0,
        sums: Losses::default(),
        sums_samples: 0,
        shown: (Instant::now(), state.samples),
        exchanging: Duration::ZERO,
        fields: fields.len(),
        settings,
        prepared: &prepared,
        segments: &segments,
        slot,
        exchange,
        seat,
        state,
    };
    // The first rank of each table has it, with the rows that all begin with.
    member.seat.exchange(&mut [], &[], &mut |_, _| {})?;
    match settings.ranks.sync {
        RankSync::Step => member.train()?,
        RankSync::Overlap => Overlapped::open(prefix, directory, &mut member)?.train()?,
    }
    member.end()
}

/// What the first rank of a machine does for all others there.
pub struct First<'a> {
    /// Of rank 0.
    passes: Option<Passes<'a>>,
    metrics: Metrics,
    saver: Saver<'a>,
    halves: Option<&'a Arc<Halves>>,
    /// All tables of the machine.
    tables: Vec<RowReader>,
}

/// The rows of the table that this rank writes.
fn lock(rows: &Mutex<MergedRows>) -> MutexGuard<'_, MergedRows> {
    rows.lock().expect("whoever has rows works")
}

/// A rank at work.
pub struct Member<'a> {
    pub settings: &'a ValueSettings,
    pub prepared: &'a Prepared,
    pub segments: &'a ValueSegments,
    pub slot: &'a ProcessSlot,
    pub exchange: Arc<Exchange>,
    pub seat: Seat,
    pub blocks: Blocks<'a>,
    pub dense: Dense,
    view: TableView,
    occurrences: Occurrences,
    finder: Finder,
    batch_rows: BatchRows,
    /// Of this rank's shard: `dim` floats for each unique id.
    row_gradients: Vec<f32>,
    /// Memory for a record of the table.
    record: Vec<u32>,
    pub message: Vec<u8>,
    /// Of the first rank of a table: what it writes.
    pub rows: Option<Arc<Mutex<MergedRows>>>,
    first: Option<First<'a>>,
    pub state: ValueState,
    /// Number of the rows that are published: updates since this process began.
    pub written: u64,
    /// Losses of the pass so far, of all ranks.
    pub sums: Losses,
    pub sums_samples: u64,
    /// When the last record was written, and the samples then.
    shown: (Instant, u64),
    /// Time in exchanges, and waiting for rows.
    pub exchanging: Duration,
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
            let Some(all) = self.update(next)? else { break };
            self.after_update(&all)?;
            failpoint::reached(self.named(["rank.update", "table.update", "other.update"]));
        }
        Ok(())
    }

    /// Saves at the end of training: on all machines, or on none.
    ///
    /// # Errors
    /// [`CannotSave`], where the snapshot before cannot be written on one of them. A machine that took another one meanwhile would
    /// have removed what the others need.
    fn end(&mut self) -> anyhow::Result<()> {
        let room = self.agree_on_room(true)?;
        // All ranks have written their last rows.
        self.record();
        if !room {
            return Err(
                CannotSave(anyhow::anyhow!("the snapshot before the last cannot be written on every machine")).into()
            );
        }
        match self.first.as_ref().and_then(|first| first.saver.last()) {
            Some(number) => self.save(number),
            None => Ok(()),
        }
    }

    /// Puts snapshot `number` into its half.
    fn save(&mut self, number: u64) -> anyhow::Result<()> {
        let (Some(first), Some(rows)) = (&mut self.first, &self.rows) else { return Ok(()) };
        if let Some(halves) = first.halves {
            lock(rows).store.snapshot(halves, number, self.state.updates)?;
            first.saver.write(number, &self.state)?;
        }
        Ok(())
    }

    /// The name of a failpoint: in the first rank of the machine, in that of a further table, and in all others.
    pub fn named(&self, [first, writer, other]: [&'static str; 3]) -> &'static str {
        match (&self.first, &self.rows) {
            (Some(_), _) => first,
            (None, Some(_)) => writer,
            (None, None) => other,
        }
    }

    pub fn is_first(&self) -> bool {
        self.first.is_some()
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

    /// What this rank says of snapshots, before an update.
    pub fn wish(&self) -> Wish {
        match (&self.first, &self.rows) {
            (Some(first), Some(rows)) => first.saver.wish(lock(rows).store.changed()),
            _ => Wish { room: true, ..Wish::default() },
        }
    }

    /// Makes an update with all ranks, and returns what they said; `None` when one of them stops.
    fn update(&mut self, batch: Option<Batch>) -> anyhow::Result<Option<Vec<Said>>> {
        let begun = Instant::now();
        let parameters = hash(&self.state.parameters);
        let mut said = Said { stops: batch.is_none(), wish: self.wish(), parameters, click: 0.0, charge: 0.0 };
        if let Some(batch) = &batch {
            self.before_rows(&batch.block);
            let waiting = Instant::now();
            self.seat.wait_published(self.written)?;
            self.exchanging += waiting.elapsed();
            let losses = self.compute(&batch.block)?.1;
            (said.click, said.charge) = (losses.click, losses.charge);
        }
        said.encode(&mut self.message);
        debug_assert_eq!(self.message.len(), RANK_HEADER);
        if let Some(batch) = &batch {
            self.encode_rows(&batch.block);
        }
        let all = self.give_all()?;
        Said::agree(&all)?;
        let Some(batch) = batch.filter(|_| all.iter().all(|said| !said.stops)) else { return Ok(None) };
        let whole = batch.block.whole();
        self.state.cursor = batch.after;
        self.state.samples += whole;
        let (of_rows, rate) = step_of(self.settings, self.prepared, &self.state);
        self.written += 1;
        if let Some(rows) = &self.rows {
            // Where a test makes it fail, this table misses a write.
            if !failpoint::reached(self.named(["rank.write", "table.write", "other.write"])) {
                lock(rows).write(self.settings, of_rows, whole)?;
            }
            failpoint::reached(self.named(["rank.written", "table.written", "other.written"]));
            self.exchange.publish(self.seat.group(), self.written);
        }
        self.dense.apply(&mut self.state, rate);
        self.state.updates += 1;
        self.sums.click += all.iter().map(|said| said.click).sum::<f64>();
        self.sums.charge += all.iter().map(|said| said.charge).sum::<f64>();
        self.sums_samples += whole;
        self.tell_updates(begun);
        Ok(Some(all))
    }

    /// Tells main how far rank 0 is, which began an update at `begun`.
    pub fn tell_updates(&self, begun: Instant) {
        if self.is_first() {
            let learner = &self.segments.control.learner;
            learner.updates.set(self.state.updates);
            learner.compute_ns.add(begun.elapsed().as_nanos() as u64);
        }
    }

    /// Computes what a shard needs no rows for.
    pub fn before_rows(&mut self, block: &Block) {
        self.slot.beat();
        self.dense.begin(&self.state, block);
        let BatchRows { lookup, records, .. } = &mut self.batch_rows;
        self.finder.find(&block.ids, lookup);
        // Ranks remove no rows, so what is found now stays where it is. New ids are looked for again once the rows are published.
        self.view.find_all(&lookup.unique, records);
    }

    /// Reads a shard's rows and computes its gradients. Returns the generation of the rows, too.
    pub fn compute(&mut self, block: &Block) -> anyhow::Result<(u64, Losses)> {
        let BatchRows { lookup, records, values, .. } = &mut self.batch_rows;
        let generation = self.seat.read_shared(|| {
            self.view.read_all(&lookup.unique, records, &mut self.record, values);
        })?;
        let losses = self.dense.interact(&self.state, block, &self.batch_rows, &mut self.row_gradients)?;
        self.dense.finish(&self.state, block)?;
        Ok((generation, losses))
    }

    /// Appends the gradients of a shard's rows to the message.
    pub fn encode_rows(&mut self, block: &Block) {
        self.occurrences.count(&self.batch_rows.lookup, &block.weight, self.fields);
        let of_row = |row| self.occurrences.of(row);
        encode(&self.batch_rows.lookup, of_row, &self.row_gradients, self.fields, &mut self.message);
    }

    /// Gives gradients and message to all; returns what each rank said. The parameters' gradient is the mean of all then, and the first
    /// rank of each table has the rows of all.
    fn give_all(&mut self) -> anyhow::Result<Vec<Said>> {
        let begun = Instant::now();
        let dim = self.settings.values.dim;
        let point = self.named(["rank.exchange", "table.exchange", "other.exchange"]);
        let mut rows = self.rows.as_deref().map(lock);
        if let Some(rows) = &mut rows {
            rows.begin();
        }
        let mut all = Vec::with_capacity(self.seat.ranks());
        let mut failed = None;
        let gradient = self.dense.gradient(self.state.parameters.len());
        failpoint::reached(point);
        failpoint::reached("exchange.latency");
        self.seat.exchange(gradient, &self.message, &mut |rank, message| {
            let Some(said) = Said::decode(message) else {
                failed.get_or_insert_with(|| anyhow::anyhow!("rank {rank} gave {} bytes", message.len()));
                return;
            };
            if let Some(rows) = rows.as_mut().filter(|_| !said.stops)
                && let Err(damaged) = rows.add(&message[RANK_HEADER..], dim)
            {
                failed.get_or_insert(damaged.into());
            }
            all.push(said);
        })?;
        self.exchanging += begun.elapsed();
        failed.map_or(Ok(all), Err)
    }

    /// What the first rank of each machine does between two updates, or two periods, before which `all` said this.
    ///
    /// All machines take a snapshot behind the same update: when rank 0 finds that one is due and all have room for it, or where the table
    /// of one must not change any more without it.
    ///
    /// # Errors
    /// A snapshot that does not fit into shared memory.
    pub fn after_update(&mut self, all: &[Said]) -> anyhow::Result<()> {
        if self.shown.0.elapsed() > Duration::from_secs(1) {
            self.record();
        }
        let full = all.iter().any(|said| said.wish.full);
        let due = all[0].wish.due && all.iter().all(|said| said.wish.room);
        if full && !self.agree_on_room(false)? || !full && !due {
            return Ok(());
        }
        match self.first.as_mut().and_then(|first| first.saver.begin_now(all[0].wish)) {
            Some(number) => self.save(number),
            None => Ok(()),
        }
    }

    /// Waits until every machine has room for a snapshot, the `last` one of the run or one that must not wait; false where one will not
    /// have any. The ranks exchange again and again meanwhile, so that a slow disk makes nobody late.
    fn agree_on_room(&mut self, last: bool) -> anyhow::Result<bool> {
        let wait = self.first.as_ref().map(|first| first.saver.begin_wait(last));
        loop {
            self.slot.beat();
            let mut room = match (&mut self.first, &wait) {
                (Some(first), Some(wait)) => first.saver.room(wait),
                _ => Room::Free,
            };
            self.seat.exchange(&mut [], &room.encode(), &mut |_, theirs| room = Room::of_all(room, theirs))?;
            match room {
                Room::Free => return Ok(true),
                Room::Never => return Ok(false),
                Room::NotYet => {}
            }
        }
    }

    /// Ends a pass: rank 0 evaluates, and says whether training is over.
    pub fn end_pass(&mut self) -> anyhow::Result<()> {
        self.record();
        self.slot.beat();
        let rows = self.rows.as_deref().map(lock);
        let table = rows.as_ref().map(|rows| rows.store.table());
        match (&mut self.first, table) {
            (Some(First { passes: Some(passes), metrics, .. }), Some(table)) => {
                if let Some(evaluation) = passes.end(&mut self.state, &mut self.dense.net, table)? {
                    metrics.append("evaluation", &evaluation);
                }
            }
            _ => self.state.cursor.next_pass(),
        }
        let several = self.settings.ranks.tables > 1 || !self.prepared.node.is_alone();
        let mine = table.map(|table| Verdict::of(&self.state, several.then_some(table)).encode()).unwrap_or_default();
        drop(rows);
        let mut given = Vec::new();
        self.seat.exchange(&mut [], &mine, &mut |rank, bytes| {
            if !bytes.is_empty() {
                given.push((rank, Verdict::decode(bytes)));
            }
        })?;
        let mut verdicts = given.into_iter();
        let first = verdicts.next().filter(|(rank, _)| *rank == 0);
        let verdict = first.context("rank 0 did not say whether training is over")?.1?;
        for (rank, other) in verdicts {
            ensure!(
                verdict.same_rows(&other?),
                "the rows of the table of rank {rank} are not those of rank 0 any more: a write was lost. Snapshots of this pass may hold what \
                 followed: begin anew in another --run-dir"
            );
        }
        verdict.apply(&mut self.state);
        (self.sums, self.sums_samples) = (Losses::default(), 0);
        self.report();
        Ok(())
    }

    pub fn report(&self) {
        if self.is_first() {
            report(&self.segments.control, &self.state);
        }
    }

    fn record(&mut self) {
        let (Some(First { metrics, saver, tables, .. }), Some(rows)) = (&mut self.first, &self.rows) else { return };
        let (snapshot_wait, early_snapshots) = saver.cost();
        let (then, before) = self.shown;
        let n = self.sums_samples.max(1) as f64;
        let record = Training {
            epoch: self.state.cursor.epoch,
            updates: self.state.updates,
            samples: self.state.samples,
            samples_per_s: (self.state.samples - before) as f64 / then.elapsed().as_secs_f64().max(1e-9),
            rows: lock(rows).store.table().len(),
            row_writes: Some(tables.iter().map(RowReader::batches).sum()),
            click: self.sums.click / n,
            charge: self.sums.charge / n,
            wait_s: self.blocks.waited().as_secs_f64(),
            rows_wait_s: self.exchanging.as_secs_f64(),
            snapshot_wait_s: snapshot_wait.as_secs_f64(),
            early_snapshots,
            cache: None,
        };
        metrics.append("values", &record);
        self.shown = (Instant::now(), self.state.samples);
    }
}
