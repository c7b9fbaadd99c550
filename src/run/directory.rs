//! The run directory: all files of one run, and the lock that keeps a second run out.
//!
//! A run writes only into its own directory: one that it made, one that was empty, or one that an earlier run left. It follows
//! no links in it. A user who can only read the directory can neither take the lock nor keep a run from starting.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::files;
use crate::shm::lock;

const LOCK: &str = "lock";
/// Content of the lock file, which marks the directory as a run's.
const MARK: &[u8] = b"admix run directory\n";
/// Maximum size of a manifest, bytes.
const MANIFEST_BYTES: u64 = 1 << 24;
const FOLDERS: [&str; 5] = ["plan", "policy", "logs", "checkpoints", "flight"];
/// Name prefix of this program's unfinished files.
const UNFINISHED: &str = ".tmp";

/// A failure to write the results of a run. Other writes that fail on a full disk are repeated later or reported and skipped.
#[derive(Debug, thiserror::Error)]
#[error("the results of the run cannot be written; make room and go on with --resume: {0:#}")]
pub struct CannotSave(pub anyhow::Error);

/// A directory that is not a run directory and must not be written into.
#[derive(Debug, thiserror::Error)]
#[error("{} {why}; name another --run-dir", root.display())]
pub struct NotARunDirectory {
    root: PathBuf,
    why: String,
}

/// A run directory that holds a run, where a new one was to begin.
#[derive(Debug, thiserror::Error)]
#[error("the run directory {} already holds a run; go on with it with --resume, choose another --run-dir or remove it", root.display())]
pub struct Occupied {
    root: PathBuf,
}

/// A directory in which no run can be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as run directory (--run-dir names another one)", root.display())]
pub struct Unusable {
    root: PathBuf,
    #[source]
    cause: std::io::Error,
}

impl Unusable {
    /// Whether another directory has to be named, because this one will be no better later.
    pub fn is_permanent(&self) -> bool {
        use std::io::ErrorKind::{AlreadyExists, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
        matches!(self.cause.kind(), AlreadyExists | NotADirectory | PermissionDenied | ReadOnlyFilesystem)
    }
}

/// A run directory; main's instance holds the lock.
#[derive(Debug)]
pub struct RunDirectory {
    root: PathBuf,
    _lock: Option<File>,
}

impl RunDirectory {
    /// Creates a fresh run directory and locks it.
    ///
    /// # Errors
    /// A directory that another run uses, that holds an earlier run ([`Occupied`]) or other things, or that cannot be written.
    pub fn create(root: &Path) -> anyhow::Result<Self> {
        let directory = Self::lock(root)?;
        if directory.manifest().exists() {
            return Err(Occupied { root: root.to_owned() }.into());
        }
        Ok(directory)
    }

    /// Creates a new run directory called `name`, or `name-2`, `name-3`, .. where that exists.
    ///
    /// # Errors
    /// A directory that cannot be written.
    pub fn create_unique(parent: &Path, name: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(parent).map_err(|cause| Unusable { root: parent.to_owned(), cause })?;
        let names = std::iter::once(name.to_owned()).chain((2..).map(|n| format!("{name}-{n}")));
        for root in names.map(|name| parent.join(name)) {
            match std::fs::create_dir(&root) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(|cause| Unusable { root: root.clone(), cause })?;
                    return Self::create(&root);
                }
            }
        }
        unreachable!("there are more names than directories")
    }

    /// Locks the directory of a run that is resumed; makes missing parts and removes unfinished files of killed writers.
    ///
    /// # Errors
    /// A directory that another run uses, that holds other things than a run ([`NotARunDirectory`]), or that cannot be written
    /// ([`Unusable`]).
    pub fn lock(root: &Path) -> anyhow::Result<Self> {
        let unusable = |cause| Unusable { root: root.to_owned(), cause };
        std::fs::create_dir_all(root).map_err(unusable)?;
        let root = root.canonicalize().map_err(unusable)?;
        let refused = |why: String| NotARunDirectory { root: root.clone(), why };
        let path = root.join(LOCK);
        if !is_a_runs(&root).map_err(unusable)? {
            if !is_empty(&root).map_err(unusable)? {
                return Err(refused("holds other things than a run of admix".into()).into());
            }
            write_mark(&root).map_err(unusable)?;
        }
        let file = lock::open(&path, OpenOptions::new().read(true).write(true)).map_err(unusable)?;
        if !take(&file).with_context(|| format!("cannot lock {}", root.display()))? {
            bail!(
                "the run directory {} is in use by a running admix; wait for it or choose another --run-dir",
                root.display()
            )
        }
        // Any user who can open the file can lock it.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(unusable)?;
        for part in FOLDERS {
            let folder = root.join(part);
            match folder.symlink_metadata() {
                Ok(found) if found.is_dir() => {}
                Ok(_) => {
                    return Err(refused(format!("has something else than a folder in the place of its {part}/")).into());
                }
                Err(_) => std::fs::create_dir(&folder).map_err(unusable)?,
            }
        }
        for folder in [&root, &root.join("plan"), &root.join("policy")] {
            remove_unfinished(folder);
        }
        Ok(Self { root, _lock: Some(file) })
    }

    /// Checks that snapshots here are of a run that says what it is. Without its manifest, a run with another configuration would go on from them.
    ///
    /// # Errors
    /// Snapshots and no manifest.
    pub fn check_manifest(&self) -> anyhow::Result<()> {
        let has_some = std::fs::read_dir(self.checkpoints()).is_ok_and(|mut entries| entries.next().is_some());
        if has_some && !self.manifest().exists() {
            bail!(
                "the run directory {} holds snapshots of a run, and its manifest.json is missing: put that back to go on, or choose another --run-dir",
                self.root.display()
            );
        }
        Ok(())
    }

    /// Opens a run directory that main made.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        if !root.join("config.toml").is_file() {
            bail!("{} is not a run directory: it has no config.toml", root.display());
        }
        Ok(Self { root: root.to_owned(), _lock: None })
    }

    /// Replaces a file by rename, so that a run killed at this point can still be resumed.
    pub fn replace(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        files::put(path, content).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Opens the directory of a run that may be alive, dead, or dead before it wrote its configuration.
    ///
    /// # Errors
    /// A missing directory, or one that no run has made.
    pub fn inspect(root: &Path) -> anyhow::Result<Self> {
        let root = root.canonicalize().with_context(|| format!("cannot look into {}", root.display()))?;
        let made = root.join(LOCK).is_file();
        if !made || !["config.toml", "manifest.json", "flight"].iter().any(|part| root.join(part).exists()) {
            bail!("{} is not a run directory: no `admix train` has used it", root.display());
        }
        Ok(Self { root, _lock: None })
    }

    /// Returns whether a main process is using this directory.
    ///
    /// # Errors
    /// A lock that cannot be examined.
    pub fn is_in_use(&self) -> std::io::Result<bool> {
        lock::is_held(&lock::open(&self.root.join(LOCK), OpenOptions::new().read(true))?)
    }

    /// Returns the id of the user who owns the run.
    ///
    /// # Errors
    /// A lock file that cannot be examined.
    pub fn owner(&self) -> std::io::Result<u32> {
        Ok(self.root.join(LOCK).symlink_metadata()?.uid())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.json")
    }

    /// Returns the path of the name that the nodes of a job gave their run.
    pub fn job(&self) -> PathBuf {
        self.root.join("job")
    }

    /// Returns the folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    pub fn plan(&self) -> PathBuf {
        self.root.join("plan").join("plan.json")
    }

    pub fn spec(&self) -> PathBuf {
        self.root.join("plan").join("policy-spec.json")
    }

    /// Returns the path of the hashes of the logs' inputs.
    pub fn inputs(&self) -> PathBuf {
        self.root.join("plan").join("inputs.json")
    }

    pub fn best(&self) -> PathBuf {
        self.root.join("policy").join("best.safetensors")
    }

    /// Says where the best policy so far is.
    pub fn best_so_far(&self) -> String {
        let best = self.best();
        if best.is_file() {
            format!("the best policy so far is {}", best.display())
        } else {
            "no policy was saved yet".to_owned()
        }
    }

    /// Returns the path of this node's number among those of its job.
    pub fn node(&self) -> PathBuf {
        self.root.join("plan").join("node.json")
    }

    /// Returns the path of the policy before the first update.
    pub fn start(&self) -> PathBuf {
        self.root.join("policy").join("start.safetensors")
    }

    /// Returns the path of the results: the test table and the verdict.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.json")
    }

    pub fn last(&self) -> PathBuf {
        self.root.join("policy").join("last.safetensors")
    }

    /// Returns the folder of batches that led to a non-finite loss.
    pub fn incidents(&self) -> PathBuf {
        self.root.join("incidents")
    }

    /// Returns the folder of the logs of child processes.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Returns the folder of the flight recordings of all processes.
    pub fn flight(&self) -> PathBuf {
        self.root.join("flight")
    }

    /// Returns the id for the names of this run's shared memory: the same for the same path.
    pub fn run_id(&self) -> String {
        format!("{:08x}", twox_hash::XxHash3_64::oneshot(self.root.as_os_str().as_encoded_bytes()) as u32)
    }

    /// Returns the log file of a child process.
    pub fn log(&self, child: &str) -> PathBuf {
        self.logs().join(format!("{child}.log"))
    }
}

/// Takes the lock of a run directory. A process that a killed run was about to start still has the lock until its program begins, so
/// that a restart at once waits for up to a second.
fn take(file: &File) -> std::io::Result<bool> {
    for _ in 0..50 {
        if lock::try_take(file)? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    lock::try_take(file)
}

/// Returns whether a run made this directory, by the mark in its lock file or, for earlier versions, by its manifest.
fn is_a_runs(root: &Path) -> std::io::Result<bool> {
    let mut mark = Vec::new();
    match lock::open(&root.join(LOCK), OpenOptions::new().read(true)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        file => file?.take(MARK.len() as u64 + 1).read_to_end(&mut mark)?,
    };
    if mark == MARK {
        return Ok(true);
    }
    let manifest = files::read(&root.join("manifest.json"), MANIFEST_BYTES).ok();
    let manifest = manifest.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    Ok(manifest.is_some_and(|manifest| manifest["admix"].is_string()))
}

/// Returns whether a folder holds nothing but files that another start may be writing.
fn is_empty(root: &Path) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        // Another process may just have marked it as a run's.
        if !name.to_string_lossy().starts_with(UNFINISHED) && !is_a_runs(root)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Marks an empty directory as a run's.
fn write_mark(root: &Path) -> std::io::Result<()> {
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(root)?;
    file.write_all(MARK)?;
    match file.persist_noclobber(root.join(LOCK)) {
        Err(e) if e.error.kind() != std::io::ErrorKind::AlreadyExists => Err(e.error),
        _ => Ok(()),
    }
}

/// Removes files of killed writers. No writer is alive because the directory is locked.
fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// `config.toml` and `policy/` of another program were overwritten, `checkpoints/` was deleted.
    #[test]
    fn a_folder_that_holds_other_things_is_refused_and_left_as_it_is() {
        for foreign in ["config.toml", "lock", "policy/weights", "checkpoints/00000001/model"] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(foreign);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "precious").unwrap();
            let before = names(folder.path());
            for error in
                [RunDirectory::create(folder.path()), RunDirectory::lock(folder.path())].map(Result::unwrap_err)
            {
                assert!(error.chain().any(|e| e.is::<NotARunDirectory>()), "{foreign}: {error:#}");
            }
            assert_eq!(names(folder.path()), before, "{foreign}");
            assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        }
    }

    #[test]
    fn links_in_a_run_directory_are_not_followed() {
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join(LOCK)).unwrap();
        assert!(RunDirectory::lock(folder.path()).is_err());
        std::fs::remove_file(folder.path().join(LOCK)).unwrap();
        drop(RunDirectory::lock(folder.path()).unwrap());
        std::fs::remove_dir(folder.path().join("checkpoints")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("checkpoints")).unwrap();
        assert!(RunDirectory::lock(folder.path()).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        assert_eq!(names(elsewhere.path()), ["target"]);
    }

    #[test]
    fn an_empty_folder_and_what_a_run_left_unfinished_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let first = RunDirectory::lock(folder.path()).unwrap();
        assert!(first.is_in_use().unwrap());
        assert!(RunDirectory::lock(folder.path()).unwrap_err().to_string().contains("in use"));
        drop(first);
        for name in [".tmpABC", "policy/.tmpDEF", "plan/.tmpGHI"] {
            std::fs::write(folder.path().join(name), "half").unwrap();
        }
        let second = RunDirectory::create(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["checkpoints", "flight", "lock", "logs", "plan", "policy"]);
        assert!(names(&folder.path().join("policy")).is_empty() && names(&folder.path().join("plan")).is_empty());
        let mode = folder.path().join(LOCK).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "whoever can open it can lock it");
        drop(second);
    }

    /// A run that was interrupted before its first evaluation named a best policy that did not exist.
    #[test]
    fn a_best_policy_is_named_only_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::lock(folder.path()).unwrap();
        assert_eq!(run.best_so_far(), "no policy was saved yet");
        std::fs::write(run.best(), "").unwrap();
        assert!(run.best_so_far().ends_with("policy/best.safetensors"));
    }

    #[test]
    fn two_runs_of_one_second_have_two_directories() {
        let parent = tempfile::tempdir().unwrap();
        let runs: Vec<_> = (0..3).map(|_| RunDirectory::create_unique(parent.path(), "a").unwrap()).collect();
        assert_eq!(names(parent.path()), ["a", "a-2", "a-3"]);
        drop(runs);
    }
}
