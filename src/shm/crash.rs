//! Atomics that can die: the unit tests' means to kill a process between any two of its stores.
//!
//! A killed process leaves in shared memory exactly the stores that it made until then. A thread under [`kill_after`] therefore
//! makes a given number of atomic stores and then none: the next one unwinds, and any store by destructors on the way out is
//! dropped as well. Counting up from zero visits every state in which a process can be abandoned, deterministically and without
//! forks.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{self, Ordering};

thread_local! {
    static STORES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    static DEAD: Cell<bool> = const { Cell::new(false) };
}

struct Killed;

/// Runs `body` and kills it at store number `stores` (from 0); returns `None` if it died.
pub fn kill_after<R>(stores: u32, body: impl FnOnce() -> R) -> Option<R> {
    STORES_LEFT.set(Some(stores));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    STORES_LEFT.set(None);
    DEAD.set(false);
    match outcome {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Killed>() => None,
        Err(cause) => resume_unwind(cause),
    }
}

/// Drops the handles of a killed process: memory is unmapped, but no destructor stores anything.
pub fn abandon<T>(held: T) {
    kill_after(0, || drop(held));
}

/// Returns whether the calling thread may still store; unwinds at the store that kills it.
fn may_store() -> bool {
    match STORES_LEFT.get() {
        None => true,
        Some(0) if DEAD.replace(true) => false,
        Some(0) => resume_unwind(Box::new(Killed)),
        Some(left) => {
            STORES_LEFT.set(Some(left - 1));
            true
        }
    }
}

macro_rules! mortal {
    ($name:ident, $std:ty, $value:ty) => {
        #[repr(transparent)]
        #[derive(Default)]
        pub struct $name($std);

        #[allow(dead_code, reason = "not every width uses every operation")]
        impl $name {
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                if may_store() {
                    self.0.store(value, order);
                }
            }

            /// An exchange of a dead thread pretends to succeed, so that no loop waits for it.
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if may_store() { self.0.compare_exchange(from, to, success, failure) } else { Ok(from) }
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                if may_store() { self.0.fetch_add(value, order) } else { self.0.load(Ordering::Relaxed) }
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                if may_store() { self.0.fetch_max(value, order) } else { self.0.load(Ordering::Relaxed) }
            }

            pub fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }
        }
    };
}

mortal!(AtomicU32, atomic::AtomicU32, u32);
mortal!(AtomicU64, atomic::AtomicU64, u64);
