//! What scoring costs on one core: a request decided, and whole streams of text.

use std::fmt;
use std::io::{BufReader, Cursor};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::log::schema::TrackRow;
use crate::log::{CompileOptions, RawDay};
use crate::policy::file::PolicyFile;
use crate::policy::start::initial_actor;
use crate::score::{DayFiles, Decision, Format, Requests, ScoreOptions, Scorer, ServedDay, ServedPolicy, stream};
use crate::settings::Settings;
use crate::values::{Told, ValueModel};

use super::proc;
use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct ScoreReport {
    pub queue: usize,
    pub contracts_in_queue: usize,
    pub hidden: usize,
    pub requests: u64,
    /// The model whose values are told, if one is.
    pub values: Option<Attached>,
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

/// Cost of attaching to a model.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Attached {
    pub rows: usize,
    /// Of the file of its rows, and what this process's own memory has grown by.
    pub rows_mb: f64,
    pub own_mb: f64,
    pub seconds: f64,
}

/// Attaches to the model of a run, and measures it.
///
/// # Errors
/// No model there, or one that is damaged.
pub fn attach(dir: &Path) -> anyhow::Result<(Arc<ValueModel>, Attached)> {
    let own_mb = || proc::usage(std::process::id()).map_or(f64::NAN, |usage| usage.own_mb);
    let (before, began) = (own_mb(), Instant::now());
    let model = ValueModel::read(dir)?;
    let (seconds, own_mb) = (began.elapsed().as_secs_f64(), own_mb() - before);
    let rows_mb = model.rows.path().metadata()?.len() as f64 / 1e6;
    let attached = Attached { rows: model.rows.len(), rows_mb, own_mb, seconds };
    Ok((Arc::new(model), attached))
}

impl fmt::Display for ScoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "score{}: {:.2} us a request of {} candidates, {} of them contracts (p99 {:.2} us, worst with its replanning {:.0} us); {:.0} requests/s, \
             {:.0} k candidates/s decided, {:.0} k from TSV to TSV, {:.0} k from JSON to JSON, on one core",
            if self.values.is_some() { " at corrected values" } else { "" },
            self.p50_us,
            self.queue,
            self.contracts_in_queue,
            self.p99_us,
            self.max_us,
            self.requests_per_second,
            self.candidates_per_second / 1e3,
            self.tsv_candidates_per_second / 1e3,
            self.jsonl_candidates_per_second / 1e3
        )?;
        if let Some(Attached { rows, rows_mb, own_mb, seconds }) = self.values {
            write!(
                f,
                "\nattached to {rows} rows of {rows_mb:.0} MB in {seconds:.3} s, with {own_mb:.1} MB of its own"
            )?;
        }
        Ok(())
    }
}

/// Scores a day of `size` with an untrained network of the default settings, at the values of a model where one is given.
pub fn run(size: WorldSize, settings: &Settings, values: Option<&Path>) -> anyhow::Result<ScoreReport> {
    let (values, attached) = values.map(attach).transpose()?.unzip();
    let dir = world::written(size)?;
    let (model, plan) = world::day(size)?;
    let spec = world::spec(&model, settings);
    let actor = initial_actor(&spec, 1);
    let policy = ServedPolicy::of_file(PolicyFile { spec, plan, actor, updates: 0 }, "bench".into());
    let path = dir.path();
    let files = DayFiles { control: path.join("control.tsv"), inventory: None, day: Some(path.join("day.toml")) };
    let day = ServedDay::read(&files, 0)?.told(&values.map_or(Told::Logged, Told::Model));
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
        values: attached,
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
