//! Policy files that can be served: a learned policy, or a baseline with the plan that tuned it.
//!
//! A nightly job promotes the best policy, and on some nights that is a baseline. Its file takes the place of a learned
//! policy's and is read by the same commands, so that serving does not depend on the kind.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context as _;
use safetensors::tensor::{SafeTensors, TensorView};

use crate::env::Vocabulary;
use crate::files;
use crate::plan::Plan;

use super::Policy;
use super::baselines;
use super::file::PolicyFile;

const FORMAT: &str = "admix-baseline-1";

/// A baseline with everything that it needs.
#[derive(Debug, Clone)]
pub struct BaselineFile {
    /// One of [`baselines::NAMES`].
    pub name: String,
    pub plan: Plan,
}

impl BaselineFile {
    /// Creates the file of a baseline with its plan.
    ///
    /// # Errors
    /// If the name is unknown, or the plan lacks a part that the baseline needs.
    pub fn new(name: &str, plan: Plan) -> anyhow::Result<Self> {
        let file = Self { name: name.to_owned(), plan };
        file.policy()?;
        Ok(file)
    }

    /// Encodes the file: safetensors without tensors, all data in its metadata. The same baseline gives the same bytes.
    ///
    /// # Errors
    /// If the plan has a number that is not finite.
    pub fn encode(&self) -> anyhow::Result<Vec<u8>> {
        let head = serde_json::json!({ "format": FORMAT, "baseline": self.name, "plan": &self.plan });
        let metadata = HashMap::from([("admix".to_owned(), serde_json::to_string(&head)?)]);
        let none: [(&str, TensorView); 0] = [];
        Ok(safetensors::serialize(none, Some(metadata))?)
    }

    /// Writes the file by rename.
    ///
    /// # Errors
    /// If the disk does not accept it.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let bytes = self.encode()?;
        files::replace_synced(path, &bytes).with_context(|| format!("cannot write the policy {}", path.display()))
    }

    /// Returns the baseline, ready to serve.
    ///
    /// # Errors
    /// If the name is unknown, or the plan lacks a part that the baseline needs.
    pub fn policy(&self) -> anyhow::Result<Box<dyn Policy>> {
        baselines::named(&self.name, Some(&self.plan)).map_err(anyhow::Error::msg)
    }
}

/// Content of a policy file.
#[derive(Debug, Clone)]
pub enum Stored {
    Learned(PolicyFile),
    Baseline(BaselineFile),
}

impl Stored {
    /// Reads a file, or the best policy of a run directory.
    ///
    /// # Errors
    /// If the file is unreadable, is not a policy, or has another version.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let (path, bytes) = PolicyFile::find(path)?;
        Self::decode(&bytes).with_context(|| format!("{} is not a usable policy", path.display()))
    }

    /// Decodes the bytes of a policy file.
    ///
    /// # Errors
    /// As [`Stored::read`].
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let text = header.metadata().as_ref().and_then(|m| m.get("admix")).context("it has no `admix` metadata")?;
        let mut head: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
        if head.get("format").is_none_or(|format| format != FORMAT) {
            return Ok(Self::Learned(PolicyFile::decode(bytes)?));
        }
        let mut field = |name: &str| head.remove(name).with_context(|| format!("its metadata lack `{name}`"));
        let name: String = serde_json::from_value(field("baseline")?)?;
        let plan: Plan = serde_json::from_value(field("plan")?)?;
        plan.check()?;
        Ok(Self::Baseline(BaselineFile::new(&name, plan)?))
    }

    /// Whether the policy counts its displays as delivered before they are observed.
    pub fn predicts(&self) -> bool {
        match self {
            Self::Learned(file) => file.spec.policy.predicts(),
            Self::Baseline(file) => file.name.ends_with(baselines::PREDICTING),
        }
    }

    /// Returns the plan that the policy was made with.
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Learned(file) => &file.plan,
            Self::Baseline(file) => &file.plan,
        }
    }

    /// Returns the ids that a day has to index for the policy; none for a baseline.
    pub fn vocabulary(&self) -> Vocabulary {
        match self {
            Self::Learned(file) => file.spec.vocabulary.clone(),
            Self::Baseline(_) => Vocabulary::default(),
        }
    }

    /// Returns the policy, ready to serve.
    pub fn policy(&self) -> Box<dyn Policy> {
        match self {
            Self::Learned(file) => Box::new(file.policy()),
            Self::Baseline(file) => file.policy().expect("checked when it was made"),
        }
    }

    /// Returns `learned`, or the baseline's name.
    pub fn title(&self) -> &str {
        match self {
            Self::Learned(_) => "learned",
            Self::Baseline(file) => &file.name,
        }
    }
}
