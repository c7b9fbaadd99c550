//! Snapshots of a run of `admix values train`: a base that is written rarely, and the changes since then in each snapshot.
//!
//! ```text
//! checkpoints/
//!   base-00000000.rows   the rows that the run began with, and base-00000000.safetensors, its first network: copies of another model's
//!   base-00000010.rows   all rows as of snapshot 10: the result of the deltas up to it, or a second name of the rows of 10
//!   00000010/            state of snapshot 10, and the rows that changed between 9 and 10, or all rows
//!   00000011/
//! ```
//!
//! Snapshot n is the newest base b <= n with the rows of b + 1 to n applied, and the state of n. Base 0 of a run that
//! starts with an empty table has no file. A new base appears by one rename or link, and the files that it replaces are removed after that,
//! so a base and complete deltas always exist.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::shm::Ledger;
use crate::sparse::{HostTable, file, merge};
use crate::values::adam::Adam;

use super::RunDirectory;
use super::snapshot::folder;
use super::value_cursor::Cursor;

/// State of a run between two updates, without its table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ValueState {
    format: u32,
    pub updates: u64,
    pub samples: u64,
    pub cursor: Cursor,
    pub parameters: Vec<f32>,
    pub adam: Adam,
    /// Evaluations so far, consecutive evaluations without improvement, and the best loss.
    pub evaluations: u64,
    pub without_improvement: u64,
    pub best: Option<f64>,
    /// Whether training is over.
    pub finished: bool,
    /// Sample ledger of processes that are gone.
    pub ledger: Ledger,
}

impl ValueState {
    const FORMAT: u32 = 2;
    /// Bytes of a state besides its parameters and its readers.
    const REST: usize = 4096;

    /// Returns the maximum size of an encoded state, bytes.
    pub fn most_bytes(readers: usize, parameters: usize) -> usize {
        Self::REST + 16 * readers + 3 * size_of::<f32>() * parameters
    }

    /// Encodes the state.
    ///
    /// # Errors
    /// None that can happen.
    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        Ok(bincode::serde::encode_to_vec(self, bincode::config::standard())?)
    }

    /// Creates the state of a new run.
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
    /// Files with its rows; later files take precedence.
    rows: Vec<PathBuf>,
}

impl ValueSnapshot {
    /// Finds the newest complete snapshot of a run; damaged ones are skipped with a warning.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn newest(directory: &RunDirectory) -> anyhow::Result<Option<Self>> {
        Self::newest_until(directory, u64::MAX)
    }

    /// Finds the newest whole snapshot of a run that has no higher number than `most`.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn newest_until(directory: &RunDirectory, most: u64) -> anyhow::Result<Option<Self>> {
        let root = directory.checkpoints();
        let (numbers, bases) = (folder::numbers(&root)?, bases(&root)?);
        let mut whole = Checked { root: &root, found: BTreeMap::new() };
        for &number in numbers.iter().rev().filter(|number| **number <= most) {
            let candidates = bases.iter().rev().copied().filter(|base| *base <= number);
            let implied = (!bases.contains(&0)).then_some(0);
            for base in candidates.chain(implied) {
                let deltas = base + 1..=number;
                if !deltas.clone().chain([number]).all(|n| numbers.contains(&n) && whole.snapshot(n)) {
                    continue;
                }
                if (base > 0 || bases.contains(&0)) && !whole.base(base) {
                    continue;
                }
                let state = read_state(directory, number)?;
                let base = Some(base_path(&root, base)).filter(|path| path.exists());
                let rows = base.into_iter().chain(deltas.map(|n| delta_path(&root, n))).collect();
                return Ok(Some(Self { number, state, rows }));
            }
            tracing::warn!("snapshot {number} is not whole and passed over");
        }
        Ok(None)
    }

    /// Reads the snapshot's rows into an empty table.
    ///
    /// # Errors
    /// Rows that are damaged or do not fit.
    pub fn restore(&self, table: &mut HostTable) -> anyhow::Result<()> {
        merge::restore(table, &self.rows)
    }
}

/// Results of checks so far; each damaged file is reported once.
struct Checked<'a> {
    root: &'a Path,
    found: BTreeMap<PathBuf, bool>,
}

impl Checked<'_> {
    fn check(&mut self, path: PathBuf, check: impl FnOnce(&Path) -> anyhow::Result<()>) -> bool {
        *self.found.entry(path).or_insert_with_key(|path| {
            check(path).inspect_err(|e| tracing::warn!("{} is damaged: {e:#}", path.display())).is_ok()
        })
    }

    fn snapshot(&mut self, number: u64) -> bool {
        self.check(self.root.join(format!("{number:08}")), |path| {
            let manifest = folder::verify(path)?;
            ensure!(manifest.snapshot == number, "its manifest is that of snapshot {}", manifest.snapshot);
            Ok(())
        })
    }

    fn base(&mut self, number: u64) -> bool {
        self.check(base_path(self.root, number), |path| Ok(file::verify(path).map(|_| ())?))
    }
}

/// Reads the state of snapshot `number`, whose files have been checked.
///
/// # Errors
/// A state of another build.
pub fn read_state(directory: &RunDirectory, number: u64) -> anyhow::Result<ValueState> {
    Ok(read_whole_state(directory, number)?.0)
}

/// Reads the state of snapshot `number`, and the counts of ids without a row that stand behind it.
///
/// # Errors
/// As [`read_state`].
pub fn read_whole_state(directory: &RunDirectory, number: u64) -> anyhow::Result<(ValueState, Vec<u8>)> {
    let path = directory.checkpoints().join(format!("{number:08}")).join(folder::STATE);
    let mut bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (state, read): (ValueState, usize) = bincode::serde::decode_from_slice(&bytes, bincode::config::standard())
        .with_context(|| format!("{} is malformed", path.display()))?;
    let (found, expected) = (state.format, ValueState::FORMAT);
    ensure!(found == expected, "{}: format {found}, this program reads {expected}", path.display());
    Ok((state, bytes.split_off(read)))
}

/// Returns the file of the rows that changed before snapshot `number`.
pub fn delta_path(root: &Path, number: u64) -> PathBuf {
    root.join(format!("{number:08}")).join(folder::POOL)
}

/// Returns the file of all rows as of snapshot `number`.
pub fn base_path(root: &Path, number: u64) -> PathBuf {
    root.join(format!("base-{number:08}.rows"))
}

/// Returns the file of the network that a run began with, beside base 0.
pub fn first_network_path(root: &Path) -> PathBuf {
    root.join("base-00000000.safetensors")
}

/// Gives a file a second name, or copies it where the file system has no links.
///
/// # Errors
/// Any error of the file system.
pub fn link_or_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let writing = to.with_file_name(".copying");
    let copy = || {
        std::fs::copy(from, &writing)?;
        std::fs::File::open(&writing)?.sync_all()?;
        std::fs::rename(&writing, to)
    };
    copy().inspect_err(|_| _ = std::fs::remove_file(&writing))
}

/// Removes a base, which newer ones replace.
///
/// # Errors
/// Any error of the file system.
pub fn remove_base(root: &Path, number: u64) -> std::io::Result<()> {
    std::fs::remove_file(base_path(root, number))?;
    if number == 0 && first_network_path(root).exists() {
        std::fs::remove_file(first_network_path(root))?;
    }
    Ok(())
}

/// Returns the numbers of the bases in a folder, ascending.
///
/// # Errors
/// A folder that cannot be read.
pub fn bases(root: &Path) -> anyhow::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    if root.exists() {
        for entry in std::fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("base-")?.strip_suffix(".rows")?.parse().ok());
            numbers.extend(number.filter(|number| base_path(root, *number).file_name() == Some(name.as_os_str())));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes snapshots and bases newer than `number`, which the run does not resume from.
///
/// # Errors
/// Any error of the file system.
pub fn remove_behind(root: &Path, number: u64) -> anyhow::Result<()> {
    folder::remove_behind(root, number)?;
    for behind in bases(root)?.into_iter().filter(|n| *n > number) {
        remove_base(root, behind)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the file system had no links, a snapshot of all rows did not become a base.
    #[test]
    fn a_file_gets_a_second_name_or_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        // Another file system, as a rule, to which there are no links.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        for from in [folder.path().join("rows"), memory.path().join("rows")] {
            std::fs::write(&from, b"rows").unwrap();
            let to = folder.path().join("base");
            link_or_copy(&from, &to).unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), b"rows");
            std::fs::remove_file(&to).unwrap();
        }
        assert!(link_or_copy(&folder.path().join("none"), &folder.path().join("base")).is_err());
        let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["rows"]);
    }
}
