//! Running a model, with and without a bug in it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admix_loom::plant::{self, Plant};

/// Waits end by a ring only; one that nobody ends is a deadlock, which loom reports.
pub const FOREVER: Duration = Duration::MAX;

/// Runs `model` in every interleaving with at most `preemptions`, and says in how many.
pub fn explore(preemptions: usize, model: fn()) -> u64 {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let executions = Arc::new(AtomicU64::new(0));
    let count = executions.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    executions
}

/// Checks that `model` fails, and for one of the `reasons`.
pub fn refuted(preemptions: usize, model: fn(), reasons: &[&str]) {
    let cause = match catch_unwind(AssertUnwindSafe(|| explore(preemptions, model))) {
        Ok(executions) => panic!("passed {executions} executions"),
        Err(cause) => cause,
    };
    let said = cause.downcast_ref::<String>().map(String::as_str).or(cause.downcast_ref::<&str>().copied());
    let said = said.expect("a message");
    assert!(reasons.iter().any(|reason| said.contains(reason)), "found for another reason: {said}");
}

/// Checks that `model` fails with `bug` in the code, and for one of the `reasons`.
pub fn caught(bug: Plant, preemptions: usize, model: fn(), reasons: &[&str]) {
    println!("{bug:?}");
    plant::with(bug, || refuted(preemptions, model, reasons));
}
