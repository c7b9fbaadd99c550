//! What evaluating parameters on a whole day costs on one core, and what of it is replanning, the network and the replay itself.

use std::fmt;
use std::time::Instant;

use serde::Serialize;

use crate::policy::start::initial_actor;
use crate::policy::{LearnedPolicy, Policy, ReplayOptions, replay_day};
use crate::settings::Settings;

use super::env::Trivial;
use super::proc::thread_cpu_time;
use super::world::{self, WorldSize};

/// Seconds are CPU time of one replay of the day, the fastest.
#[derive(Debug, Clone, Serialize)]
pub struct EvaluateReport {
    pub requests: usize,
    pub contracts: usize,
    pub seconds: f64,
    pub replanning_seconds: f64,
    pub network_seconds: f64,
    pub replay_seconds: f64,
}

impl fmt::Display for EvaluateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "evaluate: a day of {} requests and {} contracts in {:.3} s on one core: {:.3} s replanning, {:.3} s features and network, \
             {:.3} s replay",
            self.requests,
            self.contracts,
            self.seconds,
            self.replanning_seconds,
            self.network_seconds,
            self.replay_seconds
        )
    }
}

/// Replays a day of `size` for `seconds` in all: with an untrained policy, with one that does not replan, with a trivial one.
pub fn run(size: WorldSize, settings: &Settings, seconds: f64) -> anyhow::Result<EvaluateReport> {
    let (mut day, plan) = world::day(size)?;
    day.sample = plan.sample.clone();
    let policy = |settings: &Settings| {
        let spec = world::spec(&day, settings);
        let actor = initial_actor(&spec, 1);
        LearnedPolicy::new(spec, actor)
    };
    let mut fixed = settings.clone();
    fixed.policy.replan = false;
    let fastest = |policy: &mut dyn Policy| {
        let options = ReplayOptions { rate_seed: 0, delay: crate::env::Delay::fixed(0.0) };
        let mut fastest = f64::INFINITY;
        let started = Instant::now();
        while fastest == f64::INFINITY || started.elapsed().as_secs_f64() < seconds / 3.0 {
            let before = thread_cpu_time()?;
            replay_day(&day, policy, options, &mut |_| {});
            fastest = fastest.min((thread_cpu_time()? - before).as_secs_f64());
        }
        anyhow::Ok(fastest)
    };
    let (whole, fixed, trivial) =
        (fastest(&mut policy(settings))?, fastest(&mut policy(&fixed))?, fastest(&mut Trivial)?);
    Ok(EvaluateReport {
        requests: size.requests,
        contracts: size.contracts,
        seconds: whole,
        replanning_seconds: whole - fixed,
        network_seconds: fixed - trivial,
        replay_seconds: trivial,
    })
}
