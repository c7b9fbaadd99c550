//! The policy file: safetensors with the actor's weights. Its metadata hold everything else that scoring needs, except the
//! state. Readable from Python with the `safetensors` package alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::env::FEATURE_VERSION;
use crate::files;
use crate::plan::Plan;

use super::learned::LearnedPolicy;
use super::spec::PolicySpec;

const FORMAT: &str = "admix-policy-1";

/// A learned policy as it is stored.
#[derive(Debug, Clone)]
pub struct PolicyFile {
    pub spec: Arc<PolicySpec>,
    pub plan: Plan,
    /// The averaged actor, flat.
    pub actor: Vec<f32>,
    /// Number of learner updates behind it.
    pub updates: u64,
}

impl PolicyFile {
    /// Encodes the file; the same policy gives the same bytes.
    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        let shape = self.spec.actor_shape();
        let arrays: Vec<(String, Vec<usize>, &[u8])> = shape
            .parts()
            .into_iter()
            .map(|p| {
                let dims = if p.name.starts_with('b') { vec![p.columns] } else { vec![p.rows, p.columns] };
                (format!("actor.{}", p.name), dims, bytemuck::cast_slice(&self.actor[p.range()]))
            })
            .collect();
        let views = arrays
            .iter()
            .map(|(name, dims, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, dims.clone(), bytes)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut head = serde_json::Map::new();
        head.insert("format".into(), FORMAT.into());
        head.insert("features".into(), serde_json::to_value(self.spec.feature_names())?);
        head.insert("feature_version".into(), FEATURE_VERSION.into());
        head.insert("spec".into(), serde_json::to_value(&*self.spec)?);
        head.insert("plan".into(), serde_json::to_value(&self.plan)?);
        head.insert("updates".into(), self.updates.into());
        // One entry: the library keeps metadata in a hash map, whose order would differ from run to run.
        let metadata = HashMap::from([("admix".to_owned(), serde_json::to_string(&head)?)]);
        Ok(safetensors::serialize(views, Some(metadata))?)
    }

    /// Writes the file by rename, so that a reader never sees a partial file.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let bytes = self.encode()?;
        files::replace_synced(path, &bytes).with_context(|| format!("cannot write the policy {}", path.display()))
    }

    /// Reads a policy from a file, or the best policy of a run directory.
    ///
    /// # Errors
    /// If the file is unreadable, is not a policy, or has another version.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (path, bytes) = Self::find(path)?;
        Self::decode(&bytes).with_context(|| format!("{} is not a usable policy", path.display()))
    }

    /// Finds and reads the file that a path means.
    ///
    /// # Errors
    /// No file there, or one that cannot be read.
    pub fn find(path: &Path) -> anyhow::Result<(PathBuf, Vec<u8>)> {
        let file = Self::locate(path);
        match files::read(&file, files::MOST) {
            Ok(bytes) => Ok((file, bytes)),
            Err(_) if ["config.toml", "values"].iter().all(|part| path.join(part).exists()) => bail!(
                "{path} is a run of `admix values train`: --values {path} uses it; a policy comes from `admix train`",
                path = path.display()
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => bail!(
                "there is no policy {}: name a run directory, a folder of nightly jobs or a policy file{}",
                file.display(),
                if path.to_string_lossy().starts_with("baseline:") { "; baselines are not taken here" } else { "" }
            ),
            Err(e) => Err(e).with_context(|| format!("cannot read the policy {}", file.display())),
        }
    }

    /// Returns the file that a path means: for a run directory its best policy, for a folder of nightly jobs the served one.
    pub fn locate(path: &Path) -> PathBuf {
        let served = path.join("current.safetensors");
        match path.is_dir() {
            true if served.is_file() => served,
            true => path.join("policy").join("best.safetensors"),
            false => path.to_owned(),
        }
    }

    /// Reads the bytes of a policy file.
    ///
    /// # Errors
    /// If the bytes are not a policy, or have another version.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let text = header.metadata().as_ref().and_then(|m| m.get("admix"));
        let head: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text.context("it has no `admix` metadata")?)?;
        let field = |name: &str| head.get(name).cloned().with_context(|| format!("its metadata lack `{name}`"));
        let format = field("format")?;
        if format != FORMAT {
            bail!("its format is {format}, this program reads {FORMAT}; train again");
        }
        let spec: PolicySpec = serde_json::from_value(field("spec")?)?;
        spec.check()?;
        if field("features")? != serde_json::to_value(spec.feature_names())? {
            let version = head.get("feature_version").and_then(serde_json::Value::as_u64).unwrap_or(1);
            bail!(
                "it was trained on features of version {version}, this program has version {FEATURE_VERSION}; train again"
            );
        }
        let plan: Plan = serde_json::from_value(field("plan")?)?;
        plan.check()?;
        let actor = decode_actor(bytes, &spec)?;
        let updates = field("updates")?.as_u64().context("`updates` is not a count")?;
        Ok(Self { spec: Arc::new(spec), plan, actor, updates })
    }

    /// Reads the actor of a policy file whose spec is known, without its plan.
    ///
    /// # Errors
    /// If the file is unreadable, or the actor has another shape.
    pub fn read_actor(path: &Path, spec: &PolicySpec) -> anyhow::Result<Vec<f32>> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read the policy {}", path.display()))?;
        decode_actor(&bytes, spec).with_context(|| format!("{} is not a usable policy", path.display()))
    }

    /// Returns the policy, ready to serve.
    pub fn policy(&self) -> LearnedPolicy {
        LearnedPolicy::new(self.spec.clone(), self.actor.clone())
    }

    /// Returns the same policy without anything learned: a zero network over the plan's planner and controller, with the settings
    /// that tuning found for them, and without the learned volume.
    pub fn untrained(&self) -> Self {
        let mut spec = (*self.spec).clone();
        spec.policy.volume_model = false;
        Self { spec: Arc::new(spec), actor: vec![0.0; self.actor.len()], updates: 0, plan: self.plan.clone() }
    }

    /// Whether two policies have the same weights, to the rounding of a running average.
    pub fn has_weights_of(&self, other: &Self) -> bool {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
        self.actor.len() == other.actor.len() && self.actor.iter().zip(&other.actor).all(near)
    }

    /// Returns this policy's actor as the starting parameters of a run with `spec`.
    ///
    /// Embedding rows are matched by id; rows of ids that this policy did not know keep their value in `initial`.
    ///
    /// # Errors
    /// If the network has another shape, or the score mode differs.
    pub fn start_for(&self, spec: &PolicySpec, initial: Vec<f32>) -> anyhow::Result<Vec<f32>> {
        let (own, wanted) = (&self.spec.policy, &spec.policy);
        let widths = [
            ("policy.hidden", own.hidden, wanted.hidden),
            ("policy.ad_embedding", own.ad_embedding, wanted.ad_embedding),
            ("policy.traffic_embedding", own.traffic_embedding, wanted.traffic_embedding),
        ];
        for (key, own, wanted) in widths {
            if own != wanted {
                bail!("it was trained with {key} = {own}, this configuration has {wanted}");
            }
        }
        if own.outlook != wanted.outlook {
            bail!("it was trained with policy.outlook = {}, this configuration has {}", own.outlook, wanted.outlook);
        }
        if self.spec.score_mode != spec.score_mode {
            bail!("it was trained with another score_mode than this configuration's");
        }
        let mut start = initial;
        let tables = self.spec.embedding_rows(spec);
        for (part, to) in self.spec.actor_shape().parts().into_iter().zip(spec.actor_shape().parts()) {
            let (from, into) = (&self.actor[part.range()], &mut start[to.range()]);
            match tables.iter().find(|(name, _)| *name == part.name) {
                None => into.copy_from_slice(from),
                Some((_, rows)) => {
                    for &(own, new) in rows {
                        let width = part.columns;
                        let (own, new) = (own as usize * width, new as usize * width);
                        into[new..new + width].copy_from_slice(&from[own..own + width]);
                    }
                }
            }
        }
        Ok(start)
    }
}

/// Reads the actor's arrays, in the order and with the shapes of `spec`.
fn decode_actor(bytes: &[u8], spec: &PolicySpec) -> anyhow::Result<Vec<f32>> {
    let tensors = SafeTensors::deserialize(bytes)?;
    let mut actor = Vec::new();
    for part in spec.actor_shape().parts() {
        let name = format!("actor.{}", part.name);
        let view = tensors.tensor(&name)?;
        if view.dtype() != Dtype::F32 || view.data().len() != part.rows * part.columns * 4 {
            bail!("{name} does not have the shape that the metadata say");
        }
        actor.extend(view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
    if actor.iter().any(|w| !w.is_finite()) {
        bail!("it holds weights that are not finite");
    }
    Ok(actor)
}
