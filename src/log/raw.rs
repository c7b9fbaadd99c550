//! Tables of a day as checked rows: the input of a compiled log, in a form that can still be altered. [`super::compile`] compiles
//! it.

use std::path::{Path, PathBuf};

use super::compiled::Counts;
use super::day::Day;
use super::error::Result;
use super::inputs::{contracts_declared, hash_inputs, name_of};
use super::options::CompileOptions;
use super::queue::QueueRules;
use super::scan::{Gather, Next, Source, Taker};
use super::schema::{ControlRow, TrackRow};

/// Requests and contracts of a day, checked row by row; bad rows are set aside.
#[derive(Debug, Clone)]
pub struct RawDay {
    /// Name of the log directory.
    pub name: String,
    pub day: Day,
    /// Requests in time order.
    pub rows: Vec<TrackRow>,
    pub contracts: Vec<ControlRow>,
    pub(super) dir: PathBuf,
    pub(super) inputs: u128,
    pub(super) counts: Counts,
    pub(super) contracts_declared: bool,
}

/// Rows of a batch or of a pass.
#[derive(Default)]
pub(super) struct Rows(pub Vec<TrackRow>);

impl Gather for Rows {
    fn push(&mut self, row: TrackRow, _: &QueueRules) {
        self.0.push(row);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Taker for Rows {
    type Gathered = Self;

    fn begin(&mut self) -> Result<()> {
        self.0.clear();
        Ok(())
    }

    fn take(&mut self, gathered: &mut Self, keep: &[bool]) -> Result<Next> {
        self.0.extend(gathered.0.drain(..).zip(keep).filter_map(|(row, keep)| keep.then_some(row)));
        Ok(Next::GoOn)
    }
}

impl RawDay {
    /// Reads the tables of a log directory and writes the bad rows to its quarantine file.
    ///
    /// # Errors
    /// Any [`crate::log::LogError`] of the inputs.
    pub fn read(dir: &Path, options: CompileOptions) -> Result<Self> {
        let source = Source::open(dir, options)?;
        let inputs = hash_inputs(dir, options)?;
        let mut rows = Rows::default();
        let scanned = loop {
            if let Some(scanned) = source.scan(&mut rows)? {
                break scanned;
            }
        };
        let Rows(mut rows) = rows;
        rows.sort_by_key(|row| row.ts_ms);
        Ok(Self {
            name: name_of(dir),
            day: source.day,
            rows,
            contracts: source.rules.into_contracts(),
            dir: dir.to_owned(),
            inputs,
            counts: scanned.counts,
            contracts_declared: contracts_declared(dir),
        })
    }
}
