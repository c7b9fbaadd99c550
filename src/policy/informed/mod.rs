//! The reference policy that knows the process: the value of the best possible forecast.
//!
//! It knows the process from which a synthetic world draws its days, and of a day what any policy has observed. Every ten
//! minutes it draws [`FUTURES`] courses of the rest of the day from the process given these observations, solves each with
//! hindsight, and bids the mean of the hindsight prices. It is no upper bound, because the mean price need not be the best bid.
//! It estimates the value of knowing the process, and so what a learner may hope for. The day's own future is not used: typical
//! requests come from streams of their own ([`crate::synth::Truth`]).
//!
//! Its process is that of worlds with random drift and noise. It does not include the regional shocks of `shock_min` and
//! `shock_max`, which last some hours and end at once, nor a `jump`.

mod belief;
mod gaussian;
mod normals;
mod pool;

use std::sync::Arc;

use crate::env::Replay;
use crate::plan::Transport;

use super::Policy;
use belief::{Belief, Course, STEP_MS, Seen};
use normals::Normals;
pub use pool::Known;
use pool::Pool;

/// The policy's name in tables.
pub const NAME: &str = "informed";
/// Number of courses of the rest of the day that each solution averages.
pub const FUTURES: usize = 64;
/// Smoothing of the dual, in units of its scale.
const SMOOTHING: f64 = 0.01;
/// Newton steps of a solution that starts from the last one's prices.
const STEPS: usize = 2;

struct Future {
    rows: Vec<u32>,
    transport: Transport,
    /// Minor units per impression.
    prices: Vec<f64>,
}

/// State of the day that is being replayed.
struct Today {
    belief: Belief,
    pool: Pool,
    futures: Vec<Future>,
    /// The current step, and its end, milliseconds from midnight.
    seen: Seen,
    end: u64,
}

/// The reference policy.
pub struct Informed {
    known: Arc<Known>,
    today: Option<Today>,
    /// Minor units per impression.
    prices: Vec<f64>,
}

impl Informed {
    pub fn new(known: Arc<Known>) -> Self {
        Self { known, today: None, prices: vec![] }
    }
}

impl Today {
    fn begin(known: &Known, replay: &Replay) -> Self {
        let pool = Pool::of(known, &replay.day);
        let penalty: Vec<f64> = replay.day.contracts.iter().map(|c| c.penalty).collect();
        let future = |k: usize| Future {
            rows: pool.held(k as u64),
            transport: Transport::new(vec![], vec![], penalty.clone()),
            prices: penalty.iter().map(|p| 0.5 * p).collect(),
        };
        let futures = (0..FUTURES).map(future).collect();
        let regions = known.truth.settings().regions as usize;
        let seen = Seen { requests: 0.0, prices: vec![(0.0, 0.0); regions] };
        Self { belief: Belief::new(&known.truth), pool, futures, seen, end: STEP_MS }
    }

    /// Closes the steps that end by `offset`; returns whether there were any.
    fn close(&mut self, known: &Known, offset: u64) -> bool {
        let mut closed = false;
        while offset >= self.end {
            let bin = ((self.end - STEP_MS) / 1_800_000) as usize;
            let expected = known.by_bin[bin] * STEP_MS as f64 / 1_800_000.0;
            self.belief.advance(&self.seen, expected, known.noise, self.end);
            self.seen.requests = 0.0;
            self.seen.prices.fill((0.0, 0.0));
            self.end += STEP_MS;
            closed = true;
        }
        closed
    }

    fn see(&mut self, known: &Known, replay: &Replay) {
        self.seen.requests += 1.0;
        let v = replay.visit();
        let kind = (v.slot_id, v.region, v.gender, v.age);
        if let Some(residual) = known.residual(kind, replay.offset(), replay.best(), replay.auctions().len()) {
            let (sum, n) = &mut self.seen.prices[v.region as usize - 1];
            *sum += residual;
            *n += 1.0;
        }
    }

    /// Returns the mean of the futures' hindsight prices.
    fn solve(&mut self, replay: &Replay, from: u64, first: bool) -> Vec<f64> {
        let remaining = |demand: &[f64]| -> Vec<f64> {
            demand.iter().zip(&replay.state.delivered).map(|(d, o)| (d - o).max(0.0)).collect()
        };
        let (owed, left) = (remaining(&replay.episode.owed), remaining(&replay.episode.left));
        let roots = self.belief.roots();
        let mut mean = vec![0.0; owed.len()];
        for (k, future) in (0..).zip(&mut self.futures) {
            let course = self.belief.draw(&roots, from, &mut Normals::new(k));
            future.solve(&self.pool, &course, from, (&owed, &left), first);
            for (mean, price) in mean.iter_mut().zip(&future.prices) {
                *mean += price / FUTURES as f64;
            }
        }
        mean
    }
}

impl Future {
    fn solve(&mut self, pool: &Pool, course: &Course, from: u64, (owed, left): (&[f64], &[f64]), first: bool) {
        let Self { rows, transport, prices } = self;
        transport.restate(owed.to_vec(), left.to_vec());
        let gone = rows.partition_point(|&i| pool.rows[i as usize].ms < from);
        for row in rows[gone..].iter().map(|&i| &pool.rows[i as usize]) {
            let volume = course.volume[(row.ms / 3_600_000) as usize];
            let price = course.prices[row.region][(row.ms / 1_800_000) as usize];
            let wanted = pool.entries[row.entries.clone()].iter().copied().filter(|&(j, _)| left[j as usize] > 0.0);
            transport.push(price * row.best, volume * row.weight, wanted);
        }
        let smoothing = SMOOTHING * transport.scale(prices).max(1e-9);
        // The first prices may be far off, so smoothing starts coarse.
        let coarse: &[f64] = if first { &[16.0, 4.0, 1.0, 1.0] } else { &[1.0] };
        for factor in coarse {
            transport.follow(prices, factor * smoothing, STEPS);
        }
    }
}

impl Policy for Informed {
    fn begin(&mut self, replay: &Replay) {
        let mut today = Today::begin(&self.known, replay);
        self.prices = today.solve(replay, 0, true);
        self.today = Some(today);
    }

    fn replan(&mut self, replay: &Replay) -> Option<&[f32]> {
        let today = self.today.as_mut().expect("begin() came first");
        if today.close(&self.known, replay.offset()) {
            self.prices = today.solve(replay, today.end - STEP_MS, false);
        }
        today.see(&self.known, replay);
        None
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.delivered[j] < replay.episode.owed[j];
            *score = c.click + if owes { self.prices[j] } else { self.prices[j].min(0.0) };
        }
    }
}
