//! Importers: real logs of other systems, rewritten as log directories.
//!
//! Everything behind a log directory (replay, plans, training) knows one format. What is odd about a
//! foreign log is settled here, once, and whatever an importer drops, changes or makes up is counted in
//! its [`ImportReport`]: a figure measured on an imported log is worth no more than that list allows.
//!
//! A log is read whole before anything is written, so that bad input leaves no half-written directory;
//! it costs about 40 bytes of memory for each queue entry.

mod directory;
pub mod ipinyou;
mod report;
pub mod tencent2019;

pub use report::{Count, DeclaredContract, Directory, Example, ImportReport};
