//! The main process of `admix values train`: joins and counts the exposures first, then runs readers and the trainer.
//!
//! When a reader dies, main starts another, which begins with the first block that was not handed over. When the trainer dies, or
//! one of several ranks, which are trainers of one model, then what has changed in the table since the newest snapshot is undone, and
//! the whole run returns to it. Blocks are taken in a fixed order: either way the run ends with the bytes of an undisturbed one.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use crate::awake::Deadline;
use crate::log;
use crate::run::beginning::first_rows;
use crate::run::context::inputs_hash;
use crate::run::leakage::Roles;
use crate::run::value_run::{Prepared, ValueHalves, ValueSegments, compile_options, create_table};
use crate::run::value_snapshot::{ValueSnapshot, ValueState, read_state, remove_behind};
use crate::run::{Metrics, RunDirectory};
use crate::settings::{Configuration as _, RankSync, SparseAverage, ValueSettings};
use crate::shm::control::{STOP_ALL, STOP_LEARNING, STOP_NOW};
use crate::shm::{Ledger, Role, RunNames, SampleRing, sweep};
use crate::sparse::{HostTable, file};
use crate::values::Fields;
use crate::values::join::{JoinCounts, Share, join};
use crate::values::prior::PriorEstimate;

use super::ExitReason;
use super::children::{Process, without_huge_pages};
use super::failure::RunFailure;
use super::interrupt::Interrupt;
use super::resume::Refused;

const POLL: Duration = Duration::from_millis(20);
const SHOW_EVERY: Duration = Duration::from_secs(10);
const FINISH: Duration = Duration::from_secs(60);
/// How long main looks for the rank that others lost.
const BLAME: Duration = Duration::from_secs(2);

/// What a finished run reports.
#[derive(Debug, Clone, Serialize)]
pub struct ValueOutcome {
    pub reason: ExitReason,
    pub updates: u64,
    pub samples: u64,
    pub passes: u64,
    pub seconds: f64,
    /// Loss of the best model on the validation days: click plus charge over its dispersion, per exposure.
    pub best_loss: f64,
    pub reader_restarts: u32,
    /// Times that everything went back to a snapshot.
    pub went_back: u32,
    pub snapshots: u64,
    pub snapshot_s: f64,
    pub ledger: Ledger,
}

/// Joins all exposures once: counts what is wrong with them, and measures how charges scatter.
///
/// # Errors
/// A day that cannot be used, or that is trained on and validated on ([`crate::run::leakage::Leak`]).
pub fn prepare(settings: &ValueSettings, fields: &Fields) -> anyhow::Result<Prepared> {
    let mut prepared = Prepared {
        samples: 0,
        dispersion: 1.0,
        prior: vec![[settings.values.prior_sd as f32; 2]; fields.len()],
        train: JoinCounts::default(),
        validation: JoinCounts::default(),
        inputs: Default::default(),
    };
    let (mut scatter, mut charges) = (0.0, 0u64);
    let v = &settings.values;
    let mut prior = PriorEstimate::new(fields.len(), v.train.len());
    let mut roles = Roles::default();
    for (dir, training) in v.train.iter().map(|d| (d, true)).chain(v.validation.iter().map(|d| (d, false))) {
        let joined = join(dir, compile_options(settings), fields, Share::ALL)?;
        if let Some(complaint) = joined.counts.complaint() {
            tracing::warn!("{}: {complaint}", joined.log.name());
        }
        roles.add(if training { "values.train" } else { "values.validation" }, dir, &joined.log)?;
        let mut hash = inputs_hash(dir, &joined.log)?;
        if let Some(path) = log::table::find(dir, "joined_exposure")? {
            let mut hasher = twox_hash::XxHash3_128::new();
            log::compile::hash_table(&mut hasher, &path)?;
            hash += &format!("-{:032x}", hasher.finish_128());
        }
        prepared.inputs.insert(dir.clone(), hash);
        if !training {
            prepared.validation.add(&joined.counts);
            continue;
        }
        prepared.samples += joined.samples.len() as u64;
        prepared.train.add(&joined.counts);
        if v.learn_prior {
            prior.add(&joined);
        }
        for s in joined.samples.iter().filter(|s| s.auction && s.seen.charge > 0.0) {
            let (expected, charged) = (f64::from(s.seen.charge), f64::from(s.charged));
            scatter += (charged - expected).powi(2) / expected;
            charges += 1;
        }
    }
    if charges > 0 && scatter > 0.0 {
        prepared.dispersion = (scatter / charges as f64) as f32;
    }
    if v.learn_prior {
        prepared.prior = prior.finish(v.prior_sd);
    }
    Ok(prepared)
}

/// Checks that a run may go on under these settings and inputs.
///
/// # Errors
/// [`Refused`], with what differs.
pub fn check_resume(directory: &RunDirectory, settings: &ValueSettings, now: &Prepared) -> anyhow::Result<()> {
    let then = ValueSettings::read_resolved(&directory.config())?;
    let free = |s: &ValueSettings| {
        let mut s = s.clone();
        s.ranks.timeout_s = 0.0;
        // The sum over all ranks does not depend on how many there are; the mean over those that hold a row does.
        if s.ranks.sparse_average == SparseAverage::World && s.ranks.sync == RankSync::Step {
            (s.values.batch, s.values.ranks) = (s.values.batch * s.values.ranks, 1);
        }
        (s.checkpoint, s.watchdog, s.values.epochs, s.values.patience) = Default::default();
        // Cache and snapshots change no number.
        (s.table.cache_rows, s.table.prefetch, s.table.devices, s.table.snapshot_rows) = Default::default();
        s
    };
    let refused = |why: &str| Refused { root: directory.root().to_owned(), why: why.to_owned() };
    let (before, ranks) = (then.values.ranks, settings.values.ranks);
    if before != ranks && free(&then) != free(settings) {
        return Err(refused(&format!(
            "values.ranks was {before} and is {ranks} now; set it back. Another number of ranks goes on with the same updates only with \
             ranks.sparse_average = \"world\" and the same values.ranks x values.batch"
        ))
        .into());
    }
    if free(&then) != free(settings) {
        return Err(refused(
            "the run has another configuration; go on with its own, or start a new run in another --run-dir",
        )
        .into());
    }
    if then.values.epochs != settings.values.epochs {
        return Err(refused("values.epochs has changed, and the rates decay over it; set it back").into());
    }
    if Prepared::read(directory)?.inputs != now.inputs {
        return Err(refused("a log has changed since the run began; put it back, or start a new run").into());
    }
    Ok(())
}

/// Trains until the trainer ends, and reports. Goes on from the newest snapshot in the run directory, if there is one.
///
/// # Errors
/// [`RunFailure`], or no room for the table.
pub fn train(
    settings: &ValueSettings,
    fields: &Fields,
    directory: &RunDirectory,
    interrupt: &Interrupt,
) -> anyhow::Result<ValueOutcome> {
    let removed = sweep();
    if !removed.is_empty() {
        tracing::info!("removed shared memory that dead runs left: {}", removed.join(", "));
    }
    without_huge_pages();
    let names = RunNames::for_this_process(&directory.run_id())?;
    let started = Instant::now();
    let (mut went_back, mut reader_restarts, mut snapshots) = (0, 0, (0, 0));
    // The update that was not finite, if the last attempt ended with one.
    let mut not_finite = None;
    let mut rows = Rows::load(&names, settings, fields, directory)?;
    loop {
        let halves = ValueHalves::create(&names, settings, fields, rows.number)?;
        let segments = ValueSegments::create(&names, settings, fields)?;
        let mut before = Ledger::default();
        if let Some(state) = &rows.state {
            before = state.ledger;
            let l = &segments.control.learner;
            l.updates.set(state.updates);
            l.samples_consumed.set(state.samples);
            for (actor, &position) in segments.control.actors.iter().zip(&state.cursor.positions) {
                actor.param_version.set(position);
            }
        }
        let run = Run::start(settings, directory, &segments, names.to_string())?;
        let ended = run.watch(interrupt, &mut reader_restarts)?;
        let c = &segments.control.checkpoint;
        snapshots = (snapshots.0 + c.snapshots.get(), snapshots.1 + c.write_ns.get());
        let Ended::Well(reason) = ended else {
            went_back += 1;
            if matches!(ended, Ended::NotFinite) {
                let update = segments.control.learner.updates.get();
                // In a fixed order the same follows again, unless it was the machine's doing.
                anyhow::ensure!(
                    not_finite.replace(update).is_none_or(|before| update > before),
                    RunFailure::NotFinite { incidents: directory.logs() }
                );
                tracing::warn!("update {update} is not finite; once more from the newest snapshot");
            }
            anyhow::ensure!(
                went_back <= settings.watchdog.max_restarts,
                RunFailure::KeepsDying { process: "trainer".into(), times: went_back, log: directory.log("trainer") }
            );
            drop(segments);
            rows = rows.go_back(&names, settings, fields, directory, halves)?;
            continue;
        };
        let ledger = segments.rings.iter().map(SampleRing::ledger);
        for ledger in ledger.clone() {
            ledger.balance().context("samples are unaccounted for")?;
        }
        let control = &segments.control;
        return Ok(ValueOutcome {
            reason,
            updates: control.learner.updates.get(),
            samples: control.learner.samples_consumed.get(),
            passes: control.evaluator.due.get(),
            seconds: started.elapsed().as_secs_f64(),
            best_loss: control.evaluator.best_benefit.get(),
            reader_restarts,
            went_back,
            snapshots: snapshots.0,
            snapshot_s: snapshots.1 as f64 * 1e-9,
            ledger: Ledger::sum(ledger.chain([before])),
        });
    }
}

/// The table of a run, and the snapshot that it is as of.
struct Rows {
    table: HostTable,
    /// 0 and `None` at the beginning of a run.
    number: u64,
    state: Option<ValueState>,
}

impl Rows {
    /// Reads the newest snapshot of a run into a new table.
    fn load(
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        directory: &RunDirectory,
    ) -> anyhow::Result<Self> {
        let snapshot = ValueSnapshot::newest(directory)?;
        let mut table = create_table(names, settings, fields)?;
        let number = snapshot.as_ref().map_or(0, |snapshot| snapshot.number);
        remove_behind(&directory.checkpoints(), number)?;
        match &snapshot {
            Some(snapshot) => snapshot.restore(&mut table)?,
            None => {
                if let Some(rows) = first_rows(settings, &directory.checkpoints())? {
                    file::load(&rows, &mut table)?;
                }
            }
        }
        Ok(Self { table, number, state: snapshot.map(|snapshot| snapshot.state) })
    }

    /// Returns the table to the newest snapshot after the trainer's death, by undoing what has changed since.
    fn go_back(
        mut self,
        names: &RunNames,
        settings: &ValueSettings,
        fields: &Fields,
        directory: &RunDirectory,
        halves: Option<ValueHalves>,
    ) -> anyhow::Result<Self> {
        let begun = Instant::now();
        let who = if settings.values.ranks > 1 { "a rank" } else { "the trainer" };
        self.table.recover();
        if let Some(ValueHalves { halves, undo }) = halves {
            let number = halves.complete();
            let on_disk = halves.committed() == number;
            if let Some(rows) = on_disk.then(|| self.table.roll_back(&undo, number)).flatten() {
                let state = (number > 0).then(|| read_state(directory, number)).transpose()?;
                tracing::warn!(
                    "{who} died; all went back to snapshot {number}: {rows} rows restored in {:.3} s",
                    begun.elapsed().as_secs_f64()
                );
                return Ok(Self { table: self.table, number, state });
            }
        }
        tracing::warn!("{who} died; all went back to the newest snapshot on disk");
        drop(self.table);
        Self::load(names, settings, fields, directory)
    }
}

/// How a set of processes ended.
enum Ended {
    Well(ExitReason),
    TrainerDied,
    NotFinite,
}

struct Run<'a> {
    settings: &'a ValueSettings,
    directory: &'a RunDirectory,
    segments: &'a ValueSegments,
    prefix: String,
    trainer: Process,
    /// Further ranks, from 1.
    others: Vec<Process>,
    /// `None` where no snapshots are taken.
    checkpointer: Option<Process>,
    readers: Vec<Process>,
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

impl<'a> Run<'a> {
    fn start(
        settings: &'a ValueSettings,
        directory: &'a RunDirectory,
        segments: &'a ValueSegments,
        prefix: String,
    ) -> anyhow::Result<Self> {
        let trainer = Process::start(Role::Trainer, directory, &prefix)?;
        let saves = settings.checkpoint.every_s > 0.0;
        let checkpointer = saves.then(|| Process::start(Role::ValueCheckpointer, directory, &prefix)).transpose()?;
        let readers = (0..settings.values.readers).map(|id| Process::start(Role::Reader(id), directory, &prefix));
        let others = (1..settings.values.ranks).map(|rank| Process::start(Role::Rank(rank), directory, &prefix));
        let samples = segments.control.learner.samples_consumed.get();
        Ok(Self {
            settings,
            directory,
            segments,
            trainer,
            others: others.collect::<Result<_, _>>()?,
            checkpointer,
            readers: readers.collect::<Result<_, _>>()?,
            metrics: Metrics::open(&directory.metrics())?,
            started: Instant::now(),
            shown: (Instant::now(), samples),
            prefix,
        })
    }

    /// Watches over the processes until the trainer ends.
    fn watch(mut self, interrupt: &Interrupt, restarts: &mut u32) -> anyhow::Result<Ended> {
        let control = &self.segments.control;
        let mut deadline = None;
        let mut progress = (0, Instant::now());
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
                    anyhow::ensure!(status.is_none_or(|status| status.success()), "{} failed at the end", other.role);
                }
                control.request_stop(STOP_ALL);
                let saved = self.end_checkpointer(interrupt)?;
                let ranks = self.settings.values.ranks;
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
                        self.trainer.kill();
                        return Ok(Ended::Well(ExitReason::Interrupted));
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
            let limits = &self.settings.watchdog;
            let slot = &control.processes[Role::Trainer.slot()];
            let silent_s = slot.silent_ms() as f64 / 1000.0;
            if limits.silent_s > 0.0 && slot.pid() == Some(self.trainer.pid()) && silent_s > limits.silent_s {
                tracing::warn!(
                    "the trainer has given no sign of life for {silent_s:.0} s (watchdog.silent_s), killing it"
                );
                self.trainer.kill();
            }
            let now = control.learner.updates.get() + control.learner.samples_consumed.get();
            if now != progress.0 {
                progress = (now, Instant::now());
            } else if limits.stuck_s > 0.0 && progress.1.elapsed() > Duration::from_secs_f64(limits.stuck_s) {
                let (seconds, logs) = (progress.1.elapsed().as_secs_f64(), self.directory.logs());
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

    /// The rank that is to blame for the end of `rank`: one that merely lost another says so by its status.
    fn blame(&mut self, rank: usize, status: ExitStatus) -> anyhow::Result<(usize, ExitStatus)> {
        let lost_another = |status: &ExitStatus| status.code() == Some(RunFailure::RANK_LOST.into());
        if let Some(exchange) = &self.segments.exchange {
            exchange.died(rank);
        }
        let begun = Instant::now();
        while lost_another(&status) && begun.elapsed() < BLAME {
            let ranks = std::iter::once(&mut self.trainer).chain(&mut self.others).enumerate();
            for (rank, process) in ranks {
                if let Some(status) = process.reap()?.filter(|status| !status.success() && !lost_another(status)) {
                    return Ok((rank, status));
                }
            }
            std::thread::sleep(POLL);
        }
        Ok((rank, status))
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

    fn rank_died(&mut self, rank: usize, status: ExitStatus, interrupt: &Interrupt) -> anyhow::Result<Ended> {
        self.segments.control.request_stop(STOP_ALL);
        let (rank, status) = self.blame(rank, status)?;
        // Nobody writes into a half any more; what is complete comes to disk.
        for process in std::iter::once(&mut self.trainer).chain(&mut self.others) {
            process.kill();
            process.finish(&mut Deadline::after(FINISH), interrupt)?;
        }
        self.end_checkpointer(interrupt)?;
        let role = if rank == 0 { Role::Trainer } else { Role::Rank(rank) };
        let log = self.directory.log(&role.to_string());
        match status.code().and_then(|code| u8::try_from(code).ok()) {
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
                let record = Restart { process: role.to_string(), status: status.to_string(), lost: 0 };
                self.metrics.append("restart", &record);
                Ok(Ended::TrainerDied)
            }
        }
    }

    fn mind_readers(&mut self, restarts: &mut u32) -> anyhow::Result<()> {
        let control = &self.segments.control;
        for (id, reader) in self.readers.iter_mut().enumerate() {
            if let Some(status) = reader.reap()? {
                let ranks = self.settings.values.ranks;
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
        if then.elapsed() < SHOW_EVERY {
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
