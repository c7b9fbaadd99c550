//! What the processes of a run of `admix values train` share: their memory, what main found out first, and its state.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::collective::rows;
use crate::log::CompileOptions;
use crate::settings::ValueSettings;
use crate::shm::{Control, Exchange, ExchangeShape, Ledger, RingShape, RunNames, SampleRing, ShmError, check_space};
use crate::sparse::{HostTable, TableShape, file};
use crate::values::adam::Adam;
use crate::values::join::JoinCounts;
use crate::values::net::NetShape;
use crate::values::prior::FieldSd;
use crate::values::{Block, Fields};

use super::RunDirectory;
use super::snapshot::files::Disk;
use super::snapshot::{SnapshotFolder, folder};

/// Regions of a reader's ring: one is written while another is learned from.
const REGIONS: usize = 2;

/// Handles to the shared memory of a run.
pub struct ValueSegments {
    pub control: Control,
    /// Of each reader one ring for each rank: reader by reader for main and a reader, those of one rank for that rank.
    pub rings: Vec<SampleRing>,
    /// Of main, where there are several ranks.
    pub exchange: Option<Exchange>,
}

/// Bytes before the gradients of rows in what a rank gives to the others.
pub const RANK_HEADER: usize = 32;

/// Name of the exchange's segment.
pub fn exchange_name(prefix: &str) -> String {
    format!("{prefix}-exchange")
}

/// Sizes of what the ranks exchange.
fn exchange_shape(settings: &ValueSettings, fields: &Fields) -> ExchangeShape {
    let v = &settings.values;
    // Of a batch of all ranks each sample goes to a rank by a hash: ten standard deviations are never exceeded.
    let spread = 10 * ((v.batch as f64).sqrt() as usize + 1);
    let rows = (v.batch + spread).min(v.batch * v.ranks) * fields.len();
    let words = net_shape(settings, fields).parameters();
    ExchangeShape { ranks: v.ranks, words, bytes: RANK_HEADER + rows::capacity(rows, v.dim, fields.len()) }
}

pub fn net_shape(settings: &ValueSettings, fields: &Fields) -> NetShape {
    NetShape { fields: fields.len(), dim: settings.values.dim, hidden: settings.values.hidden }
}

/// Name of the ring from a reader to a rank.
fn ring_name(prefix: &str, reader: usize, rank: usize) -> String {
    if rank == 0 { format!("{prefix}-ring{reader}") } else { format!("{prefix}-ring{reader}.{rank}") }
}

impl ValueSegments {
    /// Creates everything, the empty table included, after checking that there is room.
    ///
    /// # Errors
    /// Too little shared memory, with what to change.
    pub fn create(names: &RunNames, settings: &ValueSettings, fields: &Fields) -> anyhow::Result<(Self, HostTable)> {
        // A shard may be the whole batch.
        let ranks = settings.values.ranks;
        let capacity = Block::capacity(settings.values.batch * ranks, fields);
        let shape = |i: usize| RingShape { actor: i as u32, regions: REGIONS, capacity };
        let (readers, table) = (settings.values.readers, table_shape(settings));
        let rings = (readers * ranks) as u64 * SampleRing::footprint(shape(0));
        let shape_of_exchange = (ranks > 1).then(|| exchange_shape(settings, fields));
        let exchange = shape_of_exchange.map_or(0, Exchange::footprint);
        check_space(Control::footprint() + rings + exchange + table.footprint()).with_context(|| {
            format!(
                "the table of {} rows takes {:.0} MiB of shared memory: lower table.max_rows, or give it more room",
                table.max_rows,
                table.footprint() as f64 / f64::from(1 << 20)
            )
        })?;
        let segments = Self {
            control: Control::create(&names.part("control"))?,
            rings: (0..readers * ranks)
                .map(|i| (i / ranks, i % ranks))
                .map(|(reader, rank)| SampleRing::create(&ring_name(&names.to_string(), reader, rank), shape(reader)))
                .collect::<Result<_, _>>()?,
            exchange: shape_of_exchange
                .map(|shape| Exchange::create(&exchange_name(&names.to_string()), shape))
                .transpose()?,
        };
        Ok((segments, HostTable::create(&names.part("table"), table)?))
    }

    /// Opens what main created, with the rings from `reader` to each of `ranks`.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn open_for_reader(prefix: &str, reader: usize, ranks: usize) -> Result<Self, ShmError> {
        Self::open(prefix, (0..ranks).map(|rank| (reader, rank)))
    }

    /// Opens what main created, with the rings from each of `readers` to `rank`.
    ///
    /// # Errors
    /// A segment that is missing or of another build.
    pub fn open_for_rank(prefix: &str, rank: usize, readers: usize) -> Result<Self, ShmError> {
        Self::open(prefix, (0..readers).map(|reader| (reader, rank)))
    }

    fn open(prefix: &str, rings: impl Iterator<Item = (usize, usize)>) -> Result<Self, ShmError> {
        Ok(Self {
            control: Control::open(&format!("{prefix}-control"))?,
            rings: rings
                .map(|(reader, rank)| SampleRing::open(&ring_name(prefix, reader, rank)))
                .collect::<Result<_, _>>()?,
            exchange: None,
        })
    }
}

/// Name of the table's segment.
pub fn table_name(prefix: &str) -> String {
    format!("{prefix}-table")
}

pub fn table_shape(settings: &ValueSettings) -> TableShape {
    TableShape {
        dim: settings.values.dim,
        optimizer: settings.table.optimizer,
        max_rows: settings.table.max_rows,
        seed: settings.run.seed,
    }
}

pub fn compile_options(settings: &ValueSettings) -> CompileOptions {
    CompileOptions { max_bad_share: settings.values.max_bad_share, ..CompileOptions::default() }
}

/// What main found out about the exposures before training; written into the run directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepared {
    /// Training samples, and their charges' variance over their mean at the logged predictions.
    pub samples: u64,
    pub dispersion: f32,
    /// Standard deviations of the prior on the direct weights of each field's rows.
    pub prior: Vec<FieldSd>,
    pub train: JoinCounts,
    pub validation: JoinCounts,
    /// Hash of the inputs of each day.
    pub inputs: BTreeMap<PathBuf, String>,
}

impl Prepared {
    /// Reads what main wrote.
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

/// Where training stands among the readers' blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// Pass over the exposures, from 0.
    pub epoch: u64,
    /// The reader whose turn it is, counted on and on.
    turn: u64,
    /// Of each reader: the block that comes next, and whether it has given its last of the pass.
    pub positions: Vec<u64>,
    ended: Vec<bool>,
}

impl Cursor {
    fn new(readers: usize) -> Self {
        Self { epoch: 0, turn: 0, positions: vec![0; readers], ended: vec![false; readers] }
    }

    /// Whether all readers have given their last block of the pass.
    pub fn pass_ended(&self) -> bool {
        self.ended.iter().all(|ended| *ended)
    }

    /// The reader that gives the next block of the pass.
    ///
    /// # Panics
    /// When the pass has ended.
    pub fn reader(&mut self) -> usize {
        assert!(!self.pass_ended());
        let readers = self.ended.len() as u64;
        while self.ended[(self.turn % readers) as usize] {
            self.turn += 1;
        }
        (self.turn % readers) as usize
    }

    /// Moves on behind a block of the reader whose turn it is; false for one that was given before.
    ///
    /// # Errors
    /// A block that is not the next.
    pub fn advance(&mut self, block: &Block) -> anyhow::Result<bool> {
        let reader = self.reader();
        let expected = self.positions[reader];
        if block.number < expected {
            return Ok(false);
        }
        ensure!(
            block.number == expected && block.epoch == self.epoch,
            "reader {reader} gave block {} of pass {}, expected was {expected} of pass {}",
            block.number,
            block.epoch,
            self.epoch
        );
        self.positions[reader] += 1;
        self.ended[reader] = block.ends_epoch;
        self.turn += 1;
        Ok(true)
    }

    /// Begins the next pass.
    pub fn next_pass(&mut self) {
        self.epoch += 1;
        self.turn = 0;
        self.ended.fill(false);
    }
}

/// A run between two updates, but for its table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueState {
    format: u32,
    pub updates: u64,
    pub samples: u64,
    pub cursor: Cursor,
    pub parameters: Vec<f32>,
    pub adam: Adam,
    /// Evaluations so far, those in a row that did not improve, and the best loss.
    pub evaluations: u64,
    pub without_improvement: u64,
    pub best: Option<f64>,
    /// Training is over: nothing is left but to say so.
    pub finished: bool,
    /// Where the samples of processes went that are gone.
    pub ledger: Ledger,
}

impl ValueState {
    const FORMAT: u32 = 1;

    /// The state of a run that begins.
    pub fn new(readers: usize, parameters: Vec<f32>) -> Self {
        Self {
            format: Self::FORMAT,
            updates: 0,
            samples: 0,
            cursor: Cursor::new(readers),
            adam: Adam::new(parameters.len()),
            parameters,
            evaluations: 0,
            without_improvement: 0,
            best: None,
            finished: false,
            ledger: Ledger::default(),
        }
    }
}

/// A snapshot on disk.
pub struct ValueSnapshot {
    pub number: u64,
    pub state: ValueState,
    path: PathBuf,
}

impl ValueSnapshot {
    /// The newest whole snapshot of a run; damaged ones are passed over with a warning.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn newest(directory: &RunDirectory) -> anyhow::Result<Option<Self>> {
        let root = directory.checkpoints();
        for &number in folder::numbers(&root)?.iter().rev() {
            let path = root.join(format!("{number:08}"));
            match Self::read(path, number) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(e) => tracing::warn!("snapshot {number} is damaged and passed over: {e:#}"),
            }
        }
        Ok(None)
    }

    fn read(path: PathBuf, number: u64) -> anyhow::Result<Self> {
        let manifest = folder::verify(&path)?;
        ensure!(manifest.snapshot == number, "its manifest is that of snapshot {}", manifest.snapshot);
        let bytes = std::fs::read(path.join(folder::STATE))?;
        let (state, _): (ValueState, usize) = bincode::serde::decode_from_slice(&bytes, bincode::config::standard())?;
        ensure!(
            state.format == ValueState::FORMAT,
            "format {}, this program reads {}",
            state.format,
            ValueState::FORMAT
        );
        Ok(Self { number, state, path })
    }

    /// Reads the snapshot's rows into an empty table.
    ///
    /// # Errors
    /// Rows that are damaged or do not fit.
    pub fn restore(&self, table: &mut HostTable) -> anyhow::Result<()> {
        Ok(file::load(&self.path.join(folder::POOL), table)?)
    }

    /// Writes a snapshot and removes older ones; returns the bytes written.
    ///
    /// # Errors
    /// What the file system says; there is no such snapshot then.
    pub fn write(
        directory: &RunDirectory,
        number: u64,
        state: &ValueState,
        table: &HostTable,
        keep: usize,
    ) -> anyhow::Result<u64> {
        let root = directory.checkpoints();
        let folder = SnapshotFolder::new(&root, Disk);
        let mut rows = std::io::Cursor::new(Vec::new());
        file::write_to(&mut rows, table)?;
        let bytes = bincode::serde::encode_to_vec(state, bincode::config::standard())?;
        let written = folder.commit(number, state.updates, &bytes, &[rows.get_ref()], None)?;
        folder.prune(number, keep)?;
        Ok(written)
    }
}
