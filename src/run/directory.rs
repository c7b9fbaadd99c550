//! The run directory: where everything of one run lies, and the lock that keeps a second run out.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

const LOCK: &str = "lock";

/// What a run has come to and cannot write. Other writes that a full disk refuses are made up for later, or told and left.
#[derive(Debug, thiserror::Error)]
#[error("the results of the run cannot be written; make room and go on with --resume: {0:#}")]
pub struct CannotSave(pub anyhow::Error);

/// A run directory; holds its lock while main has it.
#[derive(Debug)]
pub struct RunDirectory {
    root: PathBuf,
    _lock: Option<Flock<File>>,
}

impl RunDirectory {
    /// Creates a fresh run directory and locks it.
    ///
    /// # Errors
    /// A directory that another run uses, that holds an earlier run, or that cannot be written.
    pub fn create(root: &Path) -> anyhow::Result<Self> {
        let directory = Self::lock(root)?;
        if directory.manifest().exists() {
            bail!(
                "the run directory {} already holds a run; go on with it with --resume, choose another --run-dir or remove it",
                root.display()
            );
        }
        Ok(directory)
    }

    /// Locks a run directory for a run that goes on; makes what is missing.
    ///
    /// # Errors
    /// A directory that another run uses, or that cannot be written.
    pub fn lock(root: &Path) -> anyhow::Result<Self> {
        let made = || -> std::io::Result<File> {
            for part in ["plan", "policy", "logs", "checkpoints"] {
                std::fs::create_dir_all(root.join(part))?;
            }
            File::create(root.join(LOCK))
        };
        let file = made()
            .with_context(|| format!("cannot use {} as run directory (--run-dir names another one)", root.display()))?;
        let Some(lock) = lock(file).with_context(|| format!("cannot lock {}", root.display()))? else {
            bail!(
                "the run directory {} is in use by a running `admix train`; wait for it or choose another --run-dir",
                root.display()
            )
        };
        let root = root.canonicalize().with_context(|| format!("cannot use {}", root.display()))?;
        Ok(Self { root, _lock: Some(lock) })
    }

    /// Opens a run directory that main made.
    pub fn open(root: &Path) -> anyhow::Result<Self> {
        if !root.join("config.toml").is_file() {
            bail!("{} is not a run directory: it has no config.toml", root.display());
        }
        Ok(Self { root: root.to_owned(), _lock: None })
    }

    /// Replaces a file by rename: a run that is killed here is still one that can be gone on with.
    pub fn replace(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        let replace = || -> anyhow::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
            file.write_all(content)?;
            // Temporary files are the owner's alone.
            file.as_file().set_permissions(Permissions::from_mode(0o644))?;
            file.persist(path)?;
            Ok(())
        };
        replace().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Opens the directory of a run that may be alive, dead, or dead before it had written its configuration.
    ///
    /// # Errors
    /// A directory that is none, or that no run has made.
    pub fn inspect(root: &Path) -> anyhow::Result<Self> {
        let root = root.canonicalize().with_context(|| format!("cannot look into {}", root.display()))?;
        let made = root.join(LOCK).is_file();
        if !made || !["config.toml", "manifest.json", "flight"].iter().any(|part| root.join(part).exists()) {
            bail!("{} is not a run directory: no `admix train` has used it", root.display());
        }
        Ok(Self { root, _lock: None })
    }

    /// Whether a main process has this directory now.
    ///
    /// # Errors
    /// A lock that cannot be looked at.
    pub fn is_in_use(&self) -> std::io::Result<bool> {
        // Shared, for an instant, and not waited for: main, which has it exclusively, does not notice, and a main that
        // starts just now tries again.
        match Flock::lock(File::open(self.root.join(LOCK))?, FlockArg::LockSharedNonblock) {
            Ok(_) => Ok(false),
            Err((_, Errno::EWOULDBLOCK)) => Ok(true),
            Err((_, e)) => Err(e.into()),
        }
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

    /// Where checkpoints lie.
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

    /// Hashes of the logs' inputs.
    pub fn inputs(&self) -> PathBuf {
        self.root.join("plan").join("inputs.json")
    }

    pub fn best(&self) -> PathBuf {
        self.root.join("policy").join("best.safetensors")
    }

    /// The parameters before the first update.
    pub fn start(&self) -> PathBuf {
        self.root.join("policy").join("start.safetensors")
    }

    /// What the run came to: the test table and the verdict.
    pub fn report(&self) -> PathBuf {
        self.root.join("report.json")
    }

    pub fn last(&self) -> PathBuf {
        self.root.join("policy").join("last.safetensors")
    }

    /// Where batches lie that led to a loss that is not finite.
    pub fn incidents(&self) -> PathBuf {
        self.root.join("incidents")
    }

    /// Where child processes log to.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Where every process has its flight recording.
    pub fn flight(&self) -> PathBuf {
        self.root.join("flight")
    }

    /// What the names of this run's shared memory are made from: the same for the same path.
    pub fn run_id(&self) -> String {
        format!("{:08x}", twox_hash::XxHash3_64::oneshot(self.root.as_os_str().as_encoded_bytes()) as u32)
    }

    /// Where a child process logs to.
    pub fn log(&self, child: &str) -> PathBuf {
        self.logs().join(format!("{child}.log"))
    }
}

/// The lock, or `None` when somebody has it and keeps it.
fn lock(mut file: File) -> Result<Option<Flock<File>>, Errno> {
    // Who merely looks whether the run is alive has it for an instant.
    for _ in 0..20 {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((file, Errno::EWOULDBLOCK)) => file,
            Err((_, e)) => return Err(e),
        };
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}
