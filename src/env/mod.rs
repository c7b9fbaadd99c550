//! The log-replay environment.
//!
//! A request arrives -> state of every candidate -> scores -> one ad shown -> counters move -> next request. Delivered counts, speeds,
//! shortages and means are the replay's own, never the log's future. Training episodes are jittered and, where a day is large,
//! thinned ([`Episode`]); their steps are runs of requests that share the networks' outputs. Evaluation replays whole days, request by
//! request; both run through [`Replay`], and so does a day that is served live, of which a [`KnownDay`] is all that there is before
//! its requests arrive. A [`Segment`] of trajectory names rows
//! of the compiled log and carries only what replay changed, so that the learner rebuilds states with this same code.
//!
//! [`Weights`] weighs the parts of the reward; [`Delay`] draws how late a delivery is observed; [`outlook`] holds the features of
//! the outlook network, the others are in `features`.
//!
//! What replay ignores: auction budgets, frequency caps, second-price charges, bidders that react.
//!
//! May import: `log`, `plan`, `formulas`, `settings`.

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
    Terms, TermsFeatures, WORTH_LIMIT, column, copy_course, copy_general, copy_terms,
};
pub use incoming::{Incoming, Visit};
pub use known::{ContractModel, KnownDay};
pub use lesson::Lesson;
pub use replay::{Candidate, Choice, Display, Replay, Weights};
pub use segment::{BLOCK_FORMAT, Block, REPLAN_INTERVAL_S, Segment};
pub use state::State;
pub use vocabulary::Vocabulary;
