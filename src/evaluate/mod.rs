//! Evaluation: what a policy is worth on whole days, beside the baselines and the bound.
//!
//! [`judge`] scores newly published parameters on the validation days, in the evaluator [`process`] and in serial mode;
//! [`mod@compare`] replays any number of policies on a [`test_day`] for `eval`, `study` and the table at the end of `train`;
//! [`logged`] judges what the live system showed; [`stress`] alters a day, [`measure`] and [`bootstrap`] say how a day went and how sure that is; [`table`] is that table for people; [`decisions`] writes what was shown.
//!
//! May import: `run`, `shm`, `policy`, `env`, `plan`, `log`, `settings`.

pub mod bootstrap;
pub mod compare;
pub mod decisions;
pub mod judge;
pub mod logged;
pub mod measure;
pub mod process;
pub mod stress;
pub mod table;
pub mod test_day;

pub use compare::{Contender, DayReport, Kind, PolicyReport, compare, compare_day};
pub use judge::{Evaluation, Judge};
pub use stress::Stress;
pub use test_day::TestDay;
