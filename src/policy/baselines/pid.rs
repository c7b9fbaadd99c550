//! PID pacing on virtual bids.
//!
//! Each contract bids the training days' price times `exp(P e + I sum(e dt) + D de/dt)`, where `e` is the planned share
//! minus the observed delivered share and `t` runs from 0 to 1 over the forecast traffic. The bid stays within
//! the penalty. The integral is held while the bid is at a bound (anti-windup).

use anyhow::ensure;

use crate::env::Replay;
use crate::plan::PidGains;
use crate::policy::{Policy, finite, pack, unpack};

use super::clock::Clock;

pub struct Pid {
    gains: PidGains,
    clock: Clock,
    /// Factor on the starting prices, for tuning.
    start_factor: f64,
    time: f64,
    start: Vec<f64>,
    bids: Vec<f64>,
    integral: Vec<f64>,
    error: Vec<f64>,
}

impl Pid {
    /// `interval_s`: seconds of log time between two steps of the controller.
    pub fn new(gains: PidGains, interval_s: f64) -> Self {
        Self {
            gains,
            clock: Clock::new(interval_s),
            start_factor: 1.0,
            time: 0.0,
            start: vec![],
            bids: vec![],
            integral: vec![],
            error: vec![],
        }
    }

    /// Returns the controller with its starting prices multiplied by a factor.
    pub fn starting_off_by(mut self, factor: f64) -> Self {
        self.start_factor = factor;
        self
    }

    fn step(&mut self, replay: &Replay) {
        let total = replay.day.traffic.total().max(1e-9);
        let time = replay.day.traffic.before(replay.offset()) / total;
        let dt = (time - self.time).max(1e-6);
        for (j, c) in replay.day.contracts.iter().enumerate() {
            let owed = replay.episode.owed[j];
            let Some(planned) = c.planned_share(replay.observed_until()).filter(|_| owed > 0.0) else { continue };
            let error = planned - replay.state.observed[j] / owed;
            let held = (self.bids[j] >= c.penalty && error > 0.0) || (self.bids[j] <= 1e-6 && error < 0.0);
            if !held {
                self.integral[j] += error * dt;
            }
            let change = (error - self.error[j]) / dt;
            self.error[j] = error;
            let power = self.gains.proportional * error
                + self.gains.integral * self.integral[j]
                + self.gains.derivative * change;
            self.bids[j] = (self.start[j] * power.clamp(-20.0, 20.0).exp()).min(c.penalty);
        }
        self.time = time;
    }
}

impl Policy for Pid {
    fn begin(&mut self, replay: &Replay) {
        let n = replay.day.contracts.len();
        self.start = replay
            .day
            .contracts
            .iter()
            // A multiplicative controller cannot leave zero.
            .map(|c| (c.price * self.start_factor).clamp(0.02 * c.penalty, c.penalty.max(1e-9)))
            .collect();
        self.bids.clone_from(&self.start);
        self.integral = vec![0.0; n];
        self.error = vec![0.0; n];
        self.clock.restart();
        self.time = 0.0;
    }

    fn save(&self) -> Vec<u8> {
        pack(&(&self.bids, &self.integral, &self.error, self.time, self.clock.next()))
    }

    fn load(&mut self, replay: &Replay, saved: &[u8]) -> anyhow::Result<()> {
        let (bids, integral, error, time, next): (Vec<f64>, Vec<f64>, Vec<f64>, f64, u64) = unpack(saved)?;
        let fits = [&bids, &integral, &error].iter().all(|v| finite(v, replay.day.contracts.len()));
        ensure!(fits && time.is_finite(), "saved bids of another day");
        (self.bids, self.integral, self.error, self.time) = (bids, integral, error, time);
        self.clock.resume(next);
        Ok(())
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], _: &mut [f64]) {
        if self.clock.due(replay.offset()) {
            self.step(replay);
        }
        for (score, c) in contracts.iter_mut().zip(replay.candidates()) {
            let j = c.contract as usize;
            let owes = replay.state.observed[j] < replay.episode.owed[j];
            *score = c.click + if owes { self.bids[j] } else { 0.0 };
        }
    }
}
