//! `manifest.json`: a description of the run for later readers of its directory.

use serde::Serialize;
use serde_json::Value;

use crate::run::context::{Context, compile_options};
use crate::run::{RunDirectory, context};

use super::Outcome;

/// What the manifest of a run of any kind says: its program, machine and times.
#[derive(Debug, Serialize)]
pub struct Facts {
    admix: &'static str,
    mode: &'static str,
    seed: u64,
    /// Hash of the resolved configuration.
    config_hash: String,
    host: String,
    cores: usize,
    device: String,
    started: String,
    /// Times at which the run was resumed.
    resumed: Vec<String>,
    ended: Option<String>,
}

impl Facts {
    /// Of a run that starts now with a resolved configuration, after the `earlier` starts of the same run.
    pub fn begin(mode: &'static str, seed: u64, config: &str, device: &str, earlier: Vec<String>) -> Self {
        let mut starts = earlier.into_iter().chain([now()]);
        let (started, resumed) = (starts.next().unwrap_or_default(), starts.collect());
        Self {
            admix: env!("CARGO_PKG_VERSION"),
            mode,
            seed,
            config_hash: format!("{:016x}", twox_hash::XxHash3_64::oneshot(config.as_bytes())),
            host: nix::unistd::gethostname().map_or_else(|_| String::new(), |h| h.to_string_lossy().into_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            device: device.to_owned(),
            started,
            resumed,
            ended: None,
        }
    }

    /// Records that the run ends now.
    pub fn end(&mut self) {
        self.ended = Some(now());
    }
}

/// Returns the times at which the run of a manifest was started and resumed.
pub fn starts(manifest: &Value) -> Vec<String> {
    let again = manifest["resumed"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(&manifest["started"]).chain(again).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The manifest of `admix train`; written at the start and again at the end.
#[derive(Debug, Serialize)]
pub struct Manifest {
    #[serde(flatten)]
    facts: Facts,
    rate_seed: u64,
    data: Vec<DataEntry>,
    /// The values (logged or corrected) that planning, training and policies saw.
    told: String,
    outcome: Option<Outcome>,
    /// Reason of the failure, if the run failed.
    failure: Option<String>,
}

#[derive(Debug, Serialize)]
struct DataEntry {
    role: &'static str,
    path: String,
    /// Hash of the inputs.
    inputs: String,
    requests: u64,
    quarantined: u64,
    /// For a training day: share of its requests that an episode replays, and of its demands that an episode owes, before
    /// jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_share: Option<f64>,
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Manifest {
    /// Describes a run that starts now, after the `earlier` starts of the same run.
    pub fn begin(context: &Context, mode: &'static str, device: &str, earlier: Vec<String>) -> anyhow::Result<Self> {
        let settings = &context.settings;
        let mut data = Vec::new();
        let sets =
            [("train", &settings.data.train), ("validation", &settings.data.validation), ("test", &settings.data.test)];
        for (role, dirs) in sets {
            for (dir, log) in dirs.iter().zip(context::open_logs(dirs, compile_options(settings), &context.told)?) {
                data.push(DataEntry {
                    role,
                    path: dir.display().to_string(),
                    inputs: context::inputs_hash(dir, &log)?,
                    requests: log.requests().len() as u64,
                    quarantined: log.counts().quarantined,
                    replayed_share: (role == "train")
                        .then(|| settings.episodes.share_of(log.requests().len(), settings.requests_per_step())),
                });
            }
        }
        Ok(Self {
            facts: Facts::begin(mode, settings.run.seed, &settings.to_toml(), device, earlier),
            rate_seed: settings.env.rate_seed,
            data,
            told: context.told.to_string(),
            outcome: None,
            failure: None,
        })
    }

    /// Records the end.
    pub fn end(&mut self, result: &anyhow::Result<Outcome>) {
        self.facts.end();
        match result {
            Ok(outcome) => self.outcome = Some(outcome.clone()),
            Err(e) => self.failure = Some(format!("{e:#}")),
        }
    }

    pub fn write(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        directory.replace(&directory.manifest(), &serde_json::to_vec_pretty(self)?)
    }
}

/// Whether the run of a manifest came to its own end: it was not interrupted, killed or broken.
pub fn is_finished(manifest: &Value) -> bool {
    matches!(manifest["outcome"]["reason"].as_str(), Some("budget" | "converged"))
}
