//! Results of a run, written into its directory: `report.json` for programs, `report.html` for human readers.
//!
//! The table at the end of training is lost with the terminal. The report keeps it, with the validation days that determined the best
//! baseline, the verdict and its basis, and the contribution of each hour, so that two runs can be compared hour by hour long after the
//! logs have moved.
//!
//! [`content`] is `report.json`; [`html`] renders it with the [`charts`] of [`svg`], the [`means`] over its days and the other files of the
//! run directory ([`surroundings`]). [`records`] reads `metrics.jsonl`, also for `watch` and `study`.

mod charts;
mod content;
mod html;
mod means;
pub mod records;
mod surroundings;
pub mod svg;

pub use content::{CHOSEN, ReportedDay, RunReport, Validation, ValidationRow};

use crate::run::RunDirectory;
use surroundings::Surroundings;

/// Writes `report.json` and `report.html` into a run directory, each by rename.
///
/// # Errors
/// A disk on which they cannot be written.
pub fn write(report: &RunReport, directory: &RunDirectory) -> anyhow::Result<()> {
    directory.replace(&directory.report(), &serde_json::to_vec(report)?)?;
    let page = html::render(report, &Surroundings::read(directory.root()));
    directory.replace(&directory.report().with_extension("html"), page.as_bytes())
}
