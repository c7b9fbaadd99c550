//! The log-replay environment.
//!
//! For each request, replay computes the state of every candidate, scores them, shows one ad and updates the counters.
//! Delivered counts, speeds, shortages and means come from the replay itself, never from the log's future. Training episodes
//! are jittered and, on large days, thinned ([`Episode`]); each of their steps is a run of requests that share the networks'
//! outputs. Evaluation replays whole days, request by request. Both run through [`Replay`], and so does a day that is served
//! live, for which only a [`KnownDay`] exists before its requests arrive. A [`Segment`] of a trajectory names rows of the
//! compiled log and carries only what replay changed; the learner rebuilds the states with this same code.
//!
//! [`State`] has the counters of a replay, among them the `tracker` of traffic and prices. It is serialised in
//! blocks of segments ([`BLOCK_FORMAT`]) and with them in snapshots, in the state of a lock-step explorer, which a snapshot's state
//! holds, and in the state of a scorer (`score::saved`). A counter that is added changes these formats.
//!
//! [`Weights`] weighs the parts of the reward. [`Delay`] draws the feedback delay. [`outlook`] holds the features of
//! the outlook network, `features` the others.
//!
//! Not modelled: auction budgets, frequency caps, second-price charges, bidders that react.

mod advice;
mod day;
mod delay;
mod episode;
mod features;
mod incoming;
mod known;
mod lesson;
pub mod outlook;
mod replay;
mod segment;
mod state;
mod tracker;
mod vocabulary;
mod wander;

pub use advice::{ADVICE_COLUMNS, Advice};
pub use day::DayModel;
pub use delay::Delay;
pub use episode::{Episode, RowSampler};
pub use features::{
    ContractMoment, Course, CourseFeatures, FEATURE_NAMES, FEATURE_VERSION, FEATURES, General, GeneralFeatures, Moment,
    Terms, TermsFeatures, column, copy_course, copy_general, copy_terms,
};
pub use incoming::{Incoming, Visit};
pub use known::{ContractModel, KnownDay};
pub use lesson::Lesson;
pub use replay::{Candidate, Choice, Display, Replay, Weights};
pub use segment::{BLOCK_FORMAT, Block, REPLAN_INTERVAL_S, Segment};
pub use state::State;
pub use vocabulary::Vocabulary;
