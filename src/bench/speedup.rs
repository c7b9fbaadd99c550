//! What the processes are worth: the same configuration trained in parallel and in serial mode, one after the other.
//!
//! Both run to the end of their budget; then the time is compared at which each first reached a validation share half a
//! point below what both reach in the end (the very best evaluation is luck of the draw in either).

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::watched::train_command;

#[derive(Debug, Clone, Serialize)]
pub struct SpeedupReport {
    pub cores: usize,
    pub pairs: Vec<Pair>,
    /// Mean over the seeds of serial time over parallel time to the same share.
    pub mean_speedup: f64,
    /// The same of the whole runs.
    pub mean_whole_speedup: f64,
}

/// One seed. Times in seconds since the processes were started.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    pub seed: u64,
    /// The validation share that both are timed to.
    pub share: f64,
    pub serial_seconds: f64,
    pub parallel_seconds: f64,
    pub speedup: f64,
    pub serial_whole_seconds: f64,
    pub parallel_whole_seconds: f64,
    pub serial_best_share: f64,
    pub parallel_best_share: f64,
}

impl fmt::Display for SpeedupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed  share  serial s  parallel s  speed-up  whole: serial s  parallel s  best share: serial  parallel"
        )?;
        for p in &self.pairs {
            writeln!(
                f,
                "{:>4}  {:>5.2}  {:>8.1}  {:>10.1}  {:>8.2}  {:>15.1}  {:>10.1}  {:>18.2}  {:>8.2}",
                p.seed,
                100.0 * p.share,
                p.serial_seconds,
                p.parallel_seconds,
                p.speedup,
                p.serial_whole_seconds,
                p.parallel_whole_seconds,
                100.0 * p.serial_best_share,
                100.0 * p.parallel_best_share
            )?;
        }
        write!(
            f,
            "speed-up on {} cores: {:.2} to the same share, {:.2} for the whole run (means)",
            self.cores, self.mean_speedup, self.mean_whole_speedup
        )
    }
}

/// How far below the lower of the two best shares the finish line lies.
const MARGIN: f64 = 0.005;

/// A line of `metrics.jsonl`, as far as it matters here.
#[derive(Deserialize)]
struct Line {
    time: f64,
    kind: String,
    share: Option<f64>,
}

/// A run as its evaluations tell it.
struct Run {
    /// Seconds since the start and the best share by then.
    best: Vec<(f64, f64)>,
}

impl Run {
    fn train(config: &Path, sets: &[String], seed: u64, serial: bool) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let run_dir = dir.path().join("run");
        let sets = [sets, &["stop.patience=0".into()]].concat();
        let mut command = train_command(config, &sets, &run_dir)?;
        command.arg("--seed").arg(seed.to_string());
        if serial {
            command.arg("--serial");
        }
        let output = command.output()?;
        ensure!(output.status.success(), "training failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        let text = std::fs::read_to_string(run_dir.join("metrics.jsonl"))?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Line>, _>>()?;
        let start = lines.iter().find(|l| l.kind == "start").context("metrics have no start")?.time;
        let mut best = Vec::new();
        let mut top = f64::NEG_INFINITY;
        for line in lines.iter().filter(|l| l.kind == "evaluation") {
            top = top.max(line.share.unwrap_or(f64::NEG_INFINITY));
            best.push((line.time - start, top));
        }
        ensure!(!best.is_empty(), "the run made no evaluation");
        Ok(Self { best })
    }

    fn best_share(&self) -> f64 {
        self.best.last().map_or(f64::NAN, |b| b.1)
    }

    fn whole(&self) -> f64 {
        self.best.last().map_or(f64::NAN, |b| b.0)
    }

    fn reaches(&self, share: f64) -> f64 {
        self.best.iter().find(|b| b.1 >= share).map_or(f64::NAN, |b| b.0)
    }
}

/// Trains `config` with seeds `1..=seeds` in both modes.
pub fn run(config: &Path, sets: &[String], seeds: u64) -> anyhow::Result<SpeedupReport> {
    let mut pairs = Vec::new();
    for seed in 1..=seeds {
        let serial = Run::train(config, sets, seed, true)?;
        let parallel = Run::train(config, sets, seed, false)?;
        let share = serial.best_share().min(parallel.best_share()) - MARGIN;
        let (serial_seconds, parallel_seconds) = (serial.reaches(share), parallel.reaches(share));
        pairs.push(Pair {
            seed,
            share,
            serial_seconds,
            parallel_seconds,
            speedup: serial_seconds / parallel_seconds,
            serial_whole_seconds: serial.whole(),
            parallel_whole_seconds: parallel.whole(),
            serial_best_share: serial.best_share(),
            parallel_best_share: parallel.best_share(),
        });
    }
    let mean = |f: fn(&Pair) -> f64| pairs.iter().map(f).sum::<f64>() / pairs.len().max(1) as f64;
    Ok(SpeedupReport {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        mean_speedup: mean(|p| p.speedup),
        mean_whole_speedup: mean(|p| p.serial_whole_seconds / p.parallel_whole_seconds),
        pairs,
    })
}
