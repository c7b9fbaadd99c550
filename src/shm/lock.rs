//! Locks that show whether a process is alive.
//!
//! A main process holds a lock on a file of its run while it lives; the kernel releases the lock when the process ends, however
//! it ends. Unlike a process id, a lock means the same in every pid namespace and gives no wrong answer where `/proc` is
//! hidden. These are open-file-description locks: asking whether one is held does not take it, even for an instant, so
//! observers disturb nobody.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::files;

/// Opens a file to take or query its lock; links are not followed.
///
/// # Errors
/// Any error of the system; `InvalidInput` where it is not a regular file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    files::open_no_follow(path, options)
}

/// Takes the lock of a file that is open for writing, until the file is closed; returns `false` if another process has it.
///
/// # Errors
/// A file system without locks.
pub fn try_take(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file())) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns whether any process has the lock of a file.
///
/// # Errors
/// A file system without locks.
pub fn is_held(file: &File) -> io::Result<bool> {
    let mut lock = whole_file();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn whole_file() -> libc::flock {
    libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(path: &Path) -> File {
        open(path, OpenOptions::new().read(true).write(true)).unwrap()
    }

    #[test]
    fn one_has_it_and_asking_does_not_take_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        std::fs::write(&path, "kept").unwrap();
        let (first, second) = (opened(&path), opened(&path));
        assert!(!is_held(&second).unwrap());
        assert!(try_take(&first).unwrap());
        assert!(is_held(&second).unwrap() && !try_take(&second).unwrap());
        drop(first);
        assert!(!is_held(&second).unwrap());
        assert!(try_take(&second).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    }
}
