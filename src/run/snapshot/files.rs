//! The file operations of a commit.
//!
//! Power may fail between any two of them, and any combination of unsynced changes may be lost. Tests replace [`Files`], stop
//! after every operation and replay every possible loss.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// File operations. Each either happens or fails; contents are durable after `sync_file`, names after `sync_folder`.
pub trait Files {
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    /// Creates or truncates a file and writes all of `pieces`.
    fn write(&self, path: &Path, pieces: &[&[u8]]) -> io::Result<()>;
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
}

/// Operations of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Files for Disk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn write(&self, path: &Path, pieces: &[&[u8]]) -> io::Result<()> {
        let mut file = File::create(path)?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}
