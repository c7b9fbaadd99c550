//! Starting point of a run of `admix values train`: nothing, the rows of a file, or rows and network of another run.
//!
//! With `table.keep_days`, rows that the other run had not seen in the last days of its data are dropped.

use std::hash::Hasher as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use twox_hash::XxHash3_64;

use crate::settings::ValueSettings;
use crate::sparse::file;
use crate::sparse::marks::LastUse;
use crate::values::ValueModel;
use crate::values::model::DENSE_FILE;
use crate::values::net::NetShape;

use super::value_run::Prepared;
use super::value_snapshot::base_path;

/// Copies the initial rows of a run into base 0 of its snapshots, unless they are there, so that the run can be resumed even if their
/// source is gone. Returns the file; `None` where the run starts with an empty table. With `table.keep_days`, rows without a date count
/// as seen on the day before the run's first; without it no row has a date. Uses are numbered anew from 1.
///
/// # Errors
/// No rows at the source, damaged rows, or changes of rows instead of rows.
pub fn first_rows(settings: &ValueSettings, prepared: &Prepared, root: &Path) -> anyhow::Result<Option<PathBuf>> {
    let from = &settings.values.from;
    if from.as_os_str().is_empty() {
        return Ok(None);
    }
    let base = base_path(root, 0);
    if !base.exists() {
        let rows = match ValueModel::folder(from) {
            Some(folder) => folder.join(ValueModel::read_meta(&folder)?.rows),
            None => from.clone(),
        };
        let found = file::verify(&rows).context("values.from")?;
        std::fs::create_dir_all(root)?;
        let writing = root.join(".beginning.rows");
        let Uses { newest, mut numbers } = uses(&rows)?;
        let keep_days = settings.table.keep_days;
        if keep_days > 0 && newest == 0 {
            tracing::warn!("values.from does not say when its rows were seen; table.keep_days drops none of them");
        }
        let oldest = if keep_days > 0 { newest.saturating_add(1).saturating_sub(keep_days) } else { 0 };
        let before = prepared.days.iter().min().copied().unwrap_or(0).saturating_sub(1);
        let mut row = 0;
        let kept = file::copy(&rows, &writing, settings.marks(), |last| {
            row += 1;
            let number = numbers.next().unwrap_or(row);
            let day = last.map_or(0, |last| last.day);
            // A run without `keep_days` notes no days: those of its source would be older than what it has seen since.
            let noted = if keep_days == 0 { 0 } else { Some(day).filter(|day| *day > 0).unwrap_or(before) };
            (day == 0 || day >= oldest).then_some(LastUse { number, day: noted })
        })?;
        if kept < found.rows {
            let (rows, dropped) = (found.rows, found.rows - kept);
            tracing::info!("of {rows} rows {dropped} were not seen in the last {keep_days} days and stay behind");
        }
        std::fs::File::open(&writing)?.sync_all()?;
        std::fs::rename(&writing, &base)?;
        std::fs::File::open(root)?.sync_all()?;
    }
    Ok(Some(base))
}

/// Returns a digest of what the run starts from; `None` where it starts from nothing, or where that cannot be read (any more).
pub fn digest(settings: &ValueSettings) -> Option<u64> {
    let from = Some(&settings.values.from).filter(|from| !from.as_os_str().is_empty())?;
    let files = match ValueModel::folder(from) {
        Some(folder) => vec![folder.join(DENSE_FILE), folder.join(ValueModel::read_meta(&folder).ok()?.rows)],
        None => vec![from.clone()],
    };
    let (mut hasher, mut part) = (XxHash3_64::new(), vec![0; 1 << 20]);
    for file in files {
        let mut file = std::fs::File::open(file).ok()?;
        loop {
            match file.read(&mut part).ok()? {
                0 => break,
                len => hasher.write(&part[..len]),
            }
        }
    }
    Some(hasher.finish())
}

/// When the rows of a file were used.
struct Uses<I> {
    /// Newest day on which one was seen; 0 where the file does not say.
    newest: u32,
    /// New number of each row's last use, from 1 in the order of the old ones; nothing where the file has none.
    numbers: I,
}

/// Reads the marks of a file's rows.
///
/// # Errors
/// Rows that were dropped, and as [`file::RowFileReader::read`].
fn uses(rows: &Path) -> anyhow::Result<Uses<impl Iterator<Item = u64> + use<>>> {
    let (mut rows, mut newest, mut old) = (file::RowFileReader::open(rows)?, 0, vec![]);
    if rows.found.layout.marks {
        while rows.read()?.is_some() {
            let last = rows.used().context("values.from")?;
            newest = newest.max(last.day);
            old.push((last.number, old.len()));
        }
    }
    old.sort_unstable();
    let mut numbers = vec![0; old.len()];
    for (number, (_, row)) in (1..).zip(old) {
        numbers[row] = number;
    }
    Ok(Uses { newest, numbers: numbers.into_iter() })
}

/// Returns the initial parameters of a run: those of the run that it starts from, or random ones.
///
/// # Errors
/// A network of another shape.
pub fn first_parameters(settings: &ValueSettings, shape: NetShape) -> anyhow::Result<Vec<f32>> {
    let from = &settings.values.from;
    let folder = Some(from).filter(|from| !from.as_os_str().is_empty()).and_then(|from| ValueModel::folder(from));
    let Some(folder) = folder else {
        return Ok(shape.first_parameters(&mut ChaCha8Rng::seed_from_u64(settings.run.seed)));
    };
    let (meta, parameters) = ValueModel::read_dense(&folder)?;
    let v = &settings.values;
    ensure!(
        (&meta.fields, meta.dim, meta.hidden) == (&v.fields, v.dim, v.hidden),
        "values.from names a model of other fields or sizes: set values.fields = {:?}, values.dim = {}, values.hidden = {}",
        meta.fields,
        meta.dim,
        meta.hidden
    );
    Ok(parameters)
}
