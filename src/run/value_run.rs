//! Data shared by the processes of a run of `admix values train`: shared memory, and main's findings about the exposures.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::collective::shares::Shares;
use crate::collective::{hints, rows};
use crate::log::CompileOptions;
use crate::nodes::{Node, World};
use crate::settings::{KEPT_GRADIENTS, RankSync, ValueSettings};
use crate::shm::{
    Control, Exchange, ExchangeShape, HalfShape, Halves, NumaNodes, ParamCell, RingShape, RunNames, SampleRing,
    ShmError, UndoLog, UndoShape, check_space,
};
use crate::sparse::sightings::Sightings;
use crate::sparse::{HostTable, TableShape};
use crate::values::join::JoinCounts;
use crate::values::net::NetShape;
use crate::values::prior::FieldSd;
use crate::values::{Block, Fields};

use super::RunDirectory;
use super::sparse_part::SparsePart;
use super::value_snapshot::ValueState;

/// Regions of a reader's ring: one is written while another one is read.
const REGIONS: usize = 2;
/// Regions where there are several ranks, and the bytes of a ring for which there may be fewer. Readers work in bursts (see
/// `rank::blocks`).
const REGIONS_OF_RANKS: usize = 12;
const RING_BYTES: usize = 32 << 20;

/// Handles to the shared memory of a run, except its table.
pub struct ValueSegments {
    pub control: Control,
    /// One ring per reader and rank: all of them for main, those of one reader for that reader, those of one rank for that
    /// rank.
    pub rings: Vec<SampleRing>,
    /// Exchange between several ranks, and further memory for overlapping ranks; only main has them here.
    pub exchange: Option<Exchange>,
    pub overlap: Option<RankSegments>,
}

/// Memory that overlapping ranks share besides their exchange.
pub struct RankSegments {
    /// Gradients of the last iterations of each rank; iteration i is in cell i mod [`KEPT_GRADIENTS`].
    gradients: Vec<ParamCell>,
    /// One ring per rank and table for the rank's row gradients on their way to whoever writes the table.
    rows: Vec<SampleRing>,
    tables: usize,
}

impl RankSegments {
    fn names(
        prefix: &str,
        ranks: usize,
        tables: usize,
    ) -> (impl Iterator<Item = String>, impl Iterator<Item = String>) {
        let cell = move |i: usize| format!("gradient{}.{}", i / KEPT_GRADIENTS, i % KEPT_GRADIENTS);
        let cells = (0..ranks * KEPT_GRADIENTS).map(move |i| format!("{prefix}-{}", cell(i)));
        (cells, (0..ranks * tables).map(move |i| format!("{prefix}-rows{}.{}", i / tables, i % tables)))
    }

    fn ring_shape(shape: ExchangeShape, rank: usize) -> RingShape {
        RingShape { actor: rank as u32, regions: KEPT_GRADIENTS / 2, capacity: shape.bytes }
    }

    fn footprint(shape: ExchangeShape) -> u64 {
        let cells = (shape.ranks * KEPT_GRADIENTS) as u64 * ParamCell::footprint(shape.words / STATE_PARTS);
        cells + (shape.ranks * shape.groups) as u64 * SampleRing::footprint(Self::ring_shape(shape, 0))
    }

    fn create(prefix: &str, shape: ExchangeShape) -> Result<Self, ShmError> {
        let (cells, rings) = Self::names(prefix, shape.ranks, shape.groups);
        Ok(Self {
            gradients: cells
                .map(|name| ParamCell::create(&name, shape.words / STATE_PARTS))
                .collect::<Result<_, _>>()?,
            rows: rings
                .enumerate()
                .map(|(i, name)| SampleRing::create(&name, Self::ring_shape(shape, i / shape.groups)))
                .collect::<Result<_, _>>()?,
            tables: shape.groups,
        })
    }

    /// Opens the segments that main created.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn open(prefix: &str, ranks: usize, tables: usize) -> Result<Self, ShmError> {
        let (cells, rings) = Self::names(prefix, ranks, tables);
        Ok(Self {
            gradients: cells.map(|name| ParamCell::open(&name)).collect::<Result<_, _>>()?,
            rows: rings.map(|name| SampleRing::open(&name)).collect::<Result<_, _>>()?,
            tables,
        })
    }

    pub fn ranks(&self) -> usize {
        self.rows.len() / self.tables
    }

    /// Returns the ring from a rank to the writer of each table.
    pub fn rows_from(&self, rank: usize) -> &[SampleRing] {
        &self.rows[rank * self.tables..(rank + 1) * self.tables]
    }

    /// Returns the cell for a rank's gradient of an iteration.
    pub fn gradient(&self, rank: usize, iteration: u64) -> &ParamCell {
        &self.gradients[rank * KEPT_GRADIENTS + (iteration % KEPT_GRADIENTS as u64) as usize]
    }
}

/// Parameters and their two moments, which overlapping ranks average at the end of a period.
const STATE_PARTS: usize = 3;

/// Bytes before the row gradients in the data that a rank gives to the others.
pub const RANK_HEADER: usize = 72;

/// Returns the name of the exchange's segment.
pub fn exchange_name(prefix: &str) -> String {
    format!("{prefix}-exchange")
}

/// Returns the sizes of the exchange; `None` for a single rank.
fn exchange_shape(settings: &ValueSettings, fields: &Fields, world: World) -> Option<ExchangeShape> {
    if world.ranks == 1 {
        return None;
    }
    let v = &settings.values;
    // Each sample of the batch of all ranks goes to a rank by a hash: its share never exceeds the mean by ten standard
    // deviations.
    let mean = (v.batch as f64 * Shares::of(settings, world.ranks).largest()).ceil();
    let spread = 10 * (mean.sqrt() as usize + 1);
    let rows = (mean as usize + spread).min(v.batch * world.ranks) * fields.len();
    let parts = if settings.ranks.sync == RankSync::Overlap { STATE_PARTS } else { 1 };
    let words = parts * net_shape(settings, fields).parameters();
    let bytes = RANK_HEADER + rows::length(rows, v.dim, fields.len()) + hints::capacity(rows);
    let World { ranks, first, local } = world;
    Some(ExchangeShape { ranks, first, local, groups: settings.ranks.tables, words, bytes })
}

/// Returns the most bytes that the ranks of all nodes give to one exchange.
pub fn exchange_bytes(settings: &ValueSettings, fields: &Fields, world: World) -> u64 {
    let of_rank = |shape: ExchangeShape| size_of::<f32>() * shape.words + shape.bytes + RANK_HEADER;
    exchange_shape(settings, fields, world).map_or(0, |shape| (of_rank(shape) * shape.ranks) as u64)
}

/// Returns the sizes of the exchange where ranks overlap.
fn overlap_shape(settings: &ValueSettings, fields: &Fields, world: World) -> Option<ExchangeShape> {
    exchange_shape(settings, fields, world).filter(|_| settings.ranks.sync == RankSync::Overlap)
}

pub fn net_shape(settings: &ValueSettings, fields: &Fields) -> NetShape {
    NetShape { fields: fields.len(), dim: settings.values.dim, hidden: settings.values.hidden }
}

/// Returns the name of the ring from a reader to a rank.
fn ring_name(prefix: &str, reader: usize, rank: usize) -> String {
    if rank == 0 { format!("{prefix}-ring{reader}") } else { format!("{prefix}-ring{reader}.{rank}") }
}

/// Buffers for snapshots on their way to disk, and the log that undoes changes that are in no snapshot.
pub struct ValueHalves {
    pub halves: Halves,
    pub undo: UndoLog,
}

impl ValueHalves {
    /// Creates the buffers for a run that resumes from snapshot `since`, 0 for none; `None` where it takes no snapshots.
    ///
    /// # Errors
    /// Too little shared memory.
    pub fn create(
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        (world, since): (World, u64),
    ) -> Result<Option<Self>, ShmError> {
        let Some((halves, undo)) = halves_shape(settings, fields, world).zip(undo_shape(settings, world)) else {
            return Ok(None);
        };
        let halves = Halves::create(&names.part("halves"), halves)?;
        halves.commit(since);
        Ok(Some(Self { halves, undo: UndoLog::create(&names.part("undo"), undo, since)? }))
    }

    /// Opens the buffers that main created; `None` where the run takes no snapshots.
    ///
    /// # Errors
    /// A segment that is damaged or of another build.
    pub fn open(prefix: &str) -> Result<Option<Self>, ShmError> {
        match Halves::open(&format!("{prefix}-halves")) {
            Err(ShmError::Missing { .. }) => Ok(None),
            halves => Ok(Some(Self { halves: halves?, undo: UndoLog::open(&format!("{prefix}-undo"))? })),
        }
    }
}

impl ValueSegments {
    /// Creates the rings, and the exchange of several ranks, beside the control block that was created before.
    ///
    /// # Errors
    /// Too little shared memory.
    pub fn create(
        (names, control): (&RunNames, Control),
        settings: &ValueSettings,
        fields: &Fields,
        world: World,
    ) -> Result<Self, ShmError> {
        let (prefix, ranks) = (names.to_string(), world.local);
        let ring = |i: usize| {
            let (reader, rank) = (i / ranks, i % ranks);
            SampleRing::create(&ring_name(&prefix, reader, rank), ring_shape(settings, fields, reader, world))
        };
        Ok(Self {
            control,
            rings: (0..settings.values.readers * ranks).map(ring).collect::<Result<_, _>>()?,
            exchange: exchange_shape(settings, fields, world)
                .map(|shape| Exchange::create(&exchange_name(&prefix), shape))
                .transpose()?,
            overlap: overlap_shape(settings, fields, world)
                .map(|shape| RankSegments::create(&prefix, shape))
                .transpose()?,
        })
    }

    /// Opens the segments that main created, with the rings from `reader` to each of `ranks`.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn open_for_reader(prefix: &str, reader: usize, ranks: usize) -> Result<Self, ShmError> {
        Self::open(prefix, (0..ranks).map(|rank| (reader, rank)))
    }

    /// Opens the segments that main created, with the rings from each of `readers` to `rank`.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn open_for_rank(prefix: &str, rank: usize, readers: usize) -> Result<Self, ShmError> {
        Self::open(prefix, (0..readers).map(|reader| (reader, rank)))
    }

    /// Opens the rings from each of `readers` to each of `ranks` for observation.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn observe_rings(prefix: &str, readers: usize, ranks: usize) -> Result<Vec<SampleRing>, ShmError> {
        let rings = (0..readers).flat_map(|reader| (0..ranks).map(move |rank| ring_name(prefix, reader, rank)));
        rings.map(|name| SampleRing::observe(&name)).collect()
    }

    fn open(prefix: &str, rings: impl Iterator<Item = (usize, usize)>) -> Result<Self, ShmError> {
        Ok(Self {
            control: Control::open(&format!("{prefix}-control"))?,
            rings: rings
                .map(|(reader, rank)| SampleRing::open(&ring_name(prefix, reader, rank)))
                .collect::<Result<_, _>>()?,
            exchange: None,
            overlap: None,
        })
    }
}

/// Bytes of shared memory that a run takes.
struct Memory {
    control: u64,
    tables: u64,
    /// Buffers of snapshots, and the log of changes.
    snapshots: u64,
    /// From each reader to each rank.
    rings: u64,
    /// Of several ranks.
    exchange: u64,
}

impl Memory {
    fn of(settings: &ValueSettings, fields: &Fields, world: World) -> Self {
        let rings = (settings.values.readers * world.local) as u64;
        Self {
            control: Control::footprint(),
            tables: settings.ranks.tables as u64 * table_shape(settings).footprint(),
            snapshots: halves_shape(settings, fields, world).map_or(0, Halves::footprint)
                + undo_shape(settings, world).map_or(0, UndoLog::footprint),
            rings: rings * SampleRing::footprint(ring_shape(settings, fields, 0, world)),
            exchange: exchange_shape(settings, fields, world).map_or(0, Exchange::footprint)
                + overlap_shape(settings, fields, world).map_or(0, RankSegments::footprint),
        }
    }

    fn all(&self) -> u64 {
        self.control + self.tables + self.snapshots + self.rings + self.exchange
    }

    /// Says what takes how much, and which keys make it less.
    fn told(&self, settings: &ValueSettings, world: World) -> String {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
        let (tables, rows, ranks) = (settings.ranks.tables, settings.table.max_rows, world.local);
        let (what, fewer) = match tables {
            1 => (format!("the table of {rows} rows takes"), "table.max_rows"),
            _ => (format!("{tables} tables of {rows} rows take"), "ranks.tables, table.max_rows"),
        };
        let readers = match settings.values.readers {
            1 => "1 reader".to_owned(),
            readers => format!("{readers} readers"),
        };
        let (rings, exchange, fewer_ranks) = match ranks {
            1 => (format!("rings of {readers}"), String::new(), ""),
            _ => (
                format!("the rings from {readers} to {ranks} ranks"),
                format!(", what the ranks exchange {}", mib(self.exchange)),
                ", values.ranks",
            ),
        };
        format!(
            "{what} {} of shared memory, snapshots of up to {} rows {}, {rings} {}{exchange}: lower {fewer}, set a lower \
             table.snapshot_rows, lower values.batch, values.readers{fewer_ranks}, or give it more room",
            mib(self.tables),
            settings.snapshot_rows(world.ranks),
            mib(self.snapshots),
            mib(self.rings)
        )
    }
}

/// Creates the empty tables of a run, after checking that there is room for them and everything else.
///
/// # Errors
/// Too little shared memory, with what to change.
pub fn create_tables(
    names: &RunNames,
    settings: &ValueSettings,
    fields: &Fields,
    world: World,
) -> anyhow::Result<Vec<HostTable>> {
    let (table, tables) = (table_shape(settings), settings.ranks.tables);
    let memory = Memory::of(settings, fields, world);
    check_space(memory.all()).with_context(|| memory.told(settings, world))?;
    let create = |number: usize| {
        let create = || HostTable::create(&table_name(&names.to_string(), number), table);
        let Some(nodes) = NumaNodes::of_part(number, tables) else { return create() };
        tracing::info!("table {number} and its ranks: {nodes}");
        nodes.prefer(create)
    };
    Ok((0..tables).map(create).collect::<Result<_, _>>()?)
}

fn ring_shape(settings: &ValueSettings, fields: &Fields, reader: usize, world: World) -> RingShape {
    // A shard may be the whole batch.
    let capacity = Block::capacity(settings.values.batch * world.ranks, fields);
    let regions = if world.ranks > 1 { (RING_BYTES / capacity).min(REGIONS_OF_RANKS) } else { REGIONS };
    RingShape { actor: reader as u32, regions: regions.max(REGIONS), capacity }
}

fn halves_shape(settings: &ValueSettings, fields: &Fields, world: World) -> Option<HalfShape> {
    let net = net_shape(settings, fields);
    let layout = table_shape(settings).into();
    let sightings = if settings.table.admit_after > 1 { Sightings::bytes(settings.table.counters) } else { 0 };
    let dense = ValueState::most_bytes(settings.values.readers, net.parameters());
    undo_shape(settings, world)
        .map(|undo| HalfShape { dense, sparse: SparsePart::capacity(layout, undo.entries, sightings) })
}

fn undo_shape(settings: &ValueSettings, world: World) -> Option<UndoShape> {
    let entries = settings.snapshot_rows(world.ranks);
    (settings.checkpoint.every_s > 0.0).then(|| UndoShape { words: table_shape(settings).stored_words(), entries })
}

/// Returns the name of the segment of a table of the machine, from 0.
pub fn table_name(prefix: &str, table: usize) -> String {
    if table == 0 { format!("{prefix}-table") } else { format!("{prefix}-table{table}") }
}

pub fn table_shape(settings: &ValueSettings) -> TableShape {
    TableShape {
        dim: settings.values.dim,
        optimizer: settings.table.optimizer,
        max_rows: settings.table.max_rows,
        seed: settings.run.seed,
        marks: settings.marks(),
    }
}

pub fn compile_options(settings: &ValueSettings) -> CompileOptions {
    CompileOptions { max_bad_share: settings.values.max_bad_share, ..CompileOptions::default() }
}

/// Main's findings about the exposures before training; written into the run directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepared {
    /// Number of training samples, and the ratio of variance to mean of their charges at the logged predictions.
    pub samples: u64,
    pub dispersion: f32,
    /// Training samples that weigh more than 1 by their propensity.
    #[serde(default)]
    pub weighted: u64,
    /// Standard deviations of the prior on the direct weights of each field's rows.
    pub prior: Vec<FieldSd>,
    pub train: JoinCounts,
    pub validation: JoinCounts,
    /// Dates of the training days, in days since 1970-01-01.
    #[serde(default)]
    pub days: Vec<u32>,
    /// Hash of the inputs of each day.
    pub inputs: BTreeMap<PathBuf, String>,
    /// The node that this run directory is of.
    #[serde(default)]
    pub node: Node,
}

impl Prepared {
    /// Returns the ranks of the run.
    pub fn world(&self, settings: &ValueSettings) -> World {
        self.node.world(settings.ranks_here())
    }

    /// Reads the file that main wrote.
    ///
    /// # Errors
    /// A file that is missing or malformed.
    pub fn read(directory: &RunDirectory) -> anyhow::Result<Self> {
        let path = directory.inputs();
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))
    }

    pub fn write(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        directory.replace(&directory.inputs(), &serde_json::to_vec_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where rings of a large batch took all memory, the message named only the table and the snapshots.
    #[test]
    fn too_little_shared_memory_is_told_with_what_takes_it() {
        let mut settings = ValueSettings::default();
        (settings.values.batch, settings.values.readers, settings.values.ranks) = (1 << 20, 3, 4);
        let fields = Fields::parse(&settings.values.fields).unwrap();
        let world = Node::default().world(settings.ranks_here());
        let memory = Memory::of(&settings, &fields, world);
        let told = memory.told(&settings, world);
        for bytes in [memory.tables, memory.snapshots, memory.rings, memory.exchange] {
            assert!(bytes > 0 && told.contains(&format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))), "{told}");
        }
        let keys = ["table.max_rows", "table.snapshot_rows", "values.batch", "values.readers", "values.ranks"];
        assert!(keys.iter().all(|key| told.contains(key)) && told.contains("from 3 readers to 4 ranks"), "{told}");
        settings.values.ranks = 1;
        let world = Node::default().world(1);
        let told = Memory::of(&settings, &fields, world).told(&settings, world);
        assert!(told.contains("rings of 3 readers") && !told.contains("values.ranks"), "{told}");
    }
}
