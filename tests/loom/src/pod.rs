//! Stands in for `src/shm/pod.rs`.

use super::sync::{AtomicU32, AtomicU64};

/// What may live in a [`Segment`](super::segment::Segment); starts as its default, all zeroes.
///
/// # Safety
/// As in `src/shm/pod.rs`.
pub unsafe trait Shareable: Default + Send + Sync + 'static {}

// SAFETY: atomics.
unsafe impl Shareable for AtomicU32 {}
// SAFETY: atomics.
unsafe impl Shareable for AtomicU64 {}
