//! Compiles a log directory, or finds the compiled log that already exists.
//!
//! A compiled log carries a hash of the content of its inputs and of its options; it is rebuilt when they change. [`super::keep`]
//! says where it is stored. Compiling reads the tables once and stays within the given memory, whatever the size of the day.

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compiled::{self, CompiledLog, Contract, Counts, Tail};
use super::day::Day;
use super::digest::{Digests, Stat};
use super::error::{BadValue, LogError, Result};
use super::keep;
use super::parts::{Parting, Parts, PassState, Savepoint, Sums};
use super::queue::{QueueRules, Showable};
use super::queue_buffer::{Queue, QueueBuffer};
use super::raw::RawDay;
use super::records::Request;
use super::scan::{Gather, Next, Scanned, Source, Taker};
use super::schema::TrackRow;
use super::sorter::Sorter;
use super::table::{self, Table};
use super::track;
use super::writer::{Begun, LogWriter};

/// Options that change the meaning of a compiled log, and limits for making one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompileOptions {
    /// Whether contracts that are eligible but missing from a queue are added to it, with `control.pctr`.
    pub complete_queues: bool,
    /// Share of bad track rows above which the log is refused.
    pub max_bad_share: f64,
    /// Memory limit of the compilation, bytes, approximate.
    pub memory: usize,
    /// Whether inputs with a known hash are read again, and all blocks of a compiled log checked.
    pub verify: bool,
}

/// Default memory limit of the compilation, bytes.
pub const MEMORY: usize = 1 << 30;

impl Default for CompileOptions {
    fn default() -> Self {
        Self { complete_queues: false, max_bad_share: 0.01, memory: MEMORY, verify: false }
    }
}

/// Opens the compiled log of `dir`; compiles it first where there is none or its inputs changed.
///
/// # Errors
/// Any [`LogError`] of the inputs.
pub fn open(dir: &Path, options: CompileOptions) -> Result<CompiledLog> {
    if !dir.is_dir() {
        return Err(LogError::Format {
            path: dir.to_owned(),
            reason: "is not a directory; name a log directory".into(),
        });
    }
    let name = if options.complete_queues { "completed.log" } else { "compiled.log" };
    let path = keep::folder(dir).map(|folder| folder.join(name));
    if let Some(found) = reuse(dir, path.as_deref(), options, false)? {
        return Ok(found);
    }
    // One process compiles; others that need the same day wait for it.
    let lock = path.as_ref().and_then(|path| keep::lock(path));
    path.as_deref().and_then(Path::parent).inspect(|folder| keep::remove_unfinished(folder));
    if let Some(found) = reuse(dir, path.as_deref(), options, true)? {
        return Ok(found);
    }
    let before = stats(dir)?;
    let mut write = |to: &mut dyn Output| compile(dir, options, to, None);
    let log = match path.as_ref().zip(lock.as_ref()) {
        None => write_or_hold(path, dir, options.memory, &mut write)?,
        Some((path, _)) => {
            keep_or_hold(path, dir, options.memory, write_in_parts(path, dir, options, &before), &mut write)?
        }
    };
    if stats(dir)? != before {
        let reason = "a table changed while it was read; run again once its writer has finished".into();
        return Err(LogError::Format { path: dir.to_owned(), reason });
    }
    Ok(log)
}

/// Returns the compiled log at `path` if it was made from these inputs. `locked` says that the caller holds the folder's lock, so that
/// no other process is making one; an unusable file is then removed.
fn reuse(dir: &Path, path: Option<&Path>, options: CompileOptions, locked: bool) -> Result<Option<CompiledLog>> {
    let Some(path) = path.filter(|path| path.is_file()) else { return Ok(None) };
    let opened =
        CompiledLog::open(path).and_then(|log| if options.verify { log.verify().map(|()| log) } else { Ok(log) });
    match opened {
        Ok(log) if log.inputs() == hash_inputs(dir, options)? => {
            check_share(log.counts(), options, dir)?;
            return Ok(Some(log));
        }
        Ok(_) if locked => tracing::info!("{}: inputs changed, compiling again", dir.display()),
        Err(e) if locked => tracing::warn!("{e}; compiling again"),
        Ok(_) | Err(_) => return Ok(None),
    }
    // Other processes need not find out again.
    let _ = std::fs::remove_file(path);
    Ok(None)
}

/// Destination of a compiled log.
pub(super) trait Output: Write + Seek {
    /// Discards everything that was written.
    fn restart(&mut self) -> std::io::Result<()>;

    /// Discards what is beyond the first `at` bytes, and goes on after them.
    fn resume(&mut self, at: u64) -> std::io::Result<()>;
}

impl Output for std::fs::File {
    fn restart(&mut self) -> std::io::Result<()> {
        self.resume(0)
    }

    fn resume(&mut self, at: u64) -> std::io::Result<()> {
        self.set_len(at)?;
        self.seek(SeekFrom::Start(at)).map(drop)
    }
}

/// Writes a compiled log to `path` and opens it. Where it cannot be written, it is made in memory if it fits in `memory` bytes;
/// `write` may therefore be called twice.
pub(super) fn write_or_hold(
    path: Option<PathBuf>,
    dir: &Path,
    memory: usize,
    write: &mut dyn FnMut(&mut dyn Output) -> Result<()>,
) -> Result<CompiledLog> {
    let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
    let Some(path) = path else { return hold(dir, memory, write) };
    let mut kept = || {
        let mut file = keep::Unfinished::begin(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        write(file.file())?;
        file.finish(&path, dir).map_err(failed)
    };
    let kept = kept();
    keep_or_hold(&path, dir, memory, kept, write)
}

/// Opens the compiled log that was written to `path`. If there was no room for it, makes it in memory.
fn keep_or_hold(
    path: &Path,
    dir: &Path,
    memory: usize,
    kept: Result<()>,
    write: &mut dyn FnMut(&mut dyn Output) -> Result<()>,
) -> Result<CompiledLog> {
    match kept {
        Ok(()) => CompiledLog::open(path),
        // The disk is full: the log is made again at each run.
        Err(LogError::NotKept { cause, .. }) => {
            tracing::warn!("{}: what is compiled cannot be kept: {cause}", dir.display());
            hold(dir, memory, write)
        }
        Err(e) => Err(e),
    }
}

/// Writes a compiled log to `path`, in parts that outlive a kill. The caller holds the folder's lock.
fn write_in_parts(path: &Path, dir: &Path, options: CompileOptions, stats: &[(PathBuf, Stat)]) -> Result<()> {
    let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
    let below = |path: &PathBuf| path.strip_prefix(dir).map_or_else(|_| path.clone(), Path::to_owned);
    let stats: Vec<(PathBuf, Stat)> = stats.iter().map(|(path, stat)| (below(path), *stat)).collect();
    let mut parts = Parts::of(path, (&name_of(dir), options.complete_queues), options.memory, &stats);
    if options.verify {
        parts.discard();
    }
    let mut file = parts.open().map_err(failed)?;
    compile(dir, options, &mut file, Some(&mut parts))?;
    parts.finish(&file, path, dir).map_err(failed)
}

fn hold(dir: &Path, memory: usize, write: &mut dyn FnMut(&mut dyn Output) -> Result<()>) -> Result<CompiledLog> {
    let mut held = Held { bytes: Cursor::new(Vec::new()), most: memory as u64 };
    write(&mut held)?;
    CompiledLog::of_bytes(dir, held.bytes.get_ref())
}

/// A compiled log in memory, up to a size limit.
struct Held {
    bytes: Cursor<Vec<u8>>,
    most: u64,
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.position() + bytes.len() as u64 > self.most {
            let what = format!("it takes more than the {} MB of memory that it may", self.most >> 20);
            return Err(std::io::Error::new(std::io::ErrorKind::OutOfMemory, what));
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Held {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.bytes.seek(to)
    }
}

impl Output for Held {
    fn restart(&mut self) -> std::io::Result<()> {
        self.bytes = Cursor::new(Vec::new());
        Ok(())
    }

    fn resume(&mut self, at: u64) -> std::io::Result<()> {
        self.bytes.get_mut().truncate(at as usize);
        self.bytes.set_position(at);
        Ok(())
    }
}

/// Returns the name of a log in reports and decisions. The name is part of the input hash, so a renamed directory is compiled
/// again.
pub(super) fn name_of(dir: &Path) -> String {
    dir.canonicalize()
        .ok()
        .and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| dir.display().to_string())
}

/// Lists the files and tables that a compiled log is made from.
fn inputs(dir: &Path) -> Result<Vec<PathBuf>> {
    let files = [
        Some(dir.join("day.toml")),
        Some(dir.join(IMPORT_REPORT)),
        table::find(dir, "track_log")?,
        table::find(dir, "control")?,
    ];
    Ok(files.into_iter().flatten().filter(|path| path.exists()).collect())
}

/// Returns the file attributes that show whether an input changes while it is read.
fn stats(dir: &Path) -> Result<Vec<(PathBuf, Stat)>> {
    let mut stats = Vec::new();
    for table in inputs(dir)? {
        for part in table::parts(&table)? {
            let stat = Stat::of(&part)?;
            stats.push((part, stat));
        }
    }
    Ok(stats)
}

/// Hashes the inputs and options of a compiled log.
pub(super) fn hash_inputs(dir: &Path, options: CompileOptions) -> Result<u128> {
    // Refuses an oversized day file before all of it is read.
    Day::read(dir)?;
    let mut hasher = XxHash3_128::new();
    hasher.write(&compiled::VERSION.to_le_bytes());
    hasher.write(&[u8::from(options.complete_queues)]);
    hasher.write(name_of(dir).as_bytes());
    let mut digests = Digests::of(dir, options.verify);
    for path in inputs(dir)? {
        digests.table(&mut hasher, &path)?;
    }
    digests.keep();
    Ok(hasher.finish_128())
}

/// Adds a table to a hash as [`Digests::table`] does. Files whose hash is stored are not read.
///
/// # Errors
/// A file that cannot be read.
pub fn hash_table(hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
    let mut digests = Digests::of(path.parent().unwrap_or(Path::new(".")), false);
    digests.table(hasher, path)?;
    digests.keep();
    Ok(())
}

/// Returns the path of the list of bad rows of a log; `/dev/null` where nothing can be stored.
pub(super) fn quarantine_path(dir: &Path) -> PathBuf {
    keep::folder(dir).map_or_else(|| "/dev/null".into(), |folder| folder.join("quarantine.tsv"))
}

pub(super) fn check_share(counts: &Counts, options: CompileOptions, dir: &Path) -> Result<()> {
    if counts.quarantined as f64 <= options.max_bad_share * counts.rows as f64 {
        return Ok(());
    }
    let listed = std::fs::read_to_string(quarantine_path(dir)).unwrap_or_default();
    let first = match listed.lines().nth(1).map(|line| line.split('\t').collect::<Vec<_>>()).as_deref() {
        Some([file, line, column, value, reason, rule]) => {
            let listed = || format!("column `{column}`: `{value}`: {rule} ({reason})");
            format!("{file}: line {line}, {}", problems_of(dir, line).unwrap_or_else(listed))
        }
        _ => String::new(),
    };
    Err(LogError::TooManyBad {
        path: dir.to_owned(),
        bad: counts.quarantined,
        rows: counts.rows,
        max: options.max_bad_share,
        first,
        quarantine: quarantine_path(dir),
    })
}

/// Rows among which the first bad one is looked for.
const LOOKED_AT: usize = 10_000;

/// Returns a description of every bad column in one line of the track log, because a log of texts would otherwise cost an attempt
/// for each column.
///
/// Returns `None` if the row breaks a rule only beside other rows (a repeated id), or comes after the first [`LOOKED_AT`] rows.
fn problems_of(dir: &Path, line: &str) -> Option<String> {
    let path = table::find(dir, "track_log").ok()??;
    let mut table = Table::open(&path, track::COLUMNS).ok()?;
    let mut row = table.row();
    for _ in 0..LOOKED_AT {
        if !table.read(&mut row).ok()? {
            return None;
        }
        let problems = track::problems(&row);
        if !problems.is_empty() {
            let column = |BadValue { column, value, reason, rule }: &BadValue| {
                format!("column `{column}`: `{value}`: {rule} ({reason})")
            };
            let columns: Vec<String> = problems.iter().map(column).collect();
            return (row.place.line.to_string() == line).then(|| columns.join("; "));
        }
    }
    None
}

/// File in which an importer leaves its report.
const IMPORT_REPORT: &str = "import.json";

pub(super) fn contracts_declared(dir: &Path) -> bool {
    std::fs::read(dir.join(IMPORT_REPORT))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .is_some_and(|report| report["contracts_declared"] == true)
}

/// Compiles a log directory in one pass, or in several if the first one finds repeated ids or rows far out of order.
fn compile(dir: &Path, options: CompileOptions, to: &mut dyn Output, parts: Option<&mut Parts>) -> Result<()> {
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
pub(super) fn compile_rows(raw: &RawDay, options: CompileOptions, inputs: u128, to: &mut dyn Output) -> Result<()> {
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
