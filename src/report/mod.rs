//! What a run came to, written into its directory for whoever finds it later: `report.json` for programs, `report.html` for people.
//!
//! The table at the end of training is gone with the terminal. The report keeps it, with the validation days on which the best
//! baseline was named, the verdict and its basis, and what each hour contributed, so that two runs can be compared hour by hour
//! long after the logs have moved.
//!
//! [`content`] is `report.json`; [`html`] renders it with the [`charts`] of [`svg`], from the [`means`] over its days and what [`surroundings`] says of the rest of
//! the run directory.
//!
//! May import: everything but `cli` and its neighbours of the row.

mod charts;
mod content;
mod html;
mod means;
mod surroundings;
mod svg;

pub use content::{CHOSEN, ReportedDay, RunReport, Validation, ValidationRow};

use crate::run::RunDirectory;
use surroundings::Surroundings;

/// Writes `report.json` and `report.html` into a run directory, each by rename.
///
/// # Errors
/// A disk that does not take them.
pub fn write(report: &RunReport, directory: &RunDirectory) -> anyhow::Result<()> {
    directory.replace(&directory.report(), &serde_json::to_vec(report)?)?;
    let page = html::render(report, &Surroundings::read(directory.root()));
    directory.replace(&directory.report().with_extension("html"), page.as_bytes())
}
