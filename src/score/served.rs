//! What is served: a day before it begins, and a policy with its plan.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use twox_hash::XxHash3_64;

use crate::env::{KnownDay, Vocabulary};
use crate::evaluate::familiar::NewContracts;
use crate::log::compiled::Contract;
use crate::log::day::Day;
use crate::log::schema::ControlRow;
use crate::log::{LogError, control, inventory};
use crate::plan::{Forecast, Plan};
use crate::policy::file::PolicyFile;
use crate::policy::stored::{BaselineFile, Stored};
use crate::policy::{Policy, baselines};
use crate::values::{Told, ValueModel, store};

/// The files that say what is known of a day before it begins.
#[derive(Debug, Clone)]
pub struct DayFiles {
    pub control: PathBuf,
    /// Default: the plan's forecast.
    pub inventory: Option<PathBuf>,
    /// A `day.toml`. Default: UTC, and the date of the first request.
    pub day: Option<PathBuf>,
}

/// A day that is to be served.
#[derive(Debug, Clone)]
pub struct ServedDay {
    pub day: Day,
    pub contracts: Vec<ControlRow>,
    /// `None`: the plan's.
    pub forecast: Option<Forecast>,
    /// The values that the policy is told: those of the requests, or a model's.
    pub values: Option<Arc<ValueModel>>,
}

impl ServedDay {
    /// Reads the files; without a `day.toml` the day is the UTC day that holds `ts_ms`.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub fn read(files: &DayFiles, ts_ms: u64) -> Result<Self, LogError> {
        let day = match &files.day {
            Some(path) => Day::read_file(path)?,
            None => Day::of_timestamp(ts_ms),
        };
        let contracts = control::read(&files.control, &day)?;
        let forecast = match &files.inventory {
            Some(path) => Some(Forecast::from_inventory(&inventory::read(path)?)),
            None => None,
        };
        Ok(Self { day, contracts, forecast, values: None })
    }

    /// The same day, at which the policy is told these values.
    #[must_use]
    pub fn told(self, told: &Told) -> Self {
        let values = match told {
            Told::Model(model) => Some(model.clone()),
            Told::Logged | Told::Table(_) => None,
        };
        Self { values, ..self }
    }

    /// Counts the contracts that are new to a policy; `None` where none is, or where its plan knows no world.
    pub fn new_to(&self, policy: &ServedPolicy) -> Option<NewContracts> {
        let plan = policy.plan();
        let owed = self.contracts.iter().map(|c| (c.ad_id, c.required.saturating_sub(c.delivered0)));
        let new = NewContracts::among(plan, &policy.vocabulary(), owed);
        (new.unknown > 0 && !plan.forecast.nodes.is_empty()).then_some(new)
    }

    /// The day as a policy may know it.
    pub fn known(&self, policy: &ServedPolicy) -> KnownDay {
        let (plan, vocabulary) = (policy.plan(), policy.vocabulary());
        let contracts: Vec<Contract> = self.contracts.iter().map(Contract::before_the_day).collect();
        let forecast = self.forecast.as_ref().unwrap_or(&plan.forecast);
        let known = KnownDay::new(&contracts, self.day.start_ms, forecast, plan, vocabulary);
        if policy.predicts() { known.predicting() } else { known }
    }
}

/// A policy that serves, with the plan that it was made with.
pub struct ServedPolicy {
    stored: Stored,
    /// Tells versions of what is served apart: a hash of the policy's file, or the baseline and a hash of its plan.
    pub version: String,
    /// File of the policy, or of a baseline's plan.
    path: Option<PathBuf>,
}

/// Values that a served policy is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServedValues {
    /// Those that it was made at: the requests' own, or those of a model that lies beside it.
    #[default]
    Own,
    /// Those of the requests.
    Logged,
    /// Those of the model in a folder.
    Model(PathBuf),
}

impl From<&Path> for ServedValues {
    fn from(path: &Path) -> Self {
        if path == Path::new("logged") { Self::Logged } else { Self::Model(path.to_owned()) }
    }
}

/// What a baseline is called as a policy.
const BASELINE: &str = "baseline:";

impl ServedPolicy {
    /// Opens a policy: a run directory (its best policy), a policy file, or `baseline:NAME`, which takes its plan from `plan`. A
    /// policy file carries the plan that it was made with and goes by that one, as in evaluation.
    ///
    /// # Errors
    /// No such policy, or a baseline without the plan that it needs.
    pub fn open(policy: &str, plan: Option<&Path>) -> anyhow::Result<Self> {
        let Some(name) = policy.strip_prefix(BASELINE) else {
            let (path, bytes) = PolicyFile::find(Path::new(policy))?;
            let version = format!("{:016x}", XxHash3_64::oneshot(&bytes));
            let stored =
                Stored::decode(&bytes).with_context(|| format!("{} is not a usable policy", path.display()))?;
            return Ok(Self { stored, version, path: Some(path) });
        };
        let path = plan.map(Path::to_owned);
        let plan = plan.map(Plan::read).transpose()?;
        baselines::named(name, plan.as_ref()).map_err(anyhow::Error::msg)?;
        let plan = plan.unwrap_or_else(Plan::empty);
        let version = format!("{policy}@{:016x}", XxHash3_64::oneshot(&plan.to_json()));
        Ok(Self { stored: Stored::Baseline(BaselineFile::new(name, plan)?), version, path })
    }

    /// A policy that is not read from a file; `version` tells it from others.
    pub fn of_file(file: PolicyFile, version: String) -> Self {
        Self { stored: Stored::Learned(file), version, path: None }
    }

    /// Returns the values that the policy is told.
    ///
    /// # Errors
    /// If a model is missing or damaged.
    pub fn values(&self, given: &ServedValues) -> anyhow::Result<Told> {
        match (given, &self.path) {
            (ServedValues::Model(folder), _) => Told::model(folder),
            (ServedValues::Own, Some(path)) => store::of_policy(path, &self.plan().told).context(
                "the policy cannot be told the values that it was made at; name them with --values, or give it those of the \
                 requests with --values logged",
            ),
            (ServedValues::Own, None) | (ServedValues::Logged, _) => Ok(Told::Logged),
        }
    }

    /// Logs which values the policy is told, where they are not those of the requests, or others than it was made at.
    pub fn log_values(&self, told: &Told) {
        let made_at = &self.plan().told;
        if told.to_string() != *made_at {
            tracing::warn!("the policy was made at other values ({made_at}) than it is told now ({told})");
        } else if !told.is_logged() {
            tracing::info!("the policy is told {told}");
        }
    }

    /// The plan that it goes by.
    pub fn plan(&self) -> &Plan {
        self.stored.plan()
    }

    /// Whether it counts its displays as delivered before they are observed.
    pub fn predicts(&self) -> bool {
        self.stored.predicts()
    }

    /// Returns the name of a baseline that draws on each request; `None` for policies that do not.
    pub fn draws(&self) -> Option<&str> {
        let name = self.stored.title();
        baselines::draws(name).then_some(name)
    }

    pub fn vocabulary(&self) -> Arc<Vocabulary> {
        Arc::new(self.stored.vocabulary())
    }

    /// The policy, before a day begins.
    pub fn policy(&self) -> Box<dyn Policy> {
        self.stored.policy()
    }
}
