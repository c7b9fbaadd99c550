//! Environment steps per second on one core: whole-day replay with all counters and a trivial policy.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use crate::env::{Delay, Replay};
use crate::policy::{Policy, ReplayOptions, replay_day};

use super::world::{self, WorldSize};

#[derive(Debug, Clone, Serialize)]
pub struct EnvReport {
    pub queue: usize,
    pub contracts_in_queue: usize,
    pub steps: u64,
    pub seconds: f64,
    pub steps_per_second: f64,
}

impl fmt::Display for EnvReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "env: {:.2} M steps/s on one core (queue of {}, {} of them contracts, {} steps)",
            self.steps_per_second / 1e6,
            self.queue,
            self.contracts_in_queue,
            self.steps
        )
    }
}

/// Shows the candidate with the highest worth of its click, or the auction ad.
pub struct Trivial;

impl Policy for Trivial {
    fn begin(&mut self, _: &Replay) {}

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            *score = 3.0 + c.click;
        }
    }
}

/// Replays a day of `size` again and again for `seconds`.
pub fn run(size: WorldSize, seconds: f64) -> anyhow::Result<EnvReport> {
    let (day, _) = world::day(size)?;
    let options = ReplayOptions { rate_seed: 0, delay: Delay::fixed(0.0) };
    replay_day(&day, &mut Trivial, options, &mut |_| {});
    let started = Instant::now();
    let mut steps = 0;
    while started.elapsed().as_secs_f64() < seconds {
        replay_day(&day, &mut Trivial, options, &mut |_| {});
        steps += size.requests as u64;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(EnvReport {
        queue: size.queue,
        contracts_in_queue: size.eligible,
        steps,
        seconds,
        steps_per_second: steps as f64 / seconds,
    })
}
