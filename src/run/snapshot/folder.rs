//! Snapshots in the run directory.
//!
//! ```text
//! checkpoints/
//!   00000007/            appears by one rename: whole or not at all
//!     manifest.json      numbers, lengths and checksums of the other files; its own checksum is its last line
//!     state.bin          RunState
//!     pool.bin           blocks of the replay pool
//!     rank-1.bin, pool-1.bin, ..   the same of the learner's further ranks, where there are any
//!     best.safetensors   the best policy so far, where there was one
//!   .writing-00000008/   what a dead checkpointer leaves; the next one removes it
//! ```
//!
//! A commit writes everything into a folder of another name, syncs each file and the folder, renames it and syncs
//! `checkpoints/`. The rename is the commit point, and everything that it names is durable by then. Only after that are older
//! snapshots removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::files;
use crate::shm::control::MAX_LEARNER_RANKS;

use super::files::Files;
use super::pool::{self, PoolBlock};
use super::state::{RankState, RunState};

const FORMAT: u32 = 1;
const WRITING: &str = ".writing-";
const MANIFEST: &str = "manifest.json";
/// File of a snapshot's state.
pub const STATE: &str = "state.bin";
/// File of a snapshot's data: the replay pool, or the rows of a table.
pub const POOL: &str = "pool.bin";
const BEST: &str = "best.safetensors";

/// A snapshot as read from disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub number: u64,
    pub state: RunState,
    /// Blocks of the replay pool, oldest first.
    pub pool: Vec<PoolBlock>,
    /// Folder of the snapshot.
    pub path: PathBuf,
    /// Parts of the learner's further ranks, from rank 1.
    pub ranks: Vec<RankPart>,
    /// Whether it includes the best policy of its time.
    pub has_best: bool,
}

/// A further rank's part of a snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct RankPart {
    pub state: RankState,
    pub pool: Vec<PoolBlock>,
}

impl Snapshot {
    /// Returns the path of the best policy of its time.
    pub fn best(&self) -> Option<PathBuf> {
        self.has_best.then(|| self.path.join(BEST))
    }
}

/// Contents of a snapshot's manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    format: u32,
    admix: String,
    pub snapshot: u64,
    pub updates: u64,
    /// Lengths and checksums (xxh3, 128 bits) of the files.
    files: BTreeMap<String, FileEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    bytes: u64,
    xxh3: String,
}

impl FileEntry {
    fn of(pieces: &[&[u8]]) -> Self {
        let mut hasher = XxHash3_128::new();
        pieces.iter().for_each(|piece| hasher.write(piece));
        Self {
            bytes: pieces.iter().map(|piece| piece.len() as u64).sum(),
            xxh3: format!("{:032x}", hasher.finish_128()),
        }
    }
}

impl Manifest {
    fn encode(&self) -> anyhow::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        let checksum = XxHash3_128::oneshot(&text);
        text.extend(format!("\n{checksum:032x}\n").bytes());
        Ok(text)
    }

    fn decode(text: &[u8]) -> anyhow::Result<Self> {
        let text = std::str::from_utf8(text)?;
        let (body, checksum) =
            text.strip_suffix('\n').and_then(|t| t.split_once('\n')).context("it has no checksum")?;
        ensure!(checksum == format!("{:032x}", XxHash3_128::oneshot(body.as_bytes())), "its checksum is wrong");
        let manifest: Self = serde_json::from_str(body)?;
        ensure!(manifest.format == FORMAT, "it has format {}, this program reads {FORMAT}", manifest.format);
        Ok(manifest)
    }
}

/// The folder of a run's snapshots.
pub struct SnapshotFolder<'a, F> {
    root: &'a Path,
    files: F,
}

impl<'a, F: Files> SnapshotFolder<'a, F> {
    /// Refers to the existing folder `root`.
    pub fn new(root: &'a Path, files: F) -> Self {
        Self { root, files }
    }

    /// Writes snapshot `number` and commits it by one rename; returns the bytes written. `pool` is given in pieces, `ranks` are the
    /// states and pools of the learner's further ranks, `best` is the file of the best policy at this time.
    ///
    /// # Errors
    /// Any error of the file system. The snapshot then does not exist, although parts of it may be left.
    pub fn commit(
        &self,
        number: u64,
        updates: u64,
        state: &[u8],
        pool: &[&[u8]],
        ranks: &[(&[u8], Vec<&[u8]>)],
        best: Option<&Path>,
    ) -> anyhow::Result<u64> {
        let writing = self.root.join(format!("{WRITING}{number:08}"));
        if writing.exists() {
            self.files.remove_folder(&writing)?;
        }
        self.files.create_folder(&writing)?;
        let mut manifest = Manifest {
            format: FORMAT,
            admix: env!("CARGO_PKG_VERSION").into(),
            snapshot: number,
            updates,
            files: BTreeMap::new(),
        };
        // A copy: a link would share damage with every snapshot and with the policy itself.
        let best = best.map(|path| files::read(path, files::MOST)).transpose()?;
        let best = best.as_deref().map(|bytes| [bytes]);
        let mut parts = vec![(STATE.to_owned(), vec![state]), (POOL.to_owned(), pool.to_vec())];
        for (rank, (state, pool)) in (1..).zip(ranks) {
            parts.push((rank_state(rank), vec![*state]));
            parts.push((rank_pool(rank), pool.clone()));
        }
        parts.extend(best.map(|best| (BEST.to_owned(), best.to_vec())));
        for (name, pieces) in &parts {
            let path = writing.join(name);
            self.files.write(&path, pieces)?;
            self.files.sync_file(&path)?;
            manifest.files.insert(name.clone(), FileEntry::of(pieces));
        }
        let path = writing.join(MANIFEST);
        self.files.write(&path, &[&manifest.encode()?])?;
        self.files.sync_file(&path)?;
        self.files.sync_folder(&writing)?;
        let place = self.place(number);
        if place.exists() {
            // It must be damaged, or it would not be written again.
            self.files.remove_folder(&place)?;
        }
        self.files.rename(&writing, &place)?;
        self.files.sync_folder(self.root)?;
        Ok(manifest.files.values().map(|file| file.bytes).sum())
    }

    /// Removes unfinished folders of dead checkpointers, and all snapshots but the newest `keep` up to `newest`.
    pub fn prune(&self, newest: u64, keep: usize) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(self.root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(WRITING) {
                self.files.remove_folder(&entry.path())?;
            }
        }
        let older: Vec<u64> = numbers(self.root)?.into_iter().filter(|&n| n <= newest).collect();
        for &number in older.iter().rev().skip(keep.max(1)) {
            self.files.remove_folder(&self.place(number))?;
        }
        Ok(())
    }

    fn place(&self, number: u64) -> PathBuf {
        self.root.join(format!("{number:08}"))
    }
}

/// Returns the numbers of the snapshots in a folder, ascending, complete or damaged; none where there is no folder.
pub fn numbers(root: &Path) -> anyhow::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(root) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.with_context(|| format!("cannot read {}", root.display()))?,
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.len() >= 8
            && let Ok(number) = name.parse::<u64>()
            && name == format!("{number:08}")
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Checks that all files of a snapshot are complete and unchanged, and returns its manifest.
///
/// # Errors
/// A file that is missing, truncated or changed.
pub fn verify(path: &Path) -> anyhow::Result<Manifest> {
    Ok(read_files(path)?.0)
}

fn read_files(path: &Path) -> anyhow::Result<(Manifest, BTreeMap<String, Vec<u8>>)> {
    let manifest = files::read(&path.join(MANIFEST), files::MOST)
        .map_err(anyhow::Error::from)
        .and_then(|text| Manifest::decode(&text));
    let manifest = manifest.with_context(|| format!("{}", path.join(MANIFEST).display()))?;
    let mut contents = BTreeMap::new();
    for (name, entry) in &manifest.files {
        ensure!(is_part(name), "{} is no file of a snapshot", path.join(name).display());
        // Reading stops at the recorded length: a file of another length is wrong, however long it is.
        let bytes =
            files::read(&path.join(name), entry.bytes).with_context(|| format!("{}", path.join(name).display()))?;
        ensure!(FileEntry::of(&[&bytes]) == *entry, "{} is not what was written", path.join(name).display());
        contents.insert(name.clone(), bytes);
    }
    Ok((manifest, contents))
}

/// Reads the newest complete snapshot of a folder; `None` where there is none. Damaged ones are skipped with a warning.
///
/// # Errors
/// A folder that cannot be read.
pub fn newest(root: &Path) -> anyhow::Result<Option<Snapshot>> {
    newest_until(root, u64::MAX)
}

/// Reads the newest complete snapshot that has no higher number than `most`.
///
/// # Errors
/// A folder that cannot be read.
pub fn newest_until(root: &Path, most: u64) -> anyhow::Result<Option<Snapshot>> {
    for &number in numbers(root)?.iter().rev().filter(|number| **number <= most) {
        let path = root.join(format!("{number:08}"));
        match read(&path, number) {
            Ok(snapshot) => return Ok(Some(snapshot)),
            Err(e) => tracing::warn!("snapshot {number} is damaged and passed over: {e:#}"),
        }
    }
    Ok(None)
}

fn read(path: &Path, number: u64) -> anyhow::Result<Snapshot> {
    let (manifest, mut contents) = read_files(path)?;
    if manifest.snapshot != number {
        bail!("its manifest is that of snapshot {}", manifest.snapshot);
    }
    let mut file = |name: &str| contents.remove(name).with_context(|| format!("it has no {name}"));
    let state = RunState::decode(&file(STATE)?).context(STATE)?;
    let pool = pool::parse(&file(POOL)?).context(POOL)?;
    let has_best = file(BEST).is_ok();
    let mut ranks = Vec::new();
    while let Ok(state) = file(&rank_state(ranks.len() + 1)) {
        let name = rank_pool(ranks.len() + 1);
        let pool = pool::parse(&file(&name)?).context(name)?;
        ranks.push(RankPart { state: RankState::decode(&state).context("a rank's state")?, pool });
    }
    ensure!(ranks.iter().all(|part| part.state.updates == state.updates), "its ranks are at different updates");
    let others = ranks.iter().try_fold(0u64, |sum, part| sum.checked_add(part.state.samples));
    ensure!(others.is_some_and(|others| others <= state.samples), "its ranks have more samples than all together");
    Ok(Snapshot { number, state, pool, path: path.to_owned(), ranks, has_best })
}

/// Reads snapshot `number` of a folder.
///
/// # Errors
/// If it is missing or damaged.
pub fn numbered(root: &Path, number: u64) -> anyhow::Result<Snapshot> {
    read(&root.join(format!("{number:08}")), number).with_context(|| format!("snapshot {number} cannot be read"))
}

/// Removes snapshots newer than `number`, from which the run does not resume.
///
/// # Errors
/// Any error of the file system.
pub fn remove_behind(root: &Path, number: u64) -> anyhow::Result<()> {
    for behind in numbers(root)?.into_iter().filter(|n| *n > number) {
        std::fs::remove_dir_all(root.join(format!("{behind:08}")))?;
    }
    Ok(())
}

/// Whether a file of this name belongs in a snapshot.
fn is_part(name: &str) -> bool {
    let of_rank = |rank| name == rank_state(rank) || name == rank_pool(rank);
    [STATE, POOL, BEST].contains(&name) || (1..MAX_LEARNER_RANKS).any(of_rank)
}

fn rank_state(rank: usize) -> String {
    format!("rank-{rank}.bin")
}

fn rank_pool(rank: usize) -> String {
    format!("pool-{rank}.bin")
}
