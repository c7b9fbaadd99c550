//! Actors: explore the environment with their own copy of the policy and hand samples over.
//!
//! [`Explorer`] is the exploration itself, the same in every mode; [`process`] is the actor process around it: its
//! own ring region, newer parameters, its ledger. [`resume`] is an explorer between two blocks, for lock-step runs that go on.
//!
//! May import: `run`, `shm`, `policy`, `env`, `plan`, `log`, `settings`.

mod explorer;
pub mod process;
mod resume;

pub use explorer::Explorer;
