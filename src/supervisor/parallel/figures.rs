//! What a run in separate processes has done so far: for the progress line and `metrics.jsonl`.

use serde::Serialize;

use crate::shm::{Ledger, Role, SampleRing};
use crate::supervisor::progress::Status;

use super::Run;

/// A record of the whole run in `metrics.jsonl`.
#[derive(Serialize)]
struct Record {
    #[serde(flatten)]
    status: Status,
    samples_per_s: f64,
    updates_per_s: f64,
    learner_wait_s: f64,
    learner_compute_s: f64,
    /// Time use of every process so far.
    processes: Vec<Timing>,
    ledger: Ledger,
}

/// Seconds spent by a process, including its restarts.
#[derive(Serialize)]
struct Timing {
    name: String,
    compute_s: f64,
    copy_s: f64,
    wait_s: f64,
}

impl Run<'_> {
    pub(super) fn status(&self) -> Status {
        Status::of(&self.segments)
    }

    pub(super) fn ledger(&self) -> Ledger {
        Ledger::sum(self.segments.rings.iter().map(SampleRing::ledger).chain([self.ledger_before]))
    }

    fn timing(&self) -> Vec<Timing> {
        let control = &self.segments.control;
        let of = |role: Role, [compute, copy, wait]: [u64; 3]| {
            let seconds = |ns: u64| ns as f64 * 1e-9;
            Timing { name: role.to_string(), compute_s: seconds(compute), copy_s: seconds(copy), wait_s: seconds(wait) }
        };
        let actors = (0..self.actors.len()).map(|id| {
            let s = &control.actors[id];
            of(Role::Actor(id), [s.compute_ns.get(), s.copy_ns.get(), s.wait_ns.get()])
        });
        let e = &control.evaluator;
        let learners = (0..self.settings.learner.ranks).map(|rank| {
            let l = control.learner_stats(rank);
            of(Role::learner(rank), [l.compute_ns.get(), l.copy_ns.get() + l.snapshot_ns.get(), l.wait_ns.get()])
        });
        let helpers = self.helpers.iter().map(|helper| match helper.role {
            Role::Evaluator => of(helper.role, [e.compute_ns.get(), e.copy_ns.get(), e.wait_ns.get()]),
            role => of(role, [0, control.checkpoint.write_ns.get(), 0]),
        });
        actors.chain(learners).chain(helpers).collect()
    }

    pub(super) fn show(&mut self) {
        let status = self.status();
        let (samples_per_s, updates_per_s) = self.progress.show(status);
        let l = &self.segments.control.learner;
        let record = Record {
            status,
            samples_per_s,
            updates_per_s,
            learner_wait_s: l.wait_ns.get() as f64 * 1e-9,
            learner_compute_s: l.compute_ns.get() as f64 * 1e-9,
            processes: self.timing(),
            ledger: self.ledger(),
        };
        self.metrics.append("run", &record);
    }
}
