//! Lists the runs in a folder and compares them: differences of their configurations and of their shares.
//!
//! Runs are compared on their common reported days, identified by content, hour by hour as recorded in their `report.json`; the
//! logs are not opened again. Runs of the same name, or of logs that have moved, can therefore be compared as well.

mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;
use toml::Table;

use crate::evaluate::verdict::{self, Decision, Verdict};
use crate::evaluate::{DayReport, PolicyReport};
use crate::report::{CHOSEN, RunReport};
use crate::run::RunDirectory;
use crate::values::ValueModel;

pub use text::render;

/// Maximum depth of run directories below the folder.
const DEPTH: usize = 3;

/// A run as described by its directory.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Path below the folder.
    pub name: String,
    /// `values` for a run of `admix values train`, `train` for every other.
    pub kind: &'static str,
    pub started: String,
    /// `running`, `budget`, `converged`, `interrupted`, `failed` or `killed`.
    pub state: String,
    pub updates: Option<u64>,
    pub seconds: Option<f64>,
    /// Best share on the validation days.
    pub validation_share: Option<f64>,
    /// Mean share of the chosen policy on the reported days.
    pub test_share: Option<f64>,
    pub verdict: Option<Verdict>,
    #[serde(skip)]
    config: Table,
    #[serde(skip)]
    days: Vec<(String, DayReport)>,
}

/// Difference of a run's share to another one's on the days that both reported.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub run: String,
    pub against: String,
    pub days: Vec<String>,
    /// Difference in points, and its 95 % interval within these days.
    pub difference: f64,
    pub interval: [f64; 2],
    pub decision: Decision,
}

/// Contents of `admix runs`.
#[derive(Debug, Serialize)]
pub struct Runs {
    /// Runs, oldest first.
    pub runs: Vec<Listed>,
    /// Keys in which the configurations of runs of the same kind differ, with the value of each run; `null` if a run's program did
    /// not know the key.
    pub differing: BTreeMap<String, Vec<Value>>,
    pub compared: Vec<Compared>,
    /// Directories that look like runs but cannot be read, with the reason.
    pub unreadable: Vec<String>,
}

/// Reads every run in `folder`, which may be one itself, and compares them with the run called `against`, by default the oldest
/// one.
///
/// # Errors
/// A folder that cannot be listed or has no run; no run called `against`.
pub fn list(folder: &Path, against: Option<&str>) -> anyhow::Result<Runs> {
    let mut dirs = Vec::new();
    find(folder, DEPTH, &mut dirs).with_context(|| format!("cannot list {}", folder.display()))?;
    anyhow::ensure!(!dirs.is_empty(), "there is no run in {}; name the folder that holds them", folder.display());
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    for dir in dirs {
        match Listed::read(folder, &dir) {
            Ok(run) => runs.push(run),
            Err(e) => unreadable.push(format!("{}: {e:#}", dir.display())),
        }
    }
    runs.sort_by(|a, b| (&a.started, &a.name).cmp(&(&b.started, &b.name)));
    let reference = match against {
        Some(name) => Some(runs.iter().position(|r| r.name == name).with_context(|| {
            let names: Vec<&str> = runs.iter().map(|r| r.name.as_str()).collect();
            format!("no run `{name}`; there are {}", names.join(", "))
        })?),
        None => runs.iter().position(|r| !r.days.is_empty()),
    };
    let compared = reference.map_or_else(Vec::new, |reference| {
        let others = runs.iter().enumerate().filter(|(i, _)| *i != reference);
        others.filter_map(|(_, run)| run.compare(&runs[reference])).collect()
    });
    Ok(Runs { differing: differing(&runs), runs, compared, unreadable })
}

/// Collects the run directories below a folder.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join("manifest.json").is_file() && folder.join("config.toml").is_file() {
        found.push(folder.to_owned());
        return Ok(());
    }
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    if depth > 0 {
        for entry in entries.iter().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
            // A folder that cannot be read belongs to another user.
            let _ = find(&entry.path(), depth - 1, found);
        }
    }
    Ok(())
}

impl Listed {
    fn read(folder: &Path, dir: &Path) -> anyhow::Result<Self> {
        let manifest: Value = serde_json::from_slice(&std::fs::read(dir.join("manifest.json"))?)?;
        let config: Table = toml::from_str(&std::fs::read_to_string(dir.join("config.toml"))?)?;
        let outcome = &manifest["outcome"];
        let stage = ValueModel::unfinished(dir);
        let state = match (outcome["reason"].as_str(), manifest["failure"].as_str()) {
            (Some(reason), _) if stage.is_none() => reason,
            // Another user's lock cannot be examined.
            _ if RunDirectory::inspect(dir)?.is_in_use().unwrap_or(false) => "running",
            (_, Some(_)) => "failed",
            _ => stage.as_ref().map_or("killed", |stage| &stage.state),
        };
        let report = RunReport::read(dir)?;
        let days: Vec<(String, DayReport)> =
            report.iter().flat_map(|report| &report.days).map(|day| (day.inputs.clone(), day.evaluated())).collect();
        let reported: Vec<DayReport> = days.iter().map(|(_, day)| day.clone()).collect();
        let own = dir.strip_prefix(folder).ok().filter(|name| !name.as_os_str().is_empty());
        let name = own.map_or_else(|| dir.display().to_string(), |name| name.display().to_string());
        Ok(Self {
            name,
            kind: if manifest["mode"] == "values" { "values" } else { "train" },
            started: manifest["started"].as_str().unwrap_or_default().to_owned(),
            state: state.to_owned(),
            updates: outcome["updates"].as_u64(),
            seconds: outcome["seconds"].as_f64(),
            validation_share: outcome["best_share"].as_f64(),
            test_share: verdict::mean_share(&reported, CHOSEN),
            verdict: report.and_then(|report| report.judgement).map(|judgement| judgement.verdict),
            config,
            days,
        })
    }

    /// Compares the chosen policies on common days; `None` where there are none.
    fn compare(&self, against: &Self) -> Option<Compared> {
        let chosen = |day: &DayReport, name: &str| -> Option<PolicyReport> {
            let row = day.policies.iter().find(|p| p.name == CHOSEN)?;
            Some(PolicyReport { name: name.to_owned(), ..row.clone() })
        };
        let mut days = Vec::new();
        for (inputs, own) in &self.days {
            let other = against.days.iter().find(|(other, _)| other == inputs).map(|(_, day)| day);
            if let Some(other) = other
                && let (Some(a), Some(b)) = (chosen(own, "own"), chosen(other, "other"))
            {
                days.push(DayReport { policies: vec![a, b], ..own.clone() });
            }
        }
        let paired = verdict::paired(&days, "own", "other")?;
        Some(Compared {
            run: self.name.clone(),
            against: against.name.clone(),
            days: days.into_iter().map(|day| day.log).collect(),
            difference: paired.difference,
            interval: paired.interval,
            decision: paired.decision(),
        })
    }
}

/// Flattens a configuration into dotted keys.
fn flatten(table: &Table, prefix: &str, into: &mut BTreeMap<String, Value>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => flatten(inner, &format!("{prefix}{key}."), into),
            value => drop(into.insert(format!("{prefix}{key}"), serde_json::to_value(value).unwrap_or(Value::Null))),
        }
    }
}

fn differing(runs: &[Listed]) -> BTreeMap<String, Vec<Value>> {
    let configs: Vec<BTreeMap<String, Value>> = runs
        .iter()
        .map(|run| {
            let mut keys = BTreeMap::new();
            flatten(&run.config, "", &mut keys);
            keys
        })
        .collect();
    let keys: BTreeSet<&String> = configs.iter().flat_map(BTreeMap::keys).collect();
    let values = |key: &String| configs.iter().map(|c| c.get(key).cloned().unwrap_or(Value::Null)).collect();
    let all = keys.into_iter().map(|key| (key.clone(), values(key)));
    // The two kinds of runs have different keys.
    let first = |kind: &str| runs.iter().position(|run| run.kind == kind);
    let differs = |values: &[Value]| {
        runs.iter().zip(values).any(|(run, value)| first(run.kind).is_some_and(|i| *value != values[i]))
    };
    all.filter(|(_, values): &(String, Vec<Value>)| differs(values)).collect()
}
