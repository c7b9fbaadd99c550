//! Scoring outside replay: requests in, the scores of their candidates and the chosen ad out.
//!
//! Teams that have a feature server export a dictionary; teams that have none run the policy itself, as a filter
//! (`admix score`), as a server (`admix serve`) or in their own process ([`Scorer`]). All of them need the state that features are
//! made from, and none of them has a compiled log. A [`Scorer`] is made from what is known before the day ([`ServedDay`]: control,
//! inventory, `day.toml`) and a policy with its plan ([`ServedPolicy`]), and keeps the state from then on: what it chose, and what
//! [`Scorer::confirm`] says was really shown. It runs the engine that evaluation runs ([`crate::env::Replay`],
//! [`crate::policy::Decider`]), so the same requests give the same decisions.
//!
//! | file | what it is |
//! |---|---|
//! | `served` | [`ServedDay`], a day before it begins; [`ServedPolicy`], a policy with its plan |
//! | `scorer`, `counting` | [`Scorer`]: checks and scores; decisions that are counted as shown, and what was really shown |
//! | `claims` | what was chosen lately, so that exposures can confirm or correct it |
//! | `delivered` | what was delivered before scoring begins, and what is confirmed while it goes on |
//! | `errands` | long computations on other threads, and a policy put in another's place |
//! | `saved` | a scorer's state as bytes |
//! | `stream` | requests from a stream, decisions to another, in order: `admix score` |
//! | [`json`] | requests and decisions as JSON objects: the lines of `score` and the bodies of `serve` |
//!
//! ```no_run
//! use admix::score::{Decision, DayFiles, ScoreOptions, Scorer, ServedDay, ServedPolicy};
//! # fn main() -> anyhow::Result<()> {
//! # let request: admix::log::schema::TrackRow = unimplemented!();
//! let files = DayFiles { control: "control.tsv".into(), inventory: None, day: Some("day.toml".into()) };
//! let day = ServedDay::read(&files, 0)?;
//! let policy = ServedPolicy::open("runs/last", None)?;
//! let mut scorer = Scorer::new(&day, &policy, ScoreOptions::default())?;
//! let mut decision = Decision::default();
//! scorer.decide(&request, &mut decision).map_err(|bad| anyhow::anyhow!("{}", bad.rule))?;
//! println!("{:?} of {:?}", decision.chosen, decision.scores);
//! # Ok(()) }
//! ```

mod claims;
mod counting;
mod delivered;
mod errands;
pub mod json;
mod saved;
mod scorer;
mod served;
mod stream;

pub use claims::{Claim, Exposure, Stage};
pub use counting::Heard;
pub use delivered::{Arrived, Delivered, delivered, delivered_by, exposures};
pub use errands::{Errand, Finished};
pub use saved::{AnotherDay, AnotherVersion, Restored, Saved};
pub use scorer::{Decision, ScoreOptions, Scorer};
pub use served::{DayFiles, ServedDay, ServedPolicy, ServedValues};
pub use stream::{Format, Requests, StreamReport, stream};
