//! The file operations of a commit.
//!
//! Power may fail between any two of them, and any combination of unsynced changes may be lost. Tests replace [`Files`], stop
//! after every operation and replay every possible loss.
//!
//! Large files go to disk past the kernel's page cache, where the file system allows it: nobody reads them soon, and copying them into fresh
//! pages took more time than everything else that a checkpointer does (`BENCHMARKS.md`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Bytes of a file from which on it goes past the page cache, and those that are written at a time.
const DIRECT_FROM: usize = 4 << 20;
const CHUNK: usize = 1 << 20;
/// What addresses, offsets and lengths are multiples of then; disks ask for this much or less.
const ALIGNED: usize = 4096;

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
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if len >= DIRECT_FROM
            && let Ok(direct) = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)
        {
            match write_direct(direct, pieces, len as u64) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => file.set_len(0)?,
                written => return written,
            }
        }
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

/// Writes `len` bytes to an empty file that was opened with `O_DIRECT`.
fn write_direct(mut file: File, pieces: &[&[u8]], len: u64) -> io::Result<()> {
    let mut memory = vec![0; CHUNK + ALIGNED];
    let begin = memory.as_ptr().align_offset(ALIGNED);
    let chunk = &mut memory[begin..begin + CHUNK];
    let mut filled = 0;
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(CHUNK - filled));
            chunk[filled..filled + now.len()].copy_from_slice(now);
            filled += now.len();
            rest = later;
            if filled == CHUNK {
                file.write_all(chunk)?;
                filled = 0;
            }
        }
    }
    let end = filled.next_multiple_of(ALIGNED);
    chunk[filled..end].fill(0);
    file.write_all(&chunk[..end])?;
    file.set_len(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_any_length_are_written_whole() {
        // In the build folder: a disk, where a temporary folder may be memory.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        for len in
            [0, 5, DIRECT_FROM - 1, DIRECT_FROM, DIRECT_FROM + 1, DIRECT_FROM + ALIGNED, DIRECT_FROM + CHUNK + 77]
        {
            let bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let (first, rest) = bytes.split_at(len / 3);
            Disk.write(&path, &[first, &[], rest]).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{len} bytes");
        }
    }
}
