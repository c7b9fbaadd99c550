//! A value model at rest and at work: its file, and the values that it gives.
//!
//! A model is a folder: `values.safetensors` with the network and, in its metadata, everything else that prediction needs, and the
//! sparse-parameter file that the metadata name. The rows are written first under a name of their own and the safetensors file is
//! replaced by rename, so that a folder always holds one whole model.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::failpoint;
use crate::files;
use crate::log::corrected::Asked;
use crate::log::{self, Request};
use crate::settings::{Configuration as _, ValueSettings};
use crate::sparse::lookup::Finder;
use crate::sparse::mapped::CHECKED;
use crate::sparse::{HostTable, Lookup, MappedRows, file};

use super::Fields;
use super::net::{Embedded, Net, NetShape, clamped};
use super::sample::Seen;

pub const DENSE_FILE: &str = "values.safetensors";
/// Run of the model that was learned once more from all days, in the directory of the run that chose its passes.
pub const REFIT: &str = "refit";
/// Run in which all exposures weigh alike, in the directory of the one in which they do not.
pub const EQUAL: &str = "equal";
const META: &str = "admix.values";
const FORMAT: u32 = 1;

/// What prediction needs beside the numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    pub format: u32,
    pub fields: Vec<String>,
    pub dim: usize,
    pub hidden: usize,
    /// Seed of the first values of rows that are not in the file.
    pub table_seed: u64,
    /// Variance of the charges over their mean, at the logged predictions.
    pub dispersion: f32,
    /// Updates after which this was the best, and its losses on the validation days.
    pub updates: u64,
    pub epoch: u64,
    pub validation_click: f64,
    pub validation_charge: f64,
    /// File of the rows in the same folder.
    pub rows: String,
}

impl Meta {
    /// Loss on the validation days: click plus charge over its dispersion, per exposure by weight.
    pub fn validation_loss(&self) -> f64 {
        self.validation_click + self.validation_charge
    }
}

/// Writes a model into `folder`, replacing the one that is there; calls `beat` now and then.
///
/// # Errors
/// What the file system says; the model that was there stays then.
pub fn write(
    folder: &Path,
    mut meta: Meta,
    parameters: &[f32],
    table: &HostTable,
    beat: &impl Fn(),
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // One process writes a model, so that the names are free and its successor leaves none of them behind.
    let [rows, dense] = [".rows.writing", ".dense.writing"].map(|name| folder.join(name));
    let hash = file::write_with_beats(&rows, table, beat)?;
    meta.rows = format!("rows-{:08}-{hash:016x}.bin", meta.updates);
    put(&rows, &folder.join(&meta.rows))?;
    std::fs::write(&dense, encode(&meta, parameters)?)?;
    failpoint::reached("values.model");
    put(&dense, &folder.join(DENSE_FILE))?;
    std::fs::File::open(folder)?.sync_all()?;
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("rows-") && name != meta.rows {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Syncs a written file and gives it its name.
fn put(written: &Path, path: &Path) -> std::io::Result<()> {
    std::fs::File::open(written)?.sync_all()?;
    std::fs::rename(written, path)
}

/// Encodes the network of a model.
///
/// # Errors
/// Parameters that cannot be serialised.
pub fn encode(meta: &Meta, parameters: &[f32]) -> anyhow::Result<Vec<u8>> {
    let shape = NetShape { fields: meta.fields.len(), dim: meta.dim, hidden: meta.hidden };
    let mut views = Vec::new();
    let mut at = 0;
    for (name, inputs, outputs) in shape.layers() {
        for (part, sizes) in [("weight", vec![inputs, outputs]), ("bias", vec![outputs])] {
            let len: usize = sizes.iter().product();
            let view = TensorView::new(Dtype::F32, sizes, bytemuck::cast_slice(&parameters[at..at + len]))?;
            views.push((format!("{name}.{part}"), view));
            at += len;
        }
    }
    let meta = HashMap::from([(META.to_owned(), serde_json::to_string(meta)?)]);
    Ok(safetensors::serialize(views, Some(meta))?)
}

/// A stage of a training that is not finished.
pub struct Stage {
    /// Its folder in the run directory.
    pub name: &'static str,
    /// What became of it: `interrupted`, `failed`, or `killed` unless it runs.
    pub state: String,
}

/// A model that gives values.
pub struct ValueModel {
    pub meta: Meta,
    /// The folder that it was read from.
    pub folder: PathBuf,
    pub fields: Fields,
    pub parameters: Vec<f32>,
    /// The rows: in memory, or mapped where they are many.
    pub rows: MappedRows,
    /// Hash of the network's file, which names the rows by theirs.
    pub key: u128,
}

impl ValueModel {
    /// Reads the model of a run directory or of a folder that holds one.
    ///
    /// # Errors
    /// No model there, or one that is damaged.
    pub fn read(dir: &Path) -> anyhow::Result<Self> {
        let folder = Self::folder(dir).with_context(|| {
            format!("{} holds no value model; name a run directory of `admix values train`", dir.display())
        })?;
        let path = folder.join(DENSE_FILE);
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (meta, parameters) = decode(&bytes).with_context(|| format!("{} cannot be used", path.display()))?;
        let fields = Fields::parse(&meta.fields)?;
        let path = folder.join(&meta.rows);
        let map = bytes_of(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let rows = MappedRows::new(&path, map, meta.table_seed)?;
        ensure!(rows.layout().dim == meta.dim, "{}: rows of another width", path.display());
        let key = XxHash3_128::oneshot(&bytes);
        Ok(Self { meta, folder, fields, parameters, rows, key })
    }

    /// The folder of the model in a run directory, or in a folder that holds one.
    pub fn folder(dir: &Path) -> Option<PathBuf> {
        let folders = [dir.join(REFIT).join("values"), Self::chosen(dir).join("values"), dir.to_owned()];
        folders.into_iter().find(|folder| folder.join(DENSE_FILE).is_file())
    }

    /// The stage of a training that is not finished, in its run directory: a training may learn beside, and once more. One that was to
    /// begin next counts as killed.
    pub fn unfinished(dir: &Path) -> Option<Stage> {
        let due = stages_due(dir);
        [EQUAL, REFIT].into_iter().find_map(|name| {
            let killed = || due.contains(&name).then(|| "killed".to_owned());
            let state = manifest(&dir.join(name)).map_or_else(killed, |manifest| unfinished_state(&manifest))?;
            Some(Stage { name, state })
        })
    }

    /// Warns of a run directory whose training is not finished: its model is the best so far.
    pub fn warn_of_unfinished(dir: &Path) {
        if let Some(what) = what_is_unfinished(dir) {
            tracing::warn!(
                "the training in {} is not finished ({what}, or runs): this is the model so far. Go on with --resume",
                dir.display()
            );
        }
    }

    /// The run that the validation days chose in a run directory: the run itself, or the one in it whose exposures weigh alike.
    pub fn chosen(dir: &Path) -> PathBuf {
        let equal = dir.join(EQUAL);
        let loss = |run: &Path| Self::read_meta(&run.join("values")).ok().map(|meta| meta.validation_loss());
        match (loss(dir), loss(&equal)) {
            (Some(own), Some(other)) if other < own => equal,
            _ => dir.to_owned(),
        }
    }

    /// Reads the file of a model's network, and what prediction needs beside the numbers.
    ///
    /// # Errors
    /// No such file, or one that is damaged.
    pub fn read_dense(path: &Path) -> anyhow::Result<(Meta, Vec<f32>)> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        decode(&bytes).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// Reads what prediction needs beside the numbers, from a model's folder.
    ///
    /// # Errors
    /// No model there, or one that is damaged.
    pub fn read_meta(folder: &Path) -> anyhow::Result<Meta> {
        Ok(Self::read_dense(&folder.join(DENSE_FILE))?.0)
    }

    fn shape(&self) -> NetShape {
        NetShape { fields: self.fields.len(), dim: self.meta.dim, hidden: self.meta.hidden }
    }

    /// Returns the name of the model in files and messages: half of its key, in hexadecimal digits.
    pub fn name(&self) -> String {
        format!("{:016x}", self.key as u64)
    }

    /// Makes what gives values, with memory of its own.
    pub fn predictor(&self) -> Predictor<&Self> {
        Predictor::of(self)
    }
}

impl fmt::Debug for ValueModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ValueModel({}, {})", self.folder.display(), self.name())
    }
}

/// Whether a run directory is that of a later stage of a training: one that learns beside its first stage, or once more.
pub fn is_later_stage(dir: &Path) -> bool {
    dir.file_name().is_some_and(|name| name == EQUAL || name == REFIT)
}

/// Reads the manifest of a run; `None` where there is none.
fn manifest(dir: &Path) -> Option<serde_json::Value> {
    let text = std::fs::read(dir.join("manifest.json")).ok()?;
    Some(serde_json::from_slice(&text).unwrap_or_default())
}

/// What became of the run of a manifest, unless it came to its end: `interrupted`, `failed`, or `killed` unless it runs.
fn unfinished_state(manifest: &serde_json::Value) -> Option<String> {
    match manifest["outcome"]["reason"].as_str() {
        Some("budget" | "converged") => None,
        Some(reason) => Some(reason.to_owned()),
        None if manifest["failure"].is_string() => Some("failed".to_owned()),
        None => Some("killed".to_owned()),
    }
}

/// The stages that follow the finished run in a run directory, as it is configured. Those stages have none.
fn stages_due(dir: &Path) -> Vec<&'static str> {
    let Some(manifest) = manifest(dir).filter(|manifest| unfinished_state(manifest).is_none()) else { return vec![] };
    let Ok(settings) = ValueSettings::read_resolved(&dir.join("config.toml")) else { return vec![] };
    if is_later_stage(dir) {
        return vec![];
    }
    let weighted = manifest["exposures"]["weighted"].as_u64() > Some(0);
    let stages = [(EQUAL, settings.chooses_weights() && weighted), (REFIT, settings.learns_again())];
    stages.into_iter().filter_map(|(name, due)| due.then_some(name)).collect()
}

/// Says which part of the training in a run directory is not finished, and what became of it; `None` for a finished one, and for a folder
/// that holds a model alone.
fn what_is_unfinished(dir: &Path) -> Option<String> {
    if let Some(state) = manifest(dir).and_then(|manifest| unfinished_state(&manifest)) {
        return Some(format!("it was {state}"));
    }
    ValueModel::unfinished(dir).map(|Stage { name, state }| format!("its stage {name} was {state}"))
}

/// Returns the bytes of a file of rows: read into memory, so that whoever writes the file in place does not harm who uses it, or mapped
/// where that would take seconds and much memory.
fn bytes_of(path: &Path) -> std::io::Result<Mmap> {
    if files::open(path)?.metadata()?.len() > CHECKED as u64 {
        return log::map::read_only(path);
    }
    log::map::in_memory(&files::read(path, CHECKED as u64)?)
}

/// Decodes the network of a model, and what prediction needs beside the numbers.
///
/// # Errors
/// Bytes that are no network.
pub fn decode(bytes: &[u8]) -> anyhow::Result<(Meta, Vec<f32>)> {
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let meta = header.metadata().as_ref().and_then(|m| m.get(META)).context("it is no value model")?;
    let meta: Meta = serde_json::from_str(meta).context("its metadata are malformed")?;
    ensure!(meta.format == FORMAT, "format {}, this program reads {FORMAT}", meta.format);
    ensure!((3..=256).contains(&meta.dim) && (1..=4096).contains(&meta.hidden), "impossible sizes");
    ensure!(!meta.rows.contains('/') && meta.rows.starts_with("rows-"), "it names a file elsewhere");
    let shape = NetShape { fields: meta.fields.len(), dim: meta.dim, hidden: meta.hidden };
    let tensors = SafeTensors::deserialize(bytes)?;
    let mut parameters = Vec::with_capacity(shape.parameters());
    for (name, inputs, outputs) in shape.layers() {
        for (part, sizes) in [("weight", vec![inputs, outputs]), ("bias", vec![outputs])] {
            let name = format!("{name}.{part}");
            let tensor = tensors.tensor(&name)?;
            ensure!(tensor.shape() == sizes && tensor.dtype() == Dtype::F32, "tensor {name} has another shape");
            parameters.extend(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
    }
    ensure!(parameters.iter().all(|w| w.is_finite()), "it holds values that are not finite");
    Ok((meta, parameters))
}

impl Meta {
    /// Metadata of a model that is being made.
    pub fn new(fields: Vec<String>, dim: usize, hidden: usize, table_seed: u64, dispersion: f32) -> Self {
        Self {
            format: FORMAT,
            fields,
            dim,
            hidden,
            table_seed,
            dispersion,
            updates: 0,
            epoch: 0,
            validation_click: 0.0,
            validation_charge: 0.0,
            rows: String::new(),
        }
    }
}

/// Gives values; of one thread.
pub struct Predictor<M> {
    model: M,
    net: Net,
    finder: Finder,
    lookup: Lookup,
    rows: Vec<f32>,
    dense: Vec<f32>,
}

impl<M: Deref<Target = ValueModel>> Predictor<M> {
    /// Makes what gives a model's values, with memory of its own.
    pub fn of(model: M) -> Self {
        Self {
            net: Net::new(model.shape()),
            finder: Finder::default(),
            lookup: Lookup::default(),
            rows: Vec::new(),
            dense: Vec::new(),
            model,
        }
    }

    /// Computes the log corrections of charge and click odds of samples, from their dense features and ids.
    pub fn corrections(&mut self, dense: &[f32], ids: &[u64]) -> Vec<[f32; 2]> {
        let dim = self.model.meta.dim;
        self.finder.find(ids, &mut self.lookup);
        self.rows.resize(self.lookup.unique.len() * dim, 0.0);
        for (&id, row) in self.lookup.unique.iter().zip(self.rows.chunks_exact_mut(dim)) {
            self.model.rows.read(id, row);
        }
        let embedded = Embedded { rows: &self.rows, inverse: &self.lookup.inverse };
        let out = self.net.forward(&self.model.parameters, dense, embedded);
        out.chunks_exact(2).map(|c| [clamped(c[0]), clamped(c[1])]).collect()
    }

    /// Replaces the values (eCPM, click probability) of the entries of a request. A logged eCPM of 0 stays 0.
    pub fn correct(&mut self, request: &Request, day_start: u64, queue: &[Asked], values: &mut [(f64, f64)]) {
        let mut dense = std::mem::take(&mut self.dense);
        dense.clear();
        let mut ids = Vec::with_capacity(queue.len() * self.model.fields.len());
        let mut logits = Vec::with_capacity(queue.len());
        for asked in queue {
            let seen = Seen::of(request, asked, day_start);
            dense.extend_from_slice(&seen.dense);
            logits.push(f64::from(seen.logit));
            self.model.fields.ids(request, asked.ad_id, asked.ad_type, &mut ids);
        }
        let corrections = self.corrections(&dense, &ids);
        for ((value, logit), correction) in values.iter_mut().zip(logits).zip(corrections) {
            let [c, q] = correction.map(f64::from);
            value.0 *= c.exp();
            if q != 0.0 {
                value.1 = 1.0 / (1.0 + (-(logit + q)).exp());
            }
        }
        self.dense = dense;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A training that was killed or interrupted in its second stage was shown as finished.
    #[test]
    fn a_training_is_finished_when_all_stages_that_were_begun_are() {
        let dir = tempfile::tempdir().unwrap();
        let stage = || ValueModel::unfinished(dir.path()).map(|stage| (stage.name, stage.state));
        assert_eq!(stage(), None);
        for name in [EQUAL, REFIT] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            assert_eq!(stage(), None, "it has not begun");
            for (manifest, state) in [
                (r#"{"outcome": null}"#, Some("killed")),
                (r#"{"outcome": null, "failure": "no room"}"#, Some("failed")),
                (r#"{"outcome": {"reason": "interrupted"}, "failure": null}"#, Some("interrupted")),
                ("not JSON", Some("killed")),
                (r#"{"outcome": {"reason": "converged"}}"#, None),
                (r#"{"outcome": {"reason": "budget"}}"#, None),
            ] {
                std::fs::write(dir.path().join(name).join("manifest.json"), manifest).unwrap();
                assert_eq!(stage(), state.map(|state| (name, state.to_owned())), "{manifest}");
            }
        }
    }

    /// A training that was killed or interrupted in its first stage, or before its next one had begun, was taken for a finished one.
    #[test]
    fn a_training_without_its_end_or_a_configured_stage_is_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let what = || what_is_unfinished(folder.path());
        assert_eq!(what(), None, "a folder that holds a model alone");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let mut settings = ValueSettings::default();
        (settings.values.train, settings.values.validation) = (vec!["a".into()], vec!["b".into()]);
        write("config.toml", &settings.to_toml());
        for (manifest, state) in [
            (r#"{"outcome": null}"#, "it was killed"),
            (r#"{"outcome": null, "failure": "no room"}"#, "it was failed"),
            (r#"{"outcome": {"reason": "interrupted"}}"#, "it was interrupted"),
        ] {
            write("manifest.json", manifest);
            assert_eq!(what().as_deref(), Some(state));
        }
        let end = |stage: &str| {
            std::fs::create_dir_all(folder.path().join(stage)).unwrap();
            write(&format!("{stage}/manifest.json"), r#"{"outcome": {"reason": "budget"}}"#);
        };
        write("manifest.json", r#"{"outcome": {"reason": "converged"}, "exposures": {"weighted": 5}}"#);
        assert_eq!(what().as_deref(), Some("its stage equal was killed"));
        end(EQUAL);
        assert_eq!(what().as_deref(), Some("its stage refit was killed"));
        end(REFIT);
        assert_eq!(what(), None);
        // The stage itself has no stages.
        write("equal/config.toml", &settings.to_toml());
        assert_eq!(what_is_unfinished(&folder.path().join(EQUAL)), None);
    }
}
