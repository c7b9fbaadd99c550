//! The evaluator process: replays the validation days with newly published parameters and saves the best.

use std::time::Duration;

use anyhow::Context as _;

use crate::policy::file::PolicyFile;
use crate::run::{Context, Metrics, RunDirectory, Segments, unpack};
use crate::shm::ProcessKind;
use crate::shm::control::{MAX_PROCESSES, STOP_ALL, STOP_NOW};

use super::judge::Judge;

const NAP: Duration = Duration::from_millis(100);
/// Where the evaluator signs in.
pub const SLOT: usize = MAX_PROCESSES - 2;

/// Runs the evaluator until the run stops; the newest parameters are evaluated before it ends, unless the stop is
/// hurried.
///
/// # Errors
/// Anything that keeps it from evaluating; main starts it again.
pub fn run(directory: &RunDirectory, prefix: &str) -> anyhow::Result<()> {
    let context = Context::load(directory)?;
    let settings = &context.settings;
    let days = context.days(&settings.data.validation)?;
    let segments = Segments::open(prefix, 0..0)?;
    let control = &segments.control;
    let stats = &control.evaluator;
    let slot = &control.processes[SLOT];
    slot.sign_in(ProcessKind::Evaluator);
    let mut judge = Judge::new(days, context.spec.clone(), context.replay_options());
    if stats.evaluations.get() > 0 {
        judge.resume(stats.best_benefit.get(), stats.without_improvement.get());
    }
    let mut metrics = Metrics::open(&directory.metrics())?;
    let actor_len = context.spec.actor_shape().len();
    let mut words = Vec::new();
    // The last evaluated version, and the multiple of `evaluate.every` that its updates had reached.
    let mut evaluated: Option<(u64, u64)> = None;
    loop {
        let seen = control.params.value();
        let stopping = control.stop_level();
        if stopping >= STOP_NOW {
            return Ok(());
        }
        let news = segments.params.version() > evaluated.map_or(0, |(version, _)| version);
        if news && let Some(version) = segments.params.read(&mut words) {
            let (updates, _, averaged) = unpack(&words, actor_len).context("a publication of another size")?;
            let due = updates / settings.evaluate.every;
            if stopping >= STOP_ALL || evaluated.is_none_or(|(_, last)| due > last) {
                let counted = updates > settings.learner.critic_head_start;
                let evaluation = judge.evaluate(updates, &averaged, counted);
                if evaluation.improved {
                    let file =
                        PolicyFile { spec: context.spec.clone(), plan: context.plan.clone(), actor: averaged, updates };
                    file.write(&directory.best())?;
                    stats.best_benefit.set(evaluation.j);
                    stats.best_share.set(evaluation.share.unwrap_or(f64::NAN));
                    stats.best_version.set(version);
                }
                stats.last_benefit.set(evaluation.j);
                stats.last_share.set(evaluation.share.unwrap_or(f64::NAN));
                stats.without_improvement.set(evaluation.without_improvement);
                stats.evaluations.add(1);
                metrics.append("evaluation", &evaluation);
                evaluated = Some((version, due));
                stats.set_progress(version, &control.progress);
                slot.beat();
                continue;
            }
        }
        if stopping >= STOP_ALL {
            return Ok(());
        }
        control.params.wait(seen, NAP);
        slot.beat();
    }
}
