//! Types that may be in shared memory.

use super::sync::{AtomicU32, AtomicU64};

/// A type that may be laid over bytes that other processes map too.
///
/// # Safety
/// The implementor promises that the type
/// - is `#[repr(C)]` or `#[repr(transparent)]`, so that every process agrees on its layout;
/// - holds no pointer, reference or handle, which would mean nothing in another address space;
/// - is valid for every bit pattern, including zero: a segment starts as zeroes, and a foreign or damaged one must be readable
///   enough to be refused;
/// - has no plain field that is ever changed: all mutation goes through atomics, so that a `&T` is sound while another process
///   writes;
/// - needs no `Drop`.
///
/// The structures that `tests/loom` checks also derive `Default`, all zeroes: loom has to create each atomic itself and cannot
/// lay one over bytes.
pub unsafe trait Shareable: Sync {}

// SAFETY: atomics of integers have the layout of the integer, any bit pattern and interior mutability.
unsafe impl Shareable for AtomicU32 {}
// SAFETY: as above.
unsafe impl Shareable for AtomicU64 {}
