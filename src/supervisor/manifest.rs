//! `manifest.json`: a description of the run for later readers of its directory.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::files;
use crate::run::context::{Context, compile_options};
use crate::run::{RunDirectory, context};

use super::Outcome;

/// Bytes at the end of `metrics.jsonl` in which its last record is looked for.
const TAIL: u64 = 64 << 10;

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
}

/// Returns the times at which the run of a manifest was started and resumed.
pub fn starts(manifest: &Value) -> Vec<String> {
    let again = manifest["resumed"].as_array().map_or(&[][..], Vec::as_slice);
    std::iter::once(&manifest["started"]).chain(again).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the seconds that the sessions of a run took since it was last started over, by the manifest of the last of them. If that one
/// failed or was killed, its time until its end, or until its last record in `metrics`, is counted.
pub fn seconds_before(manifest: &Value, metrics: &Path) -> f64 {
    let of_all = |part: &Value| part["seconds"].as_f64().unwrap_or(0.0);
    if manifest["outcome"].is_object() {
        return of_all(&manifest["outcome"]);
    }
    let seconds = |text: &str| text.parse::<jiff::Timestamp>().ok().map(|time| time.as_second() as f64);
    let begun = starts(manifest).last().and_then(|text| seconds(text));
    let ended = manifest["ended"].as_str().and_then(seconds).or_else(|| last_record(metrics));
    let last = begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).max(0.0));
    of_all(&manifest["before"]) + last
}

/// Returns the time of the last record in `metrics.jsonl`, Unix seconds.
fn last_record(path: &Path) -> Option<f64> {
    let mut file = files::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail).ok()?;
    // The first and the last line may be cut.
    tail.rsplit(|b| *b == b'\n').find_map(|line| serde_json::from_slice::<Value>(line).ok()?["time"].as_f64())
}

/// The manifest of a run; written at the start and again at the end. `T` is what only a training of its kind says, `O` its outcome.
#[derive(Debug, Serialize)]
pub struct Manifest<T, O> {
    #[serde(flatten)]
    facts: Facts,
    #[serde(flatten)]
    training: T,
    outcome: Option<O>,
    /// Reason of the failure, if the run failed.
    failure: Option<String>,
}

impl<T: Serialize, O: Serialize + Clone> Manifest<T, O> {
    /// Describes a run that starts now.
    pub(super) fn new(facts: Facts, training: T) -> Self {
        Self { facts, training, outcome: None, failure: None }
    }

    /// Records the end.
    pub fn end(&mut self, result: &anyhow::Result<O>) {
        self.facts.ended = Some(now());
        match result {
            Ok(outcome) => self.outcome = Some(outcome.clone()),
            Err(e) => self.failure = Some(format!("{e:#}")),
        }
    }

    pub fn write(&self, directory: &RunDirectory) -> anyhow::Result<()> {
        directory.replace(&directory.manifest(), &serde_json::to_vec_pretty(self)?)
    }
}

/// The manifest of `admix train`.
pub type PolicyManifest = Manifest<PolicyTraining, Outcome>;

/// What the manifest of `admix train` alone says.
#[derive(Debug, Serialize)]
pub struct PolicyTraining {
    rate_seed: u64,
    data: Vec<DataEntry>,
    /// The values (logged or corrected) that planning, training and policies saw.
    told: String,
    before: Before,
}

/// What earlier sessions took since the run was last started over; part of the outcome.
#[derive(Debug, Serialize)]
struct Before {
    seconds: f64,
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

impl PolicyManifest {
    /// Describes a run that starts now, after the `earlier` starts of the same run. Its sessions took so many `seconds` since it was last
    /// started over.
    pub fn begin(
        context: &Context,
        mode: &'static str,
        device: &str,
        (earlier, seconds): (Vec<String>, f64),
    ) -> anyhow::Result<Self> {
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
        let told = context.told.to_string();
        Ok(Self::new(
            Facts::begin(mode, settings.run.seed, &settings.to_toml(), device, earlier),
            PolicyTraining { rate_seed: settings.env.rate_seed, data, told, before: Before { seconds } },
        ))
    }
}

/// Whether the run of a manifest came to its own end: it was not interrupted, killed or broken.
pub fn is_finished(manifest: &Value) -> bool {
    matches!(manifest["outcome"]["reason"].as_str(), Some("budget" | "converged"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The totals of a run that had been resumed stood beside the seconds of its last session.
    #[test]
    fn a_run_took_as_long_as_all_of_its_sessions() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics.jsonl");
        let before = |manifest: &Value| seconds_before(manifest, &metrics);
        assert_eq!(before(&Value::Null), 0.0, "the first start");
        let first = json!({"started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:16Z",
            "before": {"seconds": 0.0}, "outcome": {"seconds": 15.5}});
        assert_eq!(before(&first), 15.5);
        let failed = json!({"started": "2026-01-01T00:00:00Z", "resumed": ["2026-01-02T00:00:00Z"],
            "ended": "2026-01-02T00:00:30Z", "before": {"seconds": 15.5}, "outcome": null, "failure": "no room"});
        assert_eq!(before(&failed), 45.5, "it failed after 30 s");
        let mut resumed = failed.clone();
        resumed["outcome"] = json!({"seconds": 45.0});
        assert_eq!(before(&resumed), 45.0, "an outcome is that of all sessions");

        let mut killed = failed;
        killed["ended"] = Value::Null;
        assert_eq!(before(&killed), 15.5, "there are no records");
        let begun = "2026-01-02T00:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second();
        let of_first = format!("{{\"time\": {}}}\n", begun - 86_390);
        std::fs::write(&metrics, &of_first).unwrap();
        assert_eq!(before(&killed), 15.5, "it left no record");
        let records = format!("{of_first}{{\"time\": {begun}}}\n{{\"time\": {}.5}}\n{{\"ti", begun + 7);
        std::fs::write(&metrics, records).unwrap();
        assert_eq!(before(&killed), 23.0, "until its last record, before a torn one");
        let mut over = killed;
        over["before"]["seconds"] = json!(0.0);
        assert_eq!(before(&over), 7.5, "the run was started over");
    }
}
