//! Evaluation: what a policy is worth on whole days, beside the baselines and the bound.
//!
//! [`judge`] scores newly published parameters on the validation days, in the evaluator [`process`] and in serial mode;
//! [`compare`] replays any number of policies on any number of days for `eval` and the table at the end of `train`;
//! [`logged`] judges what the live system showed; [`table`] is that table for people; [`decisions`] writes what was shown.
//!
//! May import: `run`, `shm`, `policy`, `env`, `plan`, `log`, `settings`.

pub mod compare;
pub mod decisions;
pub mod judge;
pub mod logged;
pub mod process;
pub mod table;

pub use compare::{Contender, DayReport, Kind, PolicyReport, compare_day};
pub use judge::{Evaluation, Judge};
