//! The atomics of this folder, in one place.
//!
//! Every shared structure takes its atomics from here, so that the implementation can be exchanged. Unit tests run the same
//! code over atomics that stop storing after a chosen number of stores, which is what a kill looks like from outside (`crash`).
//! The models in `tests/loom` include ring, cell and doorbell over loom's atomics, which try every order that the memory model
//! allows.

pub(crate) use std::sync::atomic::{Ordering, fence};

#[cfg(test)]
pub(crate) use super::crash::{AtomicU32, AtomicU64};
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
