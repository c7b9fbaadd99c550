//! Compiles the tables of a directory, or rows in memory.

use std::fs::File;
use std::path::Path;

use super::output::Output;
use super::sorter::Sorter;
use super::writer::{Begun, LogWriter};
use crate::log::compiled::{Contract, Counts, Tail};
use crate::log::day::Day;
use crate::log::error::{LogError, Result};
use crate::log::inputs::{contracts_declared, hash_inputs, name_of};
use crate::log::options::CompileOptions;
use crate::log::parts::{Parting, Parts, PassState, Savepoint, Sums};
use crate::log::queue::{QueueRules, Showable};
use crate::log::queue_buffer::{Queue, QueueBuffer};
use crate::log::raw::RawDay;
use crate::log::records::Request;
use crate::log::scan::{Gather, Next, Scanned, Source, Taker};
use crate::log::schema::TrackRow;

/// Compiles a log directory in one pass, or in several if the first one finds repeated ids or rows far out of order.
pub fn compile(dir: &Path, options: CompileOptions, to: &mut dyn Output, parts: Option<&mut Parts>) -> Result<()> {
    let source = Source::open(dir, options)?;
    std::thread::scope(|scope| {
        // The tables are hashed while they are parsed, so that they are read from the disk once.
        let inputs = scope.spawn(|| hash_inputs(dir, options));
        let mut compiler = Compiler::new(dir, (&source.day, &source.rules), options.memory, to, parts);
        let scanned = loop {
            match source.scan(&mut compiler)? {
                Some(scanned) => break scanned,
                None => compiler.sorter.spill(dir)?,
            }
        };
        compiler.drain()?;
        let inputs = inputs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let Scanned { counts, .. } = scanned;
        compiler.finish(name_of(dir), source.day.clone(), counts, contracts_declared(dir), inputs)
    })
}

/// Compiles rows that are in memory, in time order; `inputs` is the hash that identifies them.
pub fn compile_rows(raw: &RawDay, options: CompileOptions, inputs: u128, to: &mut dyn Output) -> Result<()> {
    let rules = QueueRules::new(raw.contracts.clone(), options.complete_queues);
    let mut compiler = Compiler::new(&raw.dir, (&raw.day, &rules), options.memory, to, None);
    compiler.begin()?;
    for rows in raw.rows.chunks(1024) {
        let mut batch = Compiled::default();
        rows.iter().for_each(|row| batch.add(row, &rules));
        compiler.take(&mut batch, &vec![true; rows.len()])?;
    }
    compiler.drain()?;
    compiler.finish(raw.name.clone(), raw.day.clone(), raw.counts.clone(), raw.contracts_declared, inputs)
}

/// Compiled form of a batch of rows.
#[derive(Default)]
struct Compiled {
    queues: QueueBuffer,
    /// Number of entries added to each request by completing its queue.
    completed: Vec<u64>,
    showable: Showable,
    /// Number of requests per contract that match its flight and targeting.
    targeted: Vec<u64>,
}

impl Gather for Compiled {
    fn push(&mut self, row: TrackRow, rules: &QueueRules) {
        self.add(&row, rules);
    }

    fn clear(&mut self) {
        self.queues.clear();
        self.completed.clear();
        self.targeted.clear();
    }
}

impl Compiled {
    fn add(&mut self, row: &TrackRow, rules: &QueueRules) {
        rules.sort(row, &mut self.showable);
        let Showable { entries, auctions, best, completed } = &self.showable;
        let request = Request { best: *best, ..Request::of_row(row) };
        self.targeted.resize(rules.contracts().len(), 0);
        for i in rules.wanting(&request) {
            self.targeted[i] += 1;
        }
        self.completed.push(*completed);
        self.queues.push((&request, entries, auctions));
    }
}

/// Collects the batches of a pass and writes their requests in time order.
struct Compiler<'a> {
    dir: &'a Path,
    day: &'a Day,
    rules: &'a QueueRules,
    sorter: Sorter,
    writer: LogWriter<&'a mut dyn Output>,
    tally: Tally,
    /// Keeper of savepoints, if there are any.
    parts: Option<&'a mut Parts>,
}

/// Totals over the requests of a day.
#[derive(Default)]
struct Tally {
    pctr_sum: Vec<f64>,
    targeted: Vec<u64>,
    present: Vec<u64>,
    completed: u64,
}

impl<'a> Compiler<'a> {
    fn new(
        dir: &'a Path,
        (day, rules): (&'a Day, &'a QueueRules),
        memory: usize,
        to: &'a mut dyn Output,
        parts: Option<&'a mut Parts>,
    ) -> Self {
        Self {
            dir,
            day,
            rules,
            sorter: Sorter::new(memory),
            writer: LogWriter::new(to),
            tally: Tally::default(),
            parts,
        }
    }

    /// Writes the requests that the sorter still holds.
    fn drain(&mut self) -> Result<()> {
        let Self { sorter, writer, tally, dir, .. } = self;
        sorter.finish(&mut |queue| tally.write(queue, writer, dir))
    }

    fn finish(self, name: String, day: Day, counts: Counts, contracts_declared: bool, inputs: u128) -> Result<()> {
        let Tally { pctr_sum, targeted, present, completed } = self.tally;
        let contracts = self.rules.contracts().iter().enumerate().map(|(i, row)| {
            let contract = Contract::before_the_day(row);
            let (targeted, present) = (targeted[i], present[i]);
            let mean_pctr = if present > 0 { pctr_sum[i] / present as f64 } else { contract.mean_pctr };
            Contract { targeted, present, mean_pctr, ..contract }
        });
        let contracts = contracts.collect();
        let counts = Counts { completed, ..counts };
        let tail = Tail { name, day, contracts, counts, contracts_declared, content: None };
        self.writer.finish(tail, inputs).map_err(|cause| LogError::NotKept { dir: self.dir.to_owned(), cause })
    }
}

impl Tally {
    fn write(&mut self, queue: Queue, writer: &mut LogWriter<&mut dyn Output>, dir: &Path) -> Result<()> {
        let (request, entries, auctions) = queue;
        for e in entries {
            self.present[e.contract as usize] += 1;
            self.pctr_sum[e.contract as usize] += e.pctr;
        }
        let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
        writer.push(request, entries, auctions).map_err(failed)
    }
}

impl Taker for Compiler<'_> {
    type Gathered = Compiled;

    fn stores(&self) -> bool {
        self.sorter.held().is_some() && self.parts.as_ref().is_some_and(|parts| parts.stores())
    }

    fn resume(&mut self) -> Option<(PassState, File)> {
        let parts = self.parts.as_mut()?;
        let (Savepoint { pass, sums, held, block, index }, ids) = parts.load()?;
        let Sums { pctr_sum, targeted, present, completed, given_ms, at, counts } = sums;
        let contracts = self.rules.contracts().len();
        if [pctr_sum.len(), targeted.len(), present.len()] != [contracts; 3] {
            return None;
        }
        let begun = Begun { at, counts, block, index };
        let resumed = self.writer.resume(parts.log(), begun, (self.day, contracts));
        resumed.inspect_err(|why| tracing::warn!("{}: {why}; compiling from the start", parts.log().display())).ok()?;
        self.sorter.resume(held, given_ms);
        let pctr_sum = pctr_sum.into_iter().map(f64::from_bits).collect();
        self.tally = Tally { pctr_sum, targeted, present, completed };
        Some((pass, ids))
    }

    fn is_due(&self, rows: u64) -> bool {
        self.parts.as_ref().is_some_and(|parts| parts.is_due(rows))
    }

    fn store(&mut self, pass: PassState, ids: &[u64]) {
        let Self { sorter, writer, tally, parts, .. } = self;
        let (Some(parts), Some((held, given_ms))) = (parts, sorter.held()) else { return };
        let Begun { at, counts, block, index } = writer.begun();
        let sums = Sums {
            pctr_sum: tally.pctr_sum.iter().map(|sum| sum.to_bits()).collect(),
            targeted: tally.targeted.clone(),
            present: tally.present.clone(),
            completed: tally.completed,
            given_ms,
            at,
            counts,
        };
        parts.store(Parting { pass, sums, held, block, index }, ids);
    }

    fn begin(&mut self) -> Result<()> {
        if let Some(parts) = &mut self.parts {
            parts.discard();
        }
        let n = self.rules.contracts().len();
        self.tally = Tally { pctr_sum: vec![0.0; n], targeted: vec![0; n], present: vec![0; n], completed: 0 };
        self.sorter.reset()?;
        self.writer.begin().map_err(|cause| LogError::NotKept { dir: self.dir.to_owned(), cause })
    }

    fn take(&mut self, batch: &mut Compiled, keep: &[bool]) -> Result<Next> {
        let Self { sorter, writer, tally, rules, dir, .. } = self;
        for (sum, n) in tally.targeted.iter_mut().zip(&batch.targeted) {
            *sum += n;
        }
        let mut out = |queue: Queue| tally.write(queue, writer, dir);
        let mut dropped = Vec::new();
        for (i, &kept) in keep.iter().enumerate() {
            let queue = batch.queues.get(i);
            if !kept {
                dropped.push(i);
            } else if sorter.push(queue, &mut out)? == Next::Again {
                return Ok(Next::Again);
            }
        }
        tally.completed += batch.completed.iter().sum::<u64>();
        for i in dropped {
            let request = batch.queues.get(i).0;
            tally.completed -= batch.completed[i];
            for i in rules.wanting(request) {
                tally.targeted[i] -= 1;
            }
        }
        Ok(Next::GoOn)
    }
}
