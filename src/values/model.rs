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

/// Writes a model into `folder`, replacing the one that is there.
///
/// # Errors
/// What the file system says; the model that was there stays then.
pub fn write(folder: &Path, mut meta: Meta, parameters: &[f32], table: &HostTable) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // One process writes a model, so that the names are free and its successor leaves none of them behind.
    let [rows, dense] = [".rows.writing", ".dense.writing"].map(|name| folder.join(name));
    let hash = file::write(&rows, table)?;
    meta.rows = format!("rows-{:08}-{hash:016x}.bin", meta.updates);
    put(&rows, &folder.join(&meta.rows))?;
    let shape = NetShape { fields: meta.fields.len(), dim: meta.dim, hidden: meta.hidden };
    let bytes = tensors(shape, parameters, &meta)?;
    std::fs::write(&dense, &bytes)?;
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

fn tensors(shape: NetShape, parameters: &[f32], meta: &Meta) -> anyhow::Result<Vec<u8>> {
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
        let (meta, parameters) = parse(&bytes).with_context(|| format!("{} cannot be used", path.display()))?;
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

    /// The stage of a training that was begun and not finished, in its run directory: a training may learn beside, and once more.
    pub fn unfinished(dir: &Path) -> Option<Stage> {
        [EQUAL, REFIT].into_iter().find_map(|name| {
            let text = std::fs::read(dir.join(name).join("manifest.json")).ok()?;
            let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let state = match manifest["outcome"]["reason"].as_str() {
                Some("budget" | "converged") => return None,
                Some(reason) => reason.to_owned(),
                None if manifest["failure"].is_string() => "failed".to_owned(),
                None => "killed".to_owned(),
            };
            Some(Stage { name, state })
        })
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

    /// Reads the network of a model's folder, and what prediction needs beside the numbers.
    ///
    /// # Errors
    /// No model there, or one that is damaged.
    pub fn read_dense(folder: &Path) -> anyhow::Result<(Meta, Vec<f32>)> {
        let path = folder.join(DENSE_FILE);
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        parse(&bytes).with_context(|| format!("{} cannot be used", path.display()))
    }

    /// Reads what prediction needs beside the numbers, from a model's folder.
    ///
    /// # Errors
    /// No model there, or one that is damaged.
    pub fn read_meta(folder: &Path) -> anyhow::Result<Meta> {
        Ok(Self::read_dense(folder)?.0)
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

/// Returns the bytes of a file of rows: read into memory, so that whoever writes the file in place does not harm who uses it, or mapped
/// where that would take seconds and much memory.
fn bytes_of(path: &Path) -> std::io::Result<Mmap> {
    if files::open(path)?.metadata()?.len() > CHECKED as u64 {
        return log::map::read_only(path);
    }
    log::map::in_memory(&files::read(path, CHECKED as u64)?)
}

fn parse(bytes: &[u8]) -> anyhow::Result<(Meta, Vec<f32>)> {
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
}
