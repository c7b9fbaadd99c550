//! Several ranks: each computes the gradients of its shard of every batch.
//!
//! **In step** (`ranks.sync = "step"`, [`super::in_step`]) all make the same updates. They exchange everything of an update at once: the mean of the
//! parameters' gradients, and the gradients of rows. Each moves its own copy of the parameters; rank 0 alone writes the table,
//! evaluates, and saves. Nobody reads a row for the next batch before rank 0 has written it. Each of the others tells it with its gradients which rows it
//! reads next ([`crate::collective::hints`]): rank 0 writes these first, and the others go on while it writes the rest. Until then they
//! compute what needs no rows. Every message carries a hash of its rank's parameters, so that ranks that have drifted apart are an
//! error at the next exchange.
//!
//! With `table.cache_rows`, a rank that does not write the table keeps copies of rows ([`Copies`]), and moves them as the writer moves the rows.
//!
//! With a GPU for each rank, its network is computed there ([`super::gradients`]); rows stay on the host.
//!
//! **Several tables**, one on each of several machines or `ranks.tables` on one: the first rank of each writes it, with the gradients of
//! all ranks of all tables in the same order, and the ranks of a table wait for that one alone. All hold the same rows, which is checked at
//! the end of each pass. Rank 0 alone evaluates. The first rank of each machine saves, and it saves the first table: the first ranks of further
//! ones copy it when they begin.
//!
//! **Overlapped** (`ranks.sync = "overlap"`) nobody waits for the others within a period: [`super::overlapped`].

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::gpu::{self, Device};
use crate::run::alive::Pulse;
use crate::run::value_run::{Prepared, ValueHalves, ValueSegments, exchange_name, net_shape, table_name};
use crate::run::{Metrics, RunDirectory, failpoint};
use crate::settings::{RankSync, ValueSettings};
use crate::shm::{Exchange, NumaNodes, Role, RowReader, Written};
use crate::sparse::cache::copies::Copies;
use crate::sparse::{Counters, HostTable, TableView};
use crate::values::Fields;
use crate::values::net::Losses;

use super::blocks::Blocks;
use super::busy::Busy;
use super::device;
use super::gradients::Gradients;
use super::judge::Judge;
use super::member::{First, Member};
use super::merged::{MergedCopies, MergedRows};
use super::overlapped::Overlapped;
use super::passes::Passes;
use super::prior::RowPrior;
use super::progress::state_of;
use super::saver::Saver;
use super::shard::Shard;
use super::store::Store;

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
    let seat = exchange.join(world.first + rank, Duration::MAX)?;
    let (halves, undo) = ValueHalves::open(prefix)?.map(|of| (Arc::new(of.halves), of.undo)).unzip();
    let (state, _) = state_of(settings, directory, shape, halves.as_deref())?;
    // Of the whole machine: below, each table's ranks keep to a part of it.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
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
        let (store, prior) = (Store::direct(table, settings), RowPrior::new(settings, &prepared));
        let merged = MergedRows::new(store, prior, seat.members());
        rows = Some(Arc::new(Mutex::new(merged)));
        exchange.publish(seat.group(), 0);
    }
    let device = match Device::resolve(&settings.run.device, device::subject(settings))? {
        Device::Cpu => None,
        Device::Cuda(first) => {
            let index = gpu::device::from(first, settings.ranks_here())[rank];
            let gradients = device::open_gradients_cuda(index, shape, prepared.dispersion)?;
            gpu::failures::end_the_process();
            Some(gradients)
        }
    };
    let view = TableView::open(&table_name(seat.group()))?;
    let room = settings.table.cache_rows.min(settings.table.max_rows);
    let copies = (rows.is_none() && room > 0)
        .then(|| MergedCopies::new(Copies::new(view.shape(), room), RowPrior::new(settings, &prepared)));
    let mut first = None;
    if rank == 0 {
        let passes = || -> anyhow::Result<_> {
            failpoint::reached("rank.judge");
            let pulse = Pulse::new(&segments.control, slot);
            let judge = Judge::open(settings, &fields, || pulse.beat())?;
            Ok(Passes { settings, prepared: &prepared, directory, judge, pulse })
        };
        let rings = ValueSegments::observe_rings(prefix, settings.values.readers, world.local)?;
        let tables = (0..settings.ranks.tables).map(|table| RowReader::open(&table_name(table)));
        first = Some(First {
            passes: prepared.node.is_first().then(passes).transpose()?,
            metrics: Metrics::open(&directory.metrics())?,
            saver: Saver::new((&segments, rings), halves.as_deref(), settings, world.ranks),
            halves: halves.as_ref(),
            tables: tables.collect::<Result<_, _>>()?,
        });
    }
    let blocks = Blocks::open(&segments, slot, fields.len())?;
    let busy = device.is_none().then(|| Busy::new(slot));
    let mut member = Member {
        blocks: blocks.of_rank(rank, settings, cores),
        network: Gradients::new(shape, prepared.dispersion, settings.ranks_here(), device),
        view,
        shard: Shard::new(fields.len()),
        record: vec![],
        rows,
        copies,
        first,
        written: 0,
        sums: Losses::default(),
        sums_samples: 0,
        shown: (Instant::now(), state.samples),
        copied: Counters::default(),
        busy,
        exchanging: Duration::ZERO,
        settings,
        prepared: &prepared,
        segments: &segments,
        slot,
        exchange,
        seat,
        state,
    };
    // The first rank of each table has it, with the rows that all begin with. Joining the validation days and copying rows may take any time: a
    // rank that hangs meanwhile is main's to find.
    member.seat.exchange_while(&mut [], &mut |area| Written::copy(&[], area), &mut |_| {}, &|| slot.beat())?;
    member.seat.limit(Duration::from_secs_f64(settings.ranks.timeout_s));
    match settings.ranks.sync {
        RankSync::Step => member.train_in_step()?,
        RankSync::Overlap => Overlapped::open(prefix, directory, &mut member)?.train()?,
    }
    member.end()
}
