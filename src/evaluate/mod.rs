//! Evaluation of policies on whole days, compared with the baselines and the bound.
//!
//! [`mod@compare`] replays any number of policies on a [`test_day`] for `eval`, `study` and the table at the end of `train`;
//! [`report`] is its result for a day, [`compared`] determines the rows of a learned policy and [`verdict`] whether it is worth
//! deploying; [`logged`] computes the benefit of the ads that the live system showed; [`stress`] alters a day; [`familiar`]
//! finds out which days a policy has used; [`measure`] computes the measurements of a day and [`bootstrap`] their intervals;
//! [`table`] renders them as text; [`decisions`] writes the ads shown.

pub mod bootstrap;
pub mod compare;
pub mod compared;
pub mod decisions;
pub mod familiar;
pub mod logged;
pub mod measure;
pub mod report;
pub mod stress;
pub mod table;
pub mod test_day;
mod together;
pub mod verdict;

pub use compare::{Contender, compare, compare_day};
pub use compared::ComparedPolicy;
pub use report::{DayReport, Kind, PolicyReport};
pub use stress::Stress;
pub use test_day::TestDay;
pub use verdict::{Decision, Judgement, Verdict};
