//! The inputs of a compiled log: the files of a directory, their hash, its name, and what its import report says.

use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use super::compiled;
use super::day::Day;
use super::digest::{Digests, Stat};
use super::error::Result;
use super::options::CompileOptions;
use super::table;

/// File in which an importer leaves its report.
const IMPORT_REPORT: &str = "import.json";

/// Returns the name of a log in reports and decisions. The name is part of the input hash, so a renamed directory is compiled
/// again.
pub(super) fn name_of(dir: &Path) -> String {
    dir.canonicalize()
        .ok()
        .and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()))
        .unwrap_or_else(|| dir.display().to_string())
}

/// Lists the files and tables that a compiled log is made from.
fn inputs(dir: &Path) -> Result<Vec<PathBuf>> {
    let files = [
        Some(dir.join("day.toml")),
        Some(dir.join(IMPORT_REPORT)),
        table::find(dir, "track_log")?,
        table::find(dir, "control")?,
    ];
    Ok(files.into_iter().flatten().filter(|path| path.exists()).collect())
}

/// Returns the file attributes that show whether an input changes while it is read.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn stats(dir: &Path) -> Result<Vec<(PathBuf, Stat)>> {
    let mut stats = Vec::new();
    for table in inputs(dir)? {
        for part in table::parts(&table)? {
            let stat = Stat::of(&part)?;
            stats.push((part, stat));
        }
    }
    Ok(stats)
}

/// Hashes the inputs and options of a compiled log.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn hash_inputs(dir: &Path, options: CompileOptions) -> Result<u128> {
    // Refuses an oversized day file before all of it is read.
    Day::read(dir)?;
    let mut hasher = XxHash3_128::new();
    hasher.write(&compiled::VERSION.to_le_bytes());
    hasher.write(&[u8::from(options.complete_queues)]);
    hasher.write(name_of(dir).as_bytes());
    let mut digests = Digests::of(dir, options.verify);
    for path in inputs(dir)? {
        digests.table(&mut hasher, &path)?;
    }
    digests.keep();
    Ok(hasher.finish_128())
}

/// Adds a table to a hash as [`Digests::table`] does. Files whose hash is stored are not read.
///
/// # Errors
/// A file that cannot be read.
pub fn hash_table(hasher: &mut XxHash3_128, path: &Path) -> Result<()> {
    let mut digests = Digests::of(path.parent().unwrap_or(Path::new(".")), false);
    digests.table(hasher, path)?;
    digests.keep();
    Ok(())
}

/// Returns whether the importer's report says that the contracts were declared.
pub(super) fn contracts_declared(dir: &Path) -> bool {
    std::fs::read(dir.join(IMPORT_REPORT))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
        .is_some_and(|report| report["contracts_declared"] == true)
}
