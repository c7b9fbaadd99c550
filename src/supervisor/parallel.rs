//! A training run in separate processes; on several nodes, the part of one of them.
//!
//! All nodes have actors, ranks of the learner, and snapshots of their own. The first alone evaluates.

use std::time::{Duration, Instant};

use anyhow::bail;
use serde::Serialize;

use crate::awake::Deadline;
use crate::learner::networks::critic_shape;
use crate::nodes::Job;
use crate::run::context::Context;
use crate::run::segments::Sizes;
use crate::run::snapshot::Snapshot;
use crate::run::{Metrics, RunDirectory, Segments, flight};
use crate::settings::Settings;
use crate::shm::control::{STOP_ALL, STOP_LEARNING, STOP_NOW};
use crate::shm::{Ledger, Role, SampleRing, sweep};

use super::blame::Fate;
use super::children::{Process, without_huge_pages};
use super::failure::RunFailure;
use super::heartbeats::Heartbeats;
use super::interrupt::Interrupt;
use super::learners::{Learners, Reaped, exchange_shape, remote};
use super::progress::{Progress, Status};
use super::resume::restore_best;
use super::watchdog::Watchdog;
use super::{ExitReason, Outcome, together};

mod ending;
mod figures;

const POLL: Duration = Duration::from_millis(20);
const SHOW_EVERY: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Restart {
    process: String,
    pid: u32,
    status: String,
    /// Samples that died with an actor, or that a new learner will read a second time.
    lost: u64,
}

/// How a set of processes ended.
enum Ended {
    /// The learner ended by itself.
    Well(ExitReason),
    /// A lock-step run lost a process and has to go back to its last snapshot, or a node can no longer take part in its job; the text is
    /// the reason.
    Broken(String),
}

/// Trains in separate processes until the learner ends, and returns the results. Resumes from the newest snapshot in the run
/// directory, if there is one. All nodes of the `job` call it; each says whether it was part of the run before, `known`
/// ([`super::job::agree_on_run`]).
///
/// # Errors
/// A [`RunFailure`], or no room for the shared memory.
pub fn train(
    context: &Context,
    directory: &RunDirectory,
    interrupt: &Interrupt,
    (job, known): (&Job, bool),
) -> anyhow::Result<Outcome> {
    let removed = sweep();
    if !removed.is_empty() {
        tracing::info!("removed shared memory that dead runs left: {}", removed.join(", "));
    }
    without_huge_pages();
    let settings = &context.settings;
    let sizes = Sizes::of(settings, &context.spec, &context.days(&settings.data.train)?);
    let started = Instant::now();
    let mut went_back = 0;
    let exchange = exchange_shape(context)?;
    loop {
        let snapshot = together::newest(job, directory, known)?;
        let parameters = context.spec.actor_shape().len() + critic_shape(&context.spec, settings).len();
        let half = (settings.checkpoint.every_s > 0.0).then(|| sizes.half(settings, parameters, context.world().ranks));
        let (names, segments) =
            Segments::create(&directory.run_id(), settings, &context.spec, sizes.block, half, exchange)?;
        if let Some(snapshot) = &snapshot {
            go_on_from(&segments, snapshot);
            restore_best(directory, snapshot)?;
        }
        let learners = || Learners::start(exchange, directory, &names.to_string());
        let mut run = Run::start(context, directory, segments, &names.to_string(), snapshot.as_ref(), learners)?;
        (run.started, run.went_back) = (started, went_back);
        let carrying = job.carry(|| remote(&names.to_string()))?;
        let watched = run.watch(interrupt);
        run.progress.finish();
        match watched {
            Ok(Ended::Well(reason)) => {
                if let Some(carrying) = carrying {
                    carrying.end();
                }
                let reason = together::reason(job, reason)?;
                return together::outcome(job, run.finish(reason, interrupt)?);
            }
            Ok(Ended::Broken(why)) if !job.node().is_alone() => {
                run.segments.control.request_stop(STOP_NOW);
                return Err(RunFailure::NodeLost { why, logs: directory.logs() }.into());
            }
            Ok(Ended::Broken(why)) => {
                went_back += 1;
                if went_back > settings.watchdog.max_restarts {
                    let logs = directory.logs();
                    return Err(RunFailure::KeepsGoingBack { times: went_back, why, logs }.into());
                }
                tracing::warn!("{why}; in lock-step all go back to the last snapshot");
                run.segments.control.request_stop(STOP_NOW);
            }
            Err(e) => {
                run.segments.control.request_stop(STOP_NOW);
                return Err(e);
            }
        }
    }
}

/// Initialises new shared memory from a snapshot.
fn go_on_from(segments: &Segments, snapshot: &Snapshot) {
    let control = &segments.control;
    let state = &snapshot.state;
    control.resumed_from.set(snapshot.number);
    control.learner.updates.set(state.updates);
    control.learner.samples_consumed.set(state.samples);
    control.learner.rolled_back.set(state.rolled_back);
    let (e, s) = (&control.evaluator, &state.evaluator);
    e.evaluations.set(s.evaluations);
    e.without_improvement.set(s.without_improvement);
    e.last_benefit.set(s.last_benefit);
    e.last_share.set(s.last_share);
    e.best_benefit.set(s.best_benefit);
    e.highest_benefit.set(s.highest_benefit);
    e.best_share.set(s.best_share);
    e.best_version.set(s.best_version);
    e.due.set(s.due);
    e.set_progress(s.progress, &control.progress);
    for halves in segments.rank_halves.iter().chain(&segments.halves) {
        halves.commit(snapshot.number);
    }
}

fn stop_reason(level: u32) -> &'static str {
    match level {
        STOP_LEARNING => "interrupted; what is under way is finished",
        STOP_ALL => "learning has ended; the last evaluation follows",
        _ => "at once",
    }
}

struct Run<'a> {
    context: &'a Context,
    settings: &'a Settings,
    directory: &'a RunDirectory,
    prefix: String,
    started: Instant,
    learners: Learners,
    /// Whether the learner died, or was killed, after the run had been asked to end, and has no successor.
    learner_lost: bool,
    /// The evaluator, on the first node, and the checkpointer where snapshots are taken.
    helpers: Vec<Process>,
    actors: Vec<Process>,
    progress: Progress,
    metrics: Metrics,
    heartbeats: Heartbeats,
    watchdog: Watchdog,
    /// Time by which the run has to be over; set at the first interrupt.
    deadline: Option<Deadline>,
    /// Sample ledger of the run's earlier processes.
    ledger_before: Ledger,
    went_back: u32,
    /// Dropped last: children must be gone before the segments are.
    segments: Segments,
}

impl<'a> Run<'a> {
    fn start(
        context: &'a Context,
        directory: &'a RunDirectory,
        segments: Segments,
        prefix: &str,
        snapshot: Option<&Snapshot>,
        learners: impl FnOnce() -> anyhow::Result<Learners>,
    ) -> anyhow::Result<Self> {
        let settings = &context.settings;
        let mut metrics = Metrics::open(&directory.metrics())?;
        let status = Status::of(&segments);
        metrics.append(if snapshot.is_some() { "resume" } else { "start" }, &status);
        let start = |role| Process::start(role, directory, prefix);
        let learners = learners()?;
        let helpers = Role::helpers(context.node.is_first(), segments.halves.is_some());
        let helpers = helpers.into_iter().map(start).collect::<Result<_, _>>()?;
        let actors = (0..settings.actors.count).map(|id| start(Role::Actor(id))).collect::<Result<_, _>>()?;
        Ok(Self {
            context,
            settings,
            directory,
            started: Instant::now(),
            learners,
            learner_lost: false,
            helpers,
            actors,
            progress: Progress::new(settings, context.node, status),
            metrics,
            heartbeats: Heartbeats::new(settings.watchdog.silent_s),
            watchdog: Watchdog::new(settings),
            deadline: None,
            ledger_before: snapshot.map_or(Ledger::default(), |s| s.state.ledger_so_far()),
            went_back: 0,
            segments,
            prefix: prefix.to_owned(),
        })
    }

    /// Supervises the children until the learner ends.
    fn watch(&mut self, interrupt: &Interrupt) -> anyhow::Result<Ended> {
        let mut next_show = Instant::now() + SHOW_EVERY;
        loop {
            match self.learners.reap(interrupt)? {
                None => {}
                Some(Reaped::Ended) => return Ok(Ended::Well(self.reason(interrupt))),
                Some(Reaped::Died { role, pid, fate }) => {
                    if fate.code() == Some(RunFailure::NOT_FINITE) {
                        return Err(RunFailure::NotFinite { incidents: self.directory.incidents() }.into());
                    }
                    cannot_save(fate, role, self.directory)?;
                    if let Some(ended) = self.replace_learner(role, pid, &fate.to_string())? {
                        return Ok(ended);
                    }
                }
            }
            match interrupt.count() {
                0 => {}
                1 => {
                    let grace = Duration::from_secs_f64(self.settings.watchdog.grace_s);
                    let over = self.deadline.get_or_insert_with(|| Deadline::after(grace)).is_over();
                    self.request_stop(STOP_LEARNING);
                    if over {
                        tracing::warn!("the learner has not ended within watchdog.grace_s, killing it");
                        self.learners.kill();
                        let node = self.context.node;
                        anyhow::ensure!(node.is_alone(), RunFailure::NotSaved { node: node.index });
                        self.learner_lost = true;
                        return Ok(Ended::Well(ExitReason::Interrupted));
                    }
                }
                _ => {
                    self.request_stop(STOP_NOW);
                    bail!("interrupted twice: ended at once; {}", self.directory.best_so_far());
                }
            }
            if let Some(ended) = self.mind_children()? {
                return Ok(ended);
            }
            let now = self.heartbeats.tick();
            if Instant::now() >= next_show {
                next_show = Instant::now() + SHOW_EVERY;
                self.show();
                if self.segments.control.stop_level() == 0 {
                    let processes = self.actors.iter_mut().chain(&mut self.helpers).chain(self.learners.living());
                    self.heartbeats.kill_the_silent(&self.segments.control, processes);
                    self.watchdog.check_snapshots(&self.segments, self.directory, now);
                    self.watchdog.check(&self.segments, self.directory, now)?;
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn reason(&self, interrupt: &Interrupt) -> ExitReason {
        let patience = self.settings.stop.patience;
        if interrupt.count() > 0 {
            ExitReason::Interrupted
        } else if patience > 0 && self.segments.control.evaluator.without_improvement.get() >= patience {
            ExitReason::Converged
        } else {
            ExitReason::Budget
        }
    }

    fn request_stop(&self, level: u32) {
        if self.segments.control.stop_level() < level {
            self.segments.control.request_stop(level);
            flight::stop_requested(level, stop_reason(level));
            for ring in &self.segments.rings {
                ring.space().ring();
            }
            if let Some(halves) = &self.segments.halves {
                halves.news().ring();
            }
        }
    }

    /// Handles the death of the learner, or of `role` of its ranks: starts it again from the newest snapshot, or ends the run if a stop
    /// was requested.
    fn replace_learner(&mut self, role: Role, pid: u32, status: &str) -> anyhow::Result<Option<Ended>> {
        let again = self.segments.rings.iter().map(SampleRing::recover_reader).sum();
        for role in self.learners.roles() {
            self.segments.control.processes[role.slot()].clear();
        }
        let may_start = self.learners.restarts() < self.settings.watchdog.max_restarts;
        self.note((role, pid), status, again, may_start);
        if self.settings.run.deterministic || !self.context.node.is_alone() {
            return Ok(Some(self.broken_by(role, status)));
        }
        if self.segments.control.stop_level() > 0 {
            // Its updates since the last snapshot are lost; the run is being ended.
            self.learner_lost = true;
            return Ok(Some(Ended::Well(ExitReason::Interrupted)));
        }
        self.learners.schedule_restart(role, self.settings.watchdog.max_restarts, self.directory)?;
        self.learners.restart_if_due(self.directory)?;
        Ok(None)
    }

    /// Returns how the run ended when it cannot go on without `role`.
    fn broken_by(&self, role: Role, status: &str) -> Ended {
        let who = if role == Role::Learner { "the learner".to_owned() } else { role.to_string() };
        let node = self.context.node;
        let of_node = if node.is_alone() { String::new() } else { format!(" of node {}", node.index) };
        Ended::Broken(format!("{who}{of_node} died ({status})"))
    }

    /// Notes the death of a process, which may or may not be started again.
    fn note(&mut self, (role, pid): (Role, u32), status: &str, lost: u64, again: bool) {
        let record = Restart { process: role.to_string(), pid, status: status.to_owned(), lost };
        self.metrics.append("restart", &record);
        flight::restarted(role, pid, status, lost);
        let samples = match role {
            Role::Actor(_) => format!(", {lost} samples lost with it"),
            Role::Learner | Role::LearnerRank(_) => format!(", {lost} samples will be read again"),
            _ => String::new(),
        };
        let next = match role {
            _ if !again => "that is too often",
            Role::Learner | Role::LearnerRank(_) if !self.context.node.is_alone() => "the job ends",
            Role::Learner | Role::LearnerRank(_) if self.settings.learner.ranks > 1 => {
                "starting another; all ranks go back to the last snapshot"
            }
            _ => "starting another",
        };
        tracing::warn!("{role} ended ({status}){samples}; {next}");
    }

    /// Replaces dead children other than the learner.
    fn mind_children(&mut self) -> anyhow::Result<Option<Ended>> {
        self.learners.restart_if_due(self.directory)?;
        // While the learner saves, the checkpointer has to run.
        let stopping = self.segments.control.stop_level() > 0;
        for i in 0..self.actors.len() + self.helpers.len() {
            let process = self.nth(i);
            let (role, pid) = (process.role, process.pid());
            if stopping && role != Role::Checkpointer {
                continue;
            }
            if let Some(status) = process.reap()? {
                let (mut limit, mut lost) = (self.settings.watchdog.max_restarts, 0);
                if let Role::Actor(id) = role {
                    limit = self.settings.actors.max_restarts;
                    lost = self.segments.rings[id].recover_writer(&self.segments.control.data);
                }
                self.segments.control.processes[role.slot()].clear();
                let again = self.nth(i).restarts < limit;
                self.note((role, pid), &status.to_string(), lost, again);
                if self.settings.run.deterministic && role != Role::Checkpointer {
                    return Ok(Some(self.broken_by(role, &status.to_string())));
                }
                let directory = self.directory;
                schedule(self.nth(i), limit, directory)?;
            }
            let (directory, prefix) = (self.directory, self.prefix.clone());
            self.nth(i).restart_if_due(directory, &prefix)?;
        }
        Ok(None)
    }

    /// Returns the process with index `i`, counting actors first, then the helpers.
    fn nth(&mut self, i: usize) -> &mut Process {
        match i.checked_sub(self.actors.len()) {
            None => &mut self.actors[i],
            Some(helper) => &mut self.helpers[helper],
        }
    }
}

/// Returns an error if a child ended with [`RunFailure::CANNOT_SAVE`].
fn cannot_save(fate: Fate, role: Role, directory: &RunDirectory) -> Result<(), RunFailure> {
    if fate.code() == Some(RunFailure::CANNOT_SAVE) {
        return Err(RunFailure::CannotSave { log: directory.log(&role.to_string()) });
    }
    Ok(())
}

/// Schedules the next start of a dead child.
fn schedule(process: &mut Process, limit: u32, directory: &RunDirectory) -> Result<(), RunFailure> {
    if process.restarts >= limit {
        let name = process.role.to_string();
        let log = directory.log(&name);
        return Err(RunFailure::KeepsDying { process: name, times: process.restarts + 1, log });
    }
    process.schedule_restart();
    Ok(())
}
