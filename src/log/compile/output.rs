//! Destinations of a compiled log: a file, or memory if the file cannot be written.

use std::io::{Cursor, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::log::compiled::CompiledLog;
use crate::log::error::{LogError, Result};
use crate::log::keep;

/// Destination of a compiled log.
pub trait Output: Write + Seek {
    /// Discards everything that was written.
    fn restart(&mut self) -> std::io::Result<()>;

    /// Discards what is beyond the first `at` bytes, and goes on after them.
    fn resume(&mut self, at: u64) -> std::io::Result<()>;
}

impl Output for std::fs::File {
    fn restart(&mut self) -> std::io::Result<()> {
        self.resume(0)
    }

    fn resume(&mut self, at: u64) -> std::io::Result<()> {
        self.set_len(at)?;
        self.seek(SeekFrom::Start(at)).map(drop)
    }
}

/// Writes a compiled log to `path` and opens it. Where it cannot be written, it is made in memory if it fits in `memory` bytes;
/// `write` may therefore be called twice.
pub fn write_or_hold(
    path: Option<PathBuf>,
    dir: &Path,
    memory: usize,
    write: &mut dyn FnMut(&mut dyn Output) -> Result<()>,
) -> Result<CompiledLog> {
    let failed = |cause| LogError::NotKept { dir: dir.to_owned(), cause };
    let Some(path) = path else { return hold(dir, memory, write) };
    let mut kept = || {
        let mut file = keep::Unfinished::begin(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        write(file.file())?;
        file.finish(&path, dir).map_err(failed)
    };
    let kept = kept();
    keep_or_hold(&path, dir, memory, kept, write)
}

/// Opens the compiled log that was written to `path`. If there was no room for it, makes it in memory.
pub fn keep_or_hold(
    path: &Path,
    dir: &Path,
    memory: usize,
    kept: Result<()>,
    write: &mut dyn FnMut(&mut dyn Output) -> Result<()>,
) -> Result<CompiledLog> {
    match kept {
        Ok(()) => CompiledLog::open(path),
        // The disk is full: the log is made again at each run.
        Err(LogError::NotKept { cause, .. }) => {
            tracing::warn!("{}: what is compiled cannot be kept: {cause}", dir.display());
            hold(dir, memory, write)
        }
        Err(e) => Err(e),
    }
}

fn hold(dir: &Path, memory: usize, write: &mut dyn FnMut(&mut dyn Output) -> Result<()>) -> Result<CompiledLog> {
    let mut held = Held { bytes: Cursor::new(Vec::new()), most: memory as u64 };
    write(&mut held)?;
    CompiledLog::of_bytes(dir, held.bytes.get_ref())
}

/// A compiled log in memory, up to a size limit.
struct Held {
    bytes: Cursor<Vec<u8>>,
    most: u64,
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.position() + bytes.len() as u64 > self.most {
            let what = format!("it takes more than the {} MB of memory that it may", self.most >> 20);
            return Err(std::io::Error::new(std::io::ErrorKind::OutOfMemory, what));
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Held {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.bytes.seek(to)
    }
}

impl Output for Held {
    fn restart(&mut self) -> std::io::Result<()> {
        self.bytes = Cursor::new(Vec::new());
        Ok(())
    }

    fn resume(&mut self, at: u64) -> std::io::Result<()> {
        self.bytes.get_mut().truncate(at as usize);
        self.bytes.set_position(at);
        Ok(())
    }
}
