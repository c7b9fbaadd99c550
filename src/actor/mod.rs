//! Actors: explore the environment with their own copy of the policy and send samples to the learner.
//!
//! [`Explorer`] is the exploration itself, the same in every mode; [`process`] is the actor process around it: its
//! own ring region, newer parameters, its ledger. [`resume`] is the state of an explorer between two blocks, for resuming
//! lock-step runs.

mod explorer;
pub mod process;
mod resume;

pub use explorer::Explorer;
