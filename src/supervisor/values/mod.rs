//! The main process of `admix values train`: joins and counts the exposures first, then runs readers and the trainer.
//!
//! When a reader dies, main starts another, which begins with the first block that was not handed over. When the trainer dies, or
//! one of several ranks, which are trainers of one model, then what has changed in the table since the newest snapshot is undone, and
//! the whole run returns to it. Blocks are taken in a fixed order: either way the run ends with the bytes of an undisturbed one.
//!
//! On several nodes each has such a main process. They agree on what they run and on the snapshot that they go on from ([`super::job`]),
//! and one thread of each carries what ranks exchange ([`crate::nodes`]). There a rank that dies ends the job.
//!
//! [`beginning`]: what is known before a run starts. [`table`]: its rows, and how they go back. [`processes`]: its processes, watched.
//! [`spent`]: what earlier starts took. [`manifest`]: description of the run on disk.

mod beginning;
mod manifest;
mod processes;
mod spent;
mod table;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::collective::shares::Work;
use crate::nodes::{Job, Node, World};
use crate::run::RunDirectory;
use crate::run::segments::create_control;
use crate::run::snapshot::folder;
use crate::run::value_run::{ValueHalves, ValueSegments, exchange_name};
use crate::run::value_snapshot::{ValueSnapshot, ValueState, read_state};
use crate::settings::ValueSettings;
use crate::shm::{Broken, Control, Exchange, Ledger, Remote, Role, SampleRing, sweep};
use crate::values::Fields;

use super::ExitReason;
use super::blame::Fate;
use super::children::without_huge_pages;
use super::failure::RunFailure;
use super::interrupt::Interrupt;
use super::job;

pub use beginning::{agree_on_run, check_job, check_resume, prepare};
pub use manifest::{ValueManifest, ValueTraining};
use processes::{Ended, Run};
pub use spent::Spent;
use table::Rows;
pub use table::{check_begun, holds_snapshots, newest};

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
    /// How busy the ranks of this node were since they started last, where a table has several, on the CPU.
    pub work: Option<Work>,
}

/// What main counts in all attempts of a start.
struct Totals {
    started: Instant,
    reader_restarts: u32,
    went_back: u32,
    snapshots: u64,
    snapshot_ns: u64,
}

/// What follows when a set of processes has ended.
enum Next {
    /// All return to the newest snapshot; the text is the reason.
    GoBack(String),
    /// The run ends; if its processes were `killed`, with what the newest snapshot holds.
    End { reason: ExitReason, killed: bool },
}

/// How a node ended.
#[derive(Serialize, Deserialize)]
struct Part {
    interrupted: bool,
    /// Of its own rings.
    ledger: Ledger,
}

/// Checks that no node has lost the rows of a finished run, where there are several.
///
/// # Errors
/// As [`job::newest_of_all`].
pub fn check_snapshots(directory: &RunDirectory, (job, known): (&Job, bool)) -> anyhow::Result<()> {
    if !job.node().is_alone() {
        job::newest_of_all::<ValueSnapshot>(job, directory, known)?;
    }
    Ok(())
}

/// Trains until the trainer ends, and reports. Goes on from the `snapshot` that is the [`newest`], if there is one. All nodes of the `job`
/// call it.
///
/// # Errors
/// [`RunFailure`], or no room for the table.
pub fn train(
    settings: &ValueSettings,
    fields: &Fields,
    directory: &RunDirectory,
    interrupt: &Interrupt,
    (job, snapshot): (&Job, Option<ValueSnapshot>),
) -> anyhow::Result<ValueOutcome> {
    let removed = sweep();
    if !removed.is_empty() {
        tracing::info!("removed shared memory that dead runs left: {}", removed.join(", "));
    }
    without_huge_pages();
    let (names, mut control) = create_control(&directory.run_id())?;
    let mut totals = Totals { started: Instant::now(), reader_restarts: 0, went_back: 0, snapshots: 0, snapshot_ns: 0 };
    // The update that was not finite, if the last attempt ended with one.
    let mut not_finite = None;
    let (node, world) = (job.node(), job.node().world(settings.ranks_here()));
    let mut rows = Rows::load(&names, settings, fields, directory, (world, snapshot))?;
    loop {
        let halves = ValueHalves::create(&names, settings, fields, (world, rows.number))?;
        let segments = ValueSegments::create((&names, control), settings, fields, world)?;
        let before = go_on_from(&segments.control, rows.state.as_ref());
        let remote =
            || Ok::<_, anyhow::Error>(Remote::new(Arc::new(Exchange::open(&exchange_name(&names.to_string()))?)));
        // A node whose disk is slow reads its rows for longer than ranks wait for each other.
        job.tell(&())?;
        let ended = {
            let carrying = job.carry(remote)?;
            let run = Run::start(settings, directory, &segments, names.to_string(), node)?;
            let ended = run.watch(interrupt, &mut totals.reader_restarts)?;
            if let (Ended::Well(_), Some(carrying)) = (&ended, carrying) {
                carrying.end();
            }
            ended
        };
        let saved = &segments.control.checkpoint;
        totals.snapshots += saved.snapshots.get();
        totals.snapshot_ns += saved.write_ns.get();
        match end_of(ended, &segments, directory, (node, world), &mut not_finite)? {
            Next::GoBack(why) => {
                totals.went_back += 1;
                anyhow::ensure!(
                    totals.went_back <= settings.watchdog.max_restarts,
                    RunFailure::KeepsGoingBack { times: totals.went_back, why, logs: directory.logs() }
                );
                // Without a control block the tables would be swept.
                let ValueSegments { control: kept, rings, exchange, overlap } = segments;
                drop((rings, exchange, overlap));
                rows = rows.go_back(&names, settings, fields, directory, (halves, &why))?;
                control = kept;
                control.reset();
            }
            Next::End { reason, killed } => {
                if killed {
                    go_back_to_the_snapshot(directory, &segments.control)?;
                }
                let ledger = ledger_of(&segments.rings, before, killed)?;
                // Before the control block goes, without which the tables would be swept. (On an error they are given up anyway.)
                drop(rows);
                return outcome_of(reason, ledger, &totals, &segments.control, settings, job);
            }
        }
    }
}

/// Sets the counters of new shared memory to those of the snapshot from which the run continues. Returns its ledger.
fn go_on_from(control: &Control, state: Option<&ValueState>) -> Ledger {
    let Some(state) = state else { return Ledger::default() };
    control.learner.updates.set(state.updates);
    control.learner.samples_consumed.set(state.samples);
    for (actor, &position) in control.actors.iter().zip(&state.cursor.positions) {
        actor.param_version.set(position);
    }
    state.ledger
}

/// Decides whether a run whose processes have `ended` goes back or ends. `not_finite` is the update that was not finite in the attempt
/// before, if there was one.
///
/// # Errors
/// [`RunFailure`]: the processes cannot be started again, because other nodes wait for them or the same would follow.
fn end_of(
    ended: Ended,
    segments: &ValueSegments,
    directory: &RunDirectory,
    (node, world): (Node, World),
    not_finite: &mut Option<u64>,
) -> Result<Next, RunFailure> {
    let logs = directory.logs();
    match ended {
        Ended::Well(reason) => Ok(Next::End { reason, killed: false }),
        Ended::Killed if node.is_alone() => Ok(Next::End { reason: ExitReason::Interrupted, killed: true }),
        Ended::Killed => Err(RunFailure::NotSaved { node: node.index }),
        Ended::Died { role, fate } if node.is_alone() => Ok(Next::GoBack(format!("{role} ended ({fate})"))),
        Ended::Died { role, fate } => {
            let broken = segments.exchange.as_ref().and_then(Exchange::broken);
            Err(RunFailure::NodeLost { why: lost(node, world, broken, (role, fate)), logs })
        }
        Ended::NotFinite => {
            let update = segments.control.learner.updates.get();
            // In a fixed order the same follows again, unless it was the machine's doing.
            let repeated = not_finite.replace(update).is_some_and(|before| update <= before);
            if repeated || !node.is_alone() {
                return Err(RunFailure::ValuesNotFinite { logs });
            }
            Ok(Next::GoBack(format!("update {update} is not finite")))
        }
    }
}

/// Returns the ledger of the rings after that `before` them.
///
/// # Errors
/// Samples that are unaccounted for.
fn ledger_of(rings: &[SampleRing], before: Ledger, killed: bool) -> anyhow::Result<Ledger> {
    let ledgers = rings.iter().map(SampleRing::ledger);
    for ledger in ledgers.clone() {
        ledger.balance().context("samples are unaccounted for")?;
    }
    let ledger = Ledger::sum(ledgers.chain([before]));
    // The snapshot may hold samples that ranks had learned and not given back when they were killed.
    Ok(if killed { ledger.closed() } else { ledger })
}

/// Puts together the results of a run that ends for a `reason`, with those of the other nodes. All nodes of the `job` call it.
///
/// # Errors
/// A lost node.
fn outcome_of(
    reason: ExitReason,
    ledger: Ledger,
    totals: &Totals,
    control: &Control,
    settings: &ValueSettings,
    job: &Job,
) -> anyhow::Result<ValueOutcome> {
    let all = job.tell(&Part { interrupted: reason == ExitReason::Interrupted, ledger })?;
    let samples = control.learner.samples_consumed.get();
    Ok(ValueOutcome {
        reason: if all.iter().any(|of| of.interrupted) { ExitReason::Interrupted } else { reason },
        updates: control.learner.updates.get(),
        samples,
        passes: control.evaluator.due.get(),
        seconds: totals.started.elapsed().as_secs_f64(),
        best_loss: control.evaluator.best_benefit.get(),
        reader_restarts: totals.reader_restarts,
        went_back: totals.went_back,
        snapshots: totals.snapshots,
        snapshot_s: totals.snapshot_ns as f64 * 1e-9,
        ledger: of_learned(Ledger::sum(all.iter().map(|of| of.ledger)), samples),
        work: Work::of(settings, control),
    })
}

/// Sets the statistics of a run whose trainer was killed to those of the newest snapshot on disk, from which a resume continues.
fn go_back_to_the_snapshot(directory: &RunDirectory, control: &Control) -> anyhow::Result<()> {
    // Those behind the one that the run went on from were removed at its start.
    let number = folder::numbers(&directory.checkpoints())?.into_iter().max().unwrap_or(0);
    let state = (number > 0).then(|| read_state(directory, number)).transpose()?;
    let (updates, samples) = state.as_ref().map_or((0, 0), |state| (state.updates, state.samples));
    let (l, e) = (&control.learner, &control.evaluator);
    let lost = l.updates.get().saturating_sub(updates);
    match number {
        0 => tracing::warn!("no snapshot is on disk: all {lost} updates are lost"),
        _ => tracing::warn!("snapshot {number} is the newest on disk: {lost} updates after it are lost"),
    }
    l.updates.set(updates);
    l.samples_consumed.set(samples);
    e.due.set(state.as_ref().map_or(0, |state| state.cursor.epoch));
    e.best_benefit.set(state.and_then(|state| state.best).unwrap_or(f64::NAN));
    Ok(())
}

/// Returns the ledger of a run that has learned so many samples: these are its consumed ones. Samples that ranks took and did not learn are
/// discarded: those that a reader gave again, and those that were at hand when the run stopped or returned to a snapshot. Samples that ranks
/// had learned when a snapshot was taken, and had not given back yet, were counted as lost.
fn of_learned(ledger: Ledger, samples: u64) -> Ledger {
    let taken = ledger.consumed;
    Ledger {
        consumed: samples,
        discarded: ledger.discarded + taken.saturating_sub(samples),
        lost: ledger.lost.saturating_sub(samples.saturating_sub(taken)),
        ..ledger
    }
}

/// Says what this `node` has lost: `role` ended with `fate`, and `broken` is why the exchange broke.
fn lost(node: Node, world: World, broken: Option<Broken>, (role, fate): (Role, Fate)) -> String {
    let here = world.first..world.first + world.local;
    match broken {
        Some(Broken::Late { rank }) if !here.contains(&rank) => {
            format!("node {} did not answer within ranks.timeout_s", rank / world.local)
        }
        _ => format!("{role} of node {} died ({fate})", node.index),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    /// What a killed reader gave a second time counted as learned, and samples that were taken when the run stopped, too.
    #[test]
    fn only_what_was_learned_is_consumed() {
        let rings = Ledger { produced: 100, consumed: 70, lost: 30, ..Ledger::default() };
        for (samples, expected) in [
            (70, rings),
            (60, Ledger { consumed: 60, discarded: 10, ..rings }),
            (75, Ledger { consumed: 75, lost: 25, ..rings }),
        ] {
            let ledger = of_learned(rings, samples);
            assert_eq!(ledger, expected);
            ledger.balance().unwrap();
        }
        let wrong = of_learned(rings, 101);
        assert!(wrong.balance().is_err(), "more was learned than produced: {wrong}");
    }

    #[test]
    fn a_node_that_does_not_answer_is_named() {
        let node = Node { index: 1, of: 3 };
        let said = |broken, fate| lost(node, node.world(2), Some(broken), (Role::Rank(1), fate));
        let lost_another = Fate::Ended(ExitStatus::from_raw(i32::from(RunFailure::RANK_LOST) << 8));
        assert!(said(Broken::Late { rank: 5 }, lost_another).starts_with("node 2 did not answer"));
        assert_eq!(said(Broken::Late { rank: 3 }, lost_another), "rank1 of node 1 died (it lost another rank)");
        assert!(said(Broken::Late { rank: 3 }, Fate::Hung).starts_with("rank1 of node 1 died (killed: "));
        assert!(said(Broken::Died { rank: 2 }, Fate::Ended(ExitStatus::from_raw(9))).contains("signal: 9"));
    }
}
