//! The job's file: where days arrive, how they are split, which are suspect, and what is promoted.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::env::Delay;
use crate::policy::baselines;

/// Reason why a job takes no `data.values`, and the remedy.
pub const NO_VALUES: &str = "a night chooses its values itself: name a configuration of value training in `values.train` of the \
                             job (docs/retrain.md)";

/// A nightly job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Folder of the history, the promoted policies and the nights.
    pub jobs: PathBuf,
    /// Configuration of training; the job sets its `data` section.
    pub config: PathBuf,
    /// Configuration keys, as for `--set`.
    #[serde(default)]
    pub set: Vec<String>,
    pub days: Days,
    #[serde(default)]
    pub values: Values,
    #[serde(default)]
    pub drift: Drift,
    #[serde(default)]
    pub promote: Promote,
    #[serde(default)]
    pub keep: Keep,
}

/// Folder of the day directories, and the number of days per role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Days {
    pub dir: PathBuf,
    /// Name pattern of a day directory with its date, in strftime syntax: `%Y-%m-%d`, `day=%Y%m%d`.
    #[serde(default = "pattern")]
    pub pattern: String,
    /// Maximum number of days of each role; where there are fewer days, each role has fewer.
    #[serde(default = "seven")]
    pub train: usize,
    #[serde(default = "two")]
    pub validation: usize,
    #[serde(default = "five")]
    pub heldout: usize,
    /// Dates that are used even if they exceed the drift limits.
    #[serde(default)]
    pub accept: Vec<String>,
    /// Maximum age of the newest day, in days before today's UTC date; 0 = any age.
    #[serde(default)]
    pub max_age_days: u32,
}

fn pattern() -> String {
    "%Y-%m-%d".into()
}

fn seven() -> usize {
    7
}

fn two() -> usize {
    2
}

fn five() -> usize {
    5
}

/// Values that the night corrects from exposures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Configuration of `admix values train`; the job sets its days. Empty: the logged values are used.
    pub train: PathBuf,
    /// Configuration keys of value training, as for `--set`.
    pub set: Vec<String>,
}

/// Factors by which a figure of a day may differ from its median over the earlier valid days; beyond them the day is suspect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drift {
    pub requests: f64,
    /// Median best auction eCPM.
    pub ecpm: f64,
    /// Mean penalty, weighted by the impressions owed.
    pub penalty: f64,
    /// Mean pctr of the contract entries.
    pub pctr: f64,
    /// Impressions owed per request.
    pub owed: f64,
    /// Ratio of the mean penalty to the worth of an auction impression, in either direction, on any day; beyond it units are
    /// mixed.
    pub unit: f64,
}

impl Default for Drift {
    fn default() -> Self {
        Self { requests: 3.0, ecpm: 3.0, penalty: 3.0, pctr: 5.0, owed: 3.0, unit: 200.0 }
    }
}

/// Conditions of promotion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Promote {
    /// Points of share that the lower end of the paired 95 % interval must exceed.
    pub margin: f64,
    /// Maximum increase of the mean shortage rate over the incumbent's.
    pub max_shortage_increase: f64,
    /// Baselines that may be promoted; empty: all but random.
    pub baselines: Vec<String>,
}

impl Promote {
    /// Returns the baselines that may be promoted; where deliveries are observed late, those that predict them are among all.
    pub fn baselines(&self, delay: Delay) -> Vec<String> {
        let all = baselines::NAMES.into_iter().filter(|name| *name != "random").map(String::from);
        let predicting = (delay.most_s() > 0.0).then(baselines::predictors).into_iter().flatten();
        if self.baselines.is_empty() { all.chain(predicting).collect() } else { self.baselines.clone() }
    }
}

impl Default for Promote {
    fn default() -> Self {
        Self { margin: 0.0, max_shortage_increase: 0.02, baselines: vec![] }
    }
}

/// Limits of what is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keep {
    /// Number of newest nights whose run directories are kept.
    pub nights: usize,
    /// Number of newest promoted policies that are kept; the served one is never removed.
    pub policies: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Self { nights: 14, policies: 60 }
    }
}

impl Job {
    /// Loads a job's file. Relative paths are resolved beside it.
    ///
    /// # Errors
    /// An unreadable file, an unknown key, a value that cannot be used.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the job {}", path.display()))?;
        let mut job: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        for place in [&mut job.jobs, &mut job.config, &mut job.days.dir] {
            *place = folder.join(&*place);
        }
        if !job.values.train.as_os_str().is_empty() {
            job.values.train = folder.join(&job.values.train);
        }
        job.check().with_context(|| path.display().to_string())?;
        Ok(job)
    }

    fn check(&self) -> anyhow::Result<()> {
        let Self { days, drift, promote, keep, .. } = self;
        for (key, n) in [("train", days.train), ("validation", days.validation), ("heldout", days.heldout)] {
            ensure!(n > 0, "`days.{key}` must be at least 1");
        }
        super::days::check_pattern(&days.pattern)?;
        let limits = [
            ("requests", drift.requests),
            ("ecpm", drift.ecpm),
            ("penalty", drift.penalty),
            ("pctr", drift.pctr),
            ("owed", drift.owed),
            ("unit", drift.unit),
        ];
        for (key, factor) in limits {
            ensure!(factor > 1.0, "`drift.{key}` is {factor}; a factor above 1 (1e9 allows everything)");
        }
        ensure!(
            (0.0..=100.0).contains(&promote.margin),
            "`promote.margin` is {}; points of share, 0..=100: below 0 it would promote a policy that is worse than what is served",
            promote.margin
        );
        ensure!(
            (0.0..=1.0).contains(&promote.max_shortage_increase),
            "`promote.max_shortage_increase` is a shortage rate, 0..=1"
        );
        if let Some(unknown) = promote.baselines.iter().find(|name| !baselines::NAMES.contains(&name.as_str())) {
            bail!("`promote.baselines` has `{unknown}`; there are {}", baselines::NAMES.join(", "));
        }
        ensure!(keep.nights > 0 && keep.policies > 0, "`keep.nights` and `keep.policies` must be at least 1");
        for set in &self.set {
            let key = set.split('=').next().unwrap_or(set).trim();
            ensure!(
                !key.starts_with("data.train") && !key.starts_with("data.validation") && !key.starts_with("data.test"),
                "`set` has `{key}`: the days are the job's own to choose, by `days`"
            );
            ensure!(!key.starts_with("data.values"), "`set` has `{key}`: {NO_VALUES}");
        }
        for set in &self.values.set {
            let key = set.split('=').next().unwrap_or(set).trim();
            ensure!(
                !["values.train", "values.validation"].contains(&key),
                "`values.set` has `{key}`: the days are the job's own to choose, by `days`"
            );
        }
        Ok(())
    }
}
