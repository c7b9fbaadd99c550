//! Hashes of input files, and the rules for reusing a stored hash.
//!
//! Gigabytes are not read again only to find that nothing changed. The hash of a file is stored beside the other files derived from
//! its directory, and reused while size, inode and the times of last modification and change, to the nanosecond, are the same. A
//! file that was modified less than two seconds before it was hashed is not stored: a writer could change it again within the same
//! tick of a coarse clock.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use super::error::{LogError, Result};
use super::{keep, table};

const NAME: &str = "inputs.json";
/// Seconds for which a file must be unchanged before its hash is stored.
const SETTLED_S: i64 = 2;

/// File attributes that identify the file that was hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    size: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stat {
    /// Reads the attributes of a file.
    ///
    /// # Errors
    /// A missing file.
    pub fn of(path: &Path) -> Result<Self> {
        let m = path.metadata().map_err(|e| LogError::io(path, e))?;
        let (modified, changed) = ((m.mtime(), m.mtime_nsec()), (m.ctime(), m.ctime_nsec()));
        Ok(Self { size: m.len(), inode: m.ino(), modified, changed })
    }

    /// Returns whether these files were last changed long enough ago, so that a later change will show.
    pub fn are_settled(stats: &[(PathBuf, Self)]) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64);
        stats.iter().all(|(_, stat)| stat.is_settled(now))
    }

    /// Returns whether the file was last changed long enough before `now`; a time in the future counts as not settled.
    fn is_settled(&self, now: i64) -> bool {
        self.modified.0.max(self.changed.0) < now - SETTLED_S
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    stat: Stat,
    xxh3: String,
}

/// Hashes of the files of one log directory.
pub struct Digests {
    dir: PathBuf,
    /// File in which they are stored, if any.
    kept: Option<PathBuf>,
    known: BTreeMap<String, Known>,
    altered: bool,
}

impl Digests {
    /// Reads the stored hashes of the files in `dir`; with `verify`, none is used.
    pub fn of(dir: &Path, verify: bool) -> Self {
        let kept = keep::folder(dir).map(|folder| folder.join(NAME));
        let known = kept.as_ref().filter(|_| !verify).and_then(|path| {
            let bytes = crate::files::read(path, MOST_BYTES).ok()?;
            serde_json::from_slice(&bytes).ok()
        });
        Self { dir: dir.to_owned(), kept, known: known.unwrap_or_default(), altered: verify }
    }

    /// Returns the hash of a file's content.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn file(&mut self, path: &Path) -> Result<u128> {
        let name = path.strip_prefix(&self.dir).unwrap_or(path).to_string_lossy().into_owned();
        let stat = Stat::of(path)?;
        if let Some(known) = self.known.get(&name).filter(|known| known.stat == stat)
            && let Ok(hash) = u128::from_str_radix(&known.xxh3, 16)
        {
            return Ok(hash);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs() as i64);
        let hash = read(path)?;
        let left_alone = stat.is_settled(now) && Stat::of(path)? == stat;
        if left_alone {
            self.known.insert(name, Known { stat, xxh3: format!("{hash:032x}") });
            self.altered = true;
        } else {
            self.altered |= self.known.remove(&name).is_some();
        }
        Ok(hash)
    }

    /// Adds the name and the content hash of a table to a hash. A directory contributes the path and content of each part file.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn table(&mut self, hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
        hasher.write(path.file_name().unwrap_or_default().as_encoded_bytes());
        if !path.is_dir() {
            hasher.write(&self.file(path)?.to_le_bytes());
            return Ok(());
        }
        for part in table::parts(path)? {
            let below = part.strip_prefix(path).unwrap_or(&part);
            hasher.write(below.as_os_str().as_encoded_bytes());
            hasher.write(&self.file(&part)?.to_le_bytes());
        }
        Ok(())
    }

    /// Stores the known hashes. A failure is not an error: the files are then read again.
    pub fn keep(self) {
        let Some(path) = self.kept.filter(|_| self.altered && !self.known.is_empty()) else { return };
        let json = serde_json::to_vec(&self.known).expect("plain values serialise");
        if let Err(e) = keep::replace(&path, &json, &self.dir) {
            tracing::debug!("{}: {e}", path.display());
        }
    }
}

/// Maximum size of the file of hashes in bytes, enough for a day of a million parts.
const MOST_BYTES: u64 = 256 << 20;

fn read(path: &Path) -> Result<u128> {
    let mut file = std::fs::File::open(path).map_err(|e| LogError::io(path, e))?;
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        crate::cancel::point();
        let n = file.read(&mut buffer).map_err(|e| LogError::io(path, e))?;
        if n == 0 {
            return Ok(hasher.finish_128());
        }
        hasher.write(&buffer[..n]);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn age(path: &Path, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
    }

    fn hash(dir: &Path, verify: bool) -> (u128, usize) {
        let mut digests = Digests::of(dir, verify);
        let hash = digests.file(&dir.join("track_log.tsv")).unwrap();
        let known = digests.known.len();
        digests.keep();
        (hash, known)
    }

    #[test]
    fn a_file_that_was_just_touched_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("track_log.tsv");
        std::fs::write(&path, "one").unwrap();
        // The time of last change cannot be set: it is the current time, whatever the modification time is.
        age(&path, 60);
        assert_eq!(hash(dir.path(), false).1, 0);
        let stat = Stat::of(&path).unwrap();
        assert!(!stat.is_settled(stat.changed.0 + SETTLED_S) && stat.is_settled(stat.changed.0 + SETTLED_S + 1));
    }

    #[test]
    fn a_remembered_hash_is_believed_until_anything_of_the_file_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("track_log.tsv");
        std::fs::write(&path, "one").unwrap();
        let plant = |stat| {
            let known = Known { stat, xxh3: format!("{:032x}", 7) };
            let known = BTreeMap::from([("track_log.tsv".to_owned(), known)]);
            let kept = keep::folder(dir.path()).unwrap().join(NAME);
            std::fs::write(kept, serde_json::to_vec(&known).unwrap()).unwrap();
        };
        let real = XxHash3_128::oneshot(b"one");
        let stat = Stat::of(&path).unwrap();
        plant(stat);
        assert_eq!(hash(dir.path(), false).0, 7, "believed");
        assert_eq!(hash(dir.path(), true).0, real, "read again when asked");
        for other in [
            Stat { size: stat.size + 1, ..stat },
            Stat { inode: stat.inode + 1, ..stat },
            Stat { modified: (stat.modified.0, stat.modified.1 ^ 1), ..stat },
            Stat { changed: (stat.changed.0, stat.changed.1 ^ 1), ..stat },
        ] {
            plant(other);
            assert_eq!(hash(dir.path(), false).0, real, "{other:?}");
        }
    }
}
