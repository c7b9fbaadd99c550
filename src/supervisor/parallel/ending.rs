//! The end of a run in separate processes: children end in turn, every sample is accounted for, and the results are put together.

use std::time::Duration;

use anyhow::Context as _;

use crate::awake::Deadline;
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
        Ok(Outcome {
            reason,
            updates: status.updates,
            samples: status.samples,
            seconds,
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
