//! From the start of `train` to the first block that an actor hands over: without caches, then with them.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use serde::Serialize;

use super::watched::{Task, Watched, learner_is_there};
use crate::shm::Role;

/// How often the run is looked at.
const LOOK: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, Serialize)]
pub struct StartReport {
    pub cores: usize,
    pub actors: usize,
    /// The first start, of a world that nothing is known of where it was generated for this.
    pub first: Start,
    /// The starts after it, which find compiled logs and plan; in order.
    pub warm: Vec<Start>,
}

/// Seconds since the process was started until...
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Start {
    /// .. main had opened the logs, planned and made the shared memory,
    pub prepared_s: f64,
    /// .. the learner, the evaluator and all actors had opened theirs,
    pub learner_s: f64,
    pub evaluator_s: f64,
    pub actors_s: f64,
    /// .. there were parameters to play with,
    pub parameters_s: f64,
    /// .. an actor handed over a block.
    pub block_s: f64,
}

impl fmt::Display for StartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seconds from process start   main ready  learner  evaluator  actors  parameters  first block")?;
        let rows = std::iter::once(("first start", &self.first)).chain(self.warm.iter().map(|s| ("with caches", s)));
        for (name, s) in rows {
            writeln!(
                f,
                "{name:27}  {:>10.3}  {:>7.3}  {:>9.3}  {:>6.3}  {:>10.3}  {:>11.3}",
                s.prepared_s, s.learner_s, s.evaluator_s, s.actors_s, s.parameters_s, s.block_s
            )?;
        }
        let mut blocks: Vec<f64> = self.warm.iter().map(|s| s.block_s).collect();
        blocks.sort_by(f64::total_cmp);
        let median = blocks.get(blocks.len() / 2).copied().unwrap_or(f64::NAN);
        write!(
            f,
            "start: first block after {median:.3} s with caches (median of {}), {:.3} s at the first start; {} actors, {} cores",
            blocks.len(),
            self.first.block_s,
            self.actors,
            self.cores
        )
    }
}

/// Starts a configuration, or a generated world of `requests` requests a day, once and then `starts` times more.
///
/// # Errors
/// A run that fails before its first block.
pub fn run(config: Option<&Path>, sets: &[String], requests: u32, starts: usize) -> anyhow::Result<StartReport> {
    let task = Task::new(config, sets, requests)?;
    let actors = task.settings.actors.count;
    let measure = || watch(task.start(&[])?, actors);
    let first = measure()?;
    let warm = (0..starts).map(|_| measure()).collect::<anyhow::Result<_>>()?;
    Ok(StartReport { cores: std::thread::available_parallelism().map_or(1, usize::from), actors, first, warm })
}

fn watch(mut run: Watched, actors: usize) -> anyhow::Result<Start> {
    let mut start = Start::default();
    let now = run.started;
    let elapsed = || now.elapsed().as_secs_f64();
    let inside = loop {
        if let Some(inside) = run.inside(actors) {
            start.prepared_s = elapsed();
            break inside;
        }
        ensure!(run.ended()?.is_none(), "training ended before it began");
        std::thread::sleep(LOOK);
    };
    let control = &inside.control;
    while start.block_s == 0.0 {
        let note = |seen: bool, at: &mut f64| {
            if seen && *at == 0.0 {
                *at = elapsed();
            }
        };
        note(learner_is_there(control), &mut start.learner_s);
        note(control.processes[Role::Evaluator.slot()].pid().is_some(), &mut start.evaluator_s);
        note((0..actors).all(|id| control.processes[id].pid().is_some()), &mut start.actors_s);
        note(control.learner.param_version.get() > 0, &mut start.parameters_s);
        let committed = inside.rings.iter().any(|ring| {
            let ledger = ring.ledger();
            ledger.unread + ledger.consumed > 0
        });
        note(committed, &mut start.block_s);
        ensure!(start.block_s > 0.0 || run.ended()?.is_none(), "training ended before the first block");
        std::thread::sleep(LOOK);
    }
    run.kill()?;
    Ok(start)
}
