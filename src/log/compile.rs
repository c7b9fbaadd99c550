//! Turns a log directory into a compiled log, or finds the one that is already there.
//!
//! A compiled log carries the content hash of its inputs and options; it is rebuilt when they change. It
//! lies beside the inputs in `.admix/`, or in the user's cache where the directory cannot be written.

use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compiled::{self, Auction, CompiledLog, Contract, Counts, Entry, Request, Tail};
use super::error::{LogError, Result};
use super::raw::RawDay;
use super::schema::{AdType, ControlRow, TrackRow};
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
    let path = cache_folder(dir)?.join(if options.complete_queues { "completed.log" } else { "compiled.log" });
    if path.is_file() {
        match CompiledLog::open(&path) {
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
    replace(&path, &bytes).map_err(|e| LogError::io(&path, e))?;
    CompiledLog::open(&path)
}

/// Writes a file under a temporary name of its own folder and renames it into place.
pub fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    // Temporary files are the owner's alone; others may replay the log too.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Where what is derived from `dir` is kept: `dir/.admix`, else the user's cache.
pub fn cache_folder(dir: &Path) -> Result<PathBuf> {
    let beside = dir.join(".admix");
    if std::fs::create_dir_all(&beside).is_ok() && tempfile::tempfile_in(&beside).is_ok() {
        return Ok(beside);
    }
    let root = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    let absolute = dir.canonicalize().map_err(|e| LogError::io(dir, e))?;
    let key = XxHash3_128::oneshot(absolute.as_os_str().as_encoded_bytes());
    let folder = root.join("admix").join(format!("{key:032x}"));
    std::fs::create_dir_all(&folder).map_err(|e| LogError::io(&folder, e))?;
    Ok(folder)
}

/// What a log is called in reports and decisions; a directory that is renamed is compiled again.
pub(super) fn name_of(dir: &Path) -> String {
    dir.canonicalize()
        .ok()
        .and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| dir.display().to_string())
}

pub(super) fn hash_inputs(dir: &Path, options: CompileOptions) -> Result<u128> {
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
    for path in files.into_iter().flatten().filter(|p| p.is_file()) {
        hash_file(&mut hasher, &path)?;
    }
    Ok(hasher.finish_128())
}

/// Adds a file's name and content to a hash.
pub fn hash_file(hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
    let mut file = std::fs::File::open(path).map_err(|e| LogError::io(path, e))?;
    hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).map_err(|e| LogError::io(path, e))?;
        if n == 0 {
            return Ok(());
        }
        hasher.write(&buffer[..n]);
    }
}

pub(super) fn quarantine_path(dir: &Path) -> Result<PathBuf> {
    Ok(cache_folder(dir)?.join("quarantine.tsv"))
}

pub(super) fn check_share(counts: &Counts, options: CompileOptions, dir: &Path) -> Result<()> {
    if counts.quarantined as f64 <= options.max_bad_share * counts.rows as f64 {
        return Ok(());
    }
    let quarantine = quarantine_path(dir)?;
    let first = std::fs::read_to_string(&quarantine)
        .ok()
        .and_then(|text| text.lines().nth(1).map(|line| line.replace('\t', " ")))
        .unwrap_or_default();
    Err(LogError::TooManyBad {
        path: dir.to_owned(),
        bad: counts.quarantined,
        rows: counts.rows,
        max: options.max_bad_share,
        first,
        quarantine,
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

/// Puts auction ads in the order that a compiled log has them in.
pub(super) fn sort_by_score(auctions: &mut [Auction]) {
    auctions.sort_by(|a, b| {
        (b.ecpm * b.boost).total_cmp(&(a.ecpm * a.boost)).then(b.ecpm.total_cmp(&a.ecpm)).then(a.ad_id.cmp(&b.ad_id))
    });
}

/// Collects the arrays of a compiled log.
struct Builder<'a> {
    rows: &'a [ControlRow],
    index: HashMap<u64, u32>,
    options: CompileOptions,
    requests: Vec<Request>,
    entries: Vec<Entry>,
    auctions: Vec<Auction>,
    pctr_sum: Vec<f64>,
    targeted: Vec<u64>,
    present: Vec<u64>,
    completed: u64,
}

impl<'a> Builder<'a> {
    fn new(rows: &'a [ControlRow], options: CompileOptions) -> Self {
        Self {
            rows,
            index: (0u32..).zip(rows).map(|(i, c)| (c.ad_id, i)).collect(),
            options,
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
        let entries_at = self.entries.len();
        let auctions_at = self.auctions.len();
        for e in &row.queue {
            match e.ad_type {
                AdType::Auction if e.filter == 0 => {
                    self.auctions.push(Auction { ad_id: e.ad_id, ecpm: e.ecpm, pctr: e.pctr, boost: e.boost });
                }
                AdType::Contract if e.filter == 0 => {
                    let contract = self.index[&e.ad_id];
                    if self.may_show(contract, row) {
                        self.entries.push(Entry { pctr: e.pctr, ecpm: e.ecpm, boost: e.boost, contract, padding: 0 });
                    }
                }
                _ => {}
            }
        }
        for (i, c) in (0u32..).zip(self.rows) {
            if !self.may_show(i, row) {
                continue;
            }
            self.targeted[i as usize] += 1;
            if self.options.complete_queues && row.queue.iter().all(|e| e.ad_id != c.ad_id) {
                self.completed += 1;
                let pctr = c.pctr.unwrap_or(0.0);
                let ecpm = c.click_value * pctr * 1000.0;
                self.entries.push(Entry { pctr, ecpm, boost: 1.0, contract: i, padding: 0 });
            }
        }
        for e in &self.entries[entries_at..] {
            self.present[e.contract as usize] += 1;
            self.pctr_sum[e.contract as usize] += e.pctr;
        }
        let auctions = &mut self.auctions[auctions_at..];
        sort_by_score(auctions);
        let best = auctions.iter().map(Auction::worth).fold(0.0, f64::max);
        self.requests.push(Request {
            request_id: row.request_id,
            ts_ms: row.ts_ms,
            best,
            entries_at: entries_at as u32,
            auctions_at: auctions_at as u32,
            entries: (self.entries.len() - entries_at) as u16,
            auctions: (self.auctions.len() - auctions_at) as u16,
            slot_id: row.slot_id,
            region: row.region,
            user_id: row.user_id.unwrap_or(0),
            gender: row.gender,
            age: row.age,
            has_user: u8::from(row.user_id.is_some()),
            padding: [0; 1],
        });
    }

    fn may_show(&self, contract: u32, row: &TrackRow) -> bool {
        let c = &self.rows[contract as usize];
        (c.start_ms..c.end_ms).contains(&row.ts_ms) && c.targeting.matches(row.slot_id, row.region, row.gender, row.age)
    }

    fn finish_contracts(&self) -> Vec<Contract> {
        self.rows
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
