//! Stores savepoints of a compilation. If the process is killed, the next start continues from its last savepoint.
//!
//! A log is compiled into `compiled.log.part`. Every few million rows, what the pass holds in memory is stored beside it, in
//! `compiled.log.state`, and the request ids seen since the savepoint before are appended to `compiled.log.ids`. A savepoint belongs to
//! inputs whose size, inode and times are the same, as a stored hash does ([`super::digest`]). Only the process that has locked the
//! folder makes them.
//!
//! A pass that knows of repeated ids or sorts on disk has no savepoints: a killed one begins at the first row.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use super::compiled::{Counts, VERSION};
use super::digest::Stat;
use super::keep;
use super::queue_buffer::QueueBuffer;
use super::requests::BlockMeta;

const MAGIC: [u8; 8] = *b"ADMIXPRT";

/// A pass after a whole number of lumps.
#[derive(Debug, Serialize, Deserialize)]
pub struct PassState {
    pub lumps: u64,
    /// Bytes of the table that these lumps took.
    pub read: u64,
    /// Rows that were parsed, and those of them that are good.
    pub seen: u64,
    pub good: u64,
    /// Latest time of a row.
    pub latest: u64,
    /// Hash of the ids of all rows.
    pub ids: u64,
    pub set_aside: SetAside,
}

/// The bad rows of a pass so far.
#[derive(Debug, Serialize, Deserialize)]
pub struct SetAside {
    pub counts: Counts,
    /// Text of the first one.
    pub first: Option<String>,
    /// Bytes of the list.
    pub listed: u64,
}

/// Sums and places of a compilation besides its buffers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sums {
    /// Bits of the sums of click probabilities, by contract.
    pub pctr_sum: Vec<u64>,
    pub targeted: Vec<u64>,
    pub present: Vec<u64>,
    pub completed: u64,
    /// Latest time that the sorter has given.
    pub given_ms: u64,
    /// Bytes of the log that are written.
    pub at: u64,
    pub counts: [u64; 3],
}

/// A compilation after a whole number of lumps.
pub struct Savepoint {
    pub pass: PassState,
    pub sums: Sums,
    /// Requests that wait in the sorter, and those of the block that is not full.
    pub held: QueueBuffer,
    pub block: QueueBuffer,
    pub index: Vec<BlockMeta>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    key: String,
    pass: PassState,
    sums: Sums,
}

/// The files of a compilation that is under way.
pub struct Parts {
    log: PathBuf,
    ids: PathBuf,
    state: PathBuf,
    key: String,
    /// Rows between savepoints, `None` where there are to be none, and the row from which on the next is due.
    every: Option<u64>,
    due: u64,
    /// Whether a savepoint is stored.
    stored: bool,
    finished: bool,
}

impl Parts {
    /// Begins or continues the compilation of a log that will be at `path`, within `memory` bytes. `stats` are the files that it is made
    /// from, and `options` is all else that it depends on. There are no savepoints if a file was changed within the last moments.
    pub fn of(path: &Path, options: (&str, bool), memory: usize, stats: &[(PathBuf, Stat)]) -> Self {
        let of = |ending: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(ending);
            PathBuf::from(name)
        };
        let inputs = serde_json::to_vec(&(VERSION, options, stats)).unwrap_or_default();
        let every = (memory as u64 / BYTES_A_ROW).max(1024);
        let state = of(".state");
        Self {
            log: of(".part"),
            ids: of(".ids"),
            // That of an earlier process, until it turns out to be of no use.
            stored: state.exists(),
            state,
            key: format!("{:032x}", XxHash3_128::oneshot(&inputs)),
            every: Stat::are_settled(stats).then_some(every),
            due: every,
            finished: false,
        }
    }

    /// Opens the log that is being written, with what is there of it.
    ///
    /// # Errors
    /// A file that cannot be created.
    pub fn open(&self) -> std::io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.log)
    }

    /// Returns the path of the log that is being written.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether savepoints are stored at all.
    pub fn stores(&self) -> bool {
        self.every.is_some()
    }

    /// Returns whether a savepoint is due after `rows` rows.
    pub fn is_due(&self, rows: u64) -> bool {
        self.every.is_some() && rows >= self.due
    }

    /// Returns the savepoint of an earlier process, with the file of the ids of its rows.
    pub fn load(&mut self) -> Option<(Savepoint, File)> {
        self.every?;
        let savepoint = self.read()?;
        let ids = OpenOptions::new().read(true).write(true).open(&self.ids).ok()?;
        let length = 8 * savepoint.pass.seen;
        if ids.metadata().ok()?.len() < length {
            return None;
        }
        ids.set_len(length).ok()?;
        self.due = savepoint.pass.seen + self.every?;
        Some((savepoint, ids))
    }

    fn read(&self) -> Option<Savepoint> {
        let bytes = std::fs::read(&self.state).ok()?;
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (checksum, mut rest) = rest.split_first_chunk()?;
        if XxHash3_64::oneshot(rest) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let head: Head = serde_json::from_slice(section(&mut rest)?).ok()?;
        if head.key != self.key {
            return None;
        }
        let (held, block) = (buffer(&mut rest)?, buffer(&mut rest)?);
        let index = list(&mut rest)?;
        Some(Savepoint { pass: head.pass, sums: head.sums, held, block, index })
    }

    /// Stores a savepoint with the ids of the rows since the one before. If that fails, there are no more.
    pub fn store(&mut self, savepoint: Parting, ids: &[u64]) {
        let rows = savepoint.pass.seen;
        match self.write(savepoint, ids) {
            Ok(()) => {
                self.stored = true;
                self.due = rows + self.every.unwrap_or(0);
                crate::failpoint::reached("compile.part");
            }
            Err(e) => {
                tracing::warn!("{}: a killed compilation will begin again: {e}", self.log.display());
                self.discard();
                self.every = None;
            }
        }
    }

    fn write(&self, savepoint: Parting, ids: &[u64]) -> std::io::Result<()> {
        let Parting { pass, sums, held, block, index } = savepoint;
        let before = 8 * (pass.seen - ids.len() as u64);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.ids)?;
        file.write_all_at(bytemuck::cast_slice(ids), before)?;
        let head = Head { key: self.key.clone(), pass, sums };
        let mut bytes = Vec::with_capacity(held.bytes() + block.bytes() + size_of_val(index) + (1 << 16));
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; 8]);
        add(&mut bytes, &serde_json::to_vec(&head)?);
        for buffer in [held, block] {
            add(&mut bytes, bytemuck::cast_slice(&buffer.requests));
            add(&mut bytes, bytemuck::cast_slice(&buffer.entries));
            add(&mut bytes, bytemuck::cast_slice(&buffer.auctions));
        }
        add(&mut bytes, bytemuck::cast_slice(index));
        let checksum = XxHash3_64::oneshot(&bytes[16..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        let mut next = tempfile::Builder::new()
            .prefix(keep::UNFINISHED)
            .tempfile_in(self.state.parent().unwrap_or(Path::new(".")))?;
        next.write_all(&bytes)?;
        next.persist(&self.state).map_err(|e| e.error)?;
        Ok(())
    }

    /// Forgets the savepoint, before the log is written from its beginning.
    pub fn discard(&mut self) {
        self.stored = false;
        self.due = self.every.unwrap_or(0);
        let _ = std::fs::remove_file(&self.state);
        let _ = std::fs::remove_file(&self.ids);
    }

    /// Renames the finished log to `path`, readable by those who may read the log directory `dir`.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn finish(mut self, file: &File, path: &Path, dir: &Path) -> std::io::Result<()> {
        self.discard();
        keep::place(file, &self.log, path, dir)?;
        self.finished = true;
        Ok(())
    }
}

/// A compilation that fails leaves nothing behind. One that is interrupted leaves its last savepoint.
impl Drop for Parts {
    fn drop(&mut self) {
        if !(self.finished || self.stored && std::thread::panicking()) {
            self.discard();
            let _ = std::fs::remove_file(&self.log);
        }
    }
}

/// A [`Savepoint`] to be stored, whose buffers are borrowed.
pub struct Parting<'a> {
    pub pass: PassState,
    pub sums: Sums,
    pub held: &'a QueueBuffer,
    pub block: &'a QueueBuffer,
    pub index: &'a [BlockMeta],
}

fn add(bytes: &mut Vec<u8>, section: &[u8]) {
    bytes.extend_from_slice(&(section.len() as u64).to_le_bytes());
    bytes.extend_from_slice(section);
}

fn section<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk()?;
    *rest = after;
    rest.split_off(..usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn list<T: Pod>(rest: &mut &[u8]) -> Option<Vec<T>> {
    let section = section(rest)?;
    section.len().is_multiple_of(size_of::<T>()).then(|| bytemuck::pod_collect_to_vec(section))
}

fn buffer(rest: &mut &[u8]) -> Option<QueueBuffer> {
    let buffer = QueueBuffer { requests: list(rest)?, entries: list(rest)?, auctions: list(rest)? };
    buffer.is_whole().then_some(buffer)
}

/// Bytes of the memory limit for each row between savepoints: 2 million rows with the default limit. What a savepoint holds is at most an
/// eighth of the limit, so storing it costs little beside the rows.
const BYTES_A_ROW: u64 = 512;
