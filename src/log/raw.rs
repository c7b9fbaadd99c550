//! Tables of a day as checked rows: the input of a compiled log, in a form that can still be altered.

use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compile::{self, CompileOptions};
use super::compiled::{CompiledLog, Counts};
use super::day::Day;
use super::error::{LogError, Result};
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
    /// Any [`LogError`] of the inputs.
    pub fn read(dir: &Path, options: CompileOptions) -> Result<Self> {
        let source = Source::open(dir, options)?;
        let inputs = compile::hash_inputs(dir, options)?;
        let mut rows = Rows::default();
        let scanned = loop {
            if let Some(scanned) = source.scan(&mut rows)? {
                break scanned;
            }
        };
        let Rows(mut rows) = rows;
        rows.sort_by_key(|row| row.ts_ms);
        Ok(Self {
            name: compile::name_of(dir),
            day: source.day,
            rows,
            contracts: source.rules.into_contracts(),
            dir: dir.to_owned(),
            inputs,
            counts: scanned.counts,
            contracts_declared: compile::contracts_declared(dir),
        })
    }

    /// Compiles an altered day in memory; no file is written that could be mistaken for the original. `alteration` describes
    /// the change and enters the input hash, which distinguishes the result from the directory's own compiled log.
    ///
    /// # Errors
    /// A day without requests, or no memory to map.
    pub fn compile_altered(&self, options: CompileOptions, alteration: &str) -> Result<CompiledLog> {
        if self.rows.is_empty() {
            return Err(LogError::Format {
                path: self.dir.clone(),
                reason: format!("no request is left under `{alteration}`"),
            });
        }
        let mut hasher = XxHash3_128::new();
        hasher.write(&self.inputs.to_le_bytes());
        hasher.write(alteration.as_bytes());
        let inputs = hasher.finish_128();
        compile::write_or_hold(None, &self.dir, usize::MAX, &mut |to| compile::compile_rows(self, options, inputs, to))
    }
}
