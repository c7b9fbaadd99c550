//! Turns a log directory into a compiled log, or finds the one that is already there.
//!
//! A compiled log carries the content hash of its inputs and options; it is rebuilt when they change. It
//! is kept where [`super::keep`] says.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compiled::{self, Auction, CompiledLog, Contract, Counts, Entry, Request, Tail};
use super::day::Day;
use super::error::{LogError, Result};
use super::keep;
use super::queue::{QueueRules, Showable};
use super::raw::RawDay;
use super::schema::{ControlRow, TrackRow};
use super::table;

/// What changes the meaning of a compiled log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompileOptions {
    /// Adds to each queue the eligible contracts missing from it, with `control.pctr`.
    pub complete_queues: bool,
    /// The share of bad track rows above which the log is refused.
    pub max_bad_share: f64,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self { complete_queues: false, max_bad_share: 0.01 }
    }
}

/// Opens the compiled log of `dir`, compiling it first where there is none or its inputs changed.
///
/// # Errors
/// Whatever [`LogError`] says of the inputs.
pub fn open(dir: &Path, options: CompileOptions) -> Result<CompiledLog> {
    if !dir.is_dir() {
        return Err(LogError::Format {
            path: dir.to_owned(),
            reason: "is not a directory; name a log directory".into(),
        });
    }
    let inputs = hash_inputs(dir, options)?;
    let name = if options.complete_queues { "completed.log" } else { "compiled.log" };
    let path = keep::folder(dir).map(|folder| folder.join(name));
    if let Some(path) = path.as_ref().filter(|path| path.is_file()) {
        match CompiledLog::open(path) {
            Ok(log) if log.inputs() == inputs => {
                check_share(log.counts(), options, dir)?;
                return Ok(log);
            }
            Ok(_) => tracing::info!("{}: inputs changed, compiling again", dir.display()),
            Err(e) => tracing::warn!("{e}; compiling again"),
        }
    }
    let raw = RawDay::read(dir, options)?;
    let bytes = compile(&raw, options, raw.inputs);
    match path.map(|path| keep::replace(&path, &bytes, dir).map(|()| path)) {
        Some(Ok(path)) => CompiledLog::open(&path),
        // A full disk, or no place of one's own: it is compiled each time.
        Some(Err(e)) => {
            tracing::warn!("{}: what is compiled cannot be kept: {e}", dir.display());
            CompiledLog::of_bytes(dir, &bytes)
        }
        None => CompiledLog::of_bytes(dir, &bytes),
    }
}

/// What a log is called in reports and decisions; a directory that is renamed is compiled again.
pub(super) fn name_of(dir: &Path) -> String {
    dir.canonicalize()
        .ok()
        .and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| dir.display().to_string())
}

pub(super) fn hash_inputs(dir: &Path, options: CompileOptions) -> Result<u128> {
    // A day file that is too long to be one is refused before all of it is read.
    Day::read(dir)?;
    let mut hasher = XxHash3_128::new();
    hasher.write(&compiled::VERSION.to_le_bytes());
    hasher.write(&[u8::from(options.complete_queues)]);
    hasher.write(name_of(dir).as_bytes());
    let files = [
        Some(dir.join("day.toml")),
        Some(dir.join(IMPORT_REPORT)),
        table::find(dir, "track_log")?,
        table::find(dir, "control")?,
    ];
    for path in files.into_iter().flatten().filter(|p| p.exists()) {
        hash_table(&mut hasher, &path)?;
    }
    Ok(hasher.finish_128())
}

/// Adds a table's name and content to a hash: of a directory of part files, each part's path and content.
pub fn hash_table(hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
    if path.is_dir() {
        hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
        for part in table::parts(path)? {
            let below = part.strip_prefix(path).unwrap_or(&part);
            hasher.write(below.as_os_str().as_encoded_bytes());
            hash_file(hasher, &part)?;
        }
        return Ok(());
    }
    hash_file(hasher, path)
}

/// Adds a file's name and content to a hash.
fn hash_file(hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
    let mut file = std::fs::File::open(path).map_err(|e| LogError::io(path, e))?;
    hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
    let mut buffer = vec![0; 1 << 20];
    loop {
        crate::cancel::point();
        let n = file.read(&mut buffer).map_err(|e| LogError::io(path, e))?;
        if n == 0 {
            return Ok(());
        }
        hasher.write(&buffer[..n]);
    }
}

/// Where the bad rows of a log are kept; `/dev/null` where nothing can be.
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
            format!("{file}: line {line}, column `{column}`: `{value}`: {rule} ({reason})")
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

/// The bytes of a compiled log; `inputs` identifies what it is made from.
pub(super) fn compile(raw: &RawDay, options: CompileOptions, inputs: u128) -> Vec<u8> {
    let mut builder = Builder::new(&raw.contracts, options);
    raw.rows.iter().for_each(|row| builder.push(row));
    let tail = Tail {
        name: raw.name.clone(),
        day: raw.day.clone(),
        contracts: builder.finish_contracts(),
        counts: Counts { completed: builder.completed, ..raw.counts.clone() },
        contracts_declared: raw.contracts_declared,
        content: None,
    };
    compiled::encode(&builder.requests, &builder.entries, &builder.auctions, &tail, inputs)
}

/// Where an importer leaves its report.
const IMPORT_REPORT: &str = "import.json";

pub(super) fn contracts_declared(dir: &Path) -> bool {
    std::fs::read(dir.join(IMPORT_REPORT))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .is_some_and(|report| report["contracts_declared"] == true)
}

/// Collects the arrays of a compiled log.
struct Builder {
    rules: QueueRules,
    showable: Showable,
    requests: Vec<Request>,
    entries: Vec<Entry>,
    auctions: Vec<Auction>,
    pctr_sum: Vec<f64>,
    targeted: Vec<u64>,
    present: Vec<u64>,
    completed: u64,
}

impl Builder {
    fn new(rows: &[ControlRow], options: CompileOptions) -> Self {
        Self {
            rules: QueueRules::new(rows.to_vec(), options.complete_queues),
            showable: Showable::default(),
            requests: Vec::new(),
            entries: Vec::new(),
            auctions: Vec::new(),
            pctr_sum: vec![0.0; rows.len()],
            targeted: vec![0; rows.len()],
            present: vec![0; rows.len()],
            completed: 0,
        }
    }

    fn push(&mut self, row: &TrackRow) {
        self.rules.sort(row, &mut self.showable);
        let Showable { entries, auctions, best, completed } = &self.showable;
        self.completed += completed;
        for (i, targeted) in (0u32..).zip(&mut self.targeted) {
            *targeted += u64::from(self.rules.may_show(i, row));
        }
        for e in entries {
            self.present[e.contract as usize] += 1;
            self.pctr_sum[e.contract as usize] += e.pctr;
        }
        self.requests.push(Request {
            request_id: row.request_id,
            ts_ms: row.ts_ms,
            best: *best,
            entries_at: self.entries.len() as u32,
            auctions_at: self.auctions.len() as u32,
            entries: entries.len() as u16,
            auctions: auctions.len() as u16,
            slot_id: row.slot_id,
            region: row.region,
            user_id: row.user_id.unwrap_or(0),
            gender: row.gender,
            age: row.age,
            has_user: u8::from(row.user_id.is_some()),
            padding: [0; 1],
        });
        self.entries.extend_from_slice(entries);
        self.auctions.extend_from_slice(auctions);
    }

    fn finish_contracts(&self) -> Vec<Contract> {
        self.rules
            .contracts()
            .iter()
            .enumerate()
            .map(|(i, row)| {
                let contract = Contract::before_the_day(row);
                let (targeted, present) = (self.targeted[i], self.present[i]);
                let mean_pctr = if present > 0 { self.pctr_sum[i] / present as f64 } else { contract.mean_pctr };
                Contract { targeted, present, mean_pctr, ..contract }
            })
            .collect()
    }
}
