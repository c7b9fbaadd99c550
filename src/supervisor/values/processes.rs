//! The processes of a value training: started together, watched, replaced where one can be without the others.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::awake::Deadline;
use crate::nodes::Node;
use crate::run::value_run::ValueSegments;
use crate::run::{Metrics, RunDirectory};
use crate::settings::ValueSettings;
use crate::shm::control::{STOP_ALL, STOP_LEARNING, STOP_NOW};
use crate::shm::{Broken, Control, Role};
use crate::supervisor::ExitReason;
use crate::supervisor::blame::{self, Fate};
use crate::supervisor::children::Process;
use crate::supervisor::failure::RunFailure;
use crate::supervisor::heartbeats::{Heartbeats, Still};
use crate::supervisor::interrupt::Interrupt;

const POLL: Duration = Duration::from_millis(20);
const SHOW_EVERY: Duration = Duration::from_secs(10);
const FINISH: Duration = Duration::from_secs(60);
/// Time in which a complete snapshot may come to disk when `watchdog.grace_s` is over: less than what is left until the program ends.
const SAVING: Duration = Duration::from_secs(10);

/// How a set of processes ended.
pub enum Ended {
    Well(ExitReason),
    /// The trainer, or one of several ranks.
    Died {
        role: Role,
        fate: Fate,
    },
    NotFinite,
    /// All processes were killed at the end of `watchdog.grace_s`; what followed the newest snapshot is lost.
    Killed,
}

pub struct Run<'a> {
    settings: &'a ValueSettings,
    directory: &'a RunDirectory,
    segments: &'a ValueSegments,
    prefix: String,
    node: Node,
    trainer: Process,
    /// Further ranks, from 1.
    others: Vec<Process>,
    /// `None` where no snapshots are taken.
    checkpointer: Option<Process>,
    readers: Vec<Process>,
    heartbeats: Heartbeats,
    progress: Still<[u64; 3]>,
    metrics: Metrics,
    started: Instant,
    /// When it was last shown how far the run is, and the samples then.
    shown: (Instant, u64),
}

#[derive(Serialize)]
struct Restart {
    process: String,
    status: String,
    lost: u64,
}

/// What grows while a run makes progress: updates; exposures read; time in which the model was evaluated and written, and snapshots were
/// written.
fn done(control: &Control) -> [u64; 3] {
    let read = control.actors.iter().map(|reader| reader.rows_read.get()).sum();
    [control.learner.updates.get(), read, control.evaluator.compute_ns.get() + control.checkpoint.write_ns.get()]
}

impl<'a> Run<'a> {
    pub fn start(
        settings: &'a ValueSettings,
        directory: &'a RunDirectory,
        segments: &'a ValueSegments,
        prefix: String,
        node: Node,
    ) -> anyhow::Result<Self> {
        let trainer = Process::start(Role::Trainer, directory, &prefix)?;
        let saves = settings.checkpoint.every_s > 0.0;
        let checkpointer = saves.then(|| Process::start(Role::ValueCheckpointer, directory, &prefix)).transpose()?;
        let readers = (0..settings.values.readers).map(|id| Process::start(Role::Reader(id), directory, &prefix));
        let others = (1..settings.ranks_here()).map(|rank| Process::start(Role::Rank(rank), directory, &prefix));
        let samples = segments.control.learner.samples_consumed.get();
        Ok(Self {
            settings,
            directory,
            segments,
            trainer,
            others: others.collect::<Result<_, _>>()?,
            checkpointer,
            readers: readers.collect::<Result<_, _>>()?,
            heartbeats: Heartbeats::new(settings.watchdog.silent_s),
            progress: Still::new(done(&segments.control)),
            metrics: Metrics::open(&directory.metrics())?,
            started: Instant::now(),
            shown: (Instant::now(), samples),
            prefix,
            node,
        })
    }

    /// Watches over the processes until the trainer ends.
    pub fn watch(mut self, interrupt: &Interrupt, restarts: &mut u32) -> anyhow::Result<Ended> {
        let control = &self.segments.control;
        let mut deadline = None;
        loop {
            if let Some((rank, status)) = self.fallen_rank()? {
                return self.rank_died(rank, status, interrupt);
            }
            if let Some(status) = self.trainer.reap()? {
                if !status.success() {
                    return self.rank_died(0, status, interrupt);
                }
                for other in &mut self.others {
                    let status = other.finish(&mut Deadline::after(FINISH), interrupt)?;
                    anyhow::ensure!(
                        // Killed after rank 0 had ended well, it takes nothing with it.
                        status.is_none_or(|status| status.success() || status.code().is_none()),
                        "{} failed at the end",
                        other.role
                    );
                }
                control.request_stop(STOP_ALL);
                let saved = self.end_checkpointer(interrupt)?;
                let ranks = self.settings.ranks_here();
                anyhow::ensure!(saved, RunFailure::CannotSave { log: self.directory.log("checkpointer") });
                for (reader, rings) in self.readers.iter_mut().zip(self.segments.rings.chunks(ranks)) {
                    rings.iter().for_each(|ring| ring.space().ring());
                    reader.finish(&mut Deadline::after(FINISH), interrupt)?;
                    for ring in rings {
                        ring.recover_writer(&control.data);
                    }
                }
                let done = interrupt.count() == 0;
                let patience = self.settings.values.patience;
                let converged = patience > 0 && control.evaluator.without_improvement.get() >= patience;
                return Ok(Ended::Well(match (done, converged) {
                    (false, _) => ExitReason::Interrupted,
                    (true, true) => ExitReason::Converged,
                    (true, false) => ExitReason::Budget,
                }));
            }
            match interrupt.count() {
                0 => {}
                1 => {
                    control.request_stop(STOP_LEARNING);
                    let grace = Duration::from_secs_f64(self.settings.watchdog.grace_s);
                    if deadline.get_or_insert_with(|| Deadline::after(grace)).is_over() {
                        tracing::warn!("the trainer has not ended within watchdog.grace_s, killing it");
                        return self.end_at_once(interrupt);
                    }
                }
                _ => {
                    control.request_stop(STOP_NOW);
                    anyhow::bail!("interrupted twice: ended at once");
                }
            }
            self.mind_readers(restarts)?;
            self.mind_checkpointer()?;
            self.show();
            let now = self.heartbeats.tick();
            if control.stop_level() == 0 {
                let processes = std::iter::once(&mut self.trainer).chain(&mut self.others);
                let processes = processes.chain(&mut self.checkpointer).chain(&mut self.readers);
                self.heartbeats.kill_the_silent(control, processes);
            }
            let (still, stuck_s) = (self.progress.look(done(control), now), self.settings.watchdog.stuck_s);
            if stuck_s > 0.0 && still.as_secs_f64() > stuck_s {
                let (seconds, logs) = (still.as_secs_f64(), self.directory.logs());
                return Err(RunFailure::NoProgress { seconds, logs }.into());
            }
            std::thread::sleep(POLL);
        }
    }

    /// A rank other than the first that ended and should not have, with its status.
    fn fallen_rank(&mut self) -> anyhow::Result<Option<(usize, ExitStatus)>> {
        for (rank, other) in (1..).zip(&mut self.others) {
            if let Some(status) = other.reap()? {
                if !status.success() {
                    return Ok(Some((rank, status)));
                }
                // It has ended well; the first one saves.
                other.due = Some(Instant::now() + Duration::from_secs(u32::MAX.into()));
            }
        }
        Ok(None)
    }

    /// Has the checkpointer bring to disk what is complete; false when it could not.
    fn end_checkpointer(&mut self, interrupt: &Interrupt) -> anyhow::Result<bool> {
        let Some(checkpointer) = &mut self.checkpointer else { return Ok(true) };
        let mut deadline = Deadline::after(FINISH);
        loop {
            match checkpointer.finish(&mut deadline, interrupt)? {
                Some(status) if status.success() => return Ok(true),
                // It was killed; its successor does what is left. One that said why would say it again.
                Some(status)
                    if status.code().is_none() && checkpointer.restarts < self.settings.watchdog.max_restarts =>
                {
                    checkpointer.schedule_restart();
                }
                Some(_) => return Ok(false),
                None => {}
            }
            while !checkpointer.restart_if_due(self.directory, &self.prefix)? {
                std::thread::sleep(POLL);
            }
        }
    }

    /// Ends all processes, and settles the rings. A complete snapshot still comes to disk, if nobody presses and the disk is not slow.
    fn end_at_once(&mut self, interrupt: &Interrupt) -> anyhow::Result<Ended> {
        let control = &self.segments.control;
        control.request_stop(STOP_ALL);
        self.kill_ranks()?;
        if let Some(checkpointer) = &mut self.checkpointer {
            let mut deadline = Deadline::after(SAVING);
            let may_write = checkpointer.due.is_none();
            while may_write && checkpointer.reap()?.is_none() && interrupt.count() < 2 && !deadline.is_over() {
                std::thread::sleep(POLL);
            }
            kill(checkpointer)?;
        }
        self.readers.iter_mut().try_for_each(kill)?;
        for ring in &self.segments.rings {
            ring.recover_writer(&control.data);
            ring.recover_reader();
        }
        Ok(Ended::Killed)
    }

    /// Kills the trainer and the further ranks: nobody writes into a half any more.
    fn kill_ranks(&mut self) -> anyhow::Result<()> {
        std::iter::once(&mut self.trainer).chain(&mut self.others).try_for_each(kill)
    }

    /// Starts another checkpointer in the place of a dead one.
    fn mind_checkpointer(&mut self) -> anyhow::Result<()> {
        let Some(checkpointer) = &mut self.checkpointer else { return Ok(()) };
        if let Some(status) = checkpointer.reap()? {
            self.segments.control.processes[checkpointer.role.slot()].clear();
            let (process, log) = (checkpointer.role.to_string(), self.directory.log("checkpointer"));
            if checkpointer.restarts >= self.settings.watchdog.max_restarts {
                return Err(RunFailure::KeepsDying { process, times: checkpointer.restarts + 1, log }.into());
            }
            tracing::warn!("{process} ended ({status}); starting another");
            self.metrics.append("restart", &Restart { process, status: status.to_string(), lost: 0 });
            checkpointer.schedule_restart();
        }
        checkpointer.restart_if_due(self.directory, &self.prefix)?;
        Ok(())
    }

    /// The rank that others waited for in vain and that gives no sign of life. One that does may wait for a reader itself.
    fn hung_rank(&self) -> Option<usize> {
        let exchange = self.segments.exchange.as_ref()?;
        let Some(Broken::Late { rank }) = exchange.broken() else { return None };
        let here = exchange.shape().here();
        let rank = here.contains(&rank).then(|| rank - here.start)?;
        let silent = self.segments.control.processes[Role::rank(rank).slot()].silent_ms();
        (silent as f64 * 1e-3 > self.settings.ranks.timeout_s / 2.0).then_some(rank)
    }

    fn rank_died(&mut self, rank: usize, status: ExitStatus, interrupt: &Interrupt) -> anyhow::Result<Ended> {
        self.segments.control.request_stop(STOP_ALL);
        let hung = self.hung_rank();
        let mut ranks: Vec<_> = std::iter::once(&mut self.trainer).chain(&mut self.others).collect();
        let (rank, fate) = blame::find(self.segments.exchange.as_ref(), &mut ranks, hung, (rank, status))?;
        self.kill_ranks()?;
        // What is complete comes to disk.
        self.end_checkpointer(interrupt)?;
        let role = Role::rank(rank);
        let log = self.directory.log(&role.to_string());
        match fate.code() {
            Some(RunFailure::NOT_FINITE) => Ok(Ended::NotFinite),
            Some(RunFailure::CANNOT_SAVE) => Err(RunFailure::CannotSave { log }.into()),
            // It said why: a full table, say. Only what was killed or broke is tried again.
            Some(1 | 2) => {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().rev().find(|line| line.starts_with("error:")).unwrap_or("error: see its log");
                anyhow::bail!(
                    "the {role} process ended: {} (its log is {})",
                    last.trim_start_matches("error: "),
                    log.display()
                )
            }
            _ => {
                let record = Restart { process: role.to_string(), status: fate.to_string(), lost: 0 };
                self.metrics.append("restart", &record);
                Ok(Ended::Died { role, fate })
            }
        }
    }

    fn mind_readers(&mut self, restarts: &mut u32) -> anyhow::Result<()> {
        let control = &self.segments.control;
        for (id, reader) in self.readers.iter_mut().enumerate() {
            if let Some(status) = reader.reap()? {
                let ranks = self.settings.ranks_here();
                let rings = &self.segments.rings[id * ranks..(id + 1) * ranks];
                let lost = rings.iter().map(|ring| ring.recover_writer(&control.data)).sum();
                control.processes[id].clear();
                // It has given all passes, or was asked to stop.
                if status.success() || control.stop_level() > 0 {
                    reader.due = Some(Instant::now() + Duration::from_secs(u32::MAX.into()));
                    continue;
                }
                let (process, log) = (reader.role.to_string(), self.directory.log(&reader.role.to_string()));
                if reader.restarts >= self.settings.watchdog.max_restarts {
                    return Err(RunFailure::KeepsDying { process, times: reader.restarts + 1, log }.into());
                }
                tracing::warn!("{process} ended ({status}), {lost} samples lost with it; starting another");
                self.metrics.append("restart", &Restart { process, status: status.to_string(), lost });
                *restarts += 1;
                reader.schedule_restart();
            }
            reader.restart_if_due(self.directory, &self.prefix)?;
        }
        Ok(())
    }

    fn show(&mut self) {
        let (then, before) = self.shown;
        if then.elapsed() < SHOW_EVERY || !self.node.is_first() {
            return;
        }
        let control = &self.segments.control;
        let samples = control.learner.samples_consumed.get();
        let best = control.evaluator.best_benefit.get();
        let best = if best.is_finite() { format!("  best validation loss {best:.6}") } else { String::new() };
        say!(
            "{:>5.0}s  pass {}/{}  updates {}  samples {} ({:.0}k/s){best}",
            self.started.elapsed().as_secs_f64(),
            control.evaluator.due.get() + 1,
            self.settings.values.epochs,
            control.learner.updates.get(),
            samples,
            (samples.saturating_sub(before)) as f64 / then.elapsed().as_secs_f64() / 1000.0,
        );
        self.shown = (Instant::now(), samples);
    }
}

/// Kills a process and waits for its end.
fn kill(process: &mut Process) -> anyhow::Result<()> {
    process.kill();
    // Nothing hastens the end of a killed process.
    process.finish(&mut Deadline::after(FINISH), &Interrupt::default())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::RunNames;

    /// A run whose trainer wrote a large model for longer than `watchdog.stuck_s` ended for lack of progress.
    #[test]
    fn writing_a_model_or_a_snapshot_is_progress() {
        let names = RunNames::for_this_process("progress").unwrap();
        let control = Control::create(&names.part("control")).unwrap();
        let mut seen = vec![done(&control)];
        control.evaluator.compute_ns.add(1);
        seen.push(done(&control));
        control.checkpoint.write_ns.add(1);
        seen.push(done(&control));
        control.learner.updates.add(1);
        seen.push(done(&control));
        control.actors[0].rows_read.add(1);
        seen.push(done(&control));
        assert!(seen.windows(2).all(|w| w[0] != w[1]), "{seen:?}");
    }
}
