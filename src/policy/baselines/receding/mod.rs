//! Receding horizon: prices are solved repeatedly on the rest of the day.
//!
//! The rest of the day is a sample of the training days' requests ([`Sample`]) with the day's own contracts in their queues,
//! weighted by the day's forecast in time and by kind of request, times the volume seen so far over the forecast; their auction
//! worth is scaled by the price level seen so far over the expected one. A contract's remaining demand is its demand minus the
//! deliveries observed. The prices minimise the smoothed dual of that problem, starting from the last ones: the certainty
//! equivalent of the day's remaining bound.
//!
//! The planner under the learned bids also forecasts the volume ([`Receding::foreseeing`]): it uses the learned deviation and mean
//! reversion of the volume ([`VolumeModel`]), in several courses whose prices are averaged.

mod ahead;

use std::sync::Arc;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::env::Replay;
use crate::plan::{GRID, Horizon, Sample, Transport, VolumeModel};
use crate::policy::{Done, Policy, Work, finite, pack, unpack};

use super::clock::Clock;
use ahead::{Ahead, CELL_MS};

/// Weight of the expected price in the price level, requests.
const PRICE_PRIOR: f64 = 50.0;
/// Smoothing of the dual, in units of its scale.
const SMOOTHING: f64 = 0.01;
/// Newton steps of a solution that starts from the last one's prices.
const STEPS: usize = 2;

pub struct Receding {
    sample: Arc<Sample>,
    memory_ms: f64,
    /// Factor on the prices that the sample expects, for tuning.
    price_factor: f64,
    clock: Clock,
    ahead: Arc<Ahead>,
    /// Transport problem of the rest of the day, as last stated; `None` while a task has it.
    transport: Option<Transport>,
    /// Minor units per impression.
    prices: Vec<f64>,
    solved: bool,
    level: PriceLevel,
    /// Whether prices are solved elsewhere, and the task to be solved there.
    hands_out: bool,
    work: Option<Task>,
    /// Whether prices came back that were not yet reported.
    fresh: bool,
    /// Whether displays whose delivery is not observed yet count as delivered.
    predicts: bool,
    /// Whether it plans for the learned volume if the day's plan has a model of it, and that model.
    foresees: bool,
    volume: Option<Arc<VolumeModel>>,
    /// Prices of each course of the rest of the day; `prices` are their mean.
    courses: Vec<Vec<f64>>,
    /// Prices at the forecast volume and the expected price level; empty before [`Receding::second_opinion`].
    steady: Vec<f64>,
}

/// The planner's solution if the forecast were right. Money in minor units per impression.
pub struct SecondOpinion<'a> {
    pub prices: &'a [f64],
    /// Derivative of each price by the log of all demands, or minus the log of all volume, minor units.
    pub by_demand: Vec<f64>,
    /// Derivative of each contract's supply, as a share of its demand, by the log of its own price.
    pub supply: Vec<f64>,
}

/// A price problem with everything that its solution depends on.
struct Task {
    ahead: Arc<Ahead>,
    transport: Transport,
    courses: Vec<Course>,
    owed: Vec<f64>,
    left: Vec<f64>,
    /// Milliseconds from midnight.
    offset: u64,
    /// Factor on the expected prices.
    price: f64,
    /// Whether the courses' prices come from an earlier solution.
    solved: bool,
}

/// One possible course of the rest of the day.
struct Course {
    /// Factor on the expected requests by cell of the grid.
    volume: [f64; GRID],
    /// Minor units per impression.
    prices: Vec<f64>,
}

/// State of a solver in the middle of a day, beyond the expected requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecedingState {
    prices: Vec<f64>,
    solved: bool,
    level: PriceLevel,
    next: u64,
    steady: Vec<f64>,
    courses: Vec<Vec<f64>>,
}

impl RecedingState {
    /// Whether this can be a solver's state on a day with `contracts` contracts.
    pub fn fits(&self, contracts: usize) -> bool {
        finite(&self.prices, contracts)
            && (self.steady.is_empty() || finite(&self.steady, contracts))
            && self.courses.iter().all(|prices| finite(prices, contracts))
            && self.level.seen.is_finite()
            && self.level.expected.is_finite()
    }
}

/// Decaying price level seen over the expected one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct PriceLevel {
    seen: f64,
    expected: f64,
    at: u64,
    requests: u32,
}

impl PriceLevel {
    /// Counts the current request, and the unscored requests since the last call, which had no auction ad.
    fn see(&mut self, replay: &Replay, memory_ms: f64, factor: f64) {
        let offset = replay.offset();
        let decay = (-(offset.saturating_sub(self.at) as f64) / memory_ms).exp();
        let arrived = f64::from(replay.state.requests.saturating_sub(self.requests));
        let hour = (offset / 3_600_000) as usize;
        self.seen = self.seen * decay + replay.best();
        self.expected = self.expected * decay + arrived * factor * replay.day.price_by_hour[hour];
        (self.at, self.requests) = (offset, replay.state.requests);
    }

    fn ratio(&self, unit: f64) -> f64 {
        (self.seen + PRICE_PRIOR * unit) / (self.expected + PRICE_PRIOR * unit)
    }
}

impl Receding {
    pub fn new(sample: Arc<Sample>, horizon: Horizon) -> Self {
        Self {
            sample,
            memory_ms: (horizon.memory_s * 1000.0).max(1.0),
            price_factor: 1.0,
            clock: Clock::new(horizon.interval_s),
            ahead: Arc::default(),
            transport: None,
            prices: vec![],
            solved: false,
            level: PriceLevel::default(),
            hands_out: false,
            work: None,
            fresh: false,
            predicts: false,
            foresees: false,
            volume: None,
            courses: vec![],
            steady: vec![],
        }
    }

    /// Counts unconfirmed displays as delivered: the policy knows them before their delivery is observed.
    pub fn predicting(mut self) -> Self {
        self.predicts = true;
        self
    }

    /// Plans for the volume learned from logged days, in several courses, if the day's plan has a model of it, instead
    /// of extrapolating the volume so far.
    pub fn foreseeing(mut self) -> Self {
        self.foresees = true;
        self
    }

    /// Multiplies the expected prices by a factor.
    pub fn expecting_prices_off_by(mut self, factor: f64) -> Self {
        self.price_factor = factor;
        self
    }

    /// Takes in the current request; returns whether the prices were solved again.
    pub fn advance(&mut self, replay: &Replay) -> bool {
        self.level.see(replay, self.memory_ms, self.price_factor);
        let mut solved = std::mem::take(&mut self.fresh);
        let level = self.level.ratio(self.price_factor * replay.day.unit);
        if self.clock.due(replay.offset())
            && let Some(task) = self.task(replay, level, self.volumes(replay))
        {
            if self.hands_out && self.solved {
                self.work = Some(task);
            } else {
                self.take(task.solve());
                solved = true;
            }
        }
        solved
    }

    /// Sets whether prices are handed out as [`Work`] instead of being solved in line; the first are always solved in line.
    pub fn hand_out(&mut self, on: bool) {
        self.hands_out = on;
    }

    /// Returns prices to be solved elsewhere.
    pub fn take_work(&mut self) -> Option<Work> {
        let task = self.work.take()?;
        Some(Box::new(move || Box::new(task.solve()) as Done))
    }

    /// Takes prices that were solved elsewhere.
    pub fn finish_work(&mut self, done: Done) {
        if let Ok(task) = done.downcast::<Task>() {
            self.take(*task);
            self.fresh = true;
        }
    }

    fn take(&mut self, task: Task) {
        self.courses = task.courses.into_iter().map(|course| course.prices).collect();
        let mean = |j: usize| self.courses.iter().map(|prices| prices[j]).sum::<f64>() / self.courses.len() as f64;
        self.prices = (0..self.prices.len()).map(mean).collect();
        self.transport = Some(task.transport);
        self.solved = true;
    }

    /// Returns the state from which [`Receding::resume`] continues.
    pub fn state(&self) -> RecedingState {
        let Self { prices, solved, level, steady, courses, .. } = self;
        RecedingState {
            courses: courses.clone(),
            prices: prices.clone(),
            solved: *solved,
            level: *level,
            next: self.clock.next(),
            steady: steady.clone(),
        }
    }

    /// Resumes in the middle of the day that it has begun.
    pub fn resume(&mut self, state: RecedingState) {
        self.prices = state.prices;
        self.solved = state.solved;
        self.level = state.level;
        self.steady = state.steady;
        self.courses = state.courses;
        self.clock.resume(state.next);
    }

    /// Returns the current prices, minor units per impression.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// Solves once more, as if the rest of the day came as forecast; `None` while a task is being solved elsewhere.
    pub fn second_opinion(&mut self, replay: &Replay) -> Option<SecondOpinion<'_>> {
        let mut task = self.task(replay, 1.0, vec![[1.0; GRID]])?;
        let known = !self.steady.is_empty();
        if !known {
            self.steady = self.prices.clone();
        }
        task.state(0);
        let mut transport = task.transport;
        let smoothing = SMOOTHING * transport.scale(&self.steady).max(1e-9);
        let coarse: &[f64] = if known { &[1.0] } else { &[4.0, 1.0] };
        for factor in coarse {
            transport.follow(&mut self.steady, factor * smoothing, STEPS);
        }
        let (by_demand, supply) = transport.sensitivity(&self.steady, 10.0 * smoothing);
        self.transport = Some(transport);
        Some(SecondOpinion { prices: &self.steady, by_demand, supply })
    }

    /// Returns factors on the expected requests by cell of the grid, for one or several possible courses of the rest of the day.
    fn volumes(&self, replay: &Replay) -> Vec<[f64; GRID]> {
        let Replay { day, episode, state, .. } = replay;
        match &self.volume {
            Some(model) => {
                let elapsed = day.traffic.before(replay.offset()) / day.traffic.total().max(1e-9);
                model.courses(state.deviation(episode), elapsed, (replay.offset() / CELL_MS) as usize)
            }
            None => vec![[state.volume_level(day, episode, replay.offset()); GRID]],
        }
    }

    /// Returns the current price problem, with expected prices scaled by `level` and requests by the factors of each course;
    /// `None` while an earlier task is out.
    fn task(&mut self, replay: &Replay, level: f64, volumes: Vec<[f64; GRID]>) -> Option<Task> {
        let transport = self.transport.take()?;
        let counted = if self.predicts { &replay.state.delivered } else { &replay.state.observed };
        let remaining =
            |demand: &[f64]| -> Vec<f64> { demand.iter().zip(counted).map(|(d, o)| (d - o).max(0.0)).collect() };
        let course = |(k, volume): (usize, [f64; GRID])| Course {
            volume: volume.map(|factor| replay.episode.thinning * factor),
            prices: self.courses.get(k).unwrap_or(&self.prices).clone(),
        };
        Some(Task {
            ahead: self.ahead.clone(),
            transport,
            courses: volumes.into_iter().enumerate().map(course).collect(),
            owed: remaining(&replay.episode.owed),
            left: remaining(&replay.episode.left),
            offset: replay.offset(),
            price: self.price_factor * level,
            solved: self.solved,
        })
    }
}

impl Task {
    /// Loads the rest of the day, in one course, into the transport problem.
    fn state(&mut self, course: usize) {
        let Self { ahead, transport, courses, owed, left, offset, price, .. } = self;
        let Ahead { rows, entries } = &**ahead;
        let volume = &courses[course].volume;
        transport.restate(owed.clone(), left.clone());
        let now = (*offset / CELL_MS) as usize;
        let first = rows.partition_point(|row| row.cell < now);
        for row in &rows[first..] {
            let ahead = if row.cell == now { 1.0 - (*offset % CELL_MS) as f64 / CELL_MS as f64 } else { 1.0 };
            let wanted = entries[row.entries.clone()].iter().copied().filter(|&(j, _)| left[j as usize] > 0.0);
            transport.push(*price * row.best, ahead * volume[row.cell] * row.weight, wanted);
        }
    }

    /// Solves the prices of every course, starting from the given ones.
    fn solve(mut self) -> Self {
        for course in 0..self.courses.len() {
            self.state(course);
            let Self { transport, courses, solved, .. } = &mut self;
            let prices = &mut courses[course].prices;
            let smoothing = SMOOTHING * transport.scale(prices).max(1e-9);
            // The first prices may be far off, so smoothing starts coarse.
            let coarse: &[f64] = if *solved { &[1.0] } else { &[16.0, 4.0, 1.0, 1.0] };
            for factor in coarse {
                transport.follow(prices, factor * smoothing, STEPS);
            }
        }
        self
    }
}

impl Policy for Receding {
    fn begin(&mut self, replay: &Replay) {
        self.volume = replay.day.volume.clone().filter(|_| self.foresees);
        self.ahead = Ahead::of(&self.sample, &replay.day);
        if let Some(model) = &self.volume {
            Arc::make_mut(&mut self.ahead).correct(model);
        }
        self.courses.clear();
        let penalty = replay.day.contracts.iter().map(|c| c.penalty).collect();
        self.transport = Some(Transport::new(vec![], vec![], penalty));
        self.prices = replay.day.contracts.iter().map(|c| c.price.min(c.penalty)).collect();
        self.solved = false;
        // Requests before the start were not seen: they must not count as requests without an auction ad.
        self.level = PriceLevel { requests: replay.state.requests, ..PriceLevel::default() };
        self.steady.clear();
        self.clock.restart();
        (self.work, self.fresh) = (None, false);
    }

    fn save(&self) -> Vec<u8> {
        pack(&self.state())
    }

    fn load(&mut self, replay: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        let state: RecedingState = unpack(saved)?;
        ensure!(state.fits(replay.day.contracts.len()), "saved prices of another day");
        self.resume(state);
        Ok(())
    }

    fn hand_out(&mut self, on: bool) {
        Self::hand_out(self, on);
    }

    fn take_work(&mut self) -> Option<Work> {
        Self::take_work(self)
    }

    fn finish_work(&mut self, done: Done) {
        Self::finish_work(self, done);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        self.advance(replay);
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.observed[j] < replay.episode.owed[j];
            *score = c.click + if owes { self.prices[j] } else { self.prices[j].min(0.0) };
        }
    }
}
