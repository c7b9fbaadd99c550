//! Finished plans, kept beside the compiled logs that they were made from.
//!
//! Tuning the baselines replays the training days a few hundred times, so a plan that the same program made from the same
//! inputs is reused. The key is a hash of everything that a plan depends on, which the caller feeds ([`Key`]). The file
//! contains the plan's JSON, so a new plan and a cached one are equal to the last bit.
//!
//! Nothing here is an error: if a file is missing, damaged or another program's, the plan is made again; if nothing can be
//! kept, it is made each time.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::files;
use crate::log::inputs::hash_table;
use crate::log::{CompiledLog, LogError, keep};

use super::{FORMAT, Plan};

const MAGIC: [u8; 8] = *b"ADMIXPLN";
/// Magic, checksum of the rest, key.
const HEADER: usize = 8 + 8 + 16;
/// Number of plans kept in one folder; the least recently used ones are removed first.
const KEPT: usize = 8;

/// Hash of a plan's inputs, in progress.
pub struct Key(XxHash3_128);

impl Key {
    /// Begins with the content of the program itself, because code changes without a new version. `None` if it cannot be
    /// read.
    pub fn of_this_program() -> Option<Self> {
        let mut hasher = XxHash3_128::new();
        hasher.write(&FORMAT.to_le_bytes());
        hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
        // The link leads to the file that was started, even if its name now belongs to another one.
        let mut file = std::fs::File::open("/proc/self/exe").ok()?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).ok()? {
                0 => break,
                n => hasher.write(&buffer[..n]),
            }
        }
        Some(Self(hasher))
    }

    /// Adds a text with its length, so that two texts differ from their concatenation.
    pub fn text(&mut self, text: &str) {
        self.0.write(&(text.len() as u64).to_le_bytes());
        self.0.write(text.as_bytes());
    }

    /// Adds a training day.
    pub fn log(&mut self, log: &CompiledLog) {
        self.0.write(&log.inputs().to_le_bytes());
    }

    /// Adds a file with its name; a missing file differs from an empty one.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn file(&mut self, path: Option<&Path>) -> Result<(), LogError> {
        match path.filter(|path| path.exists()) {
            Some(path) => {
                self.text("file");
                let mut content = XxHash3_128::new();
                hash_table(&mut content, path)?;
                self.0.write(&content.finish_128().to_le_bytes());
            }
            None => self.text("none"),
        }
        Ok(())
    }
}

/// Location of one cached plan.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    /// The log directory.
    dir: PathBuf,
    key: u128,
}

impl Place {
    /// Returns the place of the plan of `key` beside the compiled form of the log directory `dir`; `None` if nothing can be kept.
    pub fn beside(dir: &Path, key: &Key) -> Option<Self> {
        let key = key.0.finish_128();
        let folder = keep::folder(dir)?;
        Some(Self { path: folder.join(format!("plan-{key:032x}")), dir: dir.to_owned(), key })
    }

    /// Returns the place of the same plan at an earlier stage of planning.
    pub fn stage(&self, stage: &str) -> Self {
        let mut key = XxHash3_128::new();
        key.write(&self.key.to_le_bytes());
        key.write(stage.as_bytes());
        let key = key.finish_128();
        Self { path: self.path.with_file_name(format!("plan-{key:032x}")), dir: self.dir.clone(), key }
    }

    /// Removes the cached plan.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cached plan if it is complete and has this key.
    pub fn read(&self) -> Option<Plan> {
        let bytes = files::read(&self.path, files::MOST).ok()?;
        let plan = self.decode(&bytes).and_then(|json| {
            let plan: Plan = serde_json::from_slice(json).ok()?;
            plan.check().is_ok().then_some(plan)
        });
        if plan.is_none() {
            tracing::warn!("{}: damaged or not a plan of this key; planning again", self.path.display());
        }
        // Marks it as recently used, so that it is removed last. A failure does not matter.
        let file = std::fs::File::open(&self.path);
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        plan
    }

    /// Stores a plan's JSON; a failure is logged at debug level only.
    pub fn write(&self, json: &[u8]) {
        if let Err(e) = keep::replace(&self.path, &self.encode(json), &self.dir) {
            tracing::debug!("the plan cannot be kept in {}: {e}", self.path.display());
        }
        self.prune();
    }

    fn encode(&self, json: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + json.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.extend_from_slice(json);
        let checksum = XxHash3_64::oneshot(&bytes[16..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (header, json) = bytes.split_at_checked(HEADER)?;
        let intact = header[..8] == MAGIC
            && header[8..16] == XxHash3_64::oneshot(&bytes[16..]).to_le_bytes()
            && header[16..] == self.key.to_le_bytes();
        intact.then_some(json)
    }

    /// Removes all but the newest plans of the folder.
    fn prune(&self) {
        let files =
            self.path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let mut plans: Vec<(SystemTime, PathBuf)> = files
            .filter(|file| file.file_name().to_string_lossy().starts_with("plan-"))
            .filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file.path())))
            .collect();
        plans.sort();
        for (_, path) in plans.iter().rev().skip(KEPT) {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path, text: &str) -> Place {
        let mut key = Key::of_this_program().unwrap();
        key.text(text);
        Place::beside(folder, &key).unwrap()
    }

    #[test]
    fn only_the_bytes_that_were_written_are_believed() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path(), "a");
        let json = br#"{"some": "content"}"#.repeat(20);
        let whole = place.encode(&json);
        assert_eq!(place.decode(&whole), Some(&json[..]));
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert_eq!(place.decode(&damaged), None, "byte {at}");
            }
            assert_eq!(place.decode(&whole[..at]), None, "{at} bytes");
        }
        assert_eq!(place.decode(&[&whole[..], b" "].concat()), None);
        assert_eq!(self::place(folder.path(), "b").decode(&whole), None, "another key's");
    }

    #[test]
    fn what_is_added_cannot_be_confused() {
        let hash = |add: &dyn Fn(&mut Key)| {
            let mut key = Key::of_this_program().unwrap();
            add(&mut key);
            key.0.finish_128()
        };
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let keys = [
            hash(&|_| ()),
            hash(&|k| k.text("")),
            hash(&|k| k.text("ab")),
            hash(&|k| ["a", "b"].iter().for_each(|t| k.text(t))),
            hash(&|k| k.file(None).unwrap()),
            hash(&|k| k.file(Some(&empty)).unwrap()),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{i}");
        }
    }

    #[test]
    fn a_folder_keeps_the_plans_that_were_used_last() {
        let folder = tempfile::tempdir().unwrap();
        let places: Vec<Place> = (0..KEPT + 3).map(|i| place(folder.path(), &i.to_string())).collect();
        for (i, place) in places.iter().enumerate() {
            place.write(b"{}");
            // Times a second apart, because file systems may round them.
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + i as u64);
            std::fs::File::open(place.path()).unwrap().set_modified(time).unwrap();
        }
        let kept: Vec<bool> = places.iter().map(|place| place.path().exists()).collect();
        assert_eq!(kept.iter().filter(|k| **k).count(), KEPT);
        assert!(kept[..3].iter().all(|k| !k), "{kept:?}");
    }
}
