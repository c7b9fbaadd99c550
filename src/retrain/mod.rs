//! The nightly job: checks the newest days, trains from the promoted policy, and promotes what is better on days that nothing was trained
//! on.
//!
//! A platform runs it from a timer and serves `current.safetensors`. Whatever happens at night, that file is a complete policy that was
//! promoted with a reason, and the history records which one and why. This has three consequences. Days are checked before they are used,
//! and if the newest day cannot be trusted, the served policy is kept. A candidate has to win by an interval, not by a mean, and
//! must not deliver less by more than an allowed shortage. It has to beat more than the incumbent: where a tuned baseline is better than
//! both, the baseline is promoted.
//!
//! | file | what it is |
//! |---|---|
//! | [`config`] | the job's file |
//! | [`days`], [`roles`] | the day directories, and which of them train, validate and are held out |
//! | [`check`] | which days can be used, and how they drift |
//! | [`values`] | the values of the night |
//! | [`training`] | trainings, run as processes |
//! | [`judge`] | the rule of promotion: difference in share, shortage |
//! | [`window`] | windows of a day, for the refresh during the day |
//! | [`history`] | what was promoted, and why |
//! | [`night`] | one night from lock to entry |

pub mod check;
pub mod config;
pub mod days;
pub mod history;
pub mod judge;
mod night;
pub mod roles;
mod training;
pub mod values;
pub mod window;

pub use config::Job;
pub use history::{History, HistoryEntry, Outcome};
pub use night::{ready, run};
pub use window::Window;
