//! Starting point of a run of `admix values train`: nothing, the rows of a file, or rows and network of another run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::settings::ValueSettings;
use crate::sparse::file;
use crate::values::ValueModel;
use crate::values::net::NetShape;

use super::value_snapshot::base_path;

/// Copies the initial rows of a run into base 0 of its snapshots, unless they are there, so that the run can be resumed even if their
/// source is gone. Returns the file; `None` where the run starts with an empty table.
///
/// # Errors
/// No rows at the source, or damaged rows.
pub fn first_rows(settings: &ValueSettings, root: &Path) -> anyhow::Result<Option<PathBuf>> {
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
        file::verify(&rows).context("values.from")?;
        std::fs::create_dir_all(root)?;
        let writing = root.join(".beginning.rows");
        std::fs::copy(&rows, &writing).with_context(|| format!("cannot copy {}", rows.display()))?;
        std::fs::File::open(&writing)?.sync_all()?;
        std::fs::rename(&writing, &base)?;
        std::fs::File::open(root)?.sync_all()?;
    }
    Ok(Some(base))
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
