//! What scoring costs on one core: a request decided, and whole streams of text.

use std::fmt;
use std::io::{BufReader, Cursor};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::log::schema::TrackRow;
use crate::log::{CompileOptions, RawDay};
use crate::policy::file::PolicyFile;
use crate::policy::start::initial_actor;
use crate::score::{DayFiles, Decision, Format, Requests, ScoreOptions, Scorer, ServedDay, ServedPolicy, stream};
use crate::settings::Settings;
use crate::values::ValueModel;

use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct ScoreReport {
    pub queue: usize,
    pub contracts_in_queue: usize,
    pub hidden: usize,
    pub requests: u64,
    /// Whether values are a model's.
    pub values: bool,
    pub requests_per_second: f64,
    /// Of one request, without reading and writing it, microseconds.
    pub p50_us: f64,
    pub p99_us: f64,
    /// Solving prices anew is in here.
    pub max_us: f64,
    pub candidates_per_second: f64,
    /// From text to text.
    pub tsv_candidates_per_second: f64,
    pub jsonl_candidates_per_second: f64,
}

impl fmt::Display for ScoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "score{}: {:.2} us a request of {} candidates, {} of them contracts (p99 {:.2} us, worst with its replanning {:.0} us); {:.0} requests/s, \
             {:.0} k candidates/s decided, {:.0} k from TSV to TSV, {:.0} k from JSON to JSON, on one core",
            if self.values { " at corrected values" } else { "" },
            self.p50_us,
            self.queue,
            self.contracts_in_queue,
            self.p99_us,
            self.max_us,
            self.requests_per_second,
            self.candidates_per_second / 1e3,
            self.tsv_candidates_per_second / 1e3,
            self.jsonl_candidates_per_second / 1e3
        )
    }
}

/// Scores a day of `size` with an untrained network of the default settings, at the values of a model where one is given.
pub fn run(size: WorldSize, settings: &Settings, values: Option<Arc<ValueModel>>) -> anyhow::Result<ScoreReport> {
    let dir = world::written(size)?;
    let (model, plan) = world::day(size)?;
    let spec = world::spec(&model, settings);
    let actor = initial_actor(&spec, 1);
    let policy = ServedPolicy::of_file(PolicyFile { spec, plan, actor, updates: 0 }, "bench".into());
    let path = dir.path();
    let files = DayFiles { control: path.join("control.tsv"), inventory: None, day: Some(path.join("day.toml")) };
    let with_values = values.is_some();
    let day = ServedDay::read(&files, 0)?.told(values);
    let rows = RawDay::read(path, CompileOptions::default())?.rows;

    let mut scorer = Scorer::new(&day, &policy, ScoreOptions::default())?;
    let mut decision = Decision::default();
    let mut times = Vec::with_capacity(rows.len());
    let mut candidates = 0;
    let started = Instant::now();
    for row in &rows {
        let from = Instant::now();
        scorer.decide(row, &mut decision).map_err(|bad| anyhow::anyhow!("{}", bad.rule))?;
        times.push(from.elapsed().as_secs_f64() * 1e6);
        candidates += decision.scores.len();
    }
    let elapsed = started.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let quantile = |share: f64| times[(share * (times.len() - 1) as f64) as usize];

    let text = |format: Format| -> anyhow::Result<f64> {
        let text = match format {
            Format::Tsv => std::fs::read(path.join("track_log.tsv"))?,
            Format::Jsonl => jsonl(&rows)?,
        };
        let mut scorer = Scorer::new(&day, &policy, ScoreOptions::default())?;
        let started = Instant::now();
        let mut requests = Requests::new(Box::new(BufReader::new(Cursor::new(text))), format)?;
        let mut output = std::io::BufWriter::new(std::io::sink());
        let report = stream(&mut scorer, &mut requests, &[], format, &mut output, &mut |_, _| {})?;
        Ok(report.candidates as f64 / started.elapsed().as_secs_f64())
    };
    Ok(ScoreReport {
        queue: size.queue,
        contracts_in_queue: size.eligible,
        hidden: settings.policy.hidden,
        requests: rows.len() as u64,
        values: with_values,
        requests_per_second: rows.len() as f64 / elapsed,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: quantile(1.0),
        candidates_per_second: candidates as f64 / elapsed,
        tsv_candidates_per_second: text(Format::Tsv)?,
        jsonl_candidates_per_second: text(Format::Jsonl)?,
    })
}

/// Requests as JSON lines.
pub fn jsonl(rows: &[TrackRow]) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut text, &crate::score::json::JsonRequest::from(row))?;
        text.push(b'\n');
    }
    Ok(text)
}
