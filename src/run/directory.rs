//! The run directory: where everything of one run lies, and the lock that keeps a second run out.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::fcntl::{Flock, FlockArg};

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
        let made = || -> std::io::Result<File> {
            for part in ["plan", "policy", "logs"] {
                std::fs::create_dir_all(root.join(part))?;
            }
            File::create(root.join("lock"))
        };
        let file = made().with_context(|| format!("cannot make the run directory {}", root.display()))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                bail!(
                    "the run directory {} is in use by a running `admix train`; wait for it or choose another --run-dir",
                    root.display()
                )
            }
            Err((_, e)) => return Err(e).with_context(|| format!("cannot lock {}", root.display())),
        };
        if root.join("manifest.json").exists() {
            bail!("the run directory {} already holds a run; choose another --run-dir or remove it", root.display());
        }
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

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.json")
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

    pub fn best(&self) -> PathBuf {
        self.root.join("policy").join("best.safetensors")
    }

    pub fn last(&self) -> PathBuf {
        self.root.join("policy").join("last.safetensors")
    }

    /// Where a child process logs to.
    pub fn log(&self, child: &str) -> PathBuf {
        self.root.join("logs").join(format!("{child}.log"))
    }
}
