//! Learning curves of the runs: the effort to reach a validation share.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;

use crate::report::records::{Evaluation, Records};

/// Validation shares for which the time of the runs is reported.
pub const MARKS: [f64; 2] = [0.985, 0.99];

/// Learning curve of one run. Times in seconds since its processes were started.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    pub world: String,
    pub variant: String,
    pub seed: u64,
    /// Evaluations on the validation days, by samples.
    pub evaluations: Vec<Evaluated>,
    /// For each of [`MARKS`], the first evaluation that reached it.
    pub reached: Vec<Option<Reached>>,
    pub best_share: Option<f64>,
    pub samples: u64,
    pub seconds: f64,
    /// Staleness of blocks in updates.
    pub mean_lag: f64,
    pub max_lag: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Evaluated {
    pub updates: u64,
    /// Samples that the learner had ingested by then.
    pub samples: f64,
    pub share: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reached {
    pub share: f64,
    pub updates: u64,
    /// Samples that the learner had ingested by then.
    pub samples: f64,
    pub seconds: f64,
}

impl Curve {
    /// Reads the results of a finished run from its directory.
    ///
    /// # Errors
    /// A directory without a readable `metrics.jsonl` or `manifest.json`.
    pub fn read(dir: &Path, world: &str, variant: &str, seed: u64) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let manifest: Value = serde_json::from_str(&read("manifest.json")?)?;
        let records = Records::of(&read("metrics.jsonl")?);
        let outcome = &manifest["outcome"];
        Ok(Self {
            world: world.to_owned(),
            variant: variant.to_owned(),
            seed,
            evaluations: evaluations(&records),
            reached: MARKS.map(|mark| reached(&records, mark)).to_vec(),
            best_share: outcome["best_share"].as_f64(),
            samples: outcome["samples"].as_u64().unwrap_or(0),
            seconds: outcome["seconds"].as_f64().unwrap_or(f64::NAN),
            mean_lag: outcome["policy_lag"]["mean"].as_f64().unwrap_or(f64::NAN),
            max_lag: outcome["policy_lag"]["max"].as_u64().unwrap_or(0),
        })
    }
}

fn evaluations(records: &Records) -> Vec<Evaluated> {
    let evaluated =
        |e: Evaluation| Evaluated { updates: e.updates, samples: samples_at(records, e.updates), share: e.share };
    records.curve().into_iter().map(evaluated).collect()
}

fn reached(records: &Records, mark: f64) -> Option<Reached> {
    let start = records.of_kind("start").next()?["time"].as_f64()?;
    let first = records.curve().into_iter().find(|e| e.share >= mark)?;
    Some(Reached {
        share: first.share,
        updates: first.updates,
        samples: samples_at(records, first.updates),
        seconds: first.time - start,
    })
}

/// Interpolates the number of samples at an update count between the neighbouring records.
fn samples_at(records: &Records, updates: u64) -> f64 {
    let mut known: Vec<(u64, f64)> =
        records.since_start().iter().filter_map(|l| Some((l["updates"].as_u64()?, l["samples"].as_f64()?))).collect();
    known.push((0, 0.0));
    known.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // Of several records at one update count the first is the nearest to the update itself.
    known.dedup_by_key(|(updates, _)| *updates);
    let after = known.partition_point(|&(u, _)| u < updates);
    match (after.checked_sub(1).map(|i| known[i]), known.get(after)) {
        (_, Some(&(u, samples))) if u == updates => samples,
        (Some((u0, s0)), Some(&(u1, s1))) => s0 + (s1 - s0) * (updates - u0) as f64 / (u1 - u0) as f64,
        (Some((_, samples)), None) => samples,
        (None, _) => 0.0,
    }
}
