//! The nightly job: checks the newest days, trains from the promoted policy, and promotes what is better on days that nobody
//! was trained on.
//!
//! A platform runs it from a timer and serves `current.safetensors`. Whatever happens at night, that file is a whole policy that
//! was promoted with a reason, and the history says which and why. Three things follow. Days are checked before they are used, and
//! a newest day that cannot be trusted keeps what is served. A candidate has to win by an interval, not by a mean. And the bar is
//! not only the incumbent: where a tuned baseline is better than both, the baseline is promoted.
//!
//! [`config`] is the job's file; [`days`] finds the day directories and [`roles`] says what each is for; [`check`] says which can be used and
//! how they drift; [`judge`] holds the rule; [`window`] cuts windows of a day, for the refresh during the day; [`history`] keeps what was promoted and when; [`night`] is one night from lock to
//! entry.
//!
//! May import: everything but `cli` and its neighbours of the row, `study` and `report` excepted.

pub mod check;
pub mod config;
pub mod days;
pub mod history;
pub mod judge;
mod night;
pub mod roles;
pub mod window;

pub use config::Job;
pub use history::{Entry, History, Outcome};
pub use night::run;
pub use window::Window;
