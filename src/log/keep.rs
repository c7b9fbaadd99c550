//! Storage of files derived from a log directory: compiled logs, bad rows, plans.
//!
//! They are stored beside the log in `.admix/`, or in the user's cache where the directory cannot be written; where neither is
//! possible, nothing is stored and everything is made each time. Files that are found are trusted, so they are looked for only
//! where none but the user, the owner of the log and root can write. Nobody can read a derived file who may not read the log
//! itself.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::table;
use crate::files;

/// Returns the folder for files derived from the log directory `dir`; `None` where there is none that can be used.
pub fn folder(dir: &Path) -> Option<PathBuf> {
    beside(dir).or_else(|| in_the_users_cache(dir))
}

fn beside(dir: &Path) -> Option<PathBuf> {
    let folder = dir.join(".admix");
    // Not writable by everybody, whatever the user's umask is.
    DirBuilder::new().recursive(true).mode(0o775).create(&folder).ok()?;
    let (found, log) = (folder.symlink_metadata().ok()?, dir.metadata().ok()?);
    // The owner of the log controls its content anyway.
    let trusted = [rustix::process::geteuid().as_raw(), log.uid(), 0].contains(&found.uid());
    if !found.is_dir() || !trusted || found.mode() & 0o002 != 0 {
        tracing::warn!("{} is another user's or open to everybody; nothing there is believed", folder.display());
        return None;
    }
    is_writable(&folder).then_some(folder)
}

fn in_the_users_cache(dir: &Path) -> Option<PathBuf> {
    let root = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))?;
    let absolute = dir.canonicalize().ok()?;
    let key = XxHash3_128::oneshot(absolute.as_os_str().as_encoded_bytes());
    let folder = files::private_folder(&root.join("admix"), &format!("{key:032x}"))
        .inspect_err(|e| tracing::debug!("nothing can be kept in {}: {e}", root.display()))
        .ok()?;
    is_writable(&folder).then_some(folder)
}

/// Returns the folder for temporary files made from the log directory `dir`.
pub(super) fn scratch(dir: &Path) -> PathBuf {
    folder(dir).unwrap_or_else(std::env::temp_dir)
}

/// Waits until no other process makes files in the folder of `path`, and excludes others until the lock is dropped. `None` where the
/// file system has no locks: two processes may then do the same work, and the file of the last one stays.
pub(super) fn lock(path: &Path) -> Option<std::fs::File> {
    let folder = std::fs::File::open(path.parent()?).ok()?;
    loop {
        match folder.try_lock() {
            Ok(()) => return Some(folder),
            Err(std::fs::TryLockError::WouldBlock) => {
                crate::cancel::point();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(std::fs::TryLockError::Error(_)) => return None,
        }
    }
}

fn is_writable(folder: &Path) -> bool {
    tempfile::tempfile_in(folder).is_ok()
}

/// A file derived from a log directory, while it is written under a temporary name in its folder.
pub struct Unfinished {
    file: tempfile::NamedTempFile,
}

impl Unfinished {
    /// Begins a file in `folder`. It is locked while it is written, which distinguishes it from files left by killed writers.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn begin(folder: &Path) -> std::io::Result<Self> {
        remove_unfinished(folder);
        let file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
        // Where the file system has no locks, nothing is removed: `remove_unfinished` cannot lock either.
        let _ = file.as_file().lock();
        Ok(Self { file })
    }

    pub fn file(&mut self) -> &mut std::fs::File {
        self.file.as_file_mut()
    }

    /// Renames the file into place, readable by those who may read the log directory `dir`.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn finish(self, path: &Path, dir: &Path) -> std::io::Result<()> {
        as_private_as(self.file.as_file(), dir)?;
        self.file.persist(path).map_err(|e| e.error)?;
        Ok(())
    }
}

/// Renames an open file from `from` to `to`, readable by those who may read the log directory `dir`.
///
/// # Errors
/// Any error of the file system.
pub(super) fn place(file: &std::fs::File, from: &Path, to: &Path, dir: &Path) -> std::io::Result<()> {
    as_private_as(file, dir)?;
    std::fs::rename(from, to)
}

/// Writes a file derived from the log directory `dir` under a temporary name in its folder and renames it into place.
///
/// # Errors
/// Any error of the file system.
pub fn replace(path: &Path, bytes: &[u8], dir: &Path) -> std::io::Result<()> {
    let mut file = Unfinished::begin(path.parent().unwrap_or(Path::new(".")))?;
    file.file().write_all(bytes)?;
    file.finish(path, dir)
}

/// Makes a file readable by exactly those who may read all tables of the log directory `dir`.
///
/// # Errors
/// Any error of the file system.
fn as_private_as(file: &std::fs::File, dir: &Path) -> std::io::Result<()> {
    let group = file.metadata()?.gid();
    let tables = ["track_log", "control", "inventory", "joined_exposure"];
    let mut mode = 0o644;
    for table in tables.iter().filter_map(|name| table::find(dir, name).ok().flatten()) {
        let of_table = table.metadata()?;
        mode &= of_table.mode() | 0o600;
        if of_table.gid() != group && of_table.mode() & 0o004 == 0 {
            // The table is readable by another group.
            mode &= !0o040;
        }
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// Creates a file that only its owner may read, or empties an existing one.
///
/// # Errors
/// Any error of the file system.
pub fn create_private(path: &Path) -> std::io::Result<std::fs::File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

pub(super) const UNFINISHED: &str = ".tmp";
/// Age below which a file may have a writer that has not locked it yet.
const YOUNG: std::time::Duration = std::time::Duration::from_secs(10);

/// Removes files of killed writers, whose locks nobody holds.
pub(super) fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok().filter(|age| *age > YOUNG);
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED)
            && old().is_some()
            && std::fs::File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("track_log.tsv", mode), ("control.tsv", 0o644)] {
            std::fs::write(dir.path().join(name), "x").unwrap();
            std::fs::set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    /// A compiled log was readable by everybody although its sources were private.
    #[test]
    fn what_is_kept_is_as_private_as_the_log() {
        for mode in [0o644, 0o640, 0o600, 0o604, 0o400] {
            let dir = log(mode);
            let path = folder(dir.path()).unwrap().join("compiled.log");
            replace(&path, b"derived", dir.path()).unwrap();
            assert_eq!(path.metadata().unwrap().mode() & 0o777, mode | 0o600, "{mode:o}");
        }
    }

    #[test]
    fn a_folder_that_is_open_to_everybody_or_a_link_is_not_believed() {
        let dir = log(0o644);
        let beside = dir.path().join(".admix");
        assert_eq!(folder(dir.path()), Some(beside.clone()));
        std::fs::set_permissions(&beside, Permissions::from_mode(0o777)).unwrap();
        assert_ne!(folder(dir.path()), Some(beside.clone()));
        std::fs::remove_dir(&beside).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &beside).unwrap();
        assert_ne!(folder(dir.path()), Some(beside));
    }

    /// Files of killed writers stayed for a day: gigabytes for a large day.
    #[test]
    fn what_killed_writers_left_goes_and_what_is_being_written_stays() {
        let dir = log(0o644);
        let folder = folder(dir.path()).unwrap();
        let (old, new) = (folder.join(".tmpold"), folder.join(".tmpnew"));
        for path in [&old, &new] {
            std::fs::write(path, "half").unwrap();
        }
        let before = |file: &std::fs::File| file.set_modified(std::time::SystemTime::now() - 2 * YOUNG).unwrap();
        before(&std::fs::File::open(&old).unwrap());
        let mut writer = Unfinished::begin(&folder).unwrap();
        before(writer.file());
        replace(&folder.join("compiled.log"), b"derived", dir.path()).unwrap();
        assert!(!old.exists() && new.exists());
        writer.finish(&folder.join("completed.log"), dir.path()).unwrap();
        assert!(folder.join("completed.log").exists());
    }
}
