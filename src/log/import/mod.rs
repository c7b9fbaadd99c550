//! Importers: convert real logs of other systems to log directories.
//!
//! Everything after a log directory (replay, plans, training) reads one format. The oddities of a foreign log are resolved
//! here. Whatever an importer drops, changes or invents is counted in its [`ImportReport`], which limits what a figure measured
//! on an imported log is worth.
//!
//! A log is read completely before anything is written, so that bad input leaves no half-written directory; this takes about 40
//! bytes of memory per queue entry.

mod directory;
pub mod ipinyou;
mod report;
pub mod tencent2019;

pub use report::{Count, DeclaredContract, Directory, Example, ImportReport};
