//! The same run in one process and one thread of control: act, then train.
//!
//! Environment, networks, losses, replay ratio and batch are those of the parallel run; this is the reference for its
//! correctness and its speed-up. `serial.literal` is the old scheme: an update for every sample, with fresh parameters at every
//! step.

use std::time::Instant;

use crate::actor::Explorer;
use crate::evaluator::{Judge, Start};
use crate::learner::updates::Record;
use crate::learner::{Device, Learner, device};
use crate::policy::file::PolicyFile;
use crate::run::context::Context;
use crate::run::{Metrics, RunDirectory};
use crate::shm::Histogram;

use super::failure::RunFailure;
use super::interrupt::Interrupt;
use super::progress::{Progress, Status};
use super::{ExitReason, Outcome};

/// Trains in this process until the budget is spent, the policy converged, or the run is interrupted.
pub fn train(context: &Context, directory: &RunDirectory, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let settings = &context.settings;
    // One thread of control: more only where the configuration asks for them.
    device::set_threads(settings.learner.threads.max(1));
    let mut metrics = Metrics::open(&directory.metrics())?;
    metrics.append("start", &Status::default());
    let days = context.training_days()?;
    let trainer = Device::of(settings)?.trainer(&days, &context.spec, settings)?;
    let mut run = Run {
        context,
        directory,
        started: Instant::now(),
        learner: Learner::new(&days, context.spec.clone(), settings, trainer),
        judge: Judge::new(
            context.days(&settings.data.validation)?,
            context.spec.clone(),
            context.replay_options(),
            Start { actor: context.start.clone(), kept: settings.evaluate.keep_start },
        ),
        metrics,
        progress: Progress::new(settings, context.node, Status::default()),
        status: Status::default(),
        unsaved: None,
        refused: false,
        without_improvement: 0,
        evaluated: 0,
        computing: 0.0,
        published: 0,
        lag: Histogram::default(),
    };
    run.learner.start_from(&context.start)?;
    let initial = context.start.clone();
    let mut explorers: Vec<Explorer> = (0..settings.actors.count as u64)
        .map(|id| Explorer::new(&days, settings, context.spec.clone(), initial.clone(), id, 0))
        .collect();
    run.evaluate()?;
    let reason = if settings.serial.literal {
        run.literal(&mut explorers[0], interrupt)
    } else {
        run.rounds(&mut explorers, interrupt)
    }?;
    run.finish(reason)
}

struct Run<'a> {
    context: &'a Context,
    directory: &'a RunDirectory,
    started: Instant,
    learner: Learner<'a>,
    judge: Judge,
    metrics: Metrics,
    progress: Progress,
    status: Status,
    /// The best policy so far, if it is not on disk.
    unsaved: Option<PolicyFile>,
    /// Whether the file system refused it, which is told once.
    refused: bool,
    without_improvement: u64,
    evaluated: u64,
    computing: f64,
    /// Number of updates behind the parameters that the explorers use.
    published: u64,
    lag: Histogram,
}

impl Run<'_> {
    /// Returns the reason to stop now, if there is one.
    fn ends(&self, interrupt: &Interrupt) -> Option<ExitReason> {
        let patience = self.context.settings.stop.patience;
        if interrupt.count() > 0 {
            Some(ExitReason::Interrupted)
        } else if patience > 0 && self.without_improvement >= patience {
            Some(ExitReason::Converged)
        } else if self.learner.progress() >= 1.0 {
            Some(ExitReason::Budget)
        } else {
            None
        }
    }

    /// Trains in rounds: a block from each explorer in turn, then the updates due for it.
    fn rounds(&mut self, explorers: &mut [Explorer], interrupt: &Interrupt) -> anyhow::Result<ExitReason> {
        let publish_every = self.context.settings.learner.publish_every;
        loop {
            for turn in 0..explorers.len() {
                let block = explorers[turn].block();
                self.lag.record(self.learner.updates() - self.published);
                self.learner.ingest(block.segments)?;
                while self.learner.updates_due() > 0 {
                    if let Some(reason) = self.ends(interrupt) {
                        return Ok(reason);
                    }
                    self.update()?;
                    if self.learner.updates().is_multiple_of(publish_every) {
                        let raw = self.learner.publication()?.raw;
                        for explorer in &mut *explorers {
                            explorer.set_params(&raw);
                        }
                        self.published = self.learner.updates();
                    }
                }
            }
        }
    }

    /// Trains with one update per sample.
    fn literal(&mut self, explorer: &mut Explorer, interrupt: &Interrupt) -> anyhow::Result<ExitReason> {
        let mut begins = true;
        loop {
            // Each step has fresh parameters; those of the segment's first step are the oldest.
            if begins {
                self.published = self.learner.updates();
            }
            let segment = explorer.step();
            begins = segment.is_some();
            if let Some(segment) = segment {
                self.lag.record(self.learner.updates() - self.published);
                self.learner.ingest(vec![segment])?;
            }
            if let Some(reason) = self.ends(interrupt) {
                return Ok(reason);
            }
            if self.learner.ready() {
                self.update()?;
                explorer.set_params(&self.learner.publication()?.raw);
            }
        }
    }

    fn update(&mut self) -> anyhow::Result<()> {
        let working = Instant::now();
        let record = (self.learner.updates() + 1).is_multiple_of(32);
        let stats = self.learner.update(record)?;
        self.computing += working.elapsed().as_secs_f64();
        let (updates, samples) = (self.learner.updates(), self.learner.samples());
        if let Some(stats) = stats {
            let policy_lag = self.lag.read();
            self.status = Status { updates, samples, lag: policy_lag.mean, lag_p95: policy_lag.p95, ..self.status };
            let progress = self.learner.progress();
            self.metrics.append("learner", &Record { updates, samples, progress, policy_lag, stats });
            self.progress.show(self.status);
        }
        let due = updates / self.context.settings.evaluate.every;
        if due > self.evaluated {
            self.evaluated = due;
            self.evaluate()?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> anyhow::Result<()> {
        let publication = self.learner.publication()?;
        let counted = publication.updates > self.context.settings.head_start();
        let evaluation = self.judge.evaluate(publication.updates, &publication.averaged, counted, &mut || {});
        let share = evaluation.share.unwrap_or(f64::NAN);
        self.status.last_j = evaluation.j;
        self.status.last_share = share;
        self.status.evaluations += 1;
        if evaluation.improved {
            self.status.best_j = evaluation.j;
            self.status.best_share = share;
            self.unsaved = Some(self.policy(publication.averaged));
        }
        self.save_best();
        self.without_improvement = evaluation.without_improvement;
        self.metrics.append("evaluation", &evaluation);
        Ok(())
    }

    fn policy(&self, actor: Vec<f32>) -> PolicyFile {
        let (spec, plan) = (self.context.spec.clone(), self.context.plan.clone());
        PolicyFile { spec, plan, actor, updates: self.learner.updates() }
    }

    /// Writes the best policy if one is unsaved; what the file system refuses is tried again at the next evaluation.
    fn save_best(&mut self) {
        let Some(best) = &self.unsaved else { return };
        match best.write(&self.directory.best()) {
            Ok(()) => (self.unsaved, self.refused) = (None, false),
            Err(e) if !self.refused => {
                tracing::warn!("the best policy so far cannot be written, training goes on: {e:#}");
                self.refused = true;
            }
            Err(_) => {}
        }
    }

    fn finish(mut self, reason: ExitReason) -> anyhow::Result<Outcome> {
        self.evaluate()?;
        let last = self.policy(self.learner.publication()?.averaged);
        let best = self.unsaved.as_ref().map(|best| (best, self.directory.best()));
        for (policy, path) in best.into_iter().chain([(&last, self.directory.last())]) {
            policy.write(&path).map_err(|e| RunFailure::SerialNotSaved { why: format!("{e:#}") })?;
        }
        self.progress.finish();
        let seconds = self.started.elapsed().as_secs_f64();
        Ok(Outcome {
            reason,
            updates: self.learner.updates(),
            samples: self.learner.samples(),
            seconds,
            best_j: self.status.best_j,
            best_share: self.status.best_share,
            evaluations: self.status.evaluations,
            policy_lag: self.lag.read(),
            actor_restarts: 0,
            other_restarts: 0,
            went_back: 0,
            ledger: None,
            rolled_back: 0,
            learner_compute: self.computing / seconds,
            learner_wait: 0.0,
            checkpoints: None,
        })
    }
}
