//! The evaluator process: replays the validation days with newly published parameters and saves the best.
//!
//! [`judge`] scores parameters on the validation days, here and in serial mode; [`process`] is the role.

pub mod judge;
pub mod process;

pub use judge::{Evaluation, Judge, Start};
