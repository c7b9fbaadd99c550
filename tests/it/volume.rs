//! The learned volume to come, in a world whose hours stray and whose forecaster is always wrong in the same way.

use std::path::PathBuf;
use std::sync::Arc;

use admix::env::{DayModel, Delay, Replay};
use admix::log::schema::DAY_MS;
use admix::log::{self, CompileOptions};
use admix::plan::{Horizon, Plan, VolumeModel};
use admix::policy::baselines::Receding;
use admix::policy::file::PolicyFile;
use admix::policy::{Policy, ReplayOptions, replay_day};
use admix::settings::{self, Baselines, Env, Episodes};
use admix::supervisor::prepare::Planning;

use super::decisions::synth;
use super::harness::train;

pub const WORLD: &str = "requests = 4000\nqueue = 8\nregions = 6\nslots = 2\nages = 2\nusers = 500\nauction_ads = 60\n\
                     contracts = 10\ncontracts_per_queue = 3.0\nfill = 0.6\ntraffic_noise = 0.0\nprice_noise = 0.0\n\
                     shock_min = 1.0\nshock_max = 1.0\nvolume_noise = 0.45\nvolume_correlation = 0.4\nforecast_bias = 0.2\n";
const TRAINED: usize = 5;

fn plan(dirs: &[PathBuf]) -> Plan {
    let options = CompileOptions::default();
    let logs = dirs.iter().map(|dir| log::open(dir, options).unwrap()).collect();
    let (env, episodes, policy) = (Env::default(), Episodes::default(), settings::Policy::default());
    // Nothing is tuned: both planners look ahead in the same way.
    let baselines = Baselines { tuning_replays: 0, ..Baselines::default() };
    let (served, validation, per_step) = (None, &[][..], 30);
    let (env, episodes, baselines, policy) = (&env, &episodes, &baselines, &policy);
    let told = &admix::values::Told::Logged;
    let planning =
        Planning { dirs, logs, served, validation, options, told, env, episodes, per_step, baselines, policy };
    planning.make().unwrap()
}

/// J of a policy on a day that was not planned from.
fn j(plan: &Plan, dir: &std::path::Path, mut policy: impl Policy) -> f64 {
    let log = log::open(dir, CompileOptions::default()).unwrap();
    let day = DayModel::new(dir, log, plan, Arc::default()).unwrap();
    let options = ReplayOptions { rate_seed: 0, delay: Delay::fixed(0.0) };
    replay_day(&day, &mut policy, options, &mut |_| {}).j
}

#[test]
fn what_was_learned_of_the_volume_wins_on_days_that_stray() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, TRAINED + 8);
    let plan = plan(&days[..TRAINED]);
    assert!(plan.volume.is_some());
    let horizon = plan.tuned.unwrap().receding;
    let planner = || Receding::new(plan.sample.clone(), horizon);
    let hidden = &days[TRAINED..];
    let without: f64 = hidden.iter().map(|dir| j(&plan, dir, planner())).sum();
    let with: f64 = hidden.iter().map(|dir| j(&plan, dir, planner().foreseeing())).sum();
    eprintln!("J over {} days: {without:.0} without, {with:.0} with", hidden.len());
    assert!(with > without, "{with} with what was learned, {without} without");
    // A plan that knows nothing of the volume leaves the planner as it was.
    let ignorant = Plan { volume: None, ..plan.clone() };
    assert_eq!(j(&ignorant, &hidden[0], planner().foreseeing()), j(&plan, &hidden[0], planner()));
}

/// A planner that is replaced at noon by another one, which goes on from what it saved.
struct Replaced<F> {
    planner: Receding,
    another: Option<F>,
}

impl<F: FnOnce() -> Receding + Send> Policy for Replaced<F> {
    fn begin(&mut self, replay: &Replay) {
        self.planner.begin(replay);
    }

    fn score(&mut self, replay: &Replay, contracts: &mut [f64], auctions: &mut [f64]) {
        if replay.offset() >= DAY_MS / 2
            && let Some(another) = self.another.take()
        {
            let saved = self.planner.save();
            self.planner = another();
            self.planner.begin(replay);
            self.planner.load(replay, &saved).unwrap();
        }
        self.planner.score(replay, contracts, auctions);
    }
}

#[test]
fn a_planner_of_several_courses_goes_on_from_what_it_saved() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 3);
    let plan = plan(&days[..2]);
    let planner = || Receding::new(plan.sample.clone(), Horizon::default()).foreseeing();
    let replaced = Replaced { planner: planner(), another: Some(planner) };
    assert_eq!(j(&plan, &days[2], replaced), j(&plan, &days[2], planner()));
}

#[test]
fn a_policy_carries_its_volume_model_and_the_untrained_one_does_without() {
    let ended = train(&["budget.max_updates=4"], &["--serial"]);
    let file = PolicyFile::read(&ended.best()).unwrap();
    let model: &VolumeModel = file.plan.volume.as_ref().expect("the plan knows the volume");
    let again: VolumeModel = serde_json::from_slice(&serde_json::to_vec(model).unwrap()).unwrap();
    assert_eq!(&again, model);
    assert!(file.spec.policy.foresees_volume() && !file.untrained().spec.policy.foresees_volume());
}
