//! Value models beside the policies that were made at their values.
//!
//! Whoever serves a policy has to tell it the values that it was made at, so the plan in a policy file names the model. Nightly jobs keep
//! models in `values/NAME` beside the policies; the run directory of a policy names its model in its configuration.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::settings::Settings;

use super::model::DENSE_FILE;
use super::{Told, ValueModel};

const FOLDER: &str = "values";
/// Folders above a policy file in which its model is looked for: its own, its run directory or jobs' folder.
const ABOVE: usize = 2;

/// Copies a model to `root/values/NAME` unless it is there, by rename: a folder of this name always holds a whole model.
///
/// # Errors
/// If a file cannot be read or written.
pub fn put(model: &ValueModel, root: &Path) -> anyhow::Result<PathBuf> {
    let folder = root.join(FOLDER).join(model.name());
    if folder.is_dir() {
        return Ok(folder);
    }
    let copy = || -> anyhow::Result<()> {
        let parent = root.join(FOLDER);
        std::fs::create_dir_all(&parent)?;
        let making = tempfile::Builder::new().prefix(".making-").tempdir_in(&parent)?;
        for name in [DENSE_FILE, &model.meta.rows] {
            let to = making.path().join(name);
            std::fs::copy(model.folder.join(name), &to)?;
            File::open(&to)?.sync_all()?;
        }
        File::open(making.path())?.sync_all()?;
        std::fs::rename(making.path(), &folder)?;
        // It has moved: there is nothing left to remove.
        let _ = making.keep();
        Ok(File::open(&parent)?.sync_all()?)
    };
    copy().with_context(|| format!("cannot copy the value model to {}", folder.display()))?;
    Ok(folder)
}

/// Removes the models in `root/values` that are not in `keep`, by name.
///
/// # Errors
/// If a folder cannot be read or removed.
pub fn retain(root: &Path, keep: &BTreeSet<String>) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(&folder)? {
        let entry = entry?;
        if !keep.contains(&*entry.file_name().to_string_lossy()) {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Returns the values that the policy or plan file `path` was made at, which says that they are `told`.
///
/// # Errors
/// If the model is not found, or cannot be read.
pub fn of_policy(path: &Path, told: &str) -> anyhow::Result<Told> {
    if told == Told::Logged.to_string() {
        return Ok(Told::Logged);
    }
    let Some(name) = Told::model_name(told) else {
        bail!("it was made at values of a synthetic world ({told}), which are not known when it serves");
    };
    let mut looked = Vec::new();
    for folder in path.ancestors().skip(1).take(ABOVE) {
        let beside = folder.join(FOLDER).join(name);
        let configured = Settings::read_resolved(&folder.join("config.toml")).map(|settings| settings.data.values);
        for place in std::iter::once(beside).chain(configured.ok().filter(|place| !place.as_os_str().is_empty())) {
            if ValueModel::folder(&place).is_some() {
                let model = Told::model(&place)?;
                if model.to_string() == told {
                    return Ok(model);
                }
            }
            looked.push(place.display().to_string());
        }
    }
    bail!("it was made at {told}, and this model is not there; looked in {}", looked.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_missing_is_named_with_the_places_that_were_searched() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("promoted/0001.safetensors");
        let said = format!("{:#}", of_policy(&policy, "values:00000000000000ab").unwrap_err());
        let places = ["promoted/values/00000000000000ab", "values/00000000000000ab"];
        assert!(places.iter().all(|place| said.contains(&folder.path().join(place).display().to_string())), "{said}");
        assert!(of_policy(&policy, "logged").unwrap().is_logged());
        assert!(format!("{:#}", of_policy(&policy, "truth").unwrap_err()).contains("synthetic"));
    }
}
