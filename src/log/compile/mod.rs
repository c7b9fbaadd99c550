//! Compiles a log directory, or finds the compiled log that already exists; compiles an altered [`RawDay`].
//!
//! A compiled log carries a hash of the content of its inputs and of its options; it is rebuilt when they change. [`super::keep`]
//! says where it is stored. Compiling reads the tables once and stays within the given memory, whatever the size of the day.
//!
//! [`compiler`] collects the rows, [`sorter`] sorts them, [`writer`] writes blocks, and [`output`] is the file or the memory that they go to.

mod compiler;
pub(super) mod output;
mod sorter;
pub(super) mod writer;

use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compiled::CompiledLog;
use super::digest::Stat;
use super::error::{LogError, Result};
use super::inputs::{hash_inputs, name_of, stats};
use super::keep;
use super::options::CompileOptions;
use super::parts::Parts;
use super::quarantine::check_share;
use super::raw::RawDay;
use compiler::{compile, compile_rows};
use output::{Output, keep_or_hold, write_or_hold};

/// Opens the compiled log of `dir`; compiles it first where there is none or its inputs changed.
///
/// # Errors
/// Any [`LogError`] of the inputs.
pub fn open(dir: &Path, options: CompileOptions) -> Result<CompiledLog> {
    if !dir.is_dir() {
        return Err(LogError::Format {
            path: dir.to_owned(),
            reason: "is not a directory; name a log directory".into(),
        });
    }
    let name = if options.complete_queues { "completed.log" } else { "compiled.log" };
    let path = keep::folder(dir).map(|folder| folder.join(name));
    if let Some(found) = reuse(dir, path.as_deref(), options, false)? {
        return Ok(found);
    }
    // One process compiles; others that need the same day wait for it.
    let lock = path.as_ref().and_then(|path| keep::lock(path));
    path.as_deref().and_then(Path::parent).inspect(|folder| keep::remove_unfinished(folder));
    if let Some(found) = reuse(dir, path.as_deref(), options, true)? {
        return Ok(found);
    }
    let before = stats(dir)?;
    let mut write = |to: &mut dyn Output| {
        compile(dir, options, to, None)?;
        check_unchanged(dir, &before)
    };
    match path.as_ref().zip(lock.as_ref()) {
        None => write_or_hold(path, dir, options.memory, &mut write),
        Some((path, _)) => {
            keep_or_hold(path, dir, options.memory, write_in_parts(path, dir, options, &before), &mut write)
        }
    }
}

/// Checks that the inputs are as they were before they were read. Called before a compiled log comes into place: it may hold an earlier table
/// under the hash of a later one.
fn check_unchanged(dir: &Path, before: &[(PathBuf, Stat)]) -> Result<()> {
    if stats(dir)? == before {
        return Ok(());
    }
    let reason = "a table changed while it was read; run again once its writer has finished".into();
    Err(LogError::Format { path: dir.to_owned(), reason })
}

/// Returns the compiled log at `path` if it was made from these inputs. `locked` says that the caller holds the folder's lock, so that
/// no other process is making one; an unusable file is then removed.
fn reuse(dir: &Path, path: Option<&Path>, options: CompileOptions, locked: bool) -> Result<Option<CompiledLog>> {
    let Some(path) = path.filter(|path| path.is_file()) else { return Ok(None) };
    let opened =
        CompiledLog::open(path).and_then(|log| if options.verify { log.verify().map(|()| log) } else { Ok(log) });
    match opened {
        Ok(log) if log.inputs() == hash_inputs(dir, options)? => {
            check_share(log.counts(), options, dir)?;
            return Ok(Some(log));
        }
        Ok(_) if locked => tracing::info!("{}: inputs changed, compiling again", dir.display()),
        Err(e) if locked => tracing::warn!("{e}; compiling again"),
        Ok(_) | Err(_) => return Ok(None),
    }
    // Other processes need not find out again.
    let _ = std::fs::remove_file(path);
    Ok(None)
}

/// Writes a compiled log to `path`, in parts that outlive a kill. The caller holds the folder's lock.
fn write_in_parts(path: &Path, dir: &Path, options: CompileOptions, before: &[(PathBuf, Stat)]) -> Result<()> {
    let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
    let below = |path: &PathBuf| path.strip_prefix(dir).map_or_else(|_| path.clone(), Path::to_owned);
    let stats: Vec<(PathBuf, Stat)> = before.iter().map(|(path, stat)| (below(path), *stat)).collect();
    let mut parts = Parts::of(path, (&name_of(dir), options.complete_queues), options.memory, &stats);
    if options.verify {
        parts.discard();
    }
    let mut file = parts.open().map_err(failed)?;
    compile(dir, options, &mut file, Some(&mut parts))?;
    check_unchanged(dir, before)?;
    parts.finish(&file, path, dir).map_err(failed)
}

impl RawDay {
    /// Compiles an altered day in memory; no file is written that could be mistaken for the original. `alteration` describes
    /// the change and enters the input hash, which distinguishes the result from the directory's own compiled log.
    ///
    /// # Errors
    /// A day without requests, or no memory to map.
    pub fn compile_altered(&self, options: CompileOptions, alteration: &str) -> Result<CompiledLog> {
        if self.rows.is_empty() {
            return Err(LogError::Format {
                path: self.dir.clone(),
                reason: format!("no request is left under `{alteration}`"),
            });
        }
        let mut hasher = XxHash3_128::new();
        hasher.write(&self.inputs.to_le_bytes());
        hasher.write(alteration.as_bytes());
        let inputs = hasher.finish_128();
        write_or_hold(None, &self.dir, usize::MAX, &mut |to| compile_rows(self, options, inputs, to))
    }
}
