//! A run on one terminal screen, live or finished: progress, validation curve, processes, lag, ledger and delivery.
//!
//! It reads the same sources as `inspect`, with as little disturbance: files and shared memory are opened for reading. The
//! screen is text of a fixed size, by default 80 x 24, so that it works over any ssh connection and in a pipe.

mod screen;

use std::path::Path;

use serde_json::Value;

use crate::inspect::record::Manifest;
use crate::inspect::{self, Inspection, State};
use crate::report::records::{Evaluation, Records};
use crate::report::{CHOSEN, RunReport};

pub use screen::render;

/// One evaluation on the validation days.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub updates: u64,
    /// Percent of the bound.
    pub share: f64,
    /// Percent of the impressions owed.
    pub shortage: f64,
    pub revenue: f64,
}

/// One evaluation of a value run on the validation days: its losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Number of the pass, from 0.
    pub pass: u64,
    pub updates: u64,
    pub click: f64,
    pub charge: f64,
    /// Whether it is the best so far.
    pub is_best: bool,
}

/// Content of the screen.
#[derive(Debug)]
pub struct Watched {
    pub seen: Inspection,
    /// In the order of the updates.
    pub curve: Vec<Point>,
    /// Evaluations of a value run; empty for other runs.
    pub losses: Vec<Loss>,
    /// The newest `run` record, of a value run the newest `values` record.
    pub run: Option<Value>,
    /// Number of updates that end the run; 0 = other bounds do.
    pub max_updates: u64,
    pub report: Option<RunReport>,
    pub restarts: usize,
}

impl Watched {
    /// Reads the run in `dir`.
    ///
    /// # Errors
    /// If the directory is not a run.
    pub fn look(dir: &Path) -> anyhow::Result<Self> {
        let seen = inspect::inspect(dir, 1)?;
        // All of them, unlike `inspect`, because the curve begins with the first.
        let records = Records::read(dir).unwrap_or_default();
        let point = |e: Evaluation| Point {
            updates: e.updates,
            share: 100.0 * e.share,
            shortage: 100.0 * e.shortage_rate,
            revenue: e.auction_revenue,
        };
        let loss = |line: &Value| {
            Some(Loss {
                pass: line["epoch"].as_u64()?,
                updates: line["updates"].as_u64()?,
                click: line["click"].as_f64()?,
                charge: line["charge"].as_f64()?,
                is_best: line["best"].as_bool()?,
            })
        };
        let config = std::fs::read_to_string(dir.join("config.toml")).unwrap_or_default();
        let config: toml::Table = toml::from_str(&config).unwrap_or_default();
        let budget = config.get("budget").and_then(|b| b.get("max_updates")).and_then(toml::Value::as_integer);
        Ok(Self {
            curve: records.curve().into_iter().map(point).collect(),
            losses: records.of_kind("evaluation").filter_map(loss).collect(),
            run: records.of_kind("run").chain(records.of_kind("values")).next_back().cloned(),
            restarts: records.of_kind("restart").count(),
            max_updates: budget.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            // A report of another version of the program is ignored.
            report: RunReport::read(dir).unwrap_or(None),
            seen,
        })
    }

    /// Returns whether it is a run of `admix values train`.
    pub fn is_values(&self) -> bool {
        self.seen.manifest.as_ref().is_some_and(Manifest::is_values)
    }

    /// Whether nothing will change any more.
    pub fn is_over(&self) -> bool {
        self.seen.state != State::Alive
    }

    /// Returns the validation share of a row of the report, percent.
    fn validated(&self, name: &str) -> Option<f64> {
        let report = self.report.as_ref()?;
        report.validation.policies.iter().find(|p| p.name == name)?.share.map(|share| 100.0 * share)
    }

    /// Returns the validation share before the first update, percent.
    fn start(&self) -> Option<f64> {
        self.validated(&format!("{CHOSEN}:start")).or(self.curve.first().filter(|p| p.updates == 0).map(|p| p.share))
    }
}
