//! Opens and reads files that others may have put there.
//!
//! A run directory, a cache or `/dev/shm` can have a FIFO where a file is expected, a symbolic link that leads elsewhere, or a
//! file of a terabyte. The functions here never block on opening, and reading stops at a limit.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Writes a file under a temporary name in its folder and renames it into place. The umask determines who may read it. What a symbolic link leads
/// to is replaced, not the link; a pipe or a device is written to.
///
/// # Errors
/// Any error of the file system.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(path) = regular(path)? else {
        return OpenOptions::new().write(true).open(path).and_then(|mut file| io::Write::write_all(&mut file, bytes));
    };
    put(&path, bytes)
}

/// Writes a file under a temporary name in its folder and renames it into place, whatever was there: a file of ours, or what somebody has put in
/// its place. The umask determines who may read it.
///
/// # Errors
/// Any error of the file system.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = beside(path)?;
    io::Write::write_all(&mut file, bytes)?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Returns the regular file that `path` names or can name, without symbolic links; `None` where it is a pipe or a device.
fn regular(path: &Path) -> io::Result<Option<PathBuf>> {
    match path.metadata() {
        Ok(found) if found.is_file() => path.canonicalize().map(Some),
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Ok(None),
        // A link that leads nowhere is replaced itself.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Some(path.to_owned())),
        Err(e) => Err(e),
    }
}

/// As [`replace`]; the content and the name are on disk when it returns.
///
/// # Errors
/// Any error of the file system; a pipe or a device.
pub fn replace_synced(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    replace_synced_with(path, |to| Ok(std::fs::write(to, bytes)?))
}

/// Lets `write` write a file under a temporary name in the folder of `path`, syncs it and renames it into place: `path` holds what
/// it held before or the whole file, and whoever has the old one open keeps it.
///
/// # Errors
/// Any error of the file system, and those of `write`; a pipe or a device.
pub fn replace_synced_with<T>(path: &Path, write: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let Some(path) = regular(path)? else { anyhow::bail!("it is a pipe or a device; name a file") };
    let file = beside(&path)?;
    let written = write(file.path())?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    File::open(folder_of(&path))?.sync_all()?;
    Ok(written)
}

/// Locks a file for this process; false where another one has it. Some network file systems know no locks: then nobody is kept out, and a
/// warning says so.
pub fn lock(file: &File, path: &Path) -> bool {
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(e)) => {
            tracing::warn!("{} cannot be locked ({e}): see to it that nobody else writes it", path.display());
            true
        }
    }
}

/// Checks before long work that a file can be written at `path`.
///
/// # Errors
/// Any error of the file system.
pub fn check_place(path: &Path) -> io::Result<()> {
    match regular(path)? {
        Some(path) => beside(&path).map(drop),
        None => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a temporary file in the folder of `path`.
fn beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    tempfile::Builder::new().permissions(mode).tempfile_in(folder_of(path))
}

/// Read limit in bytes for files without a limit of their own.
pub const MOST: u64 = 1 << 31;

/// Opens a regular file. Follows no symbolic link in the last component, does not block at a FIFO, truncates nothing.
///
/// # Errors
/// Any error of the system; `InvalidInput` where it is not a regular file.
pub fn open_no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, libc::O_NOFOLLOW)
}

/// Opens a regular file for reading; links are followed, a FIFO or a device is refused at once.
///
/// # Errors
/// Any error of the system; `InvalidInput` where it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), 0)
}

fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let file = options.custom_flags(flags | libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Reads a whole regular file of at most `most` bytes.
///
/// # Errors
/// Any error of the system; `InvalidInput` where it is not a regular file, `FileTooLarge` where it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    // Also works for a file whose length the file system does not know, or that grows.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("more than {most} bytes, which is more than such a file can have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// Makes or finds the folder `name` in the folder `parent`; both must be writable only by this user.
///
/// # Errors
/// Any error of the system; `PermissionDenied` where one of them belongs to another user, is a link, or is writable by others.
pub fn private_folder(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let folder = parent.join(name);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    for path in [parent, &folder] {
        let found = path.symlink_metadata()?;
        let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
        if !ours {
            let why = format!("{} is another user's, a link, or open to others", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_folders_are_refused_without_waiting_and_links_where_they_are_not_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let [link, pipe, file] = ["link", "pipe", "file"].map(|name| folder.path().join(name));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [&pipe, folder.path(), Path::new("/dev/null")] {
            assert!(open(path).is_err(), "{}", path.display());
        }
        assert_eq!(read(&link, 4).unwrap(), b"text");
        assert!(open_no_follow(&link, OpenOptions::new().read(true)).is_err());
        open_no_follow(&file, OpenOptions::new().read(true)).unwrap();
    }

    /// A pipe, a device or a link was replaced by a file.
    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [link, pipe, file, new] = ["link", "pipe", "file", "new"].map(|name| folder.path().join(name));
        std::fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        replace(&link, b"after").unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"after");
        replace_synced(&link, b"synced").unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"synced");
        replace(&new, b"new").unwrap();
        assert_eq!(std::fs::read(&new).unwrap(), b"new");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        replace(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        let error = replace_synced(&pipe, b"").unwrap_err();
        assert!(error.to_string().contains("name a file"), "{error}");
        assert!(replace(Path::new("/dev/full"), b"x").is_err() && !Path::new("/dev/full").is_file());
        put(&pipe, b"in its place").unwrap();
        assert_eq!(std::fs::read(&pipe).unwrap(), b"in its place");
    }

    #[test]
    fn no_more_is_read_than_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let sparse = folder.path().join("sparse");
        File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read(&sparse, 1000).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(&sparse, [7; 1000]).unwrap();
        assert_eq!(read(&sparse, 1000).unwrap(), [7; 1000]);
    }

    #[test]
    fn a_folder_is_private_or_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let top = tempfile::tempdir().unwrap();
        let parent = top.path().join("admix");
        let folder = private_folder(&parent, "a").unwrap();
        assert_eq!(private_folder(&parent, "a").unwrap(), folder);
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        std::os::unix::fs::symlink(&folder, parent.join("b")).unwrap();
        assert!(private_folder(&parent, "b").is_err());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(private_folder(&parent, "a").is_err());
    }
}
