//! The evaluator process: replays the validation days with newly published parameters and saves the best.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::policy::file::PolicyFile;
use crate::run::alive::{Pulse, while_alive};
use crate::run::{CannotSave, Context, Metrics, RunDirectory, Segments, unpack};
use crate::shm::control::{EvaluatorStats, STOP_ALL, STOP_NOW};
use crate::shm::{Role, process_cpu_time};

use super::judge::{Judge, Start};

const NAP: Duration = Duration::from_millis(100);
/// Interval between attempts to write a policy that the file system refused.
const RETRY: Duration = Duration::from_secs(1);
/// Share of the machine's cores that evaluations may use over time: if cores are short, learning comes first. A low priority alone
/// is not enough: a core that is busy with an evaluation does not look for a waiting learner thread.
const SHARE: f64 = 1.0 / 16.0;

/// Runs the evaluator until the run stops; the newest parameters are evaluated before it ends, unless the stop is
/// immediate.
///
/// # Errors
/// On any failure; main starts it again.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let context = Context::load(directory)?;
    let settings = &context.settings;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let segments = Segments::open(prefix, 0..0, false)?;
    let control = &segments.control;
    let stats = &control.evaluator;
    let slot = &control.processes[Role::Evaluator.slot()];
    slot.sign_in(Role::Evaluator.kind());
    let pulse = Pulse::new(control, slot);
    let mut judge = while_alive(
        move || pulse.beat(),
        || {
            let days = context.days(&settings.data.validation)?;
            let start = Start { actor: context.start.clone(), kept: settings.evaluate.keep_start };
            anyhow::Ok(Judge::new(days, context.spec.clone(), context.replay_options(), start))
        },
    )?;
    let pulse = Pulse::new(control, slot);
    if stats.evaluations.get() > 0 {
        judge.resume(stats.best_benefit.get(), stats.highest_benefit.get(), stats.without_improvement.get());
    }
    // In lock-step a resumed run reproduces the results after its snapshot.
    if !settings.run.deterministic
        && let Ok(best) = PolicyFile::read(&directory.best())
        && let Some(found) = judge.adopt(&best.actor, &mut || pulse.beat())
    {
        // Found after the snapshot from which the run resumes, or before the evaluator was restarted.
        stats.best_benefit.set(found.j);
        stats.best_share.set(found.share.unwrap_or(f64::NAN));
        stats.highest_benefit.set(found.highest);
        // Its version was one of other shared memory, or died with an evaluator.
        stats.best_version.set(0);
        tracing::info!("the best policy of this run so far, of update {}, stays the one to beat", best.updates);
    }
    let mut metrics = Metrics::open(&directory.metrics())?;
    let actor_len = context.spec.actor_shape().len();
    let mut words = Vec::new();
    // The last evaluated version, and the multiple of `evaluate.every` that its updates had reached.
    let mut unsaved: Option<Unsaved> = None;
    let mut rested = Instant::now();
    let mut evaluated = Some((stats.progress(), stats.due.get())).filter(|(version, _)| *version > 0);
    loop {
        let seen = control.params.value();
        let stopping = control.stop_level();
        if stopping >= STOP_NOW {
            return Ok(());
        }
        let news = segments.params.version() > evaluated.map_or(0, |(version, _)| version);
        let copying = Instant::now();
        if news && let Some(version) = segments.params.read(&mut words) {
            let (updates, _, averaged) = unpack(&words, actor_len).context("a publication of another size")?;
            stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
            let due = updates / settings.evaluate.every;
            let due_now = evaluated.is_none_or(|(_, last)| due > last) && Instant::now() >= rested;
            if stopping >= STOP_ALL || due_now {
                let counted = updates > settings.head_start();
                let (working, cpu) = (Instant::now(), process_cpu_time());
                let start = judge.lacks_start(&averaged).then(|| (0, context.start.clone(), false));
                for (updates, actor, counted) in start.into_iter().chain([(updates, averaged, counted)]) {
                    pulse.begin();
                    let evaluation = judge.evaluate(updates, &actor, counted, &mut || pulse.beat());
                    pulse.beat();
                    let copying = Instant::now();
                    if evaluation.improved {
                        let file =
                            PolicyFile { spec: context.spec.clone(), plan: context.plan.clone(), actor, updates };
                        unsaved =
                            Some(Unsaved { file, j: evaluation.j, share: evaluation.share, version, refused: None });
                        save(&mut unsaved, directory, stats);
                    }
                    stats.last_benefit.set(evaluation.j);
                    stats.last_share.set(evaluation.share.unwrap_or(f64::NAN));
                    stats.highest_benefit.set(evaluation.highest);
                    stats.without_improvement.set(evaluation.without_improvement);
                    stats.evaluations.add(1);
                    metrics.append("evaluation", &evaluation);
                    stats.copy_ns.add(copying.elapsed().as_nanos() as u64);
                }
                // In lock-step the learner waits for the evaluation.
                if !settings.run.deterministic {
                    rested = working + (process_cpu_time() - cpu).div_f64(SHARE * cores);
                }
                evaluated = Some((version, due));
                stats.due.set(due);
                stats.set_progress(version, &control.progress);
                slot.beat();
                continue;
            }
        }
        if stopping >= STOP_ALL {
            return unsaved.map_or(Ok(()), |best| best.save(directory, stats).map_err(|e| CannotSave(e).into()));
        }
        save(&mut unsaved, directory, stats);
        let waiting = Instant::now();
        control.params.wait(seen, NAP);
        stats.wait_ns.add(waiting.elapsed().as_nanos() as u64);
        slot.beat();
    }
}

/// Best policy so far that is not on disk yet. Only a policy on disk counts as the best of the run, because snapshots link the
/// file.
struct Unsaved {
    file: PolicyFile,
    j: f64,
    share: Option<f64>,
    version: u64,
    /// Time of the last refusal by the file system.
    refused: Option<Instant>,
}

impl Unsaved {
    fn save(&self, directory: &RunDirectory, stats: &EvaluatorStats) -> anyhow::Result<()> {
        self.file.write(&directory.best())?;
        stats.best_benefit.set(self.j);
        stats.best_share.set(self.share.unwrap_or(f64::NAN));
        stats.best_version.set(self.version);
        Ok(())
    }
}

/// Writes the best policy if one is unsaved; a refusal is logged once and retried.
fn save(unsaved: &mut Option<Unsaved>, directory: &RunDirectory, stats: &EvaluatorStats) {
    let Some(best) = unsaved else { return };
    if best.refused.is_some_and(|at| at.elapsed() < RETRY) {
        return;
    }
    match best.save(directory, stats) {
        Ok(()) => *unsaved = None,
        Err(e) => {
            if best.refused.is_none() {
                tracing::warn!("the best policy so far cannot be written, training goes on: {e:#}");
            }
            best.refused = Some(Instant::now());
        }
    }
}
