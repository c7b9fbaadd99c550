//! Replays several policies on a day in one pass over its log.
//!
//! A block of requests is unpacked once. Then every policy decides all of them, on whatever core is free, while the next block is
//! unpacked. Only counters outlive a block, so memory grows neither with the day nor, beyond its counters, with each policy.

use std::sync::{Arc, Mutex};

use rayon::prelude::*;

use crate::cancel;
use crate::env::{DayModel, Replay};
use crate::log::requests::Iter;
use crate::log::{BLOCK, CompiledLog, Progress, QueueBuffer};
use crate::policy::witness::{Newest, Scored, Watcher, Witness};
use crate::policy::{DayPass, Policy, ReplayOptions, Shown, Totals};

use super::logged::Recount;
use super::measure::{DayMeasure, Meter};
use super::report::Kind;

/// A policy to be replayed.
pub struct Entrant<'a> {
    pub name: &'a str,
    pub kind: Kind,
    pub policy: &'a mut dyn Policy,
    /// The day with what the policy's plan knows of it.
    pub day: &'a DayModel,
    pub options: ReplayOptions,
}

/// Receiver of every decision, with the name of its policy. A policy's decisions come in the order of the requests.
pub type Watch<'a> = dyn FnMut(&str, Shown) -> anyhow::Result<()> + 'a;

/// Replays policies on one log and returns their sums and meters in the same order. If `judged` is given, the ads shown are counted
/// at the values of that day, which has the same requests.
///
/// # Errors
/// Any error of `watch`.
pub fn replay<'a>(
    mut entrants: Vec<Entrant>,
    measure: &'a DayMeasure,
    judged: Option<&DayModel>,
    watch: &mut Watch,
) -> anyhow::Result<Vec<(Totals, Meter<'a>)>> {
    let Some(log) = entrants.first().map(|first| first.day.log.clone()) else { return Ok(Vec::new()) };
    debug_assert!(entrants.iter().all(|e| Arc::ptr_eq(&e.day.log, &log)));
    let mut newest: Vec<SharedNewest> = entrants.iter().map(|_| SharedNewest::default()).collect();
    let mut runners: Vec<Runner> = Vec::with_capacity(entrants.len());
    for (Entrant { name, policy, day, options, .. }, watcher) in entrants.iter_mut().zip(&mut newest) {
        let newest = watcher.clone();
        let mut policy = Witness::new(&mut **policy, watcher);
        let pass = DayPass::of_day(day, &mut policy, *options);
        let recount = judged.map(Recount::new);
        runners.push(Runner { name, day, policy, newest, pass, recount, meter: measure.meter(), shown: Vec::new() });
    }
    let what = format!("{}, {} policies", log.name(), runners.len());
    let mut progress = Progress::new(what, log.requests().len() as u64);
    let mut blocks = Blocks::new(&log, judged.map(|day| &*day.log));
    let (mut block, mut next) = (Block::default(), Block::default());
    blocks.fill(&mut block);
    let mut from = 0;
    while !block.queues.requests.is_empty() {
        cancel::point();
        rayon::join(
            || runners.par_iter_mut().with_max_len(1).for_each(|runner| runner.take(from, &block, judged)),
            || blocks.fill(&mut next),
        );
        for runner in &mut runners {
            runner.shown.drain(..).try_for_each(|shown| watch(runner.name, shown))?;
        }
        let rows = block.queues.requests.len();
        progress.add(rows as u64, rows as u64);
        from += rows;
        std::mem::swap(&mut block, &mut next);
    }
    Ok(runners.into_iter().map(|runner| runner.finish(judged)).collect())
}

/// Unpacked requests, at the values that policies see, and at those they are judged by if these differ.
#[derive(Default)]
struct Block {
    queues: QueueBuffer,
    judged: QueueBuffer,
}

/// The blocks of a day in order.
struct Blocks<'a> {
    logs: (&'a CompiledLog, Option<&'a CompiledLog>),
    rows: (Iter<'a>, Option<Iter<'a>>),
}

impl<'a> Blocks<'a> {
    fn new(log: &'a CompiledLog, judged: Option<&'a CompiledLog>) -> Self {
        Self { logs: (log, judged), rows: (log.requests().iter(), judged.map(|log| log.requests().iter())) }
    }

    /// Unpacks the next block, an empty one at the end of the day.
    fn fill(&mut self, block: &mut Block) {
        self.logs.0.unpack(&mut self.rows.0, BLOCK, &mut block.queues);
        if let (Some(log), Some(rows)) = (self.logs.1, &mut self.rows.1) {
            log.unpack(rows, BLOCK, &mut block.judged);
        }
    }
}

/// Shared between an observed policy and the reader of its rankings.
#[derive(Clone, Default)]
struct SharedNewest(Arc<Mutex<Newest>>);

impl Watcher for SharedNewest {
    fn see(&mut self, replay: &Replay, ranked: &[Scored], features: &[f32]) {
        self.0.lock().expect("nobody panics with it").see(replay, ranked, features);
    }
}

/// A policy in the middle of the day.
struct Runner<'a, 'm> {
    name: &'a str,
    day: &'a DayModel,
    policy: Witness<'a>,
    newest: SharedNewest,
    pass: DayPass,
    /// Sums at other values than the policy sees.
    recount: Option<Recount>,
    meter: Meter<'m>,
    /// Decisions on the current block.
    shown: Vec<Shown>,
}

impl<'m> Runner<'_, 'm> {
    /// Decides the requests of a block, the first of which is row `from` of the day.
    fn take(&mut self, from: usize, block: &Block, judged: Option<&DayModel>) {
        for i in 0..block.queues.requests.len() {
            let incoming = self.day.incoming_unpacked(from + i, block.queues.get(i));
            let shown = self.pass.take(incoming, &mut self.policy);
            let ranking = self.newest.0.lock().expect("nobody panics with it").of(shown.request_id);
            let counted = match (&mut self.recount, judged) {
                (Some(recount), Some(day)) => {
                    recount.take(day, &day.incoming_unpacked(from + i, block.judged.get(i)), shown.ad)
                }
                _ => shown,
            };
            let shown = Shown { ranking, ..counted };
            self.meter.see(&shown);
            self.shown.push(shown);
        }
    }

    fn finish(self, judged: Option<&DayModel>) -> (Totals, Meter<'m>) {
        let totals = match (self.recount, judged) {
            (Some(recount), Some(day)) => recount.finish(day),
            _ => self.pass.finish(),
        };
        (totals, self.meter)
    }
}
