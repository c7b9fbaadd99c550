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

use crate::files;
use crate::settings::{SettingsError, ValueSettings};
use crate::sparse::file;
use crate::sparse::marks::LastUse;
use crate::values::model::{self, DENSE_FILE, Meta};
use crate::values::net::NetShape;
use crate::values::{Fields, ValueModel};

use super::RunDirectory;
use super::value_run::{Prepared, net_shape};
use super::value_snapshot::{base_path, bases, first_network_path, link_or_copy, remove_base};

/// Copies what a run starts with into base 0 of its snapshots, unless it is there: its rows, and its network beside them. So the run can be
/// resumed even if their source is gone or was trained again meanwhile. Returns the file of the rows; `None` where the run starts with an empty
/// table. A later stage of a training starts with what the first one started with.
///
/// # Errors
/// No rows at the source, damaged rows, or changes of rows instead of rows.
pub fn first_rows(
    settings: &ValueSettings,
    prepared: &Prepared,
    directory: &RunDirectory,
) -> anyhow::Result<Option<PathBuf>> {
    if settings.values.from.as_os_str().is_empty() {
        return Ok(None);
    }
    let root = directory.checkpoints();
    let base = base_path(&root, 0);
    if !base.exists() {
        std::fs::create_dir_all(&root)?;
        match copies_of_first_stage(directory) {
            Some(first) => {
                files::replace_synced(&first_network_path(&root), &std::fs::read(first_network_path(&first))?)?;
                link_or_copy(&base_path(&first, 0), &base)?;
            }
            None => copy_source(settings, prepared, &root)?,
        }
        std::fs::File::open(&root)?.sync_all()?;
    }
    Ok(Some(base))
}

/// The snapshots of the first stage of a training, if `directory` is that of a later one and the first one still has what it started with.
fn copies_of_first_stage(directory: &RunDirectory) -> Option<PathBuf> {
    let stage = Some(directory.root()).filter(|root| model::is_later_stage(root))?;
    let first = stage.parent()?.join(directory.checkpoints().file_name()?);
    (base_path(&first, 0).exists() && first_network_path(&first).exists()).then_some(first)
}

/// Whether later stages of the training will start with what this run started with.
pub fn is_needed_later(settings: &ValueSettings, directory: &RunDirectory) -> bool {
    let more = settings.chooses_weights() || settings.learns_again();
    more && !settings.values.from.as_os_str().is_empty() && !model::is_later_stage(directory.root())
}

/// Removes what a training started with, once all its stages are over.
///
/// # Errors
/// Any error of the file system.
pub fn forget(directory: &RunDirectory) -> anyhow::Result<()> {
    let root = directory.checkpoints();
    match bases(&root)?[..] {
        [0, _, ..] => Ok(remove_base(&root, 0)?),
        _ => Ok(()),
    }
}

/// Copies the rows of `values.from` to base 0 in `root`, and the network beside them: that of a model, else the random one that the run starts
/// with. With `table.keep_days`, rows without a date count as seen on the day before the run's first; without it no row has a date. Uses are
/// numbered anew from 1.
fn copy_source(settings: &ValueSettings, prepared: &Prepared, root: &Path) -> anyhow::Result<()> {
    let v = &settings.values;
    let (network, rows) = match ValueModel::folder(&v.from) {
        Some(folder) => {
            let path = folder.join(DENSE_FILE);
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let (meta, _) = model::decode(&bytes).with_context(|| format!("{} cannot be used", path.display()))?;
            (bytes, folder.join(meta.rows))
        }
        None if v.from.is_file() => {
            let shape = net_shape(settings, &Fields::parse(&v.fields)?);
            let meta = Meta::new(v.fields.clone(), v.dim, v.hidden, settings.run.seed, prepared.dispersion);
            let meta = Meta { rows: "rows-".into(), ..meta };
            (model::encode(&meta, &random_parameters(settings, shape))?, v.from.clone())
        }
        None => return Err(no_source(&v.from).into()),
    };
    let found = file::verify(&rows).context("values.from")?;
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
    files::replace_synced(&first_network_path(root), &network)?;
    std::fs::File::open(&writing)?.sync_all()?;
    // The rows come last: where they are, the network is.
    Ok(std::fs::rename(&writing, base_path(root, 0))?)
}

/// A source that is neither there nor copied.
fn no_source(from: &Path) -> SettingsError {
    let why = format!(
        "is {}, which is neither a file of rows nor holds a model: put it back, or name a file that `admix values dump` wrote, or a run \
         directory of `admix values train`",
        from.display()
    );
    SettingsError::Value { key: "values.from".into(), why }
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

/// Returns the initial parameters of a run: the network beside base 0, or random ones where it starts with nothing.
///
/// # Errors
/// A network of another shape.
pub fn first_parameters(
    settings: &ValueSettings,
    shape: NetShape,
    directory: &RunDirectory,
) -> anyhow::Result<Vec<f32>> {
    let (v, copy) = (&settings.values, first_network_path(&directory.checkpoints()));
    if v.from.as_os_str().is_empty() {
        return Ok(random_parameters(settings, shape));
    }
    // Earlier programs copied the rows alone.
    let network = match ValueModel::folder(&v.from) {
        _ if copy.exists() => copy,
        Some(folder) => folder.join(DENSE_FILE),
        None if v.from.is_file() => return Ok(random_parameters(settings, shape)),
        None => return Err(no_source(&v.from).into()),
    };
    let (meta, parameters) = ValueModel::read_dense(&network)?;
    ensure!(
        (&meta.fields, meta.dim, meta.hidden) == (&v.fields, v.dim, v.hidden),
        "values.from names a model of other fields or sizes: set values.fields = {:?}, values.dim = {}, values.hidden = {}",
        meta.fields,
        meta.dim,
        meta.hidden
    );
    Ok(parameters)
}

fn random_parameters(settings: &ValueSettings, shape: NetShape) -> Vec<f32> {
    shape.first_parameters(&mut ChaCha8Rng::seed_from_u64(settings.run.seed))
}
