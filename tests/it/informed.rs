//! The reference that knows a world's process: what it may know, and what it is good for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use admix::env::Delay;
use admix::evaluate::{Stress, TestDay};
use admix::log::CompileOptions;
use admix::plan::Plan;
use admix::policy::informed::{Informed, Known};
use admix::policy::{ReplayOptions, Shown, Totals, replay_day};
use admix::values::Told;
use serde_json::Value;

use super::decisions::{plan, synth};
use super::support::admix;

const WORLD: &str = "requests = 3000\nqueue = 6\nregions = 4\nslots = 2\nages = 2\nusers = 500\nauction_ads = 40\n\
                     contracts = 6\ncontracts_per_queue = 2.5\nfill = 0.6\ntraffic_noise = 0.0\nprice_noise = 0.0\n\
                     shock_min = 1.0\nshock_max = 1.0\nreverting_shocks = 1.0\ngroup_price_noise = 0.15\n\
                     [draw]\nvolume_noise = [0.35, 0.45]\nvolume_correlation = [0.3, 0.5]\n";

const LOGGED: (&Told, &Told) = (&Told::Logged, &Told::Logged);
const HOUR_MS: u64 = 3_600_000;

fn served(dir: &Path, stress: Option<&Stress>, known: &Arc<Known>) -> (Totals, Vec<Shown>) {
    let day = TestDay::open(dir, CompileOptions::default(), LOGGED, stress).unwrap();
    let plan = Plan::from_days(&[day.log()], 0).unwrap();
    let options = ReplayOptions { rate_seed: 0, delay: Delay::fixed(0.0) };
    let mut shown = Vec::new();
    let model = day.model(&plan, Arc::default());
    let totals = replay_day(&model, &mut Informed::new(known.clone()), options, &mut |s| shown.push(s));
    (totals, shown)
}

fn known(dir: &Path) -> Arc<Known> {
    TestDay::open(dir, CompileOptions::default(), LOGGED, None).unwrap().known().unwrap().unwrap()
}

/// What comes after two o'clock is another day's; what was shown before is the same.
#[test]
fn it_does_not_see_the_day_s_own_future() {
    let scratch = tempfile::tempdir().unwrap();
    let day = &synth(scratch.path(), WORLD, 1)[0];
    let known = known(day);
    let (_, usual) = served(day, None, &known);
    for stress in ["prices=3@14", "prices=0.3@14"] {
        let (_, other) = served(day, Some(&stress.parse().unwrap()), &known);
        assert_eq!(usual.len(), other.len());
        let until = |shown: &[Shown]| shown.iter().take_while(|s| s.offset < 14 * HOUR_MS).copied().collect::<Vec<_>>();
        let (before, same) = (until(&usual), until(&other));
        assert!(before.len() > 1000 && before.iter().any(|s| s.contract.is_some()));
        assert!(before == same, "{stress}: it knew");
        assert!(usual != other, "{stress}: it never noticed");
    }
}

fn reports(days: &[PathBuf], arguments: &[&str]) -> Vec<Value> {
    let output = admix().args(["eval", "--json", "--informed", "--log"]).args(days).args(arguments).assert().success();
    let lines = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let reports = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    reports.filter(|report| report["policies"].is_array()).collect()
}

fn share(report: &Value, name: &str) -> Option<f64> {
    report["policies"].as_array().unwrap().iter().find(|p| p["name"] == name)?["share"].as_f64()
}

/// On days that wander, foresight is worth something over prices that were right on other days; and it is not the oracle's.
#[test]
fn eval_shows_what_knowing_the_process_is_worth() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 5);
    let plan = plan(scratch.path(), &days[..2]);
    let found = reports(&days[2..], &["--plan", plan.to_str().unwrap(), "--baselines", "static-prices"]);
    assert_eq!(found.len(), 3);
    let mean = |name: &str| found.iter().map(|r| share(r, name).unwrap()).sum::<f64>() / 3.0;
    assert!(mean("static-prices") < mean("informed") && mean("informed") < mean("oracle"));
    assert!(mean("informed") > 0.98, "{}", mean("informed"));
    let kind = found[0]["policies"].as_array().unwrap().iter().find(|p| p["name"] == "informed").unwrap();
    assert_eq!(kind["kind"], "informed");
}

#[test]
fn without_a_world_file_it_is_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 1);
    let [world, away] = ["days/world.toml", "away.toml"].map(|name| scratch.path().join(name));
    std::fs::rename(&world, &away).unwrap();
    let found = reports(&days, &["--baselines", "none"]);
    assert_eq!(share(&found[0], "informed"), None);
    // Nor does it take a day that its world did not draw for one that it did.
    std::fs::rename(&away, &world).unwrap();
    let found = reports(&days, &["--baselines", "none", "--stress", "volume=0.5"]);
    assert_eq!(share(&found[0], "informed"), None);
}

/// The delay that a day draws is the day's own, and who predicts deliveries is not delayed.
#[test]
fn a_drawn_delay_costs_those_who_wait_and_not_those_who_predict() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 3);
    let config = scratch.path().join("run.toml");
    let text = "[data]\ntrain = [\"a\"]\nvalidation = [\"b\"]\n[baselines]\ntuning_replays = 8\n\
                [env.feedback_delay]\nmedian_s = 1800\nlog_sd = 0.5\nmax_s = 7200\n";
    std::fs::write(&config, text).unwrap();
    let out = scratch.path().join("plan.json");
    admix().arg("plan").args(&days[..2]).arg("--config").arg(&config).arg("--out").arg(&out).assert().success();
    let plan = Plan::read(&out).unwrap();
    assert!(plan.tuned_predicting.is_some(), "prediction is tuned without delay");
    let names = "pid,pid-predicting";
    let found = |delay: &str| {
        let arguments = ["--plan", out.to_str().unwrap(), "--baselines", names, "--feedback-delay", delay];
        reports(&days[2..], &arguments).remove(0)
    };
    let (late, prompt) = (found("3600"), found("0"));
    assert_ne!(share(&late, "pid"), share(&prompt, "pid"));
    assert_eq!(share(&late, "pid-predicting"), share(&prompt, "pid-predicting"));
}

#[test]
fn data_check_compares_days_and_synth_makes_more_like_them() {
    let scratch = tempfile::tempdir().unwrap();
    let days = synth(scratch.path(), WORLD, 4);
    let output = admix().args(["data", "check", "--json"]).args(&days).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let sd = last["wander"]["volume"]["hourly_sd"].as_f64().unwrap();
    assert!((0.15..0.7).contains(&sd), "{sd}");
    let out = scratch.path().join("like");
    admix().args(["data", "synth", "--days", "1", "--out"]).arg(&out).arg("--like").args(&days).assert().success();
    let world: toml::Table = std::fs::read_to_string(out.join("world.toml")).unwrap().parse().unwrap();
    assert!((world["volume_noise"].as_float().unwrap() - sd).abs() < 1e-6);
    assert_eq!(world["contracts"].as_integer(), Some(6));
    let said = admix().args(["data", "synth", "--out", "x", "--like"]).arg(&days[0]).assert().code(2);
    assert!(String::from_utf8_lossy(&said.get_output().stderr).contains("two or more"));
}
