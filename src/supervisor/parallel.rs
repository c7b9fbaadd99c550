//! A training run in real processes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::run::context::Context;
use crate::run::segments::block_bytes;
use crate::run::{Metrics, RunDirectory, Segments};
use crate::settings::Settings;
use crate::shm::control::{STOP_ALL, STOP_LEARNING, STOP_NOW};
use crate::shm::{Ledger, RunNames, SampleRing, sweep};

use super::children::{Process, Role};
use super::interrupt::Interrupt;
use super::progress::{Progress, Status};
use super::{ExitReason, Outcome};

const POLL: Duration = Duration::from_millis(20);
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// How long the evaluator may take for the last evaluation, and a child to end.
const FINISH: Duration = Duration::from_secs(120);
const MAX_EVALUATOR_RESTARTS: u32 = 5;

/// A record of the whole run in `metrics.jsonl`.
#[derive(Serialize)]
struct Record {
    #[serde(flatten)]
    status: Status,
    samples_per_s: f64,
    updates_per_s: f64,
    learner_wait_s: f64,
    learner_compute_s: f64,
    ledger: Ledger,
}

#[derive(Serialize)]
struct Restart {
    process: String,
    pid: u32,
    status: String,
    /// Samples that died with an actor.
    lost: u64,
}

/// Trains in processes until the learner ends, and reports.
///
/// # Errors
/// What keeps the run from going on: the learner failed, or an actor keeps dying.
pub fn train(context: &Context, directory: &RunDirectory, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let removed = sweep()?;
    if !removed.is_empty() {
        tracing::info!("removed shared memory that dead runs left: {}", removed.join(", "));
    }
    let settings = &context.settings;
    let days = context.days(&settings.data.train)?;
    let run_id =
        format!("{:08x}", twox_hash::XxHash3_64::oneshot(directory.root().as_os_str().as_encoded_bytes()) as u32);
    let names = RunNames::for_this_process(&run_id)?;
    let segments = Segments::create(&names, settings, &context.spec, block_bytes(settings, &days))?;
    let mut run = Run::start(settings, directory, segments, names.to_string())?;
    let watched = run.watch(interrupt);
    run.progress.finish();
    match watched {
        Ok(reason) => run.finish(reason, interrupt),
        Err(e) => {
            run.segments.control.request_stop(STOP_NOW);
            Err(e)
        }
    }
}

struct Run<'a> {
    settings: &'a Settings,
    directory: &'a RunDirectory,
    prefix: String,
    started: Instant,
    learner: Process,
    evaluator: Process,
    actors: Vec<Process>,
    progress: Progress,
    metrics: Metrics,
    /// Last: children are gone before the segments are.
    segments: Segments,
}

impl<'a> Run<'a> {
    fn start(
        settings: &'a Settings,
        directory: &'a RunDirectory,
        segments: Segments,
        prefix: String,
    ) -> anyhow::Result<Self> {
        let mut metrics = Metrics::open(&directory.metrics())?;
        metrics.append("start", &Status::default());
        let start = |role| Process::start(role, directory, &prefix);
        let learner = start(Role::Learner)?;
        let evaluator = start(Role::Evaluator)?;
        let actors = (0..settings.actors.count).map(|id| start(Role::Actor(id))).collect::<Result<_, _>>()?;
        Ok(Self {
            settings,
            directory,
            started: Instant::now(),
            learner,
            evaluator,
            actors,
            progress: Progress::new(settings),
            metrics,
            segments,
            prefix,
        })
    }

    /// Watches over the children until the learner ends.
    fn watch(&mut self, interrupt: &Interrupt) -> anyhow::Result<ExitReason> {
        let mut next_show = Instant::now() + SHOW_EVERY;
        loop {
            if let Some(status) = self.learner.reap()? {
                if !status.success() {
                    bail!(
                        "the learner ended with {status}; its last words are in {}. The best policy so far is kept in {}",
                        self.directory.log("learner").display(),
                        self.directory.best().display()
                    );
                }
                let control = &self.segments.control;
                let patience = self.settings.stop.patience;
                return Ok(if interrupt.count() > 0 {
                    ExitReason::Interrupted
                } else if patience > 0 && control.evaluator.without_improvement.get() >= patience {
                    ExitReason::Converged
                } else {
                    ExitReason::Budget
                });
            }
            match interrupt.count() {
                0 => {}
                1 => self.request_stop(STOP_LEARNING),
                _ => {
                    self.request_stop(STOP_NOW);
                    bail!(
                        "interrupted twice: ended at once; the best policy so far is kept in {}",
                        self.directory.best().display()
                    );
                }
            }
            self.mind_children()?;
            if Instant::now() >= next_show {
                next_show += SHOW_EVERY;
                self.show();
            }
            std::thread::sleep(POLL);
        }
    }

    fn request_stop(&self, level: u32) {
        if self.segments.control.stop_level() < level {
            self.segments.control.request_stop(level);
            for ring in &self.segments.rings {
                ring.space().ring();
            }
        }
    }

    /// Replaces dead actors and a dead evaluator.
    fn mind_children(&mut self) -> anyhow::Result<()> {
        if self.segments.control.stop_level() > 0 {
            return Ok(());
        }
        let control = &self.segments.control;
        for (id, actor) in self.actors.iter_mut().enumerate() {
            if let Some(status) = actor.reap()? {
                let lost = self.segments.rings[id].recover_writer(&control.data);
                control.processes[id].clear();
                self.metrics.append(
                    "restart",
                    &Restart { process: actor.role.to_string(), pid: actor.pid(), status: status.to_string(), lost },
                );
                tracing::warn!("{} ended ({status}), {lost} samples lost with it; starting another", actor.role);
                if self.settings.run.deterministic {
                    bail!("{} died; a lock-step run cannot go on as it would have without that", actor.role);
                }
                if actor.restarts >= self.settings.actors.max_restarts {
                    bail!(
                        "{} died {} times; its last words are in {}",
                        actor.role,
                        actor.restarts + 1,
                        self.directory.log(&actor.role.to_string()).display()
                    );
                }
                actor.schedule_restart();
            }
            actor.restart_if_due(self.directory, &self.prefix)?;
        }
        if let Some(status) = self.evaluator.reap()? {
            tracing::warn!("the evaluator ended ({status}); starting another");
            let record =
                Restart { process: "evaluator".into(), pid: self.evaluator.pid(), status: status.to_string(), lost: 0 };
            self.metrics.append("restart", &record);
            if self.evaluator.restarts >= MAX_EVALUATOR_RESTARTS || self.settings.run.deterministic {
                bail!("the evaluator died; its last words are in {}", self.directory.log("evaluator").display());
            }
            self.evaluator.schedule_restart();
        }
        self.evaluator.restart_if_due(self.directory, &self.prefix)?;
        Ok(())
    }

    fn status(&self) -> Status {
        let (l, e) = (&self.segments.control.learner, &self.segments.control.evaluator);
        let lag = l.lag.read();
        Status {
            updates: l.updates.get(),
            samples: l.samples_consumed.get(),
            lag: lag.mean,
            lag_p95: lag.p95,
            last_j: e.last_benefit.get(),
            best_j: e.best_benefit.get(),
            last_share: e.last_share.get(),
            best_share: e.best_share.get(),
            evaluations: e.evaluations.get(),
        }
    }

    fn ledger(&self) -> Ledger {
        Ledger::sum(self.segments.rings.iter().map(SampleRing::ledger))
    }

    fn show(&mut self) {
        let status = self.status();
        let (samples_per_s, updates_per_s) = self.progress.show(status);
        let l = &self.segments.control.learner;
        let record = Record {
            status,
            samples_per_s,
            updates_per_s,
            learner_wait_s: l.wait_ns.get() as f64 * 1e-9,
            learner_compute_s: l.compute_ns.get() as f64 * 1e-9,
            ledger: self.ledger(),
        };
        self.metrics.append("run", &record);
    }

    /// Ends the other children and closes the books.
    fn finish(mut self, reason: ExitReason, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        self.request_stop(STOP_ALL);
        let deadline = Instant::now() + FINISH;
        for (id, actor) in self.actors.iter_mut().enumerate() {
            actor.finish(deadline, interrupt)?;
            self.segments.rings[id].recover_writer(&self.segments.control.data);
        }
        let evaluated = self.evaluator.finish(deadline, interrupt)?;
        if !evaluated.is_some_and(|status| status.success()) {
            tracing::warn!(
                "the evaluator did not end well; the last parameters may not have been evaluated (see {})",
                self.directory.log("evaluator").display()
            );
        }
        for ring in &self.segments.rings {
            ring.ledger().balance().context("samples are unaccounted for")?;
        }
        self.show();
        self.progress.finish();
        let status = self.status();
        let control = &self.segments.control;
        let seconds = self.started.elapsed().as_secs_f64();
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
            ledger: Some(self.ledger()),
            learner_compute: control.learner.compute_ns.get() as f64 * 1e-9 / seconds,
            learner_wait: control.learner.wait_ns.get() as f64 * 1e-9 / seconds,
        })
    }
}
