//! Cancellation of long computations.
//!
//! Planning, compiling logs and the report of a run take minutes, and a user who presses Ctrl-C expects a reaction within
//! moments. Long computations check for a request at every step ([`point`]); once the process has been asked to end, the
//! computation unwinds to its caller ([`catch`]), which also drops temporary files and locks. Only the main process of a run
//! makes such requests, so in child processes and for users of the library a check costs one load and does nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Error of a computation that was not finished because the process was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Cancelled;

impl Cancelled {
    /// Unwinds to the next [`catch`].
    pub fn go_on(self) -> ! {
        resume_unwind(Box::new(self))
    }
}

/// Asks every long computation of this process to end.
pub fn request() {
    // Relaxed: an independent flag.
    REQUESTED.store(true, Ordering::Relaxed);
}

/// Ends the running computation if the process was asked to end: unwinds to [`catch`], without a message.
pub fn point() {
    if REQUESTED.load(Ordering::Relaxed) {
        Cancelled.go_on();
    }
}

/// Runs work that may be cancelled.
///
/// # Errors
/// If it was cancelled.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, Cancelled> {
    of_payload(catch_unwind(AssertUnwindSafe(work)))
}

fn of_payload<T>(done: Result<T, Box<dyn Any + Send>>) -> Result<T, Cancelled> {
    match done {
        Ok(value) => Ok(value),
        Err(payload) if payload.is::<Cancelled>() => Err(Cancelled),
        Err(payload) => resume_unwind(payload),
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn only_cancellation_is_caught_from_other_threads_too() {
        assert_eq!(catch(|| 7), Ok(7));
        fn unwinds() {
            resume_unwind(Box::new(Cancelled));
        }
        fn panics() {
            resume_unwind(Box::new("a bug"));
        }
        assert_eq!(catch(unwinds), Err(Cancelled));
        let in_parallel = || {
            (0..64).into_par_iter().for_each(|i| {
                if i == 40 {
                    resume_unwind(Box::new(Cancelled))
                }
            })
        };
        assert_eq!(catch(in_parallel), Err(Cancelled));
        assert!(catch_unwind(|| catch(panics)).is_err_and(|payload| payload.is::<&str>()));
    }
}
