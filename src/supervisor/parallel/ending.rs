//! The end of a run in separate processes: children end in turn, every sample is accounted for, and the results are put together.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::awake::Deadline;
use crate::files;
use crate::policy::file::PolicyFile;
use crate::run::snapshot;
use crate::shm::Role;
use crate::shm::control::{STOP_ALL, STOP_NOW};
use crate::supervisor::blame::Fate;
use crate::supervisor::interrupt::Interrupt;
use crate::supervisor::{Checkpoints, ExitReason, Outcome};

use super::{Run, cannot_save};

/// Time limit for the last evaluation, and for a child to end.
const FINISH: Duration = Duration::from_secs(120);

impl Run<'_> {
    /// Ends the other children and completes the ledger.
    pub(super) fn finish(mut self, reason: ExitReason, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        // A lock-step run that is resumed later must not have evaluated parameters that it would not evaluate otherwise.
        let interim = self.settings.run.deterministic
            && reason == ExitReason::Interrupted
            && self.segments.control.evaluator.evaluations.get() > 0;
        self.request_stop(if interim { STOP_NOW } else { STOP_ALL });
        let mut deadline = self.deadline.take().unwrap_or_else(|| Deadline::after(FINISH));
        // It has ended or was killed; the blocks that it was reading are handed back below once it is gone.
        self.learners.finish(&mut deadline, interrupt)?;
        for (id, actor) in self.actors.iter_mut().enumerate() {
            actor.finish(&mut deadline, interrupt)?;
            self.segments.rings[id].recover_writer(&self.segments.control.data);
        }
        for helper in &mut self.helpers {
            let ended = helper.finish(&mut deadline, interrupt)?;
            if let Some(status) = ended {
                cannot_save(Fate::Ended(status), helper.role, self.directory)?;
            }
            if !ended.is_some_and(|status| status.success()) {
                let missing = match helper.role {
                    Role::Evaluator => "; the last parameters may not have been evaluated",
                    Role::Checkpointer => "; the last snapshot may not be on disk",
                    _ => "",
                };
                let log = self.directory.log(&helper.role.to_string());
                tracing::warn!("the {} did not end well{missing} (see {})", helper.role, log.display());
            }
        }
        for ring in &self.segments.rings {
            ring.recover_reader();
            ring.ledger().balance().context("samples are unaccounted for")?;
        }
        if self.learner_lost {
            self.go_back_to_the_snapshot();
        }
        self.show();
        self.progress.finish();
        let status = self.status();
        let control = &self.segments.control;
        let seconds = self.started.elapsed().as_secs_f64();
        let share = |ns: u64| ns as f64 * 1e-9 / seconds;
        let metrics = files::read(&self.directory.metrics(), files::MOST).unwrap_or_default();
        let before = earlier_seconds(&String::from_utf8_lossy(&metrics), self.went_back);
        Ok(Outcome {
            reason,
            updates: status.updates,
            samples: status.samples,
            seconds: before + seconds,
            best_j: status.best_j,
            best_share: status.best_share,
            evaluations: status.evaluations,
            policy_lag: control.learner.lag.read(),
            actor_restarts: self.actors.iter().map(|a| a.restarts).sum(),
            other_restarts: self.helpers.iter().map(|h| h.restarts).sum::<u32>() + self.learners.restarts(),
            went_back: self.went_back,
            ledger: Some(self.ledger()),
            rolled_back: control.learner.rolled_back.get(),
            learner_compute: share(control.learner.compute_ns.get()),
            learner_wait: share(control.learner.wait_ns.get()),
            checkpoints: self.segments.halves.is_some().then(|| Checkpoints {
                snapshots: control.checkpoint.snapshots.get(),
                bytes: control.checkpoint.bytes.get(),
                failures: control.checkpoint.failures.get(),
                write_s: control.checkpoint.write_ns.get() as f64 * 1e-9,
                stall: share(control.learner.snapshot_ns.get()),
            }),
        })
    }

    /// Sets the statistics back to the newest snapshot when the learner died while the run was being ended. The snapshot is the
    /// result of the run, as for a successor, and the samples since then count as rolled back.
    fn go_back_to_the_snapshot(&self) {
        let stats = &self.segments.control.learner;
        let newest = snapshot::newest(&self.directory.checkpoints()).unwrap_or_else(|e| {
            tracing::warn!("{e:#}");
            None
        });
        let (updates, samples) = newest.as_ref().map_or((0, 0), |s| (s.state.updates, s.state.samples));
        stats.updates.set(updates);
        stats.samples_consumed.set(samples);
        stats.rolled_back.set(self.ledger().consumed.saturating_sub(samples));
        let Some(snapshot) = newest else { return };
        let (spec, plan) = (self.context.spec.clone(), self.context.plan.clone());
        let last = PolicyFile { spec, plan, actor: snapshot.state.trainer.averaged, updates };
        if let Err(e) = last.write(&self.directory.last()) {
            tracing::warn!("{e:#}");
        }
    }
}

/// Returns the seconds that the earlier sessions of a run took, from the first record of each in `metrics.jsonl` to its last. The newest
/// session has gone back to a snapshot, and so begun a record anew, `went_back` times.
fn earlier_seconds(metrics: &str, went_back: u32) -> f64 {
    let mut sessions: Vec<[f64; 2]> = Vec::new();
    for line in metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(time) = line["time"].as_f64() else { continue };
        match line["kind"].as_str() {
            Some("start") => sessions = vec![[time, time]],
            Some("resume") => sessions.push([time, time]),
            _ => sessions.last_mut().into_iter().for_each(|[_, last]| *last = time),
        }
    }
    let earlier = sessions.len().saturating_sub(1 + went_back as usize);
    sessions[..earlier].iter().map(|[first, last]| (last - first).max(0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The totals of a run that had been resumed stood beside the seconds of its last session.
    #[test]
    fn a_run_took_as_long_as_all_of_its_sessions() {
        let lines = |records: &[(&str, f64)]| -> String {
            let line = |(kind, time): &(&str, f64)| format!("{{\"time\":{time:.1},\"kind\":\"{kind}\"}}\n");
            records.iter().map(line).collect()
        };
        let first = [("start", 5.0), ("run", 6.0), ("evaluation", 15.0)];
        assert_eq!(earlier_seconds(&lines(&first), 0), 0.0);
        let second = [&first[..], &[("resume", 100.0), ("restored", 101.0), ("run", 120.0)]].concat();
        assert_eq!(earlier_seconds(&lines(&second), 0), 10.0);
        let third = [&second[..], &[("resume", 200.0), ("run", 230.0)]].concat();
        assert_eq!(earlier_seconds(&lines(&third), 0), 30.0);
        assert_eq!(earlier_seconds(&lines(&third), 1), 10.0, "the last two are one session, which went back");
        let over = [&third[..], &[("start", 300.0), ("run", 301.0)]].concat();
        assert_eq!(earlier_seconds(&lines(&over), 0), 0.0, "the run was started over");
        assert_eq!(earlier_seconds("{\"time\":1.0,\"ki", 0), 0.0);
    }
}
